"""The retrievers inside their frameworks return what the search engine returns."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from small_run import copy_small_run
from transhash.errors import DataError
from transhash.plugins import scores
from transhash.search.catalog import Item, SearchFilter
from transhash.search.engine import SearchEngine
from transhash.search.hits import Hit

QUERY = "a red boat"


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[SearchEngine]:
    with SearchEngine.open(copy_small_run(tmp_path)) as engine:
        yield engine


def retriever(name: str, engine: SearchEngine, **options: Any) -> Any:
    if name == "LangChain":
        pytest.importorskip("langchain_core", reason="pip install 'transhash[langchain]'")
        from transhash.plugins.langchain import LangChainRetriever

        return LangChainRetriever(engine=engine, **options)
    pytest.importorskip("llama_index.core", reason="pip install 'transhash[llama-index]'")
    from transhash.plugins.llama_index import LlamaIndexRetriever

    return LlamaIndexRetriever(engine, **options)


def retrieve(name: str, retriever: Any, query: str) -> list[tuple[str, str, dict[str, Any]]]:
    """Return id, content and metadata of the results."""
    if name == "LangChain":
        return [(d.id, d.page_content, d.metadata) for d in retriever.invoke(query)]
    results = retriever.retrieve(query)
    assert [one.score for one in results] == [one.metadata["score"] for one in results]
    return [(one.node.node_id, one.text, one.metadata) for one in results]


@pytest.mark.parametrize("modality", ["images", "texts"])
@pytest.mark.parametrize("name", ["LangChain", "LlamaIndex"])
def test_a_retriever_returns_the_hits_of_the_engine(
    name: str, modality: Any, engine: SearchEngine
) -> None:
    hits = engine.similar_to_text(QUERY, 2, modality)
    found = retrieve(name, retriever(name, engine, k=2, modality=modality), QUERY)
    assert len(found) == 2
    for hit, (item_id, content, metadata) in zip(hits, found, strict=True):
        assert item_id == metadata["id"] == hit.item.id
        assert content == (hit.item.text or hit.item.id)
        assert (metadata["modality"], metadata["distance"]) == (modality, hit.distance)
        assert metadata.get("path") == hit.item.path
        assert metadata["matched"] == list(hit.matched)


@pytest.mark.parametrize("name", ["LangChain", "LlamaIndex"])
def test_filters_and_the_kind_of_search_are_passed_on(name: str, engine: SearchEngine) -> None:
    found = retrieve(name, retriever(name, engine, filters=SearchFilter(folder="none")), QUERY)
    assert found == []
    found = retrieve(name, retriever(name, engine, search="keywords"), "red")
    assert [one[0] for one in found] == ["red.png"]
    assert "file name" in found[0][2]["matched"]
    with pytest.raises(DataError, match="at least 1"):
        retrieve(name, retriever(name, engine, k=0), QUERY)


def test_a_langchain_chain_retrieves_and_streams(engine: SearchEngine) -> None:
    one = retriever("LangChain", engine, k=2)
    from langchain_core.runnables import RunnableLambda

    ids = RunnableLambda(lambda documents: [document.id for document in documents])
    expected = [hit.item.id for hit in engine.similar_to_text(QUERY, 2)]
    assert (one | ids).invoke(QUERY) == expected
    assert (one | ids).batch([QUERY, QUERY]) == [expected, expected]
    assert asyncio.run((one | ids).ainvoke(QUERY)) == expected


def test_llama_index_keeps_order_and_paths_of_images(
    engine: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = retriever("LlamaIndex", engine, k=2)
    from llama_index.core import Settings
    from llama_index.core.llms import MockLLM
    from llama_index.core.postprocessor import SimilarityPostprocessor
    from llama_index.core.query_engine import RetrieverQueryEngine
    from llama_index.core.response_synthesizers import ResponseMode, get_response_synthesizer

    hits = engine.similar_to_text(QUERY, 2)
    results = one.retrieve(QUERY)
    assert [result.node.image_path for result in results] == [hit.item.path for hit in hits]
    assert [r.node_id for r in asyncio.run(one.aretrieve(QUERY))] == [h.item.id for h in hits]
    cutoff = SimilarityPostprocessor(similarity_cutoff=0.0)
    assert cutoff.postprocess_nodes(results) == results
    monkeypatch.setattr(Settings, "_llm", MockLLM())  # else it looks for OpenAI's package
    synthesizer = get_response_synthesizer(response_mode=ResponseMode.NO_TEXT)
    reply = RetrieverQueryEngine(one, response_synthesizer=synthesizer).query(QUERY)
    assert [node.node_id for node in reply.source_nodes] == [hit.item.id for hit in hits]


def test_scores_never_rise_and_are_at_least_the_share_of_equal_bits() -> None:
    distances = [5, 9, 2, 16, 3]
    hits = [Hit(Item(0, "images", "", None, None, b"", False, None), d, ()) for d in distances]  # type: ignore[arg-type]
    values = scores(hits, 16)
    equal = [1 - distance / 16 for distance in distances]
    assert values == sorted(values, reverse=True)
    assert all(value >= share - 1e-4 for value, share in zip(values, equal))
    assert values == np.round([max(equal[i:]) for i in range(5)], 4).tolist()
    assert scores([], 16) == []
