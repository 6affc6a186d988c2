"""How long `fit` of THN takes, beside another checkout, at the same settings on the same arrays.

    git worktree add ../before 2163542
    python benchmarks/fit_speed.py --beside ../before
    python benchmarks/fit_speed.py --beside ../before --benchmark FOLDER

2,000 auxiliary images and 2,000 texts with labels, and again as 2,000 pairs, 500 + 500 unlabelled
target items; features of 1,280 and 1,000 numbers, drawn by this script or those of a benchmark
folder's split. Each fit is a process of its own, in turn; the seconds are those of `fit` alone,
what it imports included, those of `import transhash.hashers` stand beside. MAP is that of both
directions on target items, ties in the order of the items; chance is beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import mean, median

import numpy as np

# Runs in either checkout, so it calls only what both have.
CHILD = """
import json, sys, time
begun = time.perf_counter()
import numpy as np, scipy.sparse
from transhash.data.relation import LabelRelation, SparseRelation
from transhash.data.training_set import TrainingSet
from transhash.hashers import THN
ready = time.perf_counter()
z, sort, settings = np.load(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
pairs = scipy.sparse.csr_array(scipy.sparse.eye(len(z["x"]), format="csr"))
x, relation = z["x"], LabelRelation(z["x_labels"], z["y_labels"])
if sort == "pairs":
    x, relation = z["x_paired"], SparseRelation(pairs)
training = TrainingSet(x, z["y"], relation, z["tx"], z["ty"])
start, used = time.perf_counter(), time.process_time()
hasher = THN(**settings).fit(training)
seconds, used = time.perf_counter() - start, time.process_time() - used
def signs(codes):
    return np.unpackbits(codes.packed, axis=1).astype(np.float32) * 2 - 1
def mean_precision(query, database, related):
    order = np.argsort(-(query @ database.T), axis=1, kind="stable")
    hits = np.take_along_axis(related, order, axis=1)
    precision = np.cumsum(hits, axis=1) / np.arange(1, hits.shape[1] + 1)
    return float(((precision * hits).sum(axis=1) / np.maximum(hits.sum(axis=1), 1)).mean())
images, texts = signs(hasher.encode_images(z["qx"])), signs(hasher.encode_texts(z["qy"]))
related = z["qx_labels"].astype(np.float32) @ z["qy_labels"].T.astype(np.float32) > 0
print(json.dumps({"imports": ready - begun, "fit": seconds, "cpu": used,
    "map": [mean_precision(images, texts, related), mean_precision(texts, images, related.T)],
    "chance": float(related.mean())}))
"""


def drawn(seed: int, n: int = 2000, targets: int = 500, queries: int = 1000) -> dict[str, object]:
    """Classes and item factors seen through two random views; the target is shifted and rarer."""
    rng = np.random.default_rng(seed)
    classes, latent, dx, dy = 16, 40, 1280, 1000
    centres = rng.standard_normal((classes, latent)) * 0.9
    views = rng.standard_normal((latent, dx)), rng.standard_normal((latent, dy))
    shifts = rng.standard_normal(dx) * 3, rng.standard_normal(dy) * 3

    def items(side: int, label: np.ndarray, own: np.ndarray, target: bool) -> np.ndarray:
        rows = (centres[label] + own) @ views[side]
        rows += rng.standard_normal(rows.shape) * 8 + target * shifts[side]
        found: np.ndarray = np.maximum(rows, 0).astype(np.float32)  # as after a ReLU
        return found

    def some(count: int, target: bool) -> tuple[np.ndarray, np.ndarray]:
        shares = rng.dirichlet(np.full(classes, 3.0)) if target else np.full(classes, 1 / classes)
        return rng.choice(classes, count, p=shares), rng.standard_normal((count, latent))

    (lx, ux), (ly, uy) = some(n, False), some(n, False)
    found: dict[str, object] = {
        "x": items(0, lx, ux, False), "y": items(1, ly, uy, False),
        "x_paired": items(0, ly, uy, False),
        "x_labels": np.eye(classes, dtype=bool)[lx], "y_labels": np.eye(classes, dtype=bool)[ly],
    }  # fmt: skip
    for side, name in ((0, "x"), (1, "y")):
        found[f"t{name}"] = items(side, *some(targets, True), True)
        label, own = some(queries, True)
        found[f"q{name}"] = items(side, label, own, True)
        found[f"q{name}_labels"] = np.eye(classes, dtype=bool)[label]
    return found


def of_folder(folder: Path, seed: int) -> dict[str, object]:
    """A split of a benchmark folder; its auxiliary rows stand for pairs in the order they have."""
    from transhash.data.relation import LabelRelation
    from transhash.features.images import EfficientNetLite0
    from transhash.training.split_data import build_split, load_benchmark_features

    ready, _ = load_benchmark_features(folder, EfficientNetLite0())
    task = build_split(ready, seed)
    t, target = task.training, task.target
    assert isinstance(t.relation, LabelRelation)
    return {
        "x": t.images, "y": t.texts, "x_paired": t.images[: len(t.texts)],
        "x_labels": t.relation.image_labels, "y_labels": t.relation.text_labels,
        "tx": t.target_images, "ty": t.target_texts,
        "qx": target.query_images.features, "qy": target.database_texts.features,
        "qx_labels": target.query_images.labels, "qy_labels": target.database_texts.labels,
    }  # fmt: skip


def fitted(
    checkout: Path, arrays: Path, sort: str, settings: dict[str, object]
) -> dict[str, object]:
    environment = {**os.environ, "PYTHONPATH": str(checkout.absolute() / "src")}
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(arrays), sort, json.dumps(settings)],
        env=environment, capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{checkout} could not fit:\n{done.stderr}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--beside", type=Path, help="another checkout")
    parser.add_argument("--benchmark", type=Path, help="a folder; drawn features without")
    parser.add_argument("--repeats", type=int, default=3, help="data and seeds 0, 1, ...")
    parser.add_argument("--bits", type=int, default=32)
    parser.add_argument("--steps", type=int, default=300)
    arguments = parser.parse_args()
    checkouts = {"this": Path(__file__).parents[1]}
    if arguments.beside:
        checkouts[arguments.beside.name] = arguments.beside
    found: dict[tuple[str, str], list[dict[str, object]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        arrays = Path(folder) / "arrays.npz"
        for seed in range(arguments.repeats):
            data = of_folder(arguments.benchmark, seed) if arguments.benchmark else drawn(seed)
            np.savez(arrays, **data)  # type: ignore[arg-type]
            settings = {"bits": arguments.bits, "steps": arguments.steps, "seed": seed}
            for sort in ("labels", "pairs"):
                for name, checkout in checkouts.items():
                    one = fitted(checkout, arrays, sort, settings)
                    found.setdefault((sort, name), []).append(one)
    for sort in ("labels", "pairs"):
        middle = {}
        for name in checkouts:
            runs = found[sort, name]
            seconds = [float(run["fit"]) for run in runs]  # type: ignore[arg-type]
            middle[name] = median(seconds)
            to_text, to_image = (mean(run["map"][k] for run in runs) for k in (0, 1))  # type: ignore[index]
            print(
                f"{sort:6} {name:10} fit {median(seconds):6.2f} s ({min(seconds):.2f} - "
                f"{max(seconds):.2f}), CPU {median(float(run['cpu']) for run in runs):6.2f} s, "  # type: ignore[arg-type]
                f"imports {median(float(run['imports']) for run in runs):.2f} s, "  # type: ignore[arg-type]
                f"MAP {to_text:.4f} / {to_image:.4f} "
                f"(chance {mean(float(run['chance']) for run in runs):.3f})"  # type: ignore[arg-type]
            )
        for name, seconds_of in middle.items():
            if name != "this":
                print(f"{sort:6} {name} takes {seconds_of / middle['this']:.2f} times as long")


if __name__ == "__main__":
    main()
