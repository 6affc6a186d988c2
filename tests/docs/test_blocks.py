"""Run the commands and programs of README.md and docs/quickstart.md in order.

A text block below a bash or python block is its expected output. Times, percentages, distances and
folders differ between machines; everything else is compared.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote_plus

import pytest

pytest.importorskip("fastapi", reason="pip install 'transhash[serve]'")
pytest.importorskip("pillow_heif", reason="pip install 'transhash[heic]'")

from service.server_process import wait_until_ready
from transhash.datasets.synthetic import CLASSES, make_synthetic

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
HOME = "/home/me"  # the home folder in the documents


class Block(NamedTuple):
    language: str
    code: str
    prints: str | None


def blocks(page: str) -> list[Block]:
    text = (ROOT / page).read_text(encoding="utf-8")
    matches = re.findall(
        r"^```(bash|python)\n(.*?)^```\n(?:\n?```text\n(.*?)^```\n)?",
        text,
        re.MULTILINE | re.DOTALL,
    )
    assert len(matches) == len(re.findall(r"^```(?:bash|python)$", text, re.MULTILINE))
    return [Block(language, code, prints or None) for language, code, prints in matches]


class Shell:
    """A folder with `transhash` on the path. Servers are queried and stopped."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        programs = folder.parent / f"{folder.name}-bin"
        programs.mkdir()
        script = programs / "transhash"
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m transhash "$@"\n')
        script.chmod(0o755)
        # Wide, so that no table is folded.
        path = f"{programs}{os.pathsep}{os.environ['PATH']}"
        self.environment = os.environ | {"PATH": path, "COLUMNS": "300"}

    def run(self, block: Block, before: str = "") -> str:
        if block.language == "python":
            return self.output_of([sys.executable, "-c", before + block.code])
        commands = re.sub(r"\\\n\s*", " ", block.code).splitlines()
        serves = "transhash serve"
        return "".join(
            self._serve(line) if line.startswith(serves) else self.output_of(["bash", "-ec", line])
            for line in commands
        )

    def output_of(self, command: list[str]) -> str:
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{command[-1]}\n{done.stderr[-2000:]}"
        return done.stdout.replace(str(self.folder), HOME)

    def _serve(self, line: str) -> str:
        command = line.split("#")[0].split()
        server = subprocess.Popen(
            [*command, "--port", "0"], cwd=self.folder, stdout=subprocess.PIPE, text=True,
            env=self.environment | {"PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
        try:
            assert server.stdout is not None
            address = re.search(r"http://\S+", server.stdout.readline())
            assert address is not None
            url, _, key = address[0].partition("#key=")
            with urllib.request.urlopen(f"{url}api/about") as reply:
                assert reply.status == 200
            if "--writable" in command:
                wait_until_ready(url)
                self._vote(url, key)
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(60)
        return ""

    def _vote(self, url: str, key: str) -> None:
        """Vote as the tutorial says: eight up, two down."""
        asked = "a boat with a white sail"
        with urllib.request.urlopen(f"{url}api/search/text?k=200&q={quote_plus(asked)}") as reply:
            hits = json.load(reply)["hits"]
        headers = {"X-API-Key": key, "Content-Type": "application/json"}
        for hit, vote in [*((hit, 1) for hit in hits[:8]), *((hit, 0) for hit in hits[-2:])]:
            body = {"image": hit["number"], "text": {"text": asked}, "vote": vote}
            urllib.request.urlopen(
                urllib.request.Request(f"{url}api/votes", json.dumps(body).encode(), headers)
            ).close()


def normalize(output: str) -> list[str]:
    """Return the lines without what differs from machine to machine."""
    lines = []
    for line in output.strip().splitlines():
        line = " ".join(line.split())
        # A search result: keep its rank.
        line = re.sub(r"^(\d+) \d+ (?:IMG_\d+\.\w+ \S+|\w+-\d+\.txt .+)$", r"\1 hit", line)
        line = re.sub(r"\d+(\.\d+)?(%| ms\b| s\b)", "N", line)
        line = re.sub(r"Codes: \d+ distinct", "Codes: N distinct", line)
        line = re.sub(r"top \d+ of \d+", "top N of N", line)
        line = re.sub(r"\d+-N of the time", "N of the time", line)
        lines.append(line)
    return lines


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    folder = tmp_path / "me"
    folder.mkdir()
    yield Shell(folder)
    shutil.rmtree(folder)


def test_the_tutorial_does_what_it_shows(shell: Shell) -> None:
    for block in blocks("docs/quickstart.md"):
        output = shell.run(block)
        if block.prints is not None:
            assert normalize(output) == normalize(block.prints)
            for text in (output, block.prints):  # thirty per class, in the order of their names
                if "-k 5" in block.code:
                    named = [
                        int(n) // 30 for n in re.findall(r"^\s+\d.*photos/IMG_(\d+)", text, re.M)
                    ]
                    assert [sorted(CLASSES)[n] for n in named] == ["boat"] * 5
    assert (shell.folder / "results.png").stat().st_size > 10_000


# Arrays that the README assumes.
ARRAYS = """
import numpy as np
rng = np.random.default_rng(0)
kinds = np.eye(4)
labels_x = kinds[rng.integers(0, 4, 200)]
labels_y = kinds[rng.integers(0, 4, 200)]
of_images, of_texts = rng.normal(size=(4, 30)), rng.normal(size=(4, 20))
x = labels_x @ of_images + 0.3 * rng.normal(size=(200, 30))
y = labels_y @ of_texts + 0.3 * rng.normal(size=(200, 20))
target_x, target_y, photos = x[::2] + 0.5, y[::2] + 0.5, x[:5]
"""


def write_csv(source: Path, to: Path, columns: tuple[str, ...]) -> None:
    with source.open(encoding="utf-8") as rows, to.open("w", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(csv.DictReader(rows, delimiter="\t"))


def test_the_readme_does_what_it_shows(shell: Shell) -> None:
    folder = shell.folder
    data = make_synthetic(folder / "data", per_class=20)
    shutil.copy(data / "auxiliary.tsv", folder / "aux.tsv")
    for name, parts in (("auxiliary", "auxiliary"), ("images", "images"), ("images", "photos")):
        shutil.copytree(data / name, folder / parts)
    write_csv(data / "texts.tsv", folder / "notes.csv", ("id", "text"))
    write_csv(data / "texts.tsv", folder / "labeled-notes.csv", ("id", "text", "labels"))
    write_csv(data / "images.tsv", folder / "labeled.csv", ("image", "labels"))
    shutil.copy(data / "images" / "cat-003.jpg", folder / "cat.jpg")
    shell.output_of(["bash", "-ec", "transhash demo --no-serve"])  # what `make demo` does
    for block in blocks("README.md"):
        output = shell.run(block, ARRAYS if "TrainingSet(x" in block.code else "")
        if block.prints is not None:
            # Distances and the order inside a class differ; classes do not.
            expected, actual = (
                [re.sub(r"\d+", "N", " ".join(line.split()[:2])) for line in text.splitlines()]
                for text in (block.prints, output)
            )
            assert actual == expected
