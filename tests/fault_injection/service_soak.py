"""Fault injection: mixed use for minutes must not leak memory or file descriptors.

    python tests/fault_injection/service_soak.py --seconds 600

Clients search, browse, upload images, add and remove texts, vote, and change a folder of images and
a table of texts that the service syncs. In the end the index must have exactly what these have.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from service.server_process import ServerProcess
from service.small_run import build_run, image_bytes

KEY = "write-key"
ALLOWED = {200, 201, 202, 404, 422, 429, 503}


class Sources:
    """A folder and a table that change while the service syncs them."""

    FIXED, MORE = 12, 5  # images or rows that stay, and others that come and go

    def __init__(self, folder: Path) -> None:
        self.images, self.table = folder / "soak-images", folder / "soak-notes.csv"
        self.images.mkdir()
        self._lock = threading.Lock()
        self._rows = set(range(self.FIXED))
        for number in self._rows:
            self._write(self.images / f"{number}.png", self._image(number))
        self._write_table()

    def change(self, rng: random.Random) -> None:
        """Write or delete an image, and add or delete a row before the last one."""
        with self._lock:
            path = self.images / f"{self.FIXED + rng.randrange(self.MORE)}.png"
            if path.exists():
                path.unlink()
            else:
                self._write(path, self._image(rng.randrange(256)))
            self._rows ^= {-1 - rng.randrange(self.MORE)}
            # Stays: a table that loses every row it has gained looks cut off.
            self._rows.add(-1 - self.MORE)
            self._write_table()

    def ids(self) -> tuple[set[str], set[str]]:
        """Return the ids of the images and of the texts."""
        return {path.name for path in self.images.iterdir()}, {f"n{row}" for row in self._rows}

    def _write_table(self) -> None:
        rows = "".join(f"n{row},a boat and {row} cats\n" for row in sorted(self._rows))
        self._write(self.table, f"id,text\n{rows}".encode())

    @staticmethod
    def _image(shade: int) -> bytes:
        return image_bytes("PNG", (40 + shade, 48))

    @staticmethod
    def _write(path: Path, content: bytes) -> None:
        draft = path.with_name(f"{path.name}.part")
        if path.suffix == ".png":  # outside of the folder, which has images only
            draft = path.parent.parent / draft.name
        draft.write_bytes(content)
        os.replace(draft, path)


def search(client: httpx.Client, rng: random.Random) -> int:
    words = " ".join(rng.choices(("boat", "cat", "fish", "tree", "house", "xyzzy"), k=3))
    return client.get("/api/search/text", params={"q": words, "k": rng.randint(1, 60)}).status_code


def browse(client: httpx.Client, rng: random.Random) -> int:
    number = rng.randint(1, 120)
    client.get(f"/api/items/{number}/thumbnail")
    return client.get(f"/api/items/{number}/similar", params={"modality": "texts"}).status_code


def upload(client: httpx.Client, rng: random.Random) -> int:
    size = rng.randint(32, 400), rng.randint(32, 400)
    data = image_bytes(rng.choice(("PNG", "JPEG")), size) if rng.random() < 0.8 else b"not an image"
    return client.post("/api/search/image", files={"image": data}).status_code


def change(client: httpx.Client, rng: random.Random) -> int:
    """Add and remove a text, so that the run keeps its size."""
    new = {"texts": [{"text": "a boat and a cat", "id": f"soak-{rng.randint(0, 20)}"}]}
    added = client.post("/api/items/texts", json=new)
    if added.status_code != 201:
        return added.status_code
    return client.delete(f"/api/items/{added.json()['items'][0]['number']}").status_code


def vote(client: httpx.Client, rng: random.Random) -> int:
    """Vote on an image and a typed text, or delete that vote."""
    image, text = rng.randint(1, 48), rng.choice(("a boat", "a cat", "two fish"))
    if rng.random() < 0.5:
        return client.delete("/api/votes", params={"image": image, "text": text}).status_code
    new = {"image": image, "text": {"text": text}, "vote": rng.choice((-1, 1))}
    return client.post("/api/votes", json=new).status_code


def request_sync(client: httpx.Client, rng: random.Random) -> int:
    return client.post("/api/sync").status_code


def get_page(client: httpx.Client, rng: random.Random) -> int:
    return client.get(rng.choice(("/", "/api/about", "/metrics", "/ready", "/nowhere"))).status_code


def disconnect(client: httpx.Client, rng: random.Random) -> int:
    """Disconnect without reading the reply, or without a request."""
    address = client.base_url.host, client.base_url.port
    with socket.create_connection(address, timeout=30) as connection:
        if rng.random() < 0.7:
            connection.sendall(b"GET /api/search/text?q=boat HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    return 200


ACTIONS: tuple[tuple[Callable[[httpx.Client, random.Random], int], int], ...] = (
    (search, 40),
    (browse, 20),
    (upload, 8),
    (change, 6),
    (vote, 6),
    (request_sync, 2),
    (get_page, 10),
    (disconnect, 6),
)


def wait_for_syncs(client: httpx.Client) -> dict[str, Any]:
    """Sync once more and return the status when no sync runs or is requested."""
    client.post("/api/sync")
    while True:
        status: dict[str, Any] = client.get("/api/sync").json()
        if not status["running"] and not status["requested"]:
            return status
        time.sleep(0.1)


def found_ids(client: httpx.Client, modality: str, source: str) -> set[str]:
    query = {"q": "a boat", "modality": modality, "k": "200", "source": source, "search": "codes"}
    reply = client.get("/api/search/text", params=query | {"collapse": "false"})
    return {hit["id"] for hit in reply.json()["hits"]}


def soak(run: Path, seconds: float, clients: int = 4, samples: int = 40) -> dict[str, Any]:
    """Return memory and descriptors at the start, after a fifth of the time, and at the end."""
    statuses: Counter[int] = Counter()
    done: Counter[str] = Counter()
    sources = Sources(run.parent)
    lock = threading.Lock()
    end = time.monotonic() + seconds

    def use(url: str, seed: int) -> None:
        rng = random.Random(seed)
        actions, weights = zip(*ACTIONS, strict=True)
        with httpx.Client(base_url=url, headers={"X-API-Key": KEY}, timeout=60) as client:
            while time.monotonic() < end:
                action = rng.choices(actions, weights)[0]
                if action is request_sync:
                    sources.change(rng)
                status = action(client, rng)
                with lock:
                    statuses[status] += 1
                    done[action.__name__] += 1

    options = ["--sync", str(sources.images), "--sync", str(sources.table), "--sync-every", "5"]
    with ServerProcess(run, *options, write_key=KEY) as server:
        key = {"X-API-Key": KEY}
        with httpx.Client(base_url=server.url, headers=key, timeout=60) as client:
            for action, count in ACTIONS:  # warm-up: the model and its buffers take memory once
                for seed in range(count):
                    action(client, random.Random(seed))
        end = time.monotonic() + seconds
        threads = [threading.Thread(target=use, args=(server.url, i)) for i in range(clients)]
        for thread in threads:
            thread.start()
        measurements: list[tuple[float, int, int]] = []
        while time.monotonic() < end:
            measurements.append((time.monotonic(), server.memory(), server.descriptors()))
            time.sleep(seconds / samples)
        for thread in threads:
            thread.join()
        with httpx.Client(base_url=server.url, headers=key, timeout=60) as client:
            syncs = wait_for_syncs(client)
            names = sources.images.name, sources.table.name
            found = found_ids(client, "images", names[0]), found_ids(client, "texts", names[1])
        code = server.stop()
        stderr = server.stderr()
    assert "Traceback" not in stderr, stderr
    assert not syncs["last"]["error"], syncs
    assert found == sources.ids(), "a sync lost or kept an item"
    steady = np.array(measurements[len(measurements) // 5 :])
    slope = np.polyfit((steady[:, 0] - steady[0, 0]) / 60, steady[:, 1] / 1024, 1)[0]
    return {
        "seconds": seconds,
        "requests": statuses.total(),
        "statuses": dict(sorted(statuses.items())),
        "changes": done["change"],
        "votes": done["vote"],
        "syncs": syncs["syncs"],
        "memory_mib": [
            round(kib / 1024) for kib in (measurements[0][1], steady[0, 1], steady[-1, 1])
        ],
        "mib_per_minute": round(float(slope), 2),
        "descriptors": [
            int(n) for n in (measurements[0][2], np.median(steady[:, 2]), steady[-1, 2])
        ],
        "max_descriptors": int(steady[:, 2].max()),
        "exit": code,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--clients", type=int, default=4)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(soak(build_run(Path(folder)), options.seconds, options.clients)))


if __name__ == "__main__":
    main()
