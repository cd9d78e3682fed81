# SPDX-License-Identifier: Apache-2.0
"""Build nvfp4sparse._C: gcc for src/*.c, nvcc for cuda/*.cu, all in one extension module.

Environment switches ("1" is on; unset, empty and "0" are off):

  NVFP4SPARSE_NO_CUDA       build the CPU path alone, nvcc or not
  NVFP4SPARSE_REQUIRE_CUDA  fail where the build would otherwise be CPU-only
  NVFP4SPARSE_CUDA_ARCHS    only these compute capabilities, e.g. "90a" or "8.0, 9.0"; no PTX
  NVFP4SPARSE_DEBUG_BUILD   C with -O0 -g3 and asserts, kernels with line numbers
  NVFP4SPARSE_WERROR        warnings of both compilers are errors
  NVCC, CUDA_HOME           which nvcc; else PATH, else the nvidia-cuda-nvcc wheel
  MAX_JOBS                  nvcc processes at once (default: processors, at most 4)
"""

import copy
import os
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.sdist import sdist

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / ".build-backend"))

from nvs_images import (  # noqa: E402
    build_images,
    number,
    parse_archs,
    plan_images,
    write_embedding,
    write_if_changed,
)
from nvs_toolkit import find_toolkit, flag  # noqa: E402

# What each kernel file is compiled for. The first row whose pattern fits the file's name counts.
# SASS runs on its own compute capability ("a": only there); PTX is for GPUs newer than the list.
PORTABLE = ("80", "86", "89", "90", "100", "103", "120", "121")
IMAGES = (
    # file name    SASS       PTX
    ("*_sm90*", ("90a",), None),
    ("*", PORTABLE, "80"),
)

# abi3 has no free-threaded variant: such interpreters get a build of their own.
LIMITED_API = not sysconfig.get_config_var("Py_GIL_DISABLED")

# What a source distribution needs beyond what setuptools finds by itself.
SDIST_PATTERNS = (
    "CHANGELOG.md",
    ".clang-format",
    ".gitignore",
    ".build-backend/*.py",
    ".ci/*",
    "src/*.h",
    "cuda/*.cu",
    "cuda/*.cuh",
    "nvfp4sparse/*.pyi",
    "nvfp4sparse/py.typed",
    "notebooks/*",
    "tests/**/*",
)


class BuildExtension(build_ext):
    """Adds the kernels' images to the extension, and leaves a copy of it in the source tree."""

    def run(self):
        """Build, and let `python -m nvfp4sparse` in the source tree find the built module."""
        super().run()
        if not self.inplace:
            self.copy_extensions_to_source()

    def build_extension(self, ext):
        """Compile kernels, then C, if anything they depend on changed."""
        ext = copy.copy(ext)
        folder = Path(self.build_temp).resolve() / "cuda"
        images, info = self._images(folder)
        table, assembly = write_embedding(images, info, folder)
        # Flags are no file that setuptools compares, so they become one.
        recipe = folder / "extension.stamp"
        write_if_changed(recipe, repr((ext.extra_compile_args, ext.define_macros)))
        fatbins = [str(image.fatbin) for image in images if image.archs]
        ext.depends = [*ext.depends, *fatbins, str(table), str(assembly), str(recipe)]
        ext.sources = [*ext.sources, os.path.relpath(table, ROOT), os.path.relpath(assembly, ROOT)]
        self.compiler.src_extensions = [*self.compiler.src_extensions, ".S"]
        super().build_extension(ext)

    def _images(self, folder):
        """([Image], one line on the toolkit), after compiling what is out of date."""
        toolkit, reason = find_toolkit()
        if toolkit is None and flag(os.environ, "NVFP4SPARSE_REQUIRE_CUDA"):
            raise RuntimeError(f"NVFP4SPARSE_REQUIRE_CUDA=1, but {reason}")
        sources = sorted((ROOT / "cuda").glob("*.cu"))
        targets = toolkit.targets if toolkit else frozenset()
        wanted = parse_archs(os.environ.get("NVFP4SPARSE_CUDA_ARCHS", ""), IMAGES)
        images = plan_images(sources, IMAGES, targets, wanted, folder)
        if toolkit is None:
            _loud(f"nvfp4sparse: CPU-only build, CUDA tensors will be refused: {reason}")
            return images, reason
        unknown = sorted({number(a) for _, sass, _ in IMAGES for a in sass} - targets, key=int)
        if unknown:
            _loud(f"nvfp4sparse: nvcc {toolkit.version} is too old for {', '.join(unknown)}")
        options = []
        if flag(os.environ, "NVFP4SPARSE_WERROR"):
            options += ["-Werror", "all-warnings"]
        if flag(os.environ, "NVFP4SPARSE_DEBUG_BUILD"):
            options += ["-lineinfo"]
        jobs = int(os.environ.get("MAX_JOBS") or min(4, os.cpu_count() or 1))
        build_images(toolkit, images, options, jobs, ROOT)
        return images, f"nvcc {toolkit.version}"


class SourceDistribution(sdist):
    """Adds SDIST_PATTERNS; the project has no MANIFEST.in."""

    def make_distribution(self):
        """Complete the list of files, then pack."""
        for pattern in SDIST_PATTERNS:
            found = sorted(path for path in ROOT.glob(pattern) if _ships(path))
            self.filelist.extend([str(path.relative_to(ROOT)) for path in found])
        self.filelist.sort()
        self.filelist.remove_duplicates()
        super().make_distribution()


def _ships(path):
    return path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc"


def _loud(line):
    """A line that stands out in a build log."""
    bar = "*" * min(len(line), 100)
    print(f"\n{bar}\n{line}\n{bar}\n", file=sys.stderr, flush=True)


def extension():
    """The one extension module, still without its kernels."""
    cflags = ["-std=c11", "-O3", "-fvisibility=hidden", "-Wall", "-Wextra"]
    if flag(os.environ, "NVFP4SPARSE_WERROR"):
        cflags += ["-Werror"]
    if flag(os.environ, "NVFP4SPARSE_DEBUG_BUILD"):
        cflags += ["-O0", "-g3", "-UNDEBUG"]
    return Extension(
        "nvfp4sparse._C",
        sources=[str(path.relative_to(ROOT)) for path in sorted((ROOT / "src").glob("*.c"))],
        depends=[str(path.relative_to(ROOT)) for path in sorted((ROOT / "src").glob("*.h"))],
        include_dirs=["src"],
        define_macros=[("Py_LIMITED_API", "0x030B0000")] if LIMITED_API else [],
        py_limited_api=LIMITED_API,
        extra_compile_args=cflags,
        libraries=["m", "pthread", "dl"],
        extra_link_args=["-Wl,--as-needed"] if sys.platform == "linux" else [],
    )


if __name__ == "__main__":
    setup(
        license="Apache-2.0",  # here, since pyproject's spelling differs before setuptools 77
        ext_modules=[extension()],
        cmdclass={"build_ext": BuildExtension, "sdist": SourceDistribution},
        options={"bdist_wheel": {"py_limited_api": "cp311"}} if LIMITED_API else {},
    )
