"""A retriever for LangChain over the items of a run."""

from __future__ import annotations

from transhash.data.collection import Modality
from transhash.errors import DataError
from transhash.index.weighted import RankingMode
from transhash.plugins import content_of, describe_hits
from transhash.search.catalog import SearchFilter
from transhash.search.engine import DEFAULT_RANKING, SearchEngine
from transhash.search.keywords import DEFAULT_SEARCH, SearchMode

try:
    from langchain_core.documents import Document
    from langchain_core.retrievers import BaseRetriever
except ImportError:
    raise DataError(
        "langchain-core is not installed. Run: pip install 'transhash[langchain]'"
    ) from None


class LangChainRetriever(BaseRetriever):  # type: ignore[misc]  # untyped unless installed
    """Returns the k items that belong to a text as documents, best first.

    The content is the item's text, or the title, caption and keywords of an image, or its id. The
    metadata have id, modality, path, distance, score and why the item was found.
    """

    engine: SearchEngine
    k: int = 10
    modality: Modality = "images"
    ranking: RankingMode = DEFAULT_RANKING
    search: SearchMode = DEFAULT_SEARCH
    filters: SearchFilter | None = None

    def _get_relevant_documents(self, query: str) -> list[Document]:
        hits = self.engine.similar_to_text(
            query, self.k, self.modality, self.ranking, search=self.search, filters=self.filters
        )
        return [
            Document(id=hit.item.id, page_content=content_of(hit.item), metadata=metadata)
            for hit, metadata in zip(
                hits, describe_hits(hits, self.engine.query_encoder.bits), strict=True
            )
        ]
