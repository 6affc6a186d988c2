"""A retriever for LlamaIndex over the items of a run."""

from __future__ import annotations

from transhash.data.collection import Modality
from transhash.errors import DataError
from transhash.index.weighted import RankingMode
from transhash.plugins import content_of, describe_hits
from transhash.search.catalog import SearchFilter
from transhash.search.engine import DEFAULT_RANKING, SearchEngine
from transhash.search.keywords import DEFAULT_SEARCH, SearchMode

try:
    from llama_index.core.retrievers import BaseRetriever
    from llama_index.core.schema import ImageNode, NodeWithScore, QueryBundle, TextNode
except ImportError:
    raise DataError(
        "llama-index-core is not installed. Run: pip install 'transhash[llama-index]'"
    ) from None


class LlamaIndexRetriever(BaseRetriever):  # type: ignore[misc]  # untyped unless installed
    """Returns the k items that belong to a text as nodes with scores, best first.

    A text is a TextNode, an image an ImageNode with the path of its file. The metadata have id,
    modality, path, distance, score and why the item was found.
    """

    def __init__(
        self,
        engine: SearchEngine,
        k: int = 10,
        modality: Modality = "images",
        ranking: RankingMode = DEFAULT_RANKING,
        *,
        search: SearchMode = DEFAULT_SEARCH,
        filters: SearchFilter | None = None,
    ) -> None:
        self.engine = engine
        self.k = k
        self.modality = modality
        self.ranking = ranking
        self.search = search
        self.filters = filters
        super().__init__()

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        hits = self.engine.similar_to_text(
            query_bundle.query_str, self.k, self.modality, self.ranking,
            search=self.search, filters=self.filters,
        )  # fmt: skip
        nodes = []
        for hit, metadata in zip(
            hits, describe_hits(hits, self.engine.query_encoder.bits), strict=True
        ):
            text = content_of(hit.item)
            node = (
                ImageNode(id_=hit.item.id, text=text, image_path=hit.item.path, metadata=metadata)
                if hit.item.modality == "images"
                else TextNode(id_=hit.item.id, text=text, metadata=metadata)
            )
            nodes.append(NodeWithScore(node=node, score=metadata["score"]))
        return nodes
