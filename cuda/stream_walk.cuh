/* SPDX-License-Identifier: Apache-2.0
 *
 * For gemm_sm90_stream.cu: which tiles and which slabs of K a warp takes, and when.
 */
#pragma once

#include "gemm_args.h"
#include "warp_slab.cuh"

static constexpr int WARPS = 8, THREADS = 32 * WARPS;
static constexpr int TILE_M = 16;
template <int TEAMS>
static constexpr int TEAM_WARPS = WARPS / TEAMS;

/* The order in which a warp goes through its slabs of A: groups of tiles, in a group its slabs of
 * K, for each of these its team's tiles. */
struct walk {
    uint32_t tiles, slabs;      /* of all */
    uint32_t tile_step;         /* from a tile of this team to its next */
    uint32_t stride;            /* from a group of this block to the next */
    uint32_t first, slab_step;  /* the warp's first slab, from there to its next */
    uint32_t first_tile;        /* the team's, from a group's first */
    uint32_t group, slab, tile; /* group: its first tile */
};

/* The block's tiles in a group are GROUP, which TEAMS of warps take in turn; SLABS of K at a time. */
template <int SLABS, int GROUP, int TEAMS>
NVS_DEVICE walk
start_walk(const nvs_gemm_args &args)
{
    const uint32_t warp = threadIdx.x / 32;
    walk at;
    at.tiles = ((uint32_t)args.m + TILE_M - 1) / TILE_M;
    at.slabs = (uint32_t)args.k / SLAB_K;
    at.tile_step = TEAMS * gridDim.x;
    at.stride = GROUP * gridDim.x;
    at.first = at.slab = warp % TEAM_WARPS<TEAMS> * SLABS;
    at.slab_step = TEAM_WARPS<TEAMS> * SLABS;
    at.first_tile = warp / TEAM_WARPS<TEAMS> * gridDim.x;
    at.group = blockIdx.x;
    at.tile = at.group + at.first_tile;
    return at;
}

NVS_DEVICE void
advance(walk &at)
{
    at.tile += at.tile_step;
    if (at.tile < at.tiles && at.tile < at.group + at.stride)
        return;
    at.slab += at.slab_step;
    if (at.slab >= at.slabs) {
        at.slab = at.first;
        at.group += at.stride;
    }
    at.tile = at.group + at.first_tile;
}
