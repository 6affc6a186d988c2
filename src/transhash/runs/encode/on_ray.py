"""Shards over Ray actors, each with its own model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from transhash.data.collection import Collection
from transhash.errors import DataError, EngineError
from transhash.runs.catalog import Modality
from transhash.runs.encode.shards import write_block
from transhash.runs.encoder import Encoder


def encode_on_ray(
    run: Path,
    modality: Modality,
    shards: Sequence[tuple[Path, Collection[Any], Sequence[str] | None]],
    workers: int | None,
    device: str,
) -> Iterator[int]:
    """Writes every shard, at a place that all actors see; yields how many more items are done."""
    try:
        ray: Any = import_module("ray")
        import_module("ray.data")
    except ImportError:
        raise EngineError("--engine ray needs Ray; pip install 'transhash[ray]'") from None
    if shards[0][1].features is not None:
        raise DataError("precomputed features are encoded faster than they travel; use local")
    if not ray.is_initialized():
        ray.init(log_to_driver=False, logging_level="error", include_dashboard=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    free = ray.cluster_resources()
    gpus = 1 if device.startswith("cuda") else 0
    actors = workers or max(1, int(free.get("GPU" if gpus else "CPU", 1)))
    # Every core has an actor, or every GPU has its share of the cores to decode for it.
    decoding = max(1, int(free.get("CPU", 1)) // actors - 1) if gpus else 1
    rows = [
        {
            "path": str(path.absolute()),
            "ids": list(part.ids),
            "items": [str(item) for item in part.items],
            "keys": list(keys or ()),
        }
        for path, part, keys in shards
    ]
    written = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
        _RayWorker,
        fn_constructor_args=(str(run.absolute()), modality, decoding, device),
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(size=min(actors, len(rows))),
        num_gpus=gpus or None,
    )
    for row in written.iter_rows():
        yield int(row["items"])


class _RayWorker:
    """What each actor runs."""

    def __init__(self, run: str, modality: Modality, workers: int, device: str) -> None:
        self.encoder = Encoder.load(run, device)
        self.modality: Modality = modality
        self.workers = workers

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        rows = zip(batch["path"], batch["ids"], batch["items"], batch["keys"])
        for path, ids, items, keys in rows:
            texts = [str(item) for item in items]
            parts = texts if self.modality == "texts" else [Path(text) for text in texts]
            part: Collection[Any] = Collection([str(name) for name in ids], parts)
            for block in self.encoder.encode_blocks(
                part, self.modality, len(part), cache=False, workers=self.workers
            ):
                write_block(Path(str(path)), part, block, [str(k) for k in keys] or None)
        return {"items": [len(ids) for ids in batch["ids"]]}
