"""Installing from a clean copy: no compiler, odd paths, a plain locale, homes of no use, no root;
and from a wheel, with the kernel, into an empty folder.

What transhash depends on is borrowed from this environment by a .pth file, so that nothing is
downloaded; transhash itself is built and installed by pip.
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
    pytest.mark.skipif(sys.platform == "win32", reason="venvs are laid out otherwise there"),
]
PLAIN = {"LANG": "C", "LC_ALL": "C"}
NO_COMPILER = {"CC": "/bin/false", "CXX": "/bin/false"}


class Place(NamedTuple):
    """A virtual environment and a folder to work in, which any user may use."""

    python: Path
    folder: Path

    def run(
        self, *arguments: object, home: Path, nobody: bool = False, **more: str
    ) -> subprocess.CompletedProcess[str]:
        command = [str(self.python), "-m", *map(str, arguments)]
        if nobody:
            user = ["--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups"]
            command = ["setpriv", *user, *command]
        kept = {
            name: os.environ[name] for name in ("PATH", "OMP_NUM_THREADS") if name in os.environ
        }
        done = subprocess.run(
            command, capture_output=True, encoding="utf-8", errors="replace", cwd=self.folder,
            env={**kept, **PLAIN, "HOME": str(home), "TMPDIR": "/tmp", **more},
        )  # fmt: skip
        assert done.returncode == 0, (command, done.stdout[-1500:], done.stderr[-3000:])
        assert "Traceback" not in done.stderr
        return done


def interpreter_for_all() -> str:
    """One that users other than this one can start, too."""
    own = Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}"
    everybody = all(folder.stat().st_mode & 0o001 for folder in (own, *own.parents))
    return str(own) if everybody else f"/usr/bin/python3.{sys.version_info.minor}"


def clean_source(folder: Path) -> Path:
    """What a checkout has of the package, and nothing that was built in it."""
    ignored = shutil.ignore_patterns("*.so", "*.egg-info", "__pycache__", "build")
    shutil.copytree(ROOT / "src", folder / "src", ignore=ignored)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    return folder


def new_environment(venv: Path, python: str) -> Path:
    """The folder of packages of a virtual environment, which borrows all but transhash."""
    subprocess.run([python, "-m", "venv", "--without-pip", venv], check=True)
    packages = Path(venv, "lib", f"python3.{sys.version_info.minor}", "site-packages")
    (packages / "borrowed.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return packages


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
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
        found = Place(venv / "bin" / "python", folder)
        found.run(
            "pip", "install", "--no-deps", "--no-build-isolation", "--ignore-installed",
            "--no-index", source, home=home, **NO_COMPILER,
        )  # fmt: skip
        assert list(packages.glob("transhash-*.dist-info"))
        work = folder / "Arbeit"
        work.mkdir()
        copy_small_run(work)
        (work / "Bücher.txt").write_text("ein Schiff für Grönland\n日本の猫\na red boat\n", "utf-8")
        yield found
    finally:
        shutil.rmtree(folder)


def use(place: Place, home: Path, work: Path, nobody: bool = False) -> None:
    """What everybody does first, and prints of texts that the terminal has no letters for."""
    here = {"home": home, "nobody": nobody}
    run = work / "run"
    facts = json.loads(place.run("transhash", "doctor", "--json", **here).stdout)
    assert "FAISS" in facts["search kernel"]
    sources = ("--images", work / "photos", "--texts", work / "Bücher.txt")
    place.run("transhash", "index", run, *sources, **here)
    asked = ("transhash", "search", run, "--text", "a red boat", "--among", "texts", "-k", 20)
    assert "Schiff" in place.run(*asked, **here, PYTHONIOENCODING="ascii").stdout
    lines = place.run(*asked, "--json", **here, PYTHONIOENCODING="ascii").stdout.splitlines()
    assert "ein Schiff für Grönland" in [json.loads(line)["text"] for line in lines]


def test_it_installs_without_a_compiler_into_a_path_with_spaces_and_umlauts(
    place: Place,
) -> None:
    code = "import transhash, sys; print(ascii(transhash.__file__))"
    script = place.folder / "where.py"
    script.write_text(code)
    where = subprocess.run(
        [place.python, script], capture_output=True, text=True, env={**PLAIN}, cwd=place.folder
    )
    assert "eine Umgebung" in where.stdout, where.stderr


def test_it_works_with_an_empty_home(place: Place) -> None:
    home = place.folder / "leer"
    home.mkdir()
    work = Path(shutil.copytree(place.folder / "Arbeit", place.folder / "bei leer"))
    use(place, home, work)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root may be another")
def test_it_works_for_another_user_with_a_read_only_home(place: Place) -> None:
    if place.python.resolve().is_relative_to("/root"):
        pytest.skip("no interpreter that another user could start")
    home = place.folder / "fest"
    home.mkdir(mode=0o555)
    work = Path(shutil.copytree(place.folder / "Arbeit", place.folder / "bei fest"))
    for path in (work, *work.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    use(place, home, work, nobody=True)
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
    kept = {name: os.environ[name] for name in ("PATH", "OMP_NUM_THREADS") if name in os.environ}
    done = subprocess.run(
        [tmp_path / "venv" / "bin" / "python", "-c", DEMO], capture_output=True, encoding="utf-8",
        cwd=empty, env={**kept, **PLAIN, "HOME": str(tmp_path / "home")},
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout[-1500:], done.stderr[-3000:])
    assert "pip install 'transhash[serve]' && transhash serve runs/demo" in done.stdout
    rows = json.loads((empty / "runs/demo/results.json").read_text(encoding="utf-8"))
    (thn,) = [row for row in rows if row["method"] == "THN"]
    assert thn["text_to_image_map"] > 2 * thn["chance"]
    assert [path.name for path in empty.iterdir()] == ["runs"]
