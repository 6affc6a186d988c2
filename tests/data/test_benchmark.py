from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from transhash.data.benchmark import (
    PROTOCOLS,
    Benchmark,
    SplitSizes,
    load_benchmark,
    shrink_sizes,
)
from transhash.data.collection import Collection
from transhash.errors import DataError
from transhash.storage import write_json


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Image.new("RGB", (4, 4)).save(tmp_path / "p.png")
    rows = [f"{i}\tp.png\tword{i}\t{'ab'[i % 2]}" for i in range(60)]
    (tmp_path / "auxiliary.tsv").write_text("id\timage\ttext\tlabels\n" + "\n".join(rows))
    (tmp_path / "images.tsv").write_text(
        "id\timage\tlabels\n" + "\n".join(f"{i}\tp.png\t{'ab'[i % 2]}" for i in range(50))
    )
    (tmp_path / "texts.tsv").write_text(
        "id\ttext\tlabels\n" + "\n".join(f"{i}\tword\t{'ab'[i % 2]}" for i in range(40))
    )
    return tmp_path


SIZES = SplitSizes(queries=10, auxiliary=40, target=8, per_class=3)


def test_a_split_follows_the_papers_cross_domain_protocol(folder: Path) -> None:
    split = load_benchmark(folder, SIZES).split(0)
    assert len(split.auxiliary_images) == len(split.auxiliary_texts) == 40
    assert not np.array_equal(split.auxiliary_images, split.auxiliary_texts)  # not paired
    assert not set(split.auxiliary_images) & set(split.held_out_images)
    assert not set(split.query_images) & set(split.database_images)
    assert set(split.target_images) <= set(split.database_images)  # no query is trained on
    assert set(split.target_texts) <= set(split.database_texts)
    assert len(split.database_images) == 40
    assert len(split.database_texts) == 30


def random_benchmark(protocol: str, items: int, classes: int, sizes: SplitSizes) -> Benchmark:
    """Return a benchmark of ids and labels, which is all that `split` uses."""
    rng = np.random.default_rng(items)

    def part(letter: str) -> Collection[str]:
        names = [f"{letter}{row}" for row in range(items)]
        labels = [rng.choice(classes, rng.integers(1, 3)) for _ in names]
        return Collection(names, names, [frozenset(map(str, row)) for row in labels])

    parts = [part(letter) for letter in "abcd"]
    if protocol == "nus-wide":
        parts = [parts[0], parts[0], parts[0], parts[0]]
    return Benchmark("random", protocol, *parts, sizes)  # type: ignore[arg-type, call-arg]


@given(
    items=st.integers(60, 150),
    classes=st.integers(1, 5),
    queries=st.integers(1, 20),
    auxiliary=st.integers(1, 50),
    target=st.integers(0, 30),
    per_class=st.integers(1, 12),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=30, deadline=None, derandomize=True, database=None)
def test_the_parts_of_a_split_do_not_overlap(
    items: int, classes: int, queries: int, auxiliary: int, target: int, per_class: int, seed: int
) -> None:
    sizes = SplitSizes(queries, auxiliary, target, per_class)

    def check_disjoint(*parts: npt.NDArray[np.int64]) -> None:
        rows = [int(row) for part in parts for row in part]
        assert len(rows) == len(set(rows))

    cross = random_benchmark("imagenet-yahooqa", items, classes, sizes).split(seed)
    check_disjoint(cross.auxiliary_images, cross.held_out_images)
    check_disjoint(cross.auxiliary_texts, cross.held_out_texts)
    assert len(cross.auxiliary_images) == len(cross.auxiliary_texts) == auxiliary
    assert len(cross.held_out_images) == len(cross.held_out_texts) == items - auxiliary
    in_domain = random_benchmark("nus-wide", items, classes, sizes).split(seed)
    # Rows are pairs here: the two halves of one must not be in different parts.
    check_disjoint(
        in_domain.query_images, in_domain.auxiliary_images, in_domain.auxiliary_texts,
        in_domain.held_out_images, in_domain.held_out_texts,
        in_domain.target_images, in_domain.target_texts,
    )  # fmt: skip
    for split in (cross, in_domain):
        for query, database, target_part in (
            (split.query_images, split.database_images, split.target_images),
            (split.query_texts, split.database_texts, split.target_texts),
        ):
            check_disjoint(query, database)
            assert len(query) == queries
            assert len(query) + len(database) == items
            assert set(target_part) <= set(database)


def test_a_split_depends_only_on_its_seed(folder: Path) -> None:
    benchmark = load_benchmark(folder, SIZES)
    first, again, other = benchmark.split(1), benchmark.split(1), benchmark.split(2)
    assert np.array_equal(first.query_images, again.query_images)
    assert not np.array_equal(first.query_images, other.query_images)


def test_the_in_domain_protocol_never_trains_on_both_halves_of_a_pair(folder: Path) -> None:
    write_json(folder / "benchmark.json", {"protocol": "nus-wide", "sizes": {"queries": 10}})
    benchmark = load_benchmark(folder, SIZES)
    split = benchmark.split(0)
    assert not set(split.auxiliary_images) & set(split.auxiliary_texts)
    assert len(split.auxiliary_images) == 2 * SIZES.per_class
    assert set(split.auxiliary_images) <= set(split.database_images)
    assert np.array_equal(split.query_images, split.query_texts)


def test_sizes_without_a_rest_are_refused(folder: Path) -> None:
    with pytest.raises(DataError, match="smaller sizes"):
        load_benchmark(folder, SplitSizes(queries=50)).split(0)


def test_small_benchmarks_get_smaller_sizes(folder: Path) -> None:
    benchmark = load_benchmark(folder)
    sizes = shrink_sizes(benchmark)
    assert sizes == SplitSizes(queries=13, auxiliary=48, target=13, per_class=30)
    shrunk = Benchmark(**{**benchmark.__dict__, "sizes": sizes})
    assert len(shrunk.split(0).query_texts) == 13


def test_an_unknown_protocol_is_refused(folder: Path) -> None:
    write_json(folder / "benchmark.json", {"protocol": "mine"})
    with pytest.raises(DataError, match="Unknown protocol"):
        load_benchmark(folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "description"),
        ({"sizes": 3}, "description"),
        ({"sizes": {"queries": "many"}}, "queries = 'many'"),
        ({"sizes": {"target": -1}}, "target = -1"),
    ],
)
def test_an_invalid_description_is_a_data_error(
    folder: Path, content: object, message: str
) -> None:
    write_json(folder / "benchmark.json", content)
    with pytest.raises(DataError, match=f"benchmark.json.*{message}"):
        load_benchmark(folder)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_name_does_not_depend_on_how_the_folder_is_given(
    folder: Path, monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    write_json(folder / "benchmark.json", {"protocol": protocol})
    monkeypatch.chdir(folder)
    for path in (folder, ".", Path(), f"../{folder.name}"):
        assert load_benchmark(path).name == folder.name
