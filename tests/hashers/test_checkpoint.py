"""A damaged checkpoint is recognized: training starts again instead of from wrong weights."""

from __future__ import annotations

import logging
import random
from pathlib import Path

import pytest
import torch
from torch import nn

from transhash.hashers.training_loop import SGD, Checkpoint


def parts() -> tuple[nn.ModuleDict, SGD]:
    modules = nn.ModuleDict({"image": nn.Linear(6, 4)})
    for parameter in modules.parameters():
        nn.init.constant_(parameter, 0.5)
    return modules, SGD([{"params": list(modules.parameters()), "lr": 0.1}], 0.9)


def test_any_flipped_bit_or_truncation_starts_from_step_0(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint = Checkpoint(tmp_path, "settings")
    modules, optimizer = parts()
    checkpoint.save(17, modules, optimizer, None)
    intact = checkpoint.path.read_bytes()
    assert checkpoint.load(*parts(), None) == 17
    chance = random.Random(2)
    for number in range(200):
        content = bytearray(intact)
        if number % 4:
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        else:
            del content[chance.randrange(len(content)) :]
        checkpoint.path.write_bytes(content)
        modules, optimizer = parts()
        with torch.no_grad():
            modules["image"].weight.fill_(3.0)
        caplog.clear()
        with caplog.at_level(logging.WARNING, "transhash"):
            step = checkpoint.load(modules, optimizer, None)
        if step == 17:  # the bit is in unused bytes, such as padding
            assert modules["image"].weight.unique().tolist() == [0.5]
            continue
        assert step == 0
        assert "starts from step 0" in caplog.text
        assert modules["image"].weight.unique().tolist() == [3.0]
