"""THN, the Transitive Hashing Network: C = L + λQ + µ(D_q + D_d)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from transhash.codes import Codes
from transhash.data.relation import Rows
from transhash.data.training import Features, TrainingSet
from transhash.distributed import ALONE, World
from transhash.errors import DataError
from transhash.hashers.base import Array, Setting
from transhash.hashers.bridge import Bridge, Inputs, canonical, plain
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


@dataclass
class THN(DeepHasher):
    """The paper's method. docs/method.md gives the evidence for each default marked "ours"."""

    loss: Literal["cross-entropy", "inner-product"] = "cross-entropy"  # inner-product: THN-ip
    use_target: bool = True  # False: THN-D, no unlabelled target data at all
    quantization_weight: float = 1e-3  # λ; 0: THN-Q
    quantization_start: float = 0.8  # ours: share of the steps before Q sets in
    alignment_weight: float = 1.0  # µ
    alignment_ramp: float = 0.5  # ours: share of the steps over which µ grows to its value
    kernel_widths: tuple[float, ...] = WIDTHS  # ours; (1.0,) is the single Gaussian of the paper
    balanced: bool = True  # ours: related and unrelated pairs weigh alike; paper: not
    logit_scale: float | None = None  # ours: 10 / bits; 1 in the paper
    inputs: Literal["canonical", "features"] = "canonical"  # ours; paper: features
    ridge: float = 0.05  # ours: of the canonical analysis, relative to the largest variance
    rank: int | None = None  # ours: canonical coordinates, None: as many as carry the relation
    rounds: int = 4  # ours: how often target items are matched with auxiliary ones
    temperature: float = 0.1  # ours: of that matching
    inherited_weight: float = 1.0  # ours: weight of relations that target items inherit
    steps: int = 500
    batch: int = 256  # auxiliary images, and as many texts, a step
    target_batch: int = 128  # unlabelled target images, and as many texts, a step
    optimizer: Optimizer = "adam"  # ours; paper: sgd
    learning_rate: float = 3e-3
    policy: Policy = "decay"  # ours; paper: inv or step
    fch_multiplier: float = 1.0  # 10 in the paper, where the layers below are pre-trained
    weight_decay: float = 1e-4
    averaging: float = 0.98  # ours: decay of the weights' moving average, 0: none
    rescue: bool = True  # on collapse, go on without Q and D, and say so

    name: ClassVar[str] = "THN"

    @classmethod
    def paper(cls, bits: int = 32, seed: int = 0, **settings: Any) -> THN:
        """The recipe as printed: unweighted pairs, λ and µ from the start, SGD 0.9, features."""
        literal: dict[str, Any] = {
            "quantization_weight": 1e-2,
            "quantization_start": 0.0,
            "alignment_ramp": 0.0,
            "kernel_widths": (1.0,),
            "balanced": False,
            "logit_scale": 1.0,
            "inputs": "features",
            "optimizer": "sgd",
            "learning_rate": 1e-2,
            "policy": "inv",
            "fch_multiplier": 10.0,
            "weight_decay": 5e-4,
            "averaging": 0.0,
            "steps": 1000,
            "batch": 128,
            "text_hidden": (1000, 500),
            "rescue": False,
        }
        return cls(bits=bits, seed=seed, **{**literal, **settings})

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
        terms = {"relation": self._relation(z_x, z_y, self.tensor(s), known)}
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
        if inputs.soft is not None and self.inherited_weight:
            soft = (
                self._relation(t_x, z_y, inputs.soft[0][world.shares(t_rows)][:, columns]),
                self._relation(z_x, t_y, inputs.soft[1][rows][:, world.shares(t_columns)]),
                self._relation(
                    t_x, t_y, inputs.soft[2][world.shares(t_rows)][:, world.shares(t_columns)]
                ),
            )
            terms["inherited"] = self.inherited_weight * torch.stack(soft).mean()
        mu = self._alignment(step)
        if mu:
            terms["alignment_images"] = mu * alignment_loss(z_x, t_x, self.kernel_widths)
            terms["alignment_texts"] = mu * alignment_loss(z_y, t_y, self.kernel_widths)
        return terms

    def _relation(
        self, z_x: Tensor, z_y: Tensor, s: Tensor, known: npt.NDArray[Any] | None = None
    ) -> Tensor:
        mask = None if known is None else self.tensor(known)
        # The batch's own share of related pairs: batches of sparse relations are drawn richer.
        rate = float(s.mean() if mask is None else s.sum() / mask.sum().clamp_min(1.0))
        weight = pair_weights(s, rate, self.balanced, mask)
        if self.loss == "inner-product":
            return inner_product_loss(z_x, z_y, s, weight)
        scale = 10.0 / self.bits if self.logit_scale is None else self.logit_scale
        return relation_loss(z_x, z_y, s, weight, scale)

    def _activations(self, tower: nn.Module, inputs: Tensor, rows: Rows, world: World) -> Tensor:
        share = torch.from_numpy(world.share(rows)).to(inputs.device)
        return world.gather(torch.tanh(tower(inputs[share]).float()))

    def _draw_pairs(self, training: TrainingSet, step: int) -> tuple[Rows, Rows]:
        n, m = training.relation.shape
        rows = draw(n, self.batch, self.seed, step, 0)
        columns = draw(m, self.batch, self.seed, step, 1)
        relation = training.relation
        if relation.positives / (n * m) * self.batch < 1.0:
            # Pairs and clicks are too rare to meet by chance: half the texts are partners.
            half = self.batch // 2
            rng = np.random.default_rng([self.seed, step, 4])
            columns[:half] = relation.partners(rows[:half], rng)
        return rows, columns

    def _prepare(self, training: TrainingSet) -> tuple[Bridge, Inputs]:
        if self.inputs == "features" or training.images.ndim > 2:
            return plain(training, self.use_target)
        return canonical(
            training,
            self.use_target,
            ridge=self.ridge,
            rank=self.rank,
            rounds=self.rounds,
            temperature=self.temperature,
        )

    def feature_tower(self, inputs: int, hidden: tuple[int, ...]) -> nn.Module:
        if self.inputs == "features":
            return super().feature_tower(inputs, hidden)
        return Head(inputs, hidden[0], self.bits, self.dropout)

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
        self.soft: list[Tensor] | None = None
        if inputs.soft is not None:
            parts = inputs.soft
            self.soft = [
                hasher.tensor(parts.target_image_to_text),
                hasher.tensor(parts.image_to_target_text),
                hasher.tensor(parts.target_to_target),
            ]
