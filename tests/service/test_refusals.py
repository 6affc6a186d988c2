"""Questions that are refused: always with a sentence, never with a stack trace."""

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

from .small_run import LOCAL, picture


def sentence(reply: httpx.Response) -> str:
    body = reply.json()
    assert set(body) == {"error"}, body
    assert "Traceback" not in body["error"]
    return str(body["error"])


def local(engine: SearchEngine, **settings: object) -> TestClient:
    app = create_app(engine, **settings)  # type: ignore[arg-type]
    return TestClient(app, base_url=LOCAL, raise_server_exceptions=False)


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/api/search/text", 422, "q: field required"),
        ("/api/search/text?q=%20%20", 422, "q: "),
        ("/api/search/text?q=boat&k=0", 422, "k: "),
        ("/api/search/text?q=boat&k=100000", 422, "k: "),
        ("/api/search/text?q=boat&among=films", 422, "among: "),
        ("/api/search/text?q=" + "a" * 5000, 422, "q: "),
        ("/api/items/999999", 404, "there is no item 999999"),
        ("/api/items/99999999999999999999999999", 422, "number: "),
        ("/api/items/999999/thumbnail", 404, "no picture"),
        ("/api/items/999999/similar", 404, "there is no item"),
        ("/api/items/..%2f..%2fetc%2fpasswd", 404, "there is nothing at"),
        ("/..%2f..%2fetc/passwd", 404, "there is nothing at"),
        ("/nowhere", 404, "there is nothing at /nowhere"),
        ("/redoc", 404, "there is nothing at /redoc"),
    ],
)
def test_a_bad_question_gets_its_status_and_a_sentence(
    client: TestClient, path: str, status: int, words: str
) -> None:
    reply = client.get(path)
    assert reply.status_code == status
    assert words in sentence(reply)


def test_the_wrong_method_is_refused(client: TestClient) -> None:
    reply = client.delete("/api/search/text")
    assert reply.status_code == 405
    assert "DELETE is not possible here" in sentence(reply)


def test_what_is_not_an_image_is_refused(client: TestClient) -> None:
    reply = client.post("/api/search/image", files={"image": b"MZ this is no picture"})
    assert reply.status_code == 422
    assert "not an image" in sentence(reply)


