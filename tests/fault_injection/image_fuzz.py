"""Decode mutated images of every format in a decoding process: each gives pixels or a reason.

python tests/fault_injection/image_fuzz.py --rounds 20000
"""

from __future__ import annotations

import argparse
import io
import random
import sys
import time
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, features

from transhash.features.decode import MAX_DECODE_BYTES, ImageResult, ImageTask, summary_task
from transhash.features.decode_processes import DecoderProcess

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "HEIF")
_SIZES = ((64, 48), (17, 33))
_OPTIONS: dict[str, tuple[dict[str, object], ...]] = {
    "JPEG": ({}, {"progressive": True}),
    "TIFF": ({}, {"compression": "tiff_lzw"}, {"compression": "jpeg"}),
    "WEBP": ({}, {"lossless": True}),
}
_EXTREMES = (0, 1, 0x7F, 0x80, 0xFF)


class Tally(NamedTuple):
    decoded: int
    refused: int
    crashed: int  # decoders that ended their process, which cost the image
    stopped: int  # decoders that took too long
    megabytes: int  # most memory of a decoding process


def available(kind: str) -> bool:
    if kind == "AVIF":
        return bool(features.check("avif"))
    if kind == "HEIF":
        try:
            import pillow_heif
        except ImportError:
            return False
        pillow_heif.register_heif_opener()
    return True


def fuzz(kind: str, rounds: int, seed: int = 1) -> Tally:
    """Decode mutated images of one format; an AssertionError is any other result."""
    chance, seeds = random.Random(f"{kind} {seed}"), _encoded(kind)
    tasks = (ImageTask(32), summary_task(224), ImageTask(32, upscale=False))
    decoder = DecoderProcess(seconds=30)
    decoded = refused = crashed = stopped = megabytes = 0
    for number in range(rounds):
        content = mutate(chance.choice(seeds), chance)
        if kind == "PNG" and number % 4:
            content = with_checksums(content)
        result = decoder.render(content, tasks[number % len(tasks)])
        if isinstance(result, ImageResult):
            decoded += 1
            assert result.pixels is not None
            assert result.pixels.ndim == 3
        else:
            assert result, (kind, number)
            assert "\n" not in result, (kind, number, result)
            assert "Traceback" not in result, (kind, number, result)
            crashed += "crashed" in result
            stopped += "seconds" in result
            refused += 1
        megabytes = max(megabytes, _peak_megabytes(decoder.pid))
    decoder.close()
    assert megabytes << 20 < MAX_DECODE_BYTES, (kind, megabytes)
    return Tally(decoded, refused, crashed, stopped, megabytes)


def mutate(content: bytes, chance: random.Random) -> bytes:
    """Change bytes, lengths or blocks; headers more often than the rest."""
    data = bytearray(content)
    for _ in range(chance.choice((1, 1, 2, 4, 16))):
        size = max(1, len(data))
        at = min(int(size * chance.random() ** chance.choice((1, 4))), size - 1)
        match chance.randrange(8):
            case 0 | 1 | 2:
                data[at : at + 1] = bytes([chance.randrange(256)])
            case 3:
                data[at : at + 1] = bytes([chance.choice(_EXTREMES)])
            case 4:  # a length or a side
                width = chance.choice((2, 4))
                value = chance.choice(
                    (0, 1, 0x7FFF, 0xFFFF, 65_535, 40_000, 1 << 31, (1 << 32) - 1)
                )
                part = (value % (1 << 8 * width)).to_bytes(width, "big")
                data[at : at + width] = part if chance.random() < 0.5 else part[::-1]
            case 5:
                del data[at : at + chance.randrange(1, 64)]
            case 6:
                other = chance.randrange(size)
                data[at:at] = data[other : other + chance.randrange(1, 64)]
            case 7:
                del data[chance.randrange(size) :]
    return bytes(data)


def with_checksums(png: bytes) -> bytes:
    """Return a PNG whose chunks have the right checksums, so that its content is decoded."""
    data, at = bytearray(png), 8
    while at + 12 <= len(data):
        end = at + 8 + int.from_bytes(data[at : at + 4], "big")
        if end + 4 > len(data):
            break
        data[end : end + 4] = zlib.crc32(data[at + 4 : end]).to_bytes(4, "big")
        at = end + 4
    return bytes(data)


def _encoded(kind: str) -> list[bytes]:
    """Return valid images of a format in several modes."""
    pixels = np.random.default_rng(0)
    seeds = []
    for width, height in _SIZES:
        metadata = {} if kind in ("TIFF", "GIF", "BMP") else {"exif": _exif()}
        noise = Image.fromarray(pixels.integers(0, 256, (height, width, 4), dtype=np.uint8))
        for mode in ("RGB", "RGBA", "L", "P"):
            for options in _OPTIONS.get(kind, ({},)):
                buffer = io.BytesIO()
                try:
                    noise.convert(mode).save(buffer, kind, **metadata, **options)
                except (OSError, ValueError, KeyError):
                    continue  # the format has no such mode
                seeds.append(buffer.getvalue())
    assert seeds, kind
    return seeds


def _exif() -> bytes:
    """Return metadata as of a camera."""
    exif = Image.Exif()
    exif[0x0112], exif[0x010F] = 6, "Maker"  # orientation
    exif.get_ifd(0x8769)[0x9003] = "2024:05:06 07:08:09"
    exif.get_ifd(0x8825).update({1: "N", 2: (47.0, 22.0, 30.0), 3: "E", 4: (8.0, 32.0, 0.0)})
    return exif.tobytes()


def _peak_megabytes(pid: int | None) -> int:
    if not sys.platform.startswith("linux") or pid is None:
        return 0
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) >> 10
    except (OSError, IndexError):
        return 0  # it was just stopped


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20_000, help="images per format")
    parser.add_argument("--formats", nargs="*", default=FORMATS)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    for kind in options.formats:
        if not available(kind):
            print(kind, "is not installed")
            continue
        start = time.monotonic()
        print(kind, fuzz(kind, options.rounds, options.seed), f"{time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
