"""The bill of materials and the absolute links of a release."""

from __future__ import annotations

import importlib.util
import re
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import pytest

from transhash.features import efficientnet

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def release() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release", ROOT / ".ci" / "release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_link_of_the_readme_becomes_absolute_and_names_a_file(release: ModuleType) -> None:
    before = (ROOT / "README.md").read_text(encoding="utf-8")
    after = release.absolute_links(before, "https://example.org/me/transhash/", "v1.2.3")
    links = re.findall(r"\]\(([^)\s]+)\)", after)
    assert len(links) == len(re.findall(r"\]\(([^)\s]+)\)", before))
    for link in links:
        assert re.match(r"https?://|#", link)
        path = re.match(r"https://example\.org/me/transhash/(?:raw|blob)/v1\.2\.3/([^#]+)", link)
        assert path is None or (ROOT / path[1]).exists()
    assert "![Search page" in after
    assert "/raw/v1.2.3/docs/images/page-photos.webp" in after
    assert release.absolute_links(after, "https://other.example", "v2") == after


def test_the_bill_lists_what_is_installed_and_the_digests_of_models(release: ModuleType) -> None:
    bill = release.software_bill_of_materials()
    assert bill["metadata"]["component"]["version"] == version("transhash")
    packages = {row["name"]: row for row in bill["components"] if row["type"] == "library"}
    assert packages["numpy"]["version"] == version("numpy")
    assert packages["numpy"]["licenses"]
    digests = {row["hashes"][0]["content"] for row in bill["components"] if "hashes" in row}
    assert efficientnet._WHEELS["efficientnet-lite0"][-1] in digests
    references = [bill["metadata"]["component"], *bill["components"]]
    names = [row["bom-ref"] for row in references]
    assert len(set(names)) == len(names)
    needs = {row["ref"]: row["dependsOn"] for row in bill["dependencies"]}
    assert packages["numpy"]["purl"] in needs[bill["metadata"]["component"]["bom-ref"]]
    assert {need for row in needs.values() for need in row} <= set(names)
