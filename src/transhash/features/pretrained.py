"""Features of external models, named by library and by model name or folder.

Examples: `open_clip:ViT-B-32/laion2b_s34b_b79k`, `timm:resnet50`, `transformers:FOLDER`. A joint
model embeds images and texts in one space. Each loader takes a model name or folder and a device,
checks that its library is installed and returns a model in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from transhash.errors import DataError
from transhash.features import (
    folder_digest,
    named_library,
    quiet_transformers,
    reading_with,
    require_library,
    resolve_model_folder,
)
from transhash.features.backbone import extract_pixels, weights_digest
from transhash.features.decode import Pixels
from transhash.features.words import TextRows, tokenize
from transhash.progress import Track, no_progress, with_progress
from transhash.storage import read_json

Channels = tuple[float, ...]  # one value each for red, green and blue
_TEXT_BATCH = 64


@dataclass(frozen=True)
class PretrainedModel:
    """An external model as a loader returns it."""

    images: nn.Module  # normalized pixels (n, 3, size, size) -> (n, dimensions)
    size: int
    mean: Channels  # of pixels 0..255
    deviation: Channels
    digest: str  # of weights and settings
    texts: Callable[[Sequence[str]], Tensor] | None = None  # rows in the space of the images
    # Returns the weights (1000, dimensions) of an ImageNet classifier on the rows of the images.
    class_weights: Callable[[], npt.NDArray[np.float32] | None] | None = None


class NormalizedNetwork(nn.Module):
    """Map bytes (n, 3, size, size) to rows, of unit length if the model also embeds texts."""

    def __init__(self, model: PretrainedModel) -> None:
        super().__init__()
        self.images, self.joint = model.images, model.texts is not None
        self.mean: Tensor
        self.deviation: Tensor
        self.register_buffer("mean", torch.tensor(model.mean)[:, None, None])
        self.register_buffer("deviation", torch.tensor(model.deviation)[:, None, None])

    def forward(self, pixels: Tensor) -> Tensor:
        x = (pixels.float() - self.mean) / self.deviation
        with torch.autocast("cuda", torch.float16, enabled=pixels.is_cuda):
            rows: Tensor = self.images(x).float()
        return functional.normalize(rows, dim=1) if self.joint else rows


class PretrainedFeatures:
    """Image features of an external model. Images are squeezed to a square, not cropped."""

    def __init__(self, name: str, device: str = "cpu") -> None:
        self.name, self._model = load_pretrained(name, device)
        self.in_folder = is_folder(self.name)
        self.size, self.digest = self._model.size, self._model.digest
        self.device = device
        self.batch_size = 128 if device.startswith("cuda") else 4
        self._network = NormalizedNetwork(self._model).eval().to(device)

    def cache_key(self) -> str:
        pixels = f"{self.size}:{self._model.mean}:{self._model.deviation}"
        precision = "float32" if self.device == "cpu" else "float16"
        return f"{named_library(self.name)}:{pixels}:1:{precision}:{self.digest}"

    def network(self) -> nn.Module:
        return self._network

    def extract(self, pixels: Pixels) -> npt.NDArray[np.float32]:
        return extract_pixels(self._network, pixels, self.batch_size, self.device)

    def class_weights(self, names: Sequence[str]) -> npt.NDArray[np.float32] | None:
        """Return weights of an ImageNet classifier on these rows, if there are any.

        `names` are those of the classes, which a joint model embeds.
        """
        if self._model.texts is not None:
            prompts = [f"a photo of a {name}" for name in names]
            return JointModelTextFeatures(self.name, self.device).transform(prompts)
        return None if self._model.class_weights is None else self._model.class_weights()


class JointModelTextFeatures:
    """Text features of a joint model: rows of unit length in the space of its images."""

    def __init__(self, name: str, device: str = "cpu") -> None:
        self.name, model = load_pretrained(name, device)
        self.in_folder = is_folder(self.name)
        self.digest = model.digest
        if model.texts is None:
            raise DataError(
                f"{self.name} does not embed texts. Pass a joint model such as CLIP, or omit "
                "--text-features."
            )
        self._embed = model.texts

    def fit(self, *collections: Sequence[str], seed: int = 0, track: Track = no_progress) -> Self:
        return self  # pretrained

    def transform(self, texts: Sequence[str], track: Track = no_progress) -> TextRows:
        if not texts:  # one empty text tells the number of dimensions
            return self._rows([""])[:0]
        starts = range(0, len(texts), _TEXT_BATCH)
        batches = (self._rows(texts[start : start + _TEXT_BATCH]) for start in starts)
        return np.concatenate(list(with_progress(batches, track, "text features", len(texts))))

    def _rows(self, texts: Sequence[str]) -> TextRows:
        with torch.inference_mode():
            rows = functional.normalize(self._embed(list(texts)).float(), dim=1)
        return np.asarray(rows.cpu().numpy(), np.float32)

    def known_words(self, text: str) -> list[str]:
        return tokenize(text)  # subword tokens cover every word

    def unknown_words(self, text: str) -> list[str]:
        return []

    def state(self) -> dict[str, npt.NDArray[Any]]:
        return {}

    def word_lists(self) -> dict[str, list[str]]:
        return {}


def external_model_record(key: str, features: object) -> dict[str, Any]:
    """Return the config.json entry of an external model, which a run does not contain."""
    if not isinstance(features, PretrainedFeatures | JointModelTextFeatures):
        return {}
    return {key: {"kind": "pretrained", "name": features.name, "digest": features.digest}}


def check_same_model(
    features: PretrainedFeatures | JointModelTextFeatures, record: Any, run: Path
) -> None:
    """Refuse a model that changed since the run was fitted."""
    if not isinstance(record, dict) or features.digest != record.get("digest"):
        raise DataError(
            f"{features.name} is not the model that {run} was fitted with. Restore that model or "
            "refit the run."
        )


def is_folder(name: str) -> bool:
    """Return whether LIBRARY:NAME names a local folder."""
    return Path(name.partition(":")[2]).is_dir()


def load_pretrained(name: str, device: str) -> tuple[str, PretrainedModel]:
    """Return the resolved name and the model, which image and text features share."""
    library, _, model = name.partition(":")
    if not model:
        raise DataError(f"{name} lacks a model. Pass {library}:NAME or {library}:FOLDER.")
    folder = Path(model).expanduser()
    stamps: tuple[Any, ...] = ()
    if folder.is_dir():
        model = str(folder.resolve())
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        stamps = tuple((str(p), p.stat().st_size, p.stat().st_mtime_ns) for p in files)
    return f"{library}:{model}", _load(library, model, device, stamps)


@lru_cache(maxsize=1)
def _load(library: str, model: str, device: str, stamps: tuple[Any, ...]) -> PretrainedModel:
    """Load a model; `stamps` of its files make the cache miss after a change."""
    return LOADERS[library](model, device)


def require_torchvision(library: str, always: bool = True) -> None:
    """Refuse a missing or broken torchvision (PyPI's does not import with a CPU build of torch).

    Pass `always=False` if the library works without torchvision, though not with a broken one.
    """
    missing = find_spec("torchvision") is None
    if missing and not always:
        return
    try:
        import torchvision  # noqa: F401
    except Exception:  # a RuntimeError if it was built for another torch
        version = torch.__version__.partition("+")[0]
        index = "" if torch.version.cuda else " --index-url https://download.pytorch.org/whl/cpu"
        problem = "is not installed" if missing else f"does not work with torch {version}"
        raise DataError(
            f"{library} {'needs' if always else 'imports'} torchvision, which {problem}. Run: "
            f"pip install --force-reinstall torch=={version} torchvision{index}"
        ) from None


class ImageTower(nn.Module):
    """Run only the image part of a model: `encode` maps normalized pixels to rows."""

    def __init__(self, model: Any, encode: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.model, self.encode = model, encode

    def forward(self, x: Tensor) -> Tensor:
        return self.encode(x)


def load_open_clip(name: str, device: str) -> PretrainedModel:
    """Load a joint model by ARCHITECTURE/WEIGHTS as open_clip lists them, hub name or folder."""
    require_library("open_clip", "open-clip")
    require_torchvision("open_clip")
    with reading_with("open_clip", name):
        import open_clip
    hint = "Pass a folder written by open_clip's save_for_hf."
    architecture, _, weights = name.partition("/")
    folder: Path | None = None
    if not Path(name).is_dir() and architecture in open_clip.list_models():
        tags = open_clip.list_pretrained_tags_by_model(architecture)
        if weights not in tags:
            raise DataError(
                f"open_clip has no weights {weights!r} for {architecture}. Pass "
                f"open_clip:{architecture}/WEIGHTS with one of: {', '.join(tags[:5]) or 'none'}."
            )
        hub_path = open_clip.get_pretrained_cfg(architecture, weights).get("hf_hub", "")
        if hub_path:  # download to the cache, where open_clip looks first
            hub_name = "/".join(hub_path.split("/")[:2])
            resolve_model_folder(name, hint, hub_name, ["open_clip_model.safetensors"])
        source = architecture
    else:
        folder = resolve_model_folder(name, hint)
        refuse_remote_code(folder / "open_clip_config.json")
        source, weights = f"local-dir:{folder}", ""
    # open_clip uses transformers for some texts.
    quiet = quiet_transformers() if find_spec("transformers") else nullcontext()
    with reading_with("open_clip", name), quiet:
        model = open_clip.create_model(
            source, pretrained=weights or None, device=device, require_pretrained=True
        ).eval()
        tokenizer = open_clip.get_tokenizer(source)
        config = open_clip.get_model_preprocess_cfg(model)
    size = config["size"]
    if folder is None:
        state = model.state_dict().items()
        digest = weights_digest({key: value.float().cpu().numpy() for key, value in state})
    else:
        digest = folder_digest(folder)
    return PretrainedModel(
        ImageTower(model, model.encode_image),
        int(size if isinstance(size, int) else size[0]),
        _channels(config["mean"]),
        _channels(config["std"]),
        digest,
        lambda texts: model.encode_text(tokenizer(list(texts)).to(device)),
    )


def refuse_remote_code(config: Path) -> None:
    """Refuse a configuration that asks for the code of a model, which open_clip would run."""
    if config.is_file() and "trust_remote_code" in config.read_text("utf-8", "replace"):
        raise DataError(
            f"{config} has trust_remote_code, but code of models is never run. Pass another model."
        )


def load_timm(name: str, device: str) -> PretrainedModel:
    """Load an image network without its classifier by timm name, hub name or folder."""
    require_library("timm", "timm")
    require_torchvision("timm")
    hint = "Pass a folder written by timm's save_for_hf."
    hub_name = None if Path(name).is_dir() else _timm_hub_name(name)
    folder = resolve_model_folder(name, hint, hub_name, ["config.json", "model.safetensors"])
    with reading_with("timm", name):
        import timm

        model = timm.create_model(f"local-dir:{folder}", pretrained=True, num_classes=0)
        config = timm.data.resolve_model_data_config(model)
    return PretrainedModel(
        model.eval().to(device),
        int(config["input_size"][-1]),
        _channels(config["mean"]),
        _channels(config["std"]),
        folder_digest(folder),
        class_weights=lambda: _timm_class_weights(folder, name),
    )


def _timm_class_weights(folder: Path, name: str) -> npt.NDArray[np.float32] | None:
    """Return the classifier's weights if it is linear, for ImageNet-1k, and on the pooled rows."""
    with reading_with("timm", name):
        import timm

        model = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    head = model.get_classifier()
    if not isinstance(head, nn.Linear) or "in1k" not in str(model.pretrained_cfg.get("tag")):
        return None
    side = int(timm.data.resolve_model_data_config(model)["input_size"][-1])
    pixels = torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        rows = model.forward_head(model.forward_features(pixels), pre_logits=True)
        if rows.shape[1:] != head.weight.shape[1:] or not torch.allclose(
            head(rows), model(pixels), atol=1e-3, rtol=1e-3
        ):
            return None
    return head.weight.detach().cpu().numpy().astype(np.float32)


def load_transformers(name: str, device: str) -> PretrainedModel:
    """Load a joint model (CLIP, SigLIP) or an image network (DINOv2, ViT) by hub name or folder."""
    require_library("transformers", "transformers")
    require_torchvision("transformers", always=False)
    folder = resolve_model_folder(name, "Pass a folder written by save_pretrained.")
    with reading_with("transformers", name):
        from transformers import AutoModel

        with quiet_transformers():  # also without warnings about poolers without weights
            model, loading = AutoModel.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False,
                dtype=torch.float32, output_loading_info=True,
            )  # fmt: skip
    missing = [key for key in loading["missing_keys"] if not key.startswith("pooler.")]
    if missing:
        raise DataError(f"{name} lacks weights ({missing[0]}). Pass a complete model folder.")
    model = model.eval().to(device)
    joint = hasattr(model, "get_image_features") and hasattr(model, "get_text_features")
    if not joint and model.main_input_name != "pixel_values":
        raise DataError(f"{name} does not read images. Pass an image model or a joint model.")
    size, mean, deviation = _image_preprocessing(folder, model.config)
    return PretrainedModel(
        ImageTower(model, _image_encoder(model, joint)),
        size,
        mean,
        deviation,
        folder_digest(folder),
        _text_encoder(model, folder, name, device) if joint else None,
    )


