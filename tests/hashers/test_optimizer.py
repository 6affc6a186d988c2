"""The optimizers give the results of torch.optim bit for bit, without importing its compiler."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from transhash.hashers.training_loop import SGD, AdamW, ForeachOptimizer

Groups = list[dict[str, Any]]
OURS: dict[str, Callable[[Groups], ForeachOptimizer]] = {
    "adam": AdamW,
    "sgd": lambda groups: SGD(groups, 0.9),
    "sgd without momentum": lambda groups: SGD(groups, 0.0),
}
THEIRS: dict[str, Callable[[Groups], torch.optim.Optimizer]] = {
    "adam": torch.optim.AdamW,
    "sgd": lambda groups: torch.optim.SGD(groups, momentum=0.9),
    "sgd without momentum": torch.optim.SGD,
}


def groups(weights: list[torch.Tensor]) -> Groups:
    """Return groups with two rates and two decays, the last with the default decay."""
    return [
        {"params": [weights[0]], "lr": 1e-2, "weight_decay": 1e-2},
        {"params": [weights[1]], "lr": 1e-2, "weight_decay": 0.0},
        {"params": weights[2:], "lr": 3e-2},
    ]


def start() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = (7, 5), (5,), (4, 4), (3,)
    return [torch.randn(*shape, generator=generator).requires_grad_() for shape in shapes]


def backward(weights: list[torch.Tensor], step: int) -> None:
    value = sum((one * (step + 1)).sin().sum() for one in weights)
    assert isinstance(value, torch.Tensor)
    value.backward()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("kind", OURS)
def test_results_equal_those_of_torch_optim(kind: str) -> None:
    own, theirs = start(), start()
    ours, reference = OURS[kind](groups(own)), THEIRS[kind](groups(theirs))
    for step in range(25):
        for optimizer, weights in ((ours, own), (reference, theirs)):
            for group in optimizer.param_groups:
                group["lr"] *= 0.97
            optimizer.zero_grad()
            backward(weights, step)
            optimizer.step()
    for one, other in zip(own, theirs, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("kind", OURS)
def test_a_restored_optimizer_continues_exactly(kind: str) -> None:
    weights = start()
    first = OURS[kind](groups(weights))
    for step in range(5):
        first.zero_grad()
        backward(weights, step)
        first.step()
    copies = [one.detach().clone().requires_grad_() for one in weights]
    second = OURS[kind](groups(copies))
    second.restore({name: value.clone() for name, value in first.state().items()})
    for optimizer, own in ((first, weights), (second, copies)):
        for step in range(5, 8):
            optimizer.zero_grad()
            backward(own, step)
            optimizer.step()
    for one, other in zip(weights, copies, strict=True):
        assert torch.equal(one, other)


def test_a_parameter_without_a_gradient_does_not_change() -> None:
    trained, frozen = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    optimizer = AdamW([{"params": [frozen, trained], "lr": 0.1}])
    trained.sum().backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    assert torch.equal(frozen, torch.ones(3))
    assert not torch.equal(trained, torch.ones(3))


def test_training_does_not_import_the_compiler() -> None:
    program = """
import sys
import numpy as np
from transhash.data.relation import LabelRelation
from transhash.data.training_set import TrainingSet
from transhash.hashers import THN
rng = np.random.default_rng(0)
x, y = rng.standard_normal((60, 8)), rng.standard_normal((60, 8))
classes = (np.arange(60) % 3).tolist()
relation = LabelRelation.from_classes(classes, classes)
THN(bits=8, steps=3, batch_size=16).fit(TrainingSet(x, y, relation, x, y))
assert "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)
