"""FAISS's threads spin while they wait, which on a busy machine costs seconds a test."""

from __future__ import annotations

import faiss

faiss.omp_set_num_threads(1)
