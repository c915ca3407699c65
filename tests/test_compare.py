"""A compiled model against PyTorch, segment by segment: nothing is found where nothing is wrong, and what is wrong is
found where it is."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

pytest.importorskip("torch")
import torch

from rsn.assembler import container
from rsn.base.errors import ProgramError, TensorError
from rsn.base.tolerance import BOUND
from rsn.cli.main import main
from rsn.host.model.compare import Compared, compare, show
from rsn.host.model.file import read
from rsn.host.tensors import load_tensors, save_tensors
from rsn.isa.overlays import XNN
from rsn.isa.program import Program, Role
from rsn.nn import Encoder
from rsn.rsnlib.key_spans import KeySpans
from rsn.rsnlib.models import Mlp
from rsn.rsnlib.trace import trace
from rsn.scheduler.build import build
from rsn.scheduler.graph import Gemm, LayerGraph
from rsn.scheduler.schedule import PAPER, STRICT, Loops, Schedule

pytestmark = pytest.mark.long

Array = np.ndarray


@dataclasses.dataclass(frozen=True)
class Case:
    program: Program
    weights: dict[str, Array]
    network: LayerGraph
    inputs: dict[str, Array]
    spans: KeySpans | None

    def compare(self, **changes: Any) -> list[Compared]:
        return compare(**{f.name: getattr(self, f.name) for f in dataclasses.fields(self)} | changes)


def made(module: torch.nn.Module, example: tuple[Any, ...] | dict[str, Any], schedule: Schedule = PAPER) -> Case:
    traced = trace(module.eval(), example)
    built = build(traced.network, XNN, schedule)
    prologue = traced.host.prologue(*example) if isinstance(example, tuple) else traced.host.prologue(**example)
    return Case(built.program, dict(built.weights), traced.network, prologue[0], prologue[1])


@cache
def encoder(layers: int = 2, batch: int = 2, seq: int = 70, schedule: Schedule = PAPER, heads: int = 2) -> Case:
    """Masked, sequences of different lengths, erf GELU."""
    torch.manual_seed(layers)
    mask = torch.ones(batch, seq, dtype=torch.int64)
    mask[0, seq // 2 :] = 0
    x = torch.randn(batch, seq, 128)
    return made(Encoder(layers, 128, heads, 256), {"hidden_states": x, "attention_mask": mask}, schedule)


@cache
def mlp() -> Case:
    """Wide enough for an activation that lies in panels."""
    torch.manual_seed(3)
    return made(Mlp(60, 1100, 2100, 17), (torch.randn(130, 60),))


CASES = {
    "encoder": lambda: encoder(),
    "one layer": lambda: encoder(1, 3, 129),
    "narrow heads": lambda: encoder(1, 1, 40, heads=4),
    "strict": lambda: encoder(1, 2, 70, STRICT),
    "mlp": mlp,
}
every = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


# -- nothing wrong --------------------------------------------------------------------------------------------------


@every
def test_every_segment_is_that_of_pytorch(case: Any) -> None:
    c = case()
    rows = c.compare()
    assert [r.name for r in rows] == [layer.y for layer in c.network.layers]
    assert [r.path for r in rows] == [layer.path for layer in c.network.layers]
    for r in rows:
        assert r.difference < BOUND / 3  # may be 0: some processors add up a product as the simulator does
        assert r.own < BOUND / 3
    assert show(rows).endswith(f"all {len(rows)} results within {BOUND:g} of PyTorch")


def test_layers_that_are_fused_are_named() -> None:
    rows = {r.name: r for r in encoder(1, 2, 70, Schedule(loops=Loops.ROWS)).compare()}
    assert rows["layers_0_attn_key"].fused == "layers.0.attn.query, layers.0.attn.value"
    assert rows["layers_0_ffn_down"].layers == ("layers.0.ffn.down", "layers.0.ffn_norm")
    lines = {line.split()[0]: line for line in show(list(rows.values())).splitlines()}
    assert lines["layers_0_ffn_down"].endswith("  layers.0.ffn_norm")
    assert lines["layers_0_attn"].rstrip() == lines["layers_0_attn"]
    assert rows["layers_0_attn"].fused == ""


def test_a_program_that_does_not_say_its_segments_compares_the_same() -> None:
    c = encoder(1, 3, 129)
    bare = c.compare(program=dataclasses.replace(c.program, segments=()))
    assert bare == c.compare()


def test_an_activation_that_lies_in_panels_is_put_together() -> None:
    c = mlp()
    panels = [b for b in c.program.buffers if b.role is Role.SCRATCH and b.shape[0] > 256]
    assert panels


def test_comparing_changes_none_of_what_it_is_given() -> None:
    c = encoder()
    weights = {name: w.copy() for name, w in c.weights.items()}
    inputs = {name: x.copy() for name, x in c.inputs.items()}
    c.compare()
    for name, w in weights.items():
        np.testing.assert_array_equal(c.weights[name], w)
    for name, x in inputs.items():
        np.testing.assert_array_equal(c.inputs[name], x)
    assert c.compare() == c.compare()


def test_lengths_take_part() -> None:
    """The machine's attention over fewer keys is not that over all of them."""
    c = encoder()
    assert c.spans is not None
    assert all(r.difference < BOUND for r in c.compare(spans=KeySpans(np.array([70, 70]))))
    assert all(r.difference < BOUND for r in c.compare(spans=KeySpans(np.array([1, 33]))))
    full = dataclasses.replace(
        c.program, parameters=tuple(dataclasses.replace(p, patches=()) for p in c.program.parameters)
    )  # lengths have no effect: every key is left out
    rows = c.compare(program=full)
    (first, *_) = [r.name for r in rows if not r.difference < BOUND]
    attention = next(layer for layer in c.network.layers if not isinstance(layer, Gemm))
    assert first == attention.y


