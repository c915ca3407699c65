"""Graphs of quantised numbers, as text: what torchao and PT2E export, and what the normal form makes of it."""

from __future__ import annotations

ROWS = """\
x: float32[2, 3, 8] = input()
w: int8[4, 8] = input()
s: float32[4, 2] = input()
z: int8[4, 2] = input()
column: float32[4, 1] = input()
b: float32[4] = input()
"""
CHOSEN = """\
chosen: (float32[2, 3], int8[2, 3],) = torchao.choose_qparams_affine.default(x, 'ASYMMETRIC', [1, 1, 8], torch.int8, \
-128, 127, None, None, torch.int8)  # layer
scale: float32[2, 3] = getitem(chosen, 0)  # layer
zero: int8[2, 3] = getitem(chosen, 1)  # layer
q: int8[2, 3, 8] = torchao.quantize_affine.default(x, [1, 1, 8], scale, zero, torch.int8, -128, 127)  # layer
"""
OF_ROWS = """\
row_scales_default: (float32[2, 3, 1], int32[2, 3, 1],) = rsn.row_scales.default(x, {symmetric}, {least}, -128, 127)\
  # layer (torchao.choose_qparams_affine.default)
"""
SCALES = """\
getitem: float32[2, 3, 1] = getitem(row_scales_default, 0)  # layer (torchao.choose_qparams_affine.default)
"""
ZEROS = """\
getitem_1: int32[2, 3, 1] = getitem(row_scales_default, 1)  # layer (torchao.choose_qparams_affine.default)
"""
LEAST = "1.1754943508222875e-38"
INT_MM = """\
chosen: (float32[2, 3, 1], int8[2, 3, 1],) = torchao.choose_qparams_affine.default(x, '{mapping}', [1, 1, 8], \
torch.int8, -128, 127, 0.5, torch.float32, torch.int8, True)  # layer
scale: float32[2, 3, 1] = getitem(chosen, 0)  # layer
zero: int8[2, 3, 1] = getitem(chosen, 1)  # layer
q: int8[2, 3, 8] = torchao.quantize_affine.default(x, [1, 1, 8], scale, zero, torch.int8, -128, 127)  # layer
t: int8[8, 4] = aten.permute.default(w, [1, 0])  # layer
rows: int8[6, 8] = aten.reshape.default(q, [6, 8])  # layer
factor: float32[6, 1] = aten.reshape.default(scale, [6, 1])  # layer
"""
BEHIND = """\
columns: float32[4] = aten.reshape.default(column, [4])  # layer
both: float32[6, 4] = aten.mul.Tensor({product}, columns)  # layer
back: float32[2, 3, 4] = aten.reshape.default(both, [2, 3, 4])  # layer
y: float32[2, 3, 4] = aten.add.Tensor(back, b)  # layer
return (y,)
"""
QUANTISED = """\
q: int8[2, 3, 8] = rsn.quantise.default(x, getitem, {zero}, -128, 127)  # layer (torchao.quantize_affine.default)
"""
PRODUCT = """\
y: float32[2, 3, 4] = rsn.integer_linear.default(q, getitem, {zero}, w, column, None, b, 8)  # layer \
(aten._int_mm.default)
return (y,)
"""

