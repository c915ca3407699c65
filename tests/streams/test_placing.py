"""Dies, memories and unrolling against exhaustive search."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from random import Random

import pytest

from rsn.base.errors import ProgramError, ResourceError
from rsn.streams.placing import dies as searching
from rsn.streams.placing.devices import BRAM_BYTES, DEVICES, RESOURCES, URAM_BYTES, VC1902, device_named
from rsn.streams.placing.dies import DieError, Wire, place_on_dies
from rsn.streams.placing.memories import KINDS, LUTRAM_BELOW, BufferPlace, Memories, MemoryFitError, allocate
from rsn.streams.placing.unrolling import unroll
from rsn.tests.effort import cases, in_both, in_full

# -- dies --------------------------------------------------------------------------------------------------------------

AREAS = {name: {"LUT": area} for name, area in {"dma": 20, "qkv": 60, "attn": 40, "ffn": 60}.items()}
WIRES = [Wire("dma", "qkv", 64), Wire("qkv", "attn", 32), Wire("attn", "ffn", 32), Wire("dma", "ffn", 16)]
Dies = list[dict[str, int]]


def assignments(
    areas: Mapping[str, Mapping[str, int]], wires: list[Wire], dies: Dies, balance: float
) -> list[tuple[float, dict[str, int]]]:
    """The objective of every assignment that fits."""
    found = []
    for chosen in product(range(len(dies)), repeat=len(areas)):
        die = dict(zip(areas, chosen, strict=True))
        shares = [
            sum(areas[name].get(r, 0) for name in areas if die[name] == d) / amount if amount else 0.0
            for d, one in enumerate(dies)
            for r, amount in one.items()
        ]
        over = any(
            areas[name].get(r, 0) > 0 and not one.get(r)
            for d, one in enumerate(dies)
            for name in areas
            if die[name] == d
            for r in areas[name]
        )
        if max(shares) <= 1 and not over:
            cut = sum(wire.bits * abs(die[wire.source] - die[wire.target]) for wire in wires)
            found.append((cut + balance * max(shares), die))
    return found


def test_the_published_example() -> None:
    dies = [{"LUT": 100}, {"LUT": 100}]
    assert len(assignments(AREAS, WIRES, dies, 0)) == 4
    found = place_on_dies(AREAS, WIRES, dies)
    assert (found.cut, found.proved, found.bound) == (48, True, 48)
    assert found.die["dma"] == found.die["qkv"] != found.die["attn"] == found.die["ffn"]
    assert sorted(load["LUT"] for load in found.loads) == [80, 100]


@in_both
def test_placements_are_the_best_of_all() -> None:
    random = Random(1)
    refused = 0
    for _ in range(cases(200, 12)):
        dies = [{"LUT": random.randint(8, 20), "DSP": random.choice([0, 6, 9])} for _ in range(random.randint(1, 3))]
        names = [f"k{i}" for i in range(random.randint(1, 6))]
        areas = {name: {"LUT": random.randint(1, 12), "DSP": random.randint(0, 4)} for name in names}
        wires = [
            Wire(a, b, random.randint(1, 64))
            for i, a in enumerate(names)
            for b in names[i + 1 :]
            if random.random() < 0.6
        ]
        balance = random.choice([0.0, 10.0, 200.0])
        every = assignments(areas, wires, dies, balance)
        if every:
            found = place_on_dies(areas, wires, dies, balance)
            least = min(objective for objective, _ in every)
            assert found.proved
            assert found.objective == pytest.approx(least)
            assert any(die == dict(found.die) and cost == pytest.approx(least) for cost, die in every)
        else:
            refused += 1
            with pytest.raises(DieError):
                place_on_dies(areas, wires, dies, balance)
    assert 0 < refused < cases(200, 12)


def test_a_placement_depends_on_no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that ends early ends at the same node each time."""
    random = Random(3)
    names = [f"k{number}" for number in range(30)]
    areas = {name: {"LUT": random.randint(1, 9)} for name in names}
    wires = [Wire(*random.sample(names, 2), random.randint(1, 99)) for _ in range(90)]
    monkeypatch.setattr(searching, "NODES", 1)
    first, second = (place_on_dies(areas, wires, [{"LUT": 60}] * 3, 8.0) for _ in range(2))
    assert first == second
    assert not first.proved
    assert first.bound < first.objective


