"""A collection -> a folder of shards, going on where an earlier call stopped; or -> one file."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import numpy as np

from transhash.codes import Codes
from transhash.data.collection import Collection, Modality, Problem, text_keys
from transhash.errors import DataError, EngineError
from transhash.model.encoder import Encoder
from transhash.model.files import model_digest, read_bits
from transhash.model.shards import (
    EncodeJob,
    block_problems,
    input_digest,
    job_file,
    shard_metadata,
    shard_path,
    write_block,
    write_codes,
)
from transhash.progress import Track, no_progress
from transhash.storage import read_json, write_bytes, write_json

# Shards over Ray actors, each with its own model.


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
            for block in self.encoder.encode_batches(
                part, self.modality, len(part), cache=False, workers=self.workers
            ):
                write_block(Path(str(path)), part, block, [str(k) for k in keys] or None)
        return {"items": [len(ids) for ids in batch["ids"]]}


SHARD = 4096  # items a shard: what an interruption repeats


@dataclass(frozen=True)
class EncodeResult:
    """What lies in the folder now."""

    codes: int
    shards: int
    found: int  # shards that an earlier call had written
    problems: list[Problem]


def encode_shards(
    run: str | Path,
    items: Collection[Any],
    modality: Modality,
    folder: str | Path,
    *,
    engine: Literal["local", "ray"] = "local",
    shard_size: int = SHARD,
    workers: int | None = None,
    device: str = "cpu",
    track: Track = no_progress,
) -> EncodeResult:
    """Codes of all items as parquet shards of id and code; unreadable items are listed, not fatal.

    `workers`: threads (cpu), decoding processes (cuda), or actors with a model each (ray).
    """
    if shard_size < 1:
        raise DataError(f"a shard holds 1 item or more, got {shard_size}")
    run, folder = Path(run), Path(folder)
    job = _start(run, items, modality, folder, shard_size)
    todo = [number for number in range(job.shards) if not shard_path(folder, number).exists()]
    if todo and engine == "ray":
        named = _keys(items)
        shards = [
            (shard_path(folder, number), _cut(items, cut), None if named is None else named[cut])
            for number in todo
            for cut in [job.rows(number)]
        ]
        start = len(items) - sum(len(part) for _, part, _ in shards)
        done: Iterable[int] = encode_on_ray(run, modality, shards, workers, device)
        each = (item for count in done for item in range(count))
        for _ in track(each, f"encoding {modality}", total=len(items), start=start):
            pass
    elif todo:
        encoder = Encoder.load(run, device)
        rows = [row for number in todo for row in range(*job.rows(number).indices(len(items)))]
        left = items if len(rows) == len(items) else items.take(rows)
        keys = None if (named := _keys(items)) is None else [named[row] for row in rows]
        # Only the last shard may be shorter, so blocks of this size are the shards.
        blocks = encoder.encode_batches(
            left, modality, shard_size,
            cache=False, workers=workers, track=track, start=len(items) - len(left),
        )  # fmt: skip
        for number, block in zip(todo, blocks, strict=True):
            write_block(shard_path(folder, number), left, block, keys)
    parts = [shard_metadata(shard_path(folder, number)) for number in range(job.shards)]
    problems = [problem for _, bad in parts for problem in bad]
    return EncodeResult(
        sum(count for count, _ in parts), job.shards, job.shards - len(todo), problems
    )


def encode_file(
    run: str | Path,
    items: Collection[Any],
    modality: Modality,
    path: Path,
    *,
    workers: int | None = None,
    device: str = "cpu",
    track: Track = no_progress,
) -> EncodeResult:
    """All codes in one file: .npy (packed bits) or .parquet (as a shard)."""
    encoder = Encoder.load(run, device)
    blocks = list(
        encoder.encode_batches(items, modality, SHARD, cache=False, workers=workers, track=track)
    )
    codes = Codes.concatenate(block.codes for block in blocks)
    problems = [problem for block in blocks for problem in block_problems(items, block)]
    if path.suffix == ".npy":
        buffer = io.BytesIO()
        np.save(buffer, codes.packed, allow_pickle=False)
        write_bytes(path, buffer.getvalue())
    else:
        write_codes(path, [items.ids[i] for block in blocks for i in block.readable], codes, problems)
    return EncodeResult(len(codes), 1, 0, problems)


def _start(
    run: Path, items: Collection[Any], modality: Modality, folder: Path, shard_size: int
) -> EncodeJob:
    """The job, noted in the folder; a folder that holds another one is refused."""
    bits = read_bits(run)
    job = EncodeJob(
        modality, bits, len(items), shard_size, model_digest(run), input_digest(items), items.source
    )
    note = job_file(folder)
    if folder.exists() and not folder.is_dir():
        raise DataError(f"{folder} is a file; give a folder for the shards")
    if note.exists():
        known = read_json(note)
        changed = [
            name
            for name, value in asdict(job).items()
            if name != "origin" and (not isinstance(known, dict) or known.get(name) != value)
        ]
        if changed:
            raise DataError(
                f"{folder} holds the codes of another job (its {', '.join(changed)} differ); give "
                "an empty folder, or the same run, input and shard size to go on"
            )
        return job
    # A kill while the note was written leaves its draft, and nothing that anybody put there.
    drafts = set(folder.glob(f".{note.name}.*.draft"))
    if folder.exists() and set(folder.iterdir()) - drafts:
        raise DataError(f"{folder} holds other files; give an empty folder")
    for draft in drafts:
        draft.unlink(missing_ok=True)
    write_json(note, asdict(job))
    return job


def _keys(items: Collection[Any]) -> Sequence[str] | None:
    """What the source calls the items, where that is not their ids."""
    keys = text_keys(items) if items.ids_are_row_numbers else items.ids
    return None if keys is items.ids else keys


def _cut(items: Collection[Any], rows: slice) -> Collection[Any]:
    features = None if items.features is None else items.features[rows]
    return Collection(items.ids[rows], items.items[rows], features=features)
