"""How many views and steps fit into the minutes: measured once, decided once."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from torch import Tensor

from transhash.hashers.fine_tuning.settings import FineTuning
from transhash.hashers.fine_tuning.views import FreshViews
from transhash.hashers.world import World
from transhash.storage import read_json, write_json

_TRIED = 2  # steps whose time is taken
_LEAST = 20  # steps that a budget of minutes leaves in any case
_SOME = 32  # images whose time is taken


class TuningPlan:
    """How many views and steps: decided once by the speed of the machine, then kept."""

    def __init__(self, folder: Path | None, name: str, world: World) -> None:
        self.path = None if folder is None else folder / "plan.json"
        self.name, self.world = name, world
        self.views, self.steps, self.finished = world.first(self._read)

    def keep(self, views: int, steps: int) -> None:
        """What the first process decides, for all."""
        self.views, self.steps = self.world.first(lambda: (views, steps))
        self._write()

    def finish(self, digest: str) -> None:
        """The backbone of that digest has been saved."""
        self.finished = digest
        self._write()

    def _write(self) -> None:
        if self.path is not None and self.world.rank == 0:
            numbers = {"views": self.views, "steps": self.steps}
            write_json(self.path, {"name": self.name, **numbers, "finished": self.finished})

    def _read(self) -> tuple[int | None, int | None, str | None]:
        if self.path is None or not self.path.exists():
            return None, None, None
        found = read_json(self.path)
        if found.get("name") != self.name:
            return None, None, None
        return int(found["views"]), int(found["steps"]), found.get("finished")


def steps_within(seconds: float, of_a_step: float, most: int) -> int:
    """As many steps as fit into the time, but no more than asked for and not next to none."""
    return max(min(_LEAST, most), min(most, int(seconds / max(of_a_step, 1e-9))))


def measured_steps(
    asked: FineTuning, begun: float, step: Callable[[], Mapping[str, Tensor]]
) -> int:
    """The steps asked for, or what `step` shows to fit into the minutes since `begun`."""
    if asked.minutes is None:
        return asked.steps
    step()  # the first one is slower
    start = time.monotonic()
    for _ in range(_TRIED):
        sum(float(term.detach()) for term in step().values())  # waits for a GPU
    now = time.monotonic()
    return steps_within(60 * asked.minutes - (now - begun), (now - start) / _TRIED, asked.steps)


def measured_views(asked: FineTuning, views: int, fresh: FreshViews, images: int) -> int:
    """Views whose making takes a quarter of the minutes at most; one in any case."""
    if asked.minutes is None:
        return views
    some = np.arange(min(_SOME, len(fresh.pixels)))
    start = time.monotonic()
    float(fresh.at(some, slice(None), [asked.seed]).sum())
    of_all = (time.monotonic() - start) / len(some) * images
    return max(1, min(views, int(15 * asked.minutes / max(of_all, 1e-9))))