FORMS = {
    "linear of dequantised operands": (
        ROWS
        + CHOSEN
        + """\
rows: float32[2, 3, 8] = torchao.dequantize_affine.default(q, [1, 1, 8], scale, zero, torch.int8, -128, 127)  # layer
matrix: float32[4, 8] = torchao.dequantize_affine.default(w, [1, 4], s, z, torch.int8, -8, 7)  # layer
y: float32[2, 3, 4] = aten.linear.default(rows, matrix, b)  # layer
return (y,)
""",
        ROWS
        + OF_ROWS.format(symmetric=False, least=LEAST)
        + SCALES
        + ZEROS
        + QUANTISED.format(zero="getitem_1")
        + """\
_to_copy_default_1: int32[4, 2] = aten._to_copy.default(z, dtype=torch.int32)  # layer \
(torchao.dequantize_affine.default)
y: float32[2, 3, 4] = rsn.integer_linear.default(q, getitem, getitem_1, w, s, _to_copy_default_1, b, 4)  # layer \
(aten.linear.default)
return (y,)
""",
    ),
    "_int_mm": (
        ROWS
        + INT_MM.format(mapping="SYMMETRIC")
        + """\
sums: int32[6, 4] = aten._int_mm.default(rows, t)  # layer
real: float32[6, 4] = aten._to_copy.default(sums, dtype=torch.float32)  # layer
scaled: float32[6, 4] = aten.mul.Tensor(real, factor)  # layer
same: float32[6, 4] = aten.detach.default(scaled)  # layer
"""
        + BEHIND.format(product="same"),
        ROWS
        + OF_ROWS.format(symmetric=True, least=0.5)
        + SCALES
        + QUANTISED.format(zero=None)
        + PRODUCT.format(zero=None),
    ),
    "_int_mm of unsigned rows": (
        ROWS
        + INT_MM.format(mapping="SYMMETRIC")
        + """\
wide: int32[6, 8] = aten._to_copy.default(rows, dtype=torch.int32)  # layer
shifted: int32[6, 8] = aten.add.Tensor(wide, 128)  # layer
unsigned: uint8[6, 8] = aten._to_copy.default(shifted, dtype=torch.uint8)  # layer
more: int32[6, 4] = aten._int_mm.default(unsigned, t)  # layer
total: int32[1, 4] = aten.sum.dim_IntList(t, [0], True, dtype=torch.int32)  # layer
times: int32[1, 4] = aten.mul.Tensor(total, 128)  # layer
sums: int32[6, 4] = aten.sub.Tensor(more, times)  # layer
real: float32[6, 4] = aten._to_copy.default(sums, dtype=torch.float32)  # layer
scaled: float32[6, 4] = aten.mul.Tensor(real, factor)  # layer
"""
        + BEHIND.format(product="scaled"),
        ROWS
        + OF_ROWS.format(symmetric=True, least=0.5)
        + SCALES
        + QUANTISED.format(zero=None)
        + PRODUCT.format(zero=None),
    ),
    "_int_mm with zero points": (
        ROWS
        + INT_MM.format(mapping="ASYMMETRIC")
        + """\
sums: int32[6, 4] = aten._int_mm.default(rows, t)  # layer
real: float32[6, 4] = aten._to_copy.default(sums, dtype=torch.float32)  # layer
scaled: float32[6, 4] = aten.mul.Tensor(real, factor)  # layer
of_rows: int64[4] = aten.sum.dim_IntList(w, [-1])  # layer
line: int8[6, 1] = aten.reshape.default(zero, [6, 1])  # layer
offset: float32[6, 1] = aten._to_copy.default(line, dtype=torch.float32)  # layer
again: float32[6, 1] = aten.reshape.default(scale, [6, 1])  # layer
of_zero: float32[6, 1] = aten.mul.Tensor(offset, again)  # layer
of_weight: float32[4] = aten._to_copy.default(of_rows, dtype=torch.float32)  # layer
more: float32[6, 4] = aten.mul.Tensor(of_zero, of_weight)  # layer
less: float32[6, 4] = aten.sub.Tensor(scaled, more)  # layer
"""
        + BEHIND.format(product="less"),
        ROWS
        + OF_ROWS.format(symmetric=False, least=0.5)
        + SCALES
        + ZEROS
        + QUANTISED.format(zero="getitem_1")
        + PRODUCT.format(zero="getitem_1"),
    ),
    "only weights": (
        ROWS
        + """\
rows: float32[6, 8] = aten.reshape.default(x, [6, 8])  # layer
t: int8[8, 4] = aten.permute.default(w, [1, 0])  # layer
real: float32[8, 4] = aten._to_copy.default(t, dtype=torch.float32)  # layer
product: float32[6, 4] = aten.matmul.default(rows, real)  # layer (aten.mm.default)
"""
        + BEHIND.format(product="product"),
        ROWS
        + """\
dequantise_default: float32[4, 8] = rsn.dequantise.default(w, column, None, 8)  # layer (aten.mm.default)
y: float32[2, 3, 4] = aten.linear.default(x, dequantise_default, b)  # layer (aten.mm.default)
return (y,)
""",
    ),
    "static": (
        ROWS
        + """\
c: float32[4] = input()
o: int64[4] = input()
q: int8[2, 3, 8] = quantized_decomposed.quantize_per_tensor.default(x, 0.25, -3, -128, 127, torch.int8)
rows: float32[2, 3, 8] = quantized_decomposed.dequantize_per_tensor.default(q, 0.25, -3, -128, 127, torch.int8)
matrix: float32[4, 8] = quantized_decomposed.dequantize_per_channel.default(w, c, o, 0, -127, 127, torch.int8)
y: float32[2, 3, 4] = aten.linear.default(rows, matrix)  # layer
p: int8[2, 3, 4] = quantized_decomposed.quantize_per_tensor.default(y, 0.5, 0, -128, 127, torch.int8)
left: float32[2, 3, 4] = quantized_decomposed.dequantize_per_tensor.default(p, 0.5, 0, -128, 127, torch.int8)
turned: float32[2, 4, 3] = aten.permute.default(y, [0, 2, 1])
r: int8[2, 4, 3] = quantized_decomposed.quantize_per_tensor.default(turned, 0.5, 7, -128, 127, torch.int8)
right: float32[2, 4, 3] = quantized_decomposed.dequantize_per_tensor.default(r, 0.5, 7, -128, 127, torch.int8)
scores: float32[2, 3, 3] = aten.matmul.default(left, right)  # attention
return (scores,)
""",
        ROWS
        + """\
c: float32[4] = input()
o: int64[4] = input()
full_default: float64[] = aten.full.default([], 0.25, dtype=torch.float64)  # \
(quantized_decomposed.quantize_per_tensor.default)
full_default_1: int32[] = aten.full.default([], -3, dtype=torch.int32)  # \
(quantized_decomposed.quantize_per_tensor.default)
q: int8[2, 3, 8] = rsn.quantise.default(x, full_default, full_default_1, -128, 127)  # \
(quantized_decomposed.quantize_per_tensor.default)
full_default_2: float64[] = aten.full.default([], 0.25, dtype=torch.float64)  # \
(quantized_decomposed.dequantize_per_tensor.default)
full_default_3: int32[] = aten.full.default([], -3, dtype=torch.int32)  # \
(quantized_decomposed.dequantize_per_tensor.default)
reshape_default: float32[4, 1] = aten.reshape.default(c, [4, 1])  # \
(quantized_decomposed.dequantize_per_channel.default)
reshape_default_1: int64[4, 1] = aten.reshape.default(o, [4, 1])  # \
(quantized_decomposed.dequantize_per_channel.default)
_to_copy_default: int32[4, 1] = aten._to_copy.default(reshape_default_1, dtype=torch.int32)  # \
(quantized_decomposed.dequantize_per_channel.default)
y: float32[2, 3, 4] = rsn.integer_linear.default(q, full_default_2, full_default_3, w, reshape_default, \
_to_copy_default, None, 8)  # layer (aten.linear.default)
full_default_4: float64[] = aten.full.default([], 0.5, dtype=torch.float64)  # \
(quantized_decomposed.quantize_per_tensor.default)
p: int8[2, 3, 4] = rsn.quantise.default(y, full_default_4, None, -128, 127)  # \
(quantized_decomposed.quantize_per_tensor.default)
full_default_5: float64[] = aten.full.default([], 0.5, dtype=torch.float64)  # \
(quantized_decomposed.dequantize_per_tensor.default)
turned: float32[2, 4, 3] = aten.permute.default(y, [0, 2, 1])
full_default_6: float64[] = aten.full.default([], 0.5, dtype=torch.float64)  # \
(quantized_decomposed.quantize_per_tensor.default)
full_default_7: int32[] = aten.full.default([], 7, dtype=torch.int32)  # \
(quantized_decomposed.quantize_per_tensor.default)
r: int8[2, 4, 3] = rsn.quantise.default(turned, full_default_6, full_default_7, -128, 127)  # \
(quantized_decomposed.quantize_per_tensor.default)
full_default_8: float64[] = aten.full.default([], 0.5, dtype=torch.float64)  # \
(quantized_decomposed.dequantize_per_tensor.default)
full_default_9: int32[] = aten.full.default([], 7, dtype=torch.int32)  # \
(quantized_decomposed.dequantize_per_tensor.default)
scores: float32[2, 3, 3] = rsn.integer_matmul.default(p, full_default_5, None, r, full_default_8, full_default_9)\
  # attention (aten.matmul.default)
return (scores,)
""",
    ),
}
"""By what is written: a graph before and behind the pass."""
