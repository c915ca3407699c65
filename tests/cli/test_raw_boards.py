"""`rsn run --raw` on every board: the same image and memories, and the same bits afterwards."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from hypothesis import given

from rsn.assembler import container
from rsn.cli.main import main
from rsn.host.boards.in_process import InProcess
from rsn.tests.effort import examples, long
from rsn.tests.host import words as w
from rsn.tests.host.boards.programs import stuck
from rsn.tests.hw.examples import Example, example
from rsn.tests.hw.versal.native import native, write_files
from rsn.tests.hw.versal.tile_programs import Case, products

from .test_raw import Case as MadeElsewhere
from .test_raw import attention, gemm, refused

Array = np.ndarray

IN_CPP = ("csim", "vck190@csim", "vck190-isca25@csim")
IN_PYTHON = ("sim", "vck190@sim", "vck190-isca25@sim")


def rsn(*args: object) -> Result:
    result = CliRunner().invoke(main, [str(a) for a in args])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception  # would be a traceback
    return result


def run(folder: Path, board: str, *more: object) -> Result:
    """Run the image of a folder, whose files are called as `write_files` and `Case.write` call them."""
    ops = next(file for file in (folder / "mme.json", folder / "ops.json") if file.exists())
    files = ["--mme", ops, "--ddr", folder / "ddr.bin", "--lpddr", folder / "lpddr.bin"]
    return rsn("run", "--raw", folder / "image.bin", "--board", board, *files, *more)


def after(folder: Path, board: str, *more: object) -> Array:
    """DDR after a run, as bits: there may be NaN."""
    done = run(folder, board, "--dump-ddr", folder / "after.bin", *more)
    assert done.exit_code == 0, done.stderr
    return np.fromfile(folder / "after.bin", "<u4")


def put(e: Example, folder: Path) -> Example:
    write_files(e.program, e.banks(), folder)
    return e


def integers(e: Example) -> Example:
    """Small integers instead of what it is given: then no order of summation changes a sum."""
    rng = np.random.default_rng(1)
    return replace(e, given={n: rng.integers(-4, 5, flat.shape).astype(np.float32) for n, flat in e.given.items()})


# -- the same bits ----------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("make", [gemm, attention])
def test_an_image_made_elsewhere(make: Callable[[], MadeElsewhere], tmp_path: Path) -> None:
    """Attention leaves LPDDR alone, whose file is empty."""
    made = make()
    made.write(tmp_path)
    for boards in (IN_PYTHON, IN_CPP):
        first, *others = (after(tmp_path, board) for board in boards)
        y = w.unblocked(first.view("<f4")[made.output :], *made.expected.shape)
        assert np.abs(y - made.expected).max() < 1e-4 * np.abs(made.expected).max()
        for other in others:
            np.testing.assert_array_equal(other, first)


@pytest.mark.parametrize("overlay", ["xnn-base", long("xnn")])
def test_a_shipped_program(overlay: str, tmp_path: Path) -> None:
    """The image that rsn asm --raw writes. Machines and devices, Python and C++, agree in every bit of DDR."""
    e = put(integers(example("fig10")), tmp_path)
    container.write(e.program, tmp_path / "p.bin")
    source = Path(str(container.__file__)).parent.parent / "programs" / "fig10.rsn"
    assert rsn("asm", source, "--raw", "-o", tmp_path / "image.bin", "--mme", tmp_path / "mme.json").exit_code == 0
    boards = [b for b in (*IN_PYTHON, *IN_CPP) if overlay == "xnn-base" or "isca25" not in b]
    first, *others = (after(tmp_path, board, "--overlay", overlay) for board in boards)
    y = e.program.buffer("y")
    assert np.ptp(first.view("<f4")[16 * y.offset : 16 * y.offset + y.size]) > 100
    for other in others:
        np.testing.assert_array_equal(other, first)


@pytest.mark.long
def test_an_extended_image_with_the_defaults_of_its_parameters(tmp_path: Path) -> None:
    """Two layers, for the larger overlay alone."""
    e = put(example("encoder"), tmp_path)
    assert e.program.extended
    assert e.program.parameters
    memories = e.banks()
    native().run(e.program, memories)
    for board in ("csim", "vck190@csim"):
        np.testing.assert_array_equal(after(tmp_path, board, "--overlay", "xnn"), memories["ddr"].view("<u4"))
    refused(run(tmp_path, "csim"), "opcode 8 is not defined in overlay xnn-base", "--overlay xnn")
    refused(
        run(tmp_path, "vck190-isca25@csim", "--overlay", "xnn"),
        "opcodes that overlay xnn adds to xnn-base",
        "--board vck190",
        code=3,
    )


@given(products())
@examples(20, 1, deadline=None)
def test_random_products(tmp_path_factory: pytest.TempPathFactory, case: Case) -> None:
    folder = tmp_path_factory.mktemp("raw")
    before = case.banks()
    write_files(case.program, before, folder)
    first, other = (after(folder, board, "--overlay", "xnn") for board in ("csim", "vck190@csim"))
    np.testing.assert_array_equal(other, first)
    native().run(case.program, before)
    np.testing.assert_array_equal(first, before["ddr"].view("<u4"))


@pytest.mark.parametrize("board", [long("csim"), "vck190@csim"])
def test_padding_reaches_the_machine(board: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A board gets the words of the file, not ours: the C++ decoders see bits that readers ignore (contract section
    1.2)."""
    case = gemm()
    clean = after(case.write(tmp_path), board)
    packets = [list(p) for p in case.packets]
    ops = {unit: [op | w.HOLDS_WEIGHT | 1 << 30 for op in ops] for unit, ops in case.ops.items()}  # 26: the host's
    dirty = next(p for p in packets if p[0] & 0xF == w.MEM_B)
    dirty[2] |= 0xFFFF_FFFE  # all of the second word but `bias` is padding
    idle = w.packet(w.DDR, [w.ddr_load("A0", 0xFFFF_FFFF, w.BLOCK)], reuse=0)  # touches nothing
    replace(case, packets=([0], [0x3F0], idle, *packets), ops=ops).write(tmp_path)
    got: list[bytes] = []
    plain = InProcess.write
    monkeypatch.setattr(
        InProcess, "write", lambda self, buffer, at, data: (got.append(data.tobytes()), plain(self, buffer, at, data))
    )
    np.testing.assert_array_equal(after(tmp_path, board), clean)
    assert "@" not in board or (tmp_path / "image.bin").read_bytes() in got


