"""Codes of collections too large for one sitting: a folder of shards, written here or on Ray.

A shard is one parquet file, written as a whole: it is there or it is not, so the same call goes on
where an earlier one stopped. Both engines cut the same shards and run the same code on each, so
the bits are the same.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from transhash.codes import Codes
from transhash.data.collection import Collection, Problem
from transhash.encoder import Encoder
from transhash.errors import DataError, EngineError
from transhash.features.image import Part
from transhash.progress import Track, silent
from transhash.storage import read_json, write_bytes, write_json

Modality = Literal["images", "texts"]
Shard = tuple[Path, Collection[Any]]  # where it is written, and of what
SHARD = 4096  # items a shard: what memory has to hold, and what an interruption repeats


@dataclass(frozen=True)
class Job:
    """What a folder of shards is the result of; kept there, so that no two are mixed."""

    modality: Modality
    bits: int
    items: int
    shard_size: int
    model: str  # digest of the run's files
    input: str  # digest of ids and items

    @property
    def shards(self) -> int:
        return -(-self.items // self.shard_size)

    def rows(self, number: int) -> slice:
        return slice(number * self.shard_size, (number + 1) * self.shard_size)


@dataclass(frozen=True)
class Outcome:
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
    track: Track = silent,
) -> Outcome:
    """Codes of all items as parquet shards of id and code; unreadable items are listed, not fatal.

    `workers`: threads (cpu), decoding processes (cuda), or actors with a model each (ray).
    """
    if shard_size < 1:
        raise DataError(f"a shard holds 1 item or more, got {shard_size}")
    run, folder = Path(run), Path(folder)
    job = _start(run, items, modality, folder, shard_size)
    todo = [number for number in range(job.shards) if not shard_path(folder, number).exists()]
    found = job.shards - len(todo)
    if engine == "ray":
        done: Iterable[int] = _on_ray(run, items, job, folder, todo, workers, device)
    else:
        done = _here(run, items, job, folder, todo, workers, device)
    left = sum(len(items.ids[job.rows(number)]) for number in todo)
    each = (item for count in done for item in range(count))
    for _ in track(each, f"encoding {modality}", total=len(items), start=len(items) - left):
        pass
    parts = [_footer(shard_path(folder, number)) for number in range(job.shards)]
    problems = [problem for _, bad in parts for problem in bad]
    return Outcome(sum(count for count, _ in parts), job.shards, found, problems)


def read_shards(folder: str | Path) -> Iterator[tuple[list[str], Codes]]:
    """Ids and codes, a shard at a time, in the order of the input."""
    import pyarrow.parquet as pq

    folder = Path(folder)
    job = Job(**read_json(folder / "job.json"))
    for number in range(job.shards):
        path = shard_path(folder, number)
        if not path.exists():
            raise DataError(f"{path} is missing; give the encode command again to finish the job")
        table = pq.read_table(path)
        packed = np.frombuffer(b"".join(table["code"].to_pylist()), np.uint8)
        yield table["id"].to_pylist(), Codes(packed.reshape(len(table), job.bits // 8), job.bits)


def shard_path(folder: Path, number: int) -> Path:
    return folder / f"part-{number:06d}.parquet"


def write_codes(
    path: Path, ids: Sequence[str], codes: Codes, problems: Sequence[Problem] = ()
) -> None:
    """One parquet file of id and code; what was skipped is listed in its metadata."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    packed = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(codes.bits // 8), len(codes), [None, pa.py_buffer(codes.packed.tobytes())]
    )
    table = pa.table({"id": pa.array(ids, pa.string()), "code": packed})
    listed = json.dumps([problem._asdict() for problem in problems])
    buffer = io.BytesIO()
    pq.write_table(table.replace_schema_metadata({"bits": str(codes.bits), "bad": listed}), buffer)
    write_bytes(path, buffer.getvalue())


