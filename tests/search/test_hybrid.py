"""Keywords and codes find items together, within filters, and copies are one result."""

from __future__ import annotations

import io
import math
import sqlite3
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from transhash.codes import Codes, chance_distance
from transhash.data.collection import Collection
from transhash.errors import DataError
from transhash.index import Ranking
from transhash.search.catalog import NewItem, SearchFilter
from transhash.search.engine import SearchEngine
from transhash.search.hits import Hits, is_chance
from transhash.search.keywords import KeywordMatches, name_words, query_words
from transhash.search.retrieval import fuse, rank_codes
from transhash.search.verify import verify_run


def photo(path: Path, color: str = "navy", **exif: str) -> Path:
    """Save an image that looks different for every path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(zlib.crc32(path.name.encode()))
    image = Image.fromarray(rng.integers(0, 255, (4, 4, 3), np.uint8)).resize((128, 96))
    tags = Image.Exif()
    if "caption" in exif:
        tags[0x010E] = exif["caption"]
    if "taken" in exif:
        tags.get_ifd(0x8769)[0x9003] = exif["taken"]
    image.save(path, "JPEG", exif=tags, quality=95)
    return path


@pytest.fixture
def photos(run: Path, tmp_path: Path) -> Path:
    """A folder of images that `run` has indexed."""
    folder = tmp_path / "My Pictures"
    photo(folder / "2019 Croatia" / "sailBoats_0001.jpg", taken="2019:07:01 10:00:00")
    photo(folder / "2019 Croatia" / "IMG_1234.jpg", caption="The old lighthouse of Rovinj")
    photo(folder / "2020" / "DSC00001.jpg", taken="2020:01:31 23:59:59")
    photo(folder / "2020" / "deep" / "lighthouses.jpg", taken="2020:02:01 00:00:00")
    photo(folder / "cat.jpg")
    with SearchEngine.open(run, writable=True) as engine:
        assert engine.add_images(folder).added == 5
    return folder


def ids(hits: Hits) -> list[str]:
    return [hit.item.id for hit in hits]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("IMG_1234", "IMG IMG1234"),
        ("boat-018", "boat boat018"),
        ("Kroatien 2019", "Kroatien 2019 Kroatien2019"),
        ("myBeachHouse", "my Beach House myBeachHouse"),
        ("XMLFile", "XML File XMLFile"),
        ("Grüße_ausBerlin", "Grüße aus Berlin ausBerlin"),
        ("IMG_2019", "IMG IMG2019"),
        ("...", ""),
    ],
)
def test_names_are_split_into_words_without_counters(name: str, words: str) -> None:
    assert name_words(name) == words


def test_words_of_a_query_are_those_that_count() -> None:
    assert query_words('The boat AND a "red* NEAR(sail') == ["boat", "red", "near", "sail"]
    assert query_words("IMG_1234.jpg of the who") == ["img_1234"]
    assert query_words("le bateau", {"le"}) == ["bateau"]


@pytest.mark.parametrize(
    ("query", "found", "reason"),
    [
        ("sail boat", "2019 Croatia/sailBoats_0001.jpg", "file name"),
        ("img_1234", "2019 Croatia/IMG_1234.jpg", "file name"),
        ("IMG_1234.JPG", "2019 Croatia/IMG_1234.jpg", "file name"),
        ("Rovinj", "2019 Croatia/IMG_1234.jpg", "caption"),
    ],
)
def test_a_rare_word_finds_its_item_first_and_says_where(
    run: Path, photos: Path, query: str, found: str, reason: str
) -> None:
    with SearchEngine.open(run) as engine:
        hit = engine.similar_to_text(query, 5)[0]
        only = engine.similar_to_text(query, 5, search="keywords")
    assert hit.item.id == found
    assert reason in hit.matched
    assert hit.coverage > 0.5
    assert ids(only) == [found]


def test_results_as_far_as_random_codes_that_lack_the_words_are_chance(
    run: Path, photos: Path
) -> None:
    with SearchEngine.open(run) as engine:
        (hit,) = engine.similar_to_text("boat", 1, search="codes")
    bits = 8 * len(hit.item.code)
    far = replace(hit, distance=chance_distance(1000, bits))
    near = replace(far, distance=far.distance - 1)
    assert is_chance([far, far], 1000)
    assert not is_chance([far, near], 1000)
    assert not is_chance([far, replace(far, coverage=0.5)], 1000)
    assert is_chance([near], 10**6)
    assert not is_chance([], 1000)


def test_an_item_covers_no_more_of_a_query_than_the_words_that_it_has(
    run: Path, tmp_path: Path
) -> None:
    names = ("ladyBird", "branch", "bird branch", *(f"x{i} other{i} names" for i in range(9)))
    for name in names:
        photo(tmp_path / "zoo" / f"{name}.jpg")
    with SearchEngine.open(run, writable=True) as engine:
        engine.add_images(tmp_path / "zoo")
        hits = engine.similar_to_text("a bird on the branch", 12)
        words = {
            "bird": {"ladyBird.jpg", "bird branch.jpg"},
            "branch": {"branch.jpg", "bird branch.jpg"},
        }
        rarities = {
            word: math.log((12 - len(items) + 0.5) / (len(items) + 0.5))
            for word, items in words.items()
        }
        for hit in hits:
            share = sum(rarities[word] for word in words if hit.item.id in words[word])
            assert hit.coverage <= share / sum(rarities.values()) + 1e-9
        coverage = {hit.item.id: hit.coverage for hit in hits}
        assert coverage["bird branch.jpg"] > 0.9
        assert coverage["branch.jpg"] == pytest.approx(0.5)  # its name alone would give more
        (alone, *_) = engine.similar_to_text("branch", 1)
        assert alone.coverage > 0.9


def test_words_are_found_without_case_accents_and_plural_in_names_folders_and_texts(
    run: Path, photos: Path
) -> None:
    with SearchEngine.open(run, writable=True) as engine:
        engine.add_texts(Collection(["a", "b"], ["Un café crème", "the dogs ran"]))
        lighthouses = engine.similar_to_text("LIGHTHOUSE", 5, search="keywords")
        croatia = engine.similar_to_text("croatia", 5, search="keywords")
        assert sorted(ids(lighthouses)) == [
            "2019 Croatia/IMG_1234.jpg",
            "2020/deep/lighthouses.jpg",
        ]
        assert {hit.matched[0] for hit in croatia} == {"folder"}
        assert len(croatia) == 2
        for query, found in (("Cafe creme", ["a"]), ("dog", ["b"]), ("the", [])):
            hits = engine.similar_to_text(query, 5, "texts", search="keywords")
            assert ids(hits) == found


@pytest.mark.parametrize(
    "query", ['"', "NEAR(a, b)", "name:cat", "a* OR ^b", "-- ;", "\x00cat\x00", "'"]
)
def test_a_query_is_never_syntax(run: Path, photos: Path, query: str) -> None:
    with SearchEngine.open(run) as engine:
        for search in ("hybrid", "keywords"):
            engine.similar_to_text(query, 3, search=search)  # type: ignore[arg-type]


def test_without_words_the_order_is_that_of_the_codes(run: Path, photos: Path) -> None:
    with SearchEngine.open(run) as engine:
        hybrid = engine.similar_to_text("the zebra", 5)
        assert ids(hybrid) == ids(engine.similar_to_text("the zebra", 5, search="codes"))
        assert {hit.matched for hit in hybrid} == {("similar",)}


def test_more_results_begin_with_fewer(run: Path, photos: Path) -> None:
    with SearchEngine.open(run) as engine:
        all_hits = ids(engine.similar_to_text("lighthouse 2020 cat", 5))
        for k in range(1, 5):
            assert ids(engine.similar_to_text("lighthouse 2020 cat", k)) == all_hits[:k]


def test_an_item_that_only_the_catalog_has_takes_no_place_of_another(run: Path) -> None:
    with SearchEngine.open(run, writable=True) as engine:
        engine.add_texts(Collection(["a", "b", "c"], ["a cat", "a dog", "a boat"]))
        code = engine.catalog.sample("texts", 1)[0].code
        engine.catalog.add("texts", [NewItem("d", code, "a boat")])  # as a killed writer leaves it
    with SearchEngine.open(run) as engine:
        assert sorted(ids(engine.similar_to_text("boat", 20_000, "texts", collapse=False))) == [
            "a", "b", "c", "d",
        ]  # fmt: skip


def test_codes_are_no_reason_in_a_keyword_search(run: Path) -> None:
    with SearchEngine.open(run, writable=True) as engine:
        engine.add_texts(["a red boat"])
        for search, reasons in (("keywords", ("text",)), ("hybrid", ("text", "similar"))):
            (hit,) = engine.similar_to_text("a red boat", 1, "texts", search=search)  # type: ignore[arg-type]
            assert (hit.distance, hit.matched) == (0, reasons)


def test_an_unknown_search_mode_is_refused(run: Path, photos: Path) -> None:
    with SearchEngine.open(run) as engine, pytest.raises(DataError, match=r"'words'.*hybrid"):
        engine.similar_to_text("cat", search="words")  # type: ignore[arg-type]


def test_fusion_orders_by_similarity_plus_coverage_like_a_plain_sort() -> None:
    rng = np.random.default_rng(0)
    bits, count, k = 32, 200, 20
    codes = Codes(rng.integers(0, 256, (count, bits // 8), np.uint8), bits)
    for trial in range(20):
        query = Codes(rng.integers(0, 256, (1, bits // 8), np.uint8), bits)
        weights = rng.integers(1, 50, (1, bits)) if trial % 2 else None
        numbers = np.arange(10, 10 + count)
        matching = np.sort(rng.choice(count, 30, replace=False))
        coverage = np.round(rng.random(30), 1)
        matches = KeywordMatches(numbers[matching], coverage, codes.packed[matching])
        everything = rank_codes(query, weights, numbers, codes.packed)
        nearest = Ranking(*(part[:, :k] for part in everything if part is not None))
        covered = dict(zip(numbers[matching].tolist(), coverage.tolist()))
        highest = bits if weights is None else weights.sum()
        assert everything.costs is not None
        expected = sorted(
            (-(max(0, 1 - 2 * cost / highest) + covered.get(number, 0)), cost, distance, number)
            for number, distance, cost in zip(
                everything.ids[0].tolist(), everything.distances[0].tolist(),
                everything.costs[0].tolist(),
            )
        )[:k]  # fmt: skip
        fused = fuse(query, weights, nearest, matches, k)
        assert fused.ids[0].tolist() == [number for *_, number in expected]


def test_keywords_follow_updates_removals_and_moves(run: Path, photos: Path) -> None:
    with SearchEngine.open(run, writable=True) as engine:
        engine.add_texts(Collection(["n"], ["about a zeppelin"]))
        engine.add_texts(Collection(["n"], ["about a rowing boat"]))
        assert ids(engine.similar_to_text("zeppelin", 5, "texts", search="keywords")) == []
        assert ids(engine.similar_to_text("rowing", 5, "texts", search="keywords")) == ["n"]
        engine.remove("images", ["cat.jpg"])
        assert ids(engine.similar_to_text("cat", 5, search="keywords")) == []
        engine.catalog.sources.move(str(photos), str(photos.parent / "Holidays"))
        assert len(engine.similar_to_text("holidays", 9, search="keywords")) == 4
        assert ids(engine.similar_to_text("pictures", 9, search="keywords")) == []
    assert verify_run(run) == []


def test_verify_finds_a_keyword_index_that_does_not_match_the_items(
    run: Path, photos: Path
) -> None:
    assert verify_run(run) == []
    with sqlite3.connect(run / "catalog.sqlite") as base:
        base.execute("DELETE FROM words_docsize WHERE id = 1")
        size = base.execute("SELECT max(length(block)) FROM words_data").fetchone()[0]
        base.execute(
            "UPDATE words_data SET block = substr(block, 1, 20) || x'55' || substr(block, 22) "
            "WHERE length(block) = ?",
            (size,),
        )
    findings = verify_run(run)
    assert [finding.part for finding in findings] == ["catalog"]
    assert "keyword index" in findings[0].problem


@pytest.mark.parametrize(
    ("conditions", "found"),
    [
        ({"folder": "2020"}, {"2020/DSC00001.jpg", "2020/deep/lighthouses.jpg"}),
        ({"folder": "2020/deep/"}, {"2020/deep/lighthouses.jpg"}),
        ({"folder": "202"}, set()),
        ({"after": "2020"}, {"2020/DSC00001.jpg", "2020/deep/lighthouses.jpg"}),
        ({"before": "2020-01"}, {"2019 Croatia/sailBoats_0001.jpg", "2020/DSC00001.jpg"}),
        ({"after": "2020-01-31", "before": "2020-01-31"}, {"2020/DSC00001.jpg"}),
        ({"source": "My Pictures", "folder": "2020/deep"}, {"2020/deep/lighthouses.jpg"}),
        ({"source": "Pictures"}, set()),
    ],
)
@pytest.mark.parametrize("search", ["hybrid", "codes"])
def test_a_filtered_search_returns_all_items_that_meet_the_conditions(
    run: Path, photos: Path, conditions: dict[str, str], found: set[str], search: str
) -> None:
    filters = SearchFilter(**conditions)
    with SearchEngine.open(run) as engine:
        hits = engine.similar_to_text("lighthouse", 5, search=search, filters=filters)  # type: ignore[arg-type]
        assert set(ids(hits)) == found
        texts = engine.similar_to_text("lighthouse", 5, search="keywords", filters=filters)
        assert set(ids(texts)) <= found
        absolute = SearchFilter(folder=str(photos / "2020"))
        assert len(engine.similar_to_text("a", 9, filters=absolute)) == 2


@pytest.mark.parametrize("date", ["20", "2020-13", "2020-1-1", "yesterday", "2020-02-32"])
def test_a_date_that_is_none_is_refused(date: str) -> None:
    with pytest.raises(DataError, match=r"is not a date\. Use"):
        SearchFilter(after=date)


@pytest.mark.parametrize("search", ["hybrid", "codes", "keywords"])
def test_no_queries_have_no_results_whatever_the_filters(
    run: Path, photos: Path, search: str
) -> None:
    with SearchEngine.open(run) as engine:
        for filters in (None, SearchFilter(folder="2020")):
            assert engine.similar_to_texts([], search=search, filters=filters) == []  # type: ignore[arg-type]


def test_a_selective_filter_gives_k_results_in_the_order_of_the_codes(run: Path) -> None:
    names = [f"{'rare' if i % 50 == 0 else 'often'}/{i}" for i in range(1500)]
    texts = [f"a {'boat' if i % 3 else 'cat'} {i} {i % 7} house" for i in range(1500)]
    with SearchEngine.open(run, writable=True) as engine:
        engine.add_texts(Collection(names, texts))
        with engine.catalog._file.transaction() as base:
            base.execute("UPDATE items SET location = id")
        everything = ids(
            engine.similar_to_text("a cat", 1500, "texts", search="codes", collapse=False)
        )
        for folder, expected in (("rare", 30), ("often", 1470)):
            inside = [name for name in everything if name.startswith(folder)]
            assert len(inside) == expected
            hits = engine.similar_to_text(
                "a cat", 12, "texts", search="codes", filters=SearchFilter(folder), collapse=False
            )
            assert ids(hits) == inside[:12]


def test_copies_are_one_result_and_different_plain_images_are_not(
    run: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "copies"
    original = photo(folder / "a.jpg")
    (folder / "same bytes.jpg").write_bytes(original.read_bytes())
    with Image.open(original) as image:
        image.resize((64, 48)).save(folder / "smaller.png")
    for color in ("#102030", "#202030", "#102040"):
        Image.new("RGB", (64, 48), color).save(folder / f"plain{color[1:]}.png")
    with SearchEngine.open(run, writable=True) as engine:
        engine.add_images(folder)
        hits = engine.similar_to_text("x", 9)
        groups = {frozenset([hit.item.id, *(item.id for item in hit.duplicates)]) for hit in hits}
        assert frozenset({"a.jpg", "same bytes.jpg", "smaller.png"}) in groups
        assert len(groups) == 4
        assert len(engine.similar_to_text("x", 9, collapse=False)) == 6
        # k results although the copies take places
        assert len(engine.similar_to_text("x", 4)) == 4
        similar = engine.similar_to_id("images", "a.jpg", 9)
        assert "a.jpg" not in {
            i for hit in similar for i in [hit.item.id, *(d.id for d in hit.duplicates)]
        }


def test_equal_texts_are_one_result(run: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("a boat with sails\na cat\na boat with sails\n")
    with SearchEngine.open(run, writable=True) as engine:
        engine.add_texts(tmp_path / "notes.txt")
        hits = engine.similar_to_text("boat", 5, "texts")
    assert [(hit.item.id, [item.id for item in hit.duplicates]) for hit in hits] == [
        ("1", ["3"]), ("2", []),
    ]  # fmt: skip


def test_an_uploaded_image_has_its_caption_and_fingerprint(run: Path) -> None:
    from transhash.features.decode import render, summary_task

    buffer = io.BytesIO()
    exif = Image.Exif()
    exif[0x010E] = "Grandmother's garden"
    Image.new("RGB", (64, 48), "green").save(buffer, "JPEG", exif=exif)
    result = render(buffer.getvalue(), summary_task(64))
    assert not isinstance(result, str)
    with SearchEngine.open(run, writable=True) as engine:
        code = Codes(
            np.zeros((1, engine.query_encoder.bits // 8), np.uint8), engine.query_encoder.bits
        )
        engine.writer.add_image(buffer.getvalue(), "new", code, result.summary)
        (hit,) = engine.similar_to_text("garden", search="keywords")
    assert hit.item.metadata.caption == "Grandmother's garden"
    assert "caption" in hit.matched
