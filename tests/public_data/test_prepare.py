from __future__ import annotations

import json
from pathlib import Path

import pytest

from transhash.data.benchmark import SplitSizes, load_benchmark
from transhash.datasets.prepare import SOURCES, prepare_folder
from transhash.datasets.raw import packaged_list
from transhash.errors import DataError

from .raw_layouts import (
    CATEGORIES,
    JPEG,
    PHOTOS,
    document,
    read_rows,
    reasons,
    write_imagenet,
    write_nuswide,
    xml,
)

SYNSETS = {"dog": ["n02085620"], "cat": ["n02123045"], "tiger": ["n02129604"]}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Raw data for three categories."""
    root = tmp_path / "raw"
    write_nuswide(root / "NUS-WIDE")
    write_imagenet(root / "ImageNet", {wnid: 12 for (wnid,) in SYNSETS.values()})
    (root / "YahooQA").mkdir()
    words = ("dog", "cats", "tigers", "dog")
    questions = [document(str(n), f"{n} times a {words[n % 4]}?") for n in range(48)]
    (root / "YahooQA" / "FullOct2007.xml").write_text(xml(questions))
    return root


def test_a_prepared_benchmark_can_be_loaded_and_split(root: Path, tmp_path: Path) -> None:
    out = tmp_path / "prepared"
    result = prepare_folder(
        "imagenet-yahooqa",
        root=root,
        out=out,
        categories=CATEGORIES,
        images_per_category=8,
        texts_per_category=10,
    )
    assert result.counts == {"images": 24, "auxiliary": 4, "texts": 30}
    assert sorted(path.name for path in out.iterdir()) == [
        "auxiliary.tsv",
        "benchmark.json",
        "images.tsv",
        "problems.tsv",
        "texts.tsv",
    ]
    description = json.loads((out / "benchmark.json").read_text())
    assert description["protocol"] == "imagenet-yahooqa"
    assert description["sizes"] == {"queries": 2000, "auxiliary": 2000, "target": 500}
    assert description["per_category"]["texts"] == {"dog": 10, "cat": 10, "tiger": 10}
    assert description["per_category"]["auxiliary"] == {"dog": 2, "cat": 2, "tiger": 1}
    assert description["skipped"]["questions above the limit per category"] == 18
    benchmark = load_benchmark(out, SplitSizes(queries=5, auxiliary=2, target=3))
    assert benchmark.problems == ()
    assert len(benchmark.split(seed=1).database_texts) == 25
    assert benchmark.classes == sorted(CATEGORIES)


def test_nus_wide_alone_has_only_pairs(root: Path, tmp_path: Path) -> None:
    out = tmp_path / "prepared"
    result = prepare_folder("nus-wide", root=root, out=out, categories=CATEGORIES)
    assert result.counts == {"auxiliary": 4}
    rows = read_rows(out / "auxiliary.tsv")
    assert rows[2]["labels"] == "cat|tiger"
    assert Path(rows[2]["image"]).read_bytes() == JPEG
    description = json.loads((out / "benchmark.json").read_text())
    assert description["protocol"] == "nus-wide"
    assert description["sizes"] == {"queries": 2000, "per_class": 30, "target": 0}
    assert description["tags"] == "5018"
    split = load_benchmark(out, SplitSizes(queries=1, per_class=1, target=0)).split()
    assert len(split.query_images) == 1
    assert len(split.database_texts) == 3


def test_all_sixteen_packaged_categories_can_be_prepared(tmp_path: Path) -> None:
    names = packaged_list("nuswide_categories.json")["categories"]
    photos = [(f"a\\{n:04}_{n}.jpg", "nature", (name,)) for n, name in enumerate(names)]
    write_nuswide(tmp_path / "NUS-WIDE", photos, names)
    result = prepare_folder("nus-wide", root=tmp_path, out=tmp_path / "out")
    assert result.counts == {"auxiliary": 16}


def test_problems_are_listed_and_counted(root: Path, tmp_path: Path) -> None:
    (root / "NUS-WIDE/Flickr/actor/0001_111.jpg").unlink()
    (root / "ImageNet/n02129604/n02129604_3.JPEG").write_bytes(b"")
    out = tmp_path / "prepared"
    result = prepare_folder(
        "imagenet-yahooqa",
        root=root,
        out=out,
        categories=CATEGORIES,
    )
    problems = {kind: n for kind, n in result.problems.items() if kind != "missing synset"}
    assert problems == {"empty image": 1, "missing image": 1, "too few rows": 3}
    assert json.loads((out / "benchmark.json").read_text())["problems"] == result.problems
    assert ("Imagelist.txt", 1, "missing image") in reasons(out / "problems.tsv")


def test_a_category_without_items_is_reported(tmp_path: Path) -> None:
    root = write_nuswide(tmp_path / "NUS-WIDE", PHOTOS[:2])  # the data set may be the root itself
    result = prepare_folder("nus-wide", root=root, out=tmp_path / "out", categories=CATEGORIES)
    assert result.problems["empty category"] == 1


def test_the_sample_of_texts_depends_only_on_the_seed(root: Path, tmp_path: Path) -> None:
    samples = []
    for number, seed in enumerate((0, 0, 1)):
        out = tmp_path / str(number)
        prepare_folder(
            "imagenet-yahooqa",
            root=root,
            out=out,
            categories=CATEGORIES,
            texts_per_category=5,
            seed=seed,
        )
        samples.append([row["id"] for row in read_rows(out / "texts.tsv")])
    assert samples[0] == samples[1] != samples[2]
    assert samples[0] == sorted(samples[0], key=int)  # file order


def test_folders_may_be_links_and_categories_a_subset(root: Path, tmp_path: Path) -> None:
    (tmp_path / "links").mkdir()
    for name in ("NUS-WIDE", "ImageNet", "YahooQA"):
        (tmp_path / "links" / name).symlink_to(root / name)
    result = prepare_folder(
        "imagenet-yahooqa",
        root=tmp_path / "links",
        out=tmp_path / "out",
        categories=["cat", "tiger"],
    )
    assert result.counts == {"images": 24, "auxiliary": 2, "texts": 24}


def test_quotes_and_tabs_survive_a_round_trip(tmp_path: Path, root: Path) -> None:
    (root / "YahooQA" / "FullOct2007.xml").unlink()
    rows = [{"text": f'say "{word}"\tor\nnot'} for word in ("dog", "cat", "tiger")]
    (root / "YahooQA" / "qa.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    out = tmp_path / "out"
    prepare_folder("imagenet-yahooqa", root=root, out=out, categories=CATEGORIES)
    assert load_benchmark(out).texts.items[0] == 'say "dog" or not'


def test_a_failed_run_does_not_change_the_existing_folder(root: Path, tmp_path: Path) -> None:
    out = tmp_path / "prepared"
    prepare_folder("nus-wide", root=root, out=out, categories=CATEGORIES)
    before = (out / "auxiliary.tsv").read_bytes()
    path = root / "NUS-WIDE/Groundtruth/AllLabels/Labels_cat.txt"
    path.write_text("1\n")
    with pytest.raises(DataError, match="ends after 1 lines"):
        prepare_folder("nus-wide", root=root, out=out, categories=CATEGORIES)
    assert (out / "auxiliary.tsv").read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["prepared", "raw"]


def test_only_a_benchmark_folder_is_replaced(root: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not a benchmark folder"):
        prepare_folder("nus-wide", root=root, out=root / "NUS-WIDE", categories=CATEGORIES)
    (root / "benchmark.json").write_text("{}")
    with pytest.raises(DataError, match="contains the raw data"):
        prepare_folder("nus-wide", root=root, out=root, categories=CATEGORIES)
    assert (root / "NUS-WIDE/ImageList/Imagelist.txt").is_file()


def test_an_empty_part_is_an_error(root: Path, tmp_path: Path) -> None:
    (root / "YahooQA" / "FullOct2007.xml").write_text(xml([document("", "x"), document("1", "y")]))
    with pytest.raises(DataError, match=r"No rows remain for texts\.tsv .*1 x incomplete question"):
        prepare_folder(
            "imagenet-yahooqa",
            root=root,
            out=tmp_path / "out",
            categories=CATEGORIES,
        )


def test_invalid_arguments_are_data_errors(root: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(DataError, match="Unknown protocol 'coco'"):
        prepare_folder("coco", root=root, out=out)
    with pytest.raises(DataError, match="nowhere is not a folder"):
        prepare_folder("nus-wide", root=tmp_path / "nowhere", out=out)
    with pytest.raises(DataError, match="has no folder NUS-WIDE"):
        prepare_folder("nus-wide", root=tmp_path, out=out)
    with pytest.raises(DataError, match="limit per category is 0"):
        prepare_folder("imagenet-yahooqa", root=root, out=out, images_per_category=0)
    with pytest.raises(DataError, match="Unknown category 'zebra'"):
        prepare_folder("nus-wide", root=root, out=out, categories=["dog", "zebra"])
    assert not out.exists()


def test_help_names_the_source_of_every_file() -> None:
    for name in ("ImageList.zip", "Groundtruth.zip", "NUS_WID_Tags.zip", "ILSVRC-2012", "L6"):
        assert name in SOURCES
    assert max(map(len, SOURCES.splitlines())) <= 100


def test_progress_is_shown_for_every_part(root: Path, tmp_path: Path) -> None:
    calls = []

    def track(items, description, total=None, start=0):  # type: ignore[no-untyped-def]
        calls.append((description, total))
        return items

    prepare_folder(
        "imagenet-yahooqa",
        root=root,
        out=tmp_path / "out",
        categories=CATEGORIES,
        track=track,
    )
    assert calls == [("ImageNet", 3), ("NUS-WIDE", 5), ("FullOct2007.xml", 1)]