def test_dies_that_are_too_small() -> None:
    with pytest.raises(DieError, match="qkv needs 60 LUT, the largest die has room for 50"):
        place_on_dies(AREAS, WIRES, [{"LUT": 50}] * 4)
    with pytest.raises(DieError, match="need 180 LUT, all 2 dies together have room for 160; the largest is qkv"):
        place_on_dies(AREAS, WIRES, [{"LUT": 80}] * 2)
    three = {name: {"LUT": 60} for name in "abc"}
    with pytest.raises(DieError, match=r"although their sums fit \(LUT: 180 needed, dies have room for \[100, 100\]\)"):
        place_on_dies(three, [], [{"LUT": 100}] * 2)
    with pytest.raises(DieError, match="a needs 3 URAM, the largest die has room for 0"):
        place_on_dies({"a": {"URAM": 3}}, [], [{"LUT": 100}])
    with pytest.raises(DieError, match="room for 70"):
        place_on_dies({"a": {"LUT": 80}}, [], [{"LUT": 100}], fill=0.7)
    with pytest.raises(ProgramError, match="there is no kernel x"):
        place_on_dies(AREAS, [Wire("dma", "x", 1)], [{"LUT": 300}])
    with pytest.raises(ProgramError, match="stream dma -> qkv has -1 bits; the least is 0"):
        place_on_dies(AREAS, [Wire("dma", "qkv", -1)], [{"LUT": 300}])
    with pytest.raises(ProgramError, match="a needs -5 LUT; the least is 0"):
        place_on_dies({"a": {"LUT": -5}, "b": {"LUT": 10}}, [], [{"LUT": 10}])
    with pytest.raises(DieError, match="1 kernels, and no die to put them on"):
        place_on_dies({"a": {}}, [], [])
    assert place_on_dies({}, [], [{"LUT": 1}]).die == {}


def test_devices() -> None:
    assert set(DEVICES) == {"vc1902", "u55c", "u280"}
    for name in ("u280", "u55c"):
        device = device_named(name)
        assert dict(device.total) == {"LUT": 1_303_680, "DSP": 9_024, "BRAM": 2_016, "URAM": 960}
        assert len(device.dies) == 3
    assert device_named("U55C").gbs == 460
    assert {r: VC1902.total[r] for r in RESOURCES} == {"LUT": 899_840, "DSP": 1_968, "BRAM": 967, "URAM": 463}
    assert VC1902.gbs == pytest.approx(57.6)
    with pytest.raises(ProgramError, match="no device has the name 'u250'; there are VC1902, U55C, U280"):
        device_named("u250")


# -- memories ----------------------------------------------------------------------------------------------------------


def test_published_buffers() -> None:
    small = Memories(lutram=4096, bram=8, uram=4)
    assert (small.bram_bytes, small.uram_bytes) == (4608, 36864)
    buffers = {"a": 120_000, "b": 40_000, "c": 9_000, "d": 5_000, "e": 600, "f": 64}
    with pytest.raises(MemoryFitError) as error:
        allocate(buffers, small)
    assert error.value.holder == "b"
    assert str(error.value) == (
        "buffer b of 40,000 bytes fits in no memory: 2 URAM needed, 0 of 4 left (a holds 4); 9 BRAM needed, 8 of 8 "
        "left; choose smaller tiles or depths"
    )
    rest = {"a": BufferPlace("URAM", 4), "c": BufferPlace("BRAM", 2), "d": BufferPlace("BRAM", 2)}
    rest |= {"e": BufferPlace("LUTRAM", 600), "f": BufferPlace("LUTRAM", 64)}
    assert error.value.allocation.places == rest
    del buffers["b"]
    assert allocate(buffers, small).places == rest


def fits(buffers: Mapping[str, int], memories: Memories) -> bool:
    """Whether any way to choose a kind for each buffer fits."""
    names = list(buffers)
    for kinds in product(*(memories.choices(buffers[name]) for name in names)):
        used = dict.fromkeys(KINDS, 0)
        for name, kind in zip(names, kinds, strict=True):
            used[kind] += memories.needed(buffers[name], kind)
        if all(used[kind] <= memories.amount(kind) for kind in KINDS):
            return True
    return False


