"""One path from a module to a program: whoever compiles, the program is the same."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch")

import rsn  # noqa: E402 - torch first: it may be missing
from rsn.assembler.parser import parse_file  # noqa: E402
from rsn.base.errors import UnsupportedError  # noqa: E402
from rsn.cli.main import main  # noqa: E402
from rsn.host.model.compiled import Compiled  # noqa: E402
from rsn.isa.program import Program  # noqa: E402
from rsn.rsnlib.graph_split import LimitError  # noqa: E402
from rsn.rsnlib.pipeline import Pipeline  # noqa: E402
from rsn.scheduler.schedule import PAPER  # noqa: E402
from rsn.tests.statements import statements  # noqa: E402

MODEL = """
import torch
from torch import nn


def model():
    torch.manual_seed(0)
    layers = nn.Linear(70, 200), nn.GELU(), nn.Linear(200, 70), nn.LayerNorm(70)
    return nn.Sequential(*layers).eval(), (torch.ones(3, 40, 70),)
"""
STEPS = {
    "rsn.rsnlib.trace": {"trace", "interpret"},
    "rsn.rsnlib.graph_split": {"split"},
    "rsn.scheduler.build": {"build", "rebuild"},
    "rsn.scheduler.lower": {"lower"},
}
"""What makes programs, by module."""


def test_the_same_program_whoever_compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "made.py").write_text(MODEL)
    space: dict[str, object] = {}
    exec(MODEL, space)
    model, inputs = space["model"]()  # type: ignore[operator]
    pipeline = Pipeline.named("xnn")
    wanted = pipeline.build(pipeline.trace(model, inputs).network).program

    with rsn.compile(model, inputs) as compiled:
        programs: list[Program] = [compiled.program]
    target = tmp_path / "p.rsn"
    result = CliRunner().invoke(main, ["compile", f"{tmp_path / 'made.py'}:model", "-o", str(target)])
    assert result.exit_code == 0, result.output
    written = parse_file(target)
    assert isinstance(written, Program)
    programs.append(written)

    made = Compiled.__init__

    def noted(self: Compiled, traced: object, built: object, **others: object) -> None:
        programs.append(built.program)  # type: ignore[attr-defined]
        made(self, traced, built, **others)  # type: ignore[arg-type]

    monkeypatch.setattr(Compiled, "__init__", noted)
    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(model, backend="rsn", options={"fallback": "error"})(*inputs)
    assert len(programs) == 3
    for program in programs:
        np.testing.assert_array_equal(program.image, wanted.image)
        assert {u: [op.encode() for op in ops] for u, ops in program.preloaded.items()} == {
            u: [op.encode() for op in ops] for u, ops in wanted.preloaded.items()
        }


def test_a_limit_of_the_machine_is_told_as_one() -> None:
    """What decides whether pieces are proposed."""
    linear = torch.nn.Linear(8, 100_000).eval()
    pipeline = Pipeline.named("xnn-base", PAPER)
    network = pipeline.trace(
        torch.nn.Sequential(linear, torch.nn.LayerNorm(100_000)).eval(), (torch.ones(4, 8),)
    ).network
    with pytest.raises(LimitError):
        pipeline.build(network)
    with pytest.raises(UnsupportedError):
        pipeline.check(network)


def test_the_steps_are_joined_in_the_pipeline_alone(root: Path) -> None:
    """Above the compiler nobody calls a step of it. The networks of the paper and of stream programs come from no
    module, and are built alone."""
    found = []
    for folder in ("cli", "host", "."):
        for file in root.joinpath(folder).glob("*.py" if folder == "." else "**/*.py"):
            package = ["rsn", *file.relative_to(root).parent.parts]
            for node in statements(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ImportFrom):
                    base = package[: len(package) + 1 - node.level] if node.level else []
                    module = ".".join([*base, *(node.module or "").split(".")])
                    steps = {alias.name for alias in node.names} & STEPS.get(module, set())
                    found += [(file.relative_to(root).as_posix(), step) for step in steps]
    assert sorted(found) == [(f"cli/{name}.py", "build") for name in ("map", "published/networks", "published/rows")]