class ShardEncoder:
    """A model, loaded once, that writes shards."""

    def __init__(self, run: str, modality: Modality, workers: int | None, device: str) -> None:
        self.encoder = Encoder.load(run, device)
        self.modality = modality
        self.workers = workers

    def write(self, shards: Sequence[Shard]) -> Iterator[int]:
        """Write every shard; yields how many more items are done."""
        rows = self._image_rows if self.modality == "images" else self._text_rows
        if shards and shards[0][1].features is not None:
            rows = self._given_rows
        yield from rows(shards)

    def _given_rows(self, shards: Sequence[Shard]) -> Iterator[int]:
        for path, items in shards:
            assert items.features is not None
            self._finish(path, items.features, items.ids, [])
            yield len(items)

    def _text_rows(self, shards: Sequence[Shard]) -> Iterator[int]:
        words = self.encoder.text_features
        if words is None:
            raise DataError("this model takes precomputed text features; give a .npy")
        for path, items in shards:
            self._finish(path, words.transform(items.items), items.ids, [])
            yield len(items)

    def _image_rows(self, shards: Sequence[Shard]) -> Iterator[int]:
        """One stream of images through all shards, which are hashed and written beside it."""
        features = self.encoder.image_features
        if features is None:
            raise DataError("this model takes precomputed image features; give a .npy")
        paths = [path for _, items in shards for path in items.items]
        lengths = [len(items) for _, items in shards]
        parts = _cut_parts(features.stream(paths, self.workers), lengths)
        finishing: deque[Future[None]] = deque()
        # One core for hashing: the others are busy, and BLAS threads would wait for each other.
        with threadpool_limits(1, "blas"), ThreadPoolExecutor(1) as writer:
            for path, items in shards:
                rows: list[npt.NDArray[Any]] = []
                good: list[int] = []
                bad: list[tuple[int, str]] = []
                while len(good) + len(bad) < len(items):
                    part = next(parts)
                    rows.append(part.rows)
                    good += part.good
                    bad += part.bad
                    yield len(part.items)
                ids = [items.ids[i] for i in good]
                problems = [Problem(str(items.items[i]), items.ids[i], why) for i, why in bad]
                finishing.append(
                    writer.submit(self._finish, path, np.concatenate(rows), ids, problems)
                )
                if len(finishing) > 1:  # bounded: rows must not pile up
                    finishing.popleft().result()
            for future in finishing:
                future.result()

    def _finish(
        self, path: Path, rows: npt.NDArray[Any], ids: Sequence[str], problems: list[Problem]
    ) -> None:
        codes = Codes(np.zeros((0, self.encoder.bits // 8), np.uint8), self.encoder.bits)
        if len(ids):
            hasher = self.encoder.hasher
            encode = hasher.encode_images if self.modality == "images" else hasher.encode_texts
            codes = encode(rows)
        write_codes(path, ids, codes, problems)


def _cut_parts(parts: Iterable[Part], lengths: Sequence[int]) -> Iterator[Part]:
    """The parts, cut where a shard ends, with positions counted from its beginning."""
    ends = iter(np.cumsum(lengths).tolist())
    first = end = at = 0
    for part in parts:
        while part.items:
            if at == end:
                first, end = end, next(ends)
            good = [i - first for i in part.good if i < end]
            bad = [(i - first, why) for i, why in part.bad if i < end]
            yield Part(good, part.rows[: len(good)], bad)
            part = Part(part.good[len(good) :], part.rows[len(good) :], part.bad[len(bad) :])
            at += len(good) + len(bad)


def _start(
    run: Path, items: Collection[Any], modality: Modality, folder: Path, shard_size: int
) -> Job:
    """The job, noted in the folder; a folder that holds another one is refused."""
    bits = int(read_json(run / "config.json")["settings"]["bits"])
    job = Job(modality, bits, len(items), shard_size, _model_digest(run), _input_digest(items))
    note = folder / "job.json"
    if note.exists():
        known = read_json(note)
        changed = [name for name, value in asdict(job).items() if known.get(name) != value]
        if changed:
            raise DataError(
                f"{folder} holds the codes of another job (its {', '.join(changed)} differ); give "
                "an empty folder, or the same run, input and shard size to go on"
            )
    elif folder.exists() and any(folder.iterdir()):
        raise DataError(f"{folder} holds other files; give an empty folder")
    write_json(note, asdict(job))
    return job


def _here(
    run: Path,
    items: Collection[Any],
    job: Job,
    folder: Path,
    todo: Sequence[int],
    workers: int | None,
    device: str,
) -> Iterator[int]:
    shards = [(shard_path(folder, number), _cut(items, job.rows(number))) for number in todo]
    if shards:
        yield from ShardEncoder(str(run), job.modality, workers, device).write(shards)


def _on_ray(
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


def _cut(items: Collection[Any], rows: slice) -> Collection[Any]:
    features = None if items.features is None else items.features[rows]
    return Collection(items.ids[rows], items.items[rows], features=features)


def _footer(path: Path) -> tuple[int, list[Problem]]:
    import pyarrow.parquet as pq

    footer = pq.read_metadata(path)
    return footer.num_rows, [Problem(**row) for row in json.loads(footer.metadata[b"bad"])]


def _model_digest(run: Path) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name in ("config.json", "hasher.safetensors", "text.safetensors", "vocabulary.json"):
        if (run / name).exists():
            digest.update(name.encode() + (run / name).read_bytes())
    return digest.hexdigest()


def _input_digest(items: Collection[Any]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name, item in zip(items.ids, items.items):
        digest.update(f"{name}\x00{item}\x00".encode(errors="surrogatepass"))
    if items.features is not None:
        digest.update(np.ascontiguousarray(items.features[:: max(1, len(items) // 64)]).tobytes())
    return digest.hexdigest()
