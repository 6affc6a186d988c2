"""FAISS with one thread: its threads spin while waiting, which slows down a busy machine."""

from __future__ import annotations

import faiss

faiss.omp_set_num_threads(1)
