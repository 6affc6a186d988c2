import io
import sqlite3
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image, features

from transhash.data.manifest import read_images
from transhash.errors import DataError
from transhash.features.cache import FeatureCache
from transhash.features.decode import ImageReader, Pixels, decode, open_image, square
from transhash.features.decode_processes import PixelBatch, decode_batches
from transhash.features.images import (
    AlexNetPixels,
    EfficientNetLite0,
    ImageSample,
    image_features,
    unit_rows,
)
from transhash.features.stream import extract_all, stream_images, upscale
from transhash.storage import content_digest


def photo(path: Path, color: str = "red", size: tuple[int, int] = (40, 30)) -> Path:
    Image.new("RGB", size, color).save(path)
    return path


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16", "YCbCr"])
def test_every_mode_becomes_rgb(tmp_path: Path, mode: str) -> None:
    suffix = {"CMYK": "jpg", "YCbCr": "jpg"}.get(mode, "png")
    Image.new(mode, (20, 10)).save(tmp_path / f"a.{suffix}")
    pixels = decode(tmp_path / f"a.{suffix}", 16)
    assert not isinstance(pixels, str)
    assert pixels.shape == (16, 16, 3)


def test_transparent_pixels_become_white() -> None:
    buffer = io.BytesIO()
    Image.new("RGBA", (4, 4), (255, 0, 0, 0)).save(buffer, "PNG")
    pixels = decode(buffer.getvalue(), 4)
    assert not isinstance(pixels, str)
    assert (pixels == 255).all()


def test_exif_rotation_is_applied(tmp_path: Path) -> None:
    image = Image.new("RGB", (20, 10), "black")
    image.paste("white", (0, 0, 10, 10))  # left half
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: the left edge is the top
    image.save(tmp_path / "a.jpg", exif=exif, quality=100)
    upright = open_image(tmp_path / "a.jpg")
    assert not isinstance(upright, str)
    assert upright.size == (10, 20)
    assert np.asarray(upright)[2].mean() > 200
    assert np.asarray(upright)[-2].mean() < 50


def test_unreadable_files_give_a_reason(tmp_path: Path) -> None:
    complete = photo(tmp_path / "complete.jpg", size=(200, 200))
    (tmp_path / "cut.jpg").write_bytes(complete.read_bytes()[:300])
    (tmp_path / "text.png").write_text("not an image")
    (tmp_path / "empty.png").touch()
    for name, words in (("cut.jpg", "corrupt"), ("text.png", "not an image"), ("empty.png", "not")):
        reason = decode(tmp_path / name, 8)
        assert isinstance(reason, str)
        assert words in reason
    assert isinstance(decode(tmp_path / "gone.png", 8), str)


def test_a_decompression_bomb_is_refused_before_it_is_decoded() -> None:
    buffer = io.BytesIO()
    Image.new("1", (12_000, 12_000)).save(buffer, "PNG")
    reason = decode(buffer.getvalue(), 8)
    assert isinstance(reason, str)
    assert "100,000,000" in reason


def test_a_large_jpeg_is_decoded_at_a_reduced_size() -> None:
    buffer = io.BytesIO()
    Image.new("L", (16_000, 12_000), 200).save(buffer, "JPEG")
    pixels = decode(buffer.getvalue(), 224)
    assert not isinstance(pixels, str), pixels
    assert abs(int(pixels.mean()) - 200) < 3
    header = bytearray(buffer.getvalue())
    at = header.index(b"\xff\xc0")  # followed by height and width after five bytes
    header[at + 5 : at + 9] = b"\xff\xf0\xff\xf0"
    reason = decode(bytes(header), 224)
    assert isinstance(reason, str)
    assert "save it smaller" in reason


