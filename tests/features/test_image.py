import io
import multiprocessing
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from transhash.errors import DataError, EngineError
from transhash.features.decode import Batch, Pixels, decode, decode_batches, open_image
from transhash.features.image import AlexNetPixels, EfficientNetLite0, image_features
from transhash.features.lite0 import load_lite0, original_lite0


def photo(path: Path, colour: str = "red", size: tuple[int, int] = (40, 30)) -> Path:
    Image.new("RGB", size, colour).save(path)
    return path


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16", "YCbCr"])
def test_every_mode_becomes_rgb(tmp_path: Path, mode: str) -> None:
    suffix = {"CMYK": "jpg", "YCbCr": "jpg"}.get(mode, "png")
    Image.new(mode, (20, 10)).save(tmp_path / f"a.{suffix}")
    pixels = decode(tmp_path / f"a.{suffix}", 16)
    assert not isinstance(pixels, str)
    assert pixels.shape == (16, 16, 3)


def test_transparent_pixels_show_white_paper() -> None:
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


def test_bad_files_are_reasons_not_crashes(tmp_path: Path) -> None:
    whole = photo(tmp_path / "whole.jpg", size=(200, 200))
    (tmp_path / "cut.jpg").write_bytes(whole.read_bytes()[:300])
    (tmp_path / "text.png").write_text("not a picture")
    (tmp_path / "empty.png").touch()
    for name, words in (("cut.jpg", "damaged"), ("text.png", "not an image"), ("empty.png", "not")):
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


def everything(batches: Iterable[Batch]) -> list[Pixels | str]:
    """Pixels or reason of every image, by position."""
    found: dict[int, Pixels | str] = {}
    for good, pixels, bad in batches:
        found.update(zip(good, pixels.copy(), strict=True))
        found.update(bad)
    return [found[i] for i in range(len(found))]


@pytest.mark.slow
def test_worker_processes_and_threads_give_the_same_pixels_in_the_same_order(
    tmp_path: Path,
) -> None:
    paths = [photo(tmp_path / f"{i}.png", f"#{i % 256:02x}{i // 2:02x}40") for i in range(300)]
    paths[70].write_text("broken")
    threads = everything(decode_batches(paths, 8, 20, threads=2))
    processes = everything(decode_batches(paths, 8, 48, workers=2))
    assert isinstance(processes[70], str)
    assert all(np.array_equal(a, b) for a, b in zip(threads, processes, strict=True))
    assert all(np.array_equal(threads[i], decode(paths[i], 8)) for i in (0, 150, 299))


@pytest.mark.slow
def test_a_decoding_process_that_dies_is_one_sentence(tmp_path: Path) -> None:
    paths = [photo(tmp_path / "a.png")] * 2000
    batches = decode_batches(paths, 8, 16, workers=1)
    next(batches)
    for child in multiprocessing.active_children():
        child.kill()
    with pytest.raises(EngineError, match="fewer --workers"):
        list(batches)


def test_the_folded_network_computes_what_the_wheels_network_does() -> None:
    pixels = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (2, 3, 224, 224)))
    with torch.inference_mode():
        maps = original_lite0().extract_features((pixels.float() - 127) / 128)
        expected = maps.mean(dim=(2, 3))
        found = load_lite0("cpu")(pixels)
    assert expected.abs().max() > 1
    assert torch.allclose(found, expected, atol=1e-4)


def test_features_are_cached_by_content_not_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRANSHASH_CACHE", str(tmp_path / "cache"))
    red, blue = photo(tmp_path / "a.png"), photo(tmp_path / "b.png", "blue")
    extractor = EfficientNetLite0()
    first, bad = extractor.extract([red, blue])
    assert first.shape == (2, 1280)
    assert not bad
    assert np.abs(first[0] - first[1]).max() > 0.01

    def fail(self: EfficientNetLite0, pixels: object) -> None:
        raise AssertionError("computed again")

    monkeypatch.setattr(EfficientNetLite0, "of_pixels", fail)
    red.rename(tmp_path / "c.png")
    again, _ = extractor.extract([blue, tmp_path / "c.png"])
    assert np.array_equal(again, first[::-1])


def test_a_bad_image_leaves_the_rows_of_the_others_in_order(tmp_path: Path) -> None:
    good = [photo(tmp_path / "a.png"), photo(tmp_path / "b.png", "blue")]
    (tmp_path / "bad.png").write_text("x")
    rows, bad = EfficientNetLite0(cache=False).extract([good[0], tmp_path / "bad.png", good[1]])
    assert rows.shape == (2, 1280)
    assert [i for i, _ in bad] == [1]


def test_alexnet_takes_pixels_channels_first(tmp_path: Path) -> None:
    rows, _ = AlexNetPixels().extract([photo(tmp_path / "a.png")])
    assert rows.shape == (1, 3, 224, 224)
    assert rows.dtype == np.uint8
    assert rows[0, :, 5, 5].tolist() == [255, 0, 0]


def test_unknown_features_are_refused_by_name() -> None:
    with pytest.raises(DataError, match="resnet"):
        image_features("resnet")
