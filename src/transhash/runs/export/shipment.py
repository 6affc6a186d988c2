"""The items of a run as another store takes them: Arrow batches, or ids and codes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from transhash.errors import DataError
from transhash.progress import Track, silent
from transhash.runs.agreement import check_model
from transhash.runs.catalog import MODALITIES, Catalog, Modality
from transhash.runs.model_files import model_digest, read_config, run_bits

EXPORTED_COLUMNS = ("number", "modality", "id", "text", "file", "code")
EXPORT_FORMAT = "transhash-export"
_BLOCK = 10_000  # items a batch
_TABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")


@dataclass
class Shipment:
    """All that is sent; `sent` counts it."""

    catalog: Catalog
    bits: int
    note: dict[str, Any]  # what the codes are codes of
    track: Track = silent
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


def open_shipment(run: Path, track: Track = silent) -> Shipment:
    """What the run holds; its catalog stays open."""
    config, bits, model = read_config(run), run_bits(run), model_digest(run)
    catalog = Catalog(run / "catalog.sqlite", read_only=True)
    try:
        check_model(catalog, run)
        if not any(map(catalog.count, MODALITIES)):
            raise DataError(f"{run} holds no items; add some with: transhash index {run} ...")
    except BaseException:
        catalog.close()
        raise
    note = {"format": EXPORT_FORMAT, "method": config["method"], "bits": bits, "model": model}
    return Shipment(catalog, bits, note, track)


def check_table(name: str) -> None:
    """Refuses what would have to be quoted in a query."""
    if not _TABLE.fullmatch(name):
        raise DataError(f"--table takes letters, digits and _, got {name!r}")


def need(module: str, store: str) -> Any:
    """A store's own package, imported now that it is asked for."""
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise DataError(
            f"--to {store} needs {package} ({error}); pip install 'transhash[{store}]'"
        ) from None
