"""SIGKILL to the service in the middle of its clients' writes; what it acknowledged must be there.

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

from service.served import Served
from service.small_run import build_run, picture
from transhash.data.collection import MODALITIES
from transhash.datasets.synthetic import CLASSES
from transhash.search.engine import SearchEngine

KEY = "key"
WRITERS = 4
Text = str | None  # None: a picture


@dataclass
class Ledger:
    """What one client knows: the service said so. Numbers are items; ids are this client's own."""

    name: str
    kept: dict[int, Text] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)
    asked: dict[int, set[Text]] = field(default_factory=dict)  # replaced or removed, unanswered
    acknowledged: int = 0
    made: int = 0


@dataclass
class Outcome:
    rounds: int = 0
    acknowledged: int = 0
    lost: int = 0  # acknowledged, and not found by its code or with another text
    undead: int = 0  # removed, and still there
    neither: int = 0  # being replaced when the kill came, and found as neither old nor new
    without_code: int = 0  # rows of the catalog that no search can find


def write(url: str, ledger: Ledger, seed: int, replacing: bool) -> None:
    """Add, replace and remove until the service is gone."""
    rng = random.Random(seed)
    with httpx.Client(base_url=url, headers={"X-API-Key": KEY}, timeout=30) as client:
        try:
            while True:
                one_change(client, ledger, rng, replacing)
        except httpx.TransportError:
            return


def one_change(client: httpx.Client, ledger: Ledger, rng: random.Random, replacing: bool) -> None:
    texts = [number for number, text in ledger.kept.items() if text is not None]
    verb = rng.random()
    if verb < 0.15 and texts:
        number = rng.choice(texts)
        ledger.asked = {number: {None}}
        answer(client.delete(f"/api/items/{number}"), 200)
        del ledger.kept[number]
        ledger.gone.add(number)
    elif verb < 0.3 and texts and replacing:
        number = rng.choice(texts)
        known = client.get(f"/api/items/{number}").json()["id"]
        new = sentence(rng)
        ledger.asked = {number: {ledger.kept[number], new}}
        post_texts(client, ledger, [{"text": new, "id": known}])
    elif verb < 0.35:
        colour = rng.randrange(40, 90), rng.randrange(40, 90)
        added = answer(client.post("/api/items/images", files={"image": picture(size=colour)}), 201)
        ledger.kept[added["items"][0]["number"]] = None
    else:
        count = rng.choice((1, 1, 2, 5, 40))
        names = [f"{ledger.name}-{ledger.made + i}" for i in range(count)]
        ledger.made += count
        post_texts(client, ledger, [{"text": sentence(rng), "id": name} for name in names])
    ledger.asked = {}
    ledger.acknowledged += 1


def post_texts(client: httpx.Client, ledger: Ledger, texts: list[dict[str, str]]) -> None:
    added = answer(client.post("/api/items/texts", json={"texts": texts}), 201)
    assert len(added["items"]) == len(texts)
    ledger.kept.update({item["number"]: item["text"] for item in added["items"]})


def answer(reply: httpx.Response, expected: int) -> dict[str, list[dict[str, object]]]:
    assert reply.status_code == expected, reply.text
    return reply.json()  # type: ignore[no-any-return]


def sentence(rng: random.Random) -> str:
    return " and ".join(f"a {rng.choice(CLASSES)}" for _ in range(4))


def check(run: Path, ledgers: list[Ledger], outcome: Outcome) -> None:
    """What the next process finds when it opens the run to write."""
    engine = SearchEngine.open(run, writable=True)
    codes: dict[int, bytes] = {}
    for modality in MODALITIES:
        ids, packed = engine.indexes[modality].export()
        codes.update(zip(ids.tolist(), map(bytes, packed.packed)))
    numbers = [n for ledger in ledgers for n in (*ledger.kept, *ledger.gone)]
    items = engine.catalog.get(numbers)

    def found(number: int, texts: set[Text]) -> bool:
        item = items.get(number)
        return item is not None and item.text in texts and codes.get(number) == item.code

    for ledger in ledgers:
        for number, text in ledger.kept.items():
            if number not in ledger.asked:
                outcome.lost += not found(number, {text})
            elif ledger.asked[number] != {None}:
                outcome.neither += not found(number, ledger.asked[number])
        outcome.undead += sum(number in codes for number in ledger.gone)
        # What was open is settled now, one way or the other.
        for number in ledger.asked:
            if found(number, ledger.asked[number]):
                ledger.kept[number] = items[number].text
            else:
                ledger.kept.pop(number, None)
        ledger.asked = {}
    sample = random.Random(outcome.rounds).sample(sorted(items), min(20, len(items)))
    for item in (items[number] for number in sample if number in codes):
        hits = engine.similar_to_codes(engine.code_of(item), len(codes), item.modality)[0]
        outcome.lost += item.number not in {hit.item.number for hit in hits if not hit.distance}
    rows = sum(engine.catalog.count(modality) for modality in MODALITIES)
    outcome.without_code = rows - len(codes)
    engine.close()


def torture(run: Path, rounds: int, *, replacing: bool = True, seed: int = 0) -> Outcome:
    outcome, rng = Outcome(), random.Random(seed)
    ledgers = [Ledger(f"writer-{i}") for i in range(WRITERS)]
    for _ in range(rounds):
        with Served(run, "--writable", "--api-key", KEY) as served:
            before = sum(ledger.acknowledged for ledger in ledgers)
            threads = [
                threading.Thread(
                    target=write, args=(served.url, ledger, rng.getrandbits(32), replacing)
                )
                for ledger in ledgers
            ]
            for thread in threads:
                thread.start()
            while sum(ledger.acknowledged for ledger in ledgers) == before:
                time.sleep(0.01)
            time.sleep(rng.uniform(0, 4))
            served.kill()
            for thread in threads:
                thread.join()
            assert "Traceback" not in served.complaints(), served.complaints()
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
        outcome = torture(build_run(Path(folder)), options.rounds, seed=options.seed)
    print(json.dumps(asdict(outcome)))
    sys.exit(bool(outcome.lost or outcome.undead or outcome.neither))


if __name__ == "__main__":
    main()
