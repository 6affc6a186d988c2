# ruff: noqa: E501 - a fault is a line
"""Small faults, each put into a copy of the sources: does a test notice?

    python tests/mutation.py            all of them; prints survivors, exits with 1 if there are any
    python tests/mutation.py thn ramp   those in which one of the words occurs

Every fault names the tests that should notice it, so that all of them take minutes and not hours.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
JOBS = int(os.environ.get("JOBS", "2"))


class Mutant(NamedTuple):
    file: str  # below src/transhash
    right: str  # must occur there once
    wrong: str
    tests: str  # what to run, below tests


OBJECTIVE = "hashers/test_objective.py"
THN = "hashers/test_thn.py"
GAP = "hashers/test_contract.py -k domain_gap"
TUNING = "hashers/test_fine_tuning.py"
SPLITS = "experiments/test_splits.py data/test_benchmark.py"
MUTANTS = (
    # The objective: signs, weights, ramps.
    Mutant("hashers/losses.py", "return -z.abs().clamp_min", "return z.abs().clamp_min", OBJECTIVE),
    Mutant("hashers/losses.py", "z.abs().clamp_min(floor)", "z.clamp_min(floor)", OBJECTIVE),
    Mutant(
        "hashers/losses.py",
        "weights[0] * s * softplus(-u) + weights[1] * (1 - s) * softplus(u)",
        "weights[0] * s * softplus(u) + weights[1] * (1 - s) * softplus(-u)",
        OBJECTIVE,
    ),
    Mutant(
        "hashers/losses.py", "return 0.5 / rate, 0.5 / (1 - rate)", "return 1.0, 1.0", OBJECTIVE
    ),
    Mutant("hashers/losses.py", "s * (u - 1) ** 2", "s * (u + 1) ** 2", OBJECTIVE),
    Mutant("hashers/losses.py", "if weight is None else weight", "", OBJECTIVE),
    Mutant(
        "hashers/losses.py",
        "(len(z_target),), -1.0 / len",
        "(len(z_target),), 1.0 / len",
        OBJECTIVE,
    ),
    Mutant("hashers/losses.py", "torch.exp(-width * distance", "torch.exp(-distance", OBJECTIVE),
    Mutant("hashers/thn/objective.py", "if step < self.start:", "if step > self.start:", OBJECTIVE),
    Mutant(
        "hashers/thn/objective.py",
        "if self.target and batch.target_images",
        "if batch.target_images",
        OBJECTIVE,
    ),
    Mutant(
        "hashers/thn/objective.py",
        "s = (1 - self.soft_share) * s + self.soft_share * guess",
        "s = guess",
        OBJECTIVE,
    ),
    Mutant(
        "hashers/thn/objective.py",
        "(batch.images, batch.target_texts),\n                (batch.target_images, batch.target_texts)",
        "(batch.images, batch.target_texts)",
        OBJECTIVE,
    ),
    Mutant(
        "hashers/thn/objective.py",
        "batch.probability(x.inputs, y.inputs), weights",
        "1 - batch.probability(x.inputs, y.inputs), weights",
        OBJECTIVE,
    ),
    Mutant(
        "hashers/thn/objective.py",
        "(min(1.0, step / self.ramp) if self.ramp else 1.0)",
        "1.0",
        OBJECTIVE,
    ),
    Mutant(
        "hashers/thn/objective.py", "share = share / share.sum()", "share = 1 / share", OBJECTIVE
    ),
    Mutant(
        "hashers/thn/objective.py",
        "if own.weight is not None:",
        "if own.weight is None:",
        OBJECTIVE,
    ),
    Mutant(
        "hashers/thn/batches.py",
        "(_logit(rate) - _logit(self.rate))",
        "(_logit(self.rate) - _logit(rate))",
        OBJECTIVE,
    ),
    Mutant(
        "hashers/thn/batches.py",
        "if self.sparse:  # half",
        "if not self.sparse:  # half",
        OBJECTIVE,
    ),
    Mutant(
        "hashers/thn/batches.py",
        "weight is None else weight[where]",
        "weight is None else weight[: len(rows)]",
        OBJECTIVE,
    ),
    # The transfer step and the bridge.
    Mutant(
        "hashers/thn/bridge.py", "self.target_centre if target else self.centre", "self.centre", GAP
    ),
    Mutant(
        "hashers/thn/transfer.py",
        "- centring * matched_mean",
        "+ centring * matched_mean",
        OBJECTIVE,
    ),
    Mutant(
        "hashers/thn/transfer.py",
        "0.5 + 0.5 * self.match.mean(axis=0) * len(rows)",
        "1.5 - 0.5 * self.match.mean(axis=0) * len(rows)",
        OBJECTIVE,
    ),
    Mutant(
        "hashers/thn/transfer.py",
        "np.concatenate([found, match @ found])",
        "np.concatenate([found, 0 * match @ found])",
        OBJECTIVE,
    ),
    Mutant(
        "hashers/thn/transfer.py",
        "whole[:own] + match.T @ whole[own:]",
        "whole[:own]",
        OBJECTIVE,
    ),
    Mutant(
        "hashers/thn/transfer.py",
        "self.auxiliary[~others] -= self.target_centre",
        "self.auxiliary[~others] -= self.centre",
        OBJECTIVE,
    ),
    Mutant(
        "hashers/fed.py",
        'self._centred(images, "image.target")',
        'self._centred(images, "image.auxiliary")',
        "hashers/test_fed.py",
    ),
    Mutant(
        "hashers/fed.py",
        "extended = Extended(relation, images.match, texts.match)",
        "extended = Extended(relation, images.match * 0, texts.match * 0)",
        "hashers/test_fed.py",
    ),
    Mutant(
        "data/relation.py",
        "return self._x.toarray(), self._y @ self._sets.T.astype(np.float64)",
        "return self._x.toarray(), self._y.toarray()",
        "data/test_relation.py hashers/test_fed.py",
    ),
    Mutant(
        "data/votes.py",
        "drawn[voted] = self.votes.partners(rows[voted], rng)",
        "pass",
        "data/test_votes.py",
    ),
    Mutant(
        "runs/feedback.py",
        "INSERT OR REPLACE INTO votes",
        "INSERT OR IGNORE INTO votes",
        "runs/test_feedback.py",
    ),
    Mutant(
        "hashers/numpy_texts.py",
        "shifted = rows - centre",
        "shifted = rows + centre",
        "hashers/test_numpy_texts.py",
    ),
    Mutant(
        "features/meaning.py", "if found != _PUBLISHED", "if not found", "features/test_text.py"
    ),
    Mutant(
        "hashers/thn/transfer.py",
        "logits = a @ b.T / temperature",
        "logits = target @ auxiliary.T / temperature",
        OBJECTIVE,
    ),
    Mutant(
        "hashers/directions.py",
        "(z - leverage * partner / strength) / (1 - leverage)",
        "z",
        THN + " -k left_out",
    ),
    Mutant(
        "hashers/canonical.py",
        "part *= np.sqrt(weights[rows])",
        "pass",
        "hashers/test_cvh.py",
    ),
    Mutant(
        "hashers/canonical.py", "ridge * largest * np.eye", "ridge * np.eye", "hashers/test_cvh.py"
    ),
    Mutant(
        "hashers/directions.py",
        "positive(correlations[:k]) if weigh else np.ones(k)",
        "np.ones(k)",
        "hashers/test_qch.py",
    ),
    Mutant(
        "hashers/cvh.py",
        "np.arange(self.bits) % len(found.s)",
        "np.minimum(np.arange(self.bits), len(found.s) - 1)",
        "hashers/test_cvh.py",
    ),
    Mutant("hashers/thn/finer.py", "- axes @ back", "+ axes @ back", "hashers/test_finer.py"),
    Mutant(
        "hashers/thn/bridge.py",
        "self._shifted(features, target) @ self.finer",
        "self._shifted(features, not target) @ self.finer",
        "hashers/test_finer.py",
    ),
    # The training.
    Mutant("hashers/thn/thn.py", "average.copy_to(parameters)", "pass", THN + " -k moving_average"),
    Mutant(
        "hashers/training.py",
        "keep = min(self.decay, (step + 1) / (step + 10))",
        "keep = self.decay",
        THN + " -k moving_average",
    ),
    Mutant(
        "hashers/training.py",
        "digest.update(np.ascontiguousarray(array[::step]).tobytes())",
        "pass",
        THN + " -k named_by",
    ),
    Mutant(
        "hashers/training.py",
        "digest.update(relation.times(halves).tobytes())",
        "pass",
        THN + " -k another_relation",
    ),
    Mutant(
        "hashers/training.py",
        "default_rng([seed, step, stream])",
        "default_rng([seed, stream])",
        "hashers/test_golden.py -k THN-Q",
    ),
    Mutant(
        "hashers/thn/thn.py",
        "return plain_bridge(training, self.use_target)",
        "return plain_bridge(training, False)",
        THN + " -k literal_paper_aligns",
    ),
    Mutant(
        "hashers/towers.py",
        "self.fch(hidden) + self.straight(x)",
        "self.fch(hidden)",
        "hashers/test_golden.py -k THN-Q",
    ),
    Mutant(
        "hashers/base.py",
        "state.items() if not np.isfinite(array).all()), None)",
        "state.items() if False), None)",
        "hashers/test_contract.py -k finite",
    ),
    # Rivals and baselines.
    Mutant("hashers/qch.py", "whiten.T @ total", "whiten @ total", "hashers/test_qch.py"),
    Mutant("hashers/imh.py", "+ np.median(zx @ weights_x, axis=0)", "", "hashers/test_imh.py"),
    Mutant("hashers/hth.py", "own @ self.translator_", "own", "hashers/test_hth.py"),
    Mutant(
        "hashers/losses.py",
        "code = torch.where(outputs.detach() > 0, 1.0, -1.0)",
        "code = torch.where(outputs.detach() > 0, -1.0, 1.0)",
        "test_losses.py",
    ),
    Mutant("hashers/knn.py", "/ of_image[own_x]", "", "hashers/test_baselines.py"),
    Mutant(
        "hashers/tuning.py", "trial.score > max(", "trial.score < min(", "hashers/test_tuning.py"
    ),
    # Splits and words: what may not be seen.
    Mutant(
        "data/benchmark.py",
        "            held_y,\n            query_x,",
        "            aux_y,\n            query_x,",
        SPLITS,
    ),
    Mutant(
        "data/benchmark.py",
        "held[0].extend(free[2 * wanted : 3 * wanted])",
        "held[0].extend(free[:wanted])",
        SPLITS,
    ),
    Mutant("data/benchmark.py", "[row for row in base if row not in taken]", "list(base)", SPLITS),
    Mutant(
        "data/benchmark.py",
        "np.sort(rng.permutation(base_y)[: sizes.target])",
        "np.sort(rng.permutation(query_y)[: sizes.target])",
        SPLITS,
    ),
    Mutant(
        "data/training.py",
        "rest_x, rest_y = np.setdiff1d(np.arange(n), held_x)",
        "rest_x, rest_y = np.arange(n)",
        "data/test_relation.py hashers/test_tuning.py",
    ),
    Mutant(
        "runs/task.py",
        "fit(known, *([target_texts.items] if uses_target else ()))",
        "fit(known, benchmark.texts.items)",
        SPLITS,
    ),
    Mutant(
        "runs/task.py",
        "*([target_texts.items] if uses_target else ())",
        "target_texts.items",
        SPLITS,
    ),
    Mutant(
        "runs/fit.py",
        "if hasher.uses_target and target is not None",
        "if target is not None",
        "runs/test_text_features.py",
    ),
    Mutant(
        "experiments/run.py",
        "**settings).uses_target",
        "**settings).uses_target or True",
        "experiments/test_splits.py",
    ),
    Mutant("features/words.py", ") ** _RARITY)", ") ** 0)", "features/test_words.py"),
    Mutant("features/words.py", ".sum() >= _AVOIDED", ".sum() < 0", "features/test_words.py"),
    Mutant(
        "features/words.py",
        "apart - by_chance < _EMPTY",
        "apart < _EMPTY",
        "features/test_words.py",
    ),
    Mutant(
        "features/words.py",
        "likeness[best] >= _LIKENESS",
        "likeness[best] >= 2",
        "features/test_words.py",
    ),
    Mutant(
        "features/text.py",
        "self.words.transform(texts) * by_word",
        "self.words.transform(texts)",
        "features/test_text.py",
    ),
    Mutant(
        "features/meaning.py",
        "if folder_digest(folder) != digest",
        "if not digest",
        "features/test_text.py",
    ),
    Mutant(
        "features/bag_of_words.py",
        "counts.data = np.log1p(counts.data)",
        "pass",
        "features/test_bag_of_words.py",
    ),
    # Codes, scores, search.
    Mutant(
        "codes.py", "np.packbits(z > 0, axis=1)", "np.packbits(z >= 0, axis=1)", "test_codes.py"
    ),
    Mutant(
        "evaluation/average_precision.py",
        "found + 1 - slope - slope * earlier",
        "found + 1 - slope * earlier",
        "evaluation/test_average_precision.py",
    ),
    Mutant(
        "evaluation/counting.py",
        "return items, hits",
        "return hits, hits",
        "evaluation/test_counting.py",
    ),
    Mutant(
        "index/exact.py",
        'best = np.argsort(row, kind="stable")',
        "best = np.argsort(-row.astype(int))",
        "index/test_contract.py",
    ),
    Mutant(
        "index/weighted.py",
        "np.abs(np.tanh(",
        "np.abs(np.sign(",
        "index/test_weighted.py -k plain_loop",
    ),
    Mutant(
        "index/weighted.py",
        "weights + weights.sum(axis=1, keepdims=True) + 1",
        "weights + 1",
        "index/test_weighted.py -k plain_loop",
    ),
    Mutant(
        "index/grouped/parts.py",
        "keys.append(np.concatenate(costs, axis=1))",
        "keys.insert(1, np.concatenate(costs, axis=1))",
        "index/test_weighted.py -k changes_leave",
    ),
    Mutant(
        "evaluation/rankings.py",
        "-weighted_costs(queries[rows], database, weights[rows])",
        "weighted_costs(queries[rows], database, weights[rows])",
        "evaluation/test_weighted.py",
    ),
    Mutant(
        "service/desk.py",
        "weights[[isinstance(query, TextQuery) for query in request.queries]] = weighed",
        "weights[: len(texts)] = weighed",
        "service/test_search.py -k batch",
    ),
    # The verdict: what was shown must not ask, and no baseline is ahead by luck.
    Mutant(
        "runs/verdict.py",
        "tried = learn(replace(hasher), question.rest,",
        "tried = learn(replace(hasher), training,",
        "runs/test_verdict.py",
    ),
    Mutant(
        "runs/verdict.py",
        "aside_x = np.flatnonzero(np.isin(copies, drawn))",
        "aside_x = np.sort(drawn)",
        "runs/test_verdict.py",
    ),
    Mutant("runs/verdict.py", "gain.mean() > _SURE * error", "True", "runs/test_verdict.py"),
    Mutant(
        "runs/coverage.py",
        "of_own, near = _carried(own[::step], own, partners, k, itself=step)",
        "of_own, near = _carried(own[::step], own, partners, k)",
        "runs/test_verdict.py",
    ),
    # Fine-tuning.
    Mutant(
        "hashers/fine_tuning/batches.py",
        "Items(self.images[where[0]], z[0], weight)",
        "Items(self.images[where[0]], self.images[where[0]], weight)",
        TUNING,
    ),
    Mutant(
        "hashers/fine_tuning/loop.py",
        "        average.copy_to(parameters)",
        "        pass",
        f"{TUNING} -k average",
    ),
    Mutant(
        "hashers/fine_tuning/settings.py",
        "return 0 if self.blocks is None else stages - self.blocks",
        "return 0",
        f"{TUNING} -k all_stages",
    ),
    Mutant(
        "hashers/fine_tuning/budget.py",
        'if found.get("name") != self.name:',
        "if True:",
        f"{TUNING} -k budget",
    ),
    Mutant(
        "hashers/fine_tuning/views.py",
        "drawn = draw_crops(len(rows), seeds)[share]",
        "drawn = draw_crops(len(rows), [int.from_bytes(os.urandom(4))])[share]",
        f"{TUNING} -k killed",
    ),
    Mutant(
        "features/backbone.py",
        'return f"{self.name}:{self.size}:1:{arithmetic(self.device)}:{self.digest}"',
        'return f"{self.name}:{self.size}:1:{arithmetic(self.device)}"',
        "features/test_backbone.py -k cache",
    ),
    Mutant(
        "features/lite.py",
        "bias = norm.bias - norm.running_mean * scale",
        "bias = norm.bias + norm.running_mean * scale",
        "features/test_backbone.py",
    ),
    Mutant(
        "runs/model_files.py",
        '"vocabulary.json", BACKBONE_FILE',
        '"vocabulary.json"',
        "runs/test_fine_tuned_run.py -k another_backbone",
    ),
)


def survives(mutant: Mutant) -> tuple[bool, float]:
    """Whether the named tests pass in spite of it, and how long they took."""
    source = ROOT / "src" / "transhash" / mutant.file
    text = source.read_text(encoding="utf-8")
    if text.count(mutant.right) != 1:
        raise SystemExit(f"{mutant.file} holds {text.count(mutant.right)} times: {mutant.right}")
    with tempfile.TemporaryDirectory() as folder:
        sources = Path(folder) / "src"
        shutil.copytree(ROOT / "src", sources, ignore=shutil.ignore_patterns("__pycache__"))
        changed = sources / "transhash" / mutant.file
        changed.write_text(text.replace(mutant.right, mutant.wrong), encoding="utf-8")
        start = time.monotonic()
        passed, _ = run(mutant.tests, sources)
    return passed, time.monotonic() - start


def run(tests: str, sources: Path) -> tuple[bool, str]:
    """Whether the tests pass on these sources, and what they said."""
    environment = os.environ | {
        "PYTHONPATH": str(sources), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip
    words = tests.split(" ")
    cut = words.index("-k") if "-k" in words else len(words)
    paths, options = [str(ROOT / "tests" / word) for word in words[:cut]], words[cut:]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *paths, *options],
        cwd=sources.parent, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode not in (0, 1, 2):  # no test was found, or pytest itself failed
        raise SystemExit(f"{tests} cannot be run: {done.stdout[-2000:]}{done.stderr[-500:]}")
    return done.returncode == 0, done.stdout


def main(words: list[str]) -> int:
    chosen = [m for m in MUTANTS if not words or any(word in str(m) for word in words)]
    start = time.monotonic()
    survivors = []
    with ThreadPoolExecutor(JOBS) as pool:
        # Tests that fail anyway would notice everything.
        tests = sorted({mutant.tests for mutant in chosen})
        for named, (passed, said) in zip(
            tests, pool.map(run, tests, [ROOT / "src"] * len(tests)), strict=True
        ):
            if not passed:
                raise SystemExit(f"{named} fails without a fault:\n{said[-2000:]}")
        for mutant, (survived, seconds) in zip(chosen, pool.map(survives, chosen), strict=True):
            verdict = "SURVIVED" if survived else "noticed"
            right = " ".join(mutant.right.split())
            print(f"{verdict:8} {seconds:5.1f} s  {mutant.file}: {right[:70]}", flush=True)
            survivors += [mutant] if survived else []
    for mutant in survivors:
        print(f"\nnot noticed by {mutant.tests}: {mutant.file}\n- {mutant.right}\n+ {mutant.wrong}")
    print(f"\n{len(survivors)} of {len(chosen)} survived, {time.monotonic() - start:.0f} s")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
