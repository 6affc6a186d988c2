"""Tiny models with random weights, saved as their libraries save them."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

SIZE = 32
WORDS = ["[PAD]", "[UNK]", "a", "red", "blue", "boat", "cat", "dog", "[BOS]", "[EOS]"]
MEAN, DEVIATION = [0.4, 0.5, 0.6], [0.2, 0.25, 0.3]


def require(module: str, extra: str) -> Any:
    return pytest.importorskip(module, reason=f"needs transhash[{extra}]")


def require_torchvision() -> None:
    """Import torchvision, even one from PyPI with a CPU build of torch.

    That one lacks compiled operators, which it refers to when it is imported. Models of open_clip
    and timm do not call them, so declaring them here is enough.
    """
    if find_spec("torchvision") is None:
        pytest.skip("needs torchvision")
    try:
        import torchvision
    except RuntimeError:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        for operator in ("nms", "qnms"):
            schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            torch.library.define(f"torchvision::{operator}", schema)
        import torchvision  # noqa: F401


def repair_torchvision() -> None:
    """transformers works without torchvision, but not with a broken one."""
    if find_spec("torchvision") is not None:
        require_torchvision()


def tiny_clip(folder: Path, seed: int = 0) -> Path:
    """Save a CLIP of transformers with a tokenizer of ten words."""
    require("transformers", "transformers")
    repair_torchvision()
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from tokenizers.processors import TemplateProcessing
    from transformers import CLIPConfig, CLIPModel, PreTrainedTokenizerFast

    layer = {
        "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }  # fmt: skip
    torch.manual_seed(seed)
    text = {
        **layer, "vocab_size": len(WORDS), "max_position_embeddings": 12, "pad_token_id": 0,
        "bos_token_id": 8, "eos_token_id": 9,
    }  # fmt: skip
    vision = {**layer, "image_size": SIZE, "patch_size": 8}
    model = CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=16))
    model.save_pretrained(folder)
    tokenizer = Tokenizer(WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(
        single="[BOS] $A [EOS]", special_tokens=[("[BOS]", 8), ("[EOS]", 9)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", bos_token="[BOS]",
        eos_token="[EOS]",
    ).save_pretrained(folder)  # fmt: skip
    return write_preprocessing(
        folder, crop_size={"height": SIZE, "width": SIZE}, do_center_crop=True
    )


def tiny_vit(folder: Path, seed: int = 0) -> Path:
    """Save a ViT without weights of the pooler, like checkpoints of classifiers."""
    require("transformers", "transformers")
    repair_torchvision()
    from transformers import ViTConfig, ViTModel

    torch.manual_seed(seed)
    config = ViTConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        image_size=SIZE, patch_size=8,
    )  # fmt: skip
    ViTModel(config, add_pooling_layer=False).save_pretrained(folder)
    return write_preprocessing(folder, size={"height": SIZE, "width": SIZE})


def tiny_resnet(folder: Path) -> Path:
    require("transformers", "transformers")
    repair_torchvision()
    from transformers import ResNetConfig, ResNetModel

    torch.manual_seed(0)
    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 12], depths=[1, 1], layer_type="basic")
    ResNetModel(config).save_pretrained(folder)
    return write_preprocessing(folder, size={"shortest_edge": SIZE})


def write_preprocessing(folder: Path, **more: Any) -> Path:
    settings = {"image_mean": MEAN, "image_std": DEVIATION, "rescale_factor": 1 / 255, **more}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return folder


def tiny_timm(folder: Path, seed: int = 0) -> Path:
    require("timm", "timm")
    require_torchvision()
    import timm
    from timm.models import save_for_hf

    torch.manual_seed(seed)
    save_for_hf(timm.create_model("test_vit"), str(folder), safe_serialization=True)
    return folder


def tiny_open_clip(folder: Path, seed: int = 0) -> Path:
    require("open_clip", "open-clip")
    require_torchvision()
    import open_clip
    from safetensors.torch import save_file

    vision = {"image_size": SIZE, "layers": 1, "width": 32, "patch_size": 8, "head_width": 16}
    text = {"context_length": 16, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 1}
    config = {"embed_dim": 16, "vision_cfg": vision, "text_cfg": text}
    settings = {"model_cfg": config, "preprocess_cfg": {"mean": MEAN, "std": DEVIATION}}
    folder.mkdir()
    (folder / "open_clip_config.json").write_text(json.dumps(settings))
    torch.manual_seed(seed)
    model = open_clip.CLIP(**json.loads(json.dumps(config)))
    save_file(model.state_dict(), folder / "open_clip_model.safetensors")
    return folder


BUILDERS = {"transformers": tiny_clip, "timm": tiny_timm, "open_clip": tiny_open_clip}
