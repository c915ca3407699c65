"""What a circuit must have for a layer, if models are bound product by product."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..base.errors import UnsupportedError
from ..isa.overlay import Overlay
from ..machine.description import Where
from .circuits import Circuit
from .graph import AttentionLayer, Gemm
from .memory import Columns
from .refusal import others, require
from .strips import transposer


def require_gemm(c: Circuit, gemm: Gemm, x: Columns, y: Columns, residual: Columns | None, overlay: Overlay) -> None:
    """Raise `UnsupportedError` if a circuit cannot compute a product. x, y, residual: the column layouts of its
    operand, its result and its residual (None for none)."""
    refuse_extensions(gemm, overlay)
    if gemm.multiplies:
        _require_sum(c, gemm.place, x.end, overlay)
    if residual is not None and residual != y:
        raise UnsupportedError(
            f"{gemm.place}: its residual lies in {residual.groups} heads of {residual.pitch} columns, its result in "
            f"{y.groups} of {y.pitch}"
        )
    scale = gemm.residual_scale
    if gemm.multiplies and np.any(gemm.bias):
        _require_operand(c, gemm.place, "bias", "bias", overlay)
    if scale is not None and np.any(scale != 1):
        _require_operand(c, gemm.place, "scale of its residual", "scale", overlay)
    if residual is not None:
        _require_operand(c, gemm.place, "residual", "residual", overlay)
    if gemm.activation is not None:
        width = min(c.strip * c.tile.columns, y.stored)
        op = gemm.activation.value
        _require_at(c, gemm.place, f"activation {op}", op, Where.STORE, overlay, columns=width)
    if gemm.norm is not None:
        op, what = ("rmsnorm", "RMSNorm") if gemm.norm.rms else ("layernorm", "LayerNorm")
        what = f"{what} over {y.count} columns"
        _require_at(c, gemm.place, what, op, Where.STORE, overlay, columns=y.count, eps=gemm.norm.eps)
        if not y.is_plain:
            raise UnsupportedError(f"{gemm.place}: {what} in front of attention heads with padding between them")
        _require_strip(c, gemm.place, what, y.stored, overlay)


def refuse_extensions(gemm: Gemm, overlay: Overlay) -> None:
    """Raise `UnsupportedError` for a layer with what only overlays with patterns bind: gates, norms of heads or
    operands, rotations, and sums of two activations."""
    norms = gemm.x_norm is not None or gemm.residual_norm is not None
    for needed, what, op in (
        (gemm.gated, "a product times its activated gate", "gate"),
        (gemm.in_heads and gemm.norm is not None, "a norm of each head", "head_norm"),
        (gemm.rotary is not None, "a rotation of heads", "rotate"),
        (norms, "a norm of an operand", "normalise"),
        (gemm.is_sum, "a sum of two activations without a product", "residual"),
    ):
        if needed:
            raise UnsupportedError(
                f"{gemm.place}: {what}; overlay {overlay.name} has no patterns, and products alone cannot do that"
                + (others(op) if op != "residual" else "")
            )


def require_scores(c: Circuit, att: AttentionLayer, rows: Sequence[int], grain: int, overlay: Overlay) -> None:
    """Raise `UnsupportedError` if a circuit cannot compute the scores of an attention. rows: number of rows of each
    sequence. grain: rows are padded to a multiple of this many."""
    _require_right(c, att, overlay)
    assert c.right is not None
    for what, asked in {
        "padding before its rows": att.left,
        "a window of keys": att.window is not None,
        "a soft cap on its scores": att.softcap is not None,
        "a mask that is an input": att.mask is not None,
    }.items():
        if asked:
            raise UnsupportedError(
                f"{att.place}: attention with {what}; overlay {overlay.name} has no patterns, and product by product "
                "only lengths, causal masks and constant biases are bound; compile for an overlay with an attention "
                "pipeline"
            )
    if transposer(c.right) is None:
        raise UnsupportedError(
            f"{att.place}: the product with its keys; {c.right.units[0].name} and the memories on its way to "
            f"{c.product.name} lack capability transpose at load{others('transpose')}"
        )
    _require_sum(c, att.place, att.head_dim, overlay)
    most = max(rows)
    what = f"attention over {most} rows"
    _require_at(c, att.place, what, "softmax", Where.RECEIVE, overlay, columns=most)
    _require_strip(c, att.place, what, -(-most // grain) * grain, overlay)
    broken = next((n for n in rows if n % grain), None)
    if att.masked:
        _require_at(c, att.place, "attention with a mask", "mask", Where.RECEIVE, overlay)
    if broken is not None:
        what = f"attention over {broken} rows, no multiple of {grain}"
        _require_at(c, att.place, what, "mask", Where.RECEIVE, overlay)
    if att.causal:
        _require_at(c, att.place, "causal attention", "causal_mask", Where.RECEIVE, overlay)
    if att.bias is not None:
        _require_operand(c, att.place, "bias of its scores", "residual", overlay)


def require_values(c: Circuit, att: AttentionLayer, keys: int, overlay: Overlay) -> None:
    """Raise `UnsupportedError` if a circuit cannot multiply the scores of an attention with its values. keys: number of
    keys of a sequence, padding included."""
    _require_right(c, att, overlay)
    _require_sum(c, att.place, keys, overlay)


def _require_right(c: Circuit, att: AttentionLayer, overlay: Overlay) -> None:
    if c.right is None:
        raise UnsupportedError(
            f"{att.place}: attention multiplies two activations; on overlay {overlay.name} {c.left.units[0].name}, "
            f"which holds them, reaches no stream with label right into {c.product.name}"
        )


def _require_sum(c: Circuit, place: str, depth: int, overlay: Overlay) -> None:
    """Require that the product unit or the receiver adds up products over `depth` columns of K."""
    tiles = -(-depth // c.tile.depth)
    if tiles == 1 or c.applies("sum", Where.RECEIVE) is not None or (c.sums and tiles <= c.most("depth")):
        return
    most = c.tile.depth * (c.most("depth") if c.sums else 1)
    raise UnsupportedError(
        f"{place}: a product over {depth} columns; {c.product.name} of overlay {overlay.name} adds up {most} at most, "
        f"and {c.receiver.name} lacks capability sum{others('sum')}"
    )


def _require_operand(c: Circuit, place: str, what: str, op: str, overlay: Overlay) -> None:
    _require_at(c, place, what, op, Where.RECEIVE, overlay)
    if op not in c.added:
        raise UnsupportedError(f"{place}: {what}; no stream carries it to {c.receiver.name} of overlay {overlay.name}")


def _require_at(c: Circuit, place: str, what: str, op: str, where: Where, overlay: Overlay, **sizes: float) -> None:
    """The receiver must have a capability for these sizes, at this place."""
    able = c.receiver.capability(op)
    other = c.receiver if able is not None else next(iter(overlay.units_with(op)), None)
    if other is not None and (able is None or able.where is not where):
        found = other.capability(op)
        assert found is not None
        raise UnsupportedError(
            f"{place}: {what}; it takes capability {op} {where.value} in {c.receiver.name} of overlay {overlay.name}; "
            f"{other.name} has it {found.where.value}"
        )
    require(place, what, overlay, op, c.receiver, **sizes)


def _require_strip(c: Circuit, place: str, what: str, columns: int, overlay: Overlay) -> None:
    """The receiver must hold whole rows."""
    most = c.strip * c.tile.columns
    if columns > most:
        raise UnsupportedError(
            f"{place}: {what}; rows of {columns} columns with padding, {c.receiver.name} of overlay {overlay.name} "
            f"holds {most}"
        )
