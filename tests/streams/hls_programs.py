"""Stream programs whose C++ the tests compare with the simulator: pipelines of kernels, every type, and drawn ones."""

from __future__ import annotations

import re
from collections.abc import Sequence
from random import Random

HEAD = "from rsn.streams import *\n"

GEMM = (
    HEAD
    + """
A: {kind}[8, 12]
B: {kind}[12, 8]
C: {out}[8, 8]
a_s = Stream[{kind}[4, 12], 2][2]
b_s = Stream[{kind}[12, 4], 2][2]
c_s = Stream[{out}[4, 4], 1][2, 2]
b_next = Stream[{kind}[12, 4], 1][2]

@task(mapping=[2], args=[A])
def load_a(a: {kind}[8, 12] @ Layout("S0R")):
    i = get_tid()
    for n in range(2):
        a_s[i].put(a)

@task(mapping=[2], args=[B])
def load_b(b: {kind}[12, 8] @ Layout("RS0")):
    b_s[get_tid()].put(b[:, :])

@task(mapping=[2])
def product():
    i = get_tid()
    for n in range(2):
        a = a_s[i].get()
        with meta_if(i == 0):
            b = b_s[n].get()
            b_next[n].put(b)
        with meta_else():
            b = b_next[n].get()
        c = {product}
        c_s[i, n].put(c)

@task(mapping=[1], args=[C])
def store(c):
    for i in range(2):
        for j in range(2):
            c[4 * i:4 * i + 4, 4 * j:(j + 1) * 4] = c_s[i, j].get()
"""
)
"""A product of matrices in blocks: loads by shards, both rows of a grid, streams that a loop chooses."""

ATTENTION = (
    HEAD
    + """
Q: {kind}[8, 4]
K: {kind}[8, 4]
V: {kind}[8, 4]
OUT: {kind}[8, 4]
q_s: Stream[{kind}[8, 4], 1]
k_s: Stream[{kind}[8, 4], 1]
v_s: Stream[{kind}[8, 4], 1]
p_s: Stream[{kind}[4, 8], 2]
o_s: Stream[{kind}[4, 4], 2]

@task(mapping=[1], args=[Q, K, V])
def load(q, k, v):
    q_s.put(q)
    k_s.put(k)
    v_s.put(v)

@task(mapping=[1])
def scores():
    q = q_s.get()
    k = k_s.get()
    for block in range(2):
        s = scale(q[4 * block:4 * block + 4] @ k.T, 0.5)
        p_s.put(softmax(s))

@task(mapping=[1])
def values():
    v = v_s.get()
    for block in range(2):
        p = p_s.get()
        o: {kind}[4, 4] = matmul(p, v)
        o_s.put(o)

@task(mapping=[1], args=[OUT])
def store(out):
    for block in range(2):
        out[4 * block:4 * block + 4, :] = o_s.get()
"""
)

REPLACED = (
    HEAD
    + """
X: {kind}[3, 8, 96]
R: {kind}[3, 96]
P: i32[3]
Y: {kind}[3, 8, 96]
Z: {kind}[3, 8, 4]
x_s: Stream[{kind}[8, 96], 2]
y_s: Stream[{kind}[8, 96], 2]
v_s: Stream[{kind}[2, 4], 4]
z_s: Stream[{kind}[2, 4], 4]

@task(mapping=[1], args=[X])
def load(x):
    for i in range(3):
        x_s.put(x[i])
        for k in range(4):
            v_s.put(x[i, 2 * k:2 * k + 2, 0:4])

@task(mapping=[1], args=[R, P])
def work(r, p):
    for i in range(3):
        row = r[i:i + 1]
        at = p[i] % 10 - 1
        y_s.put(replace_row(x_s.get(), row, at))
        for k in range(4):
            z_s.put(replace_row(v_s.get(), row[:, 0:4], at - 2 * k))

@task(mapping=[1], args=[Y, Z])
def store(y, z):
    for i in range(3):
        y[i] = y_s.get()
        for k in range(4):
            z[i, 2 * k:2 * k + 2] = z_s.get()
"""
)

