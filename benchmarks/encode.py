"""Items a second of encoding, beside the backbone's bare forward pass on the same machine.

    python benchmarks/encode.py RUN PICTURES [--device cuda] [--items 500]

The bare pass runs on pixels that already lie where the network runs, before and after each
encoding; the better of the two counts, so that a busy machine does not flatter the ratio. The
encoding is the whole of it: reading files, decoding, features, hashing, writing shards.
Means and standard deviations over --repeats.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from transhash.data.collection import Collection, Images
from transhash.data.manifest import read_images
from transhash.features.decode import (
    DecodedFile,
    ImageReader,
    PixelBatch,
    Pixels,
    decode_batches,
    default_workers,
)
from transhash.features.efficientnet import LITE0, load_lite, original_lite
from transhash.features.images import EfficientNetLite0
from transhash.features.stream import _run_network
from transhash.model.encode_job import encode_shards
from transhash.model.encoder import Encoder


def bare_rate(encoder: Encoder, seconds: float = 6.0) -> float:
    """Images a second through the network alone, pixels lying where it runs."""
    pixels, step = pixels_for(encoder, 512)
    network = load_lite(LITE0, encoder.image_features.device)  # type: ignore[union-attr]
    return rate(lambda part: network(part.permute(0, 3, 1, 2)), pixels, step, seconds)


def wheel_rate(encoder: Encoder, seconds: float = 6.0) -> float:
    """The same through the network as its wheel has it, in batches of its choice."""
    pixels, step = pixels_for(encoder, 512)
    network = original_lite(LITE0).to(pixels.device)
    kind = torch.bfloat16 if pixels.is_cuda else torch.float32
    network = network.to(dtype=kind, memory_format=torch.channels_last)

    def run(part: Tensor) -> Tensor:
        maps = network.extract_features((part.permute(0, 3, 1, 2).to(kind) - 127.0) / 128.0)
        return maps.mean(dim=(2, 3))  # type: ignore[no-any-return]

    return max(rate(run, pixels, step * scale, seconds / 2) for scale in (1, 2))


def rate_from_memory(encoder: Encoder, side: int, count: int = 50) -> float:
    """Of the pipeline to a GPU when decoding costs nothing; it enlarges what is smaller."""
    pixels, step = pixels_for(encoder, 3 * 512)
    memory = pixels.cpu().numpy().reshape(3, step, *pixels.shape[1:])
    shapes = np.full((step, 2), side)

    def batches(on_buffer: Callable[[Pixels], None]) -> Iterator[PixelBatch]:
        on_buffer(memory)
        for number in range(count):
            yield PixelBatch(
                number * step, [DecodedFile("decoded")] * step, memory[number % 3], shapes
            )

    assert encoder.image_features is not None
    parts = _run_network(encoder.image_features, batches)
    next(parts)
    start = time.perf_counter()
    return sum(step for _ in parts) / (time.perf_counter() - start)


def one_core(reader: ImageReader, paths: Sequence[Path | bytes]) -> list[float]:
    """Files a second from disk to pixels, five times."""
    rates = []
    for _ in range(5):
        start = time.process_time()
        for number, path in enumerate(paths):
            reader(number, path)
        rates.append(len(paths) / (time.process_time() - start))
    return rates


def pixels_for(encoder: Encoder, count: int) -> tuple[Tensor, int]:
    features = encoder.image_features
    if not isinstance(features, EfficientNetLite0):
        raise SystemExit("the run must use efficientnet-lite0 features of image files")
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (count, features.size, features.size, 3), dtype=np.uint8)
    step = 512 if features.device.startswith("cuda") else 16
    return torch.from_numpy(pixels).to(features.device), step


def rate(run: Callable[[Tensor], Tensor], pixels: Tensor, step: int, seconds: float) -> float:
    with torch.inference_mode():
        run(pixels[:step])
        _wait(pixels)
        start, done = time.perf_counter(), 0
        while time.perf_counter() - start < seconds:
            for first in range(0, len(pixels), step):
                done += len(run(pixels[first : first + step]))
            _wait(pixels)
        return done / (time.perf_counter() - start)


def spread(values: list[float], digits: int) -> str:
    return f"{np.mean(values):,.{digits}f} ± {np.std(values):,.{digits}f}"


def _wait(pixels: Tensor) -> None:
    if pixels.is_cuda:
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("pictures", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--items", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--workers", type=int, default=None)
    options = parser.parse_args()
    encoder = Encoder.load(options.run, options.device)
    images = read_images(options.pictures)
    rows = np.resize(np.arange(len(images)), options.items)  # repeated where there are too few
    many: Images = Collection(
        [str(i) for i in range(len(rows))], [images.items[int(row)] for row in rows]
    )
    size = encoder.image_features.size if encoder.image_features else 224
    decoded = {
        words: one_core(ImageReader(size, enlarge=enlarge), many.items[:256])
        for words, enlarge in (("", True), (", left small", False))
    }
    workers = default_workers() if options.workers is None else options.workers
    on_gpu = options.device.startswith("cuda")
    reader = ImageReader(size, enlarge=not on_gpu)  # as encoding does
    decoding = decode_batches(many.items, reader, 512, workers=workers)
    next(decoding)  # the processes have started
    start, done = time.perf_counter(), 0
    for part in decoding:
        done += len(part.pixels)
    decoded_by_all = done / (time.perf_counter() - start)
    bare, rates = [bare_rate(encoder)], []
    for _ in range(options.repeats):
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            outcome = encode_shards(
                options.run, many, "images", folder, device=options.device, workers=options.workers
            )
            rates.append(outcome.codes / (time.perf_counter() - start))
            kept = sum(path.stat().st_size for path in Path(folder).glob("*.parquet"))
        bare.append(bare_rate(encoder))
    shares = [rate / max(bare[i : i + 2]) for i, rate in enumerate(rates)]
    wheel = wheel_rate(encoder)
    in_memory = {}
    if on_gpu:
        for side in (size, 160, 64):
            fed = rate_from_memory(encoder, side)
            in_memory[f"from_memory_{side}"] = f"{fed:,.0f}, {fed / max(bare):.0%} of bare"
    texts = [f"a note about thing {i} in the garden" for i in range(20_000)]
    start = time.perf_counter()
    encoder.encode_texts(texts)
    report = {
        "images_per_second": spread(rates, 1),
        "bare_forward_per_second": spread(bare, 1),
        "share_of_bare": spread(shares, 3),
        **in_memory,
        "wheels_own_network_per_second": round(wheel, 1),
        **{
            f"decodes_per_second_one_core{words}": spread(each, 0)
            for words, each in decoded.items()
        },
        f"decodes_per_second_{workers}_processes": round(decoded_by_all, 1),
        "texts_per_second": round(len(texts) / (time.perf_counter() - start)),
        "bytes_per_item_on_disk": round(kept / max(outcome.codes, 1), 1),
        "device": options.device,
    }
    print(json.dumps(report, indent=2, ensure_ascii=False))


if __name__ == "__main__":
    main()
