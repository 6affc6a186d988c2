"""Fault injection: mixed use for minutes must not leak memory or file descriptors.

python tests/fault_injection/service_soak.py --seconds 600
"""

from __future__ import annotations

import argparse
import json
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
ALLOWED = {200, 201, 404, 422, 429, 503}


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
    (get_page, 10),
    (disconnect, 6),
)


def soak(run: Path, seconds: float, clients: int = 4, samples: int = 40) -> dict[str, Any]:
    """Return memory and descriptors at the start, after a fifth of the time, and at the end."""
    statuses: Counter[int] = Counter()
    lock = threading.Lock()
    end = time.monotonic() + seconds

    def use(url: str, seed: int) -> None:
        rng = random.Random(seed)
        actions, weights = zip(*ACTIONS, strict=True)
        with httpx.Client(base_url=url, headers={"X-API-Key": KEY}, timeout=60) as client:
            while time.monotonic() < end:
                status = rng.choices(actions, weights)[0](client, rng)
                with lock:
                    statuses[status] += 1

    with ServerProcess(run, "--writable", write_key=KEY) as server:
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
        code = server.stop()
        stderr = server.stderr()
    assert "Traceback" not in stderr, stderr
    steady = np.array(measurements[len(measurements) // 5 :])
    slope = np.polyfit((steady[:, 0] - steady[0, 0]) / 60, steady[:, 1] / 1024, 1)[0]
    return {
        "seconds": seconds,
        "requests": statuses.total(),
        "statuses": dict(sorted(statuses.items())),
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
