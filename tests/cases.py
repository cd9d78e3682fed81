# SPDX-License-Identifier: Apache-2.0
"""Operands and shapes for the tests of the product. NumPy alone; nothing from the package."""

import numpy as np

# Each shape (m, n, k) is here for a mechanism: whole tiles, every kind of tail, one of each
# extent, few and many steps of K. Small enough for a float64 oracle in milliseconds.
SHAPES = {
    "one-block": (1, 1, 16),
    "one-row": (1, 128, 256),
    "one-column": (128, 1, 256),
    "one-step": (16, 8, 32),
    "odd-k-blocks": (16, 8, 48),
    "k-tail": (64, 64, 208),
    "odd-everything": (33, 37, 80),
    "just-under-tiles": (63, 127, 240),
    "just-over-tiles": (65, 129, 272),
    "tall": (515, 3, 128),
    "wide": (3, 515, 128),
    "exact-tiles": (64, 128, 512),
    "two-tiles": (128, 256, 256),
    "many-rows": (300, 130, 64),
    "rows-of-several-walks": (10007, 3, 256),
    "columns-of-several-walks": (3, 10007, 256),
    "few-rows-of-uneven-shares": (11, 70, 2816),
    "walk-of-uneven-shares": (70, 11, 2816),
    "walk-of-uneven-shares-of-19": (70, 5, 4864),
    "few-columns": (300, 7, 1280),
    "few-columns-in-two-waves": (2130, 13, 512),
    "k-segments": (40, 40, 192),
    "k-under-half-a-stage": (5, 37, 768),
    "k-half-a-stage": (13, 20, 1024),
    "k-over-half-a-stage": (27, 43, 1280),
    "k-just-under-stage": (16, 40, 1984),
    "k-just-over-stage": (64, 96, 2112),
    "few-rows-k-just-over-stage": (8, 16, 2112),
    "two-stages-and-a-superslab": (70, 40, 2304),
    "row-tiles-of-two-and-a-superslab": (300, 100, 2304),
    "row-tiles-of-two-and-half-a-stage": (257, 65, 2560),
    "row-tiles-of-two-and-two-stages-more": (129, 100, 4352),
    "row-tiles-of-six-and-19-superslabs": (330, 70, 4864),
    "two-stages-and-one": (64, 64, 3072),
    "two-stages-of-two-and-a-superslab": (130, 66, 4352),
    "four-stages-of-two": (65, 98, 8192),
    "a-stage-more-than-slots": (33, 37, 8448),
    "twice-round-the-ring": (19, 35, 17408),
    "three-stages": (31, 33, 6144),
    "deep": (16, 48, 2048),
    "deeper": (9, 24, 4096),
    "deep-odd": (17, 23, 6160),
    "few-rows-of-a-round-and-a-quarter": (13, 67, 2560),
    "few-rows-of-not-quite-three-rounds": (7, 37, 5632),
    "few-rows-of-four-rounds": (8, 20, 8192),
    "few-rows-in-wide-tiles": (6, 75, 3584),
    "few-columns-of-not-quite-a-round": (130, 7, 3584),
    "few-columns-of-more-than-a-round": (70, 11, 6656),
    "few-columns-of-two-rounds": (40, 5, 8192),
    "serving": (64, 256, 2048),
}

# Metadata low nibbles with two ascending, distinct positions: 0 1, 0 2, 0 3, 1 2, 1 3, 2 3.
VALID_META = np.array([0x4, 0x8, 0xC, 0x9, 0xD, 0xE], dtype=np.uint8)

_SCALES = {
    "any": (0x00, 0x7E),  # every number, zero and subnormals included
    "ordinary": (0x30, 0x47),  # 0.5 to 3.75: no block drowns another
}


def random_scales(rng, shape, scales="any", nan=False):
    """UE4M3 bytes; bit 7 is set at random, as it counts for nothing. nan=True: 1 in 64 is NaN."""
    low, high = _SCALES[scales]
    codes = rng.integers(low, high + 1, shape, dtype=np.uint8)
    if nan:
        codes[rng.random(shape) < 1 / 64] = 0x7F
    return codes | (rng.integers(0, 2, shape, dtype=np.uint8) << 7)


def random_operands(rng, m, n, k, *, meta="any256", scales="any", nan=False):
    """The five uint8 arrays of a call, in its order, every byte drawn at random.

    meta="any256" draws all metadata bytes (positions in any order, equal ones, upper bits set),
    meta="valid" ascending, distinct positions. scales: see random_scales().
    """
    a_vals = rng.integers(0, 256, (m, k // 4), dtype=np.uint8)
    if meta == "any256":
        a_meta = rng.integers(0, 256, (m, k // 4), dtype=np.uint8)
    else:
        a_meta = rng.choice(VALID_META, (m, k // 4))
    b_fp4 = rng.integers(0, 256, (n, k // 2), dtype=np.uint8)
    return (
        a_vals,
        a_meta,
        random_scales(rng, (m, k // 16), scales, nan),
        b_fp4,
        random_scales(rng, (n, k // 16), scales, nan),
    )


def zero_operands(m, n, k):
    """All values +0 at positions 0 and 1, all scales 1: for tests that set single bytes."""
    return (
        np.zeros((m, k // 4), dtype=np.uint8),
        np.full((m, k // 4), 0x4, dtype=np.uint8),
        np.full((m, k // 16), 0x38, dtype=np.uint8),
        np.zeros((n, k // 2), dtype=np.uint8),
        np.full((n, k // 16), 0x38, dtype=np.uint8),
    )
