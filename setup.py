"""Build the optional native kernel. Everything else is in pyproject.toml."""

import shutil
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

KERNEL = "src/transhash/index/_hamming.c"
WINDOWS = sys.platform == "win32"
# One wheel for Python 3.11 and later. Free-threaded builds have no stable ABI.
STABLE = not sysconfig.get_config_var("Py_GIL_DISABLED")


class BuildKernel(build_ext):
    def build_extension(self, ext):
        """Use clang on Windows: the kernel is written for gcc and clang."""
        if self.compiler.compiler_type == "msvc":
            clang = shutil.which("clang-cl")
            if clang is None:
                raise CompileError("clang-cl is not on the PATH")
            self.compiler.initialize()
            self.compiler.cc = clang
        super().build_extension(ext)


setup(
    cmdclass={"build_ext": BuildKernel},
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if STABLE else {},
    # Optional: without a compiler the install still succeeds, and FAISS does the search.
    ext_modules=[
        Extension(
            "transhash.index._hamming",
            [KERNEL],
            optional=True,
            py_limited_api=STABLE,
            define_macros=[("Py_LIMITED_API", "0x030b0000")] if STABLE else [],
            extra_compile_args=["/clang:-O3"] if WINDOWS else ["-O3", "-pthread"],
            extra_link_args=[] if WINDOWS else ["-pthread"],
        )
    ]
    if Path(KERNEL).exists()
    else [],
)
