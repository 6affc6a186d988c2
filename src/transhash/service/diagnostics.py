"""What a run folder tells about its training, reduced to what may be shown."""

from __future__ import annotations

import json
import math
import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transhash.service.schemas import Diagnostics

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


# Counters and histograms in the Prometheus text format; small enough to need no dependency.

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class RequestMetrics:
    """Requests by route and status, and how long they took.

    Routes are templates and methods those of HTTP: no client can invent a label.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: dict[tuple[str, str, int], int] = defaultdict(int)
        self._buckets: dict[str, list[int]] = {}
        self._seconds: dict[str, float] = defaultdict(float)

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        method = method if method in _METHODS else "other"
        with self._lock:
            self._requests[method, route, status] += 1
            buckets = self._buckets.setdefault(route, [0] * (len(_BOUNDS) + 1))
            buckets[bisect_left(_BOUNDS, seconds)] += 1
            self._seconds[route] += seconds

    def render(self, gauges: Mapping[str, tuple[str, Mapping[str, float]]]) -> str:
        """The page a scraper reads; gauges are name -> (help, {labels: value})."""
        with self._lock:
            requests = sorted(self._requests.items())
            buckets = {route: list(counts) for route, counts in sorted(self._buckets.items())}
            seconds = dict(self._seconds)
        name = "transhash_http_requests_total"
        lines = [f"# HELP {name} Requests answered.", f"# TYPE {name} counter"]
        for (method, route, status), count in requests:
            lines.append(f'{name}{{method="{method}",route="{route}",status="{status}"}} {count}')
        name = "transhash_http_request_seconds"
        lines += [f"# HELP {name} Time from request to reply.", f"# TYPE {name} histogram"]
        for route, counts in buckets.items():
            total = 0
            for bound, count in zip((*map(str, _BOUNDS), "+Inf"), counts, strict=True):
                total += count
                lines.append(f'{name}_bucket{{route="{route}",le="{bound}"}} {total}')
            lines.append(f'{name}_sum{{route="{route}"}} {seconds[route]:.6f}')
            lines.append(f'{name}_count{{route="{route}"}} {total}')
        for name, (meaning, values) in gauges.items():
            lines += [f"# HELP {name} {meaning}", f"# TYPE {name} gauge"]
            lines += [f"{name}{{{labels}}} {value:g}" for labels, value in values.items()]
        return "\n".join(lines) + "\n"
