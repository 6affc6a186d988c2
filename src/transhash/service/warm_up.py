"""Load what the first requests would wait for, before the service says that it is ready."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from transhash.errors import TranshashError
from transhash.service.limits import WorkerPool
from transhash.service.search_service import SearchService

_log = logging.getLogger("transhash.service")
_WAIT_SECONDS = 5.0  # that a request waits; health checks give up after a few more


class WarmingUpError(Exception):
    """The service is still loading its model."""


class WarmUp:
    """Loads the text side and then the image backbone, while the search page is available.

    A service that was not started, such as one in a test client without its lifespan, does not
    wait. A warm-up that fails ends: the requests then report the error.
    """

    def __init__(self, service: SearchService) -> None:
        self._service = service
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        service = self._service
        texts = asyncio.create_task(_run(service.texts, service.warm_up_texts))
        images = asyncio.create_task(_run(service.images, service.warm_up_images, texts))
        self._tasks = [texts, images]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def texts(self) -> None:
        """Wait until texts can be searched; raise WarmingUpError if that takes long."""
        await self._wait(self._tasks[:1])

    async def everything(self) -> None:
        """Wait until texts and images can be searched; raise WarmingUpError if that takes long."""
        await self._wait(self._tasks)

    async def _wait(self, tasks: list[asyncio.Task[None]]) -> None:
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=_WAIT_SECONDS)
            if late:
                raise WarmingUpError


async def _run(
    pool: WorkerPool, warm_up: Callable[[], None], after: asyncio.Task[None] | None = None
) -> None:
    if after is not None:
        await asyncio.wait([after])
    try:
        await pool.run(warm_up)
    except TranshashError as error:
        _log.warning("Warm-up failed, so the first search may fail: %s", error)
    except Exception:
        _log.exception("Warm-up failed, so the first search may fail.")
