"""Image networks of timm, by a name it knows or a folder that its save_for_hf wrote."""

from __future__ import annotations

from pathlib import Path

from transhash.errors import DataError
from transhash.features.model_folders import fetched_folder, folder_digest, need_library, read_by
from transhash.features.pretrained import PretrainedModel, need_torchvision

_FILES = ("config.json", "model.safetensors")


def load_timm(named: str, device: str) -> PretrainedModel:
    """The network without its classifier: what that would be given, a row an image."""
    need_library("timm", "timm")
    need_torchvision("timm")
    folder = Path(named)
    if not folder.is_dir():
        folder = fetched_folder(
            named, "give one that timm's save_for_hf wrote", _on_hub(named), _FILES
        )
    with read_by("timm", named):
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
    with read_by("timm", named):
        import timm

        told = timm.get_pretrained_cfg(named)
    if told is None or not told.hf_hub_id:
        raise DataError(f"timm knows no weights of {named!r}; give one of timm.list_pretrained()")
    return str(told.hf_hub_id)
