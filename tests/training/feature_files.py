"""Features of a few classes as .npy files, which `transhash fit` learns from in a second."""

from __future__ import annotations

from pathlib import Path

import numpy as np

IMAGES, TEXTS, DIMENSIONS = 40, 36, 12


def write_features(folder: Path, classes: int = 4) -> list[str]:
    """Write the files and return options of `fit`; targets are a shifted copy of the classes."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(3)
    centers = rng.standard_normal((2, classes, DIMENSIONS)) * 2
    of_images, of_texts = np.arange(IMAGES) % classes, np.arange(TEXTS) % classes

    def save(name: str, modality: int, labels: np.ndarray, shift: float) -> None:
        noise = rng.standard_normal((len(labels), DIMENSIONS))
        rows = (centers[modality][labels] + shift + noise).astype(np.float32)
        np.save(folder / f"{name}.npy", rows)

    save("images", 0, of_images, 0)
    save("texts", 1, of_texts, 0)
    save("target-images", 0, rng.permutation(of_images), 0.5)
    save("target-texts", 1, rng.permutation(of_texts), 0.5)
    related = of_images[:, None] == of_texts
    lines = [f"{i},{j},{int(related[i, j])}" for i in range(IMAGES) for j in range(TEXTS)]
    (folder / "relation.csv").write_text("\n".join(lines) + "\n")
    return [
        "--auxiliary-images", f"{folder}/images.npy", "--auxiliary-texts", f"{folder}/texts.npy",
        "--relation", f"{folder}/relation.csv", "--images", f"{folder}/target-images.npy",
        "--texts", f"{folder}/target-texts.npy", "--bits", "8",
    ]  # fmt: skip
