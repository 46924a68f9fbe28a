"""Triton kernels for paged decoding: one query a sequence over its blocks, split along the keys and merged.

Every program of the first kernel takes one sequence, one key head with all query heads that share it, and every so many
stretches of the keys; the second kernel merges the stretches by their log-sum-exp. How a sequence is cut depends on its own
length alone, so its result depends neither on the rest of the batch, nor on how many programs share its stretches, nor on
whether the launch was captured for longer ones.

The same source runs on a CPU under `TRITON_INTERPRET=1`, set before this file is imported.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _stretch(length, SPLIT: tl.constexpr, MOST: tl.constexpr):
    """Keys in each stretch of so many: as few as `MOST` stretches allow."""
    return tl.cdiv(tl.cdiv(length, MOST), SPLIT) * SPLIT


@triton.jit
def _first_seen(length, KIND: tl.constexpr, REACH: tl.constexpr):
    """The first key that the last token of a sequence attends to (see `LayerGroup.first_seen`)."""
    if KIND == "sliding_window":
        first = tl.maximum(length - REACH, 0)
    elif KIND == "chunked_local":
        first = (length - 1) // REACH * REACH
    else:
        first = length * 0
    return first


# What differs from step to step must not have the kernels compiled again.
@triton.jit(do_not_specialize=["table_row", "stretches"], do_not_specialize_on_alignment=["lengths"])
def split_kv_attention(
    query,  # [rows, heads, HEAD_DIM]
    keys,  # [blocks, BLOCK_SIZE, kv_heads, HEAD_DIM], values likewise
    values,
    table,  # [rows, width] int32
    lengths,  # [rows]
    partial,  # [rows, heads, stretches, HEAD_DIM] float32: the output of each stretch
    logsums,  # [rows, heads, stretches] float32: its log2-sum-exp2
    scale,  # of the scores, times log2(e); of capped ones, divided by the cap
    cap,  # times log2(e), where scores are capped
    query_row,
    query_head,
    pool_block,
    pool_slot,
    pool_head,
    table_row,
    stretches,
    SPLIT: tl.constexpr,
    MOST: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    PADDED_GROUP: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    TILE: tl.constexpr,
    PRODUCT: tl.constexpr,
    CAPPED: tl.constexpr,
    KIND: tl.constexpr,
    REACH: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    length = tl.load(lengths + row).to(tl.int32)
    origin = _first_seen(length, KIND, REACH)
    size = _stretch(length - origin, SPLIT, MOST)
    used = tl.cdiv(length - origin, size)
    if tl.program_id(2) >= used:
        return

    members = tl.arange(0, PADDED_GROUP)
    dims = tl.arange(0, PADDED_DIM)
    is_member = members < GROUP
    is_dim = dims < HEAD_DIM
    heads = kv_head * GROUP + members
    rows = tl.load(
        query + row * query_row + heads[:, None] * query_head + dims[None, :],
        mask=is_member[:, None] & is_dim[None, :],
        other=0.0,
    ).to(PRODUCT)

    for stretch in range(tl.program_id(2), used, tl.num_programs(2)):
        start = origin + stretch * size
        end = tl.minimum(start + size, length)
        best = tl.full([PADDED_GROUP], float("-inf"), tl.float32)
        total = tl.zeros([PADDED_GROUP], tl.float32)
        output = tl.zeros([PADDED_GROUP, PADDED_DIM], tl.float32)
        for first in range(start, end, TILE):
            at = first + tl.arange(0, TILE)
            is_key = at < end
            block = tl.load(table + row * table_row + at // BLOCK_SIZE, mask=is_key, other=0).to(tl.int64)
            place = block * pool_block + (at % BLOCK_SIZE) * pool_slot + kv_head * pool_head
            key = tl.load(keys + place[None, :] + dims[:, None], mask=is_key[None, :] & is_dim[:, None], other=0.0)
            scores = tl.dot(rows, key.to(PRODUCT), input_precision="ieee") * scale
            if CAPPED:
                # tanh, which Triton has not on every backend.
                scores = cap * (2.0 * tl.sigmoid(2.0 * scores) - 1.0)
            scores = tl.where(is_key[None, :], scores, float("-inf"))
            highest = tl.maximum(best, tl.max(scores, 1))
            weights = tl.exp2(scores - highest[:, None])
            fade = tl.exp2(best - highest)
            value = tl.load(values + place[:, None] + dims[None, :], mask=is_key[:, None] & is_dim[None, :], other=0.0)
            output = output * fade[:, None] + tl.dot(weights.to(PRODUCT), value.to(PRODUCT), input_precision="ieee")
            total = total * fade + tl.sum(weights, 1)
            best = highest

        place = (row * (tl.num_programs(1) * GROUP) + heads) * stretches + stretch
        tl.store(
            partial + place[:, None] * HEAD_DIM + dims[None, :],
            output / total[:, None],
            mask=is_member[:, None] & is_dim[None, :],
        )
        tl.store(logsums + place, best + tl.log2(total), mask=is_member)


@triton.jit(do_not_specialize=["stretches"], do_not_specialize_on_alignment=["lengths"])
def merge_splits(
    partial,
    logsums,
    lengths,
    sinks,  # [heads], read where there are any
    output,  # [rows, heads, HEAD_DIM], contiguous
    stretches,
    SPLIT: tl.constexpr,
    MOST: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    KIND: tl.constexpr,
    REACH: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    length = tl.load(lengths + row).to(tl.int32)
    seen = length - _first_seen(length, KIND, REACH)
    used = tl.cdiv(seen, _stretch(seen, SPLIT, MOST))
    which = tl.arange(0, MOST)
    dims = tl.arange(0, PADDED_DIM)
    is_used = which < used
    is_dim = dims < HEAD_DIM

    place = row * tl.num_programs(1) + tl.program_id(1)
    sums = tl.load(logsums + place * stretches + which, mask=is_used, other=float("-inf"))
    highest = tl.max(sums, 0)
    if HAS_SINKS:
        sink = tl.load(sinks + tl.program_id(1)).to(tl.float32) * LOG2E
        highest = tl.maximum(highest, sink)
    weights = tl.exp2(sums - highest)
    total = tl.sum(weights, 0)
    if HAS_SINKS:
        total += tl.exp2(sink - highest)
    weights = weights / total
    parts = tl.load(
        partial + (place * stretches + which)[:, None] * HEAD_DIM + dims[None, :],
        mask=is_used[:, None] & is_dim[None, :],
        other=0.0,
    )
    merged = tl.sum(parts * weights[:, None], 0)
    tl.store(output + place * HEAD_DIM + dims, merged.to(output.dtype.element_ty), mask=is_dim)
