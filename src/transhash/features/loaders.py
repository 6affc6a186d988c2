"""Joint models of open_clip, by MODEL/WEIGHTS as it lists them, a name on the hub, or a folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from transhash.errors import DataError
from transhash.features.pretrained import (
    Channels,
    PretrainedModel,
    folder_digest,
    network_digest,
    reading_with,
    require_library,
    require_torchvision,
    resolve_model_folder,
)
from transhash.storage import read_json

_REMEDY = "give one that open_clip's save_for_hf wrote"
_WEIGHTS = ("open_clip_model.safetensors",)


class ClipImages(nn.Module):
    """The image side, in the space that it shares with texts."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model.encode_image(x)  # type: ignore[no-any-return]


def load_open_clip(named: str, device: str) -> PretrainedModel:
    """The joint model, both sides in float32."""
    require_library("open_clip", "open-clip")
    require_torchvision("open_clip")
    with reading_with("open_clip", named):
        import open_clip

    folder = Path(named)
    architecture, _, weights = named.partition("/")
    if not folder.is_dir() and architecture in open_clip.list_models():
        tags = open_clip.list_pretrained_tags_by_model(architecture)
        if weights not in tags:
            raise DataError(
                f"open_clip knows no weights {weights!r} of {architecture}; give "
                f"open_clip:{architecture}/WEIGHTS with one of {', '.join(tags[:5]) or 'none'}"
            )
        on_hub = open_clip.get_pretrained_cfg(architecture, weights).get("hf_hub", "")
        if on_hub:  # from the cache, then, in which open_clip looks for them
            resolve_model_folder(named, _REMEDY, "/".join(on_hub.split("/")[:2]), _WEIGHTS)
        source, digested = architecture, None
    else:
        if not folder.is_dir():
            folder = resolve_model_folder(named, _REMEDY)
        source, weights, digested = f"local-dir:{folder}", "", folder
    with reading_with("open_clip", named):
        model = open_clip.create_model(
            source, pretrained=weights or None, device=device, require_pretrained=True
        ).eval()
        tokenizer = open_clip.get_tokenizer(source)
        told = open_clip.get_model_preprocess_cfg(model)
    size = told["size"]

    def texts(batch: Sequence[str]) -> Tensor:
        return model.encode_text(tokenizer(list(batch)).to(device))  # type: ignore[no-any-return]

    return PretrainedModel(
        ClipImages(model),
        int(size if isinstance(size, int) else size[0]),
        tuple(255.0 * value for value in told["mean"]),
        tuple(255.0 * value for value in told["std"]),
        folder_digest(digested) if digested else network_digest(model),
        texts,
    )


# Image networks of timm, by a name it knows or a folder that its save_for_hf wrote.

_FILES = ("config.json", "model.safetensors")


def load_timm(named: str, device: str) -> PretrainedModel:
    """The network without its classifier: what that would be given, a row an image."""
    require_library("timm", "timm")
    require_torchvision("timm")
    folder = Path(named)
    if not folder.is_dir():
        folder = resolve_model_folder(
            named, "give one that timm's save_for_hf wrote", _on_hub(named), _FILES
        )
    with reading_with("timm", named):
        import timm

        model = timm.create_model(f"local-dir:{folder}", pretrained=True, num_classes=0)
        told = timm.data.resolve_model_data_config(model)
    return PretrainedModel(
        model.eval().to(device),
        int(told["input_size"][-1]),
        tuple(255.0 * value for value in told["mean"]),
        tuple(255.0 * value for value in told["std"]),
        folder_digest(folder),
    )


def _on_hub(named: str) -> str:
    """Where the hub has the weights of a name that timm knows."""
    if "/" in named:
        return named
    with reading_with("timm", named):
        import timm

        told = timm.get_pretrained_cfg(named)
    if told is None or not told.hf_hub_id:
        raise DataError(f"timm knows no weights of {named!r}; give one of timm.list_pretrained()")
    return str(told.hf_hub_id)


# Models of Hugging Face's transformers: CLIP, SigLIP, DINOv2, ViT, ConvNeXt and their like.


