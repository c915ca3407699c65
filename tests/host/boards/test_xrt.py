"""The real XRT library (Debian's libxrt1, XRT 2.13) on its no-op device: it completes every run and computes nothing.

Each test is a process of its own: XRT reads its environment once, and its exits may be rough.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rsn.assembler import container
from rsn.host import tensors
from rsn.host.boards.profile import VCK190
from rsn.host.boards.tiles import parameters
from rsn.isa.overlays import XNN, XNN_BASE

from .programs import X, attention
from .xclbins import PUBLISHED, Made

LIBRARIES = next((p.parent for p in sorted(Path("/usr/lib").glob("*/libxrt_noop.so.2"))), None)
HEADERS = Path("/usr/include/xrt")

pytestmark = pytest.mark.skipif(LIBRARIES is None, reason="no libxrt_noop.so.2: apt-get install libxrt1")

Script = Callable[..., Any]

PROLOGUE = """
import json, os, sys
from pathlib import Path
import numpy as np
from rsn.host.boards.device import *
from rsn.host.boards.profile import VCK190, VCK190_ISCA25
from rsn.host.boards.session import Session
from rsn.host.boards.xrt import XrtBoard
from rsn.host.boards.xrt_ctypes import CtypesXrt, XrtLibrary
from rsn.base.errors import BoardError
from rsn.tests.host.boards.programs import X, attention, base
from rsn.host import tensors

def error(call, *arguments):
    try:
        call(*arguments)
    except BoardError as e:
        return [type(e).__name__, str(e)]
    raise AssertionError("no error")

def done(result):
    print("RESULT" + json.dumps(result), flush=True)

folder = Path(sys.argv[1])
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    assert LIBRARIES is not None
    (tmp_path / "xrt").mkdir()
    (tmp_path / "xrt" / "lib").symlink_to(LIBRARIES)
    own = {k: v for k, v in os.environ.items() if not k.startswith(("XRT_", "XCL_", "XILINX_", "RSN_"))}
    return {**own, "XILINX_XRT": str(tmp_path / "xrt"), "XCL_EMULATION_MODE": "noop"}


@pytest.fixture
def script(environment: dict[str, str], tmp_path: Path) -> Script:
    """Run statements, with our kernel's xclbin at `folder / "our.xclbin"`; what they give to `done`."""
    Made().write(tmp_path / "our.xclbin")

    def run(body: str, **extra: str | None) -> Any:
        command = [sys.executable, "-c", PROLOGUE + textwrap.dedent(body), str(tmp_path)]
        env = {k: v for k, v in {**environment, **extra}.items() if v is not None}
        ran = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
        assert ran.returncode == 0, ran.stderr
        (line,) = [line for line in ran.stdout.splitlines() if line.startswith("RESULT")]
        return json.loads(line.removeprefix("RESULT"))

    return run


def test_what_the_device_answers(script: Script) -> None:
    """All calls but the graph's: open, load, groups, buffers, run, wait, errors; twice, with everything given back."""
    got = script(
        """
        def session():
            device, out = CtypesXrt(), {}
            out["graph"] = error(device.open, VCK190, folder / "our.xclbin")
            groups = [device._xrt.call("xrtKernelArgGroupId", device._kernel, i) for i in range(6)]
            a, b = device.allocate(0, 8192), device.allocate(2, 1 << 20)
            flat, back = np.arange(500, dtype=np.float32), np.zeros(500, np.float32)
            device.write(b, 4096, flat)
            out["read"] = [device.read(b, 4096, back), bool((flat == back).all()), device.read(b, (1 << 20) - 8, back)]
            runs = []
            for _ in range(2):
                device.start([a, a, b, b, a])
                runs.append(device.wait(1.0))
            out |= {"groups": groups, "runs": runs, "version": device._xrt.version}
            out["room"] = error(device.allocate, 0, 1 << 50)
            out["scalar"] = error(device.allocate, 5, 4096)
            out["register"] = error(device.register, 5)
            out["argument"] = error(device.start, [a, a, b, b, a, a, a])
            device.free(a)
            device.close()
            device.close()
            return out
        done([session(), session()])
        """
    )
    first, second = got
    assert first == second
    assert first["groups"] == [1, 1, 0, 0, 1, -1]  # LPDDR, LPDDR, DDR, DDR, LPDDR; a scalar has none
    assert first["read"] == [2000, True, 8]
    assert first["runs"] == [True, True]
    assert first["version"].startswith("2.")
    kind, text = first["graph"]
    assert (kind, "opening graph G (xrtGraphOpen) failed: Operation not supported" in text) == ("BoardError", True)
    kind, text = first["room"]
    assert (kind, "give Linux more contiguous memory" in text) == ("BoardMemory", True)
    assert first["scalar"][0] == "BoardMismatch"
    kind, text = first["register"]
    assert (kind, "reading the register of argument 5" in text) == ("BoardError", True)
    assert "setting argument 6 (xrtRunSetArg) failed" in first["argument"][1]


