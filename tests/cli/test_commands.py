"""compile, run, check and doctor as a stranger meets them: what they print, what they leave behind, how they exit."""

from __future__ import annotations

import json
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner, Result

from rsn.assembler import container
from rsn.cli.main import COMMANDS, HIDDEN, main
from rsn.host.tensors import load_tensors, save_tensors
from rsn.tests.effort import full, long


def rsn(*args: object) -> Result:
    result = CliRunner().invoke(main, [str(a) for a in args])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception  # would be a traceback
    return result


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A compiled GEMM with its weights and inputs."""
    pytest.importorskip("torch")
    out = tmp_path_factory.mktemp("gemm")
    made = rsn("compile", "gemm:200x100x70", "-o", out / "g.rsn", "--weights", out / "w.safetensors")
    assert made.exit_code == 0, made.output
    assert "1 segment on xnn, base program" in made.output
    assert rsn("asm", out / "g.rsn", "-o", out / "g.bin").exit_code == 0
    rng = np.random.default_rng(0)
    np.savez(out / "x.npz", input=rng.standard_normal((200, 100)).astype(np.float32))
    return out


def run_args(folder: Path, **changes: object) -> list[object]:
    options = {"weights": folder / "w.safetensors", "inputs": folder / "x.npz"} | changes
    return ["run", folder / "g.bin", *(x for k, v in options.items() if v is not None for x in (f"--{k}", v))]


@pytest.mark.parametrize("spec", ["gemm:200x100x70", long("minilm"), full("vit")])
def test_the_program_is_the_same_without_its_weights(spec: str, tmp_path: Path) -> None:
    """Also the scales and shifts of its outputs, which follow from the model's numbers."""
    pytest.importorskip("torch")
    texts = []
    for options in ([], ["--weights", tmp_path / "w.safetensors"]):
        made = rsn("compile", spec, "-o", tmp_path / "x.rsn", *options)
        assert made.exit_code == 0, made.output
        texts.append((tmp_path / "x.rsn").read_text())
    assert texts[0] == texts[1]
    assert all(np.isfinite(x).all() for x in load_tensors(tmp_path / "w.safetensors").values())


def test_run_computes_and_reports(folder: Path, tmp_path: Path) -> None:
    import torch

    from rsn.rsnlib.models import preset

    model, _ = preset("gemm:200x100x70")
    result = rsn(*run_args(folder, outputs=tmp_path / "y.safetensors"), "--json")
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    assert set(facts) == {"latency_s", "mops", "bytes", "utilization", "critical_path"}
    assert set(facts["bytes"]) == {"ddr_read", "ddr_write", "lpddr_read", "instructions"}
    assert facts["mops"]["total"] == sum(n for k, n in facts["mops"].items() if k != "total")
    assert sum(facts["critical_path"].values()) == pytest.approx(1)
    (y,) = load_tensors(tmp_path / "y.safetensors").values()
    with torch.no_grad():
        expected = model(torch.from_numpy(np.load(folder / "x.npz")["input"])).numpy()
    np.testing.assert_allclose(y.reshape(200, 70), expected, atol=1e-5)


def test_timing_needs_no_tensors_and_gives_the_same_latency(folder: Path) -> None:
    timed = json.loads(rsn("run", folder / "g.bin", "--timing-only", "--json").stdout)
    full = json.loads(rsn(*run_args(folder), "--json").stdout)
    assert timed == full


def test_other_rates_change_the_time(folder: Path) -> None:
    def latency(*options: str) -> float:
        return json.loads(rsn("run", folder / "g.bin", "--timing-only", "--json", *options).stdout)["latency_s"]

    assert latency("--set", "ddr_read_gbs=1") > latency() > latency("--set", "ddr_read_gbs=1000")
    wrong = rsn("run", folder / "g.bin", "--timing-only", "--set", "ddr_gbs=1")
    assert wrong.exit_code == 1
    assert "overlay xnn has no parameter 'ddr_gbs'; it has mop_fifo_depth" in wrong.stderr
    assert rsn("run", folder / "g.bin", "--timing-only", "--set", "ddr_read_gbs").exit_code == 2


