"""Damaged and extreme images are problems of one file, whatever a decoder raises."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image, features

from transhash.features.decode import decode

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
    assert "decoder failed" in result


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
