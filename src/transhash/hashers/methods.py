"""Lists every method: its class, settings, role in comparisons, and how figures draw it.

The factory, the command line, experiments, tables and figures all read this list. To add a method,
write its module and add a record here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, cast

from transhash.errors import DataError, check_type

if TYPE_CHECKING:  # classes are imported on use, so that the command line starts without torch
    from transhash.hashers.base import Hasher, Learner, Scorer

HASHER_FORMAT = "transhash-hasher"  # in config.json of a hasher that was saved without features
MODEL_VERSION = 2  # format version in config.json, of hashers and of runs
Role = Literal[
    "proposed",  # THN
    "paper-ablation",  # THN without one component, compared in the paper
    "ablation",  # THN without one component that is ours
    "baseline",  # the paper's competitors
    "transductive",  # baselines that also train on unlabeled target items
    "as-published",  # the paper's recipe to the letter
    "real-valued",  # scores pairs without codes
]


@dataclass(frozen=True)
class Method:
    """A method's name, and the class and settings that it stands for."""

    name: str  # as published
    class_path: str  # module and class, relative to transhash.hashers
    role: Role
    color: tuple[str, str]  # on a light and on a dark background
    marker: str
    label: str = ""  # in tables and figures; the name by default
    fixed_settings: Mapping[str, Any] = field(default_factory=dict)  # part of what the name means
    default_settings: str = ""  # path of a dictionary of defaults, which may be overridden

    def __post_init__(self) -> None:
        object.__setattr__(self, "label", self.label or self.name)

    @property
    def hasher_class(self) -> type[Learner]:
        return cast("type[Learner]", _load(self.class_path))

    @property
    def has_codes(self) -> bool:
        return self.role != "real-valued"

    def settings(self) -> tuple[str, ...]:
        """Return the names of all settings."""
        return tuple(one.name for one in fields(self.hasher_class))

    def make(self, settings: Mapping[str, Any]) -> Learner:
        """Return an unfitted instance; refuse unknown settings and other values of fixed ones."""
        known, base = self.settings(), self.hasher_class.name
        for name, value in settings.items():
            if name not in known:
                raise DataError(
                    f"{self.name} has no setting {name!r}. Available: {', '.join(sorted(known))}."
                )
            if name in self.fixed_settings and value != self.fixed_settings[name]:
                raise DataError(
                    f"{self.name} is {base} with {name} = {self.fixed_settings[name]}, got "
                    f"{value!r}. To change {name}, use {base}."
                )
        default_settings = _load(self.default_settings) if self.default_settings else {}
        return self.hasher_class(**{**default_settings, **settings, **self.fixed_settings})


