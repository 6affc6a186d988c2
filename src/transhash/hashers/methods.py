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
Role = Literal["ours", "variant", "part", "rival", "fed", "literal", "baseline"]


@dataclass(frozen=True)
class Method:
    """A name, and the class and settings that it stands for."""

    name: str  # as published
    home: str  # module and class, below transhash.hashers
    role: Role
    colour: tuple[str, str]  # on light and on dark ground
    marker: str
    fixed: Mapping[str, Any] = field(default_factory=dict)  # what the name means: not to be set
    start: str = ""  # module and name of settings that it begins with, which may be changed

    @property
    def kind(self) -> type[Learner]:
        return cast("type[Learner]", _load(self.home))

    @property
    def has_codes(self) -> bool:
        return self.role != "baseline"

    def settings(self) -> tuple[str, ...]:
        """The names of what can be set."""
        return tuple(one.name for one in fields(self.kind))

    def make(self, settings: Mapping[str, Any]) -> Learner:
        """Unfitted; what the method has not, or has fixed otherwise, is refused by its name."""
        known = self.settings()
        for name, value in settings.items():
            if name not in known:
                raise DataError(
                    f"{self.name} has no setting {name!r}; it has {', '.join(sorted(known))}"
                )
            if name in self.fixed and value != self.fixed[name]:
                raise DataError(
                    f"{self.name} is {self.kind.name} with {name} = {self.fixed[name]}, which "
                    f"cannot be {value!r}; set it in {self.kind.name}"
                )
        start = _load(self.start) if self.start else {}
        return self.kind(**{**start, **settings, **self.fixed})


# In the order of the paper's tables, ours last.
KNOWN: tuple[Method, ...] = (
    Method("kNN", "baselines.NearestNeighbours", "baseline", ("#4d7c0f", "#a3d65c"), "<"),
    Method("ridge", "baselines.RidgeRegression", "baseline", ("#0e7490", "#5cc8de"), ">"),
    Method("IMH", "imh.IMH", "rival", ("#6d7680", "#a8b1bb"), "h"),
    Method("CVH", "cvh.CVH", "rival", ("#7448c8", "#b798ff"), "*"),
    Method("QCH", "qch.QCH", "rival", ("#0c8560", "#3fcf9c"), "^"),
    Method("HTH", "hth.HTH", "rival", ("#c96a00", "#ffab4d"), "P"),
    Method("DCMH", "dcmh.DCMH", "rival", ("#1668c7", "#6fb1ff"), "v"),
    Method("CVH-fed", "transductive.FedCVH", "fed", ("#55309c", "#cdb8ff"), "H"),
    Method("QCH-fed", "transductive.FedQCH", "fed", ("#075940", "#7fe3bf"), "8"),
    Method("DCMH-fed", "transductive.FedDCMH", "fed", ("#0d458a", "#a5ceff"), "x"),
    # The canonical layer and its rotation alone: what the towers of THN start from.
    Method("CCA-fed", "thn.THN", "fed", ("#4b5563", "#9ca3af"), "p", fixed={"steps": 0}),
    Method("THN-ip", "thn.THN", "variant", ("#5c6b8a", "#93a4c9"), "X",
           fixed={"loss": "inner-product"}),
    Method("THN-D", "thn.THN", "variant", ("#8a5a00", "#d9a94a"), "D",
           fixed={"use_target": False, "alignment_weight": 0.0}),
    Method("THN-Q", "thn.THN", "variant", ("#a34f86", "#dd8fc2"), "s",
           fixed={"quantization_weight": 0.0}),
    Method("THN-MMD", "thn.THN", "part", ("#b45309", "#f0a860"), "1",
           fixed={"alignment_weight": 0.0}),
    Method("THN-soft", "thn.THN", "part", ("#0f766e", "#5fcabf"), "2",
           fixed={"soft_share": 0.0}),
    Method("THN-inherited", "thn.THN", "part", ("#6b21a8", "#c08cf0"), "3",
           fixed={"inherited_weight": 0.0}),
    # The paper's network and C on features, kept from collapsing; all else that is ours is gone.
    Method("THN-canonical", "thn.THN", "part", ("#9d174d", "#f08cb8"), "4",
           fixed={"inputs": "features", "rounds": 0, "frames": 0, "soft_share": 0.0,
                  "inherited_weight": 0.0, "image_hidden": (512,), "text_hidden": (1000, 500)}),
    Method("THN-paper", "thn.THN", "literal", ("#8c2f39", "#e08c95"), "d",
           start="thn.PAPER"),
    Method("THN", "thn.THN", "ours", ("#d1214f", "#ff6b8f"), "o"),
)  # fmt: skip
# Those that the paper's tables compare.
METHODS: tuple[str, ...] = tuple(
    method.name for method in KNOWN if method.role in ("ours", "variant", "rival")
)


def find_method(name: str) -> Method:
    """The method of that name, in any case."""
    for method in KNOWN:
        if method.name.lower() == name.lower():
            return method
    names = ", ".join(method.name for method in KNOWN)
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


def make_learner(method: str, *, bits: int, seed: int = 0, **settings: Any) -> Hasher | Scorer:
    """A hasher, or a scorer of pairs, for which `bits` mean nothing."""
    found = find_method(method)
    length = {"bits": bits} if found.has_codes else {}
    return cast("Hasher | Scorer", found.make({"seed": seed, **length, **settings}))


def _load(home: str) -> Any:
    module, _, name = home.rpartition(".")
    return getattr(import_module(f"transhash.hashers.{module}"), name)
