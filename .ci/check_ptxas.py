# SPDX-License-Identifier: Apache-2.0
"""Read what ptxas said of every kernel; exit 1 on a spill or a serialized wgmma.

    python .ci/check_ptxas.py build/temp*/cuda

Both cost speed without a failing test. The build leaves NAME.ptxas.log and NAME.stamp (the options,
hence the targets that the log must cover) beside each fatbin.
"""

import re
import sys
from pathlib import Path

ENTRY = re.compile(r"Compiling entry function '(\S+)' for '(sm_\w+)'")
SPILL = re.compile(r"[1-9]\d* bytes spill (?:stores|loads)")
REGISTERS = re.compile(r"Used (\d+) registers")
SERIALIZED = re.compile(r"wgmma\S* .*serialized", re.IGNORECASE)


def read(log):
    """(registers by (kernel, target), complaints) of one log."""
    kernel, registers, complaints = ("?", "?"), {}, []
    for line in log.read_text().splitlines():
        if entry := ENTRY.search(line):
            kernel = entry.groups()
        elif used := REGISTERS.search(line):
            registers[kernel] = int(used.group(1))
        if SPILL.search(line):
            complaints.append(f"{log.name}: {' '.join(kernel)}: {line.strip()}")
        if SERIALIZED.search(line):
            complaints.append(f"{log.name}: {line.strip()}")
    return registers, complaints


def main(folders):
    """Check every log in the folders, print one line per kernel, return the exit status."""
    logs = sorted(log for folder in folders for log in Path(folder).glob("*.ptxas.log"))
    complaints = [] if logs else ["no *.ptxas.log: no kernel was compiled"]
    for log in logs:
        registers, found = read(log)
        complaints += found
        stamp = log.with_name(log.name.replace(".ptxas.log", ".stamp"))
        if not stamp.exists():
            complaints.append(f"{log.name}: nvcc failed")
            continue
        wanted = set(re.findall(r"code=(sm_\w+)", stamp.read_text()))
        missing = wanted - {target for _, target in registers}
        complaints += [f"{log.name}: nothing was compiled for {target}" for target in missing]
        for name in sorted({name for name, _ in registers}):
            used = ", ".join(f"{t} {r}" for (n, t), r in registers.items() if n == name)
            print(f"{name}: registers: {used}")
    for complaint in complaints:
        print(f"error: {complaint}", file=sys.stderr)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
