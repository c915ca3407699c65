"""Overlays that overlay files make: other memories, fewer units, other banks."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from rsn.assembler import container
from rsn.assembler.formatter import format_text
from rsn.assembler.parser import parse, parse_file
from rsn.assembler.printer import show as shown
from rsn.base.errors import ContainerError, ProgramError, SourceError
from rsn.cli.main import main
from rsn.host.boards.device import BoardMismatch
from rsn.host.boards.match import match_program
from rsn.host.boards.profile import VCK190
from rsn.host.tensors import save_tensors
from rsn.hw.sim.machine import Machine
from rsn.isa.overlay import Overlay
from rsn.isa.overlays import FIG6, XNN, XNN_BASE, find
from rsn.isa.overlays.file import changed, differences, made, show, text, without_hardware
from rsn.isa.overlays.xnn import formats as f
from rsn.isa.packet import Header, Packet
from rsn.isa.program import Program, Role
from rsn.isa.verify import verify
from rsn.tests.hw.examples import assembled, example
from rsn.tests.hw.load_modes import Norm
from rsn.tests.hw.score_modes import Scores
from rsn.tests.hw.store_modes import Halves, same

WIDE = """\
name = "wide"
overlay = "xnn"
[memories.MemA]
slots = 4
[memories.MemB]
slots = 4
[memories.MemC]
slots = 4
"""


def of(text: str, base: str = "xnn") -> Overlay:
    return made(f'overlay = "{base}"\n{text}', "some.toml")


def wide_program() -> Program:
    """A program for XNN, on the overlay with four slots."""
    return dataclasses.replace(example("gemm768").program, overlay=made(WIDE, "wide.toml"))


# -- what a file says -------------------------------------------------------------------------------------------------


def test_the_shipped_overlays_have_the_fingerprints_that_they_had() -> None:
    assert all(not o.changes and o.base is None for o in (XNN, XNN_BASE, FIG6))
    assert changed_by_nothing(XNN).fingerprint == XNN.fingerprint


def changed_by_nothing(overlay: Overlay) -> Overlay:
    return of(f"[memories.MemA]\nslots = {overlay.by_unit['MemA0'].memory.slots}")  # type: ignore[union-attr]


def test_sizes_by_kind_and_by_unit() -> None:
    made_of = of("[memories.MemB]\nslots = 3\n[memories.MemB0]\nrows = 256\nslots = 5")
    sizes = {u.name: (u.memory.slots, u.memory.rows, u.memory.columns) for u in made_of.units if u.memory}
    assert sizes["MemB0"] == (5, 256, 512)
    assert sizes["MemB1"] == (3, 128, 512)
    assert sizes["MemB2"] == (3, 512, 256)
    assert sizes["MemA0"] == (2, 256, 128)
    assert made_of.name == "some"
    assert made_of.base == "xnn"
    assert made_of.fingerprint not in (XNN.fingerprint, of("[memories.MemB]\nslots = 3").fingerprint)


def test_a_name_and_rates_do_not_enter_the_fingerprint() -> None:
    assert made(WIDE, "wide.toml").fingerprint == made(WIDE + "[rates]\nddr_read_gbs = 42.0\n", "b.toml").fingerprint
    assert made(WIDE.replace('"wide"', '"other"'), "o.toml").fingerprint == made(WIDE, "wide.toml").fingerprint


def test_fewer_units_go_with_their_streams() -> None:
    small = of("[units]\nMME = 4\nMemC = 4\nMemA = 2")
    assert [u.name for u in small.by_kind["MME"]] == [f"MME{i}" for i in range(4)]
    gone = {"MME4", "MME5", "MemC4", "MemC5", "MemA2"}
    assert {s.name for s in XNN.streams} - {s.name for s in small.streams} == {
        s.name for s in XNN.streams if {s.src, s.dst} & gone
    }
    assert Machine(Program(small, ())).program.overlay is small


def test_limits_of_capabilities_follow_the_memory() -> None:
    narrow = of("[memories.MemC]\ncolumns = 256")
    softmax = narrow.by_unit["MemC0"].capability("softmax")
    assert softmax is not None
    assert softmax.limits["columns"] == (1, 512)
    assert [*narrow.legal(narrow.by_unit["MemC0"], f.MemCConfig(softmax_cols=300, norm_cols=256))] == [
        "softmax_cols=300 is neither within 0..256 nor 1023"
    ]
    assert [*narrow.legal(narrow.by_unit["MemC0"], f.MemC(recv=1, k_iter=1, recv_a=1, recv_b=3))] == [
        "receives 1x3 tiles into a buffer of 2x2"
    ]
    send = narrow.by_unit["MemC0"].capability("send")
    assert send is not None
    assert send.limits["columns"] == (1, 256)
    gate = narrow.by_unit["MemC5"].capability("gate")
    assert gate is not None
    assert gate.limits["columns"] == (1, 128)


def test_what_the_extension_needs_of_a_memory() -> None:
    """A table may be replaced while a store of a deeper ring still uses it; whole tiles need their columns."""
    changed = of("[memories.MemC]\nslots = 3\n[memories.MemB2]\ncolumns = 64")
    assert changed.by_unit["MemC0"].capability("rotate") is None
    assert changed.by_unit["MemC0"].capability("statistics") is not None
    assert [*changed.legal(changed.by_unit["MemC0"], f.MemCTable(recv_a=1, recv_b=1))] == [
        "a table needs a buffer of two slots, not 3: a store may still use the one of before"
    ]
    assert changed.by_unit["MemB2"].capabilities == ()
    assert [*changed.legal(changed.by_unit["MemB2"], f.MemBConfig(whole=1))] == [
        "whole tiles of 128 columns from a buffer of 64"
    ]


def test_the_extension_on_deeper_rings() -> None:
    """Loads and receives run ahead; registers are those of each uOP."""
    deep = of("[memories.MemC]\nslots = 4\n[memories.MemA]\nslots = 3")
    x = np.random.default_rng(3).standard_normal((2, 2, 128, 256)).astype(np.float32)
    config = (f.MemCConfig(norm_cols=100), f.MemCConfig(norm_cols=60))
    stores = Halves(x[0], (128, 64), config, (f.MemCStore(statistics=1),) * 2, {"layernorm": 1}, repeats=3)
    found, statistics, _ = stores.run(deep)
    expected, wanted = stores.expected()
    same(found, expected)
    np.testing.assert_allclose(statistics, wanted, rtol=1e-5, atol=1e-5)  # type: ignore[arg-type]
    scores = Scores(x, cap=5.0, first=3, offset=100)
    same(scores.run(deep)[0], scores.expected())
    loads = Norm(x.reshape(256, 512), (128, 384), ((1, 0, 0), (2, 0, 0), (1, 1, 0)))
    same(loads.run(deep)[0], loads.expected())


@pytest.mark.parametrize(
    ("given_text", "message"),
    [
        ("[memories.MemA]\nrows = 640", "rows = 640 of MemA0: field MemA.dim1 (9 bits) says at most 384"),
        ("[memories.MemA]\nrows = 200", "rows = 200 of MemA0: must be a multiple of 128"),
        ("[memories.MemA]\ncolumns = 256", "columns = 256 of MemA0: must be 128, because"),
        ("[memories.MemB0]\nrows = 1024", "rows = 1024 of MemB0: field MemB.dim1 (10 bits) says at most 896"),
        ("[memories.MemB0]\ncolumns = 1024", "columns = 1024 of MemB0: field MemB.dim2 (10 bits) says at most 896"),
        ("[memories.MemB2]\ncolumns = 96", "columns = 96 of MemB2: must be a multiple of 128"),
        ("[memories.MemC]\nrows = 512", "rows = 512 of MemC0: field MemC.dim1 (9 bits) says at most 384"),
        ("[memories.MemC]\ncolumns = 1024", "columns = 1024 of MemC0: field MemC.dim2 (10 bits) says at most 896"),
        ("[memories.MemA]\nslots = 1", "memories.MemA: slots=1 of a memory: must be a whole number from 2 on"),
        ("[memories.MemA]\nslots = 65", "slots = 65 of MemA0: at most 64"),
        ("[memories.MemA]\nslots = 4.0", "memories.MemA.slots = 4.0: must be a whole number from 1 on"),
        ("[memories.MemA]\nslots = true", "memories.MemA: slots = True is no number"),
        ("[memories.MemA]\nslot = 4", "memories.MemA has no 'slot' (did you mean slots?); a memory has slots"),
        ("[memories.MemAA]\nslots = 4", "memories: no unit or FU type 'MemAA' (did you mean MemA"),
        ("[memories.MME]\nslots = 4", "memories.MME: a MME has no memory"),
        ("[memories]\nMemA = 4", "memories.MemA = 4: must be a table with slots, rows, columns"),
        ("[units]\nMMEs = 4", "units: no FU type 'MMEs' (did you mean MME?); there are DDR"),
        ("[units]\nMME = 8", "units.MME = 8: overlay xnn has 6; its formats have no bits for more"),
        ("[units]\nMME = 0", "units.MME = 0: must be a whole number from 1 on"),
        ("[units]\nMemC = 4", "units.MME: MME4 has no MemC to send to"),
        ("[units]\nMemC = 5\nMME = 5", "units.MemC: MemC4 has no neighbour left"),
        ("[units]\nMemB = 2\n[memories.MemB2]\nrows = 256", "memories.MemB2: [units] leaves no MemB2"),
        ("[banks]\nddr2 = 64", "banks: no bank 'ddr2' (did you mean ddr?)"),
        ("[banks]\nddr = 100", "banks.ddr = 100: must be a multiple of 64 bytes, and at most 274877906944"),
        ("[memory.MemA]\nslots = 4", "nothing is called 'memory' here (did you mean memories?)"),
    ],
)
def test_what_a_file_cannot_say_is_named(given_text: str, message: str) -> None:
    with pytest.raises(ProgramError) as e:
        of(given_text)
    assert str(e.value).startswith("some.toml: ")
    assert message in str(e.value)


@pytest.mark.parametrize(
    ("whole", "message"),
    [
        ("[memories.MemA]\nslots = 4", "it names no overlay to change"),
        ('overlay = "xnm"', "overlay: no overlay 'xnm' (did you mean xnn?)"),
        ('overlay = "xnn"\nname = "fig6"', "name: there is an overlay 'fig6' already"),
        ('overlay = "xnn"\nname = ""', "name: '' is no name"),
        ('overlay = "xnn"\nname = "a\\"b"', "is no name"),
        ('overlay = "xnn"\nname = 3', "name = 3 is no text"),
        ("overlay = ", "no TOML"),
    ],
)
def test_what_a_file_lacks_is_named(whole: str, message: str) -> None:
    with pytest.raises(ProgramError) as e:
        made(whole, "some.toml")
    assert message in str(e.value)


def test_an_overlay_is_found_by_name_and_by_file(tmp_path: Path) -> None:
    (tmp_path / "wide.toml").write_text(WIDE)
    found = find(str(tmp_path / "wide.toml"))
    assert (found.name, found.base) == ("wide", "xnn")
    assert find("xnn") is XNN
    with pytest.raises(ProgramError, match=r"no overlay 'xnn-bas' \(did you mean xnn-base\?\)"):
        find("xnn-bas")
    with pytest.raises(ProgramError, match=r"nowhere\.toml: no such file"):
        find(str(tmp_path / "nowhere.toml"))


sizes = st.fixed_dictionaries(
    {},
    optional={
        "[memories.MemA]\nslots = {}": st.integers(2, 6),
        "[memories.MemA1]\nrows = {}": st.sampled_from([128, 256, 384]),
        "[memories.MemB0]\nrows = {}": st.sampled_from([128, 256, 896]),
        "[memories.MemC]\ncolumns = {}": st.sampled_from([128, 512, 896]),
        "[units]\nMemA = {}": st.integers(2, 3),
        "[banks]\nddr = {}": st.integers(1, 1 << 20).map(lambda n: 64 * n),
        "[rates]\nddr_read_gbs = {!r}": st.floats(1e-3, 1e6) | st.just(float("inf")),
        '[streams]\n"MeshA->MME0" = {}': st.integers(1, 9),
    },
)


@given(sizes)
def test_the_text_of_an_overlay_makes_it_again(chosen: dict[str, float]) -> None:
    one = of("\n".join(line.format(value) for line, value in chosen.items()))
    for again in (made(text(one), "x.toml"), made(show(one), "x.toml") if one.changes else one):
        assert again.name == one.name
        assert again.changes == one.changes
        assert again.fingerprint == one.fingerprint
        assert again.units == one.units
        assert again.streams == one.streams
        assert again.banks == one.banks
        assert {n: r.value for n, r in again.rates.items()} == {n: r.value for n, r in one.rates.items()}


def test_a_file_may_change_the_machine_of_a_program_for_a_run(tmp_path: Path) -> None:
    (tmp_path / "wide.toml").write_text(WIDE)
    overlay = changed(XNN, tmp_path / "wide.toml")
    assert overlay.name == "xnn"
    assert without_hardware(overlay)
    assert overlay.fingerprint == made(WIDE, "wide.toml").fingerprint


# -- programs ---------------------------------------------------------------------------------------------------------


def test_a_container_carries_its_overlay() -> None:
    program = wide_program()
    data = container.dumps(program)
    again = container.loads(data)
    assert again.overlay.name == "wide"
    assert again.overlay.units == program.overlay.units
    assert again.overlay.fingerprint == program.overlay.fingerprint
    assert container.dumps(again) == data
    assert Machine(again).run().latency_s == Machine(program).run().latency_s
    assert container.CHANGES not in container.dumps(example("gemm768").program)


def test_a_container_whose_overlay_cannot_be_made_is_refused() -> None:
    data = container.dumps(wide_program())
    for old, new in (
        (b"slots = 4", b"slots = 1"),
        (b"MemA0.slots", b"MemX0.slots"),
        (b'name = "wide"', b'name = "vide"'),
    ):
        with pytest.raises(ContainerError):
            container.loads(resealed(data, old, new))


def resealed(data: bytes, old: bytes, new: bytes) -> bytes:
    """A container with other bytes in its last section, and checksums that are right again."""
    head = container._HEADER.parse(data)
    start = len(data) - 4 - head.sections[-1].length
    sections, at = {}, len(container._HEADER.build(head)) + 4
    for s in head.sections:
        sections[s.tag] = data[at : at + s.length]
        at += s.length
    assert old in data[start:]
    sections[container.CHANGES] = sections[container.CHANGES].replace(old, new)
    return container._framed(sections)


def test_a_text_carries_its_overlay() -> None:
    program = wide_program()
    printed = shown(program)
    assert printed.startswith('overlay wide "overlay = \\"xnn\\"" "memories.MemA0.slots = 4"')
    again = assembled(printed)
    assert again.overlay.fingerprint == program.overlay.fingerprint
    assert again.overlay.name == "wide"
    assert (again.image == program.image).all()
    assert shown(again) == printed
    assert format_text(printed, "x.rsn") == printed


def test_a_text_names_an_overlay_file(tmp_path: Path) -> None:
    (tmp_path / "wide.toml").write_text(WIDE)
    path = tmp_path / "p.rsn"
    path.write_text('overlay "wide.toml"\nsection MemA0 {\n  load dim1=128 dim2=64\n}\n'.replace("section ", ""))
    assert parse_file(path).overlay.fingerprint == made(WIDE, "wide.toml").fingerprint


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('overlay "nowhere.toml"', "nowhere.toml: no such file"),
        ('overlay "/wide.toml"', "relative to this file"),
        ('overlay wide "overlay = \\"xnn\\"" "memories.MemA.slots = 1"', "slots=1 of a memory"),
        ('overlay xnn "overlay = \\"xnn\\""', "there is an overlay 'xnn' already"),
        ("overlay xnn-bas", "did you mean xnn-base?"),
    ],
)
def test_what_a_text_cannot_say(line: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError) as e:
        parse(f"{line}\n", str(tmp_path / "p.rsn"))
    assert message in str(e.value)


def test_fields_that_name_a_unit_that_has_gone_are_found() -> None:
    small = of("[units]\nMemA = 2")
    load = f.Ddr(addr=0, size=8192, load=1, to_a2=1)
    packet = Packet(Header(opcode=1, mask=0, last=0, window=1, reuse=1), (load,))
    findings = [str(x) for x in verify(Program(small, (packet,)))]
    assert any("names MemA2, which overlay some does not have" in x for x in findings)
    assert not any("names MemA2" in str(x) for x in verify(Program(XNN, (packet,))))


# -- commands ---------------------------------------------------------------------------------------------------------


def command(*words: object) -> Result:
    return CliRunner().invoke(main, [str(w) for w in words])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the overlay file, and a program in both forms."""
    (tmp_path / "wide.toml").write_text(WIDE)
    container.write(wide_program(), tmp_path / "p.bin")
    (tmp_path / "p.rsn").write_text(shown(wide_program()))
    return tmp_path


