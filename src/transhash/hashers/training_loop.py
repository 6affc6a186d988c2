"""Training in plain functions: batches, learning-rate policies, checkpoints, the collapse alarm."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from transhash.codes import Codes
from transhash.data.training_set import MAX_ABS_VALUE, TrainingSet
from transhash.errors import DataError, EngineError
from transhash.storage import read_tensors, write_tensors

# SGD with momentum and AdamW: the digits of torch.optim's, without what it imports.
#
# The first optimizer of torch.optim that is made imports torch's compiler, 1.5 s and 80 MB that
# nothing here asks for. These two are the same operations in the same order, on lists of tensors
# instead of one after the other, so on a GPU a step is a few launches.

_BETAS = 0.9, 0.999  # of AdamW, as is usual
_EPSILON = 1e-8
_DECAY = 0.01  # of AdamW's weights, where a group does not say


class ParameterGroup(NamedTuple):
    """Parameters of one rate and decay, and what is remembered of them."""

    parameters: list[Tensor]
    gradients: list[Tensor]
    memory: Mapping[str, list[Tensor]]
    rate: float
    decay: float


class ForeachOptimizer:
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
            self.update(ParameterGroup(parameters, gradients, memory, rate, decay))

    def update(self, some: ParameterGroup) -> None:
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


class SGD(ForeachOptimizer):
    """SGD: v <- m v + g + decay w, w <- w - rate v."""

    slots = ("momentum_buffer",)

    def __init__(self, groups: Iterable[Mapping[str, Any]], momentum: float) -> None:
        super().__init__(groups)
        self.momentum = momentum

    def update(self, some: ParameterGroup) -> None:
        parameters, gradients, memory, rate, decay = some
        if decay:
            gradients = list(torch._foreach_add(gradients, parameters, alpha=decay))
        buffers = memory["momentum_buffer"]
        torch._foreach_mul_(buffers, self.momentum)
        torch._foreach_add_(buffers, gradients)
        torch._foreach_add_(parameters, buffers, alpha=-rate)


class AdamW(ForeachOptimizer):
    """Adam whose weight decay is beside the gradient."""

    slots = ("exp_avg", "exp_avg_sq")
    decay = _DECAY

    def update(self, some: ParameterGroup) -> None:
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


_log = logging.getLogger("transhash")
_LOG_SECONDS = 1.0  # that a loss may wait to be written
_HASHED = 1 << 28  # bytes of an array that name it

Policy = Literal["inv", "step", "cosine", "fixed"]
Optimizer = Literal["sgd", "adam"]


def lr_factor(policy: Policy, step: int, steps: int) -> float:
    """What the learning rate is multiplied by at a step.

    `inv` and `step` are Caffe's: (1 + 0.002 t)^-0.75, and one half every 2,000 steps.
    `cosine` is ours: 20 steps of warm-up, then half a cosine down to 0.
    """
    if policy == "inv":
        return float((1.0 + 0.002 * step) ** -0.75)
    if policy == "step":
        return float(0.5 ** (step // 2000))
    if policy == "cosine":
        return min(1.0, (step + 1) / 20) * 0.5 * (1.0 + math.cos(math.pi * step / steps))
    return 1.0


def make_optimizer(
    kind: Optimizer, groups: Iterable[dict[str, Any]], momentum: float = 0.9
) -> ForeachOptimizer:
    """SGD with momentum 0.9 (the paper) or Adam with decoupled weight decay."""
    return SGD(groups, momentum) if kind == "sgd" else AdamW(groups)


def set_rate(optimizer: ForeachOptimizer, factor: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = group["base"] * factor


def draw(n: int, size: int, seed: int, step: int, stream: int) -> npt.NDArray[np.int64]:
    """Rows of one batch. A step's draw depends on nothing before it, so resuming is exact."""
    return np.random.default_rng([seed, step, stream]).integers(0, n, size)


def step_seed(seed: int, step: int, rank: int = 0) -> int:
    """The seed of a step's dropout."""
    return int(np.random.SeedSequence([seed, step, rank, 0xD0]).generate_state(1)[0])


class WeightAverage:
    """Exponential moving average of weights: what is used after training."""

    def __init__(self, parameters: Sequence[Tensor], decay: float) -> None:
        self.decay = decay
        self.values = [parameter.detach().clone() for parameter in parameters]

    @torch.no_grad()
    def update(self, parameters: Sequence[Tensor], step: int) -> None:
        # Early weights are poor, so the average starts short and lengthens.
        keep = min(self.decay, (step + 1) / (step + 10))
        torch._foreach_lerp_(self.values, list(parameters), 1.0 - keep)  # one launch for all

    @torch.no_grad()
    def copy_to(self, parameters: Sequence[Tensor]) -> None:
        for value, parameter in zip(self.values, parameters, strict=True):
            parameter.copy_(value)


@torch.no_grad()
def check_finite_weights(values: Iterable[Tensor], when: str, learning_rate: float) -> None:
    """Refuse what a training that diverged has learned."""
    if not all(bool((value.abs() <= MAX_ABS_VALUE).all()) for value in values):  # nor is NaN
        raise DataError(
            f"the training diverged: {when} what it learns grew beyond bounds; use a "
            f"learning_rate below {learning_rate:g}"
        )