def test_what_cannot_be_opened(script: Script, tmp_path: Path) -> None:
    (tmp_path / "no.xclbin").write_bytes(b"no xclbin at all" * 100)
    Made(kernel="other").write(tmp_path / "other.xclbin")
    got = script(
        """
        names = ("missing.xclbin", "no.xclbin", "other.xclbin")
        done([error(CtypesXrt().open, VCK190, folder / name) for name in names])
        """
    )
    what = [text.partition("(")[0].removeprefix("XRT: ").replace(f"{tmp_path}/", "").strip() for _, text in got]
    assert what == ["loading missing.xclbin", "loading no.xclbin", "opening kernel dma_hls"]
    reasons = [text.partition(" failed: ")[2].partition(";")[0] for _, text in got]
    assert reasons == ["No such file or directory", "no reason given", "Invalid argument"]  # XRT's own, by errno


def test_no_device_is_an_error(script: Script) -> None:
    """Without the no-op device there is none on this machine."""
    if Path("/dev/dri").exists():
        pytest.skip("there may be a device")
    kind, text = script('done(error(CtypesXrt(3).open, VCK190, folder / "our.xclbin"))', XCL_EMULATION_MODE=None)
    assert (kind, text.split(" (")[0]) == ("BoardError", "XRT: opening device 3")


@pytest.mark.long
def test_where_xrt_would_end_the_process(script: Script, tmp_path: Path) -> None:
    """It aborts when it does not find its own libraries; so they are looked for, or a process of its own tries."""
    unset, elsewhere, empty, unknown, missing, other, found = script(
        """
        def said(root, mode, library="libxrt_coreutil.so.2"):
            for name, value in (("XILINX_XRT", root), ("XCL_EMULATION_MODE", mode)):
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value
            return error(XrtLibrary, library)[1]
        root, mode = os.environ["XILINX_XRT"], os.environ["XCL_EMULATION_MODE"]
        done([said(None, mode), said(str(folder), mode), said(root, ""), said(root, "emulated"),
              said(root, mode, "libxrt_of_nobody.so.2"), said(root, mode, "libm.so.6"), said(None, None, "libm.so.6")])
        """
    )
    assert unset.startswith("XILINX_XRT is not set: export XILINX_XRT=/opt/xilinx/xrt")
    assert elsewhere.startswith(f"XILINX_XRT={tmp_path}: it has no lib/libxrt_noop.so.2")
    for mode, text in (("", empty), ("emulated", unknown)):
        assert text == f"XCL_EMULATION_MODE={mode} is unknown: XRT has noop, hw_emu, sw_emu; unset it for a real board"
    assert "install it (Debian's libxrt1" in missing
    assert other == "libm.so.6 has no xrtDeviceOpen; XRT 2.13 (2022.1) or newer is needed"
    assert found == other  # without XILINX_XRT: a library that does not end the process is used