# In the order of the paper's tables, THN last.
METHODS: tuple[Method, ...] = (
    Method("kNN", "baselines.NearestNeighbors", "real-valued", ("#4d7c0f", "#a3d65c"), "<",
           "kNN (real-valued)"),
    Method("ridge", "baselines.RidgeRegression", "real-valued", ("#0e7490", "#5cc8de"), ">",
           "ridge (real-valued)"),
    Method("ridge-classifier", "baselines.RidgeClassifier", "real-valued", ("#a16207", "#fde047"),
           "$c$", "ridge classifier (real-valued)"),
    Method("IMH", "imh.IMH", "baseline", ("#6d7680", "#a8b1bb"), "h"),
    Method("CVH", "cvh.CVH", "baseline", ("#7448c8", "#b798ff"), "*"),
    Method("QCH", "qch.QCH", "baseline", ("#0c8560", "#3fcf9c"), "^"),
    Method("HTH", "hth.HTH", "baseline", ("#c96a00", "#ffab4d"), "P"),
    Method("DCMH", "dcmh.DCMH", "baseline", ("#1668c7", "#6fb1ff"), "v"),
    # One code for both items of a pair, so it learns from pairs only.
    Method("DCMH-published", "dcmh.DCMH", "as-published", ("#0b3a70", "#8fb8e8"), "7",
           "DCMH (as published)",
           {"shared_code": True, "optimizer": "sgd", "gamma": 1.0, "eta": 1.0, "balanced": False,
            "max_gradient_norm": None}, "dcmh.PUBLISHED"),
    Method("kNN+target", "baselines.NearestNeighbors", "real-valued", ("#365314", "#d9f99d"), "5",
           "kNN + target data (real-valued)", {"center_target": True}),
    Method("ridge+target", "baselines.RidgeRegression", "real-valued", ("#164e63", "#a5f3fc"), "6",
           "ridge + target data (real-valued)", {"center_target": True}),
    Method("ridge-classifier+target", "baselines.RidgeClassifier", "real-valued",
           ("#713f12", "#fef9c3"), "$C$", "ridge classifier + target data (real-valued)",
           {"center_target": True}),
    Method("IMH+target", "transductive.TransductiveIMH", "transductive", ("#3f464d", "#d5dade"),
           "$i$", "IMH + target data"),
    Method("CVH+target", "transductive.TransductiveCVH", "transductive", ("#55309c", "#cdb8ff"),
           "H", "CVH + target data"),
    Method("QCH+target", "transductive.TransductiveQCH", "transductive", ("#075940", "#7fe3bf"),
           "8", "QCH + target data"),
    Method("DCMH+target", "transductive.TransductiveDCMH", "transductive", ("#0d458a", "#a5ceff"),
           "x", "DCMH + target data"),
    # Canonical input layer and rotation without training.
    Method("CCA+target", "thn.THN", "transductive", ("#4b5563", "#9ca3af"), "p",
           "CCA + target data (THN at initialization)", {"steps": 0}),
    Method("THN-ip", "thn.THN", "paper-ablation", ("#5c6b8a", "#93a4c9"), "X",
           "THN-ip (inner-product loss)", {"loss": "inner-product"}),
    Method("THN-D", "thn.THN", "paper-ablation", ("#8a5a00", "#d9a94a"), "D",
           "THN-D (no target data)", {"use_target": False, "alignment_weight": 0.0}),
    Method("THN-Q", "thn.THN", "paper-ablation", ("#a34f86", "#dd8fc2"), "s",
           "THN-Q (no quantization loss)", {"quantization_weight": 0.0}),
    Method("THN-no-mmd", "thn.THN", "ablation", ("#b45309", "#f0a860"), "1",
           "THN without MMD alignment", {"alignment_weight": 0.0}),
    Method("THN-no-soft-labels", "thn.THN", "ablation", ("#0f766e", "#5fcabf"), "2",
           "THN without soft labels", {"soft_label_fraction": 0.0}),
    Method("THN-no-pseudo-labels", "thn.THN", "ablation", ("#6b21a8", "#c08cf0"), "3",
           "THN without pseudo-labels", {"pseudo_label_weight": 0.0}),
    # The paper's network and objective on features, with balanced pairs against collapse.
    Method("THN-paper-network", "thn.THN", "ablation", ("#9d174d", "#f08cb8"), "4",
           "THN (paper's network)",
           {"input_layer": "features", "matching_rounds": 0, "rotation_trials": 0,
            "soft_label_fraction": 0.0, "pseudo_label_weight": 0.0,
            "image_hidden": (512,), "text_hidden": (1000, 500)}, "thn.PAPER_NETWORK"),
    Method("THN-paper", "thn.THN", "as-published", ("#8c2f39", "#e08c95"), "d",
           "THN (as printed)", default_settings="thn.PAPER"),
    Method("THN", "thn.THN", "proposed", ("#d1214f", "#ff6b8f"), "o"),
)  # fmt: skip
# The methods that the paper's tables compare.
PAPER_METHODS: tuple[str, ...] = tuple(
    method.name for method in METHODS if method.role in ("proposed", "paper-ablation", "baseline")
)


def find_method(name: str) -> Method:
    """Return the method of that name, in upper or lower case."""
    check_type(name, str, "The method", "a name such as THN")
    for method in METHODS:
        if method.name.lower() == name.lower():
            return method
    names = ", ".join(method.name for method in METHODS)
    raise DataError(f"Unknown method {name!r}. Choose from: {names}.")


def make_hasher(method: str, **settings: Any) -> Hasher:
    """Return an unfitted hasher by its name, in upper or lower case."""
    record = find_method(method)
    if not record.has_codes:
        raise DataError(
            f"{record.name} produces no codes, so it cannot be saved or searched. "
            f'Use it in an experiment: methods = ["{record.name}"].'
        )
    return cast("Hasher", record.make(settings))


def make_method(method: str, *, bits: int, seed: int = 0, **settings: Any) -> Hasher | Scorer:
    """Return an unfitted hasher or scorer by its name; scorers ignore `bits`."""
    record = find_method(method)
    length = {"bits": bits} if record.has_codes else {}
    return cast("Hasher | Scorer", record.make({"seed": seed, **length, **settings}))


def _load(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(import_module(f"transhash.hashers.{module}"), name)
