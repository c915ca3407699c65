"""Files of each kind that users keep: this version writes them, and each version after it must read them.

`python -m rsn.tests.earlier.files` writes them for the version that is about to be released, to a folder of its name.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from click.testing import CliRunner
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

import rsn
from rsn.base.version import __version__
from rsn.cli.main import main
from rsn.host.generation import Decoder, Generation, Sampling, load
from rsn.host.tensors import load_tensors, save_tensors

Outcome = np.ndarray[Any, Any]
FOLDER = Path(__file__).parent
OUTCOMES = "outcomes.npz"
"""In the folder of a version: what each of its files gave when it was written."""


def model() -> tuple[nn.Module, tuple[torch.Tensor]]:
    """The model that most files are of, and a call of it."""
    torch.manual_seed(0)
    return nn.Linear(16, 16).eval(), (torch.linspace(-1, 1, 64).reshape(4, 16),)


class Summed(nn.Module):
    """A model whose middle the machine cannot run."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.last(torch.cumsum(self.first(x), -1))
        return y


def language_model() -> nn.Module:
    """A decoder of 96 tokens."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1}
    return LlamaForCausalLM(LlamaConfig(**sizes, vocab_size=96)).eval()


WRITTEN_BY_HAND = {
    "dynamic-inputs.txt": "rows: [[1,2,3,4]] [[1,0,0,0]] [[5,0,0,0]] D\n",
    "kernels.toml": "[kernels]\nmatmul = 256\nelements = 32\n",
    "mesh.toml": "rows = 2\ncolumns = 3\nin_ports = 3\nmemory = 32768\n",
    "dynamic.py": """import numpy as np
from rsn.streams.dynamic import *

with Program() as program:
    rows = program.input("rows", [3], tile(1, 4))
    weights = Tensor.of(np.arange(32.0).reshape(4, 8) / 7, name="w")
    loaded = Flatten(0, 1)(LinearOffChipLoad(weights, (4, 8), (1, 1), (1, 1))(rows))
    program.output("sums", Map(RowSum())(Map(Matmul(dtype="f32"))(rows, Flatten(0, 1)(loaded))))
""",
}
SPEC = "../files.py:model"
COMPILE = f"compile {SPEC} -o"
TUNE = f"tune {SPEC} --onto u55c --trials 2 --study"
WRITTEN_BY = f"""{COMPILE} model.rsn --weights model-weights.safetensors --schedule-out schedule.toml
asm model.rsn
{COMPILE} model.rsnmodel
{COMPILE} lanes.rsnmodel --overlay xnn2
{COMPILE} machine.rsn --machine generated --onto u55c --inputs-out machine-inputs.npz --stream-program machine.py
asm machine.rsn
compile dynamic.py:program -o dynamic.rsn --weights dynamic-weights.safetensors
asm dynamic.rsn
{TUNE} machine.study"""
"""Commands that write files, each with those before it in the same folder."""


def command(line: str) -> str:
    """Run a command of `rsn` in the folder of a version, and return what it prints. Raises `AssertionError` with that
    if it fails."""
    done = CliRunner().invoke(main, shlex.split(line))
    assert done.exit_code == 0, f"rsn {line}: {done.output}"
    return done.output


def write(folder: Path) -> None:
    """Write a file of each kind to a new folder, and what each of them gives."""
    folder.mkdir()
    with contextlib.chdir(folder), torch.no_grad():
        for name, text in WRITTEN_BY_HAND.items():
            Path(name).write_text(text, encoding="utf-8")
        for line in WRITTEN_BY.splitlines():
            command(line)
        Path("overlay.toml").write_text(command("overlay xnn2"), encoding="utf-8")
        module, (x,) = model()
        save_tensors("model-inputs.npz", {"input": x.numpy()})
        with rsn.compile(module, (x,), dynamic_shapes={"input": {0: rsn.Batch(2, 4)}}).prepare() as family:
            family.save("family.rsnmodel")
        with rsn.compile(Summed().eval(), (x,), whole=False) as pieces:
            pieces.save("pieces.rsnmodel")
        with Decoder(language_model(), slots=1, capacity=8, chunk=8) as decoder:
            decoder.save("decoder.rsnmodel")
        save_tensors(OUTCOMES, {name: read(Path(name).absolute()) for name, read in READ.items()})


def _run(path: Path) -> Outcome:
    """All outputs of a program in a row, with the inputs and weights that lie beside it."""
    given = [
        f"--{what} '{file}'" for what in ("inputs", "weights") for file in path.parent.glob(f"{path.stem}-{what}.*")
    ]
    with TemporaryDirectory() as scratch:
        output = Path(scratch) / "output.npz"
        if path.suffix == ".rsn":
            command(f"asm '{path}' -o '{scratch}/program.bin'")
            path = Path(scratch) / "program.bin"
        command(f"run '{path}' --outputs '{output}' {' '.join(given)}")
        return np.concatenate([x.ravel() for _, x in sorted(load_tensors(output).items())])


def _call(path: Path) -> Outcome:
    """The result of a model."""
    with torch.no_grad(), rsn.load(path) as loaded:
        outcome: Outcome = loaded(*model()[1]).numpy()
    return outcome


def _generate(path: Path) -> Outcome:
    """The tokens of a decoder."""
    with Generation(load(path)) as generation:
        return np.array(list(generation.submit([3, 9, 4], Sampling(max_tokens=4))))


def _take(template: str) -> Callable[[Path], Outcome]:
    """A command that takes the file, for which {} stands; it gives nothing."""

    def read(path: Path) -> Outcome:
        with TemporaryDirectory() as scratch, contextlib.chdir(path.parent):
            command(template.format(path.name, scratch=scratch))
        return np.zeros(0)

    return read


READ: dict[str, Callable[[Path], Outcome]] = {
    "model.rsn": _run,
    "model.bin": _run,
    "machine.rsn": _run,
    "machine.bin": _run,
    "machine.py": _run,
    "dynamic.rsn": _run,
    "dynamic.bin": _run,
    "model.rsnmodel": _call,
    "lanes.rsnmodel": _call,
    "family.rsnmodel": _call,
    "pieces.rsnmodel": _call,
    "decoder.rsnmodel": _generate,
    "schedule.toml": _take(f"{COMPILE} {{scratch}}/x.rsn --schedule {{}}"),
    "overlay.toml": _take(f"{COMPILE} {{scratch}}/x.rsn --overlay {{}}"),
    "kernels.toml": _take("run machine.py --timing-only --kernels {}"),
    "mesh.toml": _take("map machine.py --onto {}"),
}
"""By name of a file: what it gives. A study is not among them: the search of each version is its own."""

if __name__ == "__main__":
    write(FOLDER / __version__)
