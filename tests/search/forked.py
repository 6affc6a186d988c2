"""Run a command in a forked process that a test can kill, without importing torch again."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable

import pytest

import transhash.training.fit  # noqa: F401 (before forking)
from transhash.cli import main

forking = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def forked(
    *arguments: object,
    command: Callable[[], object] = main,
    prepare: Callable[[], object] = lambda: None,
    kill_after: float | None = None,
    seconds: int = 60,
) -> tuple[int, str]:
    """Return exit code and standard error; a negative code is the signal that ended the process."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.dup2(write_end, 2)
            sys.stdout, sys.stderr = open(1, "w"), open(2, "w")  # noqa: SIM115 (not pytest's)
            sys.argv = ["transhash", *map(str, arguments)]
            logging.getLogger().handlers.clear()  # pytest's; the command sets up its own
            signal.alarm(seconds)  # ends a service that should not have started
            prepare()
            command()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    os.close(write_end)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(pid, signal.SIGKILL)
    with os.fdopen(read_end, encoding="utf-8", errors="replace") as pipe:
        stderr = " ".join(pipe.read().split())
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert "Traceback" not in stderr, stderr
    return code, stderr
