"""The items of a run as another store takes them: Arrow batches, or ids and codes."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from transhash.codes import Codes
from transhash.data.collection import MODALITIES, Modality
from transhash.errors import DataError, EngineError
from transhash.index.faiss_index import write_faiss
from transhash.model.files import model_digest, read_bits, read_config
from transhash.progress import Track, no_progress
from transhash.search.catalog import Catalog
from transhash.search.consistency import check_model
from transhash.storage import atomic_file, atomic_folder, write_bytes, write_json

EXPORTED_COLUMNS = ("number", "modality", "id", "text", "file", "code")
EXPORT_FORMAT = "transhash-export"
_BLOCK = 10_000  # items a batch
_TABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")


@dataclass
class ExportedItems:
    """All that is sent; `sent` counts it."""

    catalog: Catalog
    bits: int
    note: dict[str, Any]  # what the codes are codes of
    track: Track = no_progress
    sent: int = 0

    @property
    def schema(self) -> Any:
        import pyarrow as pa

        kinds = (pa.int64(), *[pa.string()] * 4, pa.binary(self.bits // 8))
        return pa.schema(list(zip(EXPORTED_COLUMNS, kinds)))

    def batches(self) -> Iterator[Any]:
        """Every item with all that is known of it, as Arrow record batches, a bar beside them."""
        total = sum(map(self.catalog.count, MODALITIES))
        tick = iter(self.track(range(total), "exporting", total))
        for modality in MODALITIES:
            numbers, _ = self.codes(modality)
            for start in range(0, len(numbers), _BLOCK):
                batch = self._batch(numbers[start : start + _BLOCK])
                for _ in range(batch.num_rows):
                    next(tick, None)
                self.sent += batch.num_rows
                yield batch
        next(tick, None)

    def rows(self) -> Iterator[tuple[int, str, str, str | None, str | None, bytes]]:
        """The same, item by item."""
        for batch in self.batches():
            yield from zip(*(column.to_pylist() for column in batch.columns))

    def codes(self, modality: Modality) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
        """Numbers and packed codes of one kind."""
        return self.catalog.codes(modality, self.bits // 8)

    def _batch(self, numbers: npt.NDArray[np.int64]) -> Any:
        import pyarrow as pa

        found = self.catalog.get(numbers.tolist())
        # What a writer removed meanwhile is gone here, too.
        items = [found[number] for number in numbers.tolist() if number in found]
        columns = (
            [item.number for item in items],
            [item.modality for item in items],
            [item.id for item in items],
            [item.text for item in items],
            [item.source for item in items],
            [item.code for item in items],
        )
        arrays = [pa.array(values, field.type) for values, field in zip(columns, self.schema)]
        return pa.record_batch(arrays, schema=self.schema)


def open_items(run: Path, track: Track = no_progress) -> ExportedItems:
    """What the run holds; its catalog stays open."""
    config, bits, model = read_config(run), read_bits(run), model_digest(run)
    catalog = Catalog(run / "catalog.sqlite", read_only=True)
    try:
        check_model(catalog, run)
        if not any(map(catalog.count, MODALITIES)):
            raise DataError(f"{run} holds no items; add some with: transhash index {run} ...")
    except BaseException:
        catalog.close()
        raise
    note = {"format": EXPORT_FORMAT, "method": config["method"], "bits": bits, "model": model}
    return ExportedItems(catalog, bits, note, track)


def check_table(name: str) -> None:
    """Refuses what would have to be quoted in a query."""
    if not _TABLE.fullmatch(name):
        raise DataError(f"--table takes letters, digits and _, got {name!r}")


def require_package(module: str, store: str) -> Any:
    """A store's own package, imported now that it is asked for."""
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise DataError(
            f"--to {store} needs {package} ({error}); pip install 'transhash[{store}]'"
        ) from None


# Stores that are files: parquet, NumPy, FAISS, USearch.

_NOTE = "export.json"


def to_parquet(items: ExportedItems, place: str, table: str) -> None:
    """One file, a row an item."""
    path = Path(place)
    if path.is_dir():
        raise DataError(f"--to parquet writes one file, and {path} is a folder; name a file in it")
    if path.exists() and not _is_export(path):
        raise DataError(f"{path} is there and no export wrote it; give another name as --out")
    _write_parquet(items, path)


