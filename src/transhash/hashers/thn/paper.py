"""The recipe as printed: the paper's words, and where it is silent its authors' Caffe files.

Of a canonical layer, which the paper has not, the values are ours and have no effect.
"""

from __future__ import annotations

from typing import Any

PAPER: dict[str, Any] = {
    "image_hidden": (512,),
    "text_hidden": (1000, 500),
    "dropout": 0.0,
    "loss": "cross-entropy",
    "quantization_weight": 1e-2,
    "quantization_start": 0.0,
    "quantize_target": False,
    "use_target": True,
    "alignment_weight": 1.0,
    "alignment_ramp": 0.0,
    "kernel_widths": (1.0,),
    "balanced": False,
    "logit_scale": 1.0,
    "soft_share": 0.0,
    "inherited_weight": 0.0,
    "inputs": "features",
    "ridge": 0.05,
    "rank": None,
    "rounds": 0,
    "temperature": 0.05,
    "centring": 0.0,
    "frames": 0,
    "steps": 1000,
    "batch": 128,
    "target_batch": 128,
    "optimizer": "sgd",
    "learning_rate": 1e-2,
    "policy": "inv",
    "fch_multiplier": 10.0,
    "weight_decay": 5e-4,
    "averaging": 0.0,
    "rescue": False,
}
