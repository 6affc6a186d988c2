"""Methods x code lengths x seeds from a TOML file, one JSON line per finished cell, resumable."""

from transhash.experiments.plan import Cell, MethodSpec, Plan, read_plan
from transhash.experiments.results import Results, read_results
from transhash.experiments.runner import make_synthetic_cached, run_experiment, run_plan

__all__ = [
    "Cell",
    "MethodSpec",
    "Plan",
    "Results",
    "make_synthetic_cached",
    "read_plan",
    "read_results",
    "run_experiment",
    "run_plan",
]
