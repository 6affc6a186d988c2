"""evaluate: scores of a benchmark, of any index and of labeled files."""

from __future__ import annotations

import csv
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import Command
from milvus_server import MilvusServer

pytest.importorskip("pymilvus", reason="needs the milvus extra: pip install 'transhash[milvus]'")

from transhash.codes import Codes
from transhash.data.manifest import read_images, read_texts
from transhash.evaluation import DistanceHistogram, Scores, evaluate, label_matrix
from transhash.index import open_index
from transhash.model.encoder import Encoder
from transhash.scoring import (
    Direction,
    backend_histograms,
    backends,
    build_directions,
    score_directions,
)
from transhash.search.engine import SearchEngine
from transhash.training.split_data import build_test_set, load_benchmark_features

BACKENDS = ["grouped:{}/g", "exact:{}/e", "faiss:{}/f", "faiss:", "{}/bare", "milvus:{}/codes.db"]
_numbers = itertools.count()


@pytest.fixture
def transhash(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    return Command(capsys, monkeypatch)


@pytest.fixture
def expected_scores(transhash: Command, run: Path, data: Path) -> tuple[Any, Any]:
    return transhash("evaluate", run, "--benchmark", data, "--json").directions


def random_directions(items: int, bits: int = 16, queries: int = 20) -> dict[str, Direction]:
    rng = np.random.default_rng(0)

    def side(count: int) -> tuple[Codes, np.ndarray]:
        packed = rng.integers(0, 256, (count, bits // 8), dtype=np.uint8)
        return Codes(packed, bits), rng.random((count, 6)) < 0.3

    sides = [(side(queries), side(items)) for _ in range(2)]
    directions = [Direction(q[0], d[0], q[1], d[1]) for q, d in sides]
    return dict(zip(("image_to_text", "text_to_image"), directions, strict=True))


# ---- a benchmark ----


def test_the_scores_of_a_benchmark_are_those_of_its_split(
    transhash: Command, run: Path, data: Path, expected_scores: tuple[Any, Any]
) -> None:
    encoder = Encoder.load(run)
    assert encoder.image_features is not None
    assert encoder.text_features is not None
    benchmark, _ = load_benchmark_features(data, encoder.image_features)
    target = build_test_set(benchmark, benchmark.split(0), encoder.text_features)
    scores = score_directions(build_directions(encoder.hasher, target))
    assert tuple(each.to_dict() for each in scores.values()) == expected_scores


@pytest.mark.parametrize("url", BACKENDS)
def test_an_exact_index_gives_the_scores_without_an_index(
    transhash: Command,
    run: Path,
    data: Path,
    expected_scores: tuple[Any, Any],
    url: str,
    tmp_path: Path,
) -> None:
    index_url = url.format(tmp_path)
    arguments = ("evaluate", run, "--benchmark", data, "--index", index_url)
    first = transhash(*arguments, "--json")
    assert first.directions == expected_scores
    assert first.scores["sent"] == 48
    again = transhash(*arguments, "--map-definition", "hits", "--cutoff", 5, "--json")
    assert again.scores["sent"] == (48 if index_url == "faiss:" else 0)  # it is in memory
    expected = transhash(
        "evaluate", run, "--benchmark", data, "--map-definition", "hits", "--cutoff", 5, "--json"
    )
    assert again.directions == expected.directions
    assert f"index: {index_url}" in " ".join(transhash(*arguments).out.split())


@pytest.mark.parametrize("url", ["grouped:{}/g", "milvus:{}/codes.db"])
def test_only_missing_codes_are_sent(
    transhash: Command,
    run: Path,
    data: Path,
    expected_scores: tuple[Any, Any],
    url: str,
    tmp_path: Path,
) -> None:
    index_url = url.format(tmp_path)
    arguments = ("evaluate", run, "--benchmark", data, "--index", index_url, "--json")
    transhash(*arguments)
    texts_url = f"{index_url}#texts" if "milvus" in index_url else f"{index_url}/texts"
    with open_index(texts_url) as index:
        index.remove(np.arange(7))
    result = transhash(*arguments)
    assert result.scores["sent"] == 7
    assert result.directions == expected_scores


@pytest.mark.parametrize("url", ["grouped:{}/g", "faiss:{}/f", "milvus:{}/codes.db"])
def test_an_index_with_other_items_is_refused_and_unchanged(
    transhash: Command, run: Path, data: Path, url: str, tmp_path: Path
) -> None:
    index_url = url.format(tmp_path)
    texts, images = (
        f"{index_url}#{modality}" if "milvus" in index_url else f"{index_url}/{modality}"
        for modality in ("texts", "images")
    )
    with open_index(images, 16) as index:  # the one that is checked last
        index.add([0, 10**9], Codes(np.full((2, 2), 77, np.uint8), 16))
    arguments = ("evaluate", run, "--benchmark", data, "--index", index_url)
    assert "2 codes that are not part" in transhash.refused(*arguments)
    with open_index(images, read_only=True) as index:
        assert index.export()[0].tolist() == [0, 10**9]
    with pytest.raises(Exception, match="No index at"):
        open_index(texts, 16, read_only=True)


def test_an_index_of_another_code_length_is_refused(
    transhash: Command, run: Path, data: Path, tmp_path: Path
) -> None:
    open_index(f"{tmp_path / 'g'}/images", 32).close()
    message = transhash.refused("evaluate", run, "--benchmark", data, "--index", tmp_path / "g")
    assert "has 32-bit codes" in message
    assert not (tmp_path / "g" / "texts").exists()


def test_rankings_in_blocks_are_counted_like_all_pairs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backends, "_CHUNK_PAIRS", 1_000)  # three queries at a time
    directions = random_directions(300)
    histograms, sent = backend_histograms("grouped:", directions)
    assert sent == 600
    assert histograms == {name: each.tie_groups() for name, each in directions.items()}


def test_items_that_an_index_omits_are_ranked_last() -> None:
    related = np.array([[1, 0, 0, 1], [0, 1, 1, 0]], np.bool_)  # queries x items
    rows = np.array([[0, 2, 1, -1], [1, 0, -1, -1]])
    distances = np.array([[0, 2, 2, -1], [1, 1, -1, -1]], np.int32)
    histogram = DistanceHistogram.from_search_results(
        rows, distances, related, np.eye(4, dtype=np.bool_), 8
    )
    assert histogram.items.tolist() == [[1, 0, 2, 0, 0, 0, 0, 0, 1], [0, 2, 0, 0, 0, 0, 0, 0, 2]]
    assert histogram.relevant.tolist() == [[1, 0, 0, 0, 0, 0, 0, 0, 1], [0, 1, 0, 0, 0, 0, 0, 0, 1]]


# ---- a server ----


@pytest.mark.server
def test_a_server_gives_the_scores_without_an_index(
    transhash: Command,
    server: MilvusServer,
    run: Path,
    data: Path,
    expected_scores: tuple[Any, Any],
) -> None:
    arguments = ("evaluate", run, "--benchmark", data, "--json", "--index")
    url = f"{server.url}/c{next(_numbers)}"
    for sent in (48, 0):
        result = transhash(*arguments, url)
        assert result.directions == expected_scores
        assert result.scores["sent"] == sent


@pytest.mark.server
def test_searching_all_ivf_lists_is_exact_and_fewer_are_not(server: MilvusServer) -> None:
    # Enough codes for a server to build lists.
    directions = random_directions(6_000, 32)
    url = f"{server.url}/lists{next(_numbers)}?index=BIN_IVF_FLAT&nlist=32"
    exact = {name: DistanceHistogram.from_codes(*each[:4]) for name, each in directions.items()}
    # Also right after sending: a server that has not built its lists yet scans every code.
    few, sent = backend_histograms(f"{url}&nprobe=2", directions)
    assert sent == 12_000
    assert backend_histograms(url, directions) == (exact, 0)
    for name, histogram in few.items():
        assert histogram.database == 6_000
        assert (histogram.relevant_totals == exact[name].relevant_totals).all()
        lost = histogram.items[:, -1].mean()
        assert lost > 3_000
        assert Scores.from_counts(histogram).chance == Scores.from_counts(exact[name]).chance


# ---- own files ----


@pytest.fixture
def own(data: Path, tmp_path: Path) -> tuple[Path, Path]:
    """Images and texts with labels, three rows without."""
    images, texts = tmp_path / "photos.csv", tmp_path / "notes.csv"
    for path, kind in ((images, "image"), (texts, "text")):
        rows = list(csv.DictReader((data / f"{kind}s.tsv").open(), delimiter="\t"))
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(("id", kind, "labels"))
            for number, row in enumerate(rows):
                name = row.get("id") or row["image"]
                content = str((data / row["image"]).absolute()) if kind == "image" else row["text"]
                unlabeled = number < (1 if kind == "image" else 2)
                writer.writerow((name, content, "" if unlabeled else row["labels"]))
    return images, texts


def test_labeled_files_are_scored_in_both_directions(
    transhash: Command, run: Path, own: tuple[Path, Path]
) -> None:
    result = transhash("evaluate", run, "--images", own[0], "--texts", own[1], "--json")
    scores = result.scores
    assert scores["unlabeled"] == 3
    assert scores["benchmark"] == "photos.csv and notes.csv"
    encoder = Encoder.load(run)
    images, texts = read_images(own[0]).take(range(1, 36)), read_texts(own[1]).take(range(2, 36))
    codes, text_codes = encoder.encode_images(images)[0], encoder.encode_texts(texts)
    classes = sorted(set().union(*images.labels, *texts.labels))
    image_labels, text_labels = (label_matrix(part.labels, classes) for part in (images, texts))
    forward = evaluate(codes, text_codes, image_labels, text_labels)
    backward = evaluate(text_codes, codes, text_labels, image_labels)
    assert result.directions == (forward.to_dict(), backward.to_dict())
    table = " ".join(transhash("evaluate", run, "--images", own[0], "--texts", own[1]).out.split())
    assert "Excluded 3 rows" in table
    assert "chance" in table


def test_the_seed_determines_the_queries(
    transhash: Command, run: Path, own: tuple[Path, Path]
) -> None:
    files = ("--images", own[0], "--texts", own[1], "--json", "--queries", 9)
    first, again, other = (
        transhash("evaluate", run, *files, "--seed", seed).directions for seed in (1, 1, 2)
    )
    assert first == again != other
    assert [part["queries"] for part in first] == [9, 9]
    assert [part["database"] for part in first] == [34, 35]


@pytest.mark.parametrize("url", ["grouped:{run}/index", "milvus:{folder}/served.db"])
def test_an_existing_index_is_scored(
    transhash: Command, run: Path, own: tuple[Path, Path], url: str, tmp_path: Path
) -> None:
    """The index of the run has 36 + 36 items, of which the files label 35 + 34."""
    index_url = url.format(run=run, folder=tmp_path)
    if "milvus" in index_url:
        transhash("copy", run, "--from", f"grouped:{run / 'index'}", "--to", index_url)
    files = ("--images", own[0], "--texts", own[1], "--queries", 20)
    expected = transhash("evaluate", run, *files, "--json")
    indexed = transhash("evaluate", run, *files, "--index", index_url, "--json")
    assert indexed.directions == expected.directions
    assert indexed.scores["not_indexed"] == {"images": 0, "texts": 0}


def test_items_that_are_not_indexed_are_reported(
    transhash: Command, run: Path, own: tuple[Path, Path], tmp_path: Path
) -> None:
    with own[1].open("a", newline="") as file:
        csv.writer(file).writerow(("new", "a boat at sea", "boat"))
    files = ("--images", own[0], "--texts", own[1], "--index", f"grouped:{run / 'index'}")
    said = " ".join(transhash("evaluate", run, *files).out.split())
    assert "1 texts and 0 images that are not in the index" in said
    SearchEngine.open(run, f"grouped:{tmp_path / 'empty'}", writable=True).close()
    empty = (*files[:4], "--index", f"grouped:{tmp_path / 'empty'}")
    assert "None of the 35 labeled texts" in transhash.refused("evaluate", run, *empty)


# ---- weighted rankings ----


@pytest.mark.parametrize("ranking", ["tiebreak", "weighted"])
def test_a_weighted_ranking_is_scored_from_projections(
    transhash: Command,
    run: Path,
    own: tuple[Path, Path],
    expected_scores: tuple[Any, Any],
    ranking: Any,
) -> None:
    files = ("--images", own[0], "--texts", own[1])
    result = transhash("evaluate", run, *files, "--ranking", ranking, "--json")
    encoder = Encoder.load(run)
    images, texts = read_images(own[0]).take(range(1, 36)), read_texts(own[1]).take(range(2, 36))
    x, y = encoder.project_images(images)[0], encoder.project_texts(texts)
    codes, text_codes = Codes.from_projections(x), Codes.from_projections(y)
    classes = sorted(set().union(*images.labels, *texts.labels))
    image_labels, text_labels = (label_matrix(part.labels, classes) for part in (images, texts))
    forward = evaluate(
        codes, text_codes, image_labels, text_labels, ranking=ranking, query_projections=x
    )
    backward = evaluate(
        text_codes, codes, text_labels, image_labels, ranking=ranking, query_projections=y
    )
    assert result.directions == (forward.to_dict(), backward.to_dict())
    assert result.scores["ranking"] == result.directions[0]["ranking"] == ranking
    assert expected_scores[0]["ranking"] == "hamming"
    plain = transhash("evaluate", run, *files, "--json")
    assert plain.scores["ranking"] == "hamming"
    assert plain.directions[0]["map"] != result.directions[0]["map"]
    assert "ranking: Hamming distance" in transhash("evaluate", run, *files).out
    printed = " ".join(transhash("evaluate", run, *files, "--ranking", ranking).out.split())
    assert "by query confidence" in printed


@pytest.mark.parametrize("ranking", ["tiebreak", "weighted"])
@pytest.mark.parametrize("url", BACKENDS)
def test_every_backend_gives_the_scores_of_a_weighted_ranking(
    transhash: Command, run: Path, data: Path, url: str, ranking: str, tmp_path: Path
) -> None:
    arguments = ("evaluate", run, "--benchmark", data, "--ranking", ranking, "--json")
    indexed = transhash(*arguments, "--index", url.format(tmp_path)).directions
    for ours, theirs in zip(indexed, transhash(*arguments).directions, strict=True):
        assert ours["map"] == pytest.approx(theirs["map"], abs=1e-12)
        assert ours["precision_at"] == pytest.approx(theirs["precision_at"], abs=1e-12)
        assert ours["ranking"] == ranking


def test_an_existing_index_is_scored_by_a_weighted_ranking(
    transhash: Command, run: Path, own: tuple[Path, Path]
) -> None:
    files = (
        "--images", own[0], "--texts", own[1], "--queries", 20, "--ranking", "weighted", "--json",
    )  # fmt: skip
    expected = transhash("evaluate", run, *files)
    indexed = transhash("evaluate", run, *files, "--index", f"grouped:{run / 'index'}")
    for ours, theirs in zip(indexed.directions, expected.directions, strict=True):
        assert ours["map"] == pytest.approx(theirs["map"], abs=1e-12)


def test_search_uses_the_ranking_and_reports_it(
    transhash: Command, run: Path, tmp_path: Path
) -> None:
    def rows(*options: object) -> list[Any]:
        codes = ("--search", "codes")  # alone are ordered by distance
        result = transhash("search", run, "--text", "a boat", "-k", 36, "--json", *codes, *options)
        return [json.loads(line) for line in result.out.splitlines()]

    plain = [row["distance"] for row in rows("--ranking", "hamming")]
    assert plain == [row["distance"] for row in rows("--ranking", "tiebreak")] == sorted(plain)
    assert rows() == rows("--ranking", "weighted")
    engine = SearchEngine.open(run)
    for mode in ("tiebreak", "weighted"):
        hits = engine.similar_to_text("a boat", 36, "images", mode, search="codes")  # type: ignore[arg-type]
        assert [hit.item.id for hit in hits] == [row["id"] for row in rows("--ranking", mode)]
    engine.close()
    assert "weighted ranking" in transhash("search", run, "--text", "a boat").out
    faiss = f"faiss:{tmp_path / 'f'}"
    transhash("copy", run, "--from", f"grouped:{run / 'index'}", "--to", faiss)
    result = transhash("search", run, "--text", "a boat", "-k", 2, "--index", faiss).out
    assert "weighted ranking, top 108 reranked" in " ".join(result.split())
    assert "tiebreak" in transhash.refused("search", run, "--text", "a boat", "--ranking", "cosine")


# ---- errors ----


def test_a_search_in_a_missing_milvus_file_creates_nothing(
    transhash: Command, run: Path, tmp_path: Path
) -> None:
    index_url = f"milvus:{tmp_path / 'typo.db'}"
    message = transhash.refused("search", run, "--text", "a boat", "--index", index_url)
    assert "No index at milvus:" in message
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("", "one data set"),
        ("--images OWN", "both modalities"),
        ("--benchmark DATA --images OWN --texts OWN", "one data set"),
        ("--images OWN --texts BARE", "BARE has no labels"),
        ("--images DATA/images --texts OWN", "has no labels"),
        ("--images OWN --texts OTHER", "share no label"),
        ("--images OWN --texts OWN --queries 0", "must be 1 or more"),
        ("--images OWN --texts OWN --shard 1/2 --histogram h", "on a benchmark"),
        ("--images OWN --texts OWN --index faiss:nowhere", "No index at nowhere"),
        ("--benchmark DATA --index faiss:x --shard 1/2 --histogram h", "Remove"),
        ("--benchmark DATA --index faiss:x --merge h", "Remove"),
        ("--benchmark DATA --index quick:x", "backend 'quick'"),
        ("--benchmark DATA --shard 1/2", "belong together"),
        ("--benchmark DATA --histogram h", "belong together"),
        ("--shard 1/2 --histogram h --merge h", "Pass one of them"),
        ("--benchmark DATA --map-definition nobody", "'nobody'"),
        ("--benchmark DATA --ranking cosine", "'cosine'"),
        ("--benchmark DATA --ranking weighted --shard 1/2 --histogram h", "Remove"),
        ("--benchmark DATA --ranking tiebreak --merge h", "Remove"),
    ],
)
def test_a_wrong_command_exits_with_2(
    transhash: Command, run: Path, data: Path, options: str, message: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    image = next((data / "images").iterdir())
    for name, labels in (("own", "boat"), ("bare", ""), ("other", "zebra")):
        rows = f"image,text,labels\n{image},a boat,{labels}\n"
        (tmp_path / f"{name}.csv").write_text(rows)
    paths = {"OWN": "own.csv", "BARE": "bare.csv", "OTHER": "other.csv", "DATA": str(data)}
    for name, path in paths.items():
        options, message = options.replace(name, path), message.replace(name, path)
    assert message in transhash.refused("evaluate", run, *options.split())
    assert not {"h", "x", "nowhere"} & {path.name for path in tmp_path.iterdir()}
