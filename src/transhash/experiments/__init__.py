"""Methods x code lengths x seeds from a TOML file, one JSON line a finished cell, resumable."""

from transhash.experiments.plan import Cell, Plan, read_plan
from transhash.experiments.results import read_results
from transhash.experiments.run import run_experiment

__all__ = ["Cell", "Plan", "read_plan", "read_results", "run_experiment"]
