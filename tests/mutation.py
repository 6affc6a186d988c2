# ruff: noqa: E501 - a fault is a line
"""Plant small faults in a copy of the sources, one at a time, and check that a test fails.

    python tests/mutation.py                    all faults; prints survivors and exits with 1 if any
    python tests/mutation.py thn ramp           faults whose entry contains one of the words
    python tests/mutation.py --changed main     faults in sources or tests that differ from a commit
    python tests/mutation.py --minutes 20       start no new fault after 20 minutes

Every fault names the tests that should fail, so that all of them take minutes and not hours.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
JOBS = int(os.environ.get("JOBS", "2"))


class Mutant(NamedTuple):
    file: str  # below src/transhash
    original: str  # occurs there exactly once
    mutated: str
    tests: str  # files below tests, and -k WORDS

    @property
    def source(self) -> Path:
        return ROOT / "src" / "transhash" / self.file

    @property
    def test_files(self) -> list[Path]:
        return [ROOT / "tests" / word for word in self.tests.partition(" -k ")[0].split()]

    def mutate(self) -> str:
        """Return the text of the source file with the fault in it."""
        text = self.source.read_text(encoding="utf-8")
        if (number := text.count(self.original)) != 1:
            raise SystemExit(f"{self.file} contains {number} times: {self.original}")
        return text.replace(self.original, self.mutated)


OBJECTIVE = "hashers/test_objective.py"
THN = "hashers/test_thn.py"
GAP = "hashers/test_contract.py -k domain_gap"
TUNING = "hashers/test_fine_tuning.py"
SPLITS = "experiments/test_splits.py data/test_benchmark.py"
MUTANTS = (
    Mutant(
        "search/hits.py",
        "hit.distance >= chance_distance(",
        "hit.distance > chance_distance(",
        "search/test_hybrid.py -k chance",
    ),
    Mutant(
        "codes.py",
        "-math.expm1(math.log(0.5) / count)",
        "0.5 / count",
        "test_codes.py",
    ),
    Mutant(
        "report/summary.py",
        "(1 / len(values) + test_ratio) ** 0.5",
        "(1 / len(values)) ** 0.5",
        "experiments/test_report.py -k corrected",
    ),
    # The objective: signs, weights, ramps.
    Mutant("hashers/losses.py", "return -z.abs().clamp_min", "return z.abs().clamp_min", OBJECTIVE),
    Mutant("hashers/losses.py", "z.abs().clamp_min(floor)", "z.clamp_min(floor)", OBJECTIVE),
    Mutant(
        "hashers/losses.py",
        "softplus(u) - related * u, known)",
        "softplus(u) + related * u, known)",
        "hashers/test_objective.py",
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
    Mutant(
        "hashers/losses.py",
        "torch.mul(distance, -width / middle).exp_()",
        "torch.mul(distance, -1 / middle).exp_()",
        "hashers/test_objective.py",
    ),
    Mutant("hashers/thn/objective.py", "if step < self.start:", "if step > self.start:", OBJECTIVE),
    Mutant(
        "hashers/thn/objective.py",
        "if self.target and batch.target_images",
        "if batch.target_images",
        OBJECTIVE,
    ),
    Mutant(
        "hashers/thn/objective.py",
        "s = (1 - self.soft_label_fraction) * s + self.soft_label_fraction * guess",
        "s = guess",
        "hashers/test_objective.py",
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
        "hashers/thn/objective.py",
        "weight = weight / weight.sum()",
        "weight = 1 / weight",
        "hashers/test_objective.py",
    ),
    Mutant(
        "hashers/thn/objective.py",
        "if auxiliary.weight is not None:",
        "if auxiliary.weight is None:",
        "hashers/test_objective.py",
    ),
    Mutant(
        "hashers/thn/batches.py",
        "(_logit(batch_rate) - _logit(self.positive_rate))",
        "(_logit(self.positive_rate) - _logit(batch_rate))",
        "hashers/test_objective.py",
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
    # The transfer step and the input layer.
    Mutant(
        "hashers/projection.py",
        "for rows, centered in chunks(features, self.target_center if target else self.center):\n            out[rows]",
        "for rows, centered in chunks(features, self.center):\n            out[rows]",
        "hashers/test_contract.py -k domain_gap",
    ),
    Mutant(
        "hashers/thn/transfer.py",
        "self.target_mean - target_centering * matched_mean",
        "self.target_mean + target_centering * matched_mean",
        "hashers/test_objective.py",
    ),
    Mutant(
        "hashers/thn/transfer.py",
        "0.5 + 0.5 * mean_match * len(mean_match)",
        "1.5 - 0.5 * mean_match * len(mean_match)",
        "hashers/test_objective.py",
    ),
    Mutant(
        "data/relation.py",
        "np.concatenate([values, self.p @ values])",
        "np.concatenate([values, 0 * self.p @ values])",
        "data/test_relation.py hashers/test_objective.py",
    ),
    Mutant(
        "data/relation.py",
        "values[: self.n] + self.p.T @ values[self.n :]",
        "values[: self.n]",
        "data/test_relation.py hashers/test_objective.py",
    ),
    Mutant(
        "hashers/thn/transfer.py",
        "auxiliary[~others] - self.target_center",
        "auxiliary[~others] - self.center",
        "hashers/test_objective.py",
    ),
    Mutant(
        "training/fit.py",
        "target_y = fit_texts([])",
        "target_y = fit_texts(concept_texts)",
        "training/test_fit_with_concepts.py -k leave_nothing",
    ),
    Mutant(
        "hashers/transductive.py",
        'if default is None or "matching_rounds" in user_settings:',
        "if default is None:",
        "training/test_fit_with_concepts.py -k that_is_given",
    ),
    Mutant(
        "hashers/transductive.py",
        'self._centered(images, "image.target")',
        'self._centered(images, "image.auxiliary")',
        "hashers/test_transductive.py",
    ),
    Mutant(
        "hashers/transductive.py",
        "extended = ExtendedRelation(relation, images.match, texts.match)",
        "extended = ExtendedRelation(relation, images.match * 0, texts.match * 0)",
        "hashers/test_transductive.py",
    ),
    Mutant(
        "data/relation.py",
        "return self._x.toarray(), self._y @ self._sets.T.astype(np.float64)",
        "return self._x.toarray(), self._y.toarray()",
        "data/test_relation.py hashers/test_transductive.py",
    ),
    Mutant(
        "data/relation.py",
        "sample[claimed] = term.relation.sample_partners(rows[claimed], rng)",
        "pass",
        "data/test_feedback.py",
    ),
    Mutant(
        "search/feedback.py",
        "INSERT OR REPLACE INTO votes",
        "INSERT OR IGNORE INTO votes",
        "search/test_feedback.py",
    ),
    Mutant(
        "hashers/projection.py",
        "        x = x - center\n",
        "        x = x + center\n",
        "hashers/test_modules.py",
    ),
    Mutant(
        "features/__init__.py",
        "if actual != digest:",
        "if not digest:",
        "features/test_text.py",
    ),
    Mutant(
        "hashers/thn/transfer.py",
        "logits = (a / temperature) @ b.T",
        "logits = (target / temperature) @ auxiliary.T",
        "hashers/test_objective.py",
    ),
    Mutant(
        "hashers/components.py",
        "(z - leverage * partner / strength) / (1 - leverage)",
        "z",
        THN + " -k leave_one_out",
    ),
    Mutant(
        "hashers/canonical.py",
        "weighted = part * np.sqrt(weights[rows])",
        "weighted = part",
        "hashers/test_cvh.py",
    ),
    Mutant(
        "hashers/canonical.py",
        "+= ridge * largest",
        "+= ridge",
        "hashers/test_cvh.py",
    ),
    Mutant(
        "hashers/components.py",
        "clip_correlations(correlations[:k]) if by_correlation else np.ones(k)",
        "np.ones(k)",
        "hashers/test_qch.py",
    ),
    Mutant(
        "hashers/cvh.py",
        "np.arange(self.bits) % len(analysis.s)",
        "np.minimum(np.arange(self.bits), len(analysis.s) - 1)",
        "hashers/test_cvh.py",
    ),
    Mutant(
        "hashers/thn/initialization.py",
        "- axes @ back",
        "+ axes @ back",
        "hashers/test_residual_bits.py",
    ),
    Mutant(
        "hashers/projection.py",
        "for rows, centered in chunks(features, self.target_center if target else self.center):\n            residual",
        "for rows, centered in chunks(features, self.center if target else self.target_center):\n            residual",
        "hashers/test_residual_bits.py",
    ),
    # The training.
    Mutant("hashers/thn/thn.py", "average.copy_to(parameters)", "pass", THN + " -k moving_average"),
    Mutant(
        "hashers/training_loop.py",
        "decay = min(self.decay, (step + 1) / (step + 10))",
        "decay = self.decay",
        "hashers/test_thn.py -k moving_average",
    ),
    Mutant(
        "hashers/training_loop.py",
        "digest.update(np.ascontiguousarray(array[::step]).tobytes())",
        "pass",
        THN + " -k fingerprint",
    ),
    Mutant(
        "hashers/training_loop.py",
        "digest.update(relation.times(halves).tobytes())",
        "pass",
        THN + " -k another_relation",
    ),
    Mutant(
        "hashers/training_loop.py",
        "default_rng([seed, step, stream])",
        "default_rng([seed, stream])",
        "hashers/test_golden.py -k THN-Q",
    ),
    Mutant(
        "hashers/thn/thn.py",
        "return centered_input_layer(training, self.use_target)",
        "return centered_input_layer(training, False)",
        "hashers/test_thn.py -k papers_recipe_aligns",
    ),
    Mutant(
        "hashers/projection.py",
        "return z if linear is None else z + ops.linear(x, linear)",
        "return z",
        "hashers/test_golden.py -k THN-Q",
    ),
    Mutant(
        "hashers/base.py",
        "state.items() if not np.isfinite(array).all()), None)",
        "state.items() if False), None)",
        "hashers/test_contract.py -k finite",
    ),
    # Baselines.
    Mutant("hashers/qch.py", "whiten.T @ total", "whiten @ total", "hashers/test_qch.py"),
    Mutant(
        "hashers/qch.py",
        "max(self.bits, MAX_RANK)",
        "self.bits",
        "hashers/test_qch.py -k outnumber",
    ),
    Mutant("hashers/imh.py", "+ np.median(zx @ weights_x, axis=0)", "", "hashers/test_imh.py"),
    Mutant(
        "hashers/hth.py",
        "np.asarray(code @ self.translator_, dtype=np.float32)",
        "np.asarray(code, dtype=np.float32)",
        "hashers/test_hth.py",
    ),
    Mutant(
        "hashers/losses.py",
        "return torch.where(values > 0, 1.0, -1.0)",
        "return torch.where(values > 0, -1.0, 1.0)",
        "test_losses.py",
    ),
    Mutant(
        "hashers/dcmh.py",
        "text_codes[texts_of_images] = codes",
        "text_codes[:] = codes",
        "hashers/test_dcmh.py",
    ),
    Mutant(
        "hashers/dcmh.py",
        "if (texts != 1).any() or (images != 1).any():",
        "if (texts != 1).any():",
        "hashers/test_dcmh.py",
    ),
    Mutant(
        "hashers/baselines.py",
        "[has_partner] / counts[has_partner]",
        "[has_partner]",
        "hashers/test_baselines.py",
    ),
    Mutant(
        "hashers/tuning.py", "trial.score > max(", "trial.score < min(", "hashers/test_tuning.py"
    ),
    # Splits and words: test data must not reach training.
    Mutant(
        "data/benchmark.py",
        "held_out_texts=held_y,\n            query_images=query_x,",
        "held_out_texts=aux_y,\n            query_images=query_x,",
        "experiments/test_splits.py data/test_benchmark.py",
    ),
    Mutant(
        "data/benchmark.py",
        "part.extend(free[i * count : (i + 1) * count])",
        "part.extend(free[i // 2 * count : (i // 2 + 1) * count])",
        "experiments/test_splits.py data/test_benchmark.py",
    ),
    Mutant(
        "data/benchmark.py",
        "[row for row in base if row not in used]",
        "list(base)",
        "experiments/test_splits.py data/test_benchmark.py",
    ),
    Mutant(
        "data/benchmark.py",
        "np.sort(rng.permutation(base_y)[: sizes.target])",
        "np.sort(rng.permutation(query_y)[: sizes.target])",
        SPLITS,
    ),
    Mutant(
        "data/training_set.py",
        "rest_x, rest_y = np.setdiff1d(np.arange(n), held_x)",
        "rest_x, rest_y = np.arange(n)",
        "data/test_relation.py hashers/test_tuning.py",
    ),
    Mutant(
        "training/split_data.py",
        "extractor.fit(auxiliary.texts.items,",
        "extractor.fit(benchmark.texts.items,",
        "experiments/test_splits.py data/test_benchmark.py",
    ),
    Mutant(
        "training/split_data.py",
        "*([target_texts] if uses_target else ())",
        "target_texts",
        "experiments/test_splits.py data/test_benchmark.py",
    ),
    Mutant(
        "training/fit.py",
        "if target_texts is not None and self.hasher.uses_target:",
        "if target_texts is not None:",
        "training/test_text_features.py",
    ),
    Mutant(
        "experiments/runner.py",
        "**settings).uses_target",
        "**settings).uses_target or True",
        "experiments/test_splits.py",
    ),
    Mutant(
        "service/warm_up.py",
        "            if late:\n",
        "            if not late:\n",
        "service/test_warm_up.py",
    ),
    Mutant(
        "features/words.py",
        "                at, weights = table[word]\n",
        "                at, weights = self._columns[word]\n",
        "features/test_words.py",
    ),
    Mutant("features/words.py", ") ** _RARITY_POWER", ") ** 0", "features/test_words.py"),
    Mutant("features/words.py", ".sum() >= _MIN_AVOIDED", ".sum() < 0", "features/test_words.py"),
    Mutant(
        "features/words.py",
        "divergence - by_chance < _STOP",
        "divergence < _STOP",
        "features/test_words.py",
    ),
    Mutant(
        "features/words.py",
        "similarity[best] >= _MIN_SIMILARITY",
        "similarity[best] >= 2",
        "features/test_words.py",
    ),
    Mutant(
        "features/texts.py",
        "self.words.transform(texts) * word_scale",
        "self.words.transform(texts)",
        "features/test_text.py",
    ),
    Mutant(
        "features/images.py",
        "cosines.max() < self.min_cosine",
        "cosines.max() < 0",
        "features/test_image.py -k unknown",
    ),
    Mutant(
        "features/embedders.py",
        "if vector is None]",
        "]",
        "features/test_text.py -k second_fit_embeds",
    ),
    Mutant(
        "features/embedders.py",
        "(_bundled_digest() if bundled else folder_digest(folder)) != digest",
        "not digest",
        "features/test_text.py",
    ),
    Mutant(
        "features/bert.py",
        "            start = end\n",
        "            start = 0\n",
        "features/test_bert.py",
    ),
    Mutant(
        "features/words.py",
        "counts.data = np.log1p(counts.data)",
        "pass",
        "features/test_bag_of_words.py",
    ),
    # Codes, scores, search.
    Mutant(
        "service/sync_job.py",
        "plans = without_sources(plans, losses)",
        "plans = [] if losses else plans",
        "service/test_sync.py -k bad_source",
    ),
    Mutant(
        "model/encoder.py",
        "pixels = decode_isolated(source, features.size)",
        "pixels = __import__('transhash').features.decode.decode(source, features.size)",
        "search/test_queries.py -k another_process",
    ),
    Mutant(
        "search/retrieval.py",
        "keys = (ids[best], distances[best], costs[best], -scores[best])",
        "keys = (ids[best], distances[best], costs[best])",
        "search/test_hybrid.py -k fusion",
    ),
    Mutant(
        "search/keywords.py",
        "np.minimum(scores, shares)",
        "np.minimum(scores, sum(rarities.values()))",
        "search/test_hybrid.py -k covers",
    ),
    Mutant(
        "search/keywords.py",
        "            if changed:\n",
        "            if False:\n",
        "search/test_common_words.py -k change",
    ),
    Mutant(
        "search/keywords.py",
        "if changes == self._changes and key not in self._values:",
        "if key not in self._values:",
        "search/test_common_words.py -k before_a_change",
    ),
    Mutant(
        "search/keywords.py",
        "        if not values:\n            found",
        "        if True:\n            found",
        "search/test_common_words.py -k filters",
    ),
    Mutant(
        "search/keywords.py",
        "codes[order[is_first]]",
        "codes[is_first]",
        "search/test_common_words.py -k codes",
    ),
    Mutant(
        "search/retrieval.py",
        "scores >= np.partition(scores, -k)[-k]",
        "scores > np.partition(scores, -k)[-k]",
        "search/test_hybrid.py -k fusion",
    ),
    Mutant(
        "search/catalog_file.py",
        "if not one.is_alive()]",
        "if False]",
        "search/test_catalog.py -k threads",
    ),
    Mutant(
        "search/catalog_file.py",
        "return by_others, self.base.total_changes",
        "return by_others, 0",
        "search/test_common_words.py -k change",
    ),
    Mutant(
        "search/keywords.py",
        "and word not in FUNCTION_WORDS",
        "and word",
        "search/test_hybrid.py -k words",
    ),
    Mutant(
        "search/retrieval.py",
        "allowed.sum(axis=1).min() >= k",
        "allowed.sum(axis=1).min() >= 0",
        "search/test_hybrid.py -k filter",
    ),
    Mutant(
        "search/retrieval.py",
        "fuse(query, own, near, matches, k)",
        "fuse(query, own, near, matches, len(near.ids[0]))",
        "search/test_hybrid.py -k takes_no_place",
    ),
    Mutant(
        "search/retrieval.py",
        "difference[nearest] <= _MAX_DIFFERENCE",
        "difference[nearest] <= 255",
        "search/test_hybrid.py -k copies",
    ),
    Mutant(
        "codes.py", "np.packbits(z > 0, axis=1)", "np.packbits(z >= 0, axis=1)", "test_codes.py"
    ),
    Mutant(
        "evaluation/average_precision.py",
        "hits_before + 1 - slope - slope * earlier",
        "hits_before + 1 - slope * earlier",
        "evaluation/test_average_precision.py",
    ),
    Mutant(
        "evaluation/histogram.py",
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
        "index/grouped/segment.py",
        "for budget, quorum in ((0.5, min), (0.25, max)):",
        "for budget, quorum in ((0.5, max), (0.25, max)):",
        "index/test_trial_queries.py -k budget",
    ),
    Mutant(
        "index/grouped/segments.py",
        "self.all_deleted > max(min_deleted, self.segment.items // 16)",
        "self.all_deleted > self.segment.items",
        "index/test_deleted.py -k rewritten",
    ),
    Mutant(
        "index/grouped/segments.py",
        "keys.append(np.concatenate(costs, axis=1))",
        "keys.insert(1, np.concatenate(costs, axis=1))",
        "index/test_weighted.py -k changes_leave",
    ),
    Mutant(
        "evaluation/scores.py",
        "-weighted_costs(queries[rows], database, weights[rows])",
        "weighted_costs(queries[rows], database, weights[rows])",
        "evaluation/test_weighted.py",
    ),
    Mutant(
        "service/search_service.py",
        "weights[is_text] = text_weights",
        "weights[: len(text_weights)] = text_weights",
        "service/test_search.py -k batch",
    ),
    # Validation: no training item is a query, and no baseline wins by chance.
    Mutant(
        "training/validation.py",
        "images = np.flatnonzero(is_held_out)",
        "images = np.flatnonzero(is_held_out)[: _held_out_size(contents)]",
        "training/test_validation.py",
    ),
    Mutant(
        "training/validation.py",
        "partners, k, skip_step=step)",
        "partners, k)",
        "training/test_validation.py",
    ),
    Mutant(
        "training/fit.py",
        "replace(hasher).fit(rest, folder",
        "replace(hasher).fit(training, folder",
        "training/test_validation.py",
    ),
    # Sync and access.
    Mutant(
        "hashers/training_loop.py",
        "if digest is None or not np.array_equal(digest, _tensor_digest(tensors)):",
        "if digest is None:",
        "hashers/test_checkpoint.py",
    ),
    Mutant(
        "search/feedback.py",
        "PRAGMA synchronous=EXTRA",
        "PRAGMA synchronous=FULL",
        "fault_injection/test_power_loss.py -k votes",
    ),
    Mutant(
        "storage.py",
        "    for path in missing:  # without this",
        "    for path in missing[:0]:  # without this",
        "fault_injection/test_power_loss.py -k index",
    ),
    Mutant(
        "service/server.py",
        "_EXIT_SECONDS = 4.5",
        "_EXIT_SECONDS = 450",
        "service/test_stopping.py",
    ),
    Mutant(
        "service/guard.py",
        'if changes and name == "read":',
        'if changes and name == "other":',
        "service/test_keys.py",
    ),
    Mutant(
        "service/guard.py",
        "limit = self.key_rate_limit if",
        "limit = None if",
        "service/test_keys.py",
    ),
    Mutant(
        "search/writer.py",
        "            stored = self.catalog.add(modality, new, self.index_url)",
        "            stored = self.catalog.add(modality, new[:1], self.index_url)",
        "service/test_sync.py",
    ),
    Mutant(
        "service/sync_job.py",
        "if is_requested or states != self._states or self._intervals >= pause:",
        "if is_requested or self._intervals >= pause:",
        "service/test_sync.py",
    ),
    Mutant(
        "search/backup.py",
        "if remaining or digest.hexdigest() != member.sha256:",
        "if remaining:",
        "search/test_backup.py",
    ),
    Mutant(
        "search/backup.py",
        "member.type == tarfile.REGTYPE and not member.issparse()",
        "True",
        "search/test_backup.py",
    ),
    Mutant(
        "search/backup.py",
        "if all(snapshot.is_current() for snapshot in snapshots.values()):",
        "if snapshots is not None:",
        "search/test_backup.py -k between",
    ),
    Mutant(
        "search/sync.py",
        '(os.path.join(source, item.key)) == "missing"',
        '(os.path.join(source, item.key)) != "present"',
        "search/test_items.py",
    ),
    Mutant(
        "search/sync.py",
        "            del keys[item.key]\n",
        "            pass\n",
        "search/test_items.py",
    ),
    Mutant(
        "search/sync.py",
        "if item.key == last else None",
        "if item.key == last else after_last",
        "search/test_items.py -k another_order",
    ),
    Mutant(
        "search/sync.py",
        "tail = () if after_last is None else removed[after_last:]",
        "tail = ()",
        "search/test_items.py -k cut",
    ),
    Mutant(
        "training/open_run.py",
        "    return [_take(items, max(_MIN_ITEMS, round(share * len(items)))) for items in collections]",
        "    return collections",
        "service/test_open.py -k texts_alone",
    ),
    Mutant(
        "storage.py",
        "    if _swap(draft, folder):",
        "    if _swap(folder, folder):",
        "test_storage.py -k kill",
    ),
    Mutant(
        "storage.py",
        "        if _lock_draft(descriptor):",
        "        if _lock_draft(descriptor) or True:",
        "test_storage.py -k living",
    ),
    Mutant(
        "cli/__init__.py",
        "if segment.control is None and _CONTROLS",
        "if segment.control and _CONTROLS",
        "search/test_items.py -k control",
    ),
    Mutant(
        "data/tables.py",
        'if cell.startswith("\'") and _FORMULA.match(cell)',
        "if False",
        "search/test_feedback.py -k formulas",
    ),
    Mutant(
        "storage.py",
        "    if stat.S_ISREG(mode):",
        "    if True:",
        "test_storage.py -k pipe",
    ),
    Mutant(
        "service/originals.py",
        "        return Original(copy,",
        "        return Original(open(item.path, 'rb'),",
        "service/test_originals.py",
    ),
    Mutant(
        "search/sync.py", "2 * count >= plan.count", "count >= plan.count", "search/test_items.py"
    ),
    Mutant(
        "search/sync.py", "    if is_complete(path) or", "    if True or", "search/test_items.py"
    ),
    Mutant(
        "features/decode.py",
        "if max(image.size) > _MAX_SIDE:",
        "if False:",
        "features/test_bad_images.py",
    ),
    Mutant(
        "features/decode_processes.py",
        "positions[worker] = position + 1",
        "positions[worker] = 0",
        "features/test_decode_processes.py",
    ),
    Mutant(
        "features/decode_processes.py",
        "            _limit_memory(memory + size)\n",
        "",
        "features/test_decode_processes.py",
    ),
    Mutant(
        "service/guard.py",
        "allow_password=not changes",
        "allow_password=True",
        "service/test_keys.py",
    ),
    # Fine-tuning.
    Mutant(
        "hashers/fine_tuning/batches.py",
        "torch.tanh(head(part, i > 0))",
        "torch.tanh(head(part, False))",
        f"{TUNING} -k target_shift",
    ),
    Mutant(
        "hashers/fine_tuning/loop.py",
        "        average.copy_to(parameters)",
        "        pass",
        f"{TUNING} -k average",
    ),
    Mutant(
        "hashers/fine_tuning/loop.py",
        "return 0 if self.blocks is None else stages - self.blocks",
        "return 0",
        f"{TUNING} -k all_stages",
    ),
    Mutant(
        "data/draw.py",
        "partners_first = max(n, m) > count and left < enough",
        "partners_first = False",
        "data/test_relation.py -k stay_together",
    ),
    Mutant(
        "hashers/thn/initialization.py",
        "c -= math.log(hits.sum() / misses.sum())",
        "pass",
        "hashers/test_thn.py -k calibrated",
    ),
    Mutant(
        "hashers/thn/thn.py",
        "self.warnings_ = checkpoint.warnings",
        "pass",
        "hashers/test_thn.py -k resumed_after",
    ),
    Mutant(
        "training/fit.py",
        "self._check_index()",
        "pass",
        "training/test_fit_python.py -k indexed_run",
    ),
    Mutant(
        "hashers/fine_tuning/loop.py",
        "wanted = settings.step_count(len(pixels[1]) if use_target else 0)",
        "wanted = settings.step_count(len(pixels[0]))",
        f"{TUNING} -k add_steps",
    ),
    Mutant(
        "hashers/fine_tuning/loop.py",
        'if plan.get("name") != self.name:',
        "if True:",
        "hashers/test_fine_tuning.py -k budget",
    ),
    Mutant(
        "hashers/fine_tuning/batches.py",
        "crops = draw_crops(len(rows), seeds)[share]",
        "crops = draw_crops(len(rows), [int.from_bytes(os.urandom(4))])[share]",
        "hashers/test_fine_tuning.py -k killed",
    ),
    Mutant(
        "features/backbone.py",
        'return f"{self.name}:{self.size}:1:{precision_key(self.device)}:{self.digest}"',
        'return f"{self.name}:{self.size}:1:{precision_key(self.device)}"',
        "features/test_backbone.py -k cache",
    ),
    Mutant(
        "features/efficientnet.py",
        "bias = norm.bias - norm.running_mean * scale",
        "bias = norm.bias + norm.running_mean * scale",
        "features/test_backbone.py",
    ),
    Mutant(
        "model/files.py",
        '"vocabulary.json", BACKBONE_FILE',
        '"vocabulary.json"',
        "training/test_fine_tuned_run.py -k changed_backbone",
    ),
    # No step is silent for long.
    Mutant(
        "progress.py",
        "if now - _last_line >= interval and not _steps[-1].has_bar:",
        "if False:",
        "test_progress.py -k long_computation",
    ),
    # What a program passed comes back with its results.
    Mutant(
        "data/collection.py",
        "[self.object_row(row) for row in rows]",
        "list(range(len(rows)))",
        "training/test_fit_python.py -k path",
    ),
    # Plug-ins.
    Mutant(
        "plugins/sklearn.py",
        "np.unique(rows_x, axis=0, return_inverse=True)",
        "rows_x, np.arange(len(rows_x))",
        "plugins/test_sklearn.py -k one_item",
    ),
    Mutant(
        "plugins/__init__.py",
        "maximum.accumulate(equal[::-1])[::-1]",
        "maximum.accumulate(equal)",
        "plugins/test_retrievers.py -k never_rise",
    ),
    Mutant(
        "plugins/mcp_server.py",
        "as engine, no_output():",
        "as engine:",
        "plugins/test_mcp.py -k waits",
    ),
    Mutant(
        "client.py",
        "build_opener(_NoRedirect)",
        "build_opener()",
        "service/test_client.py -k redirect",
    ),
)


def survives(mutant: Mutant) -> tuple[bool, float]:
    """Return whether the named tests pass with the fault, and the seconds they took."""
    with tempfile.TemporaryDirectory() as folder:
        sources = Path(folder) / "src"
        shutil.copytree(ROOT / "src", sources, ignore=shutil.ignore_patterns("__pycache__"))
        (sources / "transhash" / mutant.file).write_text(mutant.mutate(), encoding="utf-8")
        start = time.monotonic()
        passed, _ = run(mutant, sources)
    return passed, time.monotonic() - start


def run(mutant: Mutant, sources: Path) -> tuple[bool, str]:
    """Return whether the mutant's tests pass on these sources, and their output."""
    environment = os.environ | {
        "PYTHONPATH": str(sources), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip
    _, has_words, words = mutant.tests.partition(" -k ")
    arguments = [*map(str, mutant.test_files), *(["-k", words] if has_words else [])]
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *arguments],
        cwd=sources.parent, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    if result.returncode not in (0, 1, 2):  # no test was selected, or pytest itself failed
        output = result.stdout[-2000:] + result.stderr[-500:]
        raise SystemExit(f"{mutant.tests} cannot be run: {output}")
    return result.returncode == 0, result.stdout


