"""The real command, from files to results, and with mistakes in them."""

import csv
import json
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from importlib.metadata import version
from pathlib import Path
from urllib.parse import quote_plus
from urllib.request import Request, urlopen

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import typer
from PIL import Image

from transhash import cli
from transhash.codes import Codes
from transhash.datasets.synthetic import make_synthetic
from transhash.index import open_index
from transhash.model.encoder import Encoder
from transhash.search.engine import SearchEngine

pytestmark = pytest.mark.slow
QUICK = ("--set", "steps=60", "--set", "batch=64", "--set", "target_batch=32", "--bits", "16")


def transhash(*arguments: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "transhash", *map(str, arguments)], capture_output=True, text=True
    )
    assert done.returncode == code, done.stderr[-2000:]
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_synthetic(tmp_path_factory.mktemp("drawn") / "set", per_class=6)


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run fitted on a user's files and indexed."""
    out = tmp_path_factory.mktemp("runs") / "mine"
    transhash(
        "fit", "thn", "--auxiliary", data / "auxiliary.tsv", "--images", data / "images",
        "--texts", data / "texts.tsv", *QUICK, "--out", out,
    )  # fmt: skip
    transhash("index", out, "--images", data / "images", "--texts", data / "texts.tsv")
    return out


def test_a_sentence_finds_images_and_an_image_finds_texts(run: Path, data: Path) -> None:
    asked = ("--text", "a boat with sails", "-k", 5, "--ranking", "hamming", "--json")
    found = transhash("search", run, *asked).stdout
    rows = [json.loads(line) for line in found.splitlines()]
    assert [row["rank"] for row in rows] == [1, 2, 3, 4, 5]
    assert all(row["id"].endswith(".jpg") for row in rows)
    assert [row["distance"] for row in rows] == sorted(row["distance"] for row in rows)
    picture = next((data / "images").iterdir())
    table = transhash("search", run, "--image", picture, "-k", 3).stdout
    assert "distance" in table
    assert "3 of 72" in table


def test_codes_of_known_things_find_their_kind(run: Path, data: Path) -> None:
    """Better than chance by far: 1 in 12 images is right by luck."""
    engine = SearchEngine.open(run)
    rows = list(csv.DictReader((data / "texts.tsv").open(), delimiter="\t"))
    found = [
        f"{row['labels']}-" in hit.item.id
        for row in rows
        for hit in engine.similar_to_text(row["text"], 3)
    ]
    engine.close()
    assert np.mean(found) > 0.3


def test_what_was_indexed_is_neither_doubled_nor_encoded_again(run: Path, data: Path) -> None:
    said = " ".join(transhash("index", run, "--texts", data / "texts.tsv").stdout.split())
    assert "0 added, 0 updated, 72 unchanged, 0 skipped" in said
    assert "72 images and 72 texts are searchable" in said


