"""Words that many items have are searched in bounded time, and no change is missed."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from transhash.codes import Codes
from transhash.data.collection import Collection
from transhash.index.weighted import query_weights
from transhash.search import keywords
from transhash.search.catalog import SearchFilter
from transhash.search.engine import SearchEngine
from transhash.search.keywords import _Presence, _WordCache

WORDS = ("boat", "red", "cat", "night", "house")


@pytest.fixture
def texts(run: Path) -> list[str]:
    """Texts that `run` has indexed, each with some of the words and others, one word twice."""
    rng = np.random.default_rng(0)
    texts = [
        " ".join(["a", *(word for word in WORDS if rng.random() < 0.3), f"thing{i}"])
        for i in range(60)
    ]
    texts[7] += " boat boat house"
    with SearchEngine.open(run, writable=True) as engine:
        engine.add_texts(texts)
    return texts


def numbers_by_text(engine: SearchEngine) -> dict[str, int]:
    return {str(item.text): item.number for item in engine.catalog.sample("texts", 1000)}


@pytest.mark.parametrize("most", [0, 20, 10_000])
def test_the_default_search_is_a_full_sort_by_similarity_and_coverage(
    run: Path, texts: list[str], monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(keywords, "_MAX_RANKED", most)
    query = "a red cat at night by the house"
    with SearchEngine.open(run) as engine:
        words = engine.catalog.words
        rarities = words.rarities(["red", "cat", "night", "house"])
        counts = {word: sum(word in text.split() for text in texts) for word in rarities}
        ranked: list[str] = []
        for word in sorted(rarities, key=lambda word: -rarities[word]):
            if sum(counts[other] for other in [*ranked, word]) > most:
                break
            ranked.append(word)
        assert len(ranked) == {0: 0, 20: 1, 10_000: 4}[most]
        width = engine.query_encoder.bits // 8
        best = words.rank("texts", {word: rarities[word] for word in ranked}, width)
        ranked_sum = sum(rarities[word] for word in ranked)
        bm25 = {n: c * ranked_sum for n, c in best.coverage_of(best.numbers).items()}
        projections = engine.query_encoder.project_texts([query])
        weights = query_weights(projections, "weighted")
        assert weights is not None
        code = Codes.from_projections(projections)
        expected = []
        for text, number in numbers_by_text(engine).items():
            present = [word for word in rarities if word in text.split()]
            share = sum(rarities[word] for word in present)
            score = bm25.get(number, 0.0) + sum(rarities[w] for w in present if w not in ranked)
            coverage = min(score, share) / sum(rarities.values())
            own = Codes(np.frombuffer(engine.catalog.get([number])[number].code, np.uint8)[None],
                        code.bits)  # fmt: skip
            differs = np.unpackbits(code.packed[0] ^ own.packed[0]).astype(bool)
            cost = int(weights[0][differs].sum())
            similarity = max(0.0, 1 - 2 * cost / int(weights.sum()))
            expected.append((-round(similarity + coverage, 9), cost, int(differs.sum()), number))
        hits = engine.similar_to_text(query, 30, "texts")
        assert [hit.item.number for hit in hits] == [n for *_, n in sorted(expected)[:30]]
        assert any(hit.coverage for hit in hits)


def test_items_of_common_words_have_codes_of_their_own(
    run: Path, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keywords, "_MAX_RANKED", 0)
    with SearchEngine.open(run) as engine:
        words = engine.catalog.words
        rarities = words.rarities(["red", "boat"])
        matches = words.match("texts", rarities, engine.query_encoder.bits // 8)
        items = engine.catalog.get(matches.numbers.tolist())
        assert [items[n].code for n in matches.numbers.tolist()] == list(map(bytes, matches.codes))
        has = {text: {"red", "boat"} & set(text.split()) for text in texts}
        assert {items[n].text for n in matches.numbers.tolist()} == {t for t in texts if has[t]}
        for number, coverage in matches.coverage_of(matches.numbers).items():
            share = sum(rarities[word] for word in has[str(items[number].text)])
            assert coverage == pytest.approx(share / sum(rarities.values()))
        assert np.all(np.diff(matches.numbers) > 0)


@pytest.mark.parametrize("writer", ["itself", "another engine", "another thread"])
def test_a_search_for_common_words_sees_every_change(
    run: Path, texts: list[str], monkeypatch: pytest.MonkeyPatch, writer: str
) -> None:
    monkeypatch.setattr(keywords, "_MAX_RANKED", 0)

    def having_boat(engine: SearchEngine) -> set[str]:
        hits = engine.similar_to_text("boat", 1000, "texts", collapse=False)
        assert all(("text" in hit.matched) == (hit.coverage > 0) for hit in hits)
        return {hit.item.id for hit in hits if hit.coverage}

    with SearchEngine.open(run, writable=True) as writing:
        reading = writing if writer == "itself" else SearchEngine.open(run)
        changing = threading.Thread if writer == "another thread" else None

        def change(action: Any) -> None:
            if changing is None:
                action()
            else:
                thread = changing(target=action)
                thread.start()
                thread.join()

        before = having_boat(reading)
        assert len(before) == sum("boat" in text.split() for text in texts)
        change(lambda: writing.add_texts(Collection(["new"], ["a new boat"])))
        assert having_boat(reading) == before | {"new"}
        change(lambda: writing.add_texts(Collection(["new"], ["a new car"])))
        assert having_boat(reading) == before
        change(lambda: writing.remove("texts", [min(before)]))
        assert having_boat(reading) == before - {min(before)}
        reading.close()


def test_what_was_read_before_a_change_is_not_kept_after_it() -> None:
    class File:
        changed = False

        def has_changed(self) -> bool:
            return self.changed

    file = File()
    cache = _WordCache(file)  # type: ignore[arg-type]
    assert cache.get(("a",), lambda: "first") == "first"
    assert cache.get(("a",), lambda: "second") == "first"

    def read_while_another_thread_notices_a_change() -> str:
        file.changed = True
        cache.get(("b",), lambda: "other")
        file.changed = False
        return "before the change"

    assert cache.get(("c",), read_while_another_thread_notices_a_change) == "before the change"
    assert cache.get(("c",), lambda: "after it") == "after it"
    assert cache.get(("a",), lambda: "after it") == "after it"
    assert cache.get(("b",), lambda: "not this") == "other"


def test_the_words_that_were_not_used_for_longest_leave_a_full_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class File:
        def has_changed(self) -> bool:
            return False

    def presence(count: int) -> _Presence:
        return _Presence(np.arange(count), np.zeros((count, 8), np.uint8))

    monkeypatch.setattr(keywords, "_CACHE_BYTES", 100_000)
    cache = _WordCache(File())  # type: ignore[arg-type]
    for word in "abc":
        cache.get((word,), lambda: presence(2000))  # 32,000 bytes and the key
    cache.get(("a",), lambda: presence(1))
    cache.get(("d",), lambda: presence(2000))
    read: list[str] = []

    def again(word: str) -> _Presence:
        read.append(word)
        return presence(2000)

    for word in "acdb":
        cache.get((word,), lambda word=word: again(word))  # type: ignore[misc]
    assert read == ["b"]
    assert cache._bytes <= 100_000


def test_items_of_a_very_common_word_are_spread_evenly_with_all_of_the_nearest(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keywords, "_MAX_RANKED", 0)
    monkeypatch.setattr(keywords, "_MAX_PRESENT", 100)
    with SearchEngine.open(run, writable=True) as engine:
        engine.add_texts([f"boat {i}" for i in range(1000)])
        words = engine.catalog.words
        rarities = words.rarities(["boat"])
        width = engine.query_encoder.bits // 8
        matches = words.match("texts", rarities, width)
        assert 60 <= len(matches.numbers) <= 140
        first, last = np.histogram(matches.numbers, 2, (0, 1000))[0]
        assert min(first, last) > 20
        odd = (matches.numbers % 2).sum()
        assert 20 < odd < len(matches.numbers) - 20
        nearest = np.arange(1, 1001, 50)
        more = words.match("texts", rarities, width, nearest=nearest)
        assert set(more.numbers.tolist()) == {*matches.numbers.tolist(), *nearest.tolist()}
        near = engine.similar_to_text("boat", 20, "texts")
        assert [hit.coverage for hit in near] == [1.0] * 20


def test_filters_hold_for_items_of_common_words(
    run: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(keywords, "_MAX_RANKED", 0)
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        for i in range(5):
            (folder / f"{i}.txt").write_text(f"boat number {name} {i}", "utf-8")
    with SearchEngine.open(run, writable=True) as engine:
        for name in ("one", "two"):
            engine.add_texts(tmp_path / name)
        everything = engine.similar_to_text("boat", 20, "texts", collapse=False)
        assert len(everything) == 10
        for name in ("one", "two"):
            filters = SearchFilter(source=name)
            hits = engine.similar_to_text("boat", 20, "texts", filters=filters, collapse=False)
            assert {str(hit.item.text).split()[2] for hit in hits} == {name}
            assert len(hits) == 5
            assert all(hit.coverage for hit in hits)


def test_the_word_count_is_a_word_like_any_other(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keywords, "_MAX_RANKED", 0)
    with SearchEngine.open(run, writable=True) as engine:
        engine.add_texts(["count the birds", "images of birds", "a boat"])
        assert engine.similar_to_text("images", 5, "images") == []
        assert engine.similar_to_text("count birds", 5, "images") == []
        assert engine.similar_to_text("count birds", 1, "texts")[0].item.text == "count the birds"
