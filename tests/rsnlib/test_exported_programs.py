"""Programs of torch.export as models: by position and by name, of many sizes, from files; what is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import fx, nn
from torch.export import Dim, ExportedProgram

import rsn
from rsn.base.errors import TensorError, UnsupportedError
from rsn.host.model.compiled import Compiled
from rsn.host.model.family import Family
from rsn.rsnlib import exported_programs
from rsn.rsnlib.models import load_spec
from rsn.tests.test_shapes import difference
from rsn.tests.warm_python import WarmPython


class Layers(nn.Module):
    """Products with an argument that may be left out and one by name alone, a buffer, and a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)
        self.register_buffer("shift", torch.randn(16), persistent=False)
        self.constant = torch.randn(16)

    def forward(self, x: Any, y: Any = None, *, scale: float = 1.0) -> dict[str, torch.Tensor]:
        shifted = x + self.shift if y is None else x + self.shift * y
        z = self.down(nn.functional.gelu(self.up(shifted)) * scale) + self.constant
        return {"all": z, "first": z[:, 0]}


def layers() -> Layers:
    torch.manual_seed(0)
    return Layers().eval()


def exported(model: nn.Module, *args: Any, shapes: Any = None, **kwargs: Any) -> ExportedProgram:
    return torch.export.export(model, args, kwargs, dynamic_shapes=shapes)


@torch.no_grad()
def check(compiled: Any, model: nn.Module, *args: Any, **kwargs: Any) -> None:
    got, wanted = compiled(*args, **kwargs), model(*args, **kwargs)
    assert list(got) == list(wanted)
    assert difference(got, wanted) < 1e-5


def test_a_program_its_module_and_the_ways_to_call_them() -> None:
    model, x, y = layers(), torch.randn(2, 5, 16), torch.randn(16)
    for program in (exported(model, x, y, scale=2.0), exported(model, x, y=y, scale=2.0)):
        module = program.module()
        for compiled in (rsn.compile(program), rsn.compile(module, (x, y, 2.0)), rsn.compile(program, (x, y, 2.0))):
            check(compiled, model, x, y, scale=2.0)
            check(compiled, model, y=y, scale=2.0, x=x)
    assert exported_programs.as_module(program) is exported_programs.as_module(program)


def test_operators_keep_their_modules() -> None:
    model = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 1, enable_nested_tensor=False
    ).eval()
    program = exported(model, torch.randn(1, 4, 16))
    assert [line.split()[0] for line in rsn.explain(program).splitlines() if "linear" in line][:2] == [
        "linear1",
        "linear2",
    ]
    assert type(exported_programs.as_module(program)).__name__ == "TransformerEncoder"


def test_changes_of_the_tensors_are_followed() -> None:
    model, x = layers(), torch.randn(2, 5, 16)
    compiled = rsn.compile(exported(model, x))
    check(compiled, model, x)
    with torch.no_grad():
        model.up.weight.mul_(3)
    check(compiled, model, x)


def test_changes_of_the_graph_are_followed() -> None:
    model, x = layers(), torch.randn(2, 5, 16)
    module = exported(model, x).module()
    assert isinstance(module, fx.GraphModule)
    compiled = rsn.compile(module, (x,))
    check(compiled, model, x)
    gelu = next(node for node in module.graph.nodes if node.target is torch.ops.aten.gelu.default)
    gelu.target = torch.ops.aten.relu.default
    module.recompile()
    check(compiled, module, x)
    check(rsn.compile(module, (x,)), module, x)


def test_open_sizes_become_a_family() -> None:
    model, x = layers(), torch.randn(2, 5, 16)
    sizes = {0: Dim("batch", min=1, max=6), 1: Dim("rows", min=2, max=40)}
    program = exported(model, x, shapes={"x": sizes})
    family = rsn.compile(program)
    assert isinstance(family, Family)
    assert exported_programs.shapes_of(program) == {"x": {0: rsn.Batch(1, 2, 3, 6), 1: rsn.Length(5, 10, 20, 40)}}
    for batch, rows in ((2, 5), (6, 40), (1, 2), (5, 17)):
        check(family, model, torch.randn(batch, rows, 16))
    with pytest.raises(TensorError, match="there are programs for batch 1 to 6, length 1 to 40"):
        family(torch.randn(7, 5, 16))
    chosen = rsn.compile(program, dynamic_shapes={"x": {0: rsn.Batch(3), 1: rsn.Length(8)}})
    check(chosen, model, torch.randn(3, 7, 16))
    assert isinstance(rsn.compile(program, lengths=[5, 5]), Compiled)


