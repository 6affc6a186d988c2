"""Image networks of timm, by a name it knows or a folder that its save_for_hf wrote."""

from __future__ import annotations

from pathlib import Path

from transhash.features.model_folders import folder_digest, need_library, read_by
from transhash.features.pretrained import PretrainedModel, need_torchvision, network_digest


def load_timm(named: str, device: str) -> PretrainedModel:
    """The network without its classifier: what that would be given, a row an image."""
    need_library("timm", "timm")
    need_torchvision("timm")
    folder = Path(named)
    local = folder.is_dir()
    with read_by("timm", named):
        import timm

        model = timm.create_model(
            f"local-dir:{folder}" if local else named, pretrained=True, num_classes=0
        )
        told = timm.data.resolve_model_data_config(model)
    digest = folder_digest(folder) if local else network_digest(model)
    return PretrainedModel(
        model.eval().to(device),
        int(told["input_size"][-1]),
        tuple(255.0 * value for value in told["mean"]),
        tuple(255.0 * value for value in told["std"]),
        digest,
    )
