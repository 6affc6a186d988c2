"""Shards over Ray actors, each with its own model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from transhash.catalog import Modality
from transhash.data.collection import Collection
from transhash.encoding.model import ShardEncoder
from transhash.encoding.shards import Job, shard_path
from transhash.errors import DataError, EngineError


def encode_on_ray(
    run: Path,
    items: Collection[Any],
    job: Job,
    folder: Path,
    todo: Sequence[int],
    workers: int | None,
    device: str,
) -> Iterator[int]:
    """Shards over Ray actors, each with its own model; `folder` must be seen by all of them."""
    if not todo:
        return
    try:
        ray: Any = import_module("ray")
        import_module("ray.data")
    except ImportError:
        raise EngineError("--engine ray needs Ray; pip install 'transhash[ray]'") from None
    if items.features is not None:
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
            "number": number,
            "ids": list(items.ids[job.rows(number)]),
            "items": [str(item) for item in items.items[job.rows(number)]],
        }
        for number in todo
    ]
    shards = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
        _RayWorker,
        fn_constructor_args=(
            str(run.absolute()),
            job.modality,
            str(folder.absolute()),
            device,
            decoding,
        ),
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(size=min(actors, len(rows))),
        num_gpus=gpus or None,
    )
    for row in shards.iter_rows():
        yield len(items.ids[job.rows(int(row["number"]))])


class _RayWorker:
    """What each actor runs."""

    def __init__(
        self, run: str, modality: Modality, folder: str, device: str, workers: int
    ) -> None:
        self.encoder = ShardEncoder(run, modality, workers, device)
        self.folder = Path(folder)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        for number, ids, items in zip(batch["number"], batch["ids"], batch["items"]):
            texts = [str(item) for item in items]
            parts = texts if self.encoder.modality == "texts" else [Path(text) for text in texts]
            part: Collection[Any] = Collection([str(name) for name in ids], parts)
            for _ in self.encoder.write([(shard_path(self.folder, int(number)), part)]):
                pass
        return {"number": batch["number"]}