def test_check_and_doctor(folder: Path) -> None:
    facts = json.loads(rsn("check", folder / "g.bin", "--json").stdout)
    assert (facts["ok"], facts["findings"]) == (True, [])
    assert "ok on xnn" in rsn("check", folder / "g.bin").stdout
    assert "board sim" in rsn("doctor").stdout


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weights": None}, "this program needs --weights"),
        ({"inputs": None}, "this program needs --inputs"),
        ({"weights": "nowhere.safetensors"}, "nowhere.safetensors: no such file"),
        ({"inputs": "nowhere.npz"}, "nowhere.npz: no such file"),
        ({"outputs": "y.bin"}, "y.bin: tensors are written as .safetensors or .npz"),
        ({"outputs": "nowhere/y.npz"}, "nowhere/y.npz: there is no folder nowhere"),
    ],
)
def test_what_is_missing_is_named(folder: Path, changes: dict, message: str) -> None:
    result = rsn(*run_args(folder, **changes))
    assert result.exit_code == 1
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_weights_of_the_wrong_shape_or_dtype(folder: Path, tmp_path: Path) -> None:
    for dtype, shape, message in ((np.float32, (3, 3), "shape (3, 3)"), (np.float16, (128, 128), "dtype float16")):
        weights = dict.fromkeys(load_tensors(folder / "w.safetensors"), np.zeros(shape, dtype))
        save_tensors(tmp_path / "w.safetensors", weights)
        result = rsn(*run_args(folder, weights=tmp_path / "w.safetensors", outputs=tmp_path / "y.npz"))
        assert result.exit_code == 1
        assert message in result.stderr
        assert "w.safetensors" in result.stderr
        assert not (tmp_path / "y.npz").exists()


