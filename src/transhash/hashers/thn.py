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
from torch.nn.functional import normalize

from transhash.codes import Codes
from transhash.data.relation import Relation, Rows
from transhash.data.training import Features, TrainingSet
from transhash.distributed import ALONE, World
from transhash.errors import DataError
from transhash.hashers.base import Array, Setting
from transhash.hashers.bridge import Bridge, Canonical, Inputs, plain
from transhash.hashers.calibration import best_frame, calibrate
from transhash.hashers.deep import DeepHasher
from transhash.losses import (
    WIDTHS,
    alignment_loss,
    inner_product_loss,
    pair_weights,
    quantization_loss,
    relation_loss,
)
from transhash.networks import Head, parameter_groups
from transhash.progress import Track, silent
from transhash.training import (
    Average,
    Checkpoint,
    Metrics,
    Optimizer,
    Policy,
    collapse,
    draw,
    fingerprint,
    log,
    make_optimizer,
    rate_factor,
    set_rate,
    step_seed,
)

_LOOKS = 10  # how often in a training the codes are looked at and a checkpoint is kept


# The paper's words, and where it is silent spec-like readings of its authors' Caffe files.
PAPER: dict[str, Any] = {
    "image_hidden": (512,),
    "text_hidden": (1000, 500),
    "dropout": 0.0,
    "quantization_weight": 1e-2,
    "quantization_start": 0.0,
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
    use_target: bool = True  # False: THN-D, no unlabelled target data at all
    quantization_weight: float = 1e-2  # λ; 0: THN-Q
    quantization_start: float = 0.5  # ours: share of the steps before Q sets in
    alignment_weight: float = 0.3  # µ
    alignment_ramp: float = 0.5  # ours: share of the steps over which µ grows to its value
    kernel_widths: tuple[float, ...] = WIDTHS  # ours; (1.0,) is the single Gaussian of the paper
    balanced: bool = True  # ours: related and unrelated pairs weigh alike; paper: not
    logit_scale: float | None = None  # ours: 5 / bits, at most 1/4; 1 in the paper
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
        self._check(world)
        self.bridge_, inputs = self._prepare(training)
        self.gap_ = feature_gaps(training)
        towers = self.build_towers(inputs.images.shape[1:], inputs.texts.shape[1:])
        if self.frames and inputs.calibration is not None:
            self._start_from_frame(towers, inputs)
        parameters = [p for p in towers.parameters() if p.requires_grad]
        optimizer = make_optimizer(self.optimizer, self._groups(towers))
        average = Average(parameters, self.averaging) if self.averaging else None
        checkpoint = None
        start = 0
        if folder is not None:
            settings = {k: v for k, v in self.settings().items() if k not in ("device", "steps")}
            data = (training.images, training.texts, training.target_images, training.target_texts)
            checkpoint = Checkpoint(folder, fingerprint(settings | {"steps": self.steps}, data))
            start = checkpoint.load(towers, optimizer, average)
        metrics = Metrics(folder if world.rank == 0 else None, start)
        on_device = _OnDevice(inputs, self)
        self.alarms_: list[str] = []
        towers.train()
        span = track(range(start, self.steps), f"training {self.bits} bits", self.steps, start)
        for step in span:
            set_rate(optimizer, rate_factor(self.policy, step, self.steps))
            with torch.random.fork_rng(), self.autocast():
                torch.manual_seed(step_seed(self.seed, step, world.rank))
                terms = self._terms(towers, on_device, training, step, world)
            total = torch.stack(list(terms.values())).sum()
            optimizer.zero_grad()
            total.backward()  # type: ignore[no-untyped-call]
            world.sum_gradients(parameters)
            # Q's gradient is unbounded near 0; one bad batch must not throw the weights away.
            torch.nn.utils.clip_grad_norm_(parameters, 5.0)
            optimizer.step()
            if average:
                average.update(parameters, step)
            if folder is not None:
                metrics.write(step, {**terms, "objective": total})
            if (step + 1) % max(1, self.steps // _LOOKS) == 0:
                self._look(towers, on_device, step)
                if checkpoint and world.rank == 0:
                    checkpoint.save(step + 1, towers, optimizer, average)
        metrics.close()
        if average:
            average.copy_to(parameters)
        self.towers_ = towers.eval()
        self._report(on_device)
        if checkpoint and world.rank == 0:
            checkpoint.remove()
        world.barrier()
        return self

    def _terms(
        self,
        towers: nn.ModuleDict,
        inputs: _OnDevice,
        training: TrainingSet,
        step: int,
        world: World,
    ) -> dict[str, Tensor]:
        """The weighted terms of C on the batch of one step, by name."""
        relation = training.relation
        rows, columns = self._draw_pairs(training, step)
        z_x = self._activations(towers["image"], inputs.images, rows, world)
        z_y = self._activations(towers["text"], inputs.texts, columns, world)
        rows, columns = world.shares(rows), world.shares(columns)
        s, known = relation.block(rows, columns)
        related = self.tensor(s)
        if self.soft_share and inputs.calibrated:
            guess = inputs.probability(inputs.images[rows], inputs.texts[columns])
            related = (1 - self.soft_share) * related + self.soft_share * guess
        weights = pair_weights(self._rate(relation, s, known), self.balanced)
        mask = None if known is None else self.tensor(known)
        terms = {"relation": self._relation(z_x, z_y, related, weights, mask)}
        if self._quantizing(step):
            terms["quantization"] = self.quantization_weight * (
                quantization_loss(z_x) + quantization_loss(z_y)
            )
        if not inputs.has_target:
            return terms
        t_rows = draw(len(inputs.target_images), self.target_batch, self.seed, step, 2)
        t_columns = draw(len(inputs.target_texts), self.target_batch, self.seed, step, 3)
        t_x = self._activations(towers["image"], inputs.target_images, t_rows, world)
        t_y = self._activations(towers["text"], inputs.target_texts, t_columns, world)
        if self.inherited_weight and inputs.calibrated:
            x, y = inputs.images[rows], inputs.texts[columns]
            far_x = inputs.target_images[world.shares(t_rows)]
            far_y = inputs.target_texts[world.shares(t_columns)]
            inherited = (
                self._relation(t_x, z_y, inputs.probability(far_x, y), weights)
                + self._relation(z_x, t_y, inputs.probability(x, far_y), weights)
                + self._relation(t_x, t_y, inputs.probability(far_x, far_y), weights)
            )
            terms["inherited"] = self.inherited_weight / 3 * inherited
        mu = self._alignment(step)
        if mu:
            half = self.target_batch  # as many auxiliary items as target ones
            for name, z, t, weight in (
                ("images", z_x, t_x, inputs.weight("image", rows)),
                ("texts", z_y, t_y, inputs.weight("text", columns)),
            ):
                share = None if weight is None else weight[:half] / weight[:half].sum()
                terms[f"alignment_{name}"] = mu * alignment_loss(
                    z[:half], t, self.kernel_widths, weight=share
                )
        return terms

    def _relation(
        self,
        z_x: Tensor,
        z_y: Tensor,
        s: Tensor,
        weights: tuple[float, float],
        known: Tensor | None = None,
    ) -> Tensor:
        if self.loss == "inner-product":
            return inner_product_loss(z_x, z_y, s, weights, known)
        scale = min(0.25, 5.0 / self.bits) if self.logit_scale is None else self.logit_scale
        return relation_loss(z_x, z_y, s, weights, known, scale)

    def _activations(self, tower: nn.Module, inputs: Tensor, rows: Rows, world: World) -> Tensor:
        share = torch.from_numpy(world.share(rows)).to(inputs.device)
        return world.gather(torch.tanh(tower(inputs[share]).float()))

    def _draw_pairs(self, training: TrainingSet, step: int) -> tuple[Rows, Rows]:
        n, m = training.relation.shape
        rows = draw(n, self.batch, self.seed, step, 0)
        columns = draw(m, self.batch, self.seed, step, 1)
        if self._sparse(training.relation):
            # Pairs and clicks are too rare to meet by chance: half the texts are partners.
            half = self.batch // 2
            rng = np.random.default_rng([self.seed, step, 4])
            columns[:half] = training.relation.partners(rows[:half], rng)
        return rows, columns

    def _sparse(self, relation: Relation) -> bool:
        n, m = relation.shape
        return relation.positives / (n * m) * self.batch < 1.0

    def _rate(
        self, relation: Relation, s: npt.NDArray[Any], known: npt.NDArray[Any] | None
    ) -> float:
        """Share of related pairs: of the whole relation, or of a batch drawn richer than it."""
        if not self._sparse(relation):
            return relation.positives / relation.known
        return float(s.mean() if known is None else s.sum() / max(known.sum(), 1.0))

    def _prepare(self, training: TrainingSet) -> tuple[Bridge, Inputs]:
        if self.inputs == "features" or training.images.ndim > 2:
            return plain(training, self.use_target)
        layer = Canonical(
            self.ridge, self.rank, self.rounds, self.temperature, self.centring, self.seed
        )
        bridge, inputs = layer.build(training, self.use_target)
        found = calibrate(inputs.images, inputs.texts, training.relation, self.seed)
        return bridge, replace(inputs, calibration=found)

    def feature_tower(self, inputs: int, hidden: tuple[int, ...]) -> nn.Module:
        if self.inputs == "features":
            return super().feature_tower(inputs, hidden)
        return Head(inputs, hidden[0], self.bits, self.dropout)

    def _start_from_frame(self, towers: nn.ModuleDict, inputs: Inputs) -> None:
        """Both linear paths begin as one rotation that binarises the coordinates well."""
        frame = best_frame(inputs, self.bits, self.frames, self.seed)
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

    def _quantizing(self, step: int) -> bool:
        return bool(self.quantization_weight) and step >= self.quantization_start * self.steps

    def _alignment(self, step: int) -> float:
        """µ at a step: it grows over the first steps, when activations still mean nothing."""
        if not self.alignment_ramp:
            return self.alignment_weight
        return self.alignment_weight * min(1.0, step / (self.alignment_ramp * self.steps))

    def _look(self, towers: nn.ModuleDict, inputs: _OnDevice, step: int) -> None:
        """Raise the alarm if codes have collapsed; with `rescue`, go on without Q and D."""
        towers.eval()
        with torch.inference_mode(), self.autocast():
            z = [towers["image"](inputs.images[:256]), towers["text"](inputs.texts[:256])]
        towers.train()
        found = collapse(Codes.from_projections(torch.cat(z).float().cpu().numpy()))
        if found is None:
            return
        advice = "try balanced=True, a smaller quantization_weight or another learning_rate"
        if self.rescue and (self.quantization_weight or self.alignment_weight):
            self.quantization_weight = self.alignment_weight = 0.0
            advice = "quantization and alignment are switched off for the rest; " + advice
        self.alarms_.append(f"at step {step + 1} {found}; {advice}")
        log.warning(self.alarms_[-1])

    def _report(self, inputs: _OnDevice) -> None:
        """MMD² of auxiliary and target items, before in the features and after in the codes."""
        self.alignment_: dict[str, dict[str, float]] = {}
        if not inputs.has_target:
            return
        for name, own, target in (
            ("images", inputs.images, inputs.target_images),
            ("texts", inputs.texts, inputs.target_texts),
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
        for exponent in (-5, -4, -6, -3, -7, -2, -8, -9, -10):
            yield {"learning_rate": round(10 ** (exponent / 2), 8)}

    def _check(self, world: World) -> None:
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


class _OnDevice:
    """Inputs as tensors on the training device."""

    def __init__(self, inputs: Inputs, hasher: THN) -> None:
        self.images = hasher.tensor(inputs.images)
        self.texts = hasher.tensor(inputs.texts)
        self.has_target = inputs.target_images is not None and inputs.target_texts is not None
        if inputs.target_images is not None and inputs.target_texts is not None:
            self.target_images = hasher.tensor(inputs.target_images)
            self.target_texts = hasher.tensor(inputs.target_texts)
        self.calibrated = inputs.calibration is not None
        self._calibration = inputs.calibration or (0.0, 0.0)
        self._weights = {
            name: None if weight is None else hasher.tensor(weight)
            for name, weight in (("image", inputs.image_weight), ("text", inputs.text_weight))
        }

    def probability(self, x: Tensor, y: Tensor) -> Tensor:
        """Calibrated P(s = 1) of pairs, from the cosine of their canonical coordinates."""
        slope, offset = self._calibration
        return torch.sigmoid(slope * (normalize(x, dim=1) @ normalize(y, dim=1).T) + offset)

    def weight(self, name: str, rows: Rows) -> Tensor | None:
        weight = self._weights[name]
        return None if weight is None else weight[torch.from_numpy(rows).to(weight.device)]
