"""The Triton source of ``tree_kernel``; importing it needs ``triton``."""

# Sizes are upper-case, as Triton's own kernels write them. Annotations are compiled along with the
# rest, so arguments have none but Triton's.
# ruff: noqa: N803

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]  # triton has no types
def addresses_of(  # type: ignore[no-untyped-def]  # as above
    key, is_key, table, kv_head, BLOCK_SIZE: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr
):
    """Return where the key rows of one head lie  # [KEYS, DIM]."""
    block = tl.load(table + key // BLOCK_SIZE, mask=is_key, other=0)
    slot = block * BLOCK_SIZE + key % BLOCK_SIZE
    return (slot * KV_HEADS + kv_head)[:, None] * DIM + tl.arange(0, DIM)[None, :]


@triton.jit  # type: ignore[untyped-decorator]  # triton has no types
def sight_of(  # type: ignore[no-untyped-def]  # as above
    key, is_key, context, seen_drafts, query_position, span_positions, WINDOW: tl.constexpr
):
    """Return which keys the queries see: context, ancestors, themselves  # [QUERIES, KEYS]."""
    is_context = key < context
    # Keys behind the last one are no rows: shifting by 64 or more would be undefined.
    draft = tl.where(is_key & (key >= context), key - context, 0)
    is_seen = is_context[None, :] | (((seen_drafts[:, None] >> draft[None, :]) & 1) == 1)
    is_seen = is_seen & is_key[None, :]
    if WINDOW > 0:
        of_draft = tl.load(span_positions + draft, mask=is_key & (key >= context), other=0)
        key_position = tl.where(is_context, key, of_draft)
        is_seen = is_seen & ((query_position[:, None] - key_position[None, :]) < WINDOW)
    return is_seen


@triton.jit  # type: ignore[untyped-decorator]  # triton has no types
def keys_of(  # type: ignore[no-untyped-def]  # as above
    split, context, num_keys, WINDOW: tl.constexpr, SPLITS: tl.constexpr, KEYS: tl.constexpr
):
    """Return the first key of a share and the one behind its last."""
    # No row stands before the end of the context, so none sees further back than this.
    oldest = tl.maximum(context - WINDOW + 1, 0) if WINDOW > 0 else 0
    share = tl.cdiv(tl.cdiv(num_keys - oldest, SPLITS), KEYS) * KEYS
    start = oldest + split * share
    return start, tl.minimum(start + share, num_keys)


@triton.jit
def capped(scores, softcap):  # type: ignore[no-untyped-def]  # as above
    """Return ``softcap * tanh(scores / softcap)``; not every backend has tanh."""
    return softcap * (2.0 / (1.0 + tl.exp(-2.0 * scores / softcap)) - 1.0)


# fmt: off
@triton.jit  # type: ignore[untyped-decorator]  # triton has no types
def attend_partially(  # type: ignore[no-untyped-def]  # noqa: PLR0915 a kernel is one function
    queries, keys, values, positions, ancestors,
    tile_span, tile_first, tile_rows, span_context, span_first_row, block_tables,
    part_outputs, part_maxima, part_sums, scaling, softcap, table_stride,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr,
    QUERIES: tl.constexpr, SPLITS: tl.constexpr, BLOCK_SIZE: tl.constexpr, KEYS: tl.constexpr,
    WINDOW: tl.constexpr, HAS_SOFTCAP: tl.constexpr,
):
    # fmt: on
    """Attend the rows of one tile to one share of their keys."""
    tile, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    num_rows = tl.load(tile_rows + tile)
    if num_rows == 0:
        return
    span, first = tl.load(tile_span + tile), tl.load(tile_first + tile)
    context, base = tl.load(span_context + span), tl.load(span_first_row + span)
    index = tl.arange(0, QUERIES)
    is_row = index // GROUP < num_rows
    batch_row = base + first + index // GROUP
    place = (batch_row * HEADS + kv_head * GROUP + index % GROUP)[:, None] * DIM
    query = tl.load(queries + place + tl.arange(0, DIM)[None, :], mask=is_row[:, None], other=0.0)
    seen_drafts = tl.load(ancestors + batch_row, mask=is_row, other=0)
    query_position = tl.load(positions + batch_row, mask=is_row, other=0)

    num_keys = context + first + num_rows
    start, stop = keys_of(split, context, num_keys, WINDOW, SPLITS, KEYS)
    maximum = tl.full([QUERIES], float("-inf"), tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    mixed = tl.zeros([QUERIES, DIM], tl.float32)
    for offset in range(start, stop, KEYS):
        key = offset + tl.arange(0, KEYS)
        is_key = key < stop
        table = block_tables + span * table_stride
        address = addresses_of(key, is_key, table, kv_head, BLOCK_SIZE, KV_HEADS, DIM)
        key_rows = tl.load(keys + address, mask=is_key[:, None], other=0.0)
        # float32 stays float32 here; half precision is not affected.
        scores = tl.dot(query, tl.trans(key_rows), input_precision="ieee").to(tl.float32) * scaling
        if HAS_SOFTCAP:
            scores = capped(scores, softcap)
        is_seen = sight_of(
            key, is_key, context, seen_drafts, query_position, positions + base, WINDOW
        )
        scores = tl.where(is_seen & is_row[:, None], scores, float("-inf"))
        largest = tl.maximum(maximum, tl.max(scores, 1))
        # A row that has seen nothing yet must not turn -inf - -inf into a number.
        level = tl.where(largest == float("-inf"), 0.0, largest)
        weights = tl.exp(scores - level[:, None])
        rescale = tl.exp(maximum - level)
        value_rows = tl.load(values + address, mask=is_key[:, None], other=0.0)
        mixing = weights.to(value_rows.dtype)
        gained = tl.dot(mixing, value_rows, input_precision="ieee").to(tl.float32)
        mixed = mixed * rescale[:, None] + gained
        total = total * rescale + tl.sum(weights, 1)
        maximum = largest
    part = ((tile * KV_HEADS + kv_head) * SPLITS + split) * QUERIES + index
    tl.store(part_maxima + part, maximum)
    tl.store(part_sums + part, total)
    tl.store(part_outputs + part[:, None] * DIM + tl.arange(0, DIM)[None, :], mixed)


# fmt: off
@triton.jit  # type: ignore[untyped-decorator]  # triton has no types
def merge_shares(  # type: ignore[no-untyped-def]  # as above
    part_outputs, part_maxima, part_sums, tile_span, tile_first, tile_rows, span_first_row, out,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr,
    QUERIES: tl.constexpr, SPLITS: tl.constexpr,
):
    # fmt: on
    """Join the shares of one tile and key head."""
    tile, kv_head = tl.program_id(0), tl.program_id(1)
    num_rows = tl.load(tile_rows + tile)
    if num_rows == 0:
        return
    index, dim = tl.arange(0, QUERIES), tl.arange(0, DIM)
    first_part = (tile * KV_HEADS + kv_head) * SPLITS * QUERIES + index
    maximum = tl.full([QUERIES], float("-inf"), tl.float32)
    for split in range(SPLITS):
        maximum = tl.maximum(maximum, tl.load(part_maxima + first_part + split * QUERIES))
    level = tl.where(maximum == float("-inf"), 0.0, maximum)
    total = tl.zeros([QUERIES], tl.float32)
    mixed = tl.zeros([QUERIES, DIM], tl.float32)
    for split in range(SPLITS):
        part = first_part + split * QUERIES
        weight = tl.exp(tl.load(part_maxima + part) - level)
        total += weight * tl.load(part_sums + part)
        mixed += weight[:, None] * tl.load(part_outputs + part[:, None] * DIM + dim[None, :])
    base = tl.load(span_first_row + tl.load(tile_span + tile)) + tl.load(tile_first + tile)
    batch_row = base + index // GROUP
    place = (batch_row * HEADS + kv_head * GROUP + index % GROUP)[:, None] * DIM
    mixed = mixed / tl.where(total == 0.0, 1.0, total)[:, None]
    is_row = index // GROUP < num_rows
    tl.store(out + place + dim[None, :], mixed.to(out.dtype.element_ty), mask=is_row[:, None])