LOADERS: dict[str, Callable[[str, str], PretrainedModel]] = {
    "open_clip": load_open_clip,
    "timm": load_timm,
    "transformers": load_transformers,
}


def _channels(values: Iterable[float], unit: float = 255.0) -> Channels:
    return tuple(unit * float(value) for value in values)


def _timm_hub_name(name: str) -> str:
    """Return the hub name of a model name that timm knows."""
    if "/" in name:
        return name
    with reading_with("timm", name):
        import timm

        config = timm.get_pretrained_cfg(name)
    if config is None or not config.hf_hub_id:
        raise DataError(f"timm has no weights for {name!r}. Pass one of timm.list_pretrained().")
    return str(config.hf_hub_id)


def _image_encoder(model: Any, joint: bool) -> Callable[[Tensor], Tensor]:
    """Return a joint model's embedding, else its class token, else the mean over the image.

    The pooler of an image network is not used because many checkpoints have no weights for it.
    """
    if joint:
        return lambda x: model.get_image_features(pixel_values=x).pooler_output
    class_token = any(key.endswith(("cls_token", "class_embedding")) for key in model.state_dict())

    def encode(x: Tensor) -> Tensor:
        hidden: Tensor = model(pixel_values=x).last_hidden_state
        if hidden.ndim == 4:  # (n, channels, height, width)
            return hidden.mean(dim=(2, 3))
        return hidden[:, 0] if class_token else hidden.mean(dim=1)

    return encode


