"""Stores that are databases: one table, replaced as a whole or left as it was."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transhash.errors import DataError, EngineError
from transhash.runs.export.shipment import EXPORTED_COLUMNS, Shipment, need

_LIST = ", ".join(EXPORTED_COLUMNS)


def to_pgvector(shipment: Shipment, place: str, table: str) -> None:
    """PostgreSQL with the extension vector: code is bit(n), and <~> the Hamming distance."""
    psycopg = need("psycopg", "pgvector")
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
            f"id text NOT NULL, text text, file text, code bit({shipment.bits}) NOT NULL)"
        )
        with base.cursor().copy(f'COPY "{table}" ({_LIST}) FROM STDIN') as copy:
            for *known, code in shipment.rows():
                # PostgreSQL alone cannot keep a NUL in a text.
                plain = [x.replace("\0", "") if isinstance(x, str) else x for x in known]
                copy.write_row((*plain, f"{int.from_bytes(code):0{shipment.bits}b}"))


def to_sqlite_vec(shipment: Shipment, place: str, table: str) -> None:
    """SQLite with the extension sqlite-vec: a vec0 table, scanned a kind at a time."""
    apsw, extension = need("apsw", "sqlite-vec"), need("sqlite_vec", "sqlite-vec")
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
                f"code bit[{shipment.bits}])"
            )
            base.executemany(
                f'INSERT INTO "{table}" ({_LIST}) VALUES (?,?,?,?,?,vec_bit(?))', shipment.rows()
            )


def to_duckdb(shipment: Shipment, place: str, table: str) -> None:
    """DuckDB: code is BIT, and bit_count(xor(a, b)) the Hamming distance."""
    duckdb = need("duckdb", "duckdb")
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
        for batch in shipment.batches():
            base.register("transhash_batch", batch)
            base.execute(
                f'INSERT INTO "{table}" SELECT number, modality, id, text, file, '
                "code::BLOB::BIT FROM transhash_batch"
            )
            base.unregister("transhash_batch")
        base.execute("COMMIT")


def to_lancedb(shipment: Shipment, place: str, table: str) -> None:
    """LanceDB: code is a list of bytes, searched with the distance "hamming"."""
    lancedb = need("lancedb", "lancedb")
    import pyarrow as pa

    wide = pa.list_(pa.uint8(), shipment.bits // 8)
    schema = shipment.schema.set(EXPORTED_COLUMNS.index("code"), pa.field("code", wide))

    def batches() -> Iterator[Any]:
        for batch in shipment.batches():
            values = pa.array(memoryview(b"".join(batch["code"].to_pylist())), pa.uint8())
            codes = pa.FixedSizeListArray.from_arrays(values, shipment.bits // 8)
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
