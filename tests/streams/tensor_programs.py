"""Random stream programs with tensors of symbolic sizes, many of them well-typed."""

from __future__ import annotations

from random import Random

HEAD = "from rsn.streams import *\nn = 4\nb = 2\n"


class TensorWriter:
    """Writes one program: tasks that send parts of a tensor, work on them, and store them."""

    def __init__(self, random: Random) -> None:
        self.random = random

    def text(self) -> str:
        """Return a program."""
        often = [self.tiles, self.tiles, self.rows, self.grid, self.elements, self.shards, self.shared]
        kind = self.random.choice([*often, self.products, self.kernels, self.branches])
        return HEAD + kind()

    def rarely(self, usual: str, *others: str) -> str:
        """Return the usual text, at times another one."""
        return self.random.choice(others) if self.random.random() < 0.12 else usual

    def tiles(self) -> str:
        """Tiles of a vector, through a stage that computes."""
        size = self.random.choice(["n * b", "n * b", "n", "n + b", "3 * b"])
        trips = self.random.choice(
            ["n // b"] if size == "n" else ["n"] if size == "n * b" else ["1", "3", "n // b + 1"]
        )
        tile, begin = self.rarely("b", "b + 1", "2"), self.rarely("i * b", "i", "i * b + 1", "(i + 1) * b")
        end = self.rarely(f"{begin} + b", f"{begin} + b + 1", f"{begin} + 2", "i * b + b")
        value = self.random.choice(["s.get()", "2 * s.get()", "s.get() + zeros(f32, b)"])
        value = self.rarely(value, "s.get() + zeros(f32, n)", "s.get() + zeros(f32, 2)", "softmax(s.get())")
        out, into = self.rarely(size, "n", "n * b"), self.rarely(f"{begin} : {end}", "i * b : i * b + b")
        return (
            f"x: f32[{size}]\ny: f32[{out}]\ns: Stream[f32[{tile}], 2]\nt: Stream[f32[{self.rarely(tile, 'b')}], 1]\n"
            + self.head("load", "x", f"f32[{size}]")
            + f"    for i in range({trips}):\n        s.put(x[{begin} : {end}])\n"
            + f"@task(mapping=[1])\ndef work() -> None:\n    for i in range({self.rarely(trips, 'n')}):\n"
            + f"        t.put({value})\n"
            + self.head("store", "y", f"f32[{out}]")
            + f"    for i in range({trips}):\n        y[{into}] = t.get()\n"
        )

    def head(self, name: str, tensor: str, kind: str) -> str:
        """Return the head of a task with a tensor."""
        return f"@task(mapping=[1], args=[{tensor}])\ndef {name}({tensor}: {kind}) -> None:\n"

    def rows(self) -> str:
        """Rows of a matrix."""
        shape = self.random.choice(["n, b", "b, n", "n * b, n"])
        trips = self.rarely(shape.split(", ")[0], "n", "b + 1")
        length = self.rarely(shape.split(", ")[1], "n")
        part = self.random.choice(["x[i, :]", "x[i]", "x[i : i + 1, :].reshape(" + length + ")"])
        value = self.random.choice(
            ["s.get()", "softmax(s.get())", "s.get() * 2.0", "s.get() / n", "s.get() * n ** -0.5"]
        )
        into = self.rarely("y[i, :]", "y[0, :]", "y[i + 1, :]", "y[:, i]")
        return (
            f"x: f32[{shape}]\ny: f32[{shape}]\ns: Stream[f32[{length}], 2]\n"
            + self.head("read", "x", f"f32[{shape}]")
            + f"    for i in range({trips}):\n        s.put({part})\n"
            + self.head("write", "y", f"f32[{shape}]")
            + f"    for i in range({trips}):\n        {into} = {value}\n"
        )

    def grid(self) -> str:
        """Tiles of a matrix in loops, in one order or in two."""
        loops = [f"for i in range({self.rarely('n', 'n + 1')}):", f"for j in range({self.rarely('3', 'n', '2')}):"]
        other = list(loops) if self.random.random() < 0.7 else loops[::-1]
        if self.random.random() < 0.3:
            other = ["for i, j in grid(n, 3):"]
        part = "[i * b : i * b + b, j * 2 : j * 2 + 2]"
        into = self.rarely(part, "[i * b : i * b + b, 0 : 2]", "[0 : b, j * 2 : j * 2 + 2]")
        return (
            "x: f32[n * b, 6]\ny: f32[n * b, 6]\ns: Stream[f32[b, 2], 2]\n"
            + self.head("read", "x", "f32[n * b, 6]")
            + self.nested(loops, f"s.put(x{part})")
            + self.head("write", "y", "f32[n * b, 6]")
            + self.nested(other, f"y{into} = s.get()")
        )

    def nested(self, loops: list[str], inner: str) -> str:
        """Return loops around a statement."""
        lines = [f"{'    ' * (k + 1)}{loop}" for k, loop in enumerate(loops)]
        return "\n".join([*lines, f"{'    ' * (len(loops) + 1)}{inner}", ""])

    def elements(self) -> str:
        """Single elements, with conditions on the index."""
        test = self.rarely("i < n", "i < n - 1", "i % 2 == 0", "i > 0")
        read = self.random.choice(["x[i]", "x[n - 1 - i]", "x[i // 2]", self.rarely("x[i]", "x[i + 1]", "x[n - i]")])
        inner = f"if {test}:\n            s.put({read})\n        else:\n            s.put(x[0])"
        return (
            "x: f32[n]\ny: f32[n]\ns: Stream[f32, 2]\n"
            + self.head("read", "x", "f32[n]")
            + f"    for i in range(n):\n        {inner}\n"
            + self.head("write", "y", "f32[n]")
            + f"    for i in range({self.rarely('n', 'n + 1')}):\n        y[i] = s.get()\n"
        )

    def shards(self) -> str:
        """A grid of instances with parts of a tensor, by a layout or by the grid point."""
        layout = self.random.random() < 0.5
        grid = self.random.choice(["n", "2", "3"])
        size = self.rarely(f"{grid} * b", "n * b", "b")
        index = "i" if layout else self.rarely("p * b + i", "i", "p + i", "p * b + i + 1")
        trips = self.rarely("b", "b + 1", "n")
        kind = f"f32[{size}]" + ' @ Layout("S0")' * layout
        task = f"@task(mapping=[{grid}], args=[x, y])\ndef work(x: {kind}, y: {kind}) -> None:\n"
        body = "    p = get_tid()\n    use(p)\n" if not layout else ""
        return (
            f"x: f32[{size}]\ny: f32[{size}]\n{task}{body}    for i in range({trips}):\n"
            f"        y[{index}] = 2 * x[{index}]\n"
        )

    def shared(self) -> str:
        """Two tasks with one tensor, in parts that may meet; or several instances that store copies."""
        if self.random.random() < 0.4:
            axis, stored = self.random.choice([0, 1]), self.rarely("a[:, :] + 1.0", "a[:, :] * get_tid()[0]")
            kind = f'f32[n * 2, 4] @ Layout("{"S0R" if axis else "RS0"}")'
            return (
                "x: f32[n * 2, 4]\ny: f32[n * 2, 4]\n@task(mapping=[2, 2], args=[x, y])\n"
                f"def work(a: {kind}, c: {kind}) -> None:\n    c[:, :] = {stored}\n"
            )
        half = self.rarely("n * b + i", "n * b - 1 + i", "i", "n * b + 1 + i")
        return (
            f"x: f32[{self.rarely('2 * n * b', 'n * b + b', '2 * n * b + 1')}]\n"
            + "@task(mapping=[1], args=[x])\ndef low(x) -> None:\n"
            + "    for i in range(n * b):\n        x[i] = 1.0\n"
            + "@task(mapping=[1], args=[x])\ndef high(x) -> None:\n"
            + f"    for i in range({self.rarely('n * b', 'b')}):\n        x[{half}] = {self.rarely('2.0', 'x[0]')}\n"
        )

    def products(self) -> str:
        """A product on a grid, with layouts that may fit."""
        pick = self.random.choice
        grid, sizes = pick([("2, 2", "2"), ("2, 2", "2"), ("n, 2", "n"), ("n, 1", "n")])
        a, b, c = pick([("RS0", "S0S1", "RS1"), ("S0R", "RS1", "S0S1"), ("S0S1", "S1R", "S0R"), ("RR", "RR", "RR")])
        a, b, c = self.rarely(a, "S0R", "RS1"), self.rarely(b, "RS0", "RR"), self.rarely(c, "S0R", "RR", c + "!")
        value = pick(["a @ b", 'x.allreduce("+")', "local(x)", 'x.allreduce("+") + 1.0', "2.0 * x"]).replace(
            "x", "(a @ b)"
        )
        if self.random.random() < 0.15:
            value = pick(["(a @ b).T", "relu(a @ b)", "(a @ b) * n", "(a @ b)[:, :]", "transpose(b) @ transpose(a)"])
        size = self.rarely(f"2 * {sizes} * b", f"{sizes} * b", "n * b", "4")
        shapes = [f"f32[{size}, {size}]", f"f32[{size}, {self.rarely(size, 'n')}]", f"f32[{size}, {size}]"]
        parts = ", ".join(f'{x}: {y} @ Layout("{z}")' for x, y, z in zip("abc", shapes, (a, b, c), strict=True))
        tensors = "".join(f"{x}: {y}\n" for x, y in zip("ABC", shapes, strict=True))
        return (
            f"{tensors}@task(mapping=[{grid}], args=[A, B, C])\ndef product({parts}) -> None:\n    c[:, :] = {value}\n"
        )

    def kernels(self) -> str:
        """Kernels on tiles of symbolic sizes."""
        pick = self.random.choice
        value, shape = pick(
            [
                ("s.get().sum(axis=0)", "b"),
                ("s.get().sum(axis=1)", "n"),
                ("s.get().T", "b, n"),
                ("s.get().reshape(n * b)", "n * b"),
                ("s.get().reshape(b, -1)", "b, n"),
                ("s.get() @ zeros(f32, b, 3)", "n, 3"),
                ("concat([s.get(), zeros(f32, n, 2)], axis=1)", "n, b + 2"),
                ("s.get() + zeros(f32, b)", "n, b"),
                ("s.get() + zeros(f32, n, 1)", "n, b"),
                ("s.get() * full(f32, 2.0, 1, b)", "n, b"),
                ("s.get()[0 : n - 1, :]", "n - 1, b"),
                ("s.get()[:, 0]", "n"),
                ("layernorm(s.get(), zeros(f32, b), zeros(f32, b))", "n, b"),
                ("maximum(s.get(), 1 / n)", "n, b"),
            ]
        )
        value = self.rarely(value, value.replace("axis=1", "axis=2"), value.replace("b", "n"), value.replace("n", "b"))
        shape = self.rarely(shape, "n, b", "n", "b, b").replace("n - 1", "max(n - 1, 1)")
        store = ", ".join(":" for _ in shape.split(","))
        return (
            f"x: f32[n, b]\ny: f32[{shape}]\ns: Stream[f32[n, b], 1]\n"
            + self.head("read", "x", "f32[n, b]")
            + "    s.put(x[:, :])\n"
            + self.head("write", "y", f"f32[{shape}]")
            + f"    y[{store}] = {value}\n"
        )

    def branches(self) -> str:
        """Branches on data, on the grid point and on the index, around accesses."""
        test = self.random.choice(["data()", "x[i] > 0.0", "i % 2 == 0", "i < n - 1", "i // b < 2", "b > n"])
        first, second = (self.rarely("s.put(x[i])", "s.put(x[n - 1 - i])", "s.put(x[i + 1])", "pass") for _ in range(2))
        begin = self.random.choice(["", "    k = 2 * b\n", "    k = n - 1\n", "    k = 0\n"])
        last = self.random.choice(["y[i]", "y[i]", "y[k]", "y[min(i, k)]"]) if begin else "y[i]"
        return (
            "x: f32[n]\ny: f32[n]\ns: Stream[f32, 2]\n"
            + self.head("read", "x", "f32[n]")
            + f"    for i in range(n):\n        if {test}:\n            {first}\n        else:\n            {second}\n"
            + self.head("write", "y", "f32[n]")
            + begin
            + f"    for i in range(n):\n        {last} = s.get()\n"
        )
