"""What a release needs besides the build.

    python .ci/release.py sbom                # build/sbom.json (CycloneDX): packages, model files
    python .ci/release.py address URL [DOCS]  # project.urls, and absolute links in README.md
    python .ci/release.py site FOLDER         # add build/site to a folder of versions to be hosted

`address` prepares a checkout for a package index: .github/workflows/wheels.yml runs it with the
address of its repository before it builds. DOCS is the address where `site` is hosted. `sbom` lists
what is installed: run it where transhash was installed with the extras to be listed.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import re
import shutil
import sys
import tomllib
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(!?\[[^\]]*\]\()(?!\w+:|#)([^)\s]+)(?=\))")


def absolute_links(markdown: str, repository: str, tag: str) -> str:
    """Return Markdown with links to files of the repository at a tag; images as raw files."""

    def replace(match: re.Match[str]) -> str:
        start, path = match.groups()
        kind = "raw" if start.startswith("!") else "blob"
        return f"{start}{repository.rstrip('/')}/{kind}/{tag}/{path}"

    return LINK.sub(replace, markdown)


def source_version() -> str:
    source = (ROOT / "src" / "transhash" / "__init__.py").read_text("utf-8")
    return re.findall(r'^__version__ = "(.+?)"', source, re.MULTILINE)[0]


def project_urls(pyproject: str, repository: str, tag: str, docs: str = "") -> str:
    """Return pyproject.toml with the addresses of a repository and of the documentation."""
    if "urls" in tomllib.loads(pyproject)["project"]:
        return pyproject
    repository = repository.rstrip("/")
    urls = (
        f'[project.urls]\nRepository = "{repository}"\nIssues = "{repository}/issues"\n'
        f'Changelog = "{repository}/blob/{tag}/CHANGELOG.md"\n'
        + (f'Documentation = "{docs.rstrip("/")}/"\n' if docs else "")
    )
    return pyproject.replace("[project.scripts]\n", f"{urls}\n[project.scripts]\n", 1)


def add_version_of_site(site: Path, folder: Path, version: str) -> None:
    """Copy a built site to FOLDER/VERSION; list it for the version menu; open the newest first."""
    shutil.copytree(site, folder / version, dirs_exist_ok=True)

    def numbers(name: str) -> list[int]:
        return [int(part) for part in re.findall(r"\d+", name)]

    names = [path.parent.name for path in folder.glob("*/index.html")]
    names.sort(key=numbers, reverse=True)
    rows = [{"version": name, "title": name, "aliases": []} for name in names]
    (folder / "versions.json").write_text(json.dumps(rows, indent=1) + "\n", "utf-8")
    page = f'<meta http-equiv="refresh" content="0; url={names[0]}/index.html">\n'
    (folder / "index.html").write_text(page, "utf-8")


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _requirements(package: importlib.metadata.Distribution) -> Iterator[str]:
    """Yield the names of required packages, also of extras; the caller drops missing ones."""
    for line in package.requires or ():
        if match := re.match(r"[\w.-]+", line):
            yield _normalized(match[0])


def package_component(package: importlib.metadata.Distribution) -> dict[str, Any]:
    about, name = package.metadata, _normalized(package.metadata["Name"])
    component = {
        "type": "library",
        "bom-ref": f"pkg:pypi/{name}@{package.version}",
        "name": name,
        "version": package.version,
        "purl": f"pkg:pypi/{name}@{package.version}",
    }
    if expression := about.get("License-Expression"):
        component["licenses"] = [{"expression": expression}]
    else:
        named = [
            line.rpartition(" :: ")[2]
            for line in about.get_all("Classifier", ())
            if line.startswith("License :: OSI Approved ::")
        ] or [(about.get("License") or "").strip()]
        # Some packages have a whole license in the field.
        named = [text for text in named if text and len(text) < 80]
        if named:
            component["licenses"] = [{"license": {"name": text}} for text in named]
    return component


def model_files() -> Iterator[tuple[str, str, Path, str]]:
    """Yield model, license, file and the digest that is checked before its use, of installed ones.

    The concepts are in the package itself, so nothing checks them.
    """
    from transhash.errors import DataError
    from transhash.features import efficientnet, embedders

    for name, (*_, digest) in efficientnet._WHEELS.items():
        try:
            yield name, "Apache-2.0", efficientnet.lite_weights(name), digest
        except DataError:
            continue  # its extra is not installed
    if folder := embedders.bundled_minilm():
        for name, digest in embedders._PUBLISHED.items():
            yield embedders.MINILM, "Apache-2.0", folder / name, digest
    for name in ("concepts.json", "concept_statistics.safetensors"):
        yield "built-in concepts", "WordNet", Path(str(files("transhash.features") / name)), ""


def software_bill_of_materials() -> dict[str, Any]:
    """Return packages that transhash needs and that are installed, and the model files."""
    packages: dict[str, importlib.metadata.Distribution] = {}
    needs: dict[str, list[str]] = {}
    waiting = ["transhash"]
    while waiting:
        name = waiting.pop()
        if name in needs:
            continue
        try:
            package = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # of an extra that is not installed
        packages[name], needs[name] = package, sorted(set(_requirements(package)))
        waiting += needs[name]
    components = {name: package_component(package) for name, package in packages.items()}
    references = {name: component["bom-ref"] for name, component in components.items()}
    models = []
    for model, license_name, path, expected in model_files():
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        if expected and digest != expected:
            sys.exit(f"{path} of {model} is not the published file. Install its package again.")
        models.append({
            "type": "machine-learning-model",
            "bom-ref": f"{model}/{path.name}#{digest[:16]}",
            "name": model,
            "description": path.name,
            "hashes": [{"alg": "SHA-256", "content": digest}],
            "licenses": [{"license": {"name": license_name}}],
        })  # fmt: skip
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {**components.pop("transhash"), "type": "application"}},
        "components": [components[name] for name in sorted(components)] + models,
        "dependencies": [
            {
                "ref": references[name],
                "dependsOn": [references[need] for need in needs[name] if need in references],
            }
            for name in sorted(references)
        ],
    }


def main(arguments: list[str]) -> None:
    match arguments:
        case ["address", repository, *docs] if len(docs) < 2:
            tag = f"v{source_version()}"
            readme, pyproject = ROOT / "README.md", ROOT / "pyproject.toml"
            readme.write_text(absolute_links(readme.read_text("utf-8"), repository, tag), "utf-8")
            text = project_urls(pyproject.read_text("utf-8"), repository, tag, *docs)
            pyproject.write_text(text, "utf-8")
        case ["site", folder]:
            add_version_of_site(ROOT / "build" / "site", Path(folder), source_version())
        case ["sbom"]:
            out = ROOT / "build" / "sbom.json"
            out.parent.mkdir(exist_ok=True)
            out.write_text(json.dumps(software_bill_of_materials(), indent=1) + "\n", "utf-8")
            print(out.relative_to(ROOT))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