class JointImages(nn.Module):
    """The image side of a joint model, in the space that it shares with texts."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model.get_image_features(pixel_values=x).pooler_output  # type: ignore[no-any-return]


class PooledImages(nn.Module):
    """The class token of a model that has one, else the mean over the picture.

    Not the model's own pooler: many checkpoints have no weights for it.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        named = ("cls_token", "class_embedding")
        self.first = any(name.endswith(named) for name in model.state_dict())

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.model(pixel_values=x).last_hidden_state
        if found.ndim == 4:  # (n, channels, height, width)
            return found.mean(dim=(2, 3))
        return found[:, 0] if self.first else found.mean(dim=1)


def load_transformers(named: str, device: str) -> PretrainedModel:
    """The model in that folder, or of that name on the hub."""
    require_library("transformers", "transformers")
    require_torchvision("transformers", always=False)
    folder = Path(named)
    if not folder.is_dir():
        folder = resolve_model_folder(named, "give one that save_pretrained of transformers wrote")
    with reading_with("transformers", named):
        from transformers import AutoModel
        from transformers.utils import logging

        logging.disable_progress_bar()
        before = logging.get_verbosity()
        logging.set_verbosity_error()  # it would tell of poolers without weights
        try:
            model, found = AutoModel.from_pretrained(
                folder, local_files_only=True, dtype=torch.float32, output_loading_info=True
            )
        finally:
            logging.set_verbosity(before)
    lost = [name for name in found["missing_keys"] if not name.startswith("pooler.")]
    if lost:
        raise DataError(f"{named} lacks weights of its network ({lost[0]}); give the whole model")
    model = model.eval().to(device)
    joint = hasattr(model, "get_image_features") and hasattr(model, "get_text_features")
    if not joint and model.main_input_name != "pixel_values":
        raise DataError(f"{named} reads no pictures; give an image model or a joint one")
    size, mean, deviation = _preprocessing(folder, model.config)
    return PretrainedModel(
        JointImages(model) if joint else PooledImages(model),
        size, mean, deviation, folder_digest(folder),
        _texts(model, folder, named, device) if joint else None,
    )  # fmt: skip


def _texts(model: Any, folder: Path, named: str, device: str) -> Any:
    with reading_with("transformers", named):
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    length = int(model.config.text_config.max_position_embeddings)

    def rows(texts: Sequence[str]) -> Tensor:
        # Padded to the full length, which SigLIP was trained with and CLIP does not mind.
        inputs = tokenizer(
            list(texts), padding="max_length", truncation=True, max_length=length,
            return_tensors="pt",
        )  # fmt: skip
        known = {name: inputs[name].to(device) for name in model_inputs if name in inputs}
        return model.get_text_features(**known).pooler_output  # type: ignore[no-any-return]

    model_inputs = ("input_ids", "attention_mask")
    return rows


def _preprocessing(folder: Path, config: Any) -> tuple[int, Channels, Channels]:
    """Side, mean and deviation of the pixels 0..255 that it takes.

    Read here: the library's own processors need torchvision.
    """
    told: dict[str, Any] | None = None
    for name in ("preprocessor_config.json", "processor_config.json"):
        if told is None and (folder / name).is_file():
            content = read_json(folder / name)
            if isinstance(content, dict):
                told = content.get("image_processor", content)
    if not isinstance(told, dict) or not {"image_mean", "image_std"} <= set(told):
        raise DataError(
            f"{folder} does not say how it scales pictures: it has no preprocessor_config.json "
            "with image_mean and image_std; give the whole folder of a model"
        )
    vision = getattr(config, "vision_config", config)
    size = (told.get("do_center_crop") and told.get("crop_size")) or told.get("size")
    if isinstance(size, dict):
        size = size.get("height") or size.get("shortest_edge")
    size = size or getattr(vision, "image_size", None)
    if not isinstance(size, int):
        raise DataError(f"{folder} does not say the size of its pictures; give another model")
    unit = 1 / float(told.get("rescale_factor") or 1 / 255)
    if not told.get("do_normalize", True):
        return size, (0.0,) * 3, (unit,) * 3
    mean, deviation = (
        tuple(unit * float(v) for v in told[name]) for name in ("image_mean", "image_std")
    )
    return size, mean, deviation
