"""Op lists with repeats do what the unrolled lists do: order, time, results, reports, findings, files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from rsn.assembler import container
from rsn.assembler.parser import parse
from rsn.assembler.printer import show
from rsn.base.errors import ContainerError, DeadlockError, ProgramError, SourceError
from rsn.cli.main import main
from rsn.hw.sim.breakpoint import stop
from rsn.hw.sim.dataflow import DataRun
from rsn.hw.sim.explain import explain
from rsn.hw.sim.machine import Machine
from rsn.hw.sim.report import page
from rsn.hw.sim.roofline import roofline
from rsn.hw.sim.timeline import Timeline
from rsn.isa.expansion import ExpandedProgram
from rsn.isa.instruction_path import InstructionPath
from rsn.isa.op_lists import read_op_lists
from rsn.isa.overlay import OpList, Overlay
from rsn.isa.overlays import FIG6, OVERLAYS
from rsn.isa.program import Program, UnpackedProgram
from rsn.isa.program_diff import diff_programs
from rsn.isa.statistics import count
from rsn.isa.verify import check, dry_run, verify
from rsn.machine.executor import ProcessNetwork
from rsn.scheduler.pack import pack
from rsn.tests.machine.test_fast_engine import ENGINES, same

from .listed import Adder, Apart, Counter, Listed, listed, make_repeat, program, repeat

A, B, C = (Listed(size=n, value=v) for n, v in ((3, 1), (2, 10), (4, 100)))
LIST = (A, B, C, make_repeat(2, 3), A, make_repeat(1, 2), B)
ORDER = [0, 1, 2, 1, 2, 1, 2, 1, 2, 4, 4, 4, 6]
LINES = [11, 12, 13, 14, 15, 16, 17]
KNOWN = {"listed": listed()}


def elements(entries: Sequence[Listed], order: Sequence[int]) -> int:
    return sum(entries[i].size for i in order)


def both(entries: Sequence[Listed] = LIST, more: int = 0, unit: type = Adder) -> tuple[Program, Program]:
    """A program with repeats, and the same with the list unrolled; both have source lines. more: elements that only FU1
    and FU3 expect."""
    small, large = listed(unit=unit), listed(1 << 20, unit)
    held = small.preloaded["FU2"]
    order = held.order(entries).tolist()
    lines = [10 + i for i in range(len(entries))]
    size = elements(entries, order) + more
    return (
        program(small, entries, size, lines),
        program(large, held.unrolled(entries), size, [lines[i] for i in order]),
    )


def entries() -> st.SearchStrategy[list[Listed]]:
    """Lists whose repeats are possible."""
    op = st.builds(Listed, size=st.integers(1, 3), value=st.integers(0, 3))
    section = st.tuples(st.lists(op, min_size=1, max_size=4), st.integers(0, 4), st.integers(0, 4))

    def entry(part: tuple[list[Listed], int, int]) -> list[Listed]:
        ops, length, times = part
        return [*ops, *([make_repeat(min(length, len(ops)), times)] if length and times else [])]

    return st.lists(section, max_size=4).map(lambda parts: [x for part in parts for x in entry(part)])


# -- the order


def test_the_entries_before_a_repeat_run_again() -> None:
    held = listed().preloaded["FU2"]
    assert held.order(LIST).tolist() == ORDER == list(held.walk(LIST))
    assert held.executed(LIST) == len(ORDER)
    assert held.unrolled(LIST) == tuple(LIST[i] for i in ORDER)
    assert held.longest == 64  # entries of two words
    assert held.executed([]) == 0
    assert held.unrolled([]) == ()


def test_a_list_without_repeats_is_its_own_order() -> None:
    held = OpList(Listed, 128)
    assert held.unrolled(LIST) is LIST
    assert held.order(LIST).tolist() == list(held.walk(LIST)) == list(range(len(LIST)))
    assert held.executed(LIST) == len(LIST)
    assert not list(held.faults(LIST))


@given(entries())
def test_order_walk_and_count_agree(given_list: list[Listed]) -> None:
    held = listed().preloaded["FU2"]
    wanted: list[int] = []
    for i, entry in enumerate(given_list):
        found = repeat(entry)
        wanted += [i] if found is None else list(range(i - found[0], i)) * found[1]
    assert held.order(given_list).tolist() == list(held.walk(given_list)) == wanted
    assert held.executed(given_list) == len(wanted)


def test_counting_takes_no_longer_for_many_repetitions() -> None:
    held = OpList(Listed, 128, lambda op: (1, 1 << 60) if op.times else None)
    assert held.executed([A, Listed(times=1)]) == 1 + (1 << 60)


# -- runs


@given(entries())
def test_a_run_is_that_of_the_unrolled_list(given_list: list[Listed]) -> None:
    short, long = both(given_list)
    for depth in (None, 1):
        a, b = (p.overlay if depth is None else p.overlay.with_rates(uop_fifo_depth=depth) for p in (short, long))
        first, second = same(a, InstructionPath.of(short)), same(b, InstructionPath.of(long))
        assert isinstance(first, dict)
        assert isinstance(second, dict)
        order = a.preloaded["FU2"].order(given_list).tolist()
        assert without_origins(first) == without_origins(second)
        assert origins(first, a) == [order[n] if n >= 0 else n for n in origins(second, b)]


def without_origins(found: dict[str, Any]) -> dict[str, Any]:
    return {**found, "firings": [row[:-1] for row in found["firings"]], "chain": None}


def origins(found: dict[str, Any], overlay: Overlay) -> list[int]:
    """Of the firings of FU2."""
    path = InstructionPath.of(program(overlay, (), 1))
    names = list(ProcessNetwork(overlay, path).progress)
    return [row[-1] for row in found["firings"] if names[row[1]] == "FU2"]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("unit", [Adder, Counter, Apart])
def test_results_and_time_are_those_of_the_unrolled_list(engine: str, unit: type) -> None:
    found = []
    for p in both(unit=unit):
        same(p.overlay, InstructionPath.of(p), engine)
        banks = {"ddr": np.zeros(p.overlay.banks["ddr"] // 4, np.float32)}
        n = p.buffers[0].size
        banks["ddr"][:n] = np.arange(n)
        run = Machine(p).run(banks)
        found.append((run.latency_s, banks["ddr"][n : 2 * n].tolist()))
    assert found[0] == found[1]
    added = [LIST[i].value for i in ORDER for _ in range(LIST[i].size)]
    assert found[0][1] == (np.arange(len(added)) + added).tolist()


def test_a_unit_whose_steps_depend_on_earlier_ops_is_traced_op_by_op() -> None:
    short, long = both([A, make_repeat(1, 9)], unit=Counter)
    assert Machine(short).timing.latency == Machine(long).timing.latency
    assert Machine(short).timing.latency > Machine(both([A, make_repeat(1, 9)])[0]).timing.latency


def test_reports_of_a_deadlock_are_those_of_the_unrolled_list() -> None:
    texts = []
    for p in both(more=5):
        with pytest.raises(DeadlockError) as caught:
            Machine(p).run()
        texts.append(str(caught.value))
        with pytest.raises(DeadlockError) as defined:
            ProcessNetwork(p.overlay, InstructionPath.of(p), where=p.where).run()
        assert str(defined.value) == texts[-1]
    assert texts[0] == texts[1]


def test_a_run_for_data_alone_names_entries_too() -> None:
    texts = []
    for p in both():
        stuck = replace(p, packets=(p.packets[0], *p.packets[2:]))  # FU3 takes nothing
        with pytest.raises(ProgramError) as caught:
            DataRun(InstructionPath.of(stuck), banks={"ddr": np.zeros(1 << 18, np.float32)}, where=stuck.where).run()
        texts.append(str(caught.value))
    assert texts[0] == texts[1]
    assert "the last from FU2 uOP 12 (p.rsn:16)" in texts[0]


def test_entries_are_named_without_source_lines() -> None:
    p = both()[0]
    path = InstructionPath.of(p)
    (listed, *_) = p.preloaded
    driven = next(u.name for u in p.overlay.units if u.name not in p.preloaded)
    assert (path.where(listed, 3), path.where(driven, 3)) == ("op 3", "packet 3")


def test_reports_of_words_left_are_those_of_the_unrolled_list() -> None:
    texts = []
    for p in both([A, B, make_repeat(2, 4)], more=-1):
        with pytest.raises(ProgramError) as caught:
            Machine(p).run()
        texts.append(str(caught.value))
    assert texts[0] == texts[1]


def test_an_op_is_named_by_its_entry() -> None:
    short, _ = both(more=1)
    bare = replace(short, preloaded_places={})
    expansion = ExpandedProgram(bare)
    assert [expansion.where("FU2", n) for n in (0, 3, 8, 9, 11, 12)] == [f"FU2 op {i}" for i in (0, 1, 2, 4, 4, 6)]
    assert [f.code for f in check(bare)] == ["S01", "S01"]


def test_findings_are_those_of_the_unrolled_list() -> None:
    for more in (0, 5, -1):
        short, long = both(more=more)
        assert check(short) == check(long)
        assert dry_run(short) == dry_run(long)
        assert bool(check(short)) == bool(more)


# -- reports


def test_what_shows_a_run_shows_every_op_that_ran() -> None:
    short, long = (Machine(p) for p in both())
    rooflines = [roofline(Timeline(m), explain(m)) for m in (short, long)]
    assert rooflines[0] == rooflines[1]
    assert rooflines[0] is not None
    assert rooflines[0].whole.flops == elements(LIST, ORDER)
    tracks = [next(t for t in Timeline(m).tracks if t.name == "FU2") for m in (short, long)]
    assert tracks[0].number.tolist() == tracks[1].number.tolist()
    assert tracks[0].origin.tolist() == [ORDER[n] for n in tracks[0].number]
    assert "FU2" in page(short, "a title")
    stopped = [stop(m, None, "FU2", 7) for m in (short, long)]
    assert (stopped[0].uop, stopped[0].where, stopped[0].clock) == (stopped[1].uop, stopped[1].where, stopped[1].clock)


def test_sizes_are_of_the_list_and_of_what_it_runs() -> None:
    sizes = count(both()[0])
    assert sizes["uops"]["FU2"] == len(ORDER)
    assert sizes["bytes"]["FU2"] == 8 * len(LIST)


def test_programs_that_differ_in_repeats_alone_run_the_same_ops() -> None:
    short, _ = both([A, B, A, B, A, B])
    again, _ = both([A, B, make_repeat(2, 2)])
    assert diff_programs(short, again).identical
    other, _ = both([A, B, make_repeat(2, 1), A, A])
    assert not diff_programs(short, replace(other, buffers=short.buffers)).identical


# -- checks


@pytest.mark.parametrize(
    ("ops", "code", "text"),
    [
        ((make_repeat(1, 1), A), "M07", "FU2 op 0: repeats 1 entries, but only 0 are before it"),
        ((A, B, make_repeat(3, 1)), "M07", "FU2 op 2: repeats 3 entries, but only 2 are before it"),
        ((A, Listed(times=2)), "M06", "FU2 op 1: repeats 0 entries 2 times: a repeat of nothing"),
        ((A, Listed(length=1)), "M06", "FU2 op 1: repeats 1 entries 0 times: a repeat of nothing"),
        ((A, make_repeat(1, 1), make_repeat(1, 1)), "M08", "FU2 op 2: repeats 1 entries, of which op 1 is a repeat"),
        ((A, make_repeat(1, 1), B, make_repeat(3, 1)), "M08", "FU2 op 3: repeats 3 entries, of which op 1 is a repeat"),
    ],
)
def test_repeats_that_are_not_possible(ops: tuple[Listed, ...], code: str, text: str) -> None:
    p = program(listed(), ops, 3)
    found = [f for f in verify(p) if f.code.startswith("M")]
    assert [f.code for f in found] == [code]
    assert f"{found[0].where}: {found[0].message}".startswith(text)
    assert [f for f in check(p) if f.code == code]
    with pytest.raises(ProgramError, match=r"FU2: Listed op \d: repeats"):
        p.overlay.unrolled(p.preloaded)
    with pytest.raises(ProgramError):
        Machine(p).run()


def test_a_repeat_is_no_op_that_the_unit_must_be_able_to_run() -> None:
    assert not verify(program(listed(), (A, make_repeat(1, 1)), 6))
    assert [f.code for f in verify(program(listed(), (A, Listed(), make_repeat(1, 1)), 3))] == ["M04"]


def test_an_op_of_another_kind_is_no_repeat() -> None:
    other = FIG6.formats[1].mop(size=3)
    assert "M03" in [f.code for f in verify(program(listed(), (other,), 3))]


def test_the_capacity_counts_words_of_the_list() -> None:
    short = program(listed(6), (A, B, make_repeat(2, 500)), 5 * 501)
    assert not verify(short)
    assert [f.code for f in verify(replace(short, overlay=listed(5)))] == ["M02"]


def test_a_list_that_runs_too_many_ops_is_refused_before_it_is_unrolled() -> None:
    wide = listed()
    wide = replace(wide, preloaded={"FU2": OpList(Listed, 128, lambda op: (1, 1 << 50) if op.times else None)})
    begun = process_time()
    assert [f.code for f in verify(program(wide, (A, Listed(times=1)), 3))] == ["P01"]
    assert process_time() - begun < 1


# -- files


def test_a_container_keeps_repeats() -> None:
    short, _ = both()
    again = container.loads(container.dumps(short), overlays=KNOWN)
    assert again.preloaded == short.preloaded
    assert again.preloaded_places == short.preloaded_places
    assert Machine(again).timing.latency == Machine(short).timing.latency


def test_a_container_holds_as_many_words_as_a_unit() -> None:
    full = program(listed(6), (A, B, make_repeat(2, 1)), 10)
    assert container.loads(container.dumps(full), overlays={"listed": listed(6)}).preloaded == full.preloaded
    with pytest.raises(ProgramError, match="holds at most 2 ops, not 3"):
        container.dumps(replace(full, overlay=listed(5)))
    with pytest.raises(ContainerError, match="its list holds 1 to 2 ops of 8 bytes"):
        container.loads(container.dumps(full), overlays={"listed": listed(4)})


def test_a_text_keeps_repeats() -> None:
    short, _ = both()
    text = show(short)
    assert "length=2 times=3" in text
    again = parse(text, "p.rsn", KNOWN)
    assert isinstance(again, Program)
    assert again.preloaded == short.preloaded
    assert again.packets == short.packets
    with pytest.raises(SourceError, match="FU2 holds at most 6 ops, not 7"):
        parse(text, "p.rsn", {"listed": listed(12)})


def test_sections_with_repeats_are_packed() -> None:
    short, _ = both()
    reads = {"FU1": short.packets[0].mops, "FU3": short.packets[1].mops}
    made = pack(UnpackedProgram(short.overlay, reads, short.preloaded, short.buffers))
    assert made.preloaded == short.preloaded
    assert Machine(made).timing.latency == Machine(short).timing.latency
    fewer = {**reads, "FU3": (short.packets[1].mops[0].replace(size=short.buffers[0].size - 10),)}
    with pytest.raises(DeadlockError, match=r"FU2 +uOP 10 \(op 4\)"):
        pack(UnpackedProgram(short.overlay, fewer, short.preloaded, short.buffers))
    with pytest.raises(ProgramError, match="FU2 needs 7 ops but holds at most 6"):
        pack(UnpackedProgram(listed(12), reads, short.preloaded, short.buffers))


def test_op_lists_of_several_words_come_from_json() -> None:
    words = [w for entry in LIST for w in entry.encode()]
    assert read_op_lists({"FU2": words}, listed()) == ({"FU2": LIST}, [])
    _, found = read_op_lists({"FU2": words[:-1]}, listed())
    assert [f.code for f in found] == ["F12"]
    assert "13 words, but each op has 2" in found[0].message
    padded = [*words[:-1], words[-1] | 1 << 31]
    ops, found = read_op_lists({"FU2": padded}, listed())
    assert ops == {"FU2": LIST}
    assert [(f.code, f.times) for f in found] == [("F10", 1)]


def test_op_lists_go_to_json_word_by_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OVERLAYS, "listed", listed())
    short, _ = both()
    (tmp_path / "p.rsn").write_text(show(short))
    ops = tmp_path / "ops.json"
    done = CliRunner().invoke(
        main, ["asm", str(tmp_path / "p.rsn"), "-o", str(tmp_path / "p.raw"), "--raw", "--mme", str(ops)]
    )
    assert done.exit_code == 0, done.output
    assert json.loads(ops.read_text()) == {"0": [w for entry in LIST for w in entry.encode()]}


def test_a_fingerprint_tells_whether_lists_repeat() -> None:
    plain = replace(listed(), preloaded={"FU2": OpList(Listed, 128)})
    assert plain.fingerprint != listed().fingerprint
    assert listed(4).fingerprint == listed().fingerprint


# -- size


def test_a_hundred_thousand_ops_are_traced_as_fast_as_few() -> None:
    ops = [Listed(size=1, value=n % 7) for n in range(25)]
    p = program(listed(), [*ops, make_repeat(25, 3999)], 100_000)
    begun = process_time()
    assert not [f for f in verify(p) if not f.warning]
    assert Machine(p).plan.traced
    assert process_time() - begun < 5
