"""Damaged and extreme images are problems of one file, whatever a decoder raises."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image, features

from transhash.features import decode as decoding
from transhash.features.decode import decode, open_image

FORMATS = ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "HEIF"]


def encoded(kind: str) -> bytes:
    if kind == "AVIF" and not features.check("avif"):
        pytest.skip("this Pillow has no AVIF")
    if kind == "HEIF":
        pytest.importorskip("pillow_heif", reason="pip install 'transhash[heic]'")
    pixels = np.random.default_rng(0).integers(0, 256, (48, 64, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


@pytest.mark.parametrize("kind", FORMATS)
def test_a_mutated_image_is_decoded_or_has_a_reason(kind: str) -> None:
    whole = encoded(kind)
    rng = np.random.default_rng(1)
    for _ in range(150):
        data = bytearray(whole)
        for position in rng.integers(0, len(data), rng.integers(1, 20)):
            data[position] = rng.integers(0, 256)
        result = decode(bytes(data[: rng.integers(1, len(data) + 1)]), 32)
        assert isinstance(result, str) or result.shape == (32, 32, 3)


@pytest.mark.parametrize("error", [RuntimeError, MemoryError, AssertionError, ZeroDivisionError])
def test_any_error_of_a_decoder_is_a_reason(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error("decoder failed")

    whole = encoded("PNG")
    monkeypatch.setattr(Image.Image, "convert", fail)
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", fail)
    result = decode(whole, 32)
    assert isinstance(result, str)
    assert ("memory" if error is MemoryError else "decoder failed") in result


@pytest.mark.parametrize("size", [(99_000_000, 1), (1, 99_000_000)])
def test_an_image_with_an_extreme_side_is_refused_by_its_header(size: tuple[int, int]) -> None:
    def chunk(kind: bytes, content: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + checksum

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", *size, 8, 0, 0, 0, 0))
    data = (
        b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")
    )
    result = decode(data, 32)
    assert isinstance(result, str)
    assert "side" in result


@pytest.mark.parametrize("kind", ["AVIF", "HEIF", "WEBP"])
def test_formats_whose_decoders_take_more_memory_may_have_fewer_pixels(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not isinstance(decode(encoded(kind), 32), str)
    assert decoding._MAX_PIXELS_OF[kind] < decoding._MAX_PIXELS
    monkeypatch.setitem(decoding._MAX_PIXELS_OF, kind, 64 * 48 - 1)
    result = decode(encoded(kind), 32)
    assert isinstance(result, str)
    assert "more than 3,071 pixels" in result


@pytest.mark.slow
def test_a_kilobyte_of_avif_with_96_megapixels_is_refused_by_its_header() -> None:
    if not features.check("avif"):
        pytest.skip("this Pillow has no AVIF")
    buffer = io.BytesIO()
    Image.new("RGB", (12_000, 8_000)).save(buffer, "AVIF", speed=10, quality=10)
    assert buffer.tell() < 4096
    assert "64,000,000" in str(decode(buffer.getvalue(), 224))


def test_a_progressive_jpeg_is_refused_where_another_jpeg_is_decoded() -> None:
    def with_size(progressive: bool) -> bytes:
        buffer = io.BytesIO()
        Image.new("L", (16, 16)).save(buffer, "JPEG", progressive=progressive)
        header = bytearray(buffer.getvalue())
        at = header.index(b"\xff\xc2" if progressive else b"\xff\xc0")
        header[at + 5 : at + 9] = struct.pack(">HH", 20_000, 20_000)
        return bytes(header)

    assert "save it smaller" in str(decode(with_size(True), 224))
    assert "save it smaller" not in str(decode(with_size(False), 224))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "PA", "RGB", "RGBA", "I;16"])
def test_an_image_converted_in_strips_has_the_same_pixels(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (50, 40, 4), dtype=np.uint8)
    image = Image.fromarray(noise)
    buffer = io.BytesIO()
    if mode == "I;16":
        image = Image.fromarray(noise[..., 0].astype(np.uint16) * 255)
        image.save(buffer, "PNG")
    elif mode == "PA":
        image.quantize(16).save(buffer, "PNG", transparency=3)
    else:
        image.convert(mode).save(buffer, "PNG")
    at_once = open_image(buffer.getvalue())
    monkeypatch.setattr(decoding, "_STRIP_PIXELS", 3 * 40)
    in_strips = open_image(buffer.getvalue())
    assert not isinstance(at_once, str)
    assert not isinstance(in_strips, str)
    assert np.array_equal(np.asarray(at_once), np.asarray(in_strips))
    assert np.asarray(at_once).std() > 10
