"""Programs with a task that loads tiles, computes and stores, in loops; {mark} stands where it asks for buffers."""

from __future__ import annotations

from random import Random

BODIES = {
    "products": (
        "v = w[:, :]",
        "for i in range({n}):",
        "    y[{rows}, :] = x[{rows}, :] @ v",
        "    z[{rows}, :] = x[{rows}, :] @ v",
    ),
    "sums": (
        "for i in range({n}):",
        "    total = zeros(f32, {r}, {m})",
        "    for j in range({k} // 4):",
        "        total = total + x[{rows}, j * 4 : j * 4 + 4] @ w[j * 4 : j * 4 + 4, :]",
        "    y[{rows}, :] = total",
        "    z[{rows}, :] = total * 2.0",
    ),
    "elements": (
        "for i in range({n}):",
        "    a = z[{rows}, :]",
        "    y[{rows}, :] = gelu(a) + a * 3.0",
    ),
    "in place": (
        "for i in range({n}):",
        "    z[{rows}, :] = softmax(z[{rows}, :] + x[{rows}, :] @ w)",
    ),
    "branches": (
        "last = {n} - 1",
        "for i in range({n}):",
        "    k = i * {r}",
        "    t = x[k : k + {r}, :] @ w",
        "    if i % 2 == 0:",
        "        t = t + z[k : k + {r}, :]",
        "    if local(reduce_max(reduce_max(t, 1), 0)) > 0.5:",
        "        t = t * 0.5",
        "    if i == last:",
        "        y[k : k + {r}, :] = relu(t)",
        "    z[k : k + {r}, :] = t",
    ),
    "whole": ("y[:, :] = x @ w", "z[:, :] = relu(x @ w)"),
}
"""Statements of the task, of n iterations for r rows each."""


def drawn(random: Random, kind: str) -> tuple[str, int]:
    """A program of a kind, and its iterations."""
    n, grid = random.randint(1, 6), random.choice([1, 2])
    r, k, m = random.choice([4, 8, 16]), random.choice([8, 16, 32]), random.choice([8, 16, 32])
    names = {"n": n, "r": r, "k": k, "m": m, "rows": f"i * {r} : i * {r} + {r}"}
    shapes = {"x": f"{grid * n * r}, {k}", "w": f"{k}, {m}", "y": f"{grid * n * r}, {m}", "z": f"{grid * n * r}, {m}"}
    lines = ["from rsn.streams import *", *(f"{name.upper()}: f32[{shape}]" for name, shape in shapes.items())]
    layouts = {name: "" if name == "w" else ' @ Layout("S0R")' for name in shapes}
    lines.append(f"@task(mapping=[{grid}], args=[X, W, Y, Z]{{mark}})")
    parameters = ", ".join(f"{name}: f32[{shape}]{layouts[name]}" for name, shape in shapes.items())
    lines.append(f"def f({parameters}) -> None:")
    lines += ["    " + line.format(**names) for line in BODIES[kind]]
    return "\n".join(lines) + "\n", n


def marked(text: str) -> tuple[str, str]:
    """A program without buffers, and with them."""
    return text.replace("{mark}", ""), text.replace("{mark}", ", double_buffer=True")
