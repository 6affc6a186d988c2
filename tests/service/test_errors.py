"""Refused requests: always with a message, never with a stack trace."""

from __future__ import annotations

import asyncio
import threading
import zlib
from collections.abc import Iterator

import httpx
import pytest
from fastapi.testclient import TestClient

from transhash.errors import DataError, EngineError
from transhash.search.engine import SearchEngine
from transhash.service import create_app, guard, limits
from transhash.service.limits import WorkerPool

from .small_run import LOCAL, image_bytes


def message(reply: httpx.Response) -> str:
    body = reply.json()
    assert set(body) == {"error"}, body
    assert "Traceback" not in body["error"]
    return str(body["error"])


def client_of(engine: SearchEngine, **settings: object) -> TestClient:
    app = create_app(engine, **settings)  # type: ignore[arg-type]
    return TestClient(app, base_url=LOCAL, raise_server_exceptions=False)


@pytest.mark.parametrize(
    ("path", "status", "phrase"),
    [
        ("/api/search/text", 422, "Invalid q: field required."),
        ("/api/search/text?q=%20%20", 422, "Invalid q: it is blank."),
        ("/api/search/text?q=boat&after=xx", 422, "Invalid after: use YYYY, YYYY-MM"),
        ("/api/search/text?q=boat&k=0", 422, "k: "),
        ("/api/search/text?q=boat&k=100000", 422, "k: "),
        ("/api/search/text?q=boat&modality=films", 422, "modality: "),
        ("/api/search/text?q=" + "a" * 5000, 422, "q: "),
        ("/api/items/999999", 404, "999999 does not exist"),
        ("/api/items/99999999999999999999999999", 422, "number: "),
        ("/api/items/999999/thumbnail", 404, "no thumbnail"),
        ("/api/items/999999/similar", 404, "does not exist"),
        ("/api/items/..%2f..%2fetc%2fpasswd", 404, "Nothing exists at"),
        ("/..%2f..%2fetc/passwd", 404, "Nothing exists at"),
        ("/nowhere", 404, "at /nowhere"),
        ("/redoc", 404, "at /redoc"),
    ],
)
def test_an_invalid_request_gets_its_status_and_a_message(
    client: TestClient, path: str, status: int, phrase: str
) -> None:
    reply = client.get(path)
    assert reply.status_code == status
    assert phrase in message(reply)


@pytest.mark.parametrize(
    ("body", "phrase"),
    [
        ("{bad", "The body is not valid JSON: Expecting property name"),
        ('{"queries": [{"number": -1}]}', "Invalid queries.0.number: input should be greater"),
        ('{"queries": [{"text": " "}]}', "Invalid queries.0.text: it is blank."),
        ('{"queries": ["boat"]}', 'Invalid queries.0: pass an object such as {"text": "a bird"}.'),
    ],
)
def test_an_invalid_batch_is_described_as_the_query_that_was_meant(
    client: TestClient, body: str, phrase: str
) -> None:
    headers = {"content-type": "application/json"}
    reply = client.post("/api/search/batch", content=body, headers=headers)
    assert reply.status_code == 422
    assert phrase in message(reply)


def test_a_text_in_place_of_an_image_is_refused(client: TestClient) -> None:
    reply = client.post("/api/search/image", data={"image": "hello"})
    assert reply.status_code == 422
    assert "Invalid image: send a file" in message(reply)


def test_the_wrong_method_is_refused(client: TestClient) -> None:
    reply = client.delete("/api/search/text")
    assert reply.status_code == 405
    assert "DELETE is not allowed" in message(reply)


def test_a_file_that_is_not_an_image_is_refused(client: TestClient) -> None:
    reply = client.post("/api/search/image", files={"image": b"MZ this is not an image"})
    assert reply.status_code == 422
    assert "not an image" in message(reply)


