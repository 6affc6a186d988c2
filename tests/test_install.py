"""Install from a clean copy (no compiler, odd paths, C locale, no root) and from a wheel.

Dependencies come from this environment through a .pth file, so that nothing is downloaded. pip
builds and installs transhash itself.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from small_run import copy_small_run

ROOT = Path(__file__).resolve().parents[1]
NOBODY = 65534
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="another layout of virtual environments"),
]
PLAIN = {"LANG": "C", "LC_ALL": "C"}
NO_COMPILER = {"CC": "/bin/false", "CXX": "/bin/false"}


class Installation(NamedTuple):
    """A virtual environment and a working folder that any user may use."""

    python: Path
    folder: Path

    def run(
        self, *arguments: object, home: Path, nobody: bool = False, **more: str
    ) -> subprocess.CompletedProcess[str]:
        command = [str(self.python), "-m", *map(str, arguments)]
        if nobody:
            user = ["--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups"]
            command = ["setpriv", *user, *command]
        result = subprocess.run(
            command, capture_output=True, encoding="utf-8", errors="replace", cwd=self.folder,
            env={**inherited(), **PLAIN, "HOME": str(home), "TMPDIR": "/tmp", **more},
        )  # fmt: skip
        assert result.returncode == 0, (command, result.stdout[-1500:], result.stderr[-3000:])
        assert "Traceback" not in result.stderr
        return result


def inherited() -> dict[str, str]:
    return {name: os.environ[name] for name in ("PATH", "OMP_NUM_THREADS") if name in os.environ}


def interpreter_for_all() -> str:
    """Return an interpreter that other users can start as well."""
    own = Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}"
    everybody = all(folder.stat().st_mode & 0o001 for folder in (own, *own.parents))
    return str(own) if everybody else f"/usr/bin/python3.{sys.version_info.minor}"


def clean_source(folder: Path) -> Path:
    """Copy the package's sources without build products."""
    ignored = shutil.ignore_patterns("*.so", "*.egg-info", "__pycache__", "build")
    shutil.copytree(ROOT / "src", folder / "src", ignore=ignored)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, folder)
    return folder


def new_environment(venv: Path, python: str) -> Path:
    """Create a virtual environment that has everything but transhash; return its packages."""
    subprocess.run([python, "-m", "venv", "--without-pip", venv], check=True)
    packages = Path(venv, "lib", f"python3.{sys.version_info.minor}", "site-packages")
    (packages / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return packages


@pytest.fixture(scope="module")
def installation() -> Iterator[Installation]:
    folder = Path(tempfile.mkdtemp(prefix="für alle "))
    folder.chmod(0o755)
    python = interpreter_for_all()
    if not Path(python).exists():
        python = sys.executable
    try:
        source = clean_source(folder / "Größe 1" / "transhash")
        home = folder / "home"
        home.mkdir()
        venv = folder / "eine Umgebung"
        packages = new_environment(venv, python)
        installed = Installation(venv / "bin" / "python", folder)
        installed.run(
            "pip", "install", "--no-deps", "--no-build-isolation", "--ignore-installed",
            "--no-index", source, home=home, **NO_COMPILER,
        )  # fmt: skip
        assert list(packages.glob("transhash-*.dist-info"))
        work = folder / "Arbeit"
        work.mkdir()
        copy_small_run(work)
        (work / "Bücher.txt").write_text("ein Schiff für Grönland\n日本の猫\na red boat\n", "utf-8")
        yield installed
    finally:
        shutil.rmtree(folder)


def use(installation: Installation, home: Path, work: Path, nobody: bool = False) -> None:
    """Index and search; print texts with characters that the terminal does not have."""
    here = {"home": home, "nobody": nobody}
    run = work / "run"
    facts = json.loads(installation.run("transhash", "doctor", "--json", **here).stdout)
    assert "FAISS" in facts["search kernel"]
    sources = ("--images", work / "photos", "--texts", work / "Bücher.txt")
    installation.run("transhash", "index", run, *sources, **here)
    query = ("transhash", "search", run, "--text", "a red boat", "--modality", "texts", "-k", 20)
    assert "Schiff" in installation.run(*query, **here, PYTHONIOENCODING="ascii").stdout
    printed = installation.run(*query, "--json", **here, PYTHONIOENCODING="ascii").stdout
    texts = [json.loads(line)["text"] for line in printed.splitlines()]
    assert "ein Schiff für Grönland" in texts


def test_it_installs_without_a_compiler_into_a_path_with_spaces_and_umlauts(
    installation: Installation,
) -> None:
    code = "import transhash, sys; print(ascii(transhash.__file__))"
    script = installation.folder / "where.py"
    script.write_text(code)
    result = subprocess.run(
        [installation.python, script],
        capture_output=True, text=True, env={**PLAIN}, cwd=installation.folder,
    )  # fmt: skip
    assert "eine Umgebung" in result.stdout, result.stderr


def test_it_works_with_an_empty_home(installation: Installation) -> None:
    folder = installation.folder
    home = folder / "leer"
    home.mkdir()
    work = Path(shutil.copytree(folder / "Arbeit", folder / "bei leer"))
    use(installation, home, work)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root may change the user")
def test_it_works_for_another_user_with_a_read_only_home(installation: Installation) -> None:
    folder = installation.folder
    if installation.python.resolve().is_relative_to("/root"):
        pytest.skip("no interpreter that another user could start")
    home = folder / "fest"
    home.mkdir(mode=0o555)
    work = Path(shutil.copytree(folder / "Arbeit", folder / "bei fest"))
    for path in (work, *work.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    use(installation, home, work, nobody=True)
    assert list(home.iterdir()) == []


DEMO = """
import sys
sys.modules["fastapi"] = None  # as after `pip install transhash`, without the extra
from transhash.cli import main
sys.argv = ["transhash", "demo"]
main()
"""


def test_a_wheel_runs_the_demo_in_an_empty_folder(tmp_path: Path) -> None:
    source, wheels = clean_source(tmp_path / "source"), tmp_path / "wheels"
    empty = tmp_path / "empty"
    empty.mkdir()
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    build = ["wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", wheels, source]
    subprocess.run([*pip, *build], check=True)
    (wheel,) = wheels.iterdir()
    assert "-cp311-abi3-" in wheel.name  # one for every Python from 3.11 on
    shutil.rmtree(source)
    packages = new_environment(tmp_path / "venv", sys.executable)
    install = ["install", "--no-deps", "--no-index", "--target", packages, wheel]
    subprocess.run([*pip, *install], check=True)
    if shutil.which("cc"):
        assert (packages / "transhash" / "index" / "_hamming.abi3.so").exists()
    result = subprocess.run(
        [tmp_path / "venv" / "bin" / "python", "-c", DEMO], capture_output=True, encoding="utf-8",
        cwd=empty, env={**inherited(), **PLAIN, "HOME": str(tmp_path / "home")},
    )  # fmt: skip
    assert result.returncode == 0, (result.stdout[-1500:], result.stderr[-3000:])
    assert "pip install 'transhash[serve]' && transhash serve runs/demo" in result.stdout
    rows = json.loads((empty / "runs/demo/results.json").read_text(encoding="utf-8"))
    (thn,) = [row for row in rows if row["method"] == "THN"]
    assert thn["text_to_image_map"] > 2 * thn["chance"]
    assert [path.name for path in empty.iterdir()] == ["runs"]
