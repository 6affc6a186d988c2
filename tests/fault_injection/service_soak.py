"""The service under mixed use for minutes: memory and file descriptors have to stay flat.

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

from service.served import Served
from service.small_run import build_run, picture

KEY = "key"
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
    data = picture(rng.choice(("PNG", "JPEG")), size) if rng.random() < 0.8 else b"no picture"
    return client.post("/api/search/image", files={"image": data}).status_code


def change(client: httpx.Client, rng: random.Random) -> int:
    """Something comes and goes again: the run stays as large as it was."""
    new = {"texts": [{"text": "a boat and a cat", "id": f"soak-{rng.randint(0, 20)}"}]}
    added = client.post("/api/items/texts", json=new)
    if added.status_code != 201:
        return added.status_code
    return client.delete(f"/api/items/{added.json()['items'][0]['number']}").status_code


def look(client: httpx.Client, rng: random.Random) -> int:
    return client.get(rng.choice(("/", "/api/about", "/metrics", "/ready", "/nowhere"))).status_code


def hang_up(client: httpx.Client, rng: random.Random) -> int:
    """Ask and go away, or come and say nothing."""
    address = client.base_url.host, client.base_url.port
    with socket.create_connection(address, timeout=30) as visitor:
        if rng.random() < 0.7:
            visitor.sendall(b"GET /api/search/text?q=boat HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    return 200


ACTIONS: tuple[tuple[Callable[[httpx.Client, random.Random], int], int], ...] = (
    (search, 40),
    (browse, 20),
    (upload, 8),
    (change, 6),
    (look, 10),
    (hang_up, 6),
)


def soak(run: Path, seconds: float, clients: int = 4, samples: int = 40) -> dict[str, Any]:
    """What it used at the start (after a warm-up of a fifth of the time) and at the end."""
    statuses: Counter[int] = Counter()
    lock = threading.Lock()
    end = time.monotonic() + seconds

    def use(url: str, seed: int) -> None:
        rng = random.Random(seed)
        verbs, weights = zip(*ACTIONS, strict=True)
        with httpx.Client(base_url=url, headers={"X-API-Key": KEY}, timeout=60) as client:
            while time.monotonic() < end:
                status = rng.choices(verbs, weights)[0](client, rng)
                with lock:
                    statuses[status] += 1

    with Served(run, "--writable", "--api-key", KEY) as served:
        end = time.monotonic() + seconds
        threads = [threading.Thread(target=use, args=(served.url, i)) for i in range(clients)]
        for thread in threads:
            thread.start()
        seen: list[tuple[float, int, int]] = []
        while time.monotonic() < end:
            seen.append((time.monotonic(), served.memory(), served.descriptors()))
            time.sleep(seconds / samples)
        for thread in threads:
            thread.join()
        code = served.stop()
        complaints = served.complaints()
    assert "Traceback" not in complaints, complaints
    steady = np.array(seen[len(seen) // 5 :])
    slope = np.polyfit((steady[:, 0] - steady[0, 0]) / 60, steady[:, 1] / 1024, 1)[0]
    return {
        "seconds": seconds,
        "requests": statuses.total(),
        "statuses": dict(sorted(statuses.items())),
        "memory_mib": [round(kib / 1024) for kib in (seen[0][1], steady[0, 1], steady[-1, 1])],
        "mib_a_minute": round(float(slope), 2),
        "descriptors": [int(n) for n in (seen[0][2], np.median(steady[:, 2]), steady[-1, 2])],
        "most_descriptors": int(steady[:, 2].max()),
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
