"""Model files with changes that a checksum does not show: an error of ours or a model, and nothing executed.

    python -m rsn.tests.fuzz.models [--count 20000] [--seed 0]

The description of a small model, whole or in pieces, is changed at some places, with values of the right kind and of
wrong ones, and its checksum is made anew. A model that loads is called. Each call gives a result or an `RsnError`;
anything else is a bug. It is also a bug if a file makes Python import a module, start a process or open another file.
Python's audit events show that.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

import rsn
from rsn.base.errors import ContainerError, RsnError
from rsn.host.model.file import CHECKSUM, DESCRIPTION, _checksum
from rsn.host.tensors import checksum
from rsn.rsnlib.fallback import Fallback

VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 7, 1 << 31, 1 << 63, 1 << 70, 0.5, 1e308, "", "*", "lpddr", "a.b", "__class__",
    "aten.from_file.default", "aten.add_.Tensor", "aten.set_.source_Tensor", "aten.empty.memory_format", "os.system",
    "aten.__class__.__init__", "prims.add.default", "getitem", "aten.zeros.default", "aten.repeat.default",
    "aten.as_strided.default", [], {}, [[]], {"of": "x"}, {"dtype": "load"}, {"float": "nan"}, {"tuple": []},
    {"mapping": {"module": "subprocess", "name": "Popen", "fields": [["args", "*"]], "absent": []}},
    {"namedtuple": {"module": "os", "name": "system", "fields": [["command", "*"]], "absent": []}},
    {"dataclass": {"module": "antigravity", "name": "x", "fields": [], "absent": []}}, {"list": ["*", "*"]},
    [1 << 40, 1 << 40], [-1], ["x", "getitem", [1, 2], {}],
)  # fmt: skip
WATCHED = frozenset({"subprocess.Popen", "os.system", "os.exec", "os.fork", "os.posix_spawn", "pickle.find_class"})


class Module(torch.nn.Module):
    """A module with something before the machine and behind it, a mask, and a result with names. pieces: with
    operators between products that the machine does not have, one of them in float64."""

    def __init__(self, pieces: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = torch.nn.Embedding(50, 64)
        self.encoder = rsn.nn.Encoder(1, 64, 1, 128)
        self.exact, self.end = torch.nn.Linear(64, 64).double(), torch.nn.Linear(64, 64)
        self.pieces = pieces

    def forward(self, ids: Any, mask: Any) -> Any:
        y = self.encoder(self.words(ids), mask)
        if self.pieces:
            y = self.end(self.exact(torch.cos(y).double()).float())
        return {"first": y[:, 0], "rows": [y, torch.tanh(y).split(32, -1)[1]]}


def example(batch: int = 2, length: int = 12) -> dict[str, Any]:
    """Arguments for the module."""
    ids = torch.arange(batch * length).reshape(batch, length) % 50
    return {"ids": ids, "mask": torch.ones(batch, length, dtype=torch.long)}


def write(path: Path, pieces: bool) -> None:
    """The model that is changed, for two lengths."""
    dims = {0: rsn.Batch(1, 2), 1: rsn.Length(8, 12)}
    shapes = {"ids": dims, "mask": dims}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Fallback)
        with rsn.compile(Module(pieces).eval(), example(), dynamic_shapes=shapes, whole=not pieces) as family:
            family.save(path)


def contents(path: Path) -> tuple[Any, dict[str, Any]]:
    """Description and tensors of a file."""
    with safe_open(path, framework="pt") as file:
        return json.loads(file.metadata()[DESCRIPTION]), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def seal(path: Path, description: Any, tensors: dict[str, Any]) -> None:
    """Write a file whose checksums are right."""
    if isinstance(description, dict) and isinstance(description.get("checksums"), dict):
        description["checksums"] = {name: _checksum(x) for name, x in tensors.items()}
    text = json.dumps(description)
    save_file(tensors, path, metadata={DESCRIPTION: text, CHECKSUM: checksum(text.encode())})


def places(said: Any) -> Iterator[tuple[Any, Any]]:
    """Each value in a description, as what it is in and the key there."""
    for key in said if isinstance(said, dict) else range(len(said)) if isinstance(said, list) else ():
        yield said, key
        yield from places(said[key])


def changed(said: Any, choose: random.Random) -> Any:
    """A copy with one to three changes."""
    said = copy.deepcopy(said)
    for _ in range(choose.choice((1, 1, 1, 2, 3))):
        every = list(places(said))
        at, key = choose.choice(every)
        kind = choose.randrange(5)
        if kind == 0:
            at.pop(key)
        elif kind == 1:
            other, its = choose.choice(every)
            at[key] = copy.deepcopy(other[its]) if isinstance(other, dict) or its < len(other) else None
        elif kind == 2 and isinstance(at[key], int):
            at[key] += choose.choice((-1, 1, 64, -64))
        elif kind == 3 and isinstance(at, list):
            at.insert(key, copy.deepcopy(at[key]))
        else:
            at[key] = choose.choice(VALUES)
    return said


def outcome(path: Path) -> str:
    """What comes of a file, in a word."""
    try:
        loaded = rsn.load(path)
    except ContainerError:
        return "refused"
    with loaded:
        assert f"{sum(map(len, loaded.pieces.values()))} programs" in repr(loaded)
        words = set()
        for sizes in ((2, 12), (1, 5)):
            try:
                loaded(**example(*sizes))
                words.add("answers")
            except RsnError as e:
                words.add(f"loads, then {type(e).__name__}")
    return ", ".join(sorted(words))


def run(count: int, seed: int) -> Counter[str]:
    """Outcomes of changed files. Raises what no file may lead to."""
    outcomes: Counter[str] = Counter()
    told: list[str] = []
    watching = [True]

    def watch(event: str, arguments: Any) -> None:
        if watching[0] and (event in WATCHED or (event == "import" and arguments[0] in ("antigravity", "this"))):
            told.append(f"{event} {arguments}")

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.rsnmodel"
        files = []
        for pieces in (False, True):
            write(path, pieces)
            files.append(contents(path))
            assert outcome(path) == "answers"
        sys.addaudithook(watch)
        for i in range(count):
            choose, (said, tensors) = random.Random(f"{seed} {i}"), files[i % len(files)]
            seal(path, changed(said, choose), tensors)
            began = time.process_time()
            try:
                outcomes[outcome(path)] += 1
            except Exception as e:
                raise AssertionError(f"change {seed} {i}: {type(e).__name__}: {e}") from e
            took = time.process_time() - began
            if took > 20 or told:
                raise AssertionError(f"change {seed} {i}: {took:.0f} s, {told}")
    watching[0] = False
    return outcomes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    for word, n in run(given.count, given.seed).most_common():
        print(f"{n:8,}  {word}")


if __name__ == "__main__":
    main()
