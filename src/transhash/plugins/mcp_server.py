"""An MCP server over a run: its tools search, show items and store votes."""

from __future__ import annotations

import base64
import binascii
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transhash.data.collection import Modality, check_modality
from transhash.errors import DataError, TranshashError
from transhash.plugins import describe_hits, describe_item
from transhash.progress import no_output
from transhash.search.catalog import Item
from transhash.search.engine import SearchEngine
from transhash.search.feedback import FeedbackStore, StoredVote, VotedImage

try:
    from mcp.server import MCPServer
    from mcp.server.mcpserver import Image
    from mcp.server.mcpserver.exceptions import ToolError
except ImportError:
    raise DataError("The MCP server is not installed. Run: pip install 'transhash[mcp]'") from None

_MAX_RESULTS = 100  # an answer has to fit into a conversation


class RunTools:
    """The tools, one method each. A docstring is what the client reads about its tool."""

    def __init__(self, engine: SearchEngine) -> None:
        self._engine = engine
        self._lock = threading.Lock()  # calls come from several threads, and models load lazily

    def search_by_text(
        self, text: str, k: int = 10, modality: Modality = "images"
    ) -> list[dict[str, Any]]:
        """Find the k items that belong to a text, best first.

        modality says what to look for: images or texts. A result has the id of its item, its path
        or text, distance (differing bits of its code), score (0 to 1) and why it matched.
        """
        with self._call():
            _check_count(k)
            hits = self._engine.similar_to_text(text, k, modality)
            return describe_hits(hits, self._engine.query_encoder.bits)

    def search_by_image(
        self, path: str = "", data: str = "", k: int = 10, modality: Modality = "texts"
    ) -> list[dict[str, Any]]:
        """Find the k items that belong to an image, best first.

        Pass either the path of an image file on the server's machine or its content in base64 as
        data. modality says what to look for: texts or images.
        """
        with self._call():
            _check_count(k)
            if bool(path) == bool(data):
                raise DataError("An image search needs one image. Pass either path or data.")
            source = Path(path) if path else _decode_base64(data)
            hits = self._engine.similar_to_image(source, k, modality)
            return describe_hits(hits, self._engine.query_encoder.bits)

    def get_item(self, item_id: str, modality: Modality = "images") -> list[Any]:
        """Show one item by the id that a search returned, an image with its thumbnail."""
        with self._call():
            item = self._find(modality, item_id)
            thumbnail = self._engine.catalog.thumbnail(item.number)
            image = [] if thumbnail is None else [Image(data=thumbnail, format="jpeg")]
            return [describe_item(item), *image]

    def give_feedback(self, image_id: str, text: str, is_match: bool) -> str:
        """Store whether an image belongs to a text; the next training learns from it."""
        with self._call():
            if not text.strip():
                raise DataError("The text is empty. Pass the text that was searched for.")
            catalog = self._engine.catalog
            image = VotedImage.from_item(catalog, self._find("images", image_id))
            FeedbackStore(self._engine.run).put(StoredVote(image, text, int(is_match)))
            return "stored"

    def _find(self, modality: Modality, item_id: str) -> Item:
        item = self._engine.catalog.find(check_modality(modality), item_id)
        if item is None:
            raise DataError(
                f"There is nothing with the id {item_id!r} among the {modality}. "
                "Pass an id that a search returned."
            )
        return item

    @contextmanager
    def _call(self) -> Iterator[None]:
        """Make one call at a time, and send errors meant for users to the client."""
        try:
            with self._lock:
                yield
        except (TranshashError, OSError) as error:
            raise ToolError(str(error)) from error


def make_mcp_server(engine: SearchEngine, *, writable: bool = False) -> MCPServer[Any]:
    """Return a server of the SDK with the tools over an engine, for any of its transports."""
    tools = RunTools(engine)
    counts = " and ".join(f"{len(index):,} {name}" for name, index in engine.indexes.items())
    server = MCPServer(
        "transhash",
        instructions=f"Searches {counts} of {engine.run.name} by what they show or say.",
        log_level="WARNING",
    )
    server.add_tool(tools.search_by_text)
    server.add_tool(tools.search_by_image)
    server.add_tool(tools.get_item, structured_output=False)
    if writable:
        server.add_tool(tools.give_feedback)
    return server


def serve_mcp(run: Path, index_url: str | None = None, *, writable: bool = False) -> None:
    """Answer one client on standard input and output until it closes them."""
    with SearchEngine.open(run, index_url) as engine, no_output():
        make_mcp_server(engine, writable=writable).run("stdio")


def _check_count(k: int) -> None:
    if not 1 <= k <= _MAX_RESULTS:
        raise DataError(f"k is {k}. Pass a number from 1 to {_MAX_RESULTS}.")


def _decode_base64(data: str) -> bytes:
    """Return the bytes of base64, also in a data URL."""
    text = data.partition(",")[2] if data.startswith("data:") else data
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        raise DataError("data is not base64. Pass the encoded content of an image file.") from None