# -- something wrong ------------------------------------------------------------------------------------------------


def gemms(c: Case) -> list[Gemm]:
    return [layer for layer in c.network.layers if isinstance(layer, Gemm)]


def users(c: Case, name: str) -> set[str]:
    """What depends on an activation, itself included."""
    found = {name}
    for layer in c.network.layers:
        reads = {layer.x, layer.residual} if isinstance(layer, Gemm) else {layer.q, layer.k, layer.v}
        if reads & found:
            found.add(layer.y)
    return found


@pytest.mark.parametrize("at", [0, 2, 4, 5, 7, 11])
def test_a_damaged_weight_is_found_where_it_is(at: int) -> None:
    """The segment it belongs to is wrong on its own; those after it are wrong only through it; no other is."""
    c = encoder()
    layer = gemms(c)[at]
    damaged = layer.weight.copy()
    damaged[5, 7] += 40
    (name,) = [n for n in c.weights if n == f"{layer.path}.weight"]
    (place,) = np.flatnonzero(c.weights[name] == layer.weight[5, 7])[:1]
    weights = {**c.weights, name: c.weights[name].copy()}
    weights[name][place] += 40
    rows = {r.name: r for r in c.compare(weights=weights)}
    assert rows[layer.y].own > BOUND
    assert rows[layer.y].difference > BOUND
    assert {r.name for r in rows.values() if r.own > BOUND} == {layer.y}
    assert {r.name for r in rows.values() if r.difference > BOUND} <= users(c, layer.y)
    text = show(list(rows.values()))
    assert f"first beyond 0.0001: {layer.y} ({layer.path}), stored at " in text
    assert text.count("<- beyond the bound") == sum(r.difference > BOUND for r in rows.values())


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_no_number_is_infinitely_wrong(value: float) -> None:
    c = encoder()
    layer = gemms(c)[4]
    weights = {**c.weights, f"{layer.path}.bias": c.weights[f"{layer.path}.bias"].copy()}
    weights[f"{layer.path}.bias"][3] = value
    rows = {r.name: r for r in c.compare(weights=weights)}
    assert rows[layer.y].difference == rows[layer.y].own == math.inf
    before = [r for r in rows.values() if r.name not in users(c, layer.y)]
    assert before
    assert all(r.difference < BOUND for r in before)
    assert f"first beyond 0.0001: {layer.y}" in show(list(rows.values()))