class Two(nn.Module):
    """Two arguments, each of which may leave sizes open."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.exp().sum() + y.sum()


def two(x: dict[int, Any], y: dict[int, Any]) -> ExportedProgram:
    return exported(Two(), torch.randn(4, 6), torch.randn(6, 6), shapes={"x": x, "y": y})


def test_a_size_is_one_wherever_it_is() -> None:
    rows = Dim("rows", min=3, max=8)
    length = rsn.Length(4, 8)
    assert exported_programs.shapes_of(two({1: rows}, {0: rows, 1: rows})) == {
        "x": {1: length},
        "y": {0: length, 1: length},
    }
    assert exported_programs.shapes_of(two({}, {})) is None


def test_sizes_that_are_refused() -> None:
    def told(x: dict[int, Any], y: dict[int, Any]) -> str:
        with pytest.raises(UnsupportedError) as error:
            exported_programs.shapes_of(two(x, y))
        return str(error.value)

    for size, what in ((0, "batch"), (1, "length")):
        assert told({size: Dim.DYNAMIC}, {}).startswith(
            f"argument x of the exported program: its size {size} has no largest value: export it with "
            f'torch.export.Dim("{what}", max=...), or give dynamic_shapes={{'
        )
    again = told({1: Dim("a", min=1, max=8)}, {1: Dim("b", min=1, max=8)})
    assert again.startswith(
        "argument y of the exported program: its size 1 has the range of another size, 1 to 8: give"
    )
    half = Dim("half", min=1, max=8)
    assert "which follows from another size: give dynamic_shapes=" in told({0: 2 * half}, {1: 3 * half})

    class Listed(nn.Module):
        def forward(self, given: list[torch.Tensor]) -> torch.Tensor:
            return given[0] + 1

    program = exported(Listed(), [torch.randn(4, 6)], shapes={"given": [{0: Dim("rows", min=1, max=8)}]})
    with pytest.raises(UnsupportedError, match="a size open of a tensor that is a part of an argument"):
        exported_programs.shapes_of(program)


def test_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = layers(), torch.randn(2, 5, 16)
    file = tmp_path / "layers.pt2"
    torch.export.save(exported(model, x, shapes={"x": {0: Dim("batch", min=1, max=6), 1: Dim.DYNAMIC}}), file)
    check(rsn.compile(file, lengths=[5, 5]), model, x)
    check(rsn.compile(str(file), dynamic_shapes={"x": {0: rsn.Batch(2)}}), model, x)
    module, example = load_spec(str(file), batch=3, seq=7)
    assert isinstance(example, dict)
    assert example["x"].shape == (3, 7, 16)
    check(module, model, **example)
    assert load_spec(str(file))[1]["x"].equal(x)

    torch.export.save(exported(model, x), file)
    with pytest.raises(UnsupportedError, match="the exported program has no open length, so it cannot be 7"):
        load_spec(str(file), seq=7)
    with pytest.raises(UnsupportedError, match=f"{tmp_path}/none.pt2: no such file"):
        rsn.compile(tmp_path / "none.pt2")
    (tmp_path / "text.pt2").write_text("no archive")
    with pytest.raises(UnsupportedError, match=r"text\.pt2: no program of torch\.export"):
        rsn.compile(tmp_path / "text.pt2")
    with pytest.raises(TensorError, match="example inputs are a tuple or a dict of tensors, not NoneType"):
        rsn.compile(model)  # type: ignore[call-overload]


@pytest.mark.long
def test_a_file_whose_result_is_of_a_class_of_transformers(tmp_path: Path, warm_python: WarmPython) -> None:
    """In a process that has not imported it; torch tells the cause to its log alone."""
    pytest.importorskip("transformers")
    make, use = tmp_path / "make.py", tmp_path / "use.py"
    make.write_text(
        "import torch\nfrom transformers.modeling_outputs import BaseModelOutput\n"
        "class Model(torch.nn.Module):\n"
        "    def forward(self, x):\n        return BaseModelOutput(last_hidden_state=x * 2)\n"
        "torch.export.save(torch.export.export(Model(), (torch.ones(2),)), 'm.pt2')\n"
    )
    use.write_text(
        "import sys\nfrom rsn.rsnlib import exported_programs as programs\n"
        "assert 'transformers' not in sys.modules\nprogram = programs.read_program('m.pt2')\n"
        "print(type(programs.as_module(program)(**programs.example_of(program))).__name__)\n"
    )
    subprocess.run([warm_python.bin / "python", make], cwd=tmp_path, check=True, capture_output=True)
    done = subprocess.run([sys.executable, use], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert done.stdout == "BaseModelOutput\n"