def test_differences_in_words() -> None:
    assert differences(made(WIDE, "wide.toml")) == [
        "MemA: 4 slots, not 2",
        "MemB: 4 slots, not 2",
        "MemC: 4 slots, not 2",
    ]
    some = of(
        '[memories.MemB0]\nrows = 256\n[units]\nMemA = 2\n[rates]\nddr_read_gbs = 42\n[streams]\n"MeshA->MME0" = 4'
    )
    assert differences(some) == ["2 MemAs, not 3", "MemB0: 256 rows, not 128", "ddr_read_gbs = 42", "MeshA->MME0 = 4"]
    assert differences(XNN) == []
    assert without_hardware(of("[rates]\nddr_read_gbs = 42")) == ""


def test_commands_on_programs_that_carry_their_overlay(folder: Path) -> None:
    program = folder / "p.bin"
    told = command("info", program)
    assert "for overlay wide (" in told.output
    assert "xnn changed: MemA: 4 slots, not 2" in told.output
    assert command("check", program).exit_code == 0
    assert "ok on wide" in command("check", program).output
    ran = command("run", program, "--timing-only")
    assert ran.exit_code == 0, ran.output
    assert command("dis", program, "-o", folder / "q.rsn").exit_code == 0
    assert (folder / "q.rsn").read_text() == (folder / "p.rsn").read_text()
    assert command("fmt", folder / "q.rsn").exit_code == 0
    assert command("asm", folder / "q.rsn", "-o", folder / "q.bin").exit_code == 0
    assert container.read(folder / "q.bin").overlay.fingerprint == wide_program().overlay.fingerprint
    assert command("info", program, "--resources").exit_code == 0