def test_places_are_those_of_the_first_stores() -> None:
    """Packets of the off-chip unit, in the order of the segments."""
    rows = encoder(1, 3, 129).compare()
    packets = [int(r.where.removeprefix("packet ").split()[0]) for r in rows]
    assert packets == sorted(packets)
    p = encoder(1, 3, 129).program
    assert {p.overlay.by_opcode[p.packets[n].header.opcode].name for n in packets} == {"DDR"}


# -- another model --------------------------------------------------------------------------------------------------


def other(hidden: int = 128, inner: int = 256, batch: int = 2, seq: int = 70, layers: int = 2) -> Case:
    mask = torch.ones(batch, seq, dtype=torch.int64)
    x = torch.randn(batch, seq, hidden)
    return made(Encoder(layers, hidden, hidden // 64, inner), {"hidden_states": x, "attention_mask": mask})


@pytest.mark.parametrize(
    "change",
    [{"hidden": 64}, {"seq": 71}, {"seq": 300}, {"batch": 1}, {"batch": 4}, {"layers": 3}, {"hidden": 256}],
    ids=str,
)
def test_another_model_is_refused(change: dict[str, int]) -> None:
    c, wrong = encoder(), other(**change)
    with pytest.raises(
        (ProgramError, TensorError), match=r"was it compiled from this model|this program takes|parameter"
    ):
        c.compare(network=wrong.network, inputs=wrong.inputs, spans=wrong.spans)


@pytest.mark.parametrize("inner", [128, 300, 1200])
def test_another_model_of_the_same_names_is_refused_or_different(inner: int) -> None:
    c, wrong = encoder(), other(inner=inner)
    try:
        rows = c.compare(network=wrong.network)
    except ProgramError as e:
        assert "was it compiled from this model?" in str(e)  # noqa: PT017
    else:
        assert any(r.difference > BOUND for r in rows)


def test_fewer_layers_are_a_part_of_the_model() -> None:
    """The last output is no buffer of its own kind, so the view differs or the names do."""
    c, wrong = encoder(), other(layers=1)
    with pytest.raises((ProgramError, TensorError)):
        c.compare(network=wrong.network, inputs={"other": np.zeros((2, 70, 128), np.float32)})


def test_inputs_are_checked() -> None:
    c = encoder()
    (name,) = c.inputs
    with pytest.raises(TensorError, match=f"the inputs are y; this program takes {name}"):
        c.compare(inputs={"y": c.inputs[name]})
    with pytest.raises(TensorError, match="dtype float64"):
        c.compare(inputs={name: c.inputs[name].astype(np.float64)})
    with pytest.raises(TensorError, match="shape"):
        c.compare(inputs={name: c.inputs[name][:, :-1]})


# -- the command ----------------------------------------------------------------------------------------------------


def rsn(*args: object) -> Result:
    result = CliRunner().invoke(main, [str(a) for a in args])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception  # would be a traceback
    return result


SPEC = "gemm:200x100x70"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("compare")
    assert rsn("compile", SPEC, "-o", out / "g.rsn", "--weights", out / "w.safetensors").exit_code == 0
    assert rsn("asm", out / "g.rsn", "-o", out / "g.bin").exit_code == 0
    return out


def run(folder: Path, *more: object, spec: str = SPEC, weights: str = "w.safetensors") -> Result:
    return rsn("run", folder / "g.bin", "--weights", folder / weights, "--compare", spec, *more)


def test_the_command_says_that_all_is_well(folder: Path) -> None:
    result = run(folder)
    assert result.exit_code == 0, result.output
    assert "all 1 results within 0.0001 of PyTorch" in result.stdout
    assert "g.rsn:" in result.stdout


def test_the_command_exits_with_1_beyond_the_bound(folder: Path) -> None:
    for result in (run(folder, "--seed", "1", "--bound", "1e-9"), run(folder, "--seed", "1")):
        assert result.exit_code == 1
        assert "<- beyond the bound" in result.stdout
        assert "Traceback" not in result.output
    assert run(folder, "--bound", "2", "--seed", "1").exit_code == 0


def test_the_command_gives_json(folder: Path) -> None:
    facts = json.loads(run(folder, "--json").stdout)
    assert facts["bound"] == BOUND
    (row,) = facts["segments"]
    assert list(row) == ["name", "path", "where", "difference", "own", "layers"]
    assert row["difference"] < BOUND
    wrong = run(folder, "--json", "--seed", "1", "--bound", "0.001")
    assert wrong.exit_code == 1
    assert json.loads(wrong.stdout)["bound"] == 0.001


def test_the_command_takes_inputs(folder: Path, tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((200, 100)).astype(np.float32)
    for shape in ((200, 100), (1, 200, 100)):
        np.savez(tmp_path / "x.npz", input=x.reshape(shape))
        assert run(folder, "--inputs", tmp_path / "x.npz").exit_code == 0
    np.savez(tmp_path / "x.npz", input=x[:, :99])
    result = run(folder, "--inputs", tmp_path / "x.npz")
    assert result.exit_code == 1
    assert "shape (200, 99)" in result.stderr


def test_a_damaged_weight_file_is_found(folder: Path) -> None:
    weights = load_tensors(folder / "w.safetensors")
    name = next(n for n in weights if n.endswith("weight"))
    weights[name] = weights[name].copy()
    weights[name].flat[3] = 9
    save_tensors(folder / "bad.safetensors", weights, packed=True)  # type: ignore[arg-type]
    result = run(folder, weights="bad.safetensors")
    assert result.exit_code == 1
    assert "first beyond 0.0001: " in result.stdout


@pytest.mark.parametrize(
    ("spec", "code", "message"),
    [
        ("gemm:200x100x71", 1, "is 1x200x70 in the program: was it compiled from this model?"),
        ("gemm:200x100x1", 1, "was it compiled from this model?"),
        ("gemm:200x101x70", 1, "this program takes (1, 200, 100)"),
        ("gemm:199x100x70", 2, "gemm:199x100x70 has M = 199 rows, not 1 x 200"),
        ("minilm", 1, "was it compiled from this model?"),
        ("nope", 2, "no preset 'nope'"),
    ],
)
def test_another_spec_is_refused(folder: Path, spec: str, code: int, message: str) -> None:
    result = run(folder, spec=spec)
    assert (result.exit_code, result.stdout) == (code, "")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_unknown_parameters_are_refused(folder: Path) -> None:
    result = run(folder, "--param", "len[0]=3")
    assert result.exit_code == 1
    assert "no parameter 'len[0]'; this program has none" in result.stderr


def test_a_masked_model_from_a_file(tmp_path: Path) -> None:
    """Two sequences; the mask of the example leaves keys out; a parameter leaves out others."""
    (tmp_path / "m.py").write_text(
        """
import torch
from rsn.nn import Encoder

def make(batch, seq):
    mask = torch.ones(batch, seq, dtype=torch.int64)
    mask[-1, seq // 2:] = 0
    return Encoder(1, 64, 1, 64), {
        "hidden_states": torch.randn(batch, seq, 64), "attention_mask": mask}
"""
    )
    spec, size = f"{tmp_path / 'm.py'}:make", ("--batch", 2, "--seq", 40)
    out = tmp_path / "m.rsn"
    assert rsn("compile", spec, "-o", out, "--weights", tmp_path / "w.safetensors", *size).exit_code == 0
    assert rsn("asm", out, "-o", tmp_path / "m.bin").exit_code == 0
    args = ("run", tmp_path / "m.bin", "--weights", tmp_path / "w.safetensors", "--compare", spec)
    for more in ((), ("--param", "len[0]=7"), ("--param", "len[0]=1", "--param", "len[1]=40")):
        result = rsn(*args, *more)
        assert result.exit_code == 0, result.output
    assert rsn(*args, "--param", "len[0]=41").exit_code == 1
    assert rsn(*args, "--param", "len[2]=4").exit_code == 1
    shown = rsn(*args).stdout
    assert re.search(r"^layers_0_attn_out .*m\.rsn:\d+ +layers\.0\.attn_norm$", shown, re.MULTILINE), shown
    assert rsn("compile", spec, "-o", tmp_path / "m.rsnmodel", *size).exit_code == 0
    found = container.read(tmp_path / "m.bin").segments
    made = read(tmp_path / "m.rsnmodel").parts[0].on_machine[0].program.segments
    assert found == tuple(dataclasses.replace(s, uops={}) for s in made)  # a text does not say uOPs
    assert any(len(s.layers) > 1 for s in found)
