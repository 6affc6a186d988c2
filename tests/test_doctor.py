"""What `transhash doctor` tells of the optional parts, against what the package offers."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import version
from pathlib import Path

from transhash.cli.diagnose import EXTRAS, installation_facts

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8"))
OFFERED = PROJECT["project"]["optional-dependencies"]
OF_DEVELOPERS = {"dev", "docs"}
# What their packages bring along, and what may not import beside the installed torch.
BROUGHT = {"open-clip": {"torchvision"}, "timm": {"torchvision"}}


def test_every_extra_is_told_with_the_packages_it_is_made_of() -> None:
    told = {extra: set(packages) for extra, (packages, _) in EXTRAS.items()}
    offered = {
        extra: {re.split(r"[\[<>=!~ ]", line)[0] for line in lines} - {"setuptools"}
        | BROUGHT.get(extra, set())
        for extra, lines in OFFERED.items()
        if extra not in OF_DEVELOPERS
    }
    assert told == offered


def test_an_installed_part_has_its_version_and_a_missing_one_the_line_that_installs_it() -> None:
    facts = installation_facts()
    for extra, (packages, brings) in EXTRAS.items():
        told = facts[f"extra {extra}"]
        assert brings in told
        if told.startswith(("not installed", "lacks ")):
            assert f"pip install 'transhash[{extra}]'" in told
        else:
            assert all(f"{package} {version(package)}" in told for package in packages)