def test_commands_take_overlay_files(folder: Path) -> None:
    file = folder / "wide.toml"
    assert 'name = "wide"' in command("overlay", file).output
    (folder / "image").write_bytes(example("gemm768").program.image.astype("<u4").tobytes())
    for words in (("info",), ("check",), ("run", "--timing-only")):
        told = command(words[0], folder / "image", "--raw", "--overlay", file, *words[1:])
        assert "no overlay" not in told.output
    assert "for overlay wide" in command("info", folder / "image", "--raw", "--overlay", file).output
    assert "no such file" in command("overlay", folder / "none.toml").output


def test_resources_of_a_changed_overlay(folder: Path) -> None:
    need = {}
    for name in ("xnn", folder / "wide.toml"):
        told = command("info", "--resources", "--overlay", name)
        assert told.exit_code == 0, told.output
        need[name] = [line.split()[0] for line in told.output.splitlines() if line.endswith("  buffers of MemC")]
    assert [2 * int(n) for n in need["xnn"]] == [int(n) for n in need[folder / "wide.toml"]]
    (folder / "huge.toml").write_text(WIDE.replace("slots = 4", "slots = 64"))
    told = command("info", "--resources", "--overlay", folder / "huge.toml")
    assert told.exit_code == 0
    assert "warning: the datapath needs" in told.output


def test_boards_refuse_machines_that_nobody_builds(folder: Path) -> None:
    e = example("gemm768")
    for role, name in ((Role.INPUT, "x.safetensors"), (Role.WEIGHT, "w.safetensors")):
        tensors = {b.name: np.zeros(b.view or b.shape, np.float32) for b in e.program.with_role(role)}
        save_tensors(folder / name, tensors)
    files = ("--inputs", folder / "x.safetensors", "--weights", folder / "w.safetensors", "--outputs", folder / "y.npz")
    told = command("run", folder / "p.bin", "--board", "csim", *files)
    assert told.exit_code == 3, told.output
    reason = (
        "changes xnn (MemA: 4 slots, not 2; MemB: 4 slots, not 2; MemC: 4 slots, not 2); there are no sources of such"
    )
    assert reason in told.output
    with pytest.raises(BoardMismatch, match="there are no sources of such a machine"):
        match_program(wide_program(), VCK190)
    assert command("run", folder / "p.bin", *files).exit_code == 0