NORMS = (
    HEAD
    + """
X: {kind}[6, 8]
G: {kind}[8]
B: {kind}[8]
Y: {kind}[6, 8]
Z: {kind}[6, 8]
S: {kind}[6]
M: {kind}[8]
x_s: Stream[{kind}[8], 4]
y_s: Stream[{kind}[2, 8], 2]
z_s: Stream[{kind}[2, 8], 2]

@task(mapping=[1], args=[X])
def load(x):
    for i in range(6):
        x_s.put(x[i])

@task(mapping=[1], args=[G, B])
def work(g, b):
    rows: {kind}[2, 8]
    for i in range(3):
        for k in range(2):
            rows[k] = x_s.get()
        y = layernorm(tanh(rows), g, b, eps=1e-6)
        y_s.put({first}(y))
        shown = exp(banded(rows * 0.25, i - 1, 6 - 2 * i))
        z_s.put({second}(rmsnorm(rows, g, eps=0.01)) + shown - 1.0)

@task(mapping=[1], args=[Y, Z, S, M])
def store(y, z, s, m):
    largest: {kind}[8] = full({kind}, -1000.0, 8)
    for i in range(3):
        tile = y_s.get()
        y[2 * i:2 * i + 2] = tile
        s[2 * i:2 * i + 2] = reduce_sum(tile, 1) / 8
        largest = maximum(largest, reduce_max(tile, axis=0))
        z[2 * i:2 * i + 2] = z_s.get()
    m[:] = largest
"""
)

SCALARS = (
    HEAD
    + """
x: {kind}[12]
y: {kind}[12]
w: {wide}[12]
s: Stream[{kind}, 4, 2]
t: Stream[{wide}, 2]
u: Stream[{kind}, 3][3]

@task(mapping=[1], args=[x])
def source(x):
    for i in range(12):
        s.put(x[i])

@task(mapping=[1])
def work():
    low: {wide} = 0
    high = (1, 2, 3)
    for i in range(12):
        a = s.get()
        n = 0
        while n < 5:
            n += 1
            if n == 2:
                continue
            if a in (3, n) or not n != 4:
                break
            low: {wide} = low + a * n
        b = a if 0 <= i < 6 else -a
        t.put({wide}(b * 3 + n - low))
        u[i % 3].put(b * high[1] + high[0])
        if i == 3:
            low = 0

@task(mapping=[1], args=[y, w])
def sink(y, w):
    for i in range(12):
        w[i] = t.get()
        y[i] = u[i % 3].get()
"""
)


SHAPES = (
    HEAD
    + """
X: f32[2, 3, 4]
W: f32[4, 5]
C: f32
Y: f32[2, 3, 5]
Z: f32[3, 4]
N: f32
s: Stream[f32[2, 3, 5], 1]

@task(mapping=[1], args=[X, W, C])
def work(x, w, c):
    c = c[:]
    s.put((x @ w[None]) * c)

@task(mapping=[1], args=[X, Y, Z, N])
def store(x, y, z, n):
    got = s.get()
    y[:] = got + reduce_max(got, axis=2, keepdims=True)
    z[:] = transpose(x[1], 1, 0).T * x[0][:, 1:2] + reduce_sum(x[0], 0)[None, :]
    n[:] = reduce_sum(reshape(got, 30), 0)
"""
)
"""Batches of products, new axes, axes that are kept, tensors without axes."""


TURNED = (
    HEAD
    + """
Q: f32[32, 64]
K: f32[48, 64]
Y: f32[32, 48]
Z: f32[64, 64]
W: f32[32, 48]
q_s: Stream[f32[32, 64], 1]
k_s: Stream[f32[48, 64], 2]
y_s: Stream[f32[32, 48], 1]
z_s: Stream[f32[64, 64], 1]
w_s: Stream[f32[32, 48], 1]

@task(mapping=[1], args=[Q, K])
def load(q, k):
    q_s.put(q)
    k_s.put(k)
    k_s.put(k)

@task(mapping=[1], rates=dict(matmul={rate}, elements=64))
def products():
    a = q_s.get()
    k = k_s.get()
    y_s.put(scale(a @ k.T, 0.125))
    z_s.put(matmul(transpose(a), a))
    w_s.put(a @ transpose(k_s.get(), 1, 0))

@task(mapping=[1], args=[Y, Z, W])
def store(y, z, w):
    y[:] = y_s.get()
    z[:] = z_s.get()
    w[:] = w_s.get()
"""
)
"""Products with transposes: of a tile in a variable, on the left, of a tile that a stream brings and nothing else
reads."""