@pytest.mark.long
def test_the_command_line(environment: dict[str, str], tmp_path: Path) -> None:
    """To where the no-op device can go: it has no graph, and that is said."""
    built = attention()
    container.write(built.program, tmp_path / "a.bin")
    tensors.save_tensors(tmp_path / "w.safetensors", dict(built.weights), packed=True)
    np.savez(tmp_path / "x.npz", x=X)
    command = [sys.executable, "-m", "rsn", "run", "a.bin", "--weights", "w.safetensors", "--inputs", "x.npz"]

    def run(*options: str, **extra: str) -> tuple[int, str]:
        env = {**environment, **extra}
        done = subprocess.run(
            [*command, *options], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )
        return done.returncode, next((line for line in done.stderr.splitlines() if line.startswith("error")), "")

    bitstream = str(Made().write(tmp_path / "our.xclbin"))
    graph = "error: XRT: opening graph G (xrtGraphOpen) failed: Operation not supported; its own message is on stderr"
    assert run("--board", "vck190", "--xclbin", bitstream) == (3, graph)
    assert run("--board", "vck190", RSN_XCLBIN=bitstream) == (3, graph)
    needs = "error: board vck190 needs its bitstream: --xclbin FILE, Runner(xclbin=...) or RSN_XCLBIN"
    assert run("--board", "vck190") == (3, needs)
    code, text = run("--board", "vck190-isca25", "--xclbin", bitstream)
    assert (code, "use --board vck190" in text) == (3, True)
    code, text = run("--board", "vck190", "--xclbin", str(tmp_path / "a.bin"))
    assert (code, "no xclbin (byte 0 is not the magic xclbin2)" in text) == (3, True)


# -- with a graph


@pytest.fixture(params=["CtypesXrt", "Pyxrt"])
def binding(request: pytest.FixtureRequest) -> str:
    if request.param == "Pyxrt" and find_spec("pyxrt") is None:
        pytest.skip("no pyxrt: it comes with AMD's XRT, not with Debian's, and is on no package index")
    return str(request.param)


@pytest.fixture
def stub(tmp_path: Path, script: Script) -> Script:
    """As `script`, with `library`, which has a graph, and registers that say RSN_STUB_FINGERPRINT; and with `opened`, a
    device that uses it."""
    compiler = shutil.which("cc")
    if not (HEADERS / "xrt" / "xrt_graph.h").exists() or compiler is None:
        pytest.skip("no C compiler, or none of XRT's headers: apt-get install gcc libxrt-dev")
    source, library = Path(__file__).with_name("graph_stub.c"), tmp_path / "libgraph.so"
    flags = ["-shared", "-fPIC", "-Wall", "-Werror", "-Wl,--no-as-needed", f"-I{HEADERS}", f"-L{LIBRARIES}"]
    subprocess.run([compiler, *flags, str(source), "-o", str(library), "-l:libxrt_coreutil.so.2"], check=True)
    log = tmp_path / "log"

    setup = """
        def opened(kind="CtypesXrt"):
            if kind == "Pyxrt":
                from rsn.host.boards.xrt_pyxrt import Pyxrt
                return Pyxrt(0, library)
            return CtypesXrt(0, library)
        library = XrtLibrary(str(folder / "libgraph.so"))
        """

    def run(body: str, **extra: str) -> tuple[Any, list[str]]:
        log.unlink(missing_ok=True)
        env = {"RSN_STUB_LOG": str(log), "RSN_STUB_FINGERPRINT": XNN.fingerprint, **extra}
        result = script(textwrap.dedent(setup) + textwrap.dedent(body), **env)
        return result, log.read_text(encoding="utf-8").splitlines() if log.exists() else []

    return run


