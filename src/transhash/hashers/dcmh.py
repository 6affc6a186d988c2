"""DCMH, Deep Cross-Modal Hashing (Jiang & Li, CVPR 2017), for unpaired items."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from transhash.data.relation import GradedRelation, Relation, Rows
from transhash.data.training_set import Features, TrainingSet
from transhash.errors import DataError
from transhash.hashers.base import Array, FitOptions, Setting
from transhash.hashers.deep import DeepHasher, Device, Tower, learning_rates
from transhash.hashers.losses import dcmh_loss, pair_weights, signs
from transhash.hashers.modules import Affine
from transhash.hashers.settings import NonNegative, Positive, PositiveInt
from transhash.hashers.training_loop import (
    Optimizer,
    check_finite_weights,
    draw,
    make_optimizer,
    step_seed,
)

_OUTPUT_DEVIATION = 0.01  # of the output layer's initial weights
# The schedule of the original.
PUBLISHED: dict[str, Any] = {
    "epochs": 500,
    "batch_size": 128,
    "learning_rate": 10**-1.5,
    "final_learning_rate": 1e-6,
}


@dataclass
class DCMH(DeepHasher):
    """Maximizes the likelihood of S under θ_ij = <f_i, g_j> / 2, alternating images and texts.

    Published for pairs, where both items of a pair have the same code; training items here are
    unpaired, so images and texts have their own codes, B_x = sgn F and B_y = sgn G. The towers are
    THN's, for a fair comparison; they end in linear units, without tanh, as published.
    """

    epochs: PositiveInt = 15  # ours, with Adam; 500 in the original
    batch_size: PositiveInt = 128
    optimizer: Optimizer = "adam"  # ours: better after 15 epochs than plain SGD after 60
    learning_rate: Positive = 1e-3  # ours; falls linearly to 0
    gamma: NonNegative = 1.0  # weight of ||B - F||²
    # Weight of ||F'1||², which balances bits. 1 in the original, at a tiny rate for 500 epochs; at
    # rates that learn in 15, the buffered sum lags behind the network and oscillates.
    eta: NonNegative = 0.01
    balanced: bool = True  # ours: related and unrelated pairs have equal weight in sum
    shared_code: bool = False  # as published: one code for both items of a pair
    max_gradient_norm: Positive | None = 5.0  # ours, None in the original
    final_learning_rate: NonNegative = 0.0  # reached after the last epoch; 1e-6 in the original

    name: ClassVar[str] = "DCMH"

    def _fit(self, training: TrainingSet, options: FitOptions) -> None:
        self._scales = _feature_scales(training)
        device = Device(self.device)
        inputs = {
            "image": device.tensor(self._scaled("image", training.images)),
            "text": device.tensor(self._scaled("text", training.texts)),
        }
        towers = self.build_towers(training.images.shape[1:], training.texts.shape[1:])
        relation = training.relation
        weights = pair_weights(relation.positives / relation.known, self.balanced)
        generator = torch.Generator().manual_seed(self.seed)
        buffers = {
            name: torch.randn(len(rows), self.bits, generator=generator).to(self.device)
            for name, rows in inputs.items()
        }
        optimizers = {
            name: make_optimizer(
                self.optimizer,
                [{"params": towers[name].parameters(), "lr": self.learning_rate}],
                momentum=0.0,
            )
            for name in inputs
        }
        all_rows = {name: np.arange(len(rows)) for name, rows in inputs.items()}
        codes: dict[str, Tensor] = {}  # B; empty if each modality has codes of its own
        if self.shared_code:
            texts_of_images = device.rows(_texts_of_images(relation))
            codes = _shared_codes(buffers, texts_of_images)
        step = 0
        towers.train()
        for epoch in options.track(range(self.epochs), "training DCMH", total=self.epochs):
            lr_factor = 1 - epoch / self.epochs
            rate = self.final_learning_rate
            rate += (self.learning_rate - self.final_learning_rate) * lr_factor
            for name, other in (("image", "text"), ("text", "image")):
                for group in optimizers[name].param_groups:
                    group["lr"] = rate
                for _ in range(max(1, len(inputs[name]) // self.batch_size)):
                    step += 1
                    rows = np.unique(draw(len(inputs[name]), self.batch_size, self.seed, step, 0))
                    if name == "image":
                        s, known = relation.block(rows, all_rows[other])
                    else:
                        s, known = relation.block(all_rows[other], rows)
                        s, known = s.T, None if known is None else known.T
                    mask = None if known is None else device.tensor(known)
                    where = torch.from_numpy(rows).to(self.device)
                    with torch.random.fork_rng(), self.autocast():
                        torch.manual_seed(step_seed(self.seed, step))
                        outputs: Tensor = towers[name](inputs[name][where]).float()
                    buffers[name][where] = outputs.detach()
                    rest = buffers[name].sum(dim=0) - outputs.detach().sum(dim=0)
                    loss = dcmh_loss(
                        outputs, buffers[other], device.tensor(s), rest, self.gamma, self.eta,
                        weights, mask, codes[name][where] if codes else None,
                    )  # fmt: skip
                    optimizers[name].zero_grad()
                    loss.backward()  # type: ignore[no-untyped-call]
                    if self.max_gradient_norm is not None:
                        torch.nn.utils.clip_grad_norm_(
                            towers[name].parameters(), self.max_gradient_norm
                        )
                    optimizers[name].step()
            if self.shared_code:
                codes = _shared_codes(buffers, texts_of_images)
            check_finite_weights(towers.parameters(), f"in epoch {epoch + 1}", self.learning_rate)
        self.towers_ = towers

    @classmethod
    def candidates(cls) -> Iterable[Setting]:
        yield from learning_rates()

    def feature_tower(
        self, inputs: int, hidden: tuple[int, ...], generator: torch.Generator
    ) -> nn.Module:
        """Return a tower whose outputs begin near 0, as published."""
        tower = super().feature_tower(inputs, hidden, generator)
        assert isinstance(tower, Tower)
        with torch.no_grad():
            tower.fch.weight.normal_(0.0, _OUTPUT_DEVIATION, generator=generator)
        return tower

    def project_images(self, images: Features) -> npt.NDArray[np.float32]:
        return self.run_tower("image", self._scaled("image", images))

    def project_texts(self, texts: Features) -> npt.NDArray[np.float32]:
        return self.run_tower("text", self._scaled("text", texts))

    def modules(self) -> tuple[nn.Module, nn.Module]:
        return self._module("image"), self._module("text")

    def _module(self, name: str) -> nn.Module:
        tower = self.tower(name)
        if f"scale.{name}.mean" not in self._scales:
            return tower
        mean, size = (self._scales[f"scale.{name}.{part}"] for part in ("mean", "size"))
        return nn.Sequential(Affine(center=mean, scale=float(size)), tower)

    def state(self) -> dict[str, Array]:
        return {**self.tower_state(), **self._scales}

    def restore(self, state: Mapping[str, Array]) -> Self:
        self._scales = {name: state[name] for name in state if name.startswith("scale.")}
        return self.restore_towers(state)

    def _scaled(self, name: str, rows: Features) -> Features:
        if not hasattr(self, "_scales"):
            raise self.not_fitted_error()
        if f"scale.{name}.mean" not in self._scales:
            return rows  # pixels
        mean = self._scales[f"scale.{name}.mean"]
        if rows.shape[1:] != mean.shape:
            return rows  # run_tower raises the error
        return np.asarray((rows - mean) / self._scales[f"scale.{name}.size"], dtype=np.float32)


def _feature_scales(training: TrainingSet) -> dict[str, Array]:
    """Return mean and deviation of both modalities; one deviation keeps features comparable."""
    scales: dict[str, Array] = {}
    for name, rows in (("image", training.images), ("text", training.texts)):
        if rows.ndim == 2:
            mean = rows.mean(axis=0, dtype=np.float64)
            size = max(float((rows - mean).std()), 1e-8)
            scales[f"scale.{name}.mean"] = mean.astype(np.float32)
            scales[f"scale.{name}.size"] = np.array(size, dtype=np.float32)
    return scales


def _texts_of_images(relation: Relation) -> Rows:
    """Return the row of each image's text, or raise a DataError if items are not in pairs."""
    pairs = relation.pairs if isinstance(relation, GradedRelation) else relation
    n, m = pairs.shape
    texts, images = pairs.times(np.ones((m, 1))), pairs.transposed_times(np.ones((n, 1)))
    if (texts != 1).any() or (images != 1).any():
        raise DataError(
            f"With shared_code every image has one text and every text one image, but {n} images "
            f"and {m} texts have {pairs.positives} related pairs. Use pairs that share no item, "
            "or DCMH with shared_code = False."
        )
    return np.rint(pairs.times(np.arange(m, dtype=np.float64)[:, None])[:, 0]).astype(np.int64)


def _shared_codes(buffers: Mapping[str, Tensor], texts_of_images: Tensor) -> dict[str, Tensor]:
    """Return B = sgn(F + G), in the order of the images and of the texts."""
    codes = signs(buffers["image"] + buffers["text"][texts_of_images])
    text_codes = torch.empty_like(codes)
    text_codes[texts_of_images] = codes
    return {"image": codes, "text": text_codes}
