"""Joint models of open_clip, by MODEL/WEIGHTS as it lists them, a name on the hub, or a folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from transhash.errors import DataError
from transhash.features.model_folders import fetched_folder, folder_digest, need_library, read_by
from transhash.features.pretrained import PretrainedModel, need_torchvision, network_digest

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
    need_library("open_clip", "open-clip")
    need_torchvision("open_clip")
    with read_by("open_clip", named):
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
            fetched_folder(named, _REMEDY, "/".join(on_hub.split("/")[:2]), _WEIGHTS)
        source, digested = architecture, None
    else:
        if not folder.is_dir():
            folder = fetched_folder(named, _REMEDY)
        source, weights, digested = f"local-dir:{folder}", "", folder
    with read_by("open_clip", named):
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