def test_the_reason_of_a_corrupt_image_is_one_line() -> None:
    heif = pytest.importorskip("pillow_heif", reason="pip install 'transhash[heic]'")
    heif.register_heif_opener()
    file = io.BytesIO()
    Image.effect_noise((64, 64), 90).convert("RGB").save(file, "HEIF")
    reason = open_image(file.getvalue()[: file.tell() // 2])
    assert isinstance(reason, str)
    assert reason.startswith("corrupt image")
    assert "\n" not in reason


@pytest.mark.parametrize("suffix", ["avif", "heic"])
def test_images_of_phones_are_read(tmp_path: Path, suffix: str) -> None:
    if suffix == "heic":
        pytest.importorskip("pillow_heif", reason="pip install 'transhash[heic]'")
    elif not features.check("avif"):
        pytest.skip("this Pillow has no AVIF")
    image = Image.new("RGB", (64, 32), "red")
    image.save(tmp_path / f"a.{suffix}")
    pixels = decode(tmp_path / f"a.{suffix}", 16)
    assert not isinstance(pixels, str), pixels
    assert pixels[..., 0].min() > 200
    assert pixels[..., 1].max() < 60
    assert len(read_images(tmp_path)) == 1


def test_svg_and_text_files_give_a_helpful_reason() -> None:
    drawing = b'<?xml version="1.0"?>\n<svg xmlns="http://www.w3.org/2000/svg"/>'
    assert "export it as PNG" in str(decode(drawing, 8))
    assert "JPEG, PNG" in str(decode(b"just words", 8))


def collect(batches: Iterable[PixelBatch]) -> list[Pixels | str]:
    """Return pixels or reason of every image, by position."""
    result: list[Pixels | str] = []
    for start, files, pixels, _ in batches:
        assert start == len(result)
        rows = iter(pixels.copy())
        result += [next(rows) if file.state == "decoded" else file.reason for file in files]
    return result


@pytest.mark.slow
def test_worker_processes_and_threads_give_the_same_pixels_in_the_same_order(
    tmp_path: Path,
) -> None:
    paths = [photo(tmp_path / f"{i}.png", f"#{i % 256:02x}{i // 2:02x}40") for i in range(300)]
    paths[70].write_text("broken")
    threads = collect(decode_batches(paths, ImageReader(8), 20, threads=2))
    processes = collect(decode_batches(paths, ImageReader(8), 48, workers=2))
    assert isinstance(processes[70], str)
    assert all(np.array_equal(a, b) for a, b in zip(threads, processes, strict=True))
    assert all(np.array_equal(threads[i], decode(paths[i], 8)) for i in (0, 150, 299))


@pytest.mark.parametrize("size", [32, 224])
def test_upscale_gives_exactly_the_bytes_of_pillow(size: int) -> None:
    rng = np.random.default_rng(0)
    shapes = rng.integers(1, size + 1, (40, 2))
    shapes[:4] = [(size, size), (size, 1), (1, size), (1, 1)]
    memory = np.full((len(shapes), size, size, 3), 77, np.uint8)  # of an earlier batch
    expected = []
    for row, (height, width) in zip(memory, shapes):
        row[:height, :width] = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
        expected.append(square(Image.fromarray(row[:height, :width]), size))
    assert np.array_equal(upscale(torch.from_numpy(memory), shapes).numpy(), expected)


@pytest.mark.slow
def test_images_upscaled_after_decoding_are_the_same(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    paths = []
    for i in range(260):
        height, width = rng.integers(1, 80, 2)
        noise = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
        paths.append(tmp_path / f"{i}.png")
        Image.fromarray(noise).save(paths[-1])
    paths[3].write_text("broken")
    result = [
        upscale(torch.from_numpy(batch.pixels), batch.shapes).numpy()
        for batch in decode_batches(paths, ImageReader(48, upscale=False), 64, workers=1)
    ]
    expected = [decode(path, 48) for path in paths if path != paths[3]]
    assert np.array_equal(np.concatenate(result), expected)


@pytest.mark.slow
def test_worker_processes_skip_cached_files(tmp_path: Path) -> None:
    paths = [photo(tmp_path / f"{i}.png", f"#{i % 256:02x}{i // 2:02x}40") for i in range(300)]
    cache = FeatureCache("kind", tmp_path / "cache")
    cache.put([content_digest(paths[7].read_bytes())], np.full((1, 3), 7, np.float32))
    reader = ImageReader(8, summaries=True, cached=cache.get)
    batches = decode_batches(paths, reader, 48, workers=1)
    files = [file for batch in batches for file in batch.files]
    assert [i for i, file in enumerate(files) if file.state == "cached"] == [7]
    assert files[7].vector is not None
    assert files[7].vector.tolist() == [7, 7, 7]
    assert all(file.summary for file in files)


@pytest.mark.slow
def test_worker_processes_do_not_run_the_callers_script(tmp_path: Path) -> None:
    path, script = photo(tmp_path / "a.png"), tmp_path / "careless.py"
    script.write_text(
        "from pathlib import Path\n"
        "from transhash.features.decode import ImageReader\n"
        "from transhash.features.decode_processes import decode_batches\n"
        "print('once')\n"  # without a guard
        f"batches = decode_batches([Path({str(path)!r})] * 300, ImageReader(8), 100, workers=2)\n"
        "print(sum(len(batch.pixels) for batch in batches), __name__)\n"
    )
    result = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=300, check=False
    )
    # Python's resource tracker may warn about queues of a process that ends at once.
    errors = [line for line in result.stderr.splitlines() if "resource_tracker" not in line]
    errors = [line for line in errors if not line.startswith(("  warnings", "UserWarning"))]
    assert (result.stdout, errors) == ("once\n300 __main__\n", [])


@dataclass
class Means:
    """Features without a network: the mean color. `count` is the number of computed vectors."""

    key_text: str = "means:1"
    name: str = "means"
    size: int = 8
    device: str = "cpu"
    batch_size: int = 4
    count: int = 0

    def cache_key(self) -> str:
        return self.key_text

    def network(self) -> None:
        return None

    def extract(self, pixels: Pixels) -> npt.NDArray[np.float32]:
        self.count += len(pixels)
        return pixels.reshape(-1, 64, 3).mean(axis=1, dtype=np.float32)


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRANSHASH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "features.sqlite"


def colored(folder: Path, count: int) -> list[Path]:
    return [photo(folder / f"{i}.png", f"#{i * 7 % 256:02x}{i % 256:02x}40") for i in range(count)]


def test_features_are_cached_by_content_and_cache_key(tmp_path: Path, own_cache: Path) -> None:
    red, blue = photo(tmp_path / "a.png"), photo(tmp_path / "b.png", "blue")
    means = Means()
    first, unreadable = extract_all(means, [red, blue])
    assert (first.tolist(), unreadable) == ([[255, 0, 0], [0, 0, 255]], [])
    red.rename(tmp_path / "c.png")
    again, _ = extract_all(means, [blue, tmp_path / "c.png"])
    assert np.array_equal(again, first[::-1])
    assert means.count == 2
    other = Means("means:2")
    extract_all(other, [blue])
    assert other.count == 1


def test_a_stream_keeps_the_order_of_cached_unchanged_and_unreadable_files(
    tmp_path: Path, own_cache: Path
) -> None:
    paths = colored(tmp_path, 40)
    expected, _ = extract_all(Means(), paths)
    paths[13].write_text("broken")
    paths[21] = tmp_path / "gone.png"
    paths[22] = photo(tmp_path / "new.png", "white")
    means = Means()
    positions: list[int] = []
    for part in stream_images(means, paths, summaries=True, is_unchanged=lambda i, _: i % 10 == 5):
        assert [paths[i].exists() for i in part.readable] == [True] * len(part.readable)
        for i, row, digest, small in zip(
            part.readable, part.vectors, part.digests, part.summaries, strict=True
        ):
            assert row.tolist() == ([255] * 3 if i == 22 else expected[i].tolist())
            assert digest == content_digest(paths[i].read_bytes())
            assert small is not None
        assert part.unchanged == [i for i in part.unchanged if i % 10 == 5]
        assert {i for i, _ in part.unreadable} <= {13, 21}
        positions += sorted([*part.readable, *part.unchanged, *(i for i, _ in part.unreadable)])
    assert positions == list(range(40))
    assert means.count == 1  # all others were cached


def test_a_stream_reads_little_ahead(tmp_path: Path) -> None:
    paths = colored(tmp_path, 400)
    means = Means()
    parts = stream_images(means, paths, cache=False, workers=1)
    next(parts)
    parts.close()  # type: ignore[attr-defined]
    assert means.count < 200


@pytest.mark.parametrize("damage", ["garbage", "cut", "flipped", "old"])
def test_a_corrupt_cache_is_replaced_with_a_warning(
    tmp_path: Path, own_cache: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    paths = colored(tmp_path, 40)
    expected, _ = extract_all(Means(), paths)
    content = bytearray(own_cache.read_bytes())
    if damage == "garbage":
        content[:] = b"no database" * 500
    elif damage == "cut":
        del content[len(content) // 2 :]
    elif damage == "flipped":
        for i in range(5000, len(content), 97):
            content[i] ^= 4
    else:
        own_cache.unlink()
        with sqlite3.connect(own_cache) as connection:
            connection.execute("CREATE TABLE features (key BLOB PRIMARY KEY, value BLOB)")
        content = bytearray(own_cache.read_bytes())
    own_cache.write_bytes(content)
    for _ in range(2):
        rows, unreadable = extract_all(Means(), paths)
        assert np.array_equal(rows, expected)
        assert not unreadable
    if damage in ("garbage", "cut"):
        assert "is corrupt" in caplog.text
    last = Means()
    extract_all(last, paths)
    assert last.count == 0  # cached again


def test_a_cache_that_cannot_be_written_is_ignored_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TRANSHASH_CACHE", str(tmp_path / "file" / "cache"))
    rows, _ = extract_all(Means(), colored(tmp_path, 3))
    assert rows.shape == (3, 3)
    assert caplog.text.count("are not cached") == 1


def test_the_cache_key_depends_on_the_device() -> None:
    here, there = EfficientNetLite0("cpu"), EfficientNetLite0("cuda")
    assert here.cache_key().startswith("efficientnet-lite0:224:")
    assert here.cache_key() != there.cache_key()


def test_an_unreadable_image_is_skipped(tmp_path: Path) -> None:
    good = [photo(tmp_path / "a.png"), photo(tmp_path / "b.png", "blue")]
    (tmp_path / "bad.png").write_text("x")
    rows, unreadable = extract_all(EfficientNetLite0(), [good[0], tmp_path / "bad.png", good[1]])
    assert rows.shape == (2, 1280)
    assert np.abs(rows[0] - rows[1]).max() > 0.01
    assert [i for i, _ in unreadable] == [1]


def test_alexnet_takes_pixels_channels_first(tmp_path: Path) -> None:
    rows, _ = extract_all(AlexNetPixels(), [photo(tmp_path / "a.png")])
    assert rows.shape == (1, 3, 224, 224)
    assert rows.dtype == np.uint8
    assert rows[0, :, 5, 5].tolist() == [255, 0, 0]


def test_unknown_features_are_refused_by_name() -> None:
    with pytest.raises(DataError, match="resnet"):
        image_features("resnet")


@pytest.mark.slow
def test_worker_processes_and_threads_give_the_same_stream(tmp_path: Path, own_cache: Path) -> None:
    paths = colored(tmp_path, 300)
    paths[13].write_text("broken")
    expected, unreadable = extract_all(Means(), paths)
    paths[20] = photo(tmp_path / "new.png", "white")
    expected[19] = 255
    on_gpu = Means(device="cuda", batch_size=64)  # without a network no GPU is needed
    rows, again = extract_all(on_gpu, paths)
    assert np.array_equal(rows, expected)
    assert again == unreadable
    assert on_gpu.count == 1  # all others were cached
    unchanged = [
        i
        for part in stream_images(on_gpu, paths, is_unchanged=lambda i, _: i % 100 == 7)
        for i in part.unchanged
    ]
    assert unchanged == [7, 107, 207]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_gives_the_features_of_the_cpu_in_half_precision(
    tmp_path: Path, own_cache: Path
) -> None:
    paths = colored(tmp_path, 1200)
    paths[700].write_text("broken")
    here, unreadable = extract_all(EfficientNetLite0("cpu"), paths)
    there, unreadable_there = extract_all(EfficientNetLite0("cuda"), paths)
    assert unreadable == unreadable_there
    assert np.abs(here - there).max() < 0.02 * np.abs(here).max()
    again, _ = extract_all(EfficientNetLite0("cuda"), paths)
    assert np.array_equal(there, again)


def test_an_image_far_from_every_training_image_is_unknown(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    own = rng.normal(size=(150, 40)) + 3 * rng.normal(size=40)
    sample = ImageSample.draw(own[:100].astype(np.float32), None)
    assert sample is not None
    unknown = [sample.is_unknown(row[None]) for row in own[100:]]
    assert sum(unknown) <= 5
    assert sample.is_unknown(-own[:1])
    between = own[:1] / np.linalg.norm(own[0]) + 3 * np.eye(40)[:1]
    cosines = unit_rows(between) @ unit_rows(own[:100]).T
    assert 0 < cosines.max() < sample.min_cosine
    assert sample.is_unknown(between)
    sample.save(tmp_path / "sample.safetensors")
    again = ImageSample.load(tmp_path / "sample.safetensors")
    assert again.min_cosine == sample.min_cosine
    assert np.array_equal(again.rows, sample.rows)


def test_a_few_images_and_pixels_do_not_tell_what_is_unknown() -> None:
    rows = np.ones((30, 8), np.float32)
    assert ImageSample.draw(rows, None) is None
    assert ImageSample.draw(rows, rows) is not None
    assert ImageSample.draw(np.zeros((99, 3, 4, 4), np.uint8), None) is None
