"""Read what a run folder may show about its training, and count requests."""

from __future__ import annotations

import json
import math
import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, FiniteFloat, TypeAdapter

from transhash.service.schemas import Diagnostics
from transhash.storage import read_regular

_MapState = Literal["before", "after"]
_MapGroup = Literal["auxiliary_images", "auxiliary_texts", "target_images", "target_texts"]
_MapPoint = Annotated[list[FiniteFloat], Field(min_length=2, max_length=2)]
_MAP_ADAPTER = TypeAdapter(dict[_MapState, dict[_MapGroup, list[_MapPoint]]])
# Listed one by one, because reports also have paths and texts of the user's data.
_REPORT_KEYS = (
    "method",
    "bits",
    "training_seconds",
    "auxiliary",
    "target",
    "codes",
    "alignment",
    "validation",
)
_RESULT_KEYS = ("method", "bits", "image_to_text_map", "text_to_image_map", "chance")
_MAX_POINTS = 400  # per group; more are slower to draw and look the same


def read_diagnostics(run: Path) -> Diagnostics:
    """Return the alignment map, report and results of a run; malformed parts are left out."""
    report = read_report(run)
    if "validation" in report:
        report["validation"] = _validation_messages(report["validation"])
    results = _read_json(run / "results.json")
    return Diagnostics(
        map=_read_map(run / "diagnostics.json"),
        report={key: report[key] for key in _REPORT_KEYS if key in report} or None,
        results=[
            {key: row[key] for key in _RESULT_KEYS if key in row}
            for row in (results if isinstance(results, list) else ())
            if isinstance(row, dict) and "method" in row
        ],
    )


def read_report(run: Path) -> dict[str, Any]:
    """Return report.json of a run, or an empty dictionary."""
    report = _read_json(run / "report.json")
    return report if isinstance(report, dict) else {}


def _validation_messages(validation: Any) -> dict[str, list[str]]:
    """Return the sentences without the numbers and without words of the user's texts."""
    parts = validation if isinstance(validation, dict) else {}
    return {
        name: [line for line in lines if isinstance(line, str)] if isinstance(lines, list) else []
        for name, lines in ((name, parts.get(name)) for name in ("summary", "warnings"))
    }


def _read_map(path: Path) -> Any:
    try:
        states = _MAP_ADAPTER.validate_json(read_regular(path))
    except (OSError, ValueError):
        return None
    for groups in states.values():
        for name, points in groups.items():
            groups[name] = points[:: max(1, math.ceil(len(points) / _MAX_POINTS))]
    return states if any(states.get("after", {}).values()) else None


def _read_json(path: Path) -> Any:
    try:
        # NaN and Infinity become None: a reply cannot contain them.
        return json.loads(read_regular(path), parse_constant=lambda _: None)
    except (OSError, ValueError):
        return None  # the search page works without it


METRICS_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_HTTP_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_BUCKET_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class RequestMetrics:
    """Count requests and their duration, for the Prometheus text format.

    Labels are route templates and known HTTP methods, so that no client can invent one.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: dict[tuple[str, str, int], int] = defaultdict(int)
        self._buckets: dict[str, list[int]] = {}
        self._seconds: dict[str, float] = defaultdict(float)

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        method = method if method in _HTTP_METHODS else "other"
        with self._lock:
            self._requests[method, route, status] += 1
            buckets = self._buckets.setdefault(route, [0] * (len(_BUCKET_BOUNDS) + 1))
            buckets[bisect_left(_BUCKET_BOUNDS, seconds)] += 1
            self._seconds[route] += seconds

    def render(self, gauges: Mapping[str, tuple[str, Mapping[str, float]]]) -> str:
        """Return the text that Prometheus reads; gauges are name -> (help, {labels: value})."""
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
            for bound, count in zip((*map(str, _BUCKET_BOUNDS), "+Inf"), counts, strict=True):
                total += count
                lines.append(f'{name}_bucket{{route="{route}",le="{bound}"}} {total}')
            lines.append(f'{name}_sum{{route="{route}"}} {seconds[route]:.6f}')
            lines.append(f'{name}_count{{route="{route}"}} {total}')
        for name, (description, values) in gauges.items():
            lines += [f"# HELP {name} {description}", f"# TYPE {name} gauge"]
            lines += [f"{name}{{{labels}}} {value:g}" for labels, value in values.items()]
        return "\n".join(lines) + "\n"
