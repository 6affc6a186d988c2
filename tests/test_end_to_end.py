"""The installed command, from files to results, and its messages about wrong input."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import quote_plus
from urllib.request import Request, urlopen

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import typer
from PIL import Image

from transhash import cli
from transhash.codes import Codes
from transhash.datasets.synthetic import make_synthetic
from transhash.index import open_index
from transhash.model.encoder import Encoder
from transhash.search.engine import SearchEngine

pytestmark = pytest.mark.slow
QUICK = (
    "--set", "steps=60", "--set", "batch_size=64", "--set", "target_batch_size=32", "--bits", "16",
)  # fmt: skip


def transhash(*arguments: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    result = subprocess.run(
        [sys.executable, "-m", "transhash", *map(str, arguments)], capture_output=True, text=True
    )
    assert result.returncode == code, result.stderr[-2000:]
    assert "Traceback" not in result.stderr
    return result


def printed(*arguments: object) -> str:
    """Return the standard output of a command as one line."""
    return " ".join(transhash(*arguments).stdout.split())


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_synthetic(tmp_path_factory.mktemp("synthetic") / "set", per_class=6)


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run fitted on a user's files and indexed."""
    out = tmp_path_factory.mktemp("runs") / "mine"
    transhash(
        "fit", "thn", "--auxiliary", data / "auxiliary.tsv", "--images", data / "images",
        "--texts", data / "texts.tsv", *QUICK, "--out", out,
    )  # fmt: skip
    transhash("index", out, "--images", data / "images", "--texts", data / "texts.tsv")
    return out


def test_a_text_finds_images_and_an_image_finds_texts(run: Path, data: Path) -> None:
    query = ("--text", "a boat with sails", "-k", 5, "--ranking", "hamming", "--json")
    rows = [json.loads(line) for line in transhash("search", run, *query).stdout.splitlines()]
    assert [row["rank"] for row in rows] == [1, 2, 3, 4, 5]
    assert all(row["id"].endswith(".jpg") for row in rows)
    assert [row["distance"] for row in rows] == sorted(row["distance"] for row in rows)
    image = next((data / "images").iterdir())
    table = transhash("search", run, "--image", image, "-k", 3).stdout
    assert "distance" in table
    assert "3 of 72" in table


def test_texts_find_images_of_their_class_more_often_than_by_chance(run: Path, data: Path) -> None:
    rows = list(csv.DictReader((data / "texts.tsv").open(), delimiter="\t"))
    with SearchEngine.open(run) as engine:
        correct = [
            f"{row['labels']}-" in hit.item.id
            for row in rows
            for hit in engine.similar_to_text(row["text"], 3)
        ]
    assert np.mean(correct) > 0.3  # chance is 1 in 12


def test_indexed_items_are_not_added_again(run: Path, data: Path) -> None:
    message = printed("index", run, "--texts", data / "texts.tsv")
    assert "added 0, updated 0, unchanged 72, skipped 0" in message
    assert "72 images and 72 texts" in message


def test_verify_exits_with_2_if_the_index_is_missing_and_rebuilds_it(
    run: Path, tmp_path: Path
) -> None:
    copy = shutil.copytree(run, tmp_path / "copy")
    assert "are consistent" in printed("verify", copy)
    shutil.rmtree(copy / "index" / "images")
    report = json.loads(transhash("verify", copy, "--json", code=2).stdout)
    assert report["ok"] is False
    assert len(report["findings"]) == 1
    assert "repaired:" in transhash("verify", copy, "--repair").stderr
    query = ("--text", "a boat", "-k", 5, "--json")
    assert transhash("search", copy, *query).stdout == transhash("search", run, *query).stdout


def test_a_loaded_run_gives_the_same_bits_in_a_new_process(run: Path, tmp_path: Path) -> None:
    texts = tmp_path / "t.txt"
    texts.write_text("a boat at sea\nthe cat sleeps\n")
    transhash("encode", run, "--texts", texts, "--out", tmp_path / "codes.npy")
    here = Encoder.load(run).encode_texts(["a boat at sea", "the cat sleeps"])
    assert np.array_equal(np.load(tmp_path / "codes.npy"), here.packed)
    transhash("encode", run, "--texts", texts, "--out", tmp_path / "codes.parquet")
    table = pq.read_table(tmp_path / "codes.parquet")
    assert table["id"].to_pylist() == ["1", "2"]
    assert table["code"].to_pylist() == [row.tobytes() for row in here.packed]


