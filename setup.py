"""Extensions, the mapping of formats/ and converters/ into the package, and the abi3 tag. All else is in pyproject.toml."""
import os
import sys
from glob import glob

from Cython.Build import cythonize
from setuptools import Extension, setup

DEBUG = os.environ.get("MOEGG_DEBUG") == "1"
CFLAGS = ["-O3", "-g" if DEBUG else "-g0", "-std=c11", "-ffp-contract=off", "-fno-math-errno", "-fvisibility=hidden", "-Wall", "-Wno-unused-function",
          "-Wno-unknown-pragmas"]
if os.environ.get("MOEGG_NATIVE") == "1":
    CFLAGS.append("-march=native")
MACROS = [("Py_LIMITED_API", "0x030B0000"), ("_GNU_SOURCE", "1")] + ([("MOEGG_DEBUG", "1")] if DEBUG else [])
HEADERS = sorted(glob("moegg/kernels/csrc/*.h") + glob("moegg/kernels/csrc/*.def"))


def extension(name: str, *sources: str) -> Extension:
    return Extension(name, list(sources), include_dirs=["moegg/kernels/csrc"], extra_compile_args=CFLAGS, define_macros=MACROS,
                     libraries=[] if sys.platform == "win32" else ["m", "pthread"], depends=HEADERS, py_limited_api=True)


# C state (dispatch table, pool) must live in exactly one extension: csrc is listed once; others cimport _core's pxd.
EXTENSIONS = [extension("moegg.kernels._core", "moegg/kernels/_core.pyx", *sorted(glob("moegg/kernels/csrc/*.c")))]
if DEBUG:
    EXTENSIONS[0].extra_compile_args = CFLAGS + ["-include", "moegg/kernels/csrc/alloc_guard.h"]
EXTENSIONS += [extension(name, f"{name.replace('.', '/')}.pyx")
               for name in ("moegg.kernels.ops", "moegg.kernels.store", "moegg.engine.structs", "moegg.engine.forward")]

setup(
    packages=["moegg", "moegg.arch", "moegg.models", "moegg.kernels", "moegg.engine",
              "moegg.io", "moegg.commands", "moegg.server", "moegg.hub", "moegg.formats", "moegg.converters"],
    package_dir={"moegg": "moegg", "moegg.formats": "formats", "moegg.converters": "converters"},
    ext_modules=cythonize(EXTENSIONS, build_dir="build/cython", compiler_directives={
        "language_level": 3, "boundscheck": DEBUG, "wraparound": False, "cdivision": True, "initializedcheck": DEBUG,
        "nonecheck": False, "embedsignature": True}),
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
