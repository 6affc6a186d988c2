"""Encode a collection to a folder of shards, resuming an earlier call, or to one file."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import numpy as np

from transhash.codes import Codes
from transhash.data.collection import Collection, Modality, Problem, text_keys
from transhash.errors import DataError, EngineError
from transhash.model.encoder import Encoder
from transhash.model.files import read_config
from transhash.model.shards import (
    JOB_VERSION,
    EncodeJob,
    batch_problems,
    input_digest,
    job_file,
    shard_metadata,
    shard_path,
    write_batch,
    write_codes,
)
from transhash.progress import Track, no_progress
from transhash.storage import read_json, write_bytes, write_json

SHARD_SIZE = 4096  # items per shard, which is what an interruption repeats


@dataclass(frozen=True)
class EncodeResult:
    codes: int
    shards: int
    already_done: int  # shards written by an earlier call
    problems: list[Problem]


def encode_shards(
    run: str | Path,
    items: Collection[Any],
    modality: Modality,
    folder: str | Path,
    *,
    executor: Literal["local", "ray"] = "local",
    shard_size: int = SHARD_SIZE,
    workers: int | None = None,
    device: str = "cpu",
    track: Track = no_progress,
) -> EncodeResult:
    """Write the codes of all items as parquet shards of id and code; skip unreadable items.

    `workers` are threads (cpu), decoding processes (cuda), or actors with one model each (ray).
    """
    if shard_size < 1:
        raise DataError(f"The shard size must be at least 1, got {shard_size}. Use a larger one.")
    run, folder = Path(run), Path(folder)
    job = _start_job(run, items, modality, folder, shard_size)
    missing = [number for number in range(job.shards) if not shard_path(folder, number).exists()]
    keys = text_keys(items) if modality == "texts" else items.ids
    if missing and executor == "ray":
        shards = [
            (shard_path(folder, number), items.take(rows), [keys[row] for row in rows])
            for number in missing
            for rows in [job.rows(number)]
        ]
        counts = encode_on_ray(run, modality, shards, workers, device)
        ticks = (item for count in counts for item in range(count))
        start = len(items) - sum(len(part) for _, part, _ in shards)
        for _ in track(ticks, f"encoding {modality}", total=len(items), start=start):
            pass
    elif missing:
        encoder = Encoder.load(run, device)
        rows = [row for number in missing for row in job.rows(number)]
        rest = items if len(rows) == len(items) else items.take(rows)
        rest_keys = [keys[row] for row in rows]
        # Only the last shard may be shorter, so batches of this size are the shards.
        batches = encoder.encode_batches(
            rest, modality, shard_size,
            cache=False, workers=workers, track=track, start=len(items) - len(rest),
        )  # fmt: skip
        for number, batch in zip(missing, batches, strict=True):
            write_batch(shard_path(folder, number), rest, batch, rest_keys)
    parts = [shard_metadata(shard_path(folder, number)) for number in range(job.shards)]
    problems = [problem for _, skipped in parts for problem in skipped]
    codes = sum(count for count, _ in parts)
    return EncodeResult(codes, job.shards, job.shards - len(missing), problems)


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
    """Write all codes to one file: .npy (packed bits) or .parquet (as a shard)."""
    encoder = Encoder.load(run, device)
    batches = list(
        encoder.encode_batches(
            items, modality, SHARD_SIZE, cache=False, workers=workers, track=track
        )
    )
    codes = Codes.concatenate(batch.codes for batch in batches)
    problems = [problem for batch in batches for problem in batch_problems(items, batch)]
    if path.suffix == ".npy":
        buffer = io.BytesIO()
        np.save(buffer, codes.packed, allow_pickle=False)
        write_bytes(path, buffer.getvalue())
    else:
        ids = [items.ids[i] for batch in batches for i in batch.readable]
        write_codes(path, ids, ids, codes, problems)
    return EncodeResult(len(codes), 1, 0, problems)


def _start_job(
    run: Path, items: Collection[Any], modality: Modality, folder: Path, shard_size: int
) -> EncodeJob:
    """Return the job after writing job.json; refuse a folder with another job or other files."""
    config = read_config(run)
    job = EncodeJob(
        JOB_VERSION, modality, config["settings"]["bits"], len(items), shard_size,
        config["digest"], input_digest(items), items.source,
    )  # fmt: skip
    path = job_file(folder)
    if folder.exists() and not folder.is_dir():
        raise DataError(f"{folder} is a file. Choose a folder for the shards.")
    if path.exists():
        stored = read_json(path)
        differing = [
            name
            for name, value in asdict(job).items()
            if name != "source" and (not isinstance(stored, dict) or stored.get(name) != value)
        ]
        if differing:
            raise DataError(
                f"{folder} has codes of another job (different {', '.join(differing)}). Choose an "
                "empty folder, or use the same run, input and shard size to resume."
            )
        return job
    # A process killed while writing job.json leaves only its draft.
    drafts = set(folder.glob(f".{path.name}.*.draft"))
    if folder.exists() and set(folder.iterdir()) - drafts:
        raise DataError(f"{folder} contains other files. Choose an empty folder.")
    for draft in drafts:
        draft.unlink(missing_ok=True)
    write_json(path, asdict(job))
    return job


def encode_on_ray(
    run: Path,
    modality: Modality,
    shards: Sequence[tuple[Path, Collection[Any], Sequence[str]]],
    workers: int | None,
    device: str,
) -> Iterator[int]:
    """Write every shard to a folder that all actors share; yield the item count of each."""
    try:
        ray: Any = import_module("ray")
        import_module("ray.data")
    except ImportError:
        raise EngineError("Ray is not installed. Run: pip install 'transhash[ray]'") from None
    if shards[0][1].features is not None:
        raise DataError("Ray does not encode precomputed features. Use the local executor.")
    if not ray.is_initialized():
        ray.init(log_to_driver=False, logging_level="error", include_dashboard=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    resources = ray.cluster_resources()
    gpus = 1 if device.startswith("cuda") else 0
    actors = workers or max(1, int(resources.get("GPU" if gpus else "CPU", 1)))
    # One actor per core, or one per GPU with its share of the cores for decoding.
    decoders = max(1, int(resources.get("CPU", 1)) // actors - 1) if gpus else 1
    rows = [
        {
            "path": str(path.absolute()),
            "ids": list(part.ids),
            "items": [str(item) for item in part.items],
            "keys": list(keys),
        }
        for path, part, keys in shards
    ]
    results = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
        _RayWorker,
        fn_constructor_args=(str(run.absolute()), modality, decoders, device),
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(size=min(actors, len(rows))),
        num_gpus=gpus or None,
    )
    for row in results.iter_rows():
        yield int(row["items"])


class _RayWorker:
    def __init__(self, run: str, modality: Modality, workers: int, device: str) -> None:
        self.encoder = Encoder.load(run, device)
        self.modality: Modality = modality
        self.workers = workers

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        rows = zip(batch["path"], batch["ids"], batch["items"], batch["keys"])
        for path, ids, items, keys in rows:
            texts = [str(item) for item in items]
            data = texts if self.modality == "texts" else [Path(text) for text in texts]
            part: Collection[Any] = Collection([str(name) for name in ids], data)
            for encoded in self.encoder.encode_batches(
                part, self.modality, len(part), cache=False, workers=self.workers
            ):
                write_batch(Path(str(path)), part, encoded, [str(key) for key in keys])
        return {"items": [len(ids) for ids in batch["ids"]]}