def test_a_truncated_image_is_refused(client: TestClient) -> None:
    noise = image_bytes("PNG", (400, 300))
    reply = client.post("/api/search/image", files={"image": noise[: len(noise) // 2]})
    assert reply.status_code == 422
    assert "cannot be used" in message(reply)


def bomb(width: int, height: int) -> bytes:
    """Return a PNG whose header declares many pixels, with little data."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        check = zlib.crc32(kind + body).to_bytes(4, "big")
        return len(body).to_bytes(4, "big") + kind + body + check

    header = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes((8, 2, 0, 0, 0))
    data = zlib.compress(bytes(100_000), 9)
    parts = chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


@pytest.mark.parametrize("side", [10_001, 40_000, 2**31 - 1])
def test_an_image_with_too_many_pixels_is_refused_by_its_header(
    client: TestClient, side: int
) -> None:
    reply = client.post("/api/search/image", files={"image": bomb(side, side)})
    assert reply.status_code == 422
    assert "65,535" in message(reply) or "more than 100,000,000" in message(reply)


def test_an_svg_is_refused_because_it_may_have_scripts(client: TestClient) -> None:
    svg = b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'
    reply = client.post("/api/search/image", files={"image": ("a.png", svg, "image/png")})
    assert reply.status_code == 422


def test_a_declared_oversize_upload_is_refused(engine: SearchEngine) -> None:
    with client_of(engine, max_upload=100_000) as client:
        reply = client.post("/api/search/image", files={"image": bytes(300_000)})
    assert reply.status_code == 413
    assert "larger than" in message(reply)


def test_an_undeclared_oversize_upload_is_stopped_while_it_streams(engine: SearchEngine) -> None:
    sent = 0

    def endless() -> Iterator[bytes]:
        nonlocal sent
        yield (
            b'--x\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n'
            b"Content-Type: image/png\r\n\r\n"
        )
        for _ in range(200):
            sent += 10_000
            yield bytes(10_000)
        yield b"\r\n--x--\r\n"

    with client_of(engine, max_upload=100_000) as client:
        reply = client.post(
            "/api/search/image",
            content=endless(),
            headers={"Content-Type": "multipart/form-data; boundary=x"},
        )
    assert reply.status_code == 413
    assert "larger than" in message(reply)


def test_a_large_json_body_is_refused(client: TestClient) -> None:
    reply = client.post("/api/search/batch", json={"queries": [{"text": "a" * 2_000_000}]})
    assert reply.status_code == 413


def test_a_batch_query_needs_exactly_one_of_text_and_number(client: TestClient) -> None:
    for query in ({}, {"text": "boat", "number": 1}):
        reply = client.post("/api/search/batch", json={"queries": [query]})
        assert reply.status_code == 422
        assert "queries.0" in message(reply)


def test_malformed_json_is_refused(client: TestClient) -> None:
    reply = client.post(
        "/api/search/batch", content=b"{nope", headers={"Content-Type": "application/json"}
    )
    assert reply.status_code == 422
    message(reply)


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:8000", ""])
def test_unknown_host_names_are_refused_against_dns_rebinding(
    client: TestClient, host: str
) -> None:
    reply = client.get("/api/about", headers={"Host": host})
    assert reply.status_code == 421
    assert "host name" in message(reply)


@pytest.mark.parametrize("host", ["127.0.0.1:9", "localhost", "LOCALHOST:8000", "[::1]:8000"])
def test_loopback_host_names_are_accepted(client: TestClient, host: str) -> None:
    assert client.get("/api/about", headers={"Host": host}).status_code == 200


def test_pages_of_other_sites_cannot_post(client: TestClient) -> None:
    headers = {"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"}
    reply = client.post("/api/search/image", files={"image": image_bytes()}, headers=headers)
    assert reply.status_code == 403


def test_cors_stays_closed(client: TestClient) -> None:
    reply = client.get("/api/about", headers={"Origin": "https://evil.example"})
    assert not [name for name in reply.headers if name.startswith("access-control")]


@pytest.mark.parametrize("path", ["/", "/api/about", "/nowhere", "/app.js"])
def test_every_reply_has_security_headers(client: TestClient, path: str) -> None:
    headers = client.get(path).headers
    assert "default-src 'self'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


def test_the_page_has_no_inline_script_or_style(client: TestClient) -> None:
    page = client.get("/").text
    assert "<style" not in page
    assert "style=" not in page
    assert "onclick" not in page
    assert page.count("<script") == page.count('<script type="module" src="/')
    assert "http://" not in page
    assert "https://" not in page


def test_the_rate_limit_replies_429_with_retry_after(engine: SearchEngine) -> None:
    with client_of(engine, rate_limit=3) as client:
        replies = [client.get("/api/search/text?q=boat") for _ in range(12)]
        assert client.get("/health").status_code == 200
    refused = [reply for reply in replies if reply.status_code == 429]
    assert replies[0].status_code == 200
    assert 3 <= len(refused) <= 6 + 3
    assert refused[0].headers["retry-after"] == "1"
    message(refused[0])


def test_an_internal_error_is_logged_and_not_exposed(
    engine: SearchEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a secret detail")

    with client_of(engine) as client:
        monkeypatch.setattr(engine, "similar_to_codes", broken)
        reply = client.get("/api/search/text?q=boat")
    assert reply.status_code == 500
    assert "secret" not in message(reply)
    assert "secret" in caplog.text


def test_an_unavailable_index_is_503(engine: SearchEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    def unavailable(*_: object, **__: object) -> None:
        raise EngineError("The index server does not respond.")

    with client_of(engine) as client:
        monkeypatch.setattr(engine, "similar_to_codes", unavailable)
        assert client.get("/api/search/text?q=boat").status_code == 503
        assert client.get("/ready").status_code == 503
        assert client.get("/health").status_code == 200


def test_a_search_that_takes_too_long_is_504(
    engine: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()

    with client_of(engine, timeout=0.3) as client:
        client.get("/ready")
        monkeypatch.setattr(engine, "similar_to_codes", lambda *_, **__: release.wait(10))
        reply = client.get("/api/search/text?q=boat")
        release.set()
    assert reply.status_code == 504
    assert "No reply within" in message(reply)


def test_a_full_worker_pool_refuses_requests_and_others_continue(
    engine: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = create_app(engine)
    service = app.state.service
    service.texts = WorkerPool("texts", threads=1, queue_size=1)
    release = threading.Event()
    real = engine.similar_to_codes

    def slow(*args: object, **options: object) -> object:
        release.wait(60)
        return real(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(engine, "similar_to_codes", slow)

    async def ask() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url=LOCAL, timeout=60) as client:
            tasks = [asyncio.create_task(client.get("/api/search/text?q=cat")) for _ in range(5)]
            while sum(task.done() for task in tasks) < 3:
                await asyncio.sleep(0.01)
            assert (await client.get("/health")).status_code == 200
            release.set()
            return await asyncio.gather(*tasks)

    replies = asyncio.run(ask())
    assert sorted(reply.status_code for reply in replies) == [200, 200, 503, 503, 503]
    busy = next(reply for reply in replies if reply.status_code == 503)
    assert busy.headers["retry-after"] == "1"


def test_too_many_uploads_at_once_are_429(
    engine: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SLOT_SECONDS", 0.0)
    app = create_app(engine, max_upload=1 << 20)

    async def ask() -> list[int]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url=LOCAL, timeout=60) as client:
            replies = await asyncio.gather(
                *(
                    client.post("/api/search/image", files={"image": image_bytes()})
                    for _ in range(40)
                )
            )
            return [reply.status_code for reply in replies]

    statuses = asyncio.run(ask())
    assert set(statuses) == {200, 429}
    assert statuses.count(200) >= guard.MAX_UPLOADS


def test_a_writable_service_without_a_key_is_refused(engine: SearchEngine) -> None:
    with pytest.raises(DataError, match="needs a write key"):
        create_app(engine, writable=True)
