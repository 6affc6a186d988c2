"""Parts of training loops: optimizers, learning-rate schedules, averaging, checkpoints, logs."""

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
from transhash.storage import make_folder, read_tensors, write_tensors

_log = logging.getLogger("transhash")
_BETAS = 0.9, 0.999  # of AdamW
_EPSILON = 1e-8
_WEIGHT_DECAY = 0.01  # of AdamW, unless a group sets it
_MAX_LOG_DELAY = 1.0  # seconds until a loss is written
_MAX_HASHED_BYTES = 1 << 28  # of one array in a fingerprint

LrSchedule = Literal["inv", "step", "cosine", "fixed"]
Optimizer = Literal["sgd", "adam"]


class ParameterGroup(NamedTuple):
    """Parameters with the same rate and decay, with their gradients and optimizer state."""

    parameters: list[Tensor]
    gradients: list[Tensor]
    state: Mapping[str, list[Tensor]]
    rate: float
    decay: float


class ForeachOptimizer:
    """The base of SGD and AdamW, with the results of torch.optim bit for bit.

    The first optimizer of torch.optim imports torch's compiler, which takes 1.5 s and 80 MB. These
    do the same operations in the same order, on lists of tensors, so that a step on a GPU is a few
    kernel launches.
    """

    slots: tuple[str, ...] = ()  # named as in torch.optim; checkpoints use these names
    default_decay = 0.0

    def __init__(self, groups: Iterable[Mapping[str, Any]]) -> None:
        self.param_groups = [
            {"weight_decay": self.default_decay, **group, "params": list(group["params"])}
            for group in groups
        ]
        self.parameters: list[Tensor] = [
            one for group in self.param_groups for one in group["params"]
        ]
        self.steps = 0
        self.slot_values: dict[str, list[Tensor]] = {}

    def zero_grad(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        if not self.slot_values:
            self.slot_values = {
                slot: [torch.zeros_like(one) for one in self.parameters] for slot in self.slots
            }
        self.steps += 1
        for (rate, decay), numbers in self._by_rate_and_decay().items():
            parameters = [self.parameters[number] for number in numbers]
            gradients = [one.grad for one in parameters if one.grad is not None]
            state = {
                slot: [values[number] for number in numbers]
                for slot, values in self.slot_values.items()
            }
            self.update(ParameterGroup(parameters, gradients, state, rate, decay))

    def update(self, group: ParameterGroup) -> None:
        """Change parameters and state in place."""
        raise NotImplementedError

    def state(self) -> dict[str, Tensor]:
        """Return the state by parameter number and slot."""
        state = {
            f"{number}.{slot}": value
            for slot, values in self.slot_values.items()
            for number, value in enumerate(values)
        }
        if self.slot_values:
            state["0.step"] = torch.tensor(float(self.steps))
        return state

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Continue from the result of `state`."""
        if "0.step" not in state:
            return
        self.steps = int(state["0.step"])
        self.slot_values = {
            slot: [
                state[f"{number}.{slot}"].to(one.device)
                for number, one in enumerate(self.parameters)
            ]
            for slot in self.slots
        }

    def _by_rate_and_decay(self) -> dict[tuple[float, float], list[int]]:
        """Return the numbers of the parameters that have a gradient."""
        numbers: dict[tuple[float, float], list[int]] = {}
        number = 0
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    numbers.setdefault((group["lr"], group["weight_decay"]), []).append(number)
                number += 1
        return numbers


class SGD(ForeachOptimizer):
    """v <- m v + g + decay w, w <- w - rate v."""

    slots = ("momentum_buffer",)

    def __init__(self, groups: Iterable[Mapping[str, Any]], momentum: float) -> None:
        super().__init__(groups)
        self.momentum = momentum

    def update(self, group: ParameterGroup) -> None:
        parameters, gradients, state, rate, decay = group
        if decay:
            gradients = list(torch._foreach_add(gradients, parameters, alpha=decay))
        buffers = state["momentum_buffer"]
        torch._foreach_mul_(buffers, self.momentum)
        torch._foreach_add_(buffers, gradients)
        torch._foreach_add_(parameters, buffers, alpha=-rate)


class AdamW(ForeachOptimizer):
    """Adam with decoupled weight decay."""

    slots = ("exp_avg", "exp_avg_sq")
    default_decay = _WEIGHT_DECAY

    def update(self, group: ParameterGroup) -> None:
        parameters, gradients, state, rate, decay = group
        first, second = _BETAS
        mean, square = state["exp_avg"], state["exp_avg_sq"]
        if decay:
            torch._foreach_mul_(parameters, 1 - rate * decay)
        torch._foreach_lerp_(mean, gradients, 1 - first)
        torch._foreach_mul_(square, second)
        torch._foreach_addcmul_(square, gradients, gradients, 1 - second)
        size = torch._foreach_sqrt(square)
        torch._foreach_div_(size, (1 - second**self.steps) ** 0.5)
        torch._foreach_add_(size, _EPSILON)
        torch._foreach_addcdiv_(parameters, mean, size, -rate / (1 - first**self.steps))


def lr_factor(schedule: LrSchedule, step: int, steps: int) -> float:
    """Return the factor of the learning rate at a step.

    `inv` and `step` are Caffe's: (1 + 0.002 t)^-0.75, and one half every 2,000 steps.
    `cosine` is ours: 20 steps of warm-up, then half a cosine down to 0.
    """
    if schedule == "inv":
        return float((1.0 + 0.002 * step) ** -0.75)
    if schedule == "step":
        return float(0.5 ** (step // 2000))
    if schedule == "cosine":
        return min(1.0, (step + 1) / 20) * 0.5 * (1.0 + math.cos(math.pi * step / steps))
    return 1.0


def make_optimizer(
    name: Optimizer, groups: Iterable[dict[str, Any]], momentum: float = 0.9
) -> ForeachOptimizer:
    """Return SGD with momentum 0.9 (the paper) or Adam with decoupled weight decay."""
    return SGD(groups, momentum) if name == "sgd" else AdamW(groups)


def set_rate(optimizer: ForeachOptimizer, factor: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = group["base"] * factor


def draw(n: int, size: int, seed: int, step: int, stream: int) -> npt.NDArray[np.int64]:
    """Draw the rows of one batch, by seed and step alone, so that resuming is exact."""
    return np.random.default_rng([seed, step, stream]).integers(0, n, size)


def step_seed(seed: int, step: int, rank: int = 0) -> int:
    """Return the seed of a step's dropout."""
    return int(np.random.SeedSequence([seed, step, rank, 0xD0]).generate_state(1)[0])


class WeightAverage:
    """Exponential moving average of the weights, which replaces them after training."""

    def __init__(self, parameters: Sequence[Tensor], decay: float) -> None:
        self.decay = decay
        self.values = [parameter.detach().clone() for parameter in parameters]

    @torch.no_grad()
    def update(self, parameters: Sequence[Tensor], step: int) -> None:
        # Early weights are poor, so the averaging window starts short.
        decay = min(self.decay, (step + 1) / (step + 10))
        torch._foreach_lerp_(self.values, list(parameters), 1.0 - decay)

    @torch.no_grad()
    def copy_to(self, parameters: Sequence[Tensor]) -> None:
        for value, parameter in zip(self.values, parameters, strict=True):
            parameter.copy_(value)


@torch.no_grad()
def check_finite_weights(values: Iterable[Tensor], when: str, learning_rate: float) -> None:
    """Raise a DataError if training diverged."""
    if not all(bool((value.abs() <= MAX_ABS_VALUE).all()) for value in values):  # also for NaN
        raise diverged_error(when, learning_rate)


def diverged_error(when: str, learning_rate: float) -> DataError:
    return DataError(f"Training diverged {when}. Use a learning_rate below {learning_rate:g}.")


def fingerprint(settings: Mapping[str, Any], training: TrainingSet) -> str:
    """Return a name of a training by its settings, data and relation, to resume no other."""
    digest = hashlib.blake2b(json.dumps(settings, sort_keys=True, default=str).encode())
    for array in (
        training.images, training.texts, training.target_images, training.target_texts
    ):  # fmt: skip
        if array is not None:
            digest.update(str((array.shape, array.dtype)).encode())
            step = max(1, array.nbytes // _MAX_HASHED_BYTES)  # of rows, to take less than seconds
            digest.update(np.ascontiguousarray(array[::step]).tobytes())
    relation = training.relation
    n, m = relation.shape
    # Sums over random halves of the texts: a different relation almost surely has different sums.
    halves = np.random.default_rng(0).integers(0, 2, (m, 8)).astype(np.float64)
    digest.update(relation.times(halves).tobytes())
    rows, columns = (np.arange(size)[:: max(1, size // 256)] for size in (n, m))
    _, known = relation.block(rows, columns)
    digest.update(str((n, m, relation.positives, relation.known)).encode())
    digest.update(b"" if known is None else known.tobytes())
    return digest.hexdigest()[:32]


class Checkpoint:
    """Step, weights, optimizer state and average in one file, replaced atomically."""

    def __init__(self, folder: Path, name: str) -> None:
        self.path = folder / "checkpoint.safetensors"
        self.name = np.frombuffer(name.encode(), dtype=np.uint8)
        self._seconds = self._saved_at = 0.0

    def is_due(self) -> bool:
        """Whether to save now; saving takes at most a twentieth of the time."""
        return time.monotonic() - self._saved_at >= 20 * self._seconds

    def save(
        self,
        step: int,
        modules: nn.ModuleDict,
        optimizer: ForeachOptimizer,
        average: WeightAverage | None,
        warnings: Sequence[str] = (),
    ) -> None:
        tensors: dict[str, npt.NDArray[Any]] = {"step": np.array(step), "name": self.name}
        tensors["warnings"] = np.frombuffer(json.dumps(list(warnings)).encode(), np.uint8)
        for name, value in modules.state_dict().items():
            tensors[f"model.{name}"] = value.detach().cpu().numpy()
        for name, value in optimizer.state().items():
            tensors[f"optimizer.{name}"] = value.cpu().numpy()
        for number, value in enumerate(average.values if average else ()):
            tensors[f"average.{number}"] = value.cpu().numpy()
        start = time.monotonic()
        write_tensors(self.path, {**tensors, "digest": _tensor_digest(tensors)})
        self._saved_at = time.monotonic()
        self._seconds = self._saved_at - start

    def load(
        self, modules: nn.ModuleDict, optimizer: ForeachOptimizer, average: WeightAverage | None
    ) -> int:
        """Return the step to resume from; 0 without a checkpoint of the same training."""
        self.warnings: list[str] = []  # of the steps before
        if not self.path.exists():
            return 0
        try:
            tensors = read_tensors(self.path)
        except DataError:
            tensors = {}
        digest = tensors.pop("digest", None)
        if digest is None or not np.array_equal(digest, _tensor_digest(tensors)):
            _log.warning("%s is corrupt. Training starts from step 0.", self.path)
            return 0
        if not np.array_equal(tensors.get("name", np.zeros(0)), self.name):
            _log.warning("%s is of other settings or data. Training starts from step 0.", self.path)
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
        self.warnings = json.loads(tensors["warnings"].tobytes())
        return int(tensors["step"])

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)


def _tensor_digest(tensors: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[np.uint8]:
    digest = hashlib.blake2b(digest_size=16)
    for name, value in sorted(tensors.items()):
        digest.update(f"{name} {value.dtype.str} {value.shape} ".encode())
        digest.update(np.ascontiguousarray(value).tobytes())
    return np.frombuffer(digest.digest(), np.uint8)


class TrainingLog:
    """Writes the named losses of every step to metrics.jsonl."""

    def __init__(self, folder: Path | None, start: int) -> None:
        self.file = None
        self.pending: list[tuple[int, dict[str, Tensor]]] = []
        self._flushed_at = time.monotonic()
        if folder is None:
            return
        self.path = path = folder / "metrics.jsonl"
        lines = []
        if start and path.exists():
            # A killed run may have logged steps after its last checkpoint; they run again.
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
                try:
                    if json.loads(line)["step"] < start:
                        lines.append(line)
                except (ValueError, KeyError, TypeError):
                    continue
        with self._write_errors():
            make_folder(folder)
            path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
            self.file = path.open("a", encoding="utf-8")

    def write(self, step: int, values: Mapping[str, Tensor]) -> None:
        if self.file is None:
            return
        self.pending.append((step, {name: value.detach() for name, value in values.items()}))
        if len(self.pending) >= 50 or time.monotonic() - self._flushed_at >= _MAX_LOG_DELAY:
            self.flush()

    def flush(self) -> None:
        """Write pending losses; reading each from a GPU at once would make it wait."""
        if self.file is None or not self.pending:
            return
        numbers = torch.stack([v for _, row in self.pending for v in row.values()]).tolist()
        with self._write_errors():
            for step, row in self.pending:
                values = {name: round(numbers.pop(0), 6) for name in row}
                self.file.write(json.dumps({"step": step, **values}) + "\n")
            self.pending.clear()
            self.file.flush()
        self._flushed_at = time.monotonic()

    def discard(self) -> None:
        """Delete the log of a failed training, and its folder if empty."""
        if self.file is not None:
            self.file.close()
            self.path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                self.path.parent.rmdir()

    def close(self) -> None:
        if self.file is not None:
            self.flush()
            with self._write_errors():
                os.fsync(self.file.fileno())
                self.file.close()

    @contextlib.contextmanager
    def _write_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise EngineError(
                f"{self.path} cannot be written ({error.strerror}). Free disk space or choose "
                "another folder, then rerun the same command to resume."
            ) from None


def collapse_warning(codes: Codes) -> str | None:
    """Return a description if the codes have collapsed to few values, else None."""
    if len(codes) < 8:
        return None
    distinct = codes.distinct()
    balance = codes.bit_balance()
    constant = int(((balance < 0.005) | (balance > 0.995)).sum())
    # Two classes need two codes, so few distinct codes alone are not a collapse; one code is.
    if distinct < 2 or constant > codes.bits // 2:
        return (
            f"codes collapsed: {distinct} distinct code{'s'[: distinct != 1]} among {len(codes)} "
            f"items, {constant} of {codes.bits} bits constant"
        )
    return None
