"""Fault injection: kill the server during writes; acknowledged writes must survive.

python tests/fault_injection/service_kills.py --rounds 30
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import httpx

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from service.server_process import ServerProcess
from service.small_run import build_run, image_bytes
from transhash.data.collection import MODALITIES
from transhash.datasets.synthetic import CLASSES
from transhash.search.engine import SearchEngine

KEY = "write-key"
WRITERS = 4
Text = str | None  # None: an image


@dataclass
class Ledger:
    """What one client knows from replies; keys are item numbers."""

    name: str
    stored: dict[int, Text] = field(default_factory=dict)
    removed: set[int] = field(default_factory=set)
    pending: dict[int, set[Text]] = field(default_factory=dict)  # requested, without a reply
    acknowledged: int = 0
    created: int = 0


@dataclass
class Outcome:
    rounds: int = 0
    acknowledged: int = 0
    lost: int = 0  # acknowledged, but missing or with another text
    not_removed: int = 0  # removal acknowledged, but still there
    mixed: int = 0  # replaced during the kill, and neither old nor new
    without_code: int = 0  # catalog rows that no search can find


def write(url: str, ledger: Ledger, seed: int, replacing: bool) -> None:
    """Add, replace and remove items until the server is killed."""
    rng = random.Random(seed)
    with httpx.Client(base_url=url, headers={"X-API-Key": KEY}, timeout=30) as client:
        try:
            while True:
                change_once(client, ledger, rng, replacing)
        except httpx.TransportError:
            return


def change_once(client: httpx.Client, ledger: Ledger, rng: random.Random, replacing: bool) -> None:
    texts = [number for number, text in ledger.stored.items() if text is not None]
    action = rng.random()
    if action < 0.15 and texts:
        number = rng.choice(texts)
        ledger.pending = {number: {None}}
        check_reply(client.delete(f"/api/items/{number}"), 200)
        del ledger.stored[number]
        ledger.removed.add(number)
    elif action < 0.3 and texts and replacing:
        number = rng.choice(texts)
        known = client.get(f"/api/items/{number}").json()["id"]
        new = random_text(rng)
        ledger.pending = {number: {ledger.stored[number], new}}
        post_texts(client, ledger, [{"text": new, "id": known}])
    elif action < 0.35:
        size = rng.randrange(40, 90), rng.randrange(40, 90)
        added = check_reply(
            client.post("/api/items/images", files={"image": image_bytes(size=size)}), 201
        )
        ledger.stored[added["items"][0]["number"]] = None
    else:
        count = rng.choice((1, 1, 2, 5, 40))
        names = [f"{ledger.name}-{ledger.created + i}" for i in range(count)]
        ledger.created += count
        post_texts(client, ledger, [{"text": random_text(rng), "id": name} for name in names])
    ledger.pending = {}
    ledger.acknowledged += 1


def post_texts(client: httpx.Client, ledger: Ledger, texts: list[dict[str, str]]) -> None:
    added = check_reply(client.post("/api/items/texts", json={"texts": texts}), 201)
    assert len(added["items"]) == len(texts)
    ledger.stored.update({item["number"]: item["text"] for item in added["items"]})


def check_reply(reply: httpx.Response, expected: int) -> dict[str, list[dict[str, object]]]:
    assert reply.status_code == expected, reply.text
    return reply.json()  # type: ignore[no-any-return]


def random_text(rng: random.Random) -> str:
    return " and ".join(f"a {rng.choice(CLASSES)}" for _ in range(4))


def check(run: Path, ledgers: list[Ledger], outcome: Outcome) -> None:
    """Compare the run with the ledgers, as the next writer opens it."""
    engine = SearchEngine.open(run, writable=True)
    codes: dict[int, bytes] = {}
    for modality in MODALITIES:
        ids, packed = engine.indexes[modality].export()
        codes.update(zip(ids.tolist(), map(bytes, packed.packed)))
    numbers = [n for ledger in ledgers for n in (*ledger.stored, *ledger.removed)]
    items = engine.catalog.get(numbers)

    def is_found(number: int, texts: set[Text]) -> bool:
        item = items.get(number)
        return item is not None and item.text in texts and codes.get(number) == item.code

    for ledger in ledgers:
        for number, text in ledger.stored.items():
            if number not in ledger.pending:
                outcome.lost += not is_found(number, {text})
            elif ledger.pending[number] != {None}:
                outcome.mixed += not is_found(number, ledger.pending[number])
        outcome.not_removed += sum(number in codes for number in ledger.removed)
        # Pending changes are decided now.
        for number in ledger.pending:
            if is_found(number, ledger.pending[number]):
                ledger.stored[number] = items[number].text
            else:
                ledger.stored.pop(number, None)
        ledger.pending = {}
    sample = random.Random(outcome.rounds).sample(sorted(items), min(20, len(items)))
    for item in (items[number] for number in sample if number in codes):
        hits = engine.similar_to_codes(engine.code_of(item), len(codes), item.modality)[0]
        outcome.lost += item.number not in {hit.item.number for hit in hits if not hit.distance}
    rows = sum(engine.catalog.count(modality) for modality in MODALITIES)
    outcome.without_code = rows - len(codes)
    engine.close()


def inject_faults(run: Path, rounds: int, *, replacing: bool = True, seed: int = 0) -> Outcome:
    outcome, rng = Outcome(), random.Random(seed)
    ledgers = [Ledger(f"writer-{i}") for i in range(WRITERS)]
    for _ in range(rounds):
        with ServerProcess(run, "--writable", write_key=KEY) as server:
            before = sum(ledger.acknowledged for ledger in ledgers)
            threads = [
                threading.Thread(
                    target=write, args=(server.url, ledger, rng.getrandbits(32), replacing)
                )
                for ledger in ledgers
            ]
            for thread in threads:
                thread.start()
            while sum(ledger.acknowledged for ledger in ledgers) == before:
                assert any(thread.is_alive() for thread in threads), server.stderr()
                time.sleep(0.01)
            time.sleep(rng.uniform(0, 4))
            server.kill()
            for thread in threads:
                thread.join()
            assert "Traceback" not in server.stderr(), server.stderr()
        outcome.rounds += 1
        outcome.acknowledged = sum(ledger.acknowledged for ledger in ledgers)
        check(run, ledgers, outcome)
    return outcome


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        outcome = inject_faults(build_run(Path(folder)), options.rounds, seed=options.seed)
    print(json.dumps(asdict(outcome)))
    sys.exit(bool(outcome.lost or outcome.not_removed or outcome.mixed))


if __name__ == "__main__":
    main()