def changed_files(reference: str) -> set[Path]:
    """Return the files that differ from a commit."""
    command = ["git", "diff", "--name-only", reference]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return {ROOT / line for line in result.stdout.splitlines()}


def select(words: list[str], reference: str | None) -> list[Mutant]:
    mutants = [m for m in MUTANTS if not words or any(word in str(m) for word in words)]
    if reference is None:
        return mutants
    changed = changed_files(reference)
    return [m for m in mutants if changed & {m.source, *m.test_files}]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("words", nargs="*", help="select faults whose entry contains one of them")
    parser.add_argument("--changed", metavar="REF", help="only files that differ from a commit")
    parser.add_argument("--minutes", type=float, help="start no new fault after that time")
    options = parser.parse_args()
    start = time.monotonic()
    end = None if options.minutes is None else start + 60 * options.minutes
    selected = select(options.words, options.changed)
    survivors: list[Mutant] = []
    finished = 0

    def is_late() -> bool:
        return end is not None and time.monotonic() > end

    with ThreadPoolExecutor(JOBS) as pool:
        # A test that fails without a fault would detect every fault.
        by_tests = {mutant.tests: mutant for mutant in selected}

        def check(mutant: Mutant) -> tuple[bool, str]:
            return (True, "") if is_late() else run(mutant, ROOT / "src")

        for tests, (passed, output) in zip(by_tests, pool.map(check, by_tests.values())):
            if not passed:
                raise SystemExit(f"{tests} fails without a fault:\n{output[-2000:]}")

        def test(mutant: Mutant) -> tuple[bool, float] | None:
            return None if is_late() else survives(mutant)

        for mutant, result in zip(selected, pool.map(test, selected)):
            if result is None:
                continue
            finished += 1
            state = "SURVIVED" if result[0] else "detected"
            line = " ".join(mutant.original.split())[:70]
            print(f"{state:8} {result[1]:5.1f} s  {mutant.file}: {line}", flush=True)
            survivors += [mutant] if result[0] else []
    for mutant in survivors:
        print(f"\nnot detected by {mutant.tests}: {mutant.file}")
        print(f"- {mutant.original}\n+ {mutant.mutated}")
    print(
        f"\n{len(survivors)} of {finished} survived, {len(selected) - finished} not run, "
        f"{time.monotonic() - start:.0f} s"
    )
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
