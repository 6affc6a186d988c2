"""`transhash mcp`, driven by the official client over standard input and output."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp", reason="pip install 'transhash[mcp]'")

import mcp

from small_run import copy_small_run
from transhash.search.engine import SearchEngine
from transhash.search.feedback import FeedbackStore

COMMAND = ("-m", "transhash", "mcp")
ENVIRONMENT = {
    name: os.environ[name]
    for name in ("PYTHONPATH", "TRANSHASH_CACHE", "OMP_NUM_THREADS")
    if name in os.environ
} | {"TRANSHASH_PROGRESS_SECONDS": "0.05"}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return copy_small_run(tmp_path)


def talk(run: Path, log: Path, conversation: Callable[[Any], Awaitable[Any]], *options: str) -> Any:
    """Start the command and return what the conversation with it returns."""

    async def connect() -> Any:
        command = mcp.StdioServerParameters(
            command=sys.executable, args=[*COMMAND, str(run), *options], env=ENVIRONMENT
        )
        with log.open("w") as errors:
            async with mcp.Client(mcp.stdio_client(command, errors)) as client:
                return await conversation(client)

    return asyncio.run(connect())


def test_a_client_searches_and_shows_items(run: Path, tmp_path: Path) -> None:
    photo = tmp_path / "photos" / "red.png"

    async def conversation(client: Any) -> dict[str, Any]:
        data = base64.b64encode(photo.read_bytes()).decode()
        tools = await client.list_tools()
        return {
            "tools": {tool.name: tool.description for tool in tools.tools},
            "text": await client.call_tool("search_by_text", {"text": "a red boat", "k": 2}),
            "path": await client.call_tool("search_by_image", {"path": str(photo)}),
            "data": await client.call_tool("search_by_image", {"data": data}),
            "url": await client.call_tool(
                "search_by_image", {"data": f"data:image/png;base64,{data}"}
            ),
            "item": await client.call_tool("get_item", {"item_id": "red.png"}),
        }

    answers = talk(run, tmp_path / "log", conversation)
    assert set(answers["tools"]) == {"search_by_text", "search_by_image", "get_item"}
    assert all(answers["tools"].values())
    with SearchEngine.open(run) as engine:
        by_text = engine.similar_to_text("a red boat", 2)
        by_image = engine.similar_to_image(photo)
    found = answers["text"].structured_content["result"]
    assert [(hit["id"], hit["distance"]) for hit in found] == [
        (hit.item.id, hit.distance) for hit in by_text
    ]
    assert {hit["path"] for hit in found} == {str(file) for file in photo.parent.iterdir()}
    for query in ("path", "data", "url"):
        found = answers[query].structured_content["result"]
        assert [(hit["id"], hit["text"], hit["distance"]) for hit in found] == [
            (hit.item.id, hit.item.text, hit.distance) for hit in by_image
        ]
    description, picture = answers["item"].content
    assert json.loads(description.text)["path"] == str(photo)
    assert base64.b64decode(picture.data).startswith(b"\xff\xd8")  # JPEG


def test_a_server_that_waits_prints_no_progress(run: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"

    async def conversation(client: Any) -> tuple[str, str]:
        await client.call_tool("search_by_text", {"text": "boat"})
        before = log.read_text()
        await asyncio.sleep(0.5)  # ten times the interval
        return before, log.read_text()

    before, after = talk(run, log, conversation)
    assert after == before


def test_bad_calls_are_sentences_and_the_server_answers_the_next_call(
    run: Path, tmp_path: Path
) -> None:
    calls = [
        ("search_by_text", {"text": "boat", "k": 0}, "k is 0"),
        ("search_by_text", {"text": "boat", "k": 101}, "1 to 100"),
        ("search_by_image", {}, "either path or data"),
        ("search_by_image", {"path": "a.png", "data": "aGk="}, "either path or data"),
        ("search_by_image", {"path": str(tmp_path / "none.png")}, "none.png"),
        ("search_by_image", {"data": "no base64!"}, "base64"),
        ("search_by_image", {"data": "aGk="}, "cannot be used"),
        ("get_item", {"item_id": "none.png"}, "'none.png'"),
        ("give_feedback", {"image_id": "red.png", "text": "x", "is_match": True}, "give_feedback"),
    ]

    async def conversation(client: Any) -> list[str]:
        messages = []
        for tool, arguments, _ in calls:
            answer = await client.call_tool(tool, arguments)
            assert answer.is_error
            messages.append(answer.content[0].text)
        assert not (await client.call_tool("search_by_text", {"text": "boat"})).is_error
        return messages

    messages = talk(run, tmp_path / "log", conversation)
    for message, (_, _, expected) in zip(messages, calls, strict=True):
        assert expected in message
    assert not FeedbackStore(run).all()


def test_a_writable_server_stores_votes(run: Path, tmp_path: Path) -> None:
    async def conversation(client: Any) -> None:
        for image, is_match in (("red.png", True), ("blue.png", False)):
            arguments = {"image_id": image, "text": "a red boat", "is_match": is_match}
            answer = await client.call_tool("give_feedback", arguments)
            assert not answer.is_error, answer
        arguments = {"image_id": "red.png", "text": " ", "is_match": True}
        assert (await client.call_tool("give_feedback", arguments)).is_error

    talk(run, tmp_path / "log", conversation, "--writable")
    votes = FeedbackStore(run).all()
    assert [(vote.image.id, vote.text, vote.vote) for vote in votes] == [
        ("red.png", "a red boat", 1),
        ("blue.png", "a red boat", 0),
    ]


def test_standard_output_has_only_the_protocol(run: Path) -> None:
    request = {
        "jsonrpc": "2.0", "id": 1, "method": "initialize",
        "params": {
            "protocolVersion": "2025-06-18", "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        },
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, *COMMAND, str(run)], input=json.dumps(request) + "\n",
        capture_output=True, text=True, env=os.environ | ENVIRONMENT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    assert json.loads(line)["result"]["serverInfo"]["name"] == "transhash"


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, *COMMAND, str(tmp_path)], capture_output=True, text=True, input=""
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert str(tmp_path) in done.stderr
