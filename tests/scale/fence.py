"""Runs a server that listens on every interface in a namespace with only the loopback interface.

    unshare --map-root-user --net --mount python fence.py SOCKET PORT HEALTH COMMAND...

Milvus 2.3.5 binds its gRPC and metrics ports to all addresses, whatever its configuration says. In
a separate network namespace nobody can reach them. Connections to SOCKET, a descriptor bound to
127.0.0.1 outside, are forwarded to PORT inside: a socket stays in the namespace it was created in.
Milvus also writes to two fixed folders, which are private in a separate mount namespace.

Prints the server's process id when it is healthy; ends with the server or with standard input, so
that neither outlives the tests.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import os
import signal
import socket
import struct
import sys

_SIOCSIFFLAGS, _IFF_UP, _PR_SET_PDEATHSIG = 0x8914, 1, 1


def loopback_up() -> None:
    """Do what `ip link set lo up` does; `ip` may not be installed."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", _IFF_UP))


def own_folders() -> None:
    """Mount private folders for its machine-wide lock and its file of node ids."""
    os.makedirs("/tmp/milvus", exist_ok=True)
    for folder in (b"/run", b"/tmp/milvus"):  # only root can create /run/milvus
        if ctypes.CDLL(None, use_errno=True).mount(b"tmpfs", folder, b"tmpfs", 0, None):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), folder)


def die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await source.read(1 << 16):
            sink.write(data)
            await sink.drain()
    sink.close()


async def healthy(port: int) -> bool:
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /healthz HTTP/1.0\r\n\r\n")
        answer = await reader.read()
        writer.close()
    except OSError:
        return False
    return answer.split()[1:2] == [b"200"]


async def main(outside: int, port: int, health: int, *command: str) -> None:
    loopback_up()
    own_folders()
    server = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=sys.stderr, preexec_fn=die_with_parent
    )

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(pump(reader, back), pump(there, writer))

    async def admit() -> None:
        while True:  # refuse connections until the port is open, then say "not ready yet"
            with contextlib.suppress(OSError):
                (await asyncio.open_connection("127.0.0.1", port))[1].close()
                break
            await asyncio.sleep(0.05)
        await asyncio.start_server(relay, sock=socket.socket(fileno=outside))
        while not await healthy(health):
            await asyncio.sleep(0.1)
        print(server.pid, flush=True)

    alone = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), alone.set)
    ends = [asyncio.create_task(alone.wait()), asyncio.create_task(server.wait())]
    admission = asyncio.create_task(admit())
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    admission.cancel()
    if server.returncode is None:
        server.kill()
        await server.wait()


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:4]), *sys.argv[4:]))