def fingerprint(settings: Mapping[str, Any], training: TrainingSet) -> str:
    """Names a training run by its settings, data and relation, so that no other is resumed."""
    digest = hashlib.blake2b(json.dumps(settings, sort_keys=True, default=str).encode())
    for array in (
        training.images, training.texts, training.target_images, training.target_texts
    ):  # fmt: skip
        if array is not None:
            digest.update(str((array.shape, array.dtype)).encode())
            step = max(1, array.nbytes // _HASHED)  # all rows, unless that takes seconds
            digest.update(np.ascontiguousarray(array[::step]).tobytes())
    relation = training.relation
    n, m = relation.shape
    # Sums over random halves of the texts: another relation has another sum almost surely.
    halves = np.random.default_rng(0).integers(0, 2, (m, 8)).astype(np.float64)
    digest.update(relation.times(halves).tobytes())
    rows, columns = (np.arange(size)[:: max(1, size // 256)] for size in (n, m))
    _, known = relation.block(rows, columns)
    digest.update(str((n, m, relation.positives, relation.known)).encode())
    digest.update(b"" if known is None else known.tobytes())
    return digest.hexdigest()[:32]


class Checkpoint:
    """step, weights, optimizer state and average in one file, replaced as a whole."""

    def __init__(self, folder: Path, name: str) -> None:
        self.path = folder / "checkpoint.safetensors"
        self.name = np.frombuffer(name.encode(), dtype=np.uint8)
        self._cost = self._last = 0.0

    def is_due(self) -> bool:
        """Saving takes at most a twentieth of the time, however large the towers are."""
        return time.monotonic() - self._last >= 20 * self._cost

    def save(
        self,
        step: int,
        modules: nn.ModuleDict,
        optimizer: ForeachOptimizer,
        average: WeightAverage | None,
    ) -> None:
        tensors: dict[str, npt.NDArray[Any]] = {"step": np.array(step), "name": self.name}
        for name, value in modules.state_dict().items():
            tensors[f"model.{name}"] = value.detach().cpu().numpy()
        for name, value in optimizer.state().items():
            tensors[f"optimizer.{name}"] = value.cpu().numpy()
        for number, value in enumerate(average.values if average else ()):
            tensors[f"average.{number}"] = value.cpu().numpy()
        start = time.monotonic()
        write_tensors(self.path, tensors)
        self._last = time.monotonic()
        self._cost = self._last - start

    def load(
        self, modules: nn.ModuleDict, optimizer: ForeachOptimizer, average: WeightAverage | None
    ) -> int:
        """The step to go on from: 0 if there is no checkpoint of this very run."""
        if not self.path.exists():
            return 0
        tensors = read_tensors(self.path)
        if not np.array_equal(tensors.get("name", np.zeros(0)), self.name):
            _log.warning("%s belongs to other settings or data; starting anew", self.path)
            return 0
        values = {name: torch.from_numpy(value.copy()) for name, value in tensors.items()}
        modules.load_state_dict(
            {name[6:]: value for name, value in values.items() if name.startswith("model.")}
        )
        optimizer.restore(
            {name[10:]: value for name, value in values.items() if name.startswith("optimizer.")}
        )
        for number, own in enumerate(average.values if average else ()):
            own.copy_(values[f"average.{number}"])
        return int(tensors["step"])

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)


class TrainingLog:
    """Named losses of every step, one JSON line each, in metrics.jsonl."""

    def __init__(self, folder: Path | None, start: int) -> None:
        self.file = None
        self.waiting: list[tuple[int, dict[str, Tensor]]] = []
        self._flushed = time.monotonic()
        if folder is None:
            return
        self.path = path = folder / "metrics.jsonl"
        kept = []
        if start and path.exists():
            # A killed run may have logged steps past its last checkpoint; they run again.
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
                try:
                    if json.loads(line)["step"] < start:
                        kept.append(line)
                except (ValueError, KeyError, TypeError):
                    continue
        with self._naming_the_file():
            folder.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(line + "\n" for line in kept), encoding="utf-8")
            self.file = path.open("a", encoding="utf-8")

    def write(self, step: int, values: Mapping[str, Tensor]) -> None:
        if self.file is None:
            return
        self.waiting.append((step, {name: value.detach() for name, value in values.items()}))
        if len(self.waiting) >= 50 or time.monotonic() - self._flushed >= _LOG_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Losses leave the device many at a time: fetching each would make a GPU wait."""
        if self.file is None or not self.waiting:
            return
        numbers = torch.stack([v for _, row in self.waiting for v in row.values()]).tolist()
        with self._naming_the_file():
            for step, row in self.waiting:
                values = {name: round(numbers.pop(0), 6) for name in row}
                self.file.write(json.dumps({"step": step, **values}) + "\n")
            self.waiting.clear()
            self.file.flush()
        self._flushed = time.monotonic()

    def discard(self) -> None:
        """Of a training that came to nothing, nothing is left."""
        if self.file is not None:
            self.file.close()
            self.path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # not empty: what was there before stays
                self.path.parent.rmdir()

    def close(self) -> None:
        if self.file is not None:
            self.flush()
            with self._naming_the_file():
                os.fsync(self.file.fileno())
                self.file.close()

    @contextlib.contextmanager
    def _naming_the_file(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise EngineError(
                f"cannot write {self.path} ({error.strerror}); make room or choose another place, "
                "then give the same command again: it goes on from the last checkpoint"
            ) from None


def collapse_warning(codes: Codes) -> str | None:
    """A sentence if the codes have collapsed, i.e. hardly tell items apart; else None."""
    if len(codes) < 8:
        return None
    distinct = codes.distinct()
    balance = codes.bit_balance()
    dead = int(((balance < 0.005) | (balance > 0.995)).sum())
    # Two classes need two codes, so few distinct codes alone is no alarm; one code is.
    if distinct < 2 or dead > codes.bits // 2:
        return (
            f"codes collapsed: {distinct} distinct code{'s'[: distinct != 1]} among {len(codes)} "
            f"items, {dead} of {codes.bits} bits never change"
        )
    return None
