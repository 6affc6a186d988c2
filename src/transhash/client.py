"""Client of the HTTP API: one typed method per operation of the OpenAPI document."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any, Literal, TypedDict, TypeVar, Unpack
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from transhash.data.collection import Modality
from transhash.errors import DataError, EngineError, check_type
from transhash.index.weighted import RankingMode
from transhash.search.engine import DEFAULT_RANKING
from transhash.search.keywords import DEFAULT_SEARCH, SearchMode

try:
    from pydantic import BaseModel, ValidationError
except ImportError:
    raise DataError("pydantic is not installed. Run: pip install 'transhash[serve]'") from None

from transhash.service import schemas

Reply = TypeVar("Reply", bound=BaseModel)
Query = str | int  # a text, or the number of an item


class SearchOptions(TypedDict, total=False):
    """Filters of a search; `collapse` shows copies of one item as one result."""

    folder: str
    after: str
    before: str
    source: str
    collapse: bool


class _NoRedirect(HTTPRedirectHandler):
    """Follows no redirect, which would send the key to another address."""

    def redirect_request(self, *_: Any) -> None:
        return None


class Client:
    """Calls a service started by `transhash serve`; may be shared by threads.

    `url` is the link that the command prints, with its key if it has one; `key` is another read or
    write key. Replies are objects of `transhash.service.schemas`. A request that the service
    refuses raises DataError with its message. A service that cannot be reached or cannot answer
    now raises EngineError.
    """

    def __init__(
        self, url: str = "http://127.0.0.1:8000", key: str | None = None, timeout: float = 60.0
    ) -> None:
        check_type(url, str, "The address", "the address that `transhash serve` prints")
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise DataError(f"{url!r} is not an HTTP address. Pass one like http://127.0.0.1:8000.")
        self.url = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
        self.timeout = timeout
        if key is None and parts.fragment.startswith("key="):  # as `transhash serve` prints it
            key = parts.fragment.removeprefix("key=")
        if key is not None and not (isinstance(key, str) and key.isascii() and key.isprintable()):
            raise DataError("The key is not printable ASCII text. Pass a key of the service.")
        self._headers = {"X-API-Key": key} if key else {}
        self._opener = build_opener(_NoRedirect)

    def search_by_text(
        self,
        text: str,
        k: int = 24,
        modality: Modality = "images",
        ranking: RankingMode = DEFAULT_RANKING,
        search: SearchMode = DEFAULT_SEARCH,
        **options: Unpack[SearchOptions],
    ) -> schemas.SearchOut:
        """Return the items that belong to a text, best first."""
        check_type(text, str, "The query", "a text")
        query = {
            "q": text, "k": k, "modality": modality, "ranking": ranking, "search": search, **options
        }  # fmt: skip
        return self._get("/api/search/text", schemas.SearchOut, query)

    def search_by_image(
        self,
        image: str | Path | bytes,
        k: int = 24,
        modality: Modality = "texts",
        ranking: RankingMode = DEFAULT_RANKING,
        **options: Unpack[SearchOptions],
    ) -> schemas.SearchOut:
        """Return the items that belong to an image: the path or the bytes of its file."""
        query = {"k": k, "modality": modality, "ranking": ranking, **options}
        form = _form({"image": _image_bytes(image)})
        return self._post("/api/search/image", schemas.SearchOut, form, query)

    def search_by_item(
        self,
        number: int,
        k: int = 24,
        modality: Modality = "images",
        **options: Unpack[SearchOptions],
    ) -> schemas.SearchOut:
        """Return the items similar to an indexed item, without the item itself."""
        query = {"k": k, "modality": modality, **options}
        return self._get(f"/api/items/{_number(number)}/similar", schemas.SearchOut, query)

    def search_batch(
        self,
        queries: Sequence[Query],
        k: int = 10,
        modality: Modality = "images",
        ranking: RankingMode = DEFAULT_RANKING,
        search: SearchMode = DEFAULT_SEARCH,
        **options: Unpack[SearchOptions],
    ) -> schemas.BatchOut:
        """Return the results of several queries, each a text or the number of an item."""
        if isinstance(queries, str) or not isinstance(queries, Sequence):
            raise DataError("The queries are not a list. Pass a list of texts and item numbers.")
        body = {
            "queries": [_query(query) for query in queries],
            "k": k, "modality": modality, "ranking": ranking, "search": search, **options,
        }  # fmt: skip
        return self._post("/api/search/batch", schemas.BatchOut, body)

    def item(self, number: int) -> schemas.ItemOut:
        """Return one item."""
        return self._get(f"/api/items/{_number(number)}", schemas.ItemOut)

    def item_thumbnail(self, number: int) -> bytes:
        """Return a small JPEG of an image."""
        return self._send("GET", f"/api/items/{_number(number)}/thumbnail")

    def item_preview(self, number: int) -> bytes:
        """Return a JPEG of up to 1,600 pixels, from a service with `--originals`."""
        return self._send("GET", f"/api/items/{_number(number)}/preview")

    def item_original(self, number: int) -> bytes:
        """Return the file of an image, from a service with `--originals`."""
        return self._send("GET", f"/api/items/{_number(number)}/original")

    def filters(self) -> schemas.FiltersOut:
        """Return the folders, sources and dates that results can be restricted to."""
        return self._get("/api/filters", schemas.FiltersOut)

    def describe_run(self) -> schemas.About:
        """Return the model, the number of items and what the service allows."""
        return self._get("/api/about", schemas.About)

    def examples(self) -> schemas.ExamplesOut:
        """Return a few indexed texts and images."""
        return self._get("/api/examples", schemas.ExamplesOut)

    def run_diagnostics(self) -> schemas.Diagnostics:
        """Return the alignment map, training report and results of the run."""
        return self._get("/api/diagnostics", schemas.Diagnostics)

    def health(self) -> schemas.Health:
        """Return whether the image model is loaded; raise EngineError if nothing answers."""
        return self._get("/health", schemas.Health)

    def ready(self) -> schemas.Status:
        """Return if the service can search; raise EngineError while it loads its model."""
        return self._get("/ready", schemas.Status)

    def prometheus_metrics(self) -> str:
        """Return metrics in the Prometheus text format."""
        return self._send("GET", "/metrics").decode()

    def add_texts(self, texts: Sequence[str] | Mapping[str, str]) -> schemas.ItemsOut:
        """Add texts, or replace them if `texts` are {id: text} with ids that exist."""
        if isinstance(texts, Mapping):
            rows = [{"id": item_id, "text": text} for item_id, text in texts.items()]
        else:
            check_type(texts, (list, tuple), "The texts", "a list of texts or {id: text}")
            rows = [{"text": text} for text in texts]
        return self._post("/api/items/texts", schemas.ItemsOut, {"texts": rows})

    def add_image(self, image: str | Path | bytes, id: str | None = None) -> schemas.ItemsOut:
        """Add an image, or replace it if the id exists."""
        fields = {} if id is None else {"id": str(id).encode()}
        form = _form({"image": _image_bytes(image), **fields})
        return self._post("/api/items/images", schemas.ItemsOut, form)

    def remove(self, number: int) -> schemas.RemovedOut:
        """Remove an item from the index."""
        return _parse(schemas.RemovedOut, self._send("DELETE", f"/api/items/{_number(number)}"))

    def put_vote(self, image: int, text: Query, vote: Literal[0, 1]) -> schemas.VoteOut:
        """Vote 1 (match) or 0 on an image and a text, typed or the number of an item."""
        body = {"image": image, "text": _query(text), "vote": vote}
        return self._post("/api/votes", schemas.VoteOut, body)

    def delete_vote(self, image: int, text: Query) -> schemas.VoteOut:
        """Remove the vote on an image and a text, typed or the number of an item."""
        query = {"image": image, **_query(text)}
        return _parse(schemas.VoteOut, self._send("DELETE", "/api/votes", query))

    def sync_status(self) -> schemas.SyncStatus:
        """Return the progress of the sync that runs, and the result of the last one."""
        return self._get("/api/sync", schemas.SyncStatus)

    def start_sync(self) -> schemas.SyncStatus:
        """Sync the sources of the service, again if a sync is running."""
        return self._post("/api/sync", schemas.SyncStatus, b"")

    def _get(self, path: str, reply: type[Reply], query: Mapping[str, object] = {}) -> Reply:
        return _parse(reply, self._send("GET", path, query))

    def _post(
        self,
        path: str,
        reply: type[Reply],
        body: Mapping[str, object] | tuple[str, bytes] | bytes,
        query: Mapping[str, object] = {},
    ) -> Reply:
        headers = {}
        if isinstance(body, tuple):
            headers["Content-Type"], body = body
        elif not isinstance(body, bytes):
            headers["Content-Type"] = "application/json"
            try:
                body = json.dumps(body).encode()
            except TypeError as e:
                raise DataError(f"The request is not JSON ({e}). Pass texts and numbers.") from None
        return _parse(reply, self._send("POST", path, query, body, headers))

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, object] = {},
        body: bytes | None = None,
        headers: Mapping[str, str] = {},
    ) -> bytes:
        pairs = {
            name: str(value).lower() if isinstance(value, bool) else value
            for name, value in query.items()
            if value is not None
        }
        url = f"{self.url}{path}?{urlencode(pairs)}" if pairs else f"{self.url}{path}"
        request = Request(url, body, {**self._headers, **headers}, method=method)
        try:
            with self._opener.open(request, timeout=self.timeout) as reply:
                content: bytes = reply.read()
                return content
        except HTTPError as e:
            with e:
                message = _message(e)
            if 400 <= e.code < 500:
                raise DataError(message) from None
            raise EngineError(message) from None
        except (URLError, HTTPException, OSError) as e:
            reason = getattr(e, "reason", e)
            raise EngineError(
                f"No reply from {self.url} ({reason}). Check that the service runs."
            ) from None


def _message(reply: HTTPError) -> str:
    """Return the message of the service, or what else answered in its place."""
    try:
        return str(json.loads(reply.read())["error"])
    except (ValueError, KeyError, TypeError, HTTPException, OSError):
        where = f" to {target}" if (target := reply.headers.get("Location")) else ""
        return (
            f"{reply.url} answers with status {reply.code}{where}. Pass the address of a service "
            "started by `transhash serve`."
        )


def _parse(reply: type[Reply], content: bytes) -> Reply:
    try:
        return reply.model_validate_json(content)
    except ValidationError:
        raise EngineError(
            f"The reply is not a {reply.__name__}. Use a service of the same version."
        ) from None


def _number(number: int) -> int:
    check_type(number, int, "The item number", "the number of an item")
    return number


def _query(query: Query) -> dict[str, str | int]:
    check_type(query, (str, int), "The query", "a text or the number of an item")
    return {"text": query} if isinstance(query, str) else {"number": query}


def _image_bytes(image: str | Path | bytes) -> bytes:
    if isinstance(image, bytes):
        return image
    check_type(image, (str, Path), "The image", "a path or the bytes of a file")
    try:
        return Path(image).read_bytes()
    except OSError as e:
        raise DataError(f"{image} cannot be read ({e.strerror}). Pass an image file.") from None


def _form(fields: Mapping[str, bytes]) -> tuple[str, bytes]:
    """Return content type and body of a form; the image is a file."""
    boundary, body = secrets.token_hex(16), b""
    for name, value in fields.items():
        file = '; filename="image"' if name == "image" else ""
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'
        body += head.encode() + value + b"\r\n"
    return f"multipart/form-data; boundary={boundary}", body + f"--{boundary}--\r\n".encode()
