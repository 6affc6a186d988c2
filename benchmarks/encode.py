"""Measure items per second of encoding, compared with the forward pass of the backbone.

    python benchmarks/encode.py RUN IMAGES [--device cuda] [--items 500]

Encoding includes reading files, decoding, features, hashing and writing shards. The forward pass
runs before and after it, on pixels that are already on the device; the faster of both counts, so
that a busy machine does not improve the ratio. Means and standard deviations over --repeats.
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
from transhash.features import LITE0
from transhash.features.decode import DecodedFile, ImageReader, Pixels
from transhash.features.decode_processes import PixelBatch, decode_batches, default_workers
from transhash.features.efficientnet import load_lite, original_lite
from transhash.features.images import EfficientNetLite0
from transhash.features.stream import _run_network
from transhash.model.encode_job import encode_shards
from transhash.model.encoder import Encoder


def forward_rate(encoder: Encoder, seconds: float = 6.0) -> float:
    """Return images per second of the forward pass only."""
    pixels, batch_size = pixels_for(encoder, 512)
    network = load_lite(LITE0, encoder.image_features.device)  # type: ignore[union-attr]
    return rate(lambda part: network(part.permute(0, 3, 1, 2)), pixels, batch_size, seconds)


def original_rate(encoder: Encoder, seconds: float = 6.0) -> float:
    """Return images per second of the original network, at the better of two batch sizes."""
    pixels, batch_size = pixels_for(encoder, 512)
    network = original_lite(LITE0).to(pixels.device)
    dtype = torch.bfloat16 if pixels.is_cuda else torch.float32
    network = network.to(dtype=dtype, memory_format=torch.channels_last)

    def run(part: Tensor) -> Tensor:
        maps = network.extract_features((part.permute(0, 3, 1, 2).to(dtype) - 127.0) / 128.0)
        return maps.mean(dim=(2, 3))  # type: ignore[no-any-return]

    return max(rate(run, pixels, batch_size * scale, seconds / 2) for scale in (1, 2))


def rate_from_memory(encoder: Encoder, side: int, count: int = 50) -> float:
    """Return images per second of the GPU pipeline without decoding, for images of that size."""
    pixels, batch_size = pixels_for(encoder, 3 * 512)
    memory = pixels.cpu().numpy().reshape(3, batch_size, *pixels.shape[1:])
    shapes = np.full((batch_size, 2), side)

    def batches(on_buffer: Callable[[Pixels], None]) -> Iterator[PixelBatch]:
        on_buffer(memory)
        for number in range(count):
            yield PixelBatch(
                number * batch_size,
                [DecodedFile("decoded")] * batch_size,
                memory[number % 3],
                shapes,
            )

    assert encoder.image_features is not None
    results = _run_network(encoder.image_features, batches)
    next(results)
    start = time.perf_counter()
    return sum(batch_size for _ in results) / (time.perf_counter() - start)


def decoding_rates(reader: ImageReader, paths: Sequence[Path | bytes]) -> list[float]:
    """Return files per second from disk to pixels, five times."""
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
        raise SystemExit("The run has other image features. Pass one with efficientnet-lite0.")
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (count, features.size, features.size, 3), dtype=np.uint8)
    batch_size = 512 if features.device.startswith("cuda") else 16
    return torch.from_numpy(pixels).to(features.device), batch_size


def rate(run: Callable[[Tensor], Tensor], pixels: Tensor, batch_size: int, seconds: float) -> float:
    with torch.inference_mode():
        run(pixels[:batch_size])
        _wait(pixels)
        start, count = time.perf_counter(), 0
        while time.perf_counter() - start < seconds:
            for first in range(0, len(pixels), batch_size):
                count += len(run(pixels[first : first + batch_size]))
            _wait(pixels)
        return count / (time.perf_counter() - start)


def mean_cell(values: list[float], digits: int) -> str:
    return f"{np.mean(values):,.{digits}f} ± {np.std(values):,.{digits}f}"


def _wait(pixels: Tensor) -> None:
    if pixels.is_cuda:
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("images", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--items", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--workers", type=int, default=None)
    options = parser.parse_args()
    encoder = Encoder.load(options.run, options.device)
    images = read_images(options.images)
    rows = np.resize(np.arange(len(images)), options.items)  # repeats images if there are too few
    many: Images = Collection(
        [str(i) for i in range(len(rows))], [images.items[int(row)] for row in rows]
    )
    size = encoder.image_features.size if encoder.image_features else 224
    decoded = {
        suffix: decoding_rates(ImageReader(size, upscale=upscale), many.items[:256])
        for suffix, upscale in (("", True), ("_without_upscale", False))
    }
    workers = default_workers() if options.workers is None else options.workers
    on_gpu = options.device.startswith("cuda")
    reader = ImageReader(size, upscale=not on_gpu)  # like encoding
    decoding = decode_batches(many.items, reader, 512, workers=workers)
    next(decoding)  # starts the processes
    start = time.perf_counter()
    decoded_by_processes = sum(len(batch.pixels) for batch in decoding) / (
        time.perf_counter() - start
    )
    forward, rates = [forward_rate(encoder)], []
    for _ in range(options.repeats):
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            result = encode_shards(
                options.run, many, "images", folder, device=options.device, workers=options.workers
            )
            rates.append(result.codes / (time.perf_counter() - start))
            size_on_disk = sum(path.stat().st_size for path in Path(folder).glob("*.parquet"))
        forward.append(forward_rate(encoder))
    fractions = [rate / max(forward[i : i + 2]) for i, rate in enumerate(rates)]
    in_memory = {}
    if on_gpu:
        for side in (size, 160, 64):
            from_memory = rate_from_memory(encoder, side)
            in_memory[f"from_memory_{side}"] = (
                f"{from_memory:,.0f}, {from_memory / max(forward):.0%} of the forward pass"
            )
    texts = [f"a text about object {i} in the garden" for i in range(20_000)]
    start = time.perf_counter()
    encoder.encode_texts(texts)
    report = {
        "images_per_second": mean_cell(rates, 1),
        "forward_passes_per_second": mean_cell(forward, 1),
        "fraction_of_forward_rate": mean_cell(fractions, 3),
        **in_memory,
        "original_network_per_second": round(original_rate(encoder), 1),
        **{
            f"decodes_per_second_one_core{suffix}": mean_cell(values, 0)
            for suffix, values in decoded.items()
        },
        f"decodes_per_second_{workers}_processes": round(decoded_by_processes, 1),
        "texts_per_second": round(len(texts) / (time.perf_counter() - start)),
        "bytes_per_item_on_disk": round(size_on_disk / max(result.codes, 1), 1),
        "device": options.device,
    }
    print(json.dumps(report, indent=2, ensure_ascii=False))


if __name__ == "__main__":
    main()