CHANNELS = (
    HEAD
    + """
X: {kind}[2, 3, {rows}, {columns}]
Y: {kind}[2, 3, {rows}, {columns}]
Z: {kind}[2, 3, {rows}, {columns}]
W: {kind}[{twice}, {columns}]
V: {kind}[{twice}, {columns}]
E: {kind}[2, {columns}]
x_s: Stream[{kind}[{rows}, {columns}], 2]
y_s: Stream[{kind}[{rows}, {columns}], 2]
h_s: Stream[{kind}[{half}, {columns}], 2]
w_s = Stream[{kind}[{rows}, {columns}], 1][2]

@task(mapping=[1], args=[X])
def load(x):
    for i in range(2):
        for j in range(3):
            x_s.put(x[i, j])

@task(mapping=[1])
def work():
    for i in range(6):
        tile = x_s.get()
        y_s.put({kind}(tile + tile))

@task(mapping=[1], args=[X, Y])
def store(x, y):
    for i in range(2):
        for j in range(3):
            y[i, j, :, :] = y_s.get()
    {first}

@task(mapping=[1], args=[X, Z])
def direct(x, z):
    for i in range(2):
        for j in range(3):
            tile = x[i, j]
            z[i, j] = {kind}(tile + tile[0])
    {second}

@task(mapping=[1], args=[X])
def load_halves(x):
    for i in range(2):
        h_s.put(x[i, 1, {half} * i:{half} * i + {half}])

@task(mapping=[1], args=[E])
def store_rows(e):
    for i in range(2):
        e[i] = h_s.get()[0]

@task(mapping=[2], args=[W])
def load_shards(w: {kind}[{twice}, {columns}] @ Layout("S0R")):
    w_s[get_tid()].put(w)

@task(mapping=[2], args=[V])
def store_shards(v: {kind}[{twice}, {columns}] @ Layout("S0R")):
    v[:, :] = w_s[get_tid()].get()
"""
)
"""Whole tiles, halves, shards, rows and elements of tensors that may lie in several memory channels."""


def in_channels(seed: int) -> str:
    """A drawn program of `CHANNELS`. It stores what a word, a round of words, or neither of both holds."""
    random = Random(seed)
    sizes = [(8, 16), (8, 32), (32, 64), (12, 24), (6, 48), (4, 4), (16, 8), (2, 10), (4, 512)]
    rows, columns = random.choice(sizes)
    whole = "z[1, :, 0:2, :] = x[0, :, 0:2, :]"
    return CHANNELS.format(
        kind=random.choice(["f32", "f32", "f16", "bf16", "i4", "i8", "f64", "u16", "u4"]),
        rows=rows,
        columns=columns,
        twice=2 * rows,
        half=rows // 2,
        first=random.choice(["pass", "y[1, 2, 0, 1] = x[0, 1, 1, 0]", "y[0, 0, 1] = x[1, 1, 0]"]),
        second=random.choice(["pass", "z[0, 1, 1, 1] = x[1, 0, 1, 1]", whole, "z[1, 0, ::2, :] = x[1, 1, ::2, :]"]),
    )


