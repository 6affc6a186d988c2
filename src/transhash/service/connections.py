"""A client's connection: it has to ask in time, and gives way when others want to get in."""

from __future__ import annotations

import asyncio
import sys

from uvicorn.protocols.http.h11_impl import H11Protocol

if sys.platform != "win32":
    import resource

MOST_CONNECTIONS = 2000
HEAD_SECONDS = 10.0  # from the first byte of a request, or from connecting, to its whole head
_OTHER_FILES = 96  # descriptors for the run's files, pictures that wait, and the accept queue
_FULL = b'{"error":"too many connections; try again"}'
_REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n"
    b"content-length: %d\r\nconnection: close\r\n\r\n%b" % (len(_FULL), _FULL)
)


def most_connections() -> int:
    """As many as there are file descriptors for."""
    files = _files()[0]
    return min(MOST_CONNECTIONS, max(files - _OTHER_FILES, files // 4))


def allow_more_files() -> None:
    """Take what the system grants: the usual 1,024 descriptors are fewer than the connections."""
    files, most = _files()
    wanted = min(most, MOST_CONNECTIONS + _OTHER_FILES)
    if sys.platform != "win32" and files < wanted:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _files() -> tuple[int, int]:
    """File descriptors this process may have, and may allow itself."""
    unlimited = 1 << 20
    if sys.platform == "win32":
        return unlimited, unlimited
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    endless = resource.RLIM_INFINITY
    return unlimited if soft == endless else soft, unlimited if hard == endless else hard


class ClientConnection(H11Protocol):
    """uvicorn's HTTP/1.1, which waits for a first request forever and for as many as come."""

    _deadline: asyncio.TimerHandle | None = None
    _since = 0.0

    @property
    def idle(self) -> bool:
        """Nobody would miss an answer if it were cut now."""
        asking = self.cycle is not None and not self.cycle.response_complete
        return not asking or self.transport.is_closing()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        full = len(self.connections) >= most_connections() and not self._make_room()
        super().connection_made(transport)
        self._since = self.loop.time()
        self._await_head()
        if full:
            transport.write(_REFUSAL)
            transport.close()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.idle:
            self._await_head()
        else:
            self._stop_waiting()

    def on_response_complete(self) -> None:
        self._since = self.loop.time()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def timeout_keep_alive_handler(self) -> None:
        if self.transport.get_write_buffer_size():
            self.transport.abort()  # a client that does not read would keep it open
        super().timeout_keep_alive_handler()

    def _await_head(self) -> None:
        if self._deadline is None:  # not anew with every byte: those may drip
            self._deadline = self.loop.call_later(HEAD_SECONDS, self.timeout_keep_alive_handler)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _make_room(self) -> bool:
        """Cut off whoever has been idle longest; False if all are being answered."""
        others = [c for c in self.connections if isinstance(c, ClientConnection) and c.idle]
        if not others:
            return False
        longest = min(others, key=lambda connection: connection._since)
        self.connections.discard(longest)  # at once: the next newcomer must not choose it again
        longest.transport.abort()
        return True
