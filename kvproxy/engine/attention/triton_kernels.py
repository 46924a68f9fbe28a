"""Triton kernels for paged decoding: split-KV attention, as in FlashDecoding.

The first kernel computes attention over splits of each sequence's keys, for all query heads of one KV head. The second
kernel merges the splits by their log-sum-exp. Splits depend only on a sequence's length, so results do not depend on
the batch.

With `TRITON_INTERPRET=1` before the import, the kernels run on a CPU.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _split_size(length, MIN_SPLIT: tl.constexpr, MAX_SPLITS: tl.constexpr):
    return tl.cdiv(tl.cdiv(length, MAX_SPLITS), MIN_SPLIT) * MIN_SPLIT


@triton.jit
def _first_visible_key(length, KIND: tl.constexpr, WINDOW: tl.constexpr):
    if KIND == "sliding_window":
        first = tl.maximum(length - WINDOW, 0)
    elif KIND == "chunked_local":
        first = (length - 1) // WINDOW * WINDOW
    else:
        first = length * 0
    return first


# Values that change between steps must not cause a recompilation.
@triton.jit(do_not_specialize=["table_row", "num_splits"], do_not_specialize_on_alignment=["lengths"])
def split_kv_attention(
    query,  # [rows, heads, HEAD_DIM]
    keys,  # [blocks, BLOCK_SIZE, kv_heads, HEAD_DIM], values likewise
    values,
    table,  # [rows, width] int32
    lengths,  # [rows]
    partial,  # [rows, heads, num_splits, HEAD_DIM] float32: the output of each split
    logsums,  # [rows, heads, num_splits] float32: its log2-sum-exp2
    scale,  # scaling * log2(e), or scaling / softcap with a softcap
    softcap,  # softcap * log2(e), or 0
    query_row,
    query_head,
    pool_block,
    pool_slot,
    pool_head,
    table_row,
    num_splits,
    MIN_SPLIT: tl.constexpr,
    MAX_SPLITS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    PADDED_GROUP: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    TILE: tl.constexpr,
    DOT_TYPE: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    KIND: tl.constexpr,
    WINDOW: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    length = tl.load(lengths + row).to(tl.int32)
    first_key = _first_visible_key(length, KIND, WINDOW)
    size = _split_size(length - first_key, MIN_SPLIT, MAX_SPLITS)
    used = tl.cdiv(length - first_key, size)
    if tl.program_id(2) >= used:
        return

    group_heads = tl.arange(0, PADDED_GROUP)
    dims = tl.arange(0, PADDED_DIM)
    is_head = group_heads < GROUP
    is_dim = dims < HEAD_DIM
    heads = kv_head * GROUP + group_heads
    rows = tl.load(
        query + row * query_row + heads[:, None] * query_head + dims[None, :],
        mask=is_head[:, None] & is_dim[None, :],
        other=0.0,
    ).to(DOT_TYPE)

    for split in range(tl.program_id(2), used, tl.num_programs(2)):
        start = first_key + split * size
        end = tl.minimum(start + size, length)
        best = tl.full([PADDED_GROUP], float("-inf"), tl.float32)
        total = tl.zeros([PADDED_GROUP], tl.float32)
        output = tl.zeros([PADDED_GROUP, PADDED_DIM], tl.float32)
        for first in range(start, end, TILE):
            at = first + tl.arange(0, TILE)
            is_key = at < end
            block = tl.load(table + row * table_row + at // BLOCK_SIZE, mask=is_key, other=0).to(tl.int64)
            offset = block * pool_block + (at % BLOCK_SIZE) * pool_slot + kv_head * pool_head
            key = tl.load(keys + offset[None, :] + dims[:, None], mask=is_key[None, :] & is_dim[:, None], other=0.0)
            scores = tl.dot(rows, key.to(DOT_TYPE), input_precision="ieee") * scale
            if HAS_SOFTCAP:
                # tanh, which not every Triton backend supports.
                scores = softcap * (2.0 * tl.sigmoid(2.0 * scores) - 1.0)
            scores = tl.where(is_key[None, :], scores, float("-inf"))
            highest = tl.maximum(best, tl.max(scores, 1))
            weights = tl.exp2(scores - highest[:, None])
            rescale = tl.exp2(best - highest)
            value = tl.load(values + offset[:, None] + dims[None, :], mask=is_key[:, None] & is_dim[None, :], other=0.0)
            output = output * rescale[:, None] + tl.dot(
                weights.to(DOT_TYPE), value.to(DOT_TYPE), input_precision="ieee"
            )
            total = total * rescale + tl.sum(weights, 1)
            best = highest

        offset = (row * (tl.num_programs(1) * GROUP) + heads) * num_splits + split
        tl.store(
            partial + offset[:, None] * HEAD_DIM + dims[None, :],
            output / total[:, None],
            mask=is_head[:, None] & is_dim[None, :],
        )
        tl.store(logsums + offset, best + tl.log2(total), mask=is_head)


@triton.jit(do_not_specialize=["num_splits"], do_not_specialize_on_alignment=["lengths"])
def merge_splits(
    partial,
    logsums,
    lengths,
    sinks,  # [heads], read if HAS_SINKS
    output,  # [rows, heads, HEAD_DIM], contiguous
    num_splits,
    MIN_SPLIT: tl.constexpr,
    MAX_SPLITS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    KIND: tl.constexpr,
    WINDOW: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    length = tl.load(lengths + row).to(tl.int32)
    num_visible = length - _first_visible_key(length, KIND, WINDOW)
    used = tl.cdiv(num_visible, _split_size(num_visible, MIN_SPLIT, MAX_SPLITS))
    split_ids = tl.arange(0, MAX_SPLITS)
    dims = tl.arange(0, PADDED_DIM)
    is_used = split_ids < used
    is_dim = dims < HEAD_DIM

    offset = row * tl.num_programs(1) + tl.program_id(1)
    sums = tl.load(logsums + offset * num_splits + split_ids, mask=is_used, other=float("-inf"))
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
        partial + (offset * num_splits + split_ids)[:, None] * HEAD_DIM + dims[None, :],
        mask=is_used[:, None] & is_dim[None, :],
        other=0.0,
    )
    merged = tl.sum(parts * weights[:, None], 0)
    tl.store(output + offset * HEAD_DIM + dims, merged.to(output.dtype.element_ty), mask=is_dim)