def test_verify_tells_damage_by_its_exit_code_and_repairs_it(run: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(run, tmp_path / "copy")
    assert "are whole and belong together" in " ".join(transhash("verify", copy).stdout.split())
    shutil.rmtree(copy / "index" / "images")
    said = transhash("verify", copy, "--json", code=2)
    (finding,) = json.loads(said.stdout)["findings"]
    assert finding["part"] == "index of images"
    assert "repaired: index of images" in transhash("verify", copy, "--repair").stderr
    query = ("--text", "a boat", "-k", 5, "--json")
    assert transhash("search", copy, *query).stdout == transhash("search", run, *query).stdout


def test_a_loaded_run_gives_the_same_bits_in_a_new_process(run: Path, tmp_path: Path) -> None:
    texts = tmp_path / "t.txt"
    texts.write_text("a boat at sea\nthe cat sleeps\n")
    transhash("encode", run, "--texts", texts, "--out", tmp_path / "codes.npy")
    here = Encoder.load(run).encode_texts(["a boat at sea", "the cat sleeps"])
    assert np.array_equal(np.load(tmp_path / "codes.npy"), here.packed)
    transhash("encode", run, "--texts", texts, "--out", tmp_path / "codes.parquet")
    table = pq.read_table(tmp_path / "codes.parquet")
    assert table["id"].to_pylist() == ["1", "2"]
    assert table["code"].to_pylist() == [row.tobytes() for row in here.packed]


def test_a_benchmark_is_fitted_and_scored_beside_chance(data: Path, tmp_path: Path) -> None:
    transhash("fit", "qch", "--benchmark", data, "--bits", 16, "--out", tmp_path / "run")
    said = transhash("evaluate", tmp_path / "run", "--benchmark", data, "--json").stdout
    scores = json.loads(said)
    for direction in ("image_to_text", "text_to_image"):
        assert {"map", "chance", "queries", "database"} <= scores[direction].keys()
        assert scores[direction]["map"] > scores[direction]["chance"]
    assert "MAP" in transhash("evaluate", tmp_path / "run", "--benchmark", data).stdout


def test_broken_files_are_named_and_the_fit_goes_on(data: Path, tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    shutil.copytree(data / "images", photos)
    some = sorted(photos.iterdir())
    whole = some[0].read_bytes()
    some[0].write_bytes(whole[: len(whole) // 3])  # a truncated JPEG
    (photos / "text.png").write_text("renamed")
    (photos / "empty.jpg").touch()
    notes = tmp_path / "notes.csv"
    lines = [f"{i},a boat and a car {i}".encode() for i in range(30)]
    notes.write_bytes(b"id,text\n" + b"\n".join(lines) + b"\n99,caf\xe9 by the sea\n")
    done = transhash(
        "fit", "thn", "--auxiliary", data / "auxiliary.tsv", "--images", photos,
        "--texts", notes, *QUICK, "--out", tmp_path / "run", "--json",
    )  # fmt: skip
    problems = json.loads(done.stdout)["problems"]
    told = {Path(p["source"]).name + "|" + p["where"]: p["reason"] for p in problems}
    reasons = " ".join(told.values())
    assert "damaged image" in reasons
    assert "not an image" in reasons
    assert "empty file" in reasons
    assert "not UTF-8" in reasons
    assert len(problems) == 4


def test_more_skipped_rows_than_are_shown_are_all_listed(run: Path, tmp_path: Path) -> None:
    notes = tmp_path / "notes.jsonl"
    notes.write_text('{"text": "a boat"}\n' + '{"other": 1}\n' * 20)
    done = transhash("encode", run, "--texts", notes, "--out", tmp_path / "codes")
    assert "and 12 more, all listed in" in " ".join(done.stderr.split())
    listed = json.loads((tmp_path / "codes.skipped.json").read_text())
    assert len(listed) == 20
    assert {row["where"] for row in listed} >= {"line 2", "line 21"}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("fit", "thn", "--out", "x"), "no auxiliary data"),
        (("fit", "abc", "--out", "x", "--benchmark", "DATA"), "no method 'abc'"),
        (("fit", "thn", "--out", "x", "--benchmark", "DATA", "--bits", "12"), "multiple of 8"),
        (("fit", "thn", "--out", "x", "--benchmark", "nowhere"), "is not a folder"),
        (("fit", "thn", "--out", "x", "--set", "speed=9", "--benchmark", "DATA"), "no setting"),
        (("fit", "thn", "--out", "x", "--benchmark", "DATA", "--device", "cuda"), "no GPU"),
        (("fit", "thn", "--out", "x", "--benchmark", "DATA", "--device", "gpu"), "cpu or cuda"),
        (("fit", "thn", "--out", "x", "--set", "steps=abc"), "steps takes a whole number"),
        (
            ("fit", "thn", "--out", "x", "--auxiliary", "AUX", "--text-features", "/nowhere"),
            "/nowhere is not a folder",
        ),
        (("fit", "thn", "--out", "RUN", "--benchmark", "DATA"), "has an index"),
        (("fit", "thn", "--out", "DATA", "--benchmark", "DATA"), "holds other files"),
        (("fit", "thn", "--out", "FILE", "--benchmark", "DATA"), "is a file"),
        (("encode", "RUN", "--texts", "FILE", "--out", "FILE"), "is a file"),
        (("encode", "RUN", "--texts", "FILE", "--out", "/proc/none"), "Cannot write /proc/none"),
        (("index", "RUN", "--codes", "gone"), "does not exist"),
        (("index", "RUN", "--images", "DATA", "--texts", "gone.csv"), "does not exist"),
        (("serve", "RUN", "--port", "99999"), "65535"),
        (("search", "RUN"), "either --text or --image"),
        (("search", "RUN", "--image", "gone.jpg"), "does not exist"),
        (("search", "RUN", "--image", "https://example.org/a.jpg"), "is an address; download it"),
        (("search", "RUN", "--text", " "), "--text is empty"),
        (("list", "RUN", "--origin", "gone"), "no item of this run is from"),
        (("search", "DATA", "--text", "x"), "config.json is missing"),
        (("search", "RUN", "--text", "x", "-k", "0"), "1 or more"),
        (("index", "RUN", "--images", "gone"), "does not exist"),
        (("evaluate", "RUN", "--benchmark", "gone"), "is not a folder"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(
    arguments: tuple[str, ...], sentence: str, run: Path, data: Path, tmp_path: Path
) -> None:
    places = {"RUN": run, "DATA": data, "x": tmp_path / "x", "FILE": data / "texts.tsv"}
    places["AUX"] = data / "auxiliary.tsv"
    done = transhash(*(places.get(word, word) for word in arguments), code=2)
    assert sentence in " ".join(done.stderr.split())


def test_codes_that_the_catalog_does_not_know_are_left_out_with_a_word(
    run: Path, data: Path, tmp_path: Path
) -> None:
    place = f"exact:{tmp_path / 'codes'}"
    transhash("index", run, "--from", f"grouped:{run / 'index'}", "--into", place)
    index = open_index(f"{place}/images")
    ids, codes = index.export()
    one_bit = np.array([1, 0], np.uint8)
    index.update(ids[:5], Codes(codes.packed[:5] ^ one_bit, codes.bits))
    index.close()
    done = transhash("search", run, "--text", "a boat", "-k", 72, "--index", place, "--json")
    assert len(done.stdout.splitlines()) == 67
    assert "5 results were left out" in " ".join(done.stderr.split())


def test_ctrl_c_says_that_nothing_is_lost(run: Path, data: Path, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [
            sys.executable, "-m", "transhash", "fit", "thn", "--auxiliary", data / "auxiliary.tsv",
            "--set", "steps=1000000", "--no-verdict", "--out", tmp_path / "run",
        ],
        stderr=subprocess.PIPE, text=True,
        # A shell that runs tests in the background has told them to ignore it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while not (tmp_path / "run" / "metrics.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "what was finished is kept" in " ".join(said.split())
    assert "Traceback" not in said


def test_names_of_files_are_printed_as_they_are(run: Path, data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "a[/b]:smile:"
    said = transhash("encode", run, "--texts", data / "texts.tsv", "--out", folder).stdout
    assert folder.name in "".join(said.split())


def test_codes_from_elsewhere_leave_an_item_its_picture(
    run: Path, data: Path, tmp_path: Path
) -> None:
    copy = shutil.copytree(run, tmp_path / "copy")
    transhash("encode", copy, "--images", data / "images", "--out", tmp_path / "codes")
    said = transhash("index", copy, "--codes", tmp_path / "codes").stdout
    assert "0 added, 0 updated, 72 unchanged" in " ".join(said.split())
    engine = SearchEngine.open(copy)
    hit = engine.similar_to_text("a boat with sails", 1)[0]
    engine.close()
    assert hit.item.has_thumbnail
    assert hit.item.source


def test_an_image_query_of_a_broken_file_is_a_sentence(run: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.jpg").write_text("no picture")
    done = transhash("search", run, "--image", tmp_path / "bad.jpg", code=2)
    assert "cannot be used: not an image" in " ".join(done.stderr.split())


def test_words_that_no_training_text_has_are_warned_of(run: Path) -> None:
    done = transhash("search", run, "--text", "xyzzy plugh", "-k", 1)
    assert "none of these words" in done.stderr


def test_a_single_picture_any_mode_can_be_a_query(run: Path, tmp_path: Path) -> None:
    Image.new("RGBA", (30, 50), (10, 200, 30, 90)).save(tmp_path / "a.png")
    transhash("search", run, "--image", tmp_path / "a.png", "-k", 2, "--sheet", tmp_path / "s.png")
    assert Image.open(tmp_path / "s.png").width > 50


def test_the_doctor_tells_what_is_in_use() -> None:
    facts = json.loads(transhash("doctor", "--json").stdout)
    assert facts["search kernel"]
    assert facts["extra plots"]
    said = transhash("doctor").stdout
    assert "transhash" in said
    assert "\\[" not in said  # what is to be typed is printed as it is typed
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8"))
    extras = project["project"]["optional-dependencies"]
    told = {name.removeprefix("extra ") for name in facts if name.startswith("extra ")}
    assert told == set(extras) - {"dev", "docs"}
    assert facts["extra plots"] == f"matplotlib {version('matplotlib')}: figures of experiments"


def test_precomputed_features_and_clicks_are_enough(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    latent = rng.standard_normal((60, 4))
    np.save(tmp_path / "x.npy", latent @ rng.standard_normal((4, 20)))
    np.save(tmp_path / "y.npy", latent @ rng.standard_normal((4, 30)))
    clicks = [f"{i},{i},1\n{i},{(i + 7) % 60},0\n" for i in range(60)]
    (tmp_path / "clicks.csv").write_text("".join(clicks))
    transhash(
        "fit", "thn", "--auxiliary-images", tmp_path / "x.npy", "--auxiliary-texts",
        tmp_path / "y.npy", "--relation", tmp_path / "clicks.csv", *QUICK, "--out", tmp_path / "r",
    )  # fmt: skip
    assert Encoder.load(tmp_path / "r").image_features is None


def test_every_command_explains_itself_with_an_example() -> None:
    for command in (
        "fit",
        "encode",
        "index",
        "search",
        "evaluate",
        "demo",
        "doctor",
        "completion",
        "serve",
        "verify",
        "list",
        "info",
        "remove",
        "export",
    ):
        assert "Example" in transhash(command, "--help").stdout


def test_votes_on_results_are_exported_and_a_second_fit_learns_from_them(
    run: Path, data: Path, tmp_path: Path
) -> None:
    mine = shutil.copytree(run, tmp_path / "mine")
    assert (
        "holds no votes" in transhash("feedback", mine, "--out", tmp_path / "v.csv", code=2).stderr
    )
    served = subprocess.Popen(
        [sys.executable, "-m", "transhash", "serve", str(mine), "--port", "0", "--writable",
         "--api-key", "key"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert served.stdout is not None
        said = served.stdout.readline()
        url = next(word for word in said.split() if word.startswith("http"))
        for words, right in (("a boat with sails", "boat-"), ("a warm cup", "cup-")):
            asked = f"{url}api/search/text?k=5&q={quote_plus(words)}"
            with urlopen(asked) as reply:
                hits = json.load(reply)["hits"]
            for hit in hits:
                vote = {"image": hit["number"], "text": {"text": words}, "vote": right in hit["id"]}
                body = json.dumps(vote | {"vote": int(vote["vote"])}).encode()
                headers = {"X-API-Key": "key", "Content-Type": "application/json"}
                with urlopen(Request(f"{url}api/votes", body, headers)) as reply:
                    assert json.load(reply)["text"] == words
        served.kill()  # votes are on disk, however the service ends
    finally:
        served.kill()
        served.communicate()
    counts = json.loads(transhash("feedback", mine, "--json").stdout)
    assert counts["up"] + counts["down"] == 10
    assert (counts["texts"], counts["gone"]) == (2, 0)
    transhash("remove", mine, "--images", hits[0]["id"])
    assert "are whole and belong together" in " ".join(transhash("verify", mine).stdout.split())
    exported = transhash("feedback", mine, "--out", tmp_path / "votes.csv").stdout
    assert "1 of them are on items that left the run" in " ".join(exported.split())
    rows = list(csv.DictReader((tmp_path / "votes.csv").open(encoding="utf-8")))
    assert len(rows) == 10
    assert all(Path(row["image"]).is_file() for row in rows)
    sources = ("--auxiliary", data / "auxiliary.tsv", "--images", data / "images",
               "--texts", data / "texts.tsv", "--relation", tmp_path / "votes.csv")  # fmt: skip
    better = tmp_path / "better"
    said = " ".join(transhash("fit", "thn", *sources, *QUICK, "--out", better).stdout.split())
    assert f"{counts['up']} votes up and {counts['down']} down" in said
    assert json.loads(transhash("info", better, "--json").stdout)["learned from votes"] == 10
    refused = transhash("fit", "qch", *sources, "--out", tmp_path / "no", code=2).stderr
    assert "learn from them with thn" in " ".join(refused.split())
    refused = transhash("evaluate", better, "--benchmark", data, code=2).stderr
    assert "has no place in a benchmark" in " ".join(refused.split())
    own = ("--images", data / "images.tsv", "--texts", data / "texts.tsv", "--json")
    scores = json.loads(transhash("evaluate", better, *own).stdout)
    assert scores["voted"] == counts["images"]  # typed words are no text of the files
    assert scores["image_to_text"]["queries"] == 72 - counts["images"]
    transhash("feedback", mine, "--forget-gone")
    left = json.loads(transhash("feedback", mine, "--json").stdout)
    assert (left["up"] + left["down"], left["gone"]) == (9, 0)


@pytest.mark.parametrize(
    "error", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")]
)
def test_too_little_memory_is_a_sentence(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def raised(app: typer.Typer) -> None:
        raise error

    monkeypatch.setattr(typer.Typer, "__call__", raised)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert "not enough memory" in capsys.readouterr().err


def test_another_fault_is_not_called_a_lack_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def raised(app: typer.Typer) -> None:
        raise RuntimeError("shapes do not match")

    monkeypatch.setattr(typer.Typer, "__call__", raised)
    with pytest.raises(RuntimeError, match="shapes"):
        cli.main()