# -- what is refused, and what does not end ---------------------------------------------------------------------------


def own(folder: Path, text: str) -> Path:
    (folder / "mine.toml").write_text(f'base = "vck190"\n{text}\n')
    return folder / "mine.toml"


def test_memories_that_the_board_does_not_have(tmp_path: Path) -> None:
    attention().write(tmp_path)
    size = attention().ddr.nbytes
    limited = own(tmp_path, f"[limits]\nddr = {size - 4}")
    refused(run(tmp_path, f"{limited}@sim"), f"needs {size} bytes of ddr", "a shorter file of that memory", code=3)
    enough = own(tmp_path, f"[limits]\nddr = {size}")
    assert run(tmp_path, f"{enough}@sim").exit_code == 0
    with open(tmp_path / "lpddr.bin", "r+b") as f:
        f.truncate(65 << 20)
    refused(run(tmp_path, "vck190-isca25@sim"), f"needs {65 << 20} bytes of lpddr", "has 67108864", code=3)
    assert run(tmp_path, "csim").exit_code == 0


def test_more_than_a_device_in_this_process_takes(tmp_path: Path) -> None:
    attention().write(tmp_path)
    with open(tmp_path / "ddr.bin", "r+b") as f:
        f.truncate(3 << 30)
    told = f"no room for {3 << 30} bytes of ddr", "board sim itself takes more"
    refused(run(tmp_path, "vck190@sim"), *told, code=3)


