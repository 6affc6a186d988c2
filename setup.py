"""Only the optional native kernel lives here; everything else is in pyproject.toml."""

from pathlib import Path

from setuptools import Extension, setup

KERNEL = "src/transhash/index/_hamming.c"

setup(
    # optional: without a compiler the install still succeeds and FAISS does the scan.
    ext_modules=[
        Extension(
            "transhash.index._hamming",
            [KERNEL],
            optional=True,
            extra_compile_args=["-O3", "-pthread"],
            extra_link_args=["-pthread"],
        )
    ]
    if Path(KERNEL).exists()
    else []
)
