"""The bill of materials, the addresses of a release, and what CI and the image are built from."""

from __future__ import annotations

import importlib.util
import json
import re
import tomllib
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import pytest

import transhash
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


def test_metadata_have_the_addresses_of_the_repository(release: ModuleType) -> None:
    before = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    after = release.project_urls(before, "https://example.org/me/transhash/", "v1.2.3")
    project = tomllib.loads(after)["project"]
    assert project["urls"]["Repository"] == "https://example.org/me/transhash"
    assert project["urls"]["Changelog"].endswith("transhash/blob/v1.2.3/CHANGELOG.md")
    del project["urls"]
    assert project == tomllib.loads(before)["project"]
    assert release.project_urls(after, "https://other.example", "v2") == after
    documented = release.project_urls(
        before, "https://example.org/me", "v1", "https://docs.example"
    )
    urls = tomllib.loads(documented)["project"]["urls"]
    assert urls["Documentation"] == "https://docs.example/"
    assert release.source_version() == transhash.__version__


def test_versions_of_the_site_are_listed_newest_first(release: ModuleType, tmp_path: Path) -> None:
    site, folder = tmp_path / "site", tmp_path / "hosted"
    site.mkdir()
    for number in ("0.9.0", "0.10.0", "0.2.1"):
        (site / "index.html").write_text(number)
        release.add_version_of_site(site, folder, number)
    rows = json.loads((folder / "versions.json").read_text())
    assert [row["version"] for row in rows] == ["0.10.0", "0.9.0", "0.2.1"]
    assert (folder / "0.2.1" / "index.html").read_text() == "0.2.1"
    assert "0.10.0/index.html" in (folder / "index.html").read_text()


def test_actions_and_images_are_pinned_by_digest() -> None:
    workflows = "".join(
        path.read_text("utf-8") for path in (ROOT / ".github" / "workflows").glob("*.yml")
    )
    images = re.findall(r"^FROM (\S+)", (ROOT / "Dockerfile").read_text("utf-8"), re.MULTILINE)
    images += re.findall(r"container: (\S+)", workflows)
    assert len(images) == 3
    assert [image for image in images if not re.search(r"@sha256:[0-9a-f]{64}$", image)] == []
    actions = re.findall(r"uses: (\S+)", workflows)
    assert len(actions) > 5
    assert [action for action in actions if not re.search(r"@[0-9a-f]{40}$", action)] == []


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
