"""Search images by text and texts by image when the two were never paired."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"  # pyproject.toml reads it

if TYPE_CHECKING:
    from transhash.codes import Codes
    from transhash.data.benchmark import load_benchmark
    from transhash.data.relation import GradedRelation, LabelRelation, SparseRelation
    from transhash.data.training_set import AuxiliarySet, TrainingSet
    from transhash.evaluation import evaluate
    from transhash.hashers import CVH, DCMH, HTH, IMH, QCH, THN
    from transhash.index import open_index
    from transhash.model.encoder import Encoder, load
    from transhash.model.extraction import extract_features
    from transhash.search.catalog import SearchFilter
    from transhash.search.engine import SearchEngine
    from transhash.training.fit import fit

# Imported on first use, so that the command line and decoding workers start without torch.
_MODULES = {
    **dict.fromkeys(("THN", "CVH", "IMH", "QCH", "HTH", "DCMH"), "hashers"),
    "Codes": "codes",
    "Encoder": "model.encoder",
    "GradedRelation": "data.relation",
    "LabelRelation": "data.relation",
    "SparseRelation": "data.relation",
    "AuxiliarySet": "data.training_set",
    "TrainingSet": "data.training_set",
    "SearchEngine": "search.engine",
    "SearchFilter": "search.catalog",
    "evaluate": "evaluation",
    "extract_features": "model.extraction",
    "fit": "training.fit",
    "load": "model.encoder",
    "load_benchmark": "data.benchmark",
    "open_index": "index",
}
__all__ = [
    "CVH",
    "DCMH",
    "HTH",
    "IMH",
    "QCH",
    "THN",
    "AuxiliarySet",
    "Codes",
    "Encoder",
    "GradedRelation",
    "LabelRelation",
    "SearchEngine",
    "SearchFilter",
    "SparseRelation",
    "TrainingSet",
    "evaluate",
    "extract_features",
    "fit",
    "load",
    "load_benchmark",
    "open_index",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'transhash' has no attribute {name!r}")
    return getattr(import_module(f"transhash.{_MODULES[name]}"), name)