@pytest.mark.parametrize("damage", ["truncate", "flip", "other"])
def test_a_damaged_program_is_refused_with_file_and_offset(folder: Path, tmp_path: Path, damage: str) -> None:
    data = bytearray((folder / "g.bin").read_bytes())
    if damage == "truncate":
        data = data[: len(data) // 2]
    elif damage == "flip":
        data[len(data) // 2] ^= 0x10
    else:
        data = bytearray(b"\x7fELF and so on")
    (tmp_path / "bad.bin").write_bytes(data)
    for command in (["run", "--timing-only"], ["check"], ["info"], ["dis"]):
        result = rsn(command[0], tmp_path / "bad.bin", *command[1:])
        assert result.exit_code == 1
        assert "bad.bin: byte " in result.stderr
        assert result.stdout == ""


def test_a_program_that_leaves_its_buffers_does_not_load(folder: Path, tmp_path: Path) -> None:
    program = container.read(folder / "g.bin")
    import dataclasses

    packets = list(program.packets)
    at = next(i for i, p in enumerate(packets) if p.header.opcode == 1)
    wrong = dataclasses.replace(packets[at].mops[0], addr=0xFFFFFF)
    packets[at] = dataclasses.replace(packets[at], mops=(wrong, *packets[at].mops[1:]))
    container.write(dataclasses.replace(program, packets=tuple(packets)), tmp_path / "out.bin")
    for command in (["run", "--timing-only"], ["check"]):
        result = rsn(command[0], tmp_path / "out.bin", *command[1:])
        assert result.exit_code == 1
        assert "at ddr address 0xffffff, which lie in no declared buffer" in result.output


def test_an_unsupported_operator_is_named_with_its_module(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(
        """
import torch
class Odd(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)
    def forward(self, x):
        return self.second(torch.sin(self.first(x)))
def make():
    return Odd(), (torch.zeros(2, 16, 64),)
"""
    )
    result = rsn("compile", f"{tmp_path / 'model.py'}:make", "-o", tmp_path / "m.rsn", "--weights", tmp_path / "w.npz")
    assert result.exit_code == 1
    assert "sin" in result.stderr
    assert "second" in result.stderr
    assert [p.name for p in tmp_path.glob("*.rsn")] == []


def test_specs_and_choices_that_do_not_exist(tmp_path: Path) -> None:
    out = ("-o", tmp_path / "x.rsn")
    unknown = rsn("compile", "bert-huge", *out)
    assert unknown.exit_code == 2
    assert "known are bert-large, bert-large-encoder" in unknown.stderr
    overlay = rsn("compile", "gemm:1x1x1", *out, "--overlay", "xnm")
    assert overlay.exit_code == 1
    assert "no overlay 'xnm'" in overlay.stderr
    schedule = rsn("compile", "gemm:1x1x1", *out, "--schedule", "fastest")
    assert "no schedule 'fastest'; there are paper, strict" in schedule.stderr
    assert rsn("compile", "gemm:1x1x1").exit_code == 2
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_board_is_the_environments_fault(folder: Path) -> None:
    result = rsn(*run_args(folder, board="vck191"))
    assert result.exit_code == 3
    assert "no board 'vck191'" in result.stderr


def test_bare_images_run_like_their_programs(folder: Path, tmp_path: Path) -> None:
    """The image, op lists and memories taken out of a container, as from another generator."""
    from rsn.host import tensors

    program = container.read(folder / "g.bin")
    assert rsn("asm", folder / "g.rsn", "-o", tmp_path / "g.img", "--raw").exit_code == 0
    ops = {u: [op.encode()[0] for op in list_] for u, list_ in program.preloaded.items()}
    (tmp_path / "ops.json").write_text(json.dumps(ops))
    banks = {bank: np.zeros(program.bank_size(bank), np.float32) for bank in ("ddr", "lpddr")}

    def put(name: str, flat: np.ndarray) -> None:
        b = program.buffer(name)
        banks[b.bank][16 * b.offset : 16 * b.offset + b.size] = flat

    for name, flat in load_tensors(folder / "w.safetensors").items():
        put(name, flat)
    x = program.buffers[0]
    put(x.name, tensors.pack(x, np.load(folder / "x.npz")["input"].reshape(x.view)))
    for bank, memory in banks.items():
        memory.tofile(tmp_path / f"{bank}.bin")
    args = ["run", tmp_path / "g.img", "--raw", "--mme", tmp_path / "ops.json"]
    memories = ["--ddr", tmp_path / "ddr.bin", "--lpddr", tmp_path / "lpddr.bin", "--dump-ddr", tmp_path / "after.bin"]
    result = rsn(*args, *memories)
    assert result.exit_code == 0, result.output
    rsn(*run_args(folder, outputs=tmp_path / "y.npz"))
    y = program.buffer(next(iter(np.load(tmp_path / "y.npz").files)))
    after = np.fromfile(tmp_path / "after.bin", np.float32)[16 * y.offset : 16 * y.offset + y.size]
    (expected,) = load_tensors(tmp_path / "y.npz").values()
    assert (tensors.unpack(y, after) == expected).all()
    assert rsn(*args, "--timing-only").exit_code == 0
    refused = rsn(*args)
    assert refused.exit_code == 1
    assert "a bare image needs --ddr" in refused.stderr


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        ("{", "ops.json: not a JSON object"),
        ("[]", "unit names with lists of op words"),
        ('{"MME9": [1]}', "no unit MME9"),
    ],
)
def test_op_lists_of_a_bare_image_are_checked(folder: Path, tmp_path: Path, lists: str, message: str) -> None:
    rsn("asm", folder / "g.rsn", "-o", tmp_path / "g.img", "--raw")
    (tmp_path / "ops.json").write_text(lists)
    result = rsn("run", tmp_path / "g.img", "--raw", "--mme", tmp_path / "ops.json", "--timing-only")
    assert result.exit_code == 1
    assert message in result.stderr


@pytest.mark.parametrize("name", sorted(COMMANDS | HIDDEN))
def test_the_list_of_commands_says_what_each_says_itself(name: str) -> None:
    """The list is written down, because rsn --help imports no command."""
    command = main.get_command(click.Context(main), name)
    assert command is not None
    assert (command.name, command.hidden) == (name, name in HIDDEN)
    listed = click.Command(name, help=(COMMANDS | HIDDEN)[name].help)
    for width in (20, 45, 80, 120, 1000):
        assert listed.get_short_help_str(width) == command.get_short_help_str(width)


def test_help_lists_the_commands() -> None:
    shown = rsn("--help").output.partition("Commands:\n")[2]
    names = [line.split()[0] for line in shown.splitlines() if line.startswith("  ") and line[2] != " "]
    assert names == sorted(COMMANDS)
    assert list(COMMANDS) == names
    assert "Assemble SOURCE (.rsn) to a program (.bin)." in shown


def test_an_unknown_command_is_wrong_usage() -> None:
    result = rsn("assemble")
    assert result.exit_code == 2
    assert "No such command 'assemble'" in result.output
