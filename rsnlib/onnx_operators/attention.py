"""Attentions and rotations: ONNX's own, and those that onnxruntime's transformer optimizer makes."""

from __future__ import annotations

import math
from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere

from .shapes import gather
from .table import MICROSOFT, Known, Tensor, need, operator


def heads_of(x: Tensor, heads: int) -> Tensor:
    """Return x, of shape (batch, seq, heads * columns), as (batch, heads, seq, columns). Raises `UnsupportedError` if
    the columns of x do not divide into `heads` heads."""
    need(heads > 0 and x.shape[-1] % heads == 0, f"{x.shape[-1]} columns in {heads} heads")
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def joined(x: Tensor) -> Tensor:
    """Return x, of shape (batch, heads, seq, columns), as (batch, seq, heads * columns)."""
    return x.transpose(1, 2).flatten(2)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    *,
    is_causal: bool = False,
    first: int | Tensor = 0,
    left: int = -1,
    right: int = -1,
    lengths: Tensor | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
) -> Tensor:
    """Return the attention of queries to keys and values, (batch, heads, seq, columns of v).

    q: (batch, heads, seq, columns). k, v: (batch, heads, keys, columns), with as many heads as q, or fewer by a whole
    factor. mask: broadcast to (batch, heads, seq, keys): bool, True for what is seen, or numbers that are added to the
    scores. is_causal: row i sees keys up to i + first. first: a number of keys, or one for each sequence, (batch,).
    left, right: row i sees that key, so many keys before it, and so many behind it; -1 for all. lengths: how many keys
    each sequence has, (batch,). scale: of the scores; None for 1 / sqrt(columns). softcap: c of c * tanh(scores / c); 0
    for none. Raises `UnsupportedError` if the heads of k do not divide those of q.
    """
    grouped = k.shape[1] != q.shape[1]
    need(not grouped or q.shape[1] % k.shape[1] == 0, f"{q.shape[1]} heads for {k.shape[1]} heads of keys")
    plain = isinstance(first, int) and not first and left < 0 and right < 0 and lengths is None and mask is None
    if is_causal and plain and not softcap:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=grouped)
    mask = both(seen(q.shape[2], k.shape[2], is_causal, first, left, right, lengths), mask)
    if not softcap:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=grouped)
    return weights(scores(q, k, scale, softcap), mask) @ repeated(v, q.shape[1])


def seen(
    rows: int, keys: int, is_causal: bool, first: int | Tensor, left: int, right: int, lengths: Tensor | None
) -> Tensor | None:
    """Return which keys each row sees, as bool that is broadcast to (batch, heads, rows, keys); None if each sees all.
    rows, keys: how many there are. Others: as for `attend`."""
    behind = first.reshape(-1, 1, 1, 1) if isinstance(first, Tensor) else first
    at = torch.arange(rows)[:, None] + behind - torch.arange(keys)
    found = [at >= 0] if is_causal else []
    found += [at <= left] if left >= 0 else []
    found += [at >= -right] if right >= 0 else []
    found += [torch.arange(keys) < lengths.reshape(-1, 1, 1, 1)] if lengths is not None else []
    return reduce(torch.logical_and, found) if found else None


