"""Every method, a line each: what makes it, what it is in a comparison, how it is drawn.

The factory, the command line, experiments, tables and figures read this list and no other. To add
a method write its file and its line here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, cast

from transhash.errors import DataError

if TYPE_CHECKING:  # imported when a method is made: the command line starts without torch
    from transhash.hashers.base import Hasher, Learner, Scorer

HASHER_FORMAT = "transhash-hasher"  # of config.json where a hasher was saved alone
# ours; the same with something left out, as in the paper and as it was built here; the paper's
# competitors, and those that see target items, too; the paper's recipe to the letter; and what
# scores pairs without codes.
Role = Literal[
    "proposed",
    "paper-ablation",
    "ablation",
    "baseline",
    "transductive",
    "as-published",
    "real-valued",
]


@dataclass(frozen=True)
class Method:
    """A name, and the class and settings that it stands for."""

    name: str  # as published
    class_path: str  # module and class, below transhash.hashers
    role: Role
    color: tuple[str, str]  # on light and on dark ground
    marker: str
    fixed_settings: Mapping[str, Any] = field(
        default_factory=dict
    )  # what the name means: not to be set
    default_settings: str = (
        ""  # module and name of settings that it begins with, which may be changed
    )

    @property
    def hasher_class(self) -> type[Learner]:
        return cast("type[Learner]", _load(self.class_path))

    @property
    def has_codes(self) -> bool:
        return self.role != "real-valued"

    def settings(self) -> tuple[str, ...]:
        """The names of what can be set."""
        return tuple(one.name for one in fields(self.hasher_class))

    def make(self, settings: Mapping[str, Any]) -> Learner:
        """Unfitted; what the method has not, or has fixed otherwise, is refused by its name."""
        known = self.settings()
        for name, value in settings.items():
            if name not in known:
                raise DataError(
                    f"{self.name} has no setting {name!r}; it has {', '.join(sorted(known))}"
                )
            if name in self.fixed_settings and value != self.fixed_settings[name]:
                raise DataError(
                    f"{self.name} is {self.hasher_class.name} with {name} = {self.fixed_settings[name]}, which "
                    f"cannot be {value!r}; set it in {self.hasher_class.name}"
                )
        default_settings = _load(self.default_settings) if self.default_settings else {}
        return self.hasher_class(**{**default_settings, **settings, **self.fixed_settings})


# In the order of the paper's tables, ours last.
METHODS: tuple[Method, ...] = (
    Method("kNN", "baselines.NearestNeighbors", "real-valued", ("#4d7c0f", "#a3d65c"), "<"),
    Method("ridge", "baselines.RidgeRegression", "real-valued", ("#0e7490", "#5cc8de"), ">"),
    Method("IMH", "imh.IMH", "baseline", ("#6d7680", "#a8b1bb"), "h"),
    Method("CVH", "cvh.CVH", "baseline", ("#7448c8", "#b798ff"), "*"),
    Method("QCH", "qch.QCH", "baseline", ("#0c8560", "#3fcf9c"), "^"),
    Method("HTH", "hth.HTH", "baseline", ("#c96a00", "#ffab4d"), "P"),
    Method("DCMH", "dcmh.DCMH", "baseline", ("#1668c7", "#6fb1ff"), "v"),
    Method("CVH+target", "transductive.TransductiveCVH", "transductive", ("#55309c", "#cdb8ff"), "H"),
    Method("QCH+target", "transductive.TransductiveQCH", "transductive", ("#075940", "#7fe3bf"), "8"),
    Method("DCMH+target", "transductive.TransductiveDCMH", "transductive", ("#0d458a", "#a5ceff"), "x"),
    # The canonical layer and its rotation alone: what the towers of THN start from.
    Method("CCA+target", "thn.THN", "transductive", ("#4b5563", "#9ca3af"), "p", fixed_settings={"steps": 0}),
    Method("THN-ip", "thn.THN", "paper-ablation", ("#5c6b8a", "#93a4c9"), "X",
           fixed_settings={"loss": "inner-product"}),
    Method("THN-D", "thn.THN", "paper-ablation", ("#8a5a00", "#d9a94a"), "D",
           fixed_settings={"use_target": False, "alignment_weight": 0.0}),
    Method("THN-Q", "thn.THN", "paper-ablation", ("#a34f86", "#dd8fc2"), "s",
           fixed_settings={"quantization_weight": 0.0}),
    Method("THN-no-mmd", "thn.THN", "ablation", ("#b45309", "#f0a860"), "1",
           fixed_settings={"alignment_weight": 0.0}),
    Method("THN-no-soft-labels", "thn.THN", "ablation", ("#0f766e", "#5fcabf"), "2",
           fixed_settings={"soft_label_fraction": 0.0}),
    Method("THN-no-pseudo-labels", "thn.THN", "ablation", ("#6b21a8", "#c08cf0"), "3",
           fixed_settings={"pseudo_label_weight": 0.0}),
    # The paper's network and C on features, kept from collapsing; all else that is ours is gone.
    Method("THN-paper-network", "thn.THN", "ablation", ("#9d174d", "#f08cb8"), "4",
           fixed_settings={"input_layer": "features", "matching_rounds": 0, "rotation_trials": 0, "soft_label_fraction": 0.0,
                  "pseudo_label_weight": 0.0, "image_hidden": (512,), "text_hidden": (1000, 500)}),
    Method("THN-paper", "thn.THN", "as-published", ("#8c2f39", "#e08c95"), "d",
           default_settings="thn.PAPER"),
    Method("THN", "thn.THN", "proposed", ("#d1214f", "#ff6b8f"), "o"),
)  # fmt: skip
# Those that the paper's tables compare.
PAPER_METHODS: tuple[str, ...] = tuple(
    method.name for method in METHODS if method.role in ("proposed", "paper-ablation", "baseline")
)


def find_method(name: str) -> Method:
    """The method of that name, in any case."""
    for method in METHODS:
        if method.name.lower() == name.lower():
            return method
    names = ", ".join(method.name for method in METHODS)
    raise DataError(f"there is no method {name!r}; use one of {names}")


def make_hasher(method: str, **settings: Any) -> Hasher:
    """The hasher of that name (any case), unfitted; what it cannot be set to is refused."""
    found = find_method(method)
    if not found.has_codes:
        raise DataError(
            f"{found.name} scores pairs and makes no codes, so there is nothing to save or search; "
            f'experiments measure it: methods = ["{found.name}"]'
        )
    return cast("Hasher", found.make(settings))


def make_method(method: str, *, bits: int, seed: int = 0, **settings: Any) -> Hasher | Scorer:
    """A hasher, or a scorer of pairs, for which `bits` mean nothing."""
    found = find_method(method)
    length = {"bits": bits} if found.has_codes else {}
    return cast("Hasher | Scorer", found.make({"seed": seed, **length, **settings}))


def _load(class_path: str) -> Any:
    module, _, name = class_path.rpartition(".")
    return getattr(import_module(f"transhash.hashers.{module}"), name)
