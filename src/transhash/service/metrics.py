"""Counters and histograms in the Prometheus text format; small enough to need no dependency."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping

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