def repeated(x: Tensor, heads: int) -> Tensor:
    """Return keys or values x, (batch, fewer heads, keys, columns), as (batch, heads, keys, columns): each head follows
    itself so often that there are `heads` of them. Their number in x must divide `heads`."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], 1)


def scores(q: Tensor, k: Tensor, scale: float | None, softcap: float) -> Tensor:
    """Return the products of queries and keys, (batch, heads, seq, keys), before a mask. q, k, scale, softcap: as for
    `attend`."""
    scale = scale if scale is not None else 1 / math.sqrt(q.shape[-1])
    made = q @ repeated(k, q.shape[1]).transpose(-1, -2) * scale
    return softcap * torch.tanh(made / softcap) if softcap else made


def masked(x: Tensor, mask: Tensor | None) -> Tensor:
    """Return scores x, (batch, heads, seq, keys), with a mask (`attend`) applied: -inf where a bool mask is False;
    otherwise the mask is added. None for no mask."""
    if mask is None:
        return x
    return x.masked_fill(~mask, -math.inf) if mask.dtype is torch.bool else x + mask


def weights(x: Tensor, mask: Tensor | None) -> Tensor:
    """Return the softmax of scores x, (batch, heads, seq, keys), with a mask (`attend`). Rows that see nothing have the
    weights 0."""
    made = masked(x, mask).softmax(-1)
    return made if mask is None else torch.nan_to_num(made, nan=0.0)


def both(mask: Tensor | None, other: Tensor | None) -> Tensor | None:
    """Return one mask with the effect of two; None for none. mask: bool, True for what is seen. other: the same, or
    numbers that are added to scores, which become -inf where `mask` is False. Both are broadcast to each other."""
    if mask is None or other is None:
        return other if mask is None else mask
    return mask & other if other.dtype is torch.bool else torch.where(mask, other, -math.inf)


@operator("Attention")
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    nonpad_kv_seqlen: Tensor | None = None,
    *,
    is_causal: int = 0,
    kv_num_heads: int = 0,
    left_window_size: int = -1,
    q_num_heads: int = 0,
    qk_matmul_output_mode: int = 0,
    right_window_size: int = -1,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: int | None = None,
    wanted: int = 1,
) -> Any:
    """The attention of queries to keys and values; computed in float32, whatever `softmax_precision` says.

    q: (batch, heads, seq, columns), or (batch, seq, heads * columns), which the first result is like; k and v alike.
    past_key, past_value: (batch, heads, earlier keys, columns), before k and v. attn_mask: as for `attend`; keys beyond
    its last are hidden. nonpad_kv_seqlen: keys of each sequence, (batch,). Others but wanted: as for `attend`, a window
    of keys in left_window_size and right_window_size. wanted: outputs 2 and 3 are all keys and values, 4 the scores as
    qk_matmul_output_mode says: 0 plain, 1 after softcap, 2 with the mask, 3 their softmax. Raises `UnsupportedError`
    for three axes without numbers of heads, for past_key without past_value, and as `attend` does.
    """
    is_flat = q.ndim == 3
    if is_flat:
        need(bool(q_num_heads and kv_num_heads), "tensors of three axes need q_num_heads and kv_num_heads")
        q, k, v = heads_of(q, q_num_heads), heads_of(k, kv_num_heads), heads_of(v, kv_num_heads)
    need((past_key is None) == (past_value is None), "past_key and past_value belong together")
    first: int | Tensor = 0
    if past_key is not None and past_value is not None:
        first = past_key.shape[2]
        k, v = torch.cat([past_key, k], 2), torch.cat([past_value, v], 2)
    elif nonpad_kv_seqlen is not None:
        first = nonpad_kv_seqlen - q.shape[2]
    if attn_mask is not None and attn_mask.shape[-1] < k.shape[2]:
        hidden = False if attn_mask.dtype is torch.bool else -math.inf
        attn_mask = F.pad(attn_mask, [0, k.shape[2] - attn_mask.shape[-1]], value=hidden)
    made = attend(
        q,
        k,
        v,
        attn_mask,
        is_causal=bool(is_causal),
        first=first,
        left=left_window_size,
        right=right_window_size,
        lengths=nonpad_kv_seqlen,
        scale=scale,
        softcap=softcap,
    )
    made = joined(made) if is_flat else made
    if wanted <= 3:
        return made if wanted == 1 else (made, k, v)
    told = scores(q, k, scale, softcap if qk_matmul_output_mode else 0.0)
    sees = seen(q.shape[2], k.shape[2], bool(is_causal), first, left_window_size, right_window_size, nonpad_kv_seqlen)
    mask = both(sees, attn_mask)
    if qk_matmul_output_mode == 2:
        told = masked(told, mask)
    elif qk_matmul_output_mode == 3:
        told = weights(told, mask)
    return made, k, v, told


def rotated(
    x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None, is_interleaved: bool, columns: int
) -> Tensor:
    """Return x, (batch, heads, seq, columns), with rotated columns.

    cos, sin: (positions, half), or (batch, seq, half) without `positions`. positions: integers (batch, seq).
    is_interleaved: columns 2i and 2i + 1 are a pair; otherwise i and i + half. columns: how many are rotated, the first
    ones; 0 for all.
    """
    if positions is not None:
        cos, sin = gather(cos, positions), gather(sin, positions)
    if cos.ndim == 3:
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    turned, rest = (x[..., :columns], x[..., columns:]) if columns and columns < x.shape[-1] else (x, None)
    half = turned.shape[-1] // 2
    cos, sin = cos[..., :half], sin[..., :half]
    if is_interleaved:
        one, other = turned[..., 0::2], turned[..., 1::2]
        made = torch.stack([one * cos - other * sin, other * cos + one * sin], -1).flatten(-2)
    else:
        cos, sin = torch.cat([cos, cos], -1), torch.cat([sin, sin], -1)
        made = turned * cos + torch.cat([-turned[..., half:], turned[..., :half]], -1) * sin
    return made if rest is None else torch.cat([made, rest], -1)


@operator("RotaryEmbedding")
def rotary_embedding(
    x: Tensor,
    cos_cache: Tensor,
    sin_cache: Tensor,
    position_ids: Tensor | None = None,
    *,
    interleaved: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
) -> Tensor:
    """The operand with its columns rotated; only the first ones with `rotary_embedding_dim`.

    x: (batch, heads, seq, columns), or (batch, seq, num_heads * columns), which is the shape of the result. Others: as
    for `rotated`. Raises `UnsupportedError` for three axes without num_heads, and as `heads_of` does.
    """
    is_flat = x.ndim == 3
    need(not is_flat or num_heads > 0, "a tensor of three axes needs num_heads")
    x = heads_of(x, num_heads) if is_flat else x
    made = rotated(x, cos_cache, sin_cache, position_ids, bool(interleaved), rotary_embedding_dim)
    return joined(made) if is_flat else made


# -- of onnxruntime


@operator("RotaryEmbedding", domain=MICROSOFT)
def ms_rotary_embedding(
    input: Tensor,
    position_ids: Tensor,
    cos_cache: Tensor,
    sin_cache: Tensor,
    *,
    interleaved: int = 0,
    is_packed_batching: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
    scale: float = 1.0,
) -> Tensor:
    """The operand with its first columns rotated: as many as `cos_cache` is for, or as `rotary_embedding_dim` says.

    input: (batch, heads, seq, columns), or (batch, seq, heads * columns), which is the shape of the result.
    position_ids: (batch, seq), or (1,): that of the first row. cos_cache, sin_cache: (positions, half). Raises
    `UnsupportedError` for is_packed_batching, for a scale other than 1, and as `heads_of` does.
    """
    need(not is_packed_batching and scale == 1, "is_packed_batching and scale are not supported")
    is_flat = input.ndim == 3
    columns = rotary_embedding_dim or 2 * cos_cache.shape[-1]
    x = heads_of(input, num_heads or input.shape[-1] // columns) if is_flat else input
    positions = position_ids
    if position_ids.numel() == 1 and position_ids.ndim == 1:  # of the first row
        positions = (position_ids + torch.arange(x.shape[2])).unsqueeze(0)
    made = rotated(x, cos_cache, sin_cache, positions, bool(interleaved), columns)
    return joined(made) if is_flat else made


def padding_mask(mask: Tensor, rows: int, keys: int) -> Tensor:
    """Return which of `keys` keys a mask of onnxruntime shows: bool, to be broadcast to (batch, heads, rows, keys).
    mask: (batch,), how many keys each sequence has; or (batch, keys) or (batch, rows, keys), where 0 hides. Raises
    `UnsupportedError` for other shapes with three axes, and for more axes."""
    if mask.ndim == 1:  # lengths
        return (torch.arange(keys) < mask[:, None])[:, None, None]
    if mask.ndim == 2:
        return (mask != 0)[:, None, None]
    need(mask.ndim == 3 and mask.shape[1:] == (rows, keys), f"a mask of shape {tuple(mask.shape)}")
    return (mask != 0)[:, None]


@operator("Attention", domain=MICROSOFT)
def ms_attention(
    input: Tensor,
    weights: Tensor,
    bias: Tensor | None = None,
    mask_index: Tensor | None = None,
    past: Tensor | None = None,
    attention_bias: Tensor | None = None,
    *,
    do_rotary: int = 0,
    mask_filter_value: float = -10000.0,
    num_heads: int,
    qkv_hidden_sizes: list[int] | None = None,
    scale: float = 0.0,
    unidirectional: int = 0,
    wanted: int = 1,
) -> Any:
    """Projections and their attention, without a rotation. What a mask hides has the weight 0, whatever
    `mask_filter_value` says.

    input: (batch, seq, hidden). weights: (hidden, columns of queries, keys and values), whose sizes are
    qkv_hidden_sizes, or thirds. bias: one for each of these columns. mask_index: as for `padding_mask`. past: (2,
    batch, heads, earlier keys, columns). attention_bias: is added to (batch, heads, seq, keys). scale: 0 for 1 /
    sqrt(columns). unidirectional: row i sees keys up to its own. Returns (batch, seq, num_heads * columns); if
    `wanted`, the number of outputs, is above 1, also keys and values, stacked as `past`. Raises `UnsupportedError` for
    do_rotary, and as `heads_of` and `padding_mask` do.
    """
    need(not do_rotary, "do_rotary is not supported")
    sizes = qkv_hidden_sizes or [weights.shape[-1] // 3] * 3
    parts = (input @ weights if bias is None else input @ weights + bias).split(sizes, -1)
    q, k, v = (heads_of(x, num_heads) for x in parts)
    first = 0
    if past is not None:
        first = past.shape[3]
        k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
    mask = None if mask_index is None else padding_mask(mask_index, q.shape[2], k.shape[2])
    made = attend(q, k, v, both(mask, attention_bias), is_causal=bool(unidirectional), first=first, scale=scale or None)
    return joined(made) if wanted == 1 else (joined(made), torch.stack([k, v]))


@operator("MultiHeadAttention", domain=MICROSOFT)
def multi_head_attention(
    query: Tensor,
    key: Tensor | None = None,
    value: Tensor | None = None,
    bias: Tensor | None = None,
    key_padding_mask: Tensor | None = None,
    attention_bias: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    *,
    mask_filter_value: float = -10000.0,
    num_heads: int,
    scale: float = 0.0,
    unidirectional: int = 0,
    wanted: int = 1,
) -> Any:
    """The attention of queries, keys and values that are given apart. What a mask hides has the weight 0, whatever
    `mask_filter_value` says.

    query: (batch, seq, num_heads * columns). key, value: the same with keys in place of seq, or (batch, heads, keys,
    columns). bias: the columns of all three in one axis. key_padding_mask: as for `padding_mask`. past_key, past_value:
    (batch, heads, earlier keys, columns); read only if both are given. attention_bias: is added to (batch, heads, seq,
    keys). scale: 0 for 1 / sqrt(columns). unidirectional: row i sees keys up to its own. Returns the shape of query,
    with the columns of values; if `wanted`, the number of outputs, is above 1, also keys and values in heads. Raises
    `UnsupportedError` for operands in one tensor, for a bias of keys in heads, and as `heads_of` and `padding_mask` do.
    """
    need(query.ndim == 3 and key is not None and value is not None, "queries, keys and values in one tensor")
    assert key is not None
    assert value is not None
    if bias is not None:
        need(key.ndim == 3, "a bias of keys that are in heads already")
        b = bias.split([query.shape[-1], key.shape[-1], value.shape[-1]])
        query, key, value = query + b[0], key + b[1], value + b[2]
    q = heads_of(query, num_heads)
    k, v = (x if x.ndim == 4 else heads_of(x, num_heads) for x in (key, value))
    first = 0
    if past_key is not None and past_value is not None:
        first = past_key.shape[2]
        k, v = torch.cat([past_key, k], 2), torch.cat([past_value, v], 2)
    mask = None if key_padding_mask is None else padding_mask(key_padding_mask, q.shape[2], k.shape[2])
    made = attend(q, k, v, both(mask, attention_bias), is_causal=bool(unidirectional), first=first, scale=scale or None)
    return joined(made) if wanted == 1 else (joined(made), k, v)


@operator("GroupQueryAttention", domain=MICROSOFT)
def group_query_attention(
    query: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    past_key: Tensor | None,
    past_value: Tensor | None,
    seqlens_k: Tensor,
    total_sequence_length: Known,
    cos_cache: Tensor | None = None,
    sin_cache: Tensor | None = None,
    position_ids: Tensor | None = None,
    attention_bias: Tensor | None = None,
    *,
    do_rotary: int = 0,
    kv_num_heads: int,
    local_window_size: int = -1,
    num_heads: int,
    rotary_interleaved: int = 0,
    scale: float = 0.0,
    smooth_softmax: int = 0,
    softcap: float = 0.0,
    wanted: int = 1,
) -> Any:
    """The causal attention of a whole prompt: without rows in its cache. `seqlens_k` tells which keys count.

    query: (batch, seq, num_heads * columns), or without key or value all three, side by side. key, value: (batch, seq,
    kv_num_heads * columns). seqlens_k: (batch,), keys less 1. cos_cache, sin_cache, position_ids, rotary_interleaved:
    as for `rotated`; read with do_rotary. local_window_size: how many keys up to its own a row sees; -1 for all.
    attention_bias: is added to (batch, heads, seq, seq). scale: 0 for 1 / sqrt(columns). softcap: as for `attend`.
    total_sequence_length: not read. wanted: the number of outputs. Returns (batch, seq, num_heads * columns); with more
    outputs than one also keys and values in heads. Raises `UnsupportedError` for smooth_softmax, a cache that has rows,
    a rotation without its tables, and as `heads_of` and `attend` do.
    """
    need(not smooth_softmax, "smooth_softmax is not supported")
    need(past_key is None or past_key.shape[2] == 0, "a cache that has rows")
    if key is None or value is None:  # all in one
        columns = query.shape[-1] // (num_heads + 2 * kv_num_heads)
        query, key, value = query.split([num_heads * columns, *[kv_num_heads * columns] * 2], -1)
    q, k, v = heads_of(query, num_heads), heads_of(key, kv_num_heads), heads_of(value, kv_num_heads)
    rows = q.shape[2]
    if do_rotary:
        need(cos_cache is not None and sin_cache is not None, "a rotation without cos_cache and sin_cache")
        assert cos_cache is not None
        assert sin_cache is not None
        at = torch.arange(rows)[None] if position_ids is None else position_ids
        turn = bool(rotary_interleaved)
        q, k = (rotated(x, cos_cache, sin_cache, at, turn, 2 * cos_cache.shape[-1]) for x in (q, k))
    made = attend(
        q,
        k,
        v,
        attention_bias,
        is_causal=True,
        lengths=seqlens_k + 1,
        left=local_window_size - 1 if local_window_size > 0 else -1,
        scale=scale or None,
        softcap=softcap,
    )
    return joined(made) if wanted == 1 else (joined(made), k, v)