def test_a_benchmark_is_fitted_and_evaluated(data: Path, tmp_path: Path) -> None:
    transhash("fit", "qch", "--benchmark", data, "--bits", 16, "--out", tmp_path / "run")
    scores = json.loads(printed("evaluate", tmp_path / "run", "--benchmark", data, "--json"))
    for direction in ("image_to_text", "text_to_image"):
        assert {"map", "chance", "queries", "database"} <= scores[direction].keys()
        assert scores[direction]["map"] > scores[direction]["chance"]
    assert "MAP" in transhash("evaluate", tmp_path / "run", "--benchmark", data).stdout


def test_a_fit_skips_broken_files_and_reports_them(data: Path, tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    shutil.copytree(data / "images", photos)
    first = min(photos.iterdir())
    first.write_bytes(first.read_bytes()[: first.stat().st_size // 3])  # a truncated JPEG
    (photos / "text.png").write_text("renamed")
    (photos / "empty.jpg").touch()
    notes = tmp_path / "notes.csv"
    lines = [f"{i},a boat and a car {i}".encode() for i in range(30)]
    notes.write_bytes(b"id,text\n" + b"\n".join(lines) + b"\n99,caf\xe9 by the sea\n")
    result = transhash(
        "fit", "thn", "--auxiliary", data / "auxiliary.tsv", "--images", photos,
        "--texts", notes, *QUICK, "--out", tmp_path / "run", "--json",
    )  # fmt: skip
    problems = json.loads(result.stdout)["problems"]
    assert {Path(problem["location"]).name for problem in problems} >= {
        first.name, "text.png", "empty.jpg",
    }  # fmt: skip
    reasons = " ".join(problem["reason"] for problem in problems)
    assert all(word in reasons for word in ("corrupt", "not an image", "empty", "UTF-8"))
    assert len(problems) == 4


def test_a_file_lists_all_skipped_rows_if_there_are_many(run: Path, tmp_path: Path) -> None:
    notes = tmp_path / "notes.jsonl"
    notes.write_text('{"text": "a boat"}\n' + '{"other": 1}\n' * 20)
    result = transhash("encode", run, "--texts", notes, "--out", tmp_path / "codes")
    assert "and 12 more" in result.stderr
    listed = json.loads((tmp_path / "codes.skipped.json").read_text())
    assert len(listed) == 20
    assert {row["location"] for row in listed} >= {"line 2", "line 21"}


@pytest.mark.parametrize(
    ("arguments", "phrase"),
    [
        (("fit", "thn", "--out", "x"), "No images, texts or auxiliary set"),
        (("fit", "abc", "--out", "x", "--benchmark", "DATA"), "'abc'"),
        (("fit", "thn", "--out", "x", "--benchmark", "DATA", "--bits", "12"), "multiple of 8"),
        (("fit", "thn", "--out", "x", "--benchmark", "nowhere"), "nowhere"),
        (("fit", "thn", "--out", "x", "--set", "speed=9", "--benchmark", "DATA"), "no setting"),
        (("fit", "thn", "--out", "x", "--benchmark", "DATA", "--device", "cuda"), "No GPU"),
        (("fit", "thn", "--out", "x", "--benchmark", "DATA", "--device", "gpu"), "cpu or cuda"),
        (("fit", "thn", "--out", "x", "--set", "steps=abc"), "steps must be"),
        (
            ("fit", "thn", "--out", "x", "--auxiliary", "AUX", "--text-features", "/nowhere"),
            "/nowhere",
        ),
        (("fit", "thn", "--out", "RUN", "--benchmark", "DATA"), "has an index"),
        (("fit", "thn", "--out", "DATA", "--benchmark", "DATA"), "other files"),
        (("fit", "thn", "--out", "FILE", "--benchmark", "DATA"), "is a file"),
        (("encode", "RUN", "--texts", "FILE", "--out", "FILE"), "is a file"),
        (("encode", "RUN", "--texts", "FILE", "--out", "/proc/none"), "/proc/none"),
        (("index", "RUN", "--codes", "gone"), "has no codes"),
        (("index", "RUN", "--images", "DATA", "--texts", "gone.csv"), "does not exist"),
        (("serve", "RUN", "--port", "99999"), "65535"),
        (("search", "RUN"), "one query"),
        (("search", "RUN", "--image", "gone.jpg"), "does not exist"),
        (("search", "RUN", "--image", "https://example.org/a.jpg"), "is a URL"),
        (("search", "RUN", "--text", " "), "--text is empty"),
        (("list", "RUN", "--source", "gone"), "No item"),
        (("sync", "RUN", "gone"), "does not exist"),
        (("move", "RUN", "gone", "DATA"), "No item"),
        (("copy", "RUN", "--from", "exact:gone", "--to", "exact:other"), "gone"),
        (("search", "DATA", "--text", "x"), "config.json"),
        (("search", "RUN", "--text", "x", "-k", "0"), "at least 1"),
        (("index", "RUN", "--images", "gone"), "does not exist"),
        (("evaluate", "RUN", "--benchmark", "gone"), "gone"),
    ],
)
def test_a_wrong_argument_is_explained_with_exit_code_2(
    arguments: tuple[str, ...], phrase: str, run: Path, data: Path, tmp_path: Path
) -> None:
    places = {"RUN": run, "DATA": data, "x": tmp_path / "x", "FILE": data / "texts.tsv"}
    places["AUX"] = data / "auxiliary.tsv"
    result = transhash(*(places.get(word, word) for word in arguments), code=2)
    assert phrase in " ".join(result.stderr.split())


def test_a_search_warns_about_codes_that_differ_from_the_catalog(
    run: Path, data: Path, tmp_path: Path
) -> None:
    url = f"exact:{tmp_path / 'codes'}"
    transhash("copy", run, "--from", f"grouped:{run / 'index'}", "--to", url)
    index = open_index(f"{url}/images")
    ids, codes = index.export()
    one_bit = np.array([1, 0], np.uint8)
    index.update(ids[:5], Codes(codes.packed[:5] ^ one_bit, codes.bits))
    index.close()
    result = transhash("search", run, "--text", "a boat", "-k", 72, "--index", url, "--json")
    assert len(result.stdout.splitlines()) == 67
    assert "5 results" in " ".join(result.stderr.split())


def test_ctrl_c_says_how_to_resume(run: Path, data: Path, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [
            sys.executable, "-m", "transhash", "fit", "thn", "--auxiliary", data / "auxiliary.tsv",
            "--set", "steps=1000000", "--no-validate", "--out", tmp_path / "run",
        ],
        stderr=subprocess.PIPE, text=True,
        # Processes that a shell starts in the background ignore it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while not (tmp_path / "run" / "metrics.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, message = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "Rerun the same command" in " ".join(message.split())
    assert "Traceback" not in message


def test_file_names_are_printed_unchanged(run: Path, data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "a[/b]:smile:"
    message = printed("encode", run, "--texts", data / "texts.tsv", "--out", folder)
    assert folder.name in message


def test_indexing_codes_keeps_thumbnails(run: Path, data: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(run, tmp_path / "copy")
    transhash("encode", copy, "--images", data / "images", "--out", tmp_path / "codes")
    message = printed("index", copy, "--codes", tmp_path / "codes")
    assert "added 0, updated 0, unchanged 72" in message
    with SearchEngine.open(copy) as engine:
        hit = engine.similar_to_text("a boat with sails", 1)[0]
    assert hit.item.has_thumbnail
    assert hit.item.path


def test_an_image_query_that_is_not_an_image_is_refused(run: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.jpg").write_text("not an image")
    result = transhash("search", run, "--image", tmp_path / "bad.jpg", code=2)
    assert "not an image" in " ".join(result.stderr.split())


def test_a_search_warns_about_unknown_words(run: Path) -> None:
    result = transhash("search", run, "--text", "xyzzy plugh", "-k", 1)
    assert "No query word is known" in result.stderr


def test_an_image_query_may_have_any_color_mode(run: Path, tmp_path: Path) -> None:
    Image.new("RGBA", (30, 50), (10, 200, 30, 90)).save(tmp_path / "a.png")
    sheet = tmp_path / "sheet.png"
    transhash("search", run, "--image", tmp_path / "a.png", "-k", 2, "--contact-sheet", sheet)
    assert Image.open(sheet).width > 50


def test_doctor_prints_the_installation() -> None:
    facts = json.loads(transhash("doctor", "--json").stdout)
    assert facts["search kernel"]
    assert facts["extra plots"]
    message = transhash("doctor").stdout
    assert "transhash" in message
    assert "\\[" not in message  # brackets of install commands are not escaped


def test_fit_takes_precomputed_features_and_clicks(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    latent = rng.standard_normal((60, 4))
    np.save(tmp_path / "x.npy", latent @ rng.standard_normal((4, 20)))
    np.save(tmp_path / "y.npy", latent @ rng.standard_normal((4, 30)))
    clicks = [f"{i},{i},1\n{i},{(i + 7) % 60},0\n" for i in range(60)]
    (tmp_path / "clicks.csv").write_text("".join(clicks))
    transhash(
        "fit", "thn", "--auxiliary-images", tmp_path / "x.npy", "--auxiliary-texts",
        tmp_path / "y.npy", "--relation", tmp_path / "clicks.csv", *QUICK, "--out", tmp_path / "r",
    )  # fmt: skip
    assert Encoder.load(tmp_path / "r").image_features is None


def test_the_shell_completes_commands_and_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_TRANSHASH_COMPLETE", "complete_bash")
    for line, expected in (
        ("transhash s", "sync"),
        ("transhash search --contact", "--contact-sheet"),
    ):
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(line.count(" ")))
        command = [Path(sys.executable).with_name("transhash")]
        result = subprocess.run(command, capture_output=True, text=True)
        assert expected in result.stdout.split()


def test_votes_are_exported_and_used_in_a_second_fit(run: Path, data: Path, tmp_path: Path) -> None:
    mine = shutil.copytree(run, tmp_path / "mine")
    votes = tmp_path / "votes.csv"
    assert "has no votes" in transhash("feedback", mine, "--out", votes, code=2).stderr
    server = subprocess.Popen(
        [sys.executable, "-m", "transhash", "serve", str(mine), "--port", "0", "--writable"],
        stdout=subprocess.PIPE, text=True, env=os.environ | {"TRANSHASH_WRITE_KEY": "write-key"},
    )  # fmt: skip
    try:
        assert server.stdout is not None
        line = server.stdout.readline()
        url = next(word for word in line.split() if word.startswith("http"))
        for query, prefix in (("a boat with sails", "boat-"), ("a warm cup", "cup-")):
            with urlopen(f"{url}api/search/text?k=5&q={quote_plus(query)}") as response:
                hits = json.load(response)["hits"]
            for hit in hits:
                vote = int(prefix in hit["id"])
                body = {"image": hit["number"], "text": {"text": query}, "vote": vote}
                headers = {"X-API-Key": "write-key", "Content-Type": "application/json"}
                request = Request(f"{url}api/votes", json.dumps(body).encode(), headers)
                with urlopen(request) as response:
                    assert json.load(response)["text"] == query
        server.kill()  # votes are on disk, however the server ends
    finally:
        server.kill()
        server.communicate()
    counts = json.loads(transhash("feedback", mine, "--json").stdout)
    assert counts["up"] + counts["down"] == 10
    assert (counts["texts"], counts["orphaned"]) == (2, 0)
    transhash("remove", mine, "--images", hits[0]["id"])
    assert "are consistent" in printed("verify", mine)
    assert "1 vote on removed items" in printed("feedback", mine, "--out", votes)
    rows = list(csv.DictReader(votes.open(encoding="utf-8")))
    assert len(rows) == 10
    assert all(Path(row["image"]).is_file() for row in rows)
    sources = ("--auxiliary", data / "auxiliary.tsv", "--images", data / "images",
               "--texts", data / "texts.tsv", "--relation", votes)  # fmt: skip
    better = tmp_path / "better"
    message = printed("fit", "thn", *sources, *QUICK, "--out", better)
    assert f"Votes: {counts['up']} up and {counts['down']} down" in message
    assert json.loads(printed("info", better, "--json"))["training votes"] == 10
    assert "votes" in transhash("fit", "qch", *sources, "--out", tmp_path / "no", code=2).stderr
    assert "votes" in transhash("evaluate", better, "--benchmark", data, code=2).stderr
    own = ("--images", data / "images.tsv", "--texts", data / "texts.tsv", "--json")
    scores = json.loads(transhash("evaluate", better, *own).stdout)
    assert scores["voted"] == counts["images"]  # typed queries are not in the files
    assert scores["image_to_text"]["queries"] == 72 - counts["images"]
    transhash("feedback", mine, "--prune")
    counts = json.loads(transhash("feedback", mine, "--json").stdout)
    assert (counts["up"] + counts["down"], counts["orphaned"]) == (9, 0)


@pytest.mark.parametrize(
    "error", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")]
)
def test_running_out_of_memory_is_explained(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(app: typer.Typer) -> None:
        raise error

    monkeypatch.setattr(typer.Typer, "__call__", fail)
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
    assert "Out of memory" in capsys.readouterr().err


def test_other_errors_are_not_called_out_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(app: typer.Typer) -> None:
        raise RuntimeError("shapes do not match")

    monkeypatch.setattr(typer.Typer, "__call__", fail)
    with pytest.raises(RuntimeError, match="shapes"):
        cli.main()