def to_npy(items: ExportedItems, place: str, table: str) -> None:
    """images.npy and texts.npy, a row of bytes an item, and images.json and texts.json, their ids.

    These rows are what sentence-transformers calls ubinary.
    """
    with _folder(items, Path(place)) as folder:
        ids: dict[str, list[str]] = {modality: [] for modality in MODALITIES}
        codes: dict[str, list[bytes]] = {modality: [] for modality in MODALITIES}
        for _, modality, item_id, _, _, code in items.rows():
            ids[modality].append(item_id)
            codes[modality].append(code)
        for modality in MODALITIES:
            packed = np.frombuffer(b"".join(codes[modality]), np.uint8)
            buffer = io.BytesIO()
            np.save(buffer, packed.reshape(-1, items.bits // 8), allow_pickle=False)
            write_bytes(folder / f"{modality}.npy", buffer.getvalue())
            write_json(folder / f"{modality}.json", ids[modality])


def to_faiss(items: ExportedItems, place: str, table: str) -> None:
    """images.faiss and texts.faiss, flat, by number; items.parquet says what a number is."""
    with _folder(items, Path(place)) as folder:
        for modality in MODALITIES:
            numbers, packed = items.codes(modality)
            write_faiss(folder / f"{modality}.faiss", numbers, Codes(packed, items.bits))
        _write_parquet(items, folder / "items.parquet")


def to_usearch(items: ExportedItems, place: str, table: str) -> None:
    """images.usearch and texts.usearch by number; items.parquet says what a number is."""
    usearch = require_package("usearch.index", "usearch")
    with _folder(items, Path(place)) as folder:
        for modality in MODALITIES:
            numbers, packed = items.codes(modality)
            index: Any = usearch.Index(
                ndim=items.bits,
                metric=usearch.MetricKind.Hamming,
                dtype=usearch.ScalarKind.B1,
            )
            if len(numbers):
                index.add(numbers.astype(np.uint64), packed)
            index.save(str(folder / f"{modality}.usearch"))
        _write_parquet(items, folder / "items.parquet")


def _write_parquet(items: ExportedItems, path: Path) -> None:
    import pyarrow.parquet as pq

    metadata = {name: str(value) for name, value in items.note.items()}
    schema = items.schema.with_metadata(metadata)
    with atomic_file(path) as file, pq.ParquetWriter(file, schema) as writer:
        for batch in items.batches():
            writer.write_batch(batch)


def _is_export(path: Path) -> bool:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        metadata = pq.read_schema(path).metadata or {}
    except (pa.ArrowException, OSError):
        return False
    return bool(metadata.get(b"format") == EXPORT_FORMAT.encode())


@contextmanager
def _folder(items: ExportedItems, folder: Path) -> Iterator[Path]:
    """A folder that takes the place of an earlier export, and of nothing else."""
    if folder.exists() and not (
        folder.is_dir() and ((folder / _NOTE).is_file() or not any(folder.iterdir()))
    ):
        raise DataError(
            f"{folder} is there and no export wrote it; give a new or an empty folder as --out"
        )
    with atomic_folder(folder) as draft:
        yield draft
        write_json(draft / _NOTE, {**items.note, "items": items.sent})


# Stores that are databases: one table, replaced as a whole or left as it was.

_LIST = ", ".join(EXPORTED_COLUMNS)


def to_pgvector(items: ExportedItems, place: str, table: str) -> None:
    """PostgreSQL with the extension vector: code is bit(n), and <~> the Hamming distance."""
    psycopg = require_package("psycopg", "pgvector")
    if not place.startswith(("postgresql://", "postgres://")):
        raise DataError("--to pgvector takes --out postgresql://USER:PASSWORD@HOST/DATABASE")
    with _refusals(psycopg.Error, "PostgreSQL"), psycopg.connect(place) as base:
        base.execute("CREATE EXTENSION IF NOT EXISTS vector")
        found = base.execute(
            "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 "
            "AND NOT attisdropped ORDER BY attnum",
            [f'"{table}"'],
        )
        _check_ours([name for (name,) in found], table)
        base.execute(f'DROP TABLE IF EXISTS "{table}"')
        base.execute(
            f'CREATE TABLE "{table}" (number bigint PRIMARY KEY, modality text NOT NULL, '
            f"id text NOT NULL, text text, file text, code bit({items.bits}) NOT NULL)"
        )
        with base.cursor().copy(f'COPY "{table}" ({_LIST}) FROM STDIN') as copy:
            for *known, code in items.rows():
                # PostgreSQL alone cannot keep a NUL in a text.
                plain = [x.replace("\0", "") if isinstance(x, str) else x for x in known]
                copy.write_row((*plain, f"{int.from_bytes(code):0{items.bits}b}"))


def to_sqlite_vec(items: ExportedItems, place: str, table: str) -> None:
    """SQLite with the extension sqlite-vec: a vec0 table, scanned a kind at a time."""
    apsw, extension = (
        require_package("apsw", "sqlite-vec"),
        require_package("sqlite_vec", "sqlite-vec"),
    )
    _parent(place)
    with _refusals(apsw.Error, place), _closing(apsw.Connection(place)) as base:
        base.set_busy_timeout(30_000)
        base.enable_load_extension(True)
        base.load_extension(extension.loadable_path())
        with base:
            found = base.execute("SELECT name FROM pragma_table_info(?)", (table,))
            _check_ours([name for (name,) in found], table)
            base.execute(f'DROP TABLE IF EXISTS "{table}"')
            base.execute(
                f'CREATE VIRTUAL TABLE "{table}" USING vec0(number integer primary key, '
                "modality text partition key, +id text, +text text, +file text, "
                f"code bit[{items.bits}])"
            )
            base.executemany(
                f'INSERT INTO "{table}" ({_LIST}) VALUES (?,?,?,?,?,vec_bit(?))', items.rows()
            )


def to_duckdb(items: ExportedItems, place: str, table: str) -> None:
    """DuckDB: code is BIT, and bit_count(xor(a, b)) the Hamming distance."""
    duckdb = require_package("duckdb", "duckdb")
    _parent(place)
    with _refusals(duckdb.Error, place), _closing(duckdb.connect(place)) as base:
        base.execute("BEGIN")
        found = base.execute(
            "SELECT column_name FROM duckdb_columns() WHERE table_name = ? AND "
            "database_name = current_database() AND schema_name = current_schema()",
            [table],
        ).fetchall()
        _check_ours([name for (name,) in found], table)
        base.execute(f'DROP TABLE IF EXISTS "{table}"')
        base.execute(
            f'CREATE TABLE "{table}" (number BIGINT, modality VARCHAR, id VARCHAR, '
            "text VARCHAR, file VARCHAR, code BIT)"
        )
        for batch in items.batches():
            base.register("transhash_batch", batch)
            base.execute(
                f'INSERT INTO "{table}" SELECT number, modality, id, text, file, '
                "code::BLOB::BIT FROM transhash_batch"
            )
            base.unregister("transhash_batch")
        base.execute("COMMIT")


def to_lancedb(items: ExportedItems, place: str, table: str) -> None:
    """LanceDB: code is a list of bytes, searched with the distance "hamming"."""
    lancedb = require_package("lancedb", "lancedb")
    import pyarrow as pa

    wide = pa.list_(pa.uint8(), items.bits // 8)
    schema = items.schema.set(EXPORTED_COLUMNS.index("code"), pa.field("code", wide))

    def batches() -> Iterator[Any]:
        for batch in items.batches():
            values = pa.array(memoryview(b"".join(batch["code"].to_pylist())), pa.uint8())
            codes = pa.FixedSizeListArray.from_arrays(values, items.bits // 8)
            yield pa.record_batch([*batch.columns[:-1], codes], schema=schema)

    with _refusals((OSError, RuntimeError, ValueError), place):
        base = lancedb.connect(place)
        if table in base.list_tables().tables:
            _check_ours(base.open_table(table).schema.names, table)
        reader = pa.RecordBatchReader.from_batches(schema, batches())
        base.create_table(table, data=reader, schema=schema, mode="overwrite")


def _check_ours(found: Sequence[str], table: str) -> None:
    if found and set(found) != set(EXPORTED_COLUMNS):
        raise DataError(
            f"there is a table {table} that no export wrote (its columns: {', '.join(found)}); "
            "name another one with --table"
        )


def _parent(place: str) -> None:
    Path(place).parent.mkdir(parents=True, exist_ok=True)


@contextmanager
def _closing(base: Any) -> Iterator[Any]:
    try:
        yield base
    finally:
        base.close()


@contextmanager
def _refusals(errors: Any, place: str) -> Iterator[None]:
    """What a database refuses as a sentence."""
    try:
        yield
    except (DataError, EngineError):
        raise
    except errors as error:
        reason = " ".join(str(error).split())
        raise EngineError(f"{place} did not take the codes ({reason}); it is as it was") from None