def channels_of_tensors(seed: int, tensors: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Drawn memory channels, of 32, of tensors."""
    random = Random(seed)
    return {name: tuple(random.sample(range(32), random.choice([1, 2, 3, 4, 4, 6, 8, 16]))) for name in tensors}


TOKENS = (
    HEAD
    + """
x: f32[3, 4]
at: i32[2]
y: f32[8, 4]
ready: Stream[boolean, 1]
rows: Stream[f32[4], 2]

@task(mapping=[1], args=[x])
def send(x: f32[3, 4]):
    ready.put(True)
    for i in range(3):
        rows.put(x[i, :])

@task(mapping=[1], args=[at, y])
def store(at: i32[2], y: f32[8, 4]):
    drop(ready.get())
    for i in range(3):
        row = rows.get()
        for r in range(2):
            p = at[r]
            if p >= 0 and p < 8:
                y[p, :] = row
"""
)
"""A token that is dropped before loops, rows at places that the run knows."""


def expression(random: Random, depth: int, names: tuple[str, ...] = ("a", "held", "i", "3")) -> str:
    """An expression of integers."""
    if not depth or random.random() < 0.15:
        return random.choice([*names, *map(str, (0, 1, -7, 300, 100000, -(1 << 33)))])
    a, b = (expression(random, depth - 1, names) for _ in range(2))
    kind = random.randrange(12)
    if kind < 4:
        return f"({a} {random.choice('+-*')} {b})"
    if kind == 4:
        return f"({a} {random.choice('&|^')} {b})"
    if kind == 5:
        return f"({random.choice(['-', '~', '+'])}{a})"
    if kind == 6:
        return f"({a} {random.choice(['//', '%'])} {random.choice(['3', '-5', '16', '7'])})"
    if kind == 7:
        return f"(({a}) {random.choice(['<<', '>>'])} {random.randint(0, 9)})"
    if kind == 8:
        return f"({a} if {test(random, depth - 1, names)} else {b})"
    if kind == 9:
        return f"{random.choice(['max', 'min'])}({a}, {b})"
    if kind == 10:
        return f"abs({a})"
    return f"i16({a})"


def test(random: Random, depth: int, names: tuple[str, ...]) -> str:
    """A condition on integers."""
    a, b = (expression(random, depth - 1 if depth > 0 else 0, names) for _ in range(2))
    kind = random.randrange(6)
    if kind == 0:
        return f"({a} in (1, {b}, -3))"
    if kind == 1:
        return f"({a} < {b} <= {expression(random, 0, names)})"
    if kind == 2:
        return f"({a} == {b} or {a} > {b})"
    if kind == 3:
        return f"(not {a} and {b} != 2)"
    return f"({a} {random.choice(['<', '<=', '>', '>=', '==', '!='])} {b})"


def float_expression(random: Random, depth: int) -> str:
    """An expression of floats."""
    if not depth or random.random() < 0.15:
        return random.choice(["a", "held", "i", "0.5", "-1.25", "3", "2.0"])
    a, b = (float_expression(random, depth - 1) for _ in range(2))
    kind = random.randrange(9)
    if kind < 5:
        return f"({a} {random.choice('+-*')} {b})"
    if kind == 5:
        return f"(-{a})"
    if kind == 6:
        return f"f32({a} if {a} < {b} else {b})" if random.random() < 0 else f"(f32({a}) if {a} < {b} else f32({b}))"
    if kind == 7:
        return f"{random.choice(['relu', 'gelu', 'silu', 'exp'])}(f32({a}) * f32(0.01))"
    return f"max(f32({a}), f32({b}))"


def tile_expression(random: Random, depth: int, kind: str) -> str:
    """An expression of tiles of shape (3, 4)."""
    if not depth or random.random() < 0.2:
        return random.choice(["x", "acc", "row", "x", "7" if kind[0] in "iu" else "0.75"])
    a, b = (tile_expression(random, depth - 1, kind) for _ in range(2))
    ops = [f"({a} {random.choice('+-*')} {b})", f"maximum({a}, {b})", f"minimum({a}, {b})", f"add({a}, x)"]
    if kind[0] in "iu":
        ops += [f"(x & {a})", f"(x ^ {b})", f"({a} // (x | 1))", f"(x % ({a} | 1))", f"abs(x - {a})", "relu(x)"]
        ops += ["(x >> 1)", "(x << 2)", "-x", "~x"]
    else:
        ops += [f"({a} / (abs(x) + 1))", f"gelu(x * {a})", "softmax(x)", f"relu(x - {a})", "-x", "silu(x)", "x ** 2"]
        ops += ["(x // (abs(acc) + 1))", "(x % (abs(acc) + 1))"]
    ops += ["concat(x[0:1], x[1:3])", "transpose(transpose(x))", "reshape(reshape(x, 4, 3), 3, 4)"]
    return random.choice(ops)


def drawn_scalars(seed: int) -> str:
    """A pipeline of two tasks on integers or floats."""
    random = Random(seed)
    kind = random.choice(["i4", "i8", "i16", "i32", "i64", "u4", "u8", "u16", "u32", "f32", "f16", "bf16"])
    floats = "f" in kind
    one = (lambda d: float_expression(random, d)) if floats else (lambda d: expression(random, d))
    lines = [f"        b = {one(3)}"]
    if random.random() < 0.6:
        lines.append(f"        held = {kind}(held + {one(1)})")
    if random.random() < 0.5:
        lines += [f"        if i % 3 == {random.randint(0, 2)}:", f"            b = {kind}({one(1)})"]
        lines[0] = f"        b: {kind} = {one(3)}"
    if random.random() < 0.4 and not floats:
        lines += ["        for k in range(3):", f"            b = b + k * {random.choice(['a', '2', 'held'])}"]
    if random.random() < 0.4:
        lines += ["        for k in meta_for(2):", f"            held = {kind}(held + k)"]
    if random.random() < 0.3:
        lines += ["        n = 0", "        while n < 4 and data():", "            n += 1", "        b = b + n"]
    depth, packing = random.choice([(2, 1), (1, 1), (4, 2), (3, 1)])
    return (
        f"{HEAD}x: {kind}[8]\ny: {kind}[8]\ns: Stream[{kind}, {depth}, {packing}]\nt = Stream[{kind}, 2][2]\n"
        "@task(mapping=[1], args=[x])\ndef source(x):\n    for i in range(8):\n        s.put(x[i])\n"
        f"@task(mapping=[1])\ndef middle():\n    held: {kind} = 1\n    for i in range(8):\n"
        "        a = s.get()\n        use(a)\n" + "\n".join(lines) + "\n        t[i % 2].put(b)\n"
        "@task(mapping=[1], args=[y])\ndef sink(y):\n    for i in range(8):\n        y[i] = t[i % 2].get()\n"
    )


def drawn_tiles(seed: int) -> str:
    """A pipeline of two tasks on tiles."""
    random = Random(seed)
    kind = random.choice(["i4", "i8", "i16", "i32", "u4", "u8", "f32", "f16", "bf16", "f32"])
    first, second = (tile_expression(random, 2, kind) for _ in range(2))
    given = f"{HEAD}X: {kind}[6, 8]\nY: {kind}[6, 8]\nR: {kind}[4]\n"
    return (
        f"{given}s = Stream[{kind}[3, 4], 2][2]\nt = Stream[{kind}[3, 4], 1][2]\n"
        "@task(mapping=[2], args=[X])\ndef source(x: " + kind + '[6, 8] @ Layout("S0R")):\n    i = get_tid()\n'
        "    for k in range(2):\n        s[i].put(x[:, 4 * k:4 * k + 4])\n"
        f"@task(mapping=[2], args=[R])\ndef middle(r):\n    i = get_tid()\n    row = r[:]\n"
        f"    acc = zeros({kind}, 3, 4)\n"
        "    for k in range(2):\n        x = s[i].get()\n"
        f"        z: {kind}[3, 4] = x + {first}\n        acc = {kind}(acc + {second})\n"
        f"        acc[{random.randint(0, 2)}, 1:3] = z[0, {random.randint(0, 1)}::2]\n"
        "        acc[2] = row\n"
        f"        t[i].put({kind}(acc + z))\n"
        "@task(mapping=[1], args=[Y])\ndef sink(y):\n    for i in range(2):\n        for k in range(2):\n"
        "            y[3 * i:3 * i + 3, 4 * k:4 * k + 4] = t[i].get()\n"
    )


ATOMS = (
    """
a|b|x|held|i|k|2|-1|0.5|True|x[0]|(1, 2)|"t"|data()|x.T|a[0:2]|None|1 << 70|x.shape|len(x)|f32(1)|i8(3)|acc|row|{1, 2}
not a|abs(x)|zeros(f32, 2)|relu(i)|transpose(k)|x[i]|x[1:k]|max(a, 2.5)|int(a)|a / 3|a == b|-a
""".strip()
    .replace("\n", "|")
    .split("|")
)
"""What `changed` puts in the place of names and numbers."""
NAMES = re.compile(r"(?<![\w.])(a|b|x|held|i|k|acc|row|z|r|\d+(\.\d+)?)(?![\w(])")


def changed(seed: int) -> str:
    """One of the programs above, with other names and numbers in up to three places of its tasks."""
    random = Random(seed)
    number = seed // 2 % 60
    text = drawn_scalars(number) if seed % 2 else drawn_tiles(number)
    for _ in range(random.randint(1, 3)):
        places = [m for m in NAMES.finditer(text) if m.start() > text.index("def ")]
        place = random.choice(places)
        text = text[: place.start()] + random.choice(ATOMS) + text[place.end() :]
    return text