def _text_encoder(
    model: Any, folder: Path, name: str, device: str
) -> Callable[[Sequence[str]], Tensor]:
    with reading_with("transformers", name):
        from transformers import AutoTokenizer

        with quiet_transformers():
            tokenizer = AutoTokenizer.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False
            )
    length = int(model.config.text_config.max_position_embeddings)

    def encode(texts: Sequence[str]) -> Tensor:
        # Padded to full length, as SigLIP was trained. CLIP gives the same rows either way.
        inputs = tokenizer(
            list(texts), padding="max_length", truncation=True, max_length=length,
            return_tensors="pt",
        )  # fmt: skip
        names = [key for key in ("input_ids", "attention_mask") if key in inputs]
        arguments = {key: inputs[key].to(device) for key in names}
        return model.get_text_features(**arguments).pooler_output  # type: ignore[no-any-return]

    return encode


def _image_preprocessing(folder: Path, config: Any) -> tuple[int, Channels, Channels]:
    """Return image size, mean and deviation of pixels 0..255.

    Read from the folder because the library's own processors need torchvision.
    """
    settings: Any = None
    for name in ("preprocessor_config.json", "processor_config.json"):
        if settings is None and (folder / name).is_file():
            content = read_json(folder / name)
            if isinstance(content, dict):
                settings = content.get("image_processor", content)
    if not isinstance(settings, dict) or not {"image_mean", "image_std"} <= set(settings):
        raise DataError(
            f"{folder} has no preprocessor_config.json with image_mean and image_std. Pass a "
            "complete model folder."
        )
    size = (settings.get("do_center_crop") and settings.get("crop_size")) or settings.get("size")
    if isinstance(size, dict):
        size = size.get("height") or size.get("shortest_edge")
    size = size or getattr(getattr(config, "vision_config", config), "image_size", None)
    if not isinstance(size, int):
        raise DataError(f"{folder} does not define an image size. Pass another model.")
    unit = 1 / float(settings.get("rescale_factor") or 1 / 255)
    if not settings.get("do_normalize", True):
        return size, (0.0,) * 3, (unit,) * 3
    return size, _channels(settings["image_mean"], unit), _channels(settings["image_std"], unit)