def test_a_cut_off_picture_is_refused(client: TestClient) -> None:
    noise = picture("PNG", (400, 300))
    reply = client.post("/api/search/image", files={"image": noise[: len(noise) // 2]})
    assert reply.status_code == 422
    assert "cannot be used" in sentence(reply)


def bomb(width: int, height: int) -> bytes:
    """A PNG header that promises many pixels, over a few bytes of data."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        check = zlib.crc32(kind + body).to_bytes(4, "big")
        return len(body).to_bytes(4, "big") + kind + body + check

    header = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes((8, 2, 0, 0, 0))
    data = zlib.compress(bytes(100_000), 9)
    parts = chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


@pytest.mark.parametrize("side", [10_001, 40_000, 2**31 - 1])
def test_a_picture_with_too_many_pixels_is_refused_by_its_header(
    client: TestClient, side: int
) -> None:
    reply = client.post("/api/search/image", files={"image": bomb(side, side)})
    assert reply.status_code == 422
    assert "pixels are more than" in sentence(reply) or "more than 100,000,000" in sentence(reply)


def test_an_svg_is_refused_because_it_is_a_program(client: TestClient) -> None:
    svg = b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'
    reply = client.post("/api/search/image", files={"image": ("a.png", svg, "image/png")})
    assert reply.status_code == 422


def test_a_declared_oversize_upload_is_refused(engine: SearchEngine) -> None:
    with local(engine, max_upload=100_000) as client:
        reply = client.post("/api/search/image", files={"image": bytes(300_000)})
    assert reply.status_code == 413
    assert "larger than" in sentence(reply)


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

    with local(engine, max_upload=100_000) as client:
        reply = client.post(
            "/api/search/image",
            content=endless(),
            headers={"Content-Type": "multipart/form-data; boundary=x"},
        )
    assert reply.status_code == 413
    assert "larger than" in sentence(reply)


def test_a_large_json_body_is_refused(client: TestClient) -> None:
    reply = client.post("/api/search/batch", json={"queries": [{"text": "a" * 2_000_000}]})
    assert reply.status_code == 413


def test_a_batch_query_needs_exactly_one_of_text_and_number(client: TestClient) -> None:
    for query in ({}, {"text": "boat", "number": 1}):
        reply = client.post("/api/search/batch", json={"queries": [query]})
        assert reply.status_code == 422
        assert "queries.0" in sentence(reply)


def test_broken_json_is_a_sentence(client: TestClient) -> None:
    reply = client.post(
        "/api/search/batch", content=b"{nope", headers={"Content-Type": "application/json"}
    )
    assert reply.status_code == 422
    sentence(reply)


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:8000", ""])
def test_foreign_host_names_are_refused_against_dns_rebinding(
    client: TestClient, host: str
) -> None:
    reply = client.get("/api/about", headers={"Host": host})
    assert reply.status_code == 421
    assert "answers for" in sentence(reply)


@pytest.mark.parametrize("host", ["127.0.0.1:9", "localhost", "LOCALHOST:8000", "[::1]:8000"])
def test_loopback_names_are_answered(client: TestClient, host: str) -> None:
    assert client.get("/api/about", headers={"Host": host}).status_code == 200


def test_another_sites_page_cannot_post(client: TestClient) -> None:
    headers = {"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"}
    reply = client.post("/api/search/image", files={"image": picture()}, headers=headers)
    assert reply.status_code == 403


def test_cors_stays_closed(client: TestClient) -> None:
    reply = client.get("/api/about", headers={"Origin": "https://evil.example"})
    assert not [name for name in reply.headers if name.startswith("access-control")]


@pytest.mark.parametrize("path", ["/", "/api/about", "/nowhere", "/app.js"])
def test_every_reply_carries_the_protective_headers(client: TestClient, path: str) -> None:
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


def test_the_rate_limit_answers_429_and_says_when_to_come_back(engine: SearchEngine) -> None:
    with local(engine, rate_limit=3) as client:
        replies = [client.get("/api/search/text?q=boat") for _ in range(12)]
        assert client.get("/health").status_code == 200
    refused = [reply for reply in replies if reply.status_code == 429]
    assert replies[0].status_code == 200
    assert 3 <= len(refused) <= 6 + 3
    assert refused[0].headers["retry-after"] == "1"
    sentence(refused[0])


def test_an_error_inside_is_a_sentence_and_goes_to_the_log(
    engine: SearchEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a secret detail")

    with local(engine) as client:
        monkeypatch.setattr(engine, "similar_to_codes", broken)
        reply = client.get("/api/search/text?q=boat")
    assert reply.status_code == 500
    assert "secret" not in sentence(reply)
    assert "secret" in caplog.text


def test_an_engine_that_is_away_is_503(
    engine: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise EngineError("the server does not answer")

    with local(engine) as client:
        monkeypatch.setattr(engine, "similar_to_codes", away)
        assert client.get("/api/search/text?q=boat").status_code == 503
        assert client.get("/ready").status_code == 503
        assert client.get("/health").status_code == 200


def test_work_that_takes_too_long_is_504(
    engine: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()

    with local(engine, timeout=0.3) as client:
        client.get("/ready")
        monkeypatch.setattr(engine, "similar_to_codes", lambda *_: release.wait(10))
        reply = client.get("/api/search/text?q=boat")
        release.set()
    assert reply.status_code == 504
    assert "no answer within" in sentence(reply)


def test_a_full_lane_refuses_and_the_others_go_on(
    engine: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = create_app(engine)
    service = app.state.service
    service.texts = WorkerPool("texts", threads=1, waiting=1)
    release = threading.Event()
    real = engine.similar_to_codes

    def slow(*args: object) -> object:
        release.wait(10)
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(engine, "similar_to_codes", slow)

    async def ask() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url=LOCAL) as client:
            tasks = [asyncio.create_task(client.get("/api/search/text?q=cat")) for _ in range(5)]
            await asyncio.sleep(0.3)
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
    monkeypatch.setattr(limits, "PLACE_SECONDS", 0.0)
    app = create_app(engine, max_upload=1 << 20)

    async def ask() -> list[int]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url=LOCAL, timeout=60) as client:
            replies = await asyncio.gather(
                *(client.post("/api/search/image", files={"image": picture()}) for _ in range(40))
            )
            return [reply.status_code for reply in replies]

    statuses = asyncio.run(ask())
    assert set(statuses) == {200, 429}
    assert statuses.count(200) >= guard.UPLOADS_AT_ONCE


def test_a_writable_service_without_a_key_is_refused(engine: SearchEngine) -> None:
    with pytest.raises(DataError, match="needs a key"):
        create_app(engine, writable=True)