def test_a_program_all_the_way(stub: Script, binding: str) -> None:
    """Load, two runs, close: the real library carries it all; what the graph is told is what a board would be."""
    got, log = stub(
        """
        built, device = attention(), opened(os.environ["RSN_BINDING"])
        board = XrtBoard(Session(VCK190, device, bitstream=folder / "our.xclbin"))
        board.load(built.program, built.weights)
        x = tensors.pack(built.program.buffer("x"), X)
        first = board.run(built.program.image, {"x": x})[1].facts
        outputs, run = board.run(built.program.bind({"len[0]": 17}), {"x": x})
        def there(name):
            buffer, flat = built.program.buffer(name), np.empty(built.program.buffer(name).size, np.float32)
            device.read(board._held[buffer.bank].handle, 64 * buffer.offset, flat)
            return flat
        placed = {n: bool((there(n) == flat).all()) for n, flat in {**built.weights, "x": x}.items()}
        words = np.empty_like(built.program.image)
        device.read(board._held["instructions"].handle, 0, words)
        placed["image"] = bool((words == built.program.bind({"len[0]": 17})).all())
        board.close()
        done({"y": [outputs["y"].size, float(np.abs(outputs["y"]).max())], "placed": placed, "facts": run.facts,
              "clock": run.clock, "bytes": run.bytes, "size": built.program.buffer("y").size,
              "written": [f.pop("parameters_written") for f in (first, run.facts)],
              "seconds": run.facts.pop("parameters_s")})
        """,
        RSN_BINDING=binding,
    )
    assert got["y"] == [got["size"], 0.0]  # it computes nothing, and the memory was cleared
    assert len(got["placed"]) == 8
    assert all(got["placed"].values())
    assert got["clock"] == "measured"
    assert got["facts"] | {"runtime": ""} == {
        "board": "vck190",
        "runtime": "",
        "device": "0",
        "xclbin": str(Made.uuid),
        "platform": "xilinx_vck190_base_202410_1",
        "xclbin_version": "2.17.0",
        "clock KERNEL_CLK": "260 MHz",
        "pl_mhz (built for)": "260",
        "aie_mhz (built for)": "1250",
        "fingerprint": XNN.fingerprint,
    }
    assert got["facts"]["runtime"].startswith("XRT 2.")
    assert got["facts"]["runtime"].endswith(" through " + {"CtypesXrt": "ctypes", "Pyxrt": "pyxrt"}[binding])
    uuid = Made.uuid.bytes
    updates = []
    for port, words in parameters(attention().program, VCK190.graph).items():
        total = 0
        for byte in words.tobytes():
            total = (total * 31 + byte) & 0xFFFF_FFFF
        updates.append(f"update 1 {port} 2048 {words[1]} {total}")
    assert len(updates) == 384
    assert got["written"] == ["384", "0"]
    opened = f"open 1 {uuid[0]:02x}{uuid[15]:02x} G"
    assert log == [opened, "reset 1", *updates, *["run 1 1", "done 1"] * 2, "close 1"]


def test_the_wrong_bitstream_is_found_by_its_register(stub: Script, binding: str) -> None:
    body = """
        built = attention()
        board = XrtBoard(Session(VCK190, opened(os.environ["RSN_BINDING"]), bitstream=folder / "our.xclbin"))
        done(error(board.load, built.program, built.weights))
        """
    (kind, text), log = stub(body, RSN_STUB_FINGERPRINT=XNN_BASE.fingerprint, RSN_BINDING=binding)
    assert kind == "BoardMismatch"
    assert f"the bitstream has fingerprint {XNN_BASE.fingerprint}" in text
    assert [line.split()[0] for line in log] == ["open", "close"]  # nothing has run on it
    (kind, text), _ = stub(body, RSN_STUB_BUSY="1", RSN_BINDING=binding)
    assert (kind, "Device or resource busy" in text) == ("BoardBusy", True)


@pytest.mark.long
def test_runs_that_do_not_end_or_fail(stub: Script) -> None:
    """A wait that was too short says "timeout" or what the run does; the probe takes the first two states."""
    body = """
        import dataclasses
        built, device = attention(), opened()
        profile = dataclasses.replace(VCK190, timeout_s=0.3)
        board = XrtBoard(Session(profile, device, bitstream=folder / "our.xclbin"))
        board.load(built.program, built.weights)
        x = {"x": tensors.pack(built.program.buffer("x"), X)}
        first = error(board.run, built.program.image, x)
        left = [bool(device._buffers), device._device]
        again = error(board.run, built.program.image, x)
        board.close()
        done([first, left, again])
        """
    (first, left, again), log = stub(body, RSN_STUB_STATES="84838")
    assert first[0] == again[0] == "BoardTimeout"
    assert "did not end in 0.3 s" in first[1]
    assert "did not end an empty program" in again[1]
    assert left == [False, None]
    assert [line.split()[0] for line in log if not line.startswith("update")] == [
        *("open", "reset", "run", "close"),
        *("open", "close"),
    ]
    (failed, left, again), _ = stub(body, RSN_STUB_STATES="45")
    assert failed == again == ["BoardLost", "XRT: the kernel ended in state error; see dmesg on the board"]
    assert left == [False, None]


