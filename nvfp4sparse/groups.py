# SPDX-License-Identifier: Apache-2.0
"""What the two bytes of a 2:4 group say, as tables.

Eight bits of E2M1 codes and four that count of the metadata: all that can be said of a group
stands in tables of 4096 entries, at group_index(vals, meta).
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from .prune import GROUP
from .quantize import E2M1_VALUES

_INDEX = np.arange(4096)
_CODES = np.stack([_INDEX & 15, (_INDEX >> 4) & 15])

# Column in the group of the first and the second kept value, and the values. [2, 4096]
POSITIONS = np.stack([(_INDEX >> 8) & 3, (_INDEX >> 10) & 3])
VALUES = E2M1_VALUES[_CODES]


def group_index(vals: NDArray[np.uint8], meta: NDArray[np.uint8]) -> NDArray[np.uint16]:
    """Return where each group stands in the tables; of vals' shape."""
    return (meta & 15).astype(np.uint16) << 8 | vals


@cache
def group_columns() -> NDArray[np.float32]:
    """Return the four columns of every group, [4096, 4]; values at equal positions add up."""
    columns = np.arange(GROUP)
    dense = np.zeros((len(_INDEX), GROUP), dtype=np.float32)
    for position, value in zip(POSITIONS, VALUES, strict=True):
        dense += np.where(position[:, None] == columns, value[:, None], np.float32(0))
    return dense


@cache
def canonical_groups() -> tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.bool_]]:
    """Return (vals, meta, exists), [4096] each: the same columns with ascending positions.

    A position held twice shares the group with a zero in the lowest free column; the group does
    not exist if the sum is no E2M1 value.
    """
    code_of = {float(value): code for code, value in enumerate(E2M1_VALUES) if code != 8}
    vals = np.zeros(len(_INDEX), dtype=np.uint8)
    meta = np.zeros(len(_INDEX), dtype=np.uint8)
    exists = np.ones(len(_INDEX), dtype=np.bool_)
    for index, columns in enumerate(group_columns().tolist()):
        held = set(POSITIONS[:, index].tolist())
        if len(held) == 1:
            held.add(min({0, 1} - held))
        first, second = sorted(held)
        meta[index] = first | second << 2
        if columns[first] in code_of and columns[second] in code_of:
            vals[index] = code_of[columns[first]] | code_of[columns[second]] << 4
        else:
            exists[index] = False
    return vals, meta, exists
