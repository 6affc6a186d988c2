"""The items of a run as Arrow batches, and one function per export format that writes them."""

from __future__ import annotations

import io
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
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
from transhash.storage import atomic_file, atomic_folder, make_folder, write_bytes, write_json

EXPORTED_COLUMNS = ("number", "modality", "id", "text", "file", "code")
_COLUMN_LIST = ", ".join(EXPORTED_COLUMNS)
_FORMAT = "transhash-export"
_METADATA_FILE = "export.json"
_CHUNK_ROWS = 10_000
_TABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")


@dataclass
class ExportedItems:
    """The items of a run; `sent` counts those that were read."""

    catalog: Catalog
    bits: int
    metadata: dict[str, Any]  # describes the model of the codes
    track: Track = no_progress
    sent: int = 0

    @property
    def schema(self) -> Any:
        import pyarrow as pa

        types = (pa.int64(), *[pa.string()] * 4, pa.binary(self.bits // 8))
        return pa.schema(list(zip(EXPORTED_COLUMNS, types)))

    def batches(self) -> Iterator[Any]:
        """Yield every item in Arrow record batches and show progress."""
        total = sum(map(self.catalog.count, MODALITIES))
        progress = iter(self.track(range(total), "exporting", total))
        for modality in MODALITIES:
            numbers, _ = self.codes(modality)
            for start in range(0, len(numbers), _CHUNK_ROWS):
                batch = self._batch(numbers[start : start + _CHUNK_ROWS])
                for _ in range(batch.num_rows):
                    next(progress, None)
                self.sent += batch.num_rows
                yield batch
        next(progress, None)

    def rows(self) -> Iterator[tuple[int, str, str, str | None, str | None, bytes]]:
        for batch in self.batches():
            yield from zip(*(column.to_pylist() for column in batch.columns))

    def codes(self, modality: Modality) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
        """Return the numbers and packed codes of one modality."""
        return self.catalog.codes(modality, self.bits // 8)

    def _batch(self, numbers: npt.NDArray[np.int64]) -> Any:
        import pyarrow as pa

        stored = self.catalog.get(numbers.tolist())
        # A writer may have removed items meanwhile.
        items = [stored[number] for number in numbers.tolist() if number in stored]
        columns = (
            [item.number for item in items],
            [item.modality for item in items],
            [item.id for item in items],
            [item.text for item in items],
            [item.path for item in items],
            [item.code for item in items],
        )
        arrays = [pa.array(values, field.type) for values, field in zip(columns, self.schema)]
        return pa.record_batch(arrays, schema=self.schema)


@contextmanager
def open_items(run: Path, track: Track = no_progress) -> Iterator[ExportedItems]:
    config, bits, model = read_config(run), read_bits(run), model_digest(run)
    with Catalog(run / "catalog.sqlite", read_only=True) as catalog:
        check_model(catalog, run, model)
        if not any(map(catalog.count, MODALITIES)):
            raise DataError(
                f"{run} has no indexed items. Run: transhash index {shlex.quote(str(run))} ..."
            )
        metadata = {"format": _FORMAT, "method": config["method"], "bits": bits, "model": model}
        yield ExportedItems(catalog, bits, metadata, track)


def check_table(name: str) -> None:
    """Raise if the name would have to be quoted in a query."""
    if not _TABLE_NAME.fullmatch(name):
        raise DataError(f"{name!r} is not a valid table name. Use letters, digits and _.")


def check_output_folder(folder: Path, metadata_file: str) -> None:
    """Raise unless the folder is new, empty or an earlier export."""
    is_export = (folder / metadata_file).is_file()
    if folder.exists() and not is_export and not (folder.is_dir() and not any(folder.iterdir())):
        raise DataError(
            f"{folder} exists and is not an earlier export. Choose a new or empty folder."
        )


def require_package(module: str, format: str) -> Any:
    """Import the package of an export format."""
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise DataError(
            f"The export format {format} needs {package} ({error}). "
            f"Install it: pip install 'transhash[{format}]'."
        ) from None


def to_parquet(items: ExportedItems, destination: str, table: str) -> None:
    """Write one file with one row per item."""
    path = Path(destination)
    if path.is_dir():
        raise DataError(f"{path} is a folder. Pass a file as --out.")
    if path.exists() and not _is_export(path):
        raise DataError(f"{path} exists and is not an earlier export. Choose another file.")
    _write_parquet(items, path)


def to_npy(items: ExportedItems, destination: str, table: str) -> None:
    """Write images.npy and texts.npy, one row of bytes per item, and their ids as .json files.

    sentence-transformers calls this format ubinary.
    """
    with _folder(items, Path(destination)) as folder:
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


def to_faiss(items: ExportedItems, destination: str, table: str) -> None:
    """Write images.faiss and texts.faiss by number; items.parquet describes the numbers."""
    with _folder(items, Path(destination)) as folder:
        for modality in MODALITIES:
            numbers, packed = items.codes(modality)
            write_faiss(folder / f"{modality}.faiss", numbers, Codes(packed, items.bits))
        _write_parquet(items, folder / "items.parquet")


def to_usearch(items: ExportedItems, destination: str, table: str) -> None:
    """Write images.usearch and texts.usearch by number; items.parquet describes the numbers."""
    usearch = require_package("usearch.index", "usearch")
    with _folder(items, Path(destination)) as folder:
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

    metadata = {name: str(value) for name, value in items.metadata.items()}
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
    return bool(metadata.get(b"format") == _FORMAT.encode())


@contextmanager
def _folder(items: ExportedItems, folder: Path) -> Iterator[Path]:
    """Yield a temporary folder that replaces an earlier export."""
    check_output_folder(folder, _METADATA_FILE)
    with atomic_folder(folder) as draft:
        yield draft
        write_json(draft / _METADATA_FILE, {**items.metadata, "items": items.sent})


# The databases below replace one table in a transaction.


def to_pgvector(items: ExportedItems, destination: str, table: str) -> None:
    """Write to PostgreSQL with pgvector: code is bit(n), <~> is the Hamming distance."""
    psycopg = require_package("psycopg", "pgvector")
    if not destination.startswith(("postgresql://", "postgres://")):
        raise DataError(
            "The export format pgvector needs a database URL. "
            "Pass --out postgresql://USER:PASSWORD@HOST/DATABASE."
        )
    with _database_errors(psycopg.Error, "PostgreSQL"), psycopg.connect(destination) as base:
        base.execute("CREATE EXTENSION IF NOT EXISTS vector")
        columns = base.execute(
            "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 "
            "AND NOT attisdropped ORDER BY attnum",
            [f'"{table}"'],
        )
        _check_columns([name for (name,) in columns], table)
        base.execute(f'DROP TABLE IF EXISTS "{table}"')
        base.execute(
            f'CREATE TABLE "{table}" (number bigint PRIMARY KEY, modality text NOT NULL, '
            f"id text NOT NULL, text text, file text, code bit({items.bits}) NOT NULL)"
        )
        with base.cursor().copy(f'COPY "{table}" ({_COLUMN_LIST}) FROM STDIN') as copy:
            for *values, code in items.rows():
                # PostgreSQL cannot store NUL in a text.
                clean = [x.replace("\0", "") if isinstance(x, str) else x for x in values]
                copy.write_row((*clean, f"{int.from_bytes(code):0{items.bits}b}"))


def to_sqlite_vec(items: ExportedItems, destination: str, table: str) -> None:
    """Write to SQLite with sqlite-vec: a vec0 table, partitioned by modality."""
    apsw = require_package("apsw", "sqlite-vec")
    extension = require_package("sqlite_vec", "sqlite-vec")
    make_folder(Path(destination).parent)
    with _database_errors(apsw.Error, destination), closing(apsw.Connection(destination)) as base:
        base.set_busy_timeout(30_000)
        base.enable_load_extension(True)
        base.load_extension(extension.loadable_path())
        with base:
            columns = base.execute("SELECT name FROM pragma_table_info(?)", (table,))
            _check_columns([name for (name,) in columns], table)
            base.execute(f'DROP TABLE IF EXISTS "{table}"')
            base.execute(
                f'CREATE VIRTUAL TABLE "{table}" USING vec0(number integer primary key, '
                "modality text partition key, +id text, +text text, +file text, "
                f"code bit[{items.bits}])"
            )
            base.executemany(
                f'INSERT INTO "{table}" ({_COLUMN_LIST}) VALUES (?,?,?,?,?,vec_bit(?))',
                items.rows(),
            )


def to_duckdb(items: ExportedItems, destination: str, table: str) -> None:
    """Write to DuckDB: code is BIT, bit_count(xor(a, b)) is the Hamming distance."""
    duckdb = require_package("duckdb", "duckdb")
    make_folder(Path(destination).parent)
    with _database_errors(duckdb.Error, destination), closing(duckdb.connect(destination)) as base:
        base.execute("BEGIN")
        columns = base.execute(
            "SELECT column_name FROM duckdb_columns() WHERE table_name = ? AND "
            "database_name = current_database() AND schema_name = current_schema()",
            [table],
        ).fetchall()
        _check_columns([name for (name,) in columns], table)
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


def to_lancedb(items: ExportedItems, destination: str, table: str) -> None:
    """Write to LanceDB: code is a list of bytes; search with the distance "hamming"."""
    lancedb = require_package("lancedb", "lancedb")
    import pyarrow as pa

    code_type = pa.list_(pa.uint8(), items.bits // 8)
    schema = items.schema.set(EXPORTED_COLUMNS.index("code"), pa.field("code", code_type))

    def batches() -> Iterator[Any]:
        for batch in items.batches():
            values = pa.array(memoryview(b"".join(batch["code"].to_pylist())), pa.uint8())
            codes = pa.FixedSizeListArray.from_arrays(values, items.bits // 8)
            yield pa.record_batch([*batch.columns[:-1], codes], schema=schema)

    with _database_errors((OSError, RuntimeError, ValueError), destination):
        base = lancedb.connect(destination)
        if table in base.list_tables().tables:
            _check_columns(base.open_table(table).schema.names, table)
        reader = pa.RecordBatchReader.from_batches(schema, batches())
        base.create_table(table, data=reader, schema=schema, mode="overwrite")


def _check_columns(columns: Sequence[str], table: str) -> None:
    if columns and set(columns) != set(EXPORTED_COLUMNS):
        raise DataError(
            f"The table {table} exists and is not an earlier export (columns: "
            f"{', '.join(columns)}). Choose another name with --table."
        )


@contextmanager
def _database_errors(errors: Any, destination: str) -> Iterator[None]:
    """Turn errors of a database into an EngineError."""
    try:
        yield
    except (DataError, EngineError):
        raise
    except errors as error:
        reason = " ".join(str(error).split())
        raise EngineError(
            f"{destination} rejected the export and is unchanged ({reason}). "
            "Check the destination and try again."
        ) from None