GRAPH = """
    import dataclasses
    from rsn.host.boards import session
    session.GRAPH_S = 0.2
    built, device = attention(), opened()
    board = XrtBoard(Session(VCK190, device, bitstream=folder / "our.xclbin"))
    board.load(built.program, built.weights)
    x = {"x": tensors.pack(built.program.buffer("x"), X)}
    board.run(built.program.image, x)
    first = error(board.run, built.program.image, x)
    board.close()
    done([first, device._device])
    """


@pytest.mark.long
@pytest.mark.parametrize(
    ("ends", "kind", "message"),
    [
        ("dt", "BoardTimeout", "the AI Engine graph has not in 0.2 s; reboot the board"),
        ("dn", "BoardTimeout", "the AI Engine graph has not in 0.2 s; reboot the board"),
        ("de", "BoardError", "waiting for the graph (xrtGraphWaitDone) failed: Invalid argument"),
    ],
)
def test_a_graph_that_does_not_end(stub: Script, ends: str, kind: str, message: str) -> None:
    """The first run's ends, the second's does not."""
    (error, left), log = stub(GRAPH, RSN_STUB_GRAPH=ends)
    assert (error[0], left) == (kind, None)
    assert message in error[1]
    calls = [line.split()[0] for line in log if not line.startswith("update")]
    assert calls == ["open", "reset", "run", "done", "run", "close"]


@pytest.mark.long
def test_a_graph_that_ends_late(stub: Script) -> None:
    """Two waits are too short, and nothing is the worse for it."""
    result, log = stub(
        """
        built = attention()
        board = XrtBoard(Session(VCK190, opened(), bitstream=folder / "our.xclbin"))
        board.load(built.program, built.weights)
        board.run(built.program.image, {"x": tensors.pack(built.program.buffer("x"), X)})
        board.close()
        done("ran")
        """,
        RSN_STUB_GRAPH="tnd",
    )
    assert result == "ran"
    assert [line.split()[0] for line in log[-3:]] == ["run", "done", "close"]


def test_the_published_image(stub: Script, tmp_path: Path) -> None:
    """It has no register: its identity is what a profile of the user's says."""
    Made(arguments=PUBLISHED).write(tmp_path / "published.xclbin")
    (tmp_path / "mine.toml").write_text(f'base = "vck190-isca25"\nuuid = "{Made.uuid}"\n', encoding="utf-8")
    got, log = stub(
        """
        from rsn.host.boards.profile import find_profile
        from rsn.host.boards.stamp import Stamp
        built, path = base(), folder / "published.xclbin"
        refused = error(lambda: XrtBoard(Session(VCK190_ISCA25, opened(), bitstream=path)))
        mine, stamp = find_profile(str(folder / "mine.toml")), Stamp("test", folder)
        x = tensors.pack(built.program.buffer("x"), X)
        def session():
            return XrtBoard(Session(mine, opened(), bitstream=path, stamp=stamp))
        tried = error(session().load, built.program, built.weights)
        stamp.write(session()._session._xclbin.sha256)
        board = session()
        board.load(built.program, built.weights)
        outputs, run = board.run(built.program.image, {"x": x})
        board.close()
        done([refused, tried, float(np.abs(outputs["y"]).max()), run.facts["board"], run.facts["trial"]])
        """,
        RSN_STUB_FINGERPRINT="0",
    )
    (kind, text), tried, most, name, trial = got
    assert kind == "BoardMismatch"
    assert f'uuid = "{Made.uuid}"' in text
    assert tried[0] == "BoardMismatch"  # the no-op device computes nothing
    assert "a small known program gave wrong numbers" in tried[1]
    assert (most, name, trial) == (0.0, "mine", "passed earlier in this boot")
    calls = [line.split()[0] for line in log]
    each = ["open", "reset", "run", *["update"] * 384, "done", "close"]
    assert calls == each + each
