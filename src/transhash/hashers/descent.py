"""SGD with momentum and AdamW: the digits of torch.optim's, without what it imports.

The first optimizer of torch.optim that is made imports torch's compiler, 1.5 s and 80 MB that
nothing here asks for. These two are the same operations in the same order, on lists of tensors
instead of one after the other, so on a GPU a step is a few launches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

_BETAS = 0.9, 0.999  # of AdamW, as is usual
_EPSILON = 1e-8
_DECAY = 0.01  # of AdamW's weights, where a group does not say


class Alike(NamedTuple):
    """Parameters of one rate and decay, and what is remembered of them."""

    parameters: list[Tensor]
    gradients: list[Tensor]
    memory: Mapping[str, list[Tensor]]
    rate: float
    decay: float


class Descent:
    """Groups of parameters, each with its rate, and what is remembered of each parameter."""

    slots: tuple[str, ...] = ()  # as torch.optim calls them; checkpoints have these names
    decay = 0.0

    def __init__(self, groups: Iterable[Mapping[str, Any]]) -> None:
        self.param_groups = [
            {"weight_decay": self.decay, **group, "params": list(group["params"])}
            for group in groups
        ]
        self.parameters: list[Tensor] = [
            one for group in self.param_groups for one in group["params"]
        ]
        self.taken = 0  # steps
        self.memory: dict[str, list[Tensor]] = {}

    def zero_grad(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """One step down the gradients that the parameters have."""
        if not self.memory:
            self.memory = {
                slot: [torch.zeros_like(one) for one in self.parameters] for slot in self.slots
            }
        self.taken += 1
        for (rate, decay), places in self._alike():
            parameters = [self.parameters[place] for place in places]
            gradients = [one.grad for one in parameters if one.grad is not None]
            memory = {slot: [kept[place] for place in places] for slot, kept in self.memory.items()}
            self.go(Alike(parameters, gradients, memory, rate, decay))

    def go(self, some: Alike) -> None:
        """Move parameters, and change what is remembered of them."""
        raise NotImplementedError

    def state(self) -> dict[str, Tensor]:
        """What is remembered, by number of the parameter and slot."""
        found = {
            f"{place}.{slot}": value
            for slot, kept in self.memory.items()
            for place, value in enumerate(kept)
        }
        if self.memory:
            found["0.step"] = torch.tensor(float(self.taken))
        return found

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """The inverse of `state`."""
        if "0.step" not in state:
            return
        self.taken = int(state["0.step"])
        self.memory = {
            slot: [
                state[f"{place}.{slot}"].to(own.device) for place, own in enumerate(self.parameters)
            ]
            for slot in self.slots
        }

    def _alike(self) -> Iterator[tuple[tuple[float, float], list[int]]]:
        """Places of the parameters that have a gradient, by rate and decay."""
        found: dict[tuple[float, float], list[int]] = {}
        place = 0
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    found.setdefault((group["lr"], group["weight_decay"]), []).append(place)
                place += 1
        yield from found.items()


class Momentum(Descent):
    """SGD: v <- m v + g + decay w, w <- w - rate v."""

    slots = ("momentum_buffer",)

    def __init__(self, groups: Iterable[Mapping[str, Any]], momentum: float) -> None:
        super().__init__(groups)
        self.momentum = momentum

    def go(self, some: Alike) -> None:
        parameters, gradients, memory, rate, decay = some
        if decay:
            gradients = list(torch._foreach_add(gradients, parameters, alpha=decay))
        buffers = memory["momentum_buffer"]
        torch._foreach_mul_(buffers, self.momentum)
        torch._foreach_add_(buffers, gradients)
        torch._foreach_add_(parameters, buffers, alpha=-rate)


class AdamW(Descent):
    """Adam whose weight decay is beside the gradient."""

    slots = ("exp_avg", "exp_avg_sq")
    decay = _DECAY

    def go(self, some: Alike) -> None:
        parameters, gradients, memory, rate, decay = some
        first, second = _BETAS
        mean, square = memory["exp_avg"], memory["exp_avg_sq"]
        if decay:
            torch._foreach_mul_(parameters, 1 - rate * decay)
        torch._foreach_lerp_(mean, gradients, 1 - first)
        torch._foreach_mul_(square, second)
        torch._foreach_addcmul_(square, gradients, gradients, 1 - second)
        size = torch._foreach_sqrt(square)
        torch._foreach_div_(size, (1 - second**self.taken) ** 0.5)
        torch._foreach_add_(size, _EPSILON)
        torch._foreach_addcdiv_(parameters, mean, size, -rate / (1 - first**self.taken))
