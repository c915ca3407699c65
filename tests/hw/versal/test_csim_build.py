"""Building the C++ machine: once, whoever asks first; without a compiler, with the way out; clean under sanitizers; and
not of another instruction set than the package."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from rsn.base.errors import BoardError
from rsn.hw.sim.machine import Machine
from rsn.hw.versal.csim import build as b
from rsn.hw.versal.csim import machine
from rsn.hw.versal.csim.machine import Native
from rsn.isa.overlays import XNN
from rsn.isa.packet import Packet, encode_image
from rsn.machine.description import Stream
from rsn.tests.effort import full, sampled

from ..examples import Example, example
from .native import check_same, native, write_files


def has(sanitizer: str) -> bool:
    """Whether the compiler has a sanitizer's library."""
    trial = [b.compiler(), f"-fsanitize={sanitizer}", "-x", "c++", "-", "-o", os.devnull]
    return subprocess.run(trial, input="int main() {}", text=True, capture_output=True, check=False).returncode == 0


MEM_A = 3
SANITIZER = "address,undefined" if has("address,undefined") else ""


def run(program: Path, e: Example, folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    arguments = write_files(e.program, e.banks(), folder)
    return subprocess.run([program, *arguments, *more], capture_output=True, text=True, check=False)


def without_ops(e: Example) -> Example:
    return Example(dataclasses.replace(e.program, preloaded={}), e.given)


@pytest.mark.long
@pytest.mark.parametrize("sanitizer", sampled(b.SANITIZERS, ("address,undefined",), full))
def test_sanitizers_find_nothing(sanitizer: str, tmp_path: Path) -> None:
    """Programs of every unit, the AIE array, random pauses, and a deadlock with all its threads unwound."""
    if not has(sanitizer):
        pytest.skip(f"the compiler has no {sanitizer} sanitizer")
    program = b.build(program=True, sanitize=sanitizer)
    for name, flags in (("fig10", ["--array"]), ("gemm768", []), ("encoder", ["--stalls", "1"])):
        e = example(name)
        done = run(program, e, tmp_path, *flags)
        assert (done.returncode, done.stderr) == (0, "")
        wanted = e.banks()
        native().run(e.program, wanted)
        check_same(wanted, wanted | {"ddr": np.fromfile(tmp_path / "out.bin", np.float32)})
    for flags in ([], ["--array"], ["--stalls", "1"]):
        done = run(program, without_ops(example("fig10")), tmp_path, *flags)
        assert done.returncode == 1
        kinds = {line.split("\t")[0] for line in done.stderr.splitlines()}
        assert kinds - {"held"} == {"wait", "stream"}  # a sanitizer would have said something else


def test_an_object_does_not_depend_on_the_folder_of_its_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does what it tells of places. Another text is another object."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made = []
    for number, folder in enumerate(("one", "other", "third")):
        source = tmp_path / folder / "a.cpp"
        source.parent.mkdir()
        source.write_text(
            f"const char *f() {{ return __FILE__; }} int g() {{ return {number // 2}; }}", encoding="utf-8"
        )
        made.append(b.compiled(source, ["-g1", "-std=c++17", f"{b.RENAMES}{source.parent}=."]))
    assert made[0] == made[1] != made[2]
    assert str(tmp_path).encode() not in made[0].read_bytes()


@pytest.mark.long
def test_the_program_says_what_is_wrong(tmp_path: Path) -> None:
    program = b.build(program=True, sanitize=SANITIZER)
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: rsn-csim IMAGE")
    done = subprocess.run([program, tmp_path / "none.bin"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, f"error: cannot read {tmp_path / 'none.bin'}\n")
    e = example("fig10")
    done = run(program, e, tmp_path, "--mop-fifo-depth", "1")
    assert done.returncode == 0
    done = run(program, Example(e.program, {}), tmp_path, "--ddr", os.devnull)
    assert done.returncode == 1
    assert done.stderr.startswith("error\tDDR: reads 1024 elements at 0, beyond its 0\n")


def test_a_field_moved_on_one_side_alone_shows() -> None:
    """An image by an encoder that has two fields of MemA in each other's place, for a machine that has not."""
    e = example("gemm768")
    p = e.program
    packets = [
        Packet(q.header, tuple(dataclasses.replace(m, acc_a=m.acc_b, acc_b=m.acc_a) for m in q.mops))
        if q.header.opcode == MEM_A
        else q
        for q in p.packets
    ]
    model, other = e.banks(), e.banks()
    Machine(p).run(model)
    native().run(p, other, encode_image(packets))
    with pytest.raises(AssertionError):
        check_same(model, other, within=1e-5)


def test_a_machine_of_another_instruction_set_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    native()
    changed = dataclasses.replace(XNN, streams=(*XNN.streams, Stream("MemA0", "MemA1", 1)))
    monkeypatch.setitem(machine.MADE_FOR, "xnn", changed)
    with pytest.raises(BoardError, match=f"fingerprint {XNN.fingerprint}, overlay xnn {changed.fingerprint}: .*isa.h"):
        Native()


def test_without_a_compiler_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(BoardError, match=r"there is no compiler 'no-such-compiler'; install .* apt install g"):
        b.build()


def fake_compiler(folder: Path, body: str) -> Path:
    path = folder / "cxx"
    path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def test_what_the_compiler_says_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", str(fake_compiler(tmp_path, "echo 'machine.cpp:1:1: error: no' >&2; exit 1")))
    with pytest.raises(BoardError, match=r"board csim cannot be built: .*\nmachine.cpp:1:1: error: no"):
        b.build()


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.joinpath("rsn").write_text("", encoding="utf-8")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(BoardError, match="XDG_CACHE_HOME"):
        b.build()


SLOWLY = """
for last; do :; done
case "$*" in *--version*) echo fake; exit;; *" -E "*) exit;; esac
echo "$last" >> "${0%/*}/written"
sleep 0.1
for i in 1 2 3; do echo "line $i" >> "$last"; sleep 0.05; done"""


@pytest.mark.long
def test_of_processes_that_build_at_once_one_does(tmp_path: Path) -> None:
    """All get its library, and so does one that comes later."""
    cxx = fake_compiler(tmp_path, SLOWLY)
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path), "CXX": str(cxx)}
    code = "from rsn.hw.versal.csim.build import build; p = build(); print(p, p.read_text().count('line'))"

    def start(_: int) -> str:
        command = [sys.executable, "-c", code]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    with ThreadPoolExecutor(3) as pool:
        said = set(pool.map(start, range(3)))
    (one,) = said
    assert one.endswith("librsn_csim.so 3\n")
    written = tmp_path.joinpath("written").read_text(encoding="utf-8").splitlines()
    assert [Path(path).suffix for path in written] == [".o", ".so"]  # all sources have the same text here: none
    cxx.write_text('#!/bin/sh\ncase "$*" in *--version*) echo fake; exit;; esac\nexit 1\n', encoding="utf-8")
    assert start(0) == one
    assert [p.name for p in Path(one.split()[0]).parent.iterdir()] == ["librsn_csim.so"]