@in_both
def test_buffers_are_refused_only_if_no_way_fits() -> None:
    random = Random(2)
    refused = 0
    for _ in range(cases(1000, 60)):
        memories = Memories(random.choice([0, 500, 2000]), random.randint(0, 12), random.randint(0, 4))
        sizes = [random.choice([64, 600, 1024, 4608, 4609, 9000, 20_000, 36_864, 80_000]) for _ in range(6)]
        buffers = {f"b{k}": size for k, size in enumerate(sizes[: random.randint(1, 6)])}
        if fits(buffers, memories):
            found = allocate(buffers, memories)
            assert found.places.keys() == buffers.keys()
            for name, place in found.places.items():
                assert place.amount == memories.needed(buffers[name], place.kind)
                assert place.kind != "LUTRAM" or buffers[name] < LUTRAM_BELOW
            assert all(found.used(kind) <= memories.amount(kind) for kind in KINDS)
        else:
            refused += 1
            with pytest.raises(MemoryFitError) as error:
                allocate(buffers, memories)
            assert f"{buffers[error.value.holder]:,} bytes" in str(error.value)
    assert 0 < refused < cases(1000, 60)


def test_a_buffer_makes_room_for_another() -> None:
    # The largest first: b takes the block RAMs although only c needs them... both fit if b takes an UltraRAM.
    memories = Memories(lutram=0, bram=4, uram=1)
    found = allocate({"b": 18_000, "c": 18_400}, memories)
    assert {name: place.kind for name, place in found.places.items()} == {"b": "URAM", "c": "BRAM"}
    with pytest.raises(ProgramError, match="buffer b has 0 bytes"):
        allocate({"b": 0}, memories)


def test_the_memories_of_a_device() -> None:
    whole = Memories.of_device(device_named("U55C"))
    assert whole.bram * BRAM_BYTES + whole.uram * URAM_BYTES == pytest.approx(44.7e6, rel=0.01)
    assert allocate({"tile": 2_392_064}, whole).places == {"tile": BufferPlace("URAM", 65)}


# -- unrolling ---------------------------------------------------------------------------------------------------------


def test_published_unrolling() -> None:
    found = unroll({"q": 4096, "ffn": 16384, "softmax": 1024}, 32)
    assert found.raised == ("ffn", "ffn", "ffn", "q", "ffn", "q")
    assert dict(found.unroll) == {"q": 4, "ffn": 16, "softmax": 1}
    assert set(found.cycles.values()) == {1024}
    assert found.interval == 1024


@in_full
def test_no_unrolling_by_powers_is_faster() -> None:
    """Of all unrollings by powers of two within the budget none has a shorter slowest kernel."""
    random = Random(3)
    for _ in range(cases(300, 30)):
        work = {name: random.randint(1, 500) for name in "abcd"[: random.randint(1, 4)]}
        budget = random.randint(len(work), 40)
        found = unroll(work, budget)
        assert sum(found.unroll.values()) <= budget
        powers = [[1 << k for k in range(6) if 1 << k <= max(1, amount)] for amount in work.values()]
        best = min(
            max(-(-amount // u) for amount, u in zip(work.values(), units, strict=True))
            for units in product(*powers)
            if sum(units) <= budget
        )
        assert found.interval == best


def test_unrollings_that_are_refused() -> None:
    with pytest.raises(ResourceError, match="3 kernels need at least one unit each, the budget is 2"):
        unroll({"a": 1, "b": 1, "c": 1}, 2)
    with pytest.raises(ProgramError, match="the factor is 1"):
        unroll({"a": 5}, 2, factor=1)
    with pytest.raises(ProgramError, match="kernel b has 0 operations; the least is 1"):
        unroll({"a": 5, "b": 0}, 2)
    with pytest.raises(ProgramError, match="a limit for c, which is none of the kernels a, b"):
        unroll({"a": 5, "b": 1}, 2, {"c": 1})
    with pytest.raises(ProgramError, match=r"a unit of kernel b costs 1\.5; it is above 0 and at most 1"):
        unroll({"a": 5, "b": 1}, 2, cost={"b": 1.5})
    assert dict(unroll({"a": 1000, "b": 10}, 64, {"a": 4}).unroll) == {"a": 4, "b": 1}
    assert unroll({}, 4).interval == 0
