# SPDX-License-Identifier: Apache-2.0
"""cuda/*.cu -> one fatbin each -> one C table and one assembly file that carries the bytes.

nvcc compiles a kernel file only when the file, a header of this project that it includes, the
options or nvcc's version changed. What ptxas said (registers, spills, warnings) stays beside each
fatbin in NAME.ptxas.log.
"""

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path


@dataclass(frozen=True)
class Image:
    """One kernel file: its SASS targets ("90a"), its PTX target or None, its fatbin or None."""

    source: Path
    sass: tuple
    ptx: str | None
    fatbin: Path

    @property
    def name(self):
        """File name without suffix: "gemm_naive"."""
        return self.source.stem

    @property
    def archs(self):
        """What the fatbin holds, as nvcc writes it: "sm_80 sm_90a compute_80"."""
        ptx = (f"compute_{self.ptx}",) if self.ptx else ()
        return " ".join((*(f"sm_{arch}" for arch in self.sass), *ptx))


def number(arch):
    """The compute capability of a target, without its suffix: "90a" -> "90"."""
    return arch.rstrip("af")


def parse_archs(text, table):
    """The set of capabilities ("90") that NVFP4SPARSE_CUDA_ARCHS names, or None if it is empty.

    Spaces, commas and semicolons separate; "90", "90a", "9.0", "sm_90a" mean the same device.
    ValueError for a word that is no capability, or one for which the table has no kernel.
    """
    words = re.split(r"[\s,;]+", text.strip()) if text.strip() else []
    wanted = set()
    known = sorted({number(arch) for _, sass, _ in table for arch in sass}, key=int)
    for word in filter(None, words):
        match = re.fullmatch(r"(?:sm_)?(\d+)\.?(\d)[af]?", word)
        capability = match and match.group(1) + match.group(2)
        if capability not in known:
            known = ", ".join(known)
            raise ValueError(
                f"NVFP4SPARSE_CUDA_ARCHS: no kernel is built for {word!r}; known: {known}"
            )
        wanted.add(capability)
    return wanted or None


def plan_images(sources, table, targets, wanted, folder):
    """[Image] in the order of `sources`, each with what the first matching row of the table allows.

    targets: the capabilities nvcc knows. wanted: parse_archs(); a restricted build has no PTX,
    which would be for devices that were not asked for. An image may be left with no target.
    """
    images = []
    for source in sources:
        _, sass, ptx = next(row for row in table if fnmatch(source.stem, row[0]))
        kept = tuple(
            arch
            for arch in sass
            if number(arch) in targets and (wanted is None or number(arch) in wanted)
        )
        if wanted is not None or ptx not in targets:
            ptx = None
        images.append(Image(source, kept, ptx, folder / f"{source.stem}.fatbin"))
    return images


def build_images(toolkit, images, options, jobs, root):
    """Compile what is out of date, `jobs` files at a time. RuntimeError with nvcc's own words."""
    images = [image for image in images if image.archs]
    with ThreadPoolExecutor(max_workers=max(1, jobs)) as pool:
        list(pool.map(lambda image: _compile(toolkit, image, options, root), images))


def _compile(toolkit, image, options, root):
    beside = image.fatbin.with_suffix
    depfile, stamp, log = beside(".d"), beside(".stamp"), beside(".ptxas.log")
    targets = [f"arch=compute_{arch},code=sm_{arch}" for arch in image.sass]
    if image.ptx:
        targets.append(f"arch=compute_{image.ptx},code=compute_{image.ptx}")
    arguments = ["-fatbin", "-std=c++17", "-O3", "-Isrc", "-Icuda", "-Xptxas", "-v", *options]
    for target in targets:
        arguments += ["-gencode", target]
    # nvcc's path is left out: pip puts the wheels' nvcc into a new folder each time.
    recipe = f"nvcc {toolkit.version} {' '.join(arguments)}\n"
    if _is_current(image.fatbin, depfile, stamp, recipe, root):
        return
    stamp.unlink(missing_ok=True)
    image.fatbin.parent.mkdir(parents=True, exist_ok=True)
    # Written now, in force after success: its time is before any file that nvcc reads.
    started = beside(".started")
    started.write_text(recipe)
    source = image.source.relative_to(root)
    sys.stdout.write(f"nvcc {source} -> {image.archs}\n")  # one write: several threads do this
    sys.stdout.flush()
    outputs = ["-MD", "-MF", str(depfile), "-o", str(image.fatbin)]
    done = subprocess.run(
        [toolkit.nvcc, *arguments, *outputs, str(source)],
        cwd=root,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    log.write_text(done.stdout)
    if done.returncode:
        raise RuntimeError(
            f"nvcc could not compile {source} (exit status {done.returncode}):\n{done.stdout}\n"
            "NVFP4SPARSE_NO_CUDA=1 builds the CPU path alone."
        )
    for line in done.stdout.splitlines():
        if "warning" in line.lower():
            print(line, file=sys.stderr)
    started.replace(stamp)


def _is_current(fatbin, depfile, stamp, recipe, root):
    if not (fatbin.exists() and depfile.exists() and stamp.exists()):
        return False
    if stamp.read_text() != recipe:
        return False
    started = stamp.stat().st_mtime_ns
    return all(
        path.exists() and path.stat().st_mtime_ns < started
        for path in project_dependencies(depfile.read_text(), root)
    )


def project_dependencies(depfile_text, root):
    """The prerequisites of a make rule that lie under `root`; nvcc's version covers the others."""
    _, _, prerequisites = depfile_text.replace("\\\n", " ").partition(":")
    words = re.split(r"(?<!\\)\s+", prerequisites.strip())
    paths = ((root / word.replace("\\ ", " ")).resolve() for word in words if word)
    return [path for path in paths if path.is_relative_to(root)]


def write_embedding(images, info, folder):
    """Write image_table.c (the table that src/device.h declares) and image_bytes.S (the bytes).

    Every kernel file has its entry, in order; one without a fatbin has no data and size 0.
    Returns both paths. A file whose text is the same is left alone.
    """
    rows, declarations = [], []
    assembly = ["/* Generated by setup.py. */", "    .section .rodata"]
    for image in images:
        symbol = f"nvs_image_bytes_{image.name}"
        if not image.archs:
            rows.append(f'    {{"{image.name}", NULL, 0, ""}},')
            continue
        path = str(image.fatbin.resolve()).replace("\\", "\\\\").replace('"', '\\"')
        assembly += ["    .balign 16", f"    .globl {symbol}", f"    .hidden {symbol}"]
        assembly += [f"{symbol}:", f'    .incbin "{path}"']
        declarations.append(f"extern const unsigned char {symbol}[];")
        size = image.fatbin.stat().st_size
        rows.append(f'    {{"{image.name}", {symbol}, {size}, "{image.archs}"}},')
    assembly.append('    .section .note.GNU-stack,"",%progbits')
    count = len(rows)
    table = [
        "/* Generated by setup.py. */",
        "#include <stddef.h>",
        '#include "device.h"',
        *declarations,
        "const struct nvs_image nvs_images[] = {",
        *(rows or ["    {NULL, NULL, 0, NULL},"]),
        "};",
        f"const int nvs_image_count = {count};",
        f'const char nvs_build_info[] = "{info}";',
    ]
    written = folder / "image_table.c", folder / "image_bytes.S"
    folder.mkdir(parents=True, exist_ok=True)
    for path, lines in zip(written, (table, assembly), strict=True):
        write_if_changed(path, "\n".join(lines) + "\n")
    return written


def write_if_changed(path, text):
    """Write the file unless it holds this text already, so that its time stamp tells of changes."""
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
