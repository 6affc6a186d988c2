"""THN, the Transitive Hashing Network: C = L + λQ + µ(D_q + D_d)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from transhash.codes import Codes
from transhash.data.training import Features, TrainingSet
from transhash.errors import DataError
from transhash.hashers.base import Array, Setting
from transhash.hashers.deep import DeepHasher
from transhash.hashers.losses import (
    WIDTHS,
    alignment_loss,
)
from transhash.hashers.thn.objective import Objective
from transhash.hashers.thn.start import best_frame, calibrate
from transhash.hashers.thn.transfer import Bridge, Canonical, Inputs, plain
from transhash.hashers.towers import Head, parameter_groups
from transhash.hashers.training import (
    Average,
    Checkpoint,
    Metrics,
    Optimizer,
    Policy,
    collapse,
    fingerprint,
    log,
    make_optimizer,
    rate_factor,
    set_rate,
    step_seed,
)
from transhash.hashers.world import ALONE, World
from transhash.progress import Track, silent

_LOOKS = 10  # how often in a training the codes are looked at and a checkpoint is kept
_SELDOM = 1000  # steps after which that is done anyway: what a long training may lose


# The paper's words, and where it is silent spec-like readings of its authors' Caffe files.
PAPER: dict[str, Any] = {
    "image_hidden": (512,),
    "text_hidden": (1000, 500),
    "dropout": 0.0,
    "quantization_weight": 1e-2,
    "quantization_start": 0.0,
    "quantize_target": False,
    "alignment_weight": 1.0,
    "alignment_ramp": 0.0,
    "kernel_widths": (1.0,),
    "balanced": False,
    "logit_scale": 1.0,
    "soft_share": 0.0,
    "inherited_weight": 0.0,
    "inputs": "features",
    "steps": 1000,
    "batch": 128,
    "optimizer": "sgd",
    "learning_rate": 1e-2,
    "policy": "inv",
    "fch_multiplier": 10.0,
    "weight_decay": 5e-4,
    "averaging": 0.0,
    "rescue": False,
}


@dataclass
class THN(DeepHasher):
    """The paper's method. docs/method.md gives the evidence for each default marked "ours"."""

    image_hidden: tuple[int, ...] = (128,)  # ours: beside the linear path of a Head
    text_hidden: tuple[int, ...] = (128,)  # ours; (1000, 500) in the paper
    dropout: float = 0.2
    loss: Literal["cross-entropy", "inner-product"] = "cross-entropy"  # inner-product: THN-ip
    quantization_weight: float = 1e-3  # λ; 0: THN-Q
    quantization_start: float = 0.5  # ours: share of the steps before Q sets in
    quantize_target: bool = True  # ours: Q on target items too; paper: auxiliary only
    alignment_weight: float = 0.3  # µ; 0: THN-D, no use of unlabelled target data at all
    alignment_ramp: float = 0.5  # ours: share of the steps over which µ grows to its value
    kernel_widths: tuple[float, ...] = WIDTHS  # ours; (1.0,) is the single Gaussian of the paper
    balanced: bool = True  # ours: related and unrelated pairs weigh alike; paper: not
    logit_scale: float | None = None  # ours: 3 / bits, at most 0.15; 1 in the paper
    soft_share: float = 0.5  # ours: how much of s_ij is its calibrated probability; paper: 0
    inherited_weight: float = 1.0  # ours: L on pairs with target items; paper: 0
    inputs: Literal["canonical", "features"] = "canonical"  # ours; paper: features
    ridge: float = 0.05  # ours: of the canonical layer, relative to the largest variance
    rank: int | None = None  # ours: canonical coordinates, None: as many as hold up left out
    rounds: int = 4  # ours: how often target items are matched with auxiliary ones
    temperature: float = 0.05  # ours: of that matching
    centring: float = 0.5  # ours: 0 gives both domains one mean, 1 only what is matched
    frames: int = 4  # ours: rotations tried for the linear path, the best is trained
    steps: int = 300
    batch: int = 256  # auxiliary images, and as many texts, a step
    target_batch: int = 128  # unlabelled target images, and as many texts, a step
    optimizer: Optimizer = "adam"  # ours; paper: sgd
    learning_rate: float = 1e-3
    policy: Policy = "cosine"  # ours; paper: inv or step
    fch_multiplier: float = 1.0  # 10 in the paper, where the layers below are pre-trained
    weight_decay: float = 1e-4
    averaging: float = 0.98  # ours: decay of the weights' moving average, 0: none
    rescue: bool = True  # on collapse, go on without Q and D, and say so

    name: ClassVar[str] = "THN"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.kernel_widths = tuple(self.kernel_widths)

    @classmethod
    def paper(cls, **settings: Any) -> THN:
        """The recipe as printed: unweighted pairs, λ and µ from the start, SGD 0.9, features."""
        return cls(**{**PAPER, **settings})

    def fit(
        self,
        training: TrainingSet,
        *,
        folder: Path | None = None,
        track: Track = silent,
        world: World = ALONE,
    ) -> Self:
        """Minimise C; with `folder`, metrics and checkpoints are kept there and resumed from."""
        self.check(world)
        self.bridge_, inputs = self._prepare(training, world)
        self.gap_ = feature_gaps(training)
        towers = self.build_towers(inputs.images.shape[1:], inputs.texts.shape[1:])
        if self.frames and inputs.calibration is not None:
            frame = world.first(lambda: best_frame(inputs, self.bits, self.frames, self.seed))
            self._start_from_frame(towers, frame)
        parameters = list(towers.parameters())
        optimizer = make_optimizer(self.optimizer, self._groups(towers))
        average = Average(parameters, self.averaging) if self.averaging else None
        checkpoint = None
        start = 0
        if folder is not None:
            settings = {k: v for k, v in self.settings().items() if k not in ("device", "steps")}
            data = (training.images, training.texts, training.target_images, training.target_texts)
            checkpoint = Checkpoint(folder, fingerprint(settings | {"steps": self.steps}, data))
            start = checkpoint.load(towers, optimizer, average)
            if world.first(lambda: start) != start:
                raise DataError(
                    f"process {world.rank} finds a checkpoint of step {start} in {folder}, the "
                    "first process another; give a folder that all machines see"
                )
        metrics = Metrics(folder if world.rank == 0 else None, start)
        objective = Objective(self, inputs, training.relation)
        self.alarms_: list[str] = []
        towers.train()
        span = track(range(start, self.steps), f"training {self.bits} bits", self.steps, start)
        with torch.random.fork_rng():  # dropout is seeded by step; the user's generators stay
            for step in span:
                terms = self._step(towers, optimizer, objective, step, world)
                if average:
                    average.update(parameters, step)
                metrics.write(step, terms)
                if (step + 1) % max(1, min(self.steps // _LOOKS, _SELDOM)) == 0:
                    self._look(towers, objective, step, quiet=world.rank > 0)
                    metrics.flush()  # before the checkpoint, which a resumed run goes on from
                    if checkpoint and world.rank == 0 and checkpoint.due():
                        checkpoint.save(step + 1, towers, optimizer, average)
        metrics.close()
        if average:
            average.copy_to(parameters)
        self.towers_ = towers.eval()
        self._report(objective)
        if checkpoint and world.rank == 0:
            checkpoint.remove()
        world.barrier()
        return self

    def _step(
        self,
        towers: nn.ModuleDict,
        optimizer: torch.optim.Optimizer,
        objective: Objective,
        step: int,
        world: World,
    ) -> dict[str, Tensor]:
        """One step down C; returns its terms and their sum."""
        parameters = list(towers.parameters())
        set_rate(optimizer, rate_factor(self.policy, step, self.steps))
        torch.manual_seed(step_seed(self.seed, step, world.rank))
        with self.autocast():
            terms = objective.terms(towers, step, world)
        total = torch.stack(list(terms.values())).sum()
        optimizer.zero_grad()
        total.backward()  # type: ignore[no-untyped-call]
        world.sum_gradients(parameters)
        # Q's gradient is unbounded near 0; one bad batch must not throw the weights away.
        torch.nn.utils.clip_grad_norm_(parameters, 5.0)
        optimizer.step()
        return {**terms, "objective": total}

    def scale(self) -> float:
        """What multiplies <z_x, z_y> in L: codes reach ±b, log odds of relations about ±3."""
        return min(0.15, 3.0 / self.bits) if self.logit_scale is None else self.logit_scale

    def _prepare(self, training: TrainingSet, world: World) -> tuple[Bridge, Inputs]:
        if self.inputs == "features" or training.images.ndim > 2:
            return plain(training, self.alignment_weight > 0)
        layer = Canonical(
            self.ridge, self.rank, self.rounds, self.temperature, self.centring, self.seed
        )

        def build() -> tuple[Bridge, Inputs]:
            bridge, inputs = layer.build(training, self.alignment_weight > 0)
            found = calibrate(inputs.images, inputs.texts, training.relation, self.seed)
            return bridge, replace(inputs, calibration=found)

        return world.first(build)

    def feature_tower(self, inputs: int, hidden: tuple[int, ...]) -> nn.Module:
        if self.inputs == "features":
            return super().feature_tower(inputs, hidden)
        return Head(inputs, hidden[0], self.bits, self.dropout)

    def _start_from_frame(self, towers: nn.ModuleDict, frame: Tensor) -> None:
        """Both linear paths begin as one rotation that binarises the coordinates well."""
        with torch.no_grad():
            for tower in towers.values():
                assert isinstance(tower, Head)
                tower.straight.weight.copy_(frame.T)
                tower.fch.weight.mul_(0.1)  # the hidden layer begins as a small correction

    def _groups(self, towers: nn.ModuleDict) -> Iterable[dict[str, Any]]:
        for tower in towers.values():
            yield from parameter_groups(
                tower, self.learning_rate, self.fch_multiplier, self.weight_decay
            )

    def _look(
        self, towers: nn.ModuleDict, objective: Objective, step: int, quiet: bool = False
    ) -> None:
        """Raise the alarm if codes have collapsed; with `rescue`, go on without Q and D."""
        towers.eval()
        found = None
        # Each modality by itself: two constant codes, one a modality, look alive together.
        for name, inputs in (("image", objective.images), ("text", objective.texts)):
            with torch.inference_mode(), self.autocast():
                z = towers[name](inputs[:256]).float().cpu().numpy()
            sentence = collapse(Codes.from_projections(z))
            found = found or (sentence and f"{name} {sentence}")
        towers.train()
        if not found or self.alarms_:  # said once; what is done about it is done once
            return
        advice = "try balanced=True, a smaller quantization_weight or another learning_rate"
        if self.rescue and objective.regularised:
            objective.regularised = False
            advice = "quantization and alignment are switched off for the rest; " + advice
        self.alarms_.append(f"at step {step + 1} {found}; {advice}")
        if not quiet:
            log.warning(self.alarms_[-1])

    def _report(self, objective: Objective) -> None:
        """MMD² of auxiliary and target items, before in the features and after in the codes."""
        self.alignment_: dict[str, dict[str, float]] = {}
        if not objective.has_target:
            return
        for name, own, target in (
            ("images", objective.images, objective.target_images),
            ("texts", objective.texts, objective.target_texts),
        ):
            tower = self.towers_["image" if name == "images" else "text"]
            with torch.inference_mode(), self.autocast():
                own, target = own[:1000], target[:1000]
                after = alignment_loss(torch.tanh(tower(own)), torch.tanh(tower(target)))
            self.alignment_[name] = {"before": self.gap_[name], "after": float(after)}

    def project_images(self, images: Features) -> npt.NDArray[np.float32]:
        return self._project("image", images, target=True)

    def project_texts(self, texts: Features) -> npt.NDArray[np.float32]:
        return self._project("text", texts, target=True)

    def held_out_projections(self, images: Features, texts: Features) -> tuple[Array, Array]:
        """Auxiliary items, which have a centre of their own."""
        return self._project("image", images, False), self._project("text", texts, False)

    def _project(self, name: str, rows: Features, target: bool) -> npt.NDArray[np.float32]:
        if not hasattr(self, "bridge_"):
            raise self.unfitted()
        view = self.bridge_.image if name == "image" else self.bridge_.text
        return self.run_tower(name, rows if view is None else view.apply(rows, target))

    def state(self) -> dict[str, Array]:
        return {**self.tower_state(), **self.bridge_.state()}

    def restore(self, state: Mapping[str, Array]) -> Self:
        self.bridge_ = Bridge.restore(state)
        return self.restore_towers(state)

    @classmethod
    def candidates(cls) -> Iterable[Setting]:
        """The paper cross-validates the learning rate, 1e-5 to 1e-1 by half decades."""
        for exponent in (-5, -7, -4, -8, -3, -9, -2, -10):  # from the default's neighbours on
            yield {"learning_rate": round(10 ** (exponent / 2), 8)}

    def check(self, world: World) -> None:
        """Refuse what cannot be trained by these processes."""
        if self.steps < 1:
            raise DataError(f"steps must be 1 or more, got {self.steps}")
        world.check_batch(self.batch)
        world.check_batch(self.target_batch)


def feature_gaps(training: TrainingSet) -> dict[str, float]:
    """MMD² between auxiliary and target features of each modality, 0 without target."""
    gaps = {}
    for name, own, target in (
        ("images", training.images, training.target_images),
        ("texts", training.texts, training.target_texts),
    ):
        gaps[name] = 0.0
        if target is not None:
            a, b = (
                torch.from_numpy(part[:1000].reshape(len(part[:1000]), -1).astype(np.float32))
                for part in (own, target)
            )
            gaps[name] = float(alignment_loss(a, b))
    return gaps
