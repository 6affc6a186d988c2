"""What a run folder tells about its training, reduced to what may be shown."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from transhash.service.models import Diagnostics

GROUPS = ("auxiliary_images", "auxiliary_texts", "target_images", "target_texts")
# Named one by one: reports also hold paths and texts of the user's data.
REPORT = (
    "method",
    "bits",
    "training_seconds",
    "auxiliary",
    "target",
    "codes",
    "alignment",
    "verdict",
)
ROW = ("method", "bits", "image_to_text_map", "text_to_image_map", "chance")
_MOST_POINTS = 400  # a group; more is slower to draw and looks the same


def read_diagnostics(run: Path) -> dict[str, Any]:
    """diagnostics.json, report.json and results.json of a run; what is missing stays out."""
    return {
        "map": _read(run / "diagnostics.json"),
        "report": read_report(run),
        "results": _read(run / "results.json"),
    }


def read_report(run: Path) -> Any:
    """report.json of a run, or None."""
    return _read(run / "report.json")


def presentable(found: dict[str, Any]) -> Diagnostics:
    """Only known fields, only finite numbers; a part of another shape counts as missing."""
    # The content of diagnostics.json alone is welcome too.
    drawn = found if "before" in found else found.get("map")
    report, results = found.get("report"), found.get("results")
    if isinstance(report, dict) and "verdict" in report:
        report = report | {"verdict": _sentences(report["verdict"])}
    return Diagnostics(
        map=_map(drawn),
        report=_finite({key: report[key] for key in REPORT if key in report})
        if isinstance(report, dict)
        else None,
        results=[
            _finite({key: row[key] for key in ROW if key in row})
            for row in results
            if isinstance(row, dict) and "method" in row
        ]
        if isinstance(results, list)
        else [],
    )


def _sentences(verdict: Any) -> dict[str, list[str]]:
    """What it says; not the numbers, nor words of texts that may not be shown."""
    parts = verdict if isinstance(verdict, dict) else {}
    lists = {name: parts.get(name) for name in ("said", "warnings")}
    return {
        name: [line for line in lines if isinstance(line, str)] if isinstance(lines, list) else []
        for name, lines in lists.items()
    }


def _map(drawn: Any) -> dict[str, dict[str, list[list[float]]]] | None:
    if not isinstance(drawn, dict) or not {"before", "after"} <= drawn.keys():
        return None
    shown: dict[str, dict[str, list[list[float]]]] = {}
    for state in ("before", "after"):
        groups = drawn[state] if isinstance(drawn[state], dict) else {}
        shown[state] = {name: _points(groups.get(name)) for name in GROUPS}
    return shown if any(shown["after"].values()) else None


def _points(points: Any) -> list[list[float]]:
    if not isinstance(points, list):
        return []
    good = [
        [float(point[0]), float(point[1])]
        for point in points
        if isinstance(point, list)
        and len(point) == 2
        and all(isinstance(x, int | float) and math.isfinite(x) for x in point)
    ]
    return good[:: max(1, math.ceil(len(good) / _MOST_POINTS))]


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_finite(part) for part in value]
    return value


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None  # a page without a table is still a page