def test_an_image_that_does_not_end(tmp_path: Path) -> None:
    """csim says why, word for word as the simulator does; a board cannot, and names what can."""
    program = stuck()
    write_files(program, {"ddr": np.zeros(65536, np.float32), "lpddr": np.zeros(0, np.float32)}, tmp_path)
    said = run(tmp_path, "sim", "--dump-ddr", tmp_path / "after.bin")
    refused(said, "error: deadlock: no unit can move", "DDR", "packet 0")
    assert run(tmp_path, "csim").stderr == said.stderr
    hung = run(tmp_path, f"{own(tmp_path, 'timeout_s = 0.5')}@sim", "--dump-ddr", tmp_path / "after.bin")
    refused(hung, "the kernel did not end in 0.5 s", code=3)
    assert not (tmp_path / "after.bin").exists()
    command = hung.stderr.rpartition("for this image: rsn ")[2].split()
    checked = rsn(*command)
    assert checked.exit_code == 1
    assert "error S01: DDR->MemA0: 1024 words sent, 0 received" in checked.stdout


def test_machines_that_are_others(tmp_path: Path) -> None:
    fig6 = Path(str(container.__file__)).parent.parent / "programs" / "fig6_app1.rsn"
    assert rsn("asm", fig6, "--raw", "-o", tmp_path / "image.bin").exit_code == 0
    (tmp_path / "ddr.bin").write_bytes(bytes(4000))
    args = ["run", "--raw", tmp_path / "image.bin", "--overlay", "fig6", "--ddr", tmp_path / "ddr.bin"]
    assert rsn(*args).exit_code == 0
    refused(rsn(*args, "--board", "csim"), "board csim is the machine of xnn, xnn-base, xnn2 and xnn8", code=3)
    refused(rsn(*args, "--board", "vck190@sim"), "the program is for overlay fig6", code=3)
    refused(rsn(*args, "--lpddr", tmp_path / "ddr.bin"), "--lpddr: overlay fig6 has only ddr", code=2)


@pytest.mark.parametrize("options", [["--timing-only"], ["--explain"], ["--trace", "t.json"], ["--break", "DDR"]])
def test_what_only_the_simulator_knows(options: list[str], tmp_path: Path) -> None:
    attention().write(tmp_path)
    refused(run(tmp_path, "csim", *options), f"{options[0]}: only with --board sim, the model of the machine", code=2)


# -- files ------------------------------------------------------------------------------------------------------------


def test_one_file_may_be_several(tmp_path: Path) -> None:
    """The file of DDR is also that of LPDDR, and what DDR is written to; until then nothing changes it."""
    case = attention()
    case.write(tmp_path)
    clean = after(tmp_path, "csim")
    before = (tmp_path / "ddr.bin").read_bytes()
    args = ["run", "--raw", tmp_path / "image.bin", "--mme", tmp_path / "ops.json", "--board", "csim"]
    memories = ["--ddr", tmp_path / "ddr.bin", "--lpddr", tmp_path / "ddr.bin"]
    for board in ("sim", "csim", "vck190@csim"):
        assert rsn(*args, *memories, "--board", board).exit_code == 0
        assert (tmp_path / "ddr.bin").read_bytes() == before
    assert rsn(*args, *memories, "--dump-ddr", tmp_path / "ddr.bin").exit_code == 0
    np.testing.assert_array_equal(np.fromfile(tmp_path / "ddr.bin", "<u4"), clean)


def test_a_break_shows_the_memories_of_files_and_changes_none(tmp_path: Path) -> None:
    case = attention()
    case.write(tmp_path)
    done = run(tmp_path, "sim", "--break", "DDR:9", "--json")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["uop"] == 9
    assert (tmp_path / "ddr.bin").read_bytes() == case.ddr.astype("<f4").tobytes()
