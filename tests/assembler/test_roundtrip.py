"""Text, container and object are views of one program: properties over programs made from the field tables."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from rsn.assembler.container import dumps, loads
from rsn.assembler.formatter import format_text
from rsn.assembler.parser import parse
from rsn.assembler.printer import show
from rsn.assembler.slices import SliceError, bounds_of, cut
from rsn.isa.fields import Field, Record
from rsn.isa.overlay import InstructionFormat, Overlay
from rsn.isa.overlays import OVERLAYS
from rsn.isa.packet import NOP, Header, Packet
from rsn.isa.program import Buffer, Layout, Parameter, Patch, Program, Role, SourceLine
from rsn.tests.effort import examples

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
KEYWORDS = (
    "for",
    "in",
    "at",
    "view",
    "clamp",
    "packet",
    "last",
    "nop",
    "scale",
    "shift",
    "load",
    "send",
    "MemA0",
    "DDR",
)
NAMES = st.sampled_from(KEYWORDS) | st.from_regex(r"[a-z]{1,3}(\.[a-z0-9]{1,2})?(\[[0-9]{1,2}\])?", fullmatch=True)
NAMES |= st.text(st.characters(codec="utf-8"), max_size=5)


def field_values(f: Field) -> st.SearchStrategy[float]:
    if f.real:
        return FLOATS
    low, high = f.bounds
    return st.integers(low, high) | st.sampled_from([0, min(1, high), high])


def records(record: type[Record], addresses: list[int]) -> st.SearchStrategy[Record]:
    """Records with a few fields set, those that move data often within buffers."""
    values = {f.name: field_values(f) for f in record.FIELDS}
    if "addr" in values and addresses:
        usual = {
            "addr": addresses,
            "size": range(0, 65537, 8192),
            "chunk_stride": range(0, 4097, 512),
            "chunks": range(4),
        }
        for name in usual.keys() & values.keys():
            fitting = [n for n in usual[name] if n <= record.field(name).bounds[1]]
            values[name] |= st.sampled_from(fitting)
    return st.fixed_dictionaries({}, optional=values).map(lambda v: record(**v))


@st.composite
def buffers(draw: st.DrawFn, overlay: Overlay) -> tuple[Buffer, ...]:
    if not overlay.banks:
        return ()
    out = []
    for name in draw(st.lists(NAMES, max_size=4, unique=True)):
        if draw(st.booleans()):
            shape: tuple[int, ...] = (128 * draw(st.integers(1, 4)), 64 * draw(st.integers(1, 5)))
            layout = Layout.BLOCKED
        else:
            shape = tuple(draw(st.lists(st.integers(1, 40), min_size=1, max_size=2)))
            layout = Layout.LINEAR
        view, rows = draw(st.sampled_from([None, shape, (1, *shape)[: len(shape) ** 2]])), ()
        if len(shape) == 2 and draw(st.integers(0, 3)) == 0:
            rows = tuple(draw(st.lists(st.integers(1, 128), min_size=1, max_size=max(1, shape[0] // 128))))
            view = (len(rows), max(rows), shape[1])
            rows = rows if sum(-(-n // 128) * 128 for n in rows) <= shape[0] else ()
            view = view if rows else None
        vector = st.none() | st.lists(FLOATS, min_size=shape[-1], max_size=shape[-1]).map(tuple)
        out.append(
            Buffer(
                name,
                draw(st.sampled_from(sorted(overlay.banks))),
                draw(st.integers(0, 100)) * 512,
                shape,
                layout,
                draw(st.sampled_from(Role)),
                view,
                rows,
                draw(vector) if shape[-1] <= 64 else None,
                draw(vector) if shape[-1] <= 64 else None,
            )
        )
    return tuple(out)


@st.composite
def packets(draw: st.DrawFn, overlay: Overlay, addresses: list[int]) -> Packet:
    form: InstructionFormat | None = draw(st.sampled_from([None, *overlay.formats]))
    if form is None:
        return Packet(Header(opcode=NOP))
    many = len(overlay.by_kind[form.kind]) > 1
    mask = draw(st.integers(1, (1 << len(overlay.by_kind[form.kind])) - 1)) if many else 0
    if draw(st.integers(0, 9)) == 0:
        mask = draw(st.integers(0, 63))
    if not form.config and draw(st.integers(0, 4)) == 0:
        return Packet.terminator(form.opcode, mask)
    mops = draw(st.lists(records(form.mop, addresses), max_size=draw(st.sampled_from([1, 3, 31]))))
    return Packet.of(form.opcode, mops, mask=mask, reuse=draw(st.just(1) | st.integers(0, 65535)))


@st.composite
def parameters(draw: st.DrawFn, image: list[Packet]) -> tuple[Parameter, ...]:
    fields = [(i, j, f) for i, p in enumerate(image) for j, m in enumerate(p.mops) for f in m.FIELDS if not f.real]
    names = draw(st.lists(NAMES, max_size=3, unique=True)) if fields else []
    # A field takes one parameter.
    chosen = draw(st.lists(st.sampled_from(fields), max_size=6, unique=True)) if fields else []
    out = []
    for name in names:
        low, default, high = sorted(draw(st.tuples(*[st.integers(-1000, 1000)] * 3)))
        mine = [chosen.pop() for _ in range(min(len(chosen), draw(st.integers(0, 3))))]
        patches = [
            Patch(i, j, f.name, draw(st.integers(-1000, 1000)), draw(st.integers(0, min(f.bounds[1], 2000))))
            for i, j, f in mine
        ]
        out.append(
            Parameter(name, low, high, default, tuple(sorted(patches, key=lambda p: (p.packet, p.mop, p.field))))
        )
    return tuple(out)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    overlay = draw(st.sampled_from(list(OVERLAYS.values())))
    rows = draw(buffers(overlay))
    addresses = [b.offset + n * 512 for b in rows for n in range(8)]
    image = draw(st.lists(packets(overlay, addresses), max_size=6))
    preloaded = {}
    for kind, held in overlay.preloaded.items():
        record = held.record
        lists = st.lists(st.sampled_from(draw(st.lists(records(record, []), min_size=1, max_size=3))), max_size=20)
        chosen = draw(st.lists(lists, min_size=1, max_size=2))
        for unit in overlay.by_kind[kind]:
            preloaded[unit.name] = tuple(draw(st.sampled_from(chosen)))
    program = Program(overlay, tuple(image), preloaded, rows, draw(parameters(image)))
    # What the text says of a patched field is the parameter, so its default is what the object holds as well.
    fixed = [list(p.mops) for p in image]
    for p in program.parameters:
        for patch in p.patches:
            value = patch.value(p.default)
            fixed[patch.packet][patch.mop] = replace(fixed[patch.packet][patch.mop], **{patch.field: value})
    image = [Packet(p.header, tuple(mops)) for p, mops in zip(image, fixed, strict=True)]
    return replace(program, packets=tuple(image))


def same(a: Program, b: Program) -> None:
    assert a.overlay is b.overlay
    assert a.packets == b.packets
    assert np.array_equal(a.image, b.image)
    assert {u: ops for u, ops in a.preloaded.items() if ops} == {u: ops for u, ops in b.preloaded.items() if ops}
    assert a.buffers == b.buffers
    # The order of a parameter's patches is that of the image.
    assert a.parameters == b.parameters


def sorted_patches(p: Program) -> Program:
    def order(x: Patch) -> tuple[int, int, int]:
        names = [f.name for f in p.packets[x.packet].mops[x.mop].FIELDS]
        return x.packet, x.mop, names.index(x.field)

    rows = [replace(q, patches=tuple(sorted(q.patches, key=order))) for q in p.parameters]
    return replace(p, parameters=tuple(rows))


SLOW = examples(100, quick=10, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


@SLOW
@given(programs())
def test_text(program: Program) -> None:
    text = show(program)
    again = parse(text, "again.rsn")
    assert isinstance(again, Program)
    same(sorted_patches(program), sorted_patches(again))
    assert show(again) == text
    bare = replace(again, places=(), preloaded_places={})
    assert dumps(sorted_patches(bare)) == dumps(sorted_patches(program))


@SLOW
@given(programs())
def test_container(program: Program) -> None:
    data = dumps(program)
    again = loads(data)
    same(program, again)
    assert dumps(again) == data
    assert again.extended == program.extended


@SLOW
@given(programs())
def test_layout_of_text_is_canonical(program: Program) -> None:
    text = show(program)
    assert format_text(text, "x.rsn") == text


@pytest.mark.parametrize("name", ["xnn", "xnn-base"])
def test_source_map(name: str) -> None:
    overlay = OVERLAYS[name]
    packet = Packet.terminator(1)
    places = (SourceLine("a.rsn", 7), SourceLine("b.rsn", 1), SourceLine("a.rsn", 8))
    mme = overlay.preloaded["MME"].record
    program = Program(
        overlay,
        (packet, packet, packet, packet),
        {"MME1": (mme(), mme())},
        places=places,
        preloaded_places={"MME1": (SourceLine("c.rsn", 9),)},
    )
    again = loads(dumps(program))
    assert again.places == places
    assert again.preloaded_places == {"MME1": (SourceLine("c.rsn", 9),)}
    assert again.where("MME1", 0) == "c.rsn:9"


@given(
    st.sampled_from([(384, 320, 64, 128), (7, 5, 1, 1)]),
    st.tuples(*[st.integers(0, 7)] * 4),
    st.integers(0, 3),
    st.sampled_from([1, 16]),
)
def test_slices_invert(grid: tuple[int, int, int, int], ends: tuple[int, int, int, int], base: int, unit: int) -> None:
    """`uncut` finds the rectangle that `cut` made the chunks from, and both agree on what is none."""
    rows, cols, step_c, step_r = grid
    buffer = Buffer("x", "ddr", base, (rows, cols), Layout.BLOCKED if step_c > 1 else Layout.LINEAR)
    (top, bottom), (left, right) = sorted(ends[:2]), sorted(ends[2:])
    bounds = [(top * step_r, bottom * step_r), (left * step_c, right * step_c)]
    try:
        chunks = cut(buffer, bounds, unit)
    except SliceError:
        return
    found = bounds_of(buffer, chunks, unit)
    assert found is not None
    assert cut(buffer, found, unit) == chunks
    assert chunks.size * chunks.chunks == (bottom - top) * step_r * (right - left) * step_c


def later(mop: Record, steps: dict[str, int], times: int) -> Record:
    """An mOP with some fields grown, as far as they hold it."""
    values = {}
    for name, step in steps.items():
        if name in {f.name for f in mop.FIELDS if not f.real and not f.flag}:
            low, high = mop.field(name).bounds
            values[name] = min(max(getattr(mop, name) + step * times, low), high)
    return replace(mop, **values)


@st.composite
def regular_programs(draw: st.DrawFn) -> Program:
    """Programs whose packets, buffers and parameters repeat, with numbers that grow: what loops and blocks are for."""
    overlay = draw(st.sampled_from(list(OVERLAYS.values())))
    bank = draw(st.sampled_from(sorted(overlay.banks)))
    names = draw(st.sampled_from(["w{}", "layers.{}.w", "{}", "a b{}{{", "i", "x_0{}"]))
    count = draw(st.integers(1, 8))
    rows = [Buffer(names.format(n), bank, 1024 * n, (128, 128)) for n in range(count if "{}" in names else 1)]
    rows += [Buffer("other", bank, 65536, (256, 256))]
    addresses = [b.offset + 512 * n for b in rows for n in range(2)]
    stretch = draw(st.lists(packets(overlay, addresses), min_size=1, max_size=4))
    image: list[Packet] = []
    for _ in range(draw(st.integers(1, 3))):
        steps = draw(
            st.dictionaries(
                st.sampled_from(["addr", "size", "dim1", "reuse_stride", "k_iter"]), st.sampled_from([1024, 512, 1, -1])
            )
        )
        for times in range(draw(st.integers(1, 6))):
            for p in stretch:
                mops = tuple(later(m, steps, times) for m in p.mops)
                image.append(Packet(p.header, mops))
        image += draw(st.lists(packets(overlay, addresses), max_size=1))
    fields = [(i, j, f) for i, p in enumerate(image) for j, m in enumerate(p.mops) for f in m.FIELDS if not f.real]
    patched = []
    title = draw(st.sampled_from(["len[{}]", "rows {}", "n{}"]))
    for n, (i, j, f) in enumerate(fields[:: max(1, len(fields) // 6)] if draw(st.booleans()) else ()):
        patched.append(Parameter(title.format(n), 0, 9, 1, (Patch(i, j, f.name, n, min(f.bounds[1], 3)),)))
    mops = [list(p.mops) for p in image]
    for parameter in patched:
        for patch in parameter.patches:
            changed = {patch.field: patch.value(parameter.default)}
            mops[patch.packet][patch.mop] = replace(mops[patch.packet][patch.mop], **changed)
    image = [Packet(p.header, tuple(m)) for p, m in zip(image, mops, strict=True)]
    return Program(overlay, tuple(image), {}, tuple(rows), tuple(patched))


@SLOW
@given(regular_programs())
def test_loops_and_blocks(program: Program) -> None:
    text = show(program)
    again = parse(text, "again.rsn")
    assert isinstance(again, Program)
    same(program, again)
    assert show(again) == text
    assert format_text(text, "x.rsn") == text
