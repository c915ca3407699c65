"""Random stream programs with symbolic sizes, many of them well-typed."""

from __future__ import annotations

from random import Random

TRIPS = ["n", "n", "n", "n + 1", "2 * n", "n - 1", "3", "2", "3 * n", "n // 2", "1"]
INNER = ["n", "i + 1", "n - i", "2", "i", "3", "n + 1", "i // 2"]
TESTS = ["i % 2 == 0", "i % 3 == 1", "i == 0", "i < n - 1", "i > 2", "i < 5", "i != n - 1"]
DEPTHS = ["1", "1", "2", "3", "n", "n + 1", "n - 1", "2 * n", "n * n"]


class Writer:
    """Writes one program."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.streams = random.randint(1, 3)

    def text(self) -> str:
        """Return a program of tasks, or of a chain of instances."""
        if self.random.random() < 0.3:
            return self.chain()
        depths = [self.random.choice(DEPTHS) for _ in range(self.streams)]
        lines = ["from rsn.streams import *", "n = 4"]
        lines += [f"s{k}: Stream[i32, {depth}]" for k, depth in enumerate(depths)]
        ways = [self.random.random() < 0.7 for _ in range(self.streams)]
        body = self.body(0, 2)
        a = self.ends(body, ways, True)
        b = self.ends(self.shaken(body), ways, False)
        if self.random.random() < 0.3:
            ahead = self.random.choice(["1", "2", "n"])
            back = ways.index(False) if False in ways else 0
            a, b = self.credit(a, back, ahead, ways), b
        return "\n".join([*lines, "@task(mapping=[1])", "def a():", *a, "@task(mapping=[1])", "def b():", *b, ""])

    def credit(self, lines: list[str], stream: int, ahead: str, ways: list[bool]) -> list[str]:
        """Put some tokens ahead on a stream, at the end of the task that puts on it, or at the beginning."""
        extra = [
            f"    for c in range({ahead}):",
            f"        s{stream}.put(c)" if ways[stream] else f"        use(s{stream}.get())",
        ]
        return [*lines, *extra] if self.random.random() < 0.5 else [*extra, *lines]

    def body(self, depth: int, deepest: int) -> list[object]:
        """Statements: a stream, or (head, statements)."""
        out: list[object] = []
        for _ in range(self.random.randint(1, 3)):
            kind = self.random.random()
            if depth < deepest and (kind < 0.55 or depth == 0):
                trips = self.random.choice(TRIPS if depth == 0 else INNER)
                index = "ij"[depth]
                out.append((f"for {index} in range({trips}):", self.body(depth + 1, deepest)))
            elif 0 < depth <= deepest and kind < 0.75:
                out.append((f"if {self.random.choice(TESTS)}:", self.body(deepest + 1, deepest)))
            else:
                out.append(self.random.randrange(self.streams))
        return out

    def shaken(self, body: list[object]) -> list[object]:
        """The same tokens in another order, at times; rarely others."""
        out: list[object] = []
        for item in body:
            if isinstance(item, tuple):
                head = item[0]
                if self.random.random() < 0.05:
                    head = head.replace("range(n)", "range(n + 1)")
                inner = self.shaken(item[1])
                if head.startswith("for") and len(inner) > 1 and self.random.random() < 0.2:
                    out += [(head, [one]) for one in inner]
                else:
                    out.append((head, inner))
            else:
                out.append(item)
        if self.random.random() < 0.3:
            self.random.shuffle(out)
        return out

    def ends(self, body: list[object], ways: list[bool], first: bool, margin: str = "    ") -> list[str]:
        """Write a body: on the streams of one way the first task puts, on the others it gets."""
        out: list[str] = []
        for item in body:
            if isinstance(item, tuple):
                out += [margin + item[0], *self.ends(item[1], ways, first, margin + "    ")]
            else:
                assert isinstance(item, int)
                end = f"s{item}.put(1)" if ways[item] is first else f"use(s{item}.get())"
                if self.random.random() < 0.1:
                    out += [f"{margin}if data():", f"{margin}    {end}", f"{margin}else:", f"{margin}    {end}"]
                else:
                    out.append(margin + end)
        return out

    def chain(self) -> str:
        """A chain of n instances, between a source and a sink or without."""
        pick = self.random.choice
        trips, inner = pick(["m", "3", "n", "m + 1"]), pick(["1", "2", "m", "n"])
        size = pick(["n + 1", "n + 1", "n + 1", "n"])
        depth = pick(["1", "2", "m", "n"])
        get = pick(["s[i]", "s[i]", "s[i]", "s[i - 1]"])
        loop = f"for k in range({trips}):\n        for j in range({inner}):\n"
        task = f"""@task(mapping=[n])
def pe():
    i = get_tid()
    {loop}            x = {get}.get()
            s[i + 1].put(x)
"""
        source = f"""@task(mapping=[1])
def source():
    {loop}            s[0].put(k)
"""
        sink = f"""@task(mapping=[1])
def sink():
    {loop}            use(s[n].get())
"""
        if self.random.random() < 0.3:
            task = f"""@task(mapping=[n])
def pe():
    i = get_tid()
    {loop}            with meta_if(i == 0):
                x = 1
            with meta_else():
                x = s[i].get()
            with meta_if(i < {pick(["n - 1", "n - 1", "n"])}):
                s[i + 1].put(x)
            with meta_else():
                use(x)
"""
            source = sink = ""
        elif self.random.random() < 0.3:
            task = task.replace("s[i + 1].put", "o[i].put")
            source = "@task(mapping=[1])\ndef source():\n" + self.spread("s", "put(k)", trips, inner)
            sink = "@task(mapping=[1])\ndef sink():\n" + self.spread("o", "get()", trips, inner)
        head = "from rsn.streams import *\nn = 3\nm = 2\n"
        head += f"s: Stream[i32, {depth}][{size}]\no: Stream[i32, {depth}][{size}]\n"
        return head + source + task + sink

    def spread(self, name: str, method: str, trips: str, inner: str) -> str:
        """A loop over all streams of an array."""
        end = f"{name}[p].{method}"
        loops = [f"for k in range({trips}):", f"for j in range({inner}):", "for p in range(n):"]
        if self.random.random() < 0.4:
            self.random.shuffle(loops)
        lines = [f"{'    ' * (k + 1)}{loop}" for k, loop in enumerate(loops)]
        return "\n".join([*lines, f"{'    ' * 4}{end if 'put' in end else f'use({end})'}", ""])
