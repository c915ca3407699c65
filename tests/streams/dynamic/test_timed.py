"""Programs of dynamic streams on the engine of the machines: as `run` says, and with the times of their work."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest
import sympy

from rsn.streams.dynamic import (
    DONE,
    Add,
    LinearOffChipLoad,
    LinearOffChipStore,
    Map,
    Matmul,
    Partition,
    Program,
    SelectorType,
    StepError,
    StreamFault,
    Tensor,
    Tile,
    encode,
    run,
    tile,
)
from rsn.streams.dynamic.run import Rates, timed
from rsn.tests.effort import cases, in_both
from rsn.tests.streams.dynamic.programs import (
    MODEL,
    dynamic_dispatch,
    dynamic_tiles,
    numbers,
    routed_inputs,
    static_dispatch,
    static_tiles,
    time_multiplexed,
)

CHOSEN = [(0,), (1,), (0,), (0,), (1,), (0,), (0,), (1,), (0,), (0,)]
KV = " ".join(map(str, [9, 2, 3, 1, 4, 1, 5, 2])) + " D"


def timed_programs() -> dict[str, tuple[Program, dict[str, Any]]]:
    inputs = routed_inputs(numbers(9, 10, MODEL), CHOSEN)
    made: dict[str, tuple[Program, dict[str, Any]]] = {
        "static tiles": (static_tiles(10, 2, 4).program, inputs),
        "dynamic tiles": (dynamic_tiles(10, 3).program, inputs | {"selectors": inputs["selectors"]}),
        "time-multiplexed": (time_multiplexed(10, 2).program, inputs),
        "dispatch": (dynamic_dispatch(8).program, {"requests": KV}),
        "in turn": (static_dispatch(8, False).program, {"requests": KV}),
    }
    return made


def shuffled(seed: int) -> Callable[[list[Any]], list[Any]]:
    return lambda tasks: Random(seed).sample(tasks, len(tasks))


@pytest.mark.parametrize("name", list(timed_programs()))
@in_both
def test_results_and_times_equal_those_of_a_plain_run(name: str) -> None:
    program, inputs = timed_programs()[name]
    for seed in range(cases(40, 3)):
        random = Random(seed)
        cycles = {node: [random.randrange(5) for _ in range(3)] for node in program.nodes}

        def durations(node: Any, request: Any, cycles: Any = cycles) -> float:
            return float(cycles[node][len(str(request)) % 3])

        depths = random.choice((None, 64))
        expected = run(program, inputs, depths, durations)
        found = timed(program, inputs, depths, durations=durations, order=shuffled(seed))
        assert found.tokens == expected.tokens, seed
        assert found.times == expected.times, seed
        assert (found.ends, found.traffic, found.flops) == (expected.ends, expected.traffic, expected.flops), seed
        assert found.held == expected.held


def test_tiles_come_at_the_rate_of_the_memory() -> None:
    """Four tiles of 128 bytes in accesses of 64: two cycles each for one loader; with two, 64 of 128 bytes a cycle."""
    tensor = Tensor.of(np.arange(256).reshape(4, 64))
    with Program() as program:
        one = LinearOffChipLoad(tensor, (1, 64), (1,), (4,))()
        program.output("one", one)
        other = LinearOffChipLoad(tensor, (1, 64), (1,), (4,))()
        program.output("other", other)
    apart = timed(program, {})
    assert apart.times[one][:4] == apart.times[other][:4] == [2, 4, 6, 8]
    shared = timed(program, {}, rates=Rates(channels=1))
    assert sorted((*shared.times[one][:4], *shared.times[other][:4])) == [4, 4, 8, 8, 12, 12, 16, 16]
    late = timed(program, {}, rates=Rates(latency=5))
    assert late.times[one][:4] == [7, 14, 21, 28]
    assert late.engine.depends_on_time  # the memory serves transfers as they come
    assert not late.depends_on_time  # no operator does
    # Rows of 48 bf16 begin an access each: 96 bytes take two.
    with Program() as rows:
        part = LinearOffChipLoad(Tensor((4, 96)), (2, 48), (1,), (2,))()
    assert timed(rows, {}).times[part][:2] == [4, 8]


def test_work_takes_the_time_of_its_roofline() -> None:
    """A product of [4,16] and [16,16] has 2,048 operations. The Zip before it takes a cycle."""
    with Program() as program:
        left = program.input("left", [3], tile(4, 16))
        right = program.input("right", [3], tile(16, 16))
        made = Map(Matmul(), compute=256)(left, right)
    inputs = {
        "left": encode([Tile.of(numbers(k, 4, 16)) for k in range(3)], 0),
        "right": encode([Tile.of(numbers(k, 16, 16)) for k in range(3)], 0),
    }
    assert timed(program, inputs).ends[program.nodes[-1]] == 1 + 3 * 2048 / 256
    assert timed(program, inputs, rates=Rates(on_chip=16)).ends[program.nodes[-1]] == 1 + 3 * 2048 / 256  # FIFOs
    with Program() as program:
        left = program.input("left", [3], tile(4, 16))
        right = program.input("right", [3], tile(16, 16))
        made = Map(Matmul(), compute=256, memory_in=(False, True))(left, right)
    found = timed(program, inputs, rates=Rates(on_chip=16))
    assert found.ends[program.nodes[-1]] == 1 + 3 * 512 / 16  # 512 bytes of the right tile, 16 a cycle
    assert np.allclose(found.tokens[made][0].data, numbers(0, 4, 16) @ numbers(0, 16, 16))  # type: ignore[union-attr]


def test_stores_end_in_memory() -> None:
    tensor = Tensor((2, 8))
    with Program() as program:
        rows = program.input("rows", [2], tile(1, 8))
        LinearOffChipStore(tensor)(Map(Add)(rows, rows))
    found = timed(program, {"rows": encode([Tile.of(np.arange(8.0)), Tile.of(np.ones(8))], 0)})
    assert found.memory.tensor(tensor).tolist() == [[0, 2, 4, 6, 8, 10, 12, 14], [2] * 8]


def test_what_does_not_run() -> None:
    program, inputs = timed_programs()["in turn"]
    with pytest.raises(StepError, match="inputs without tokens: \\['requests'\\]"):
        timed(program, {})
    with pytest.raises(StepError, match="depth 0; the least is 1"):
        timed(program, inputs, 0)


def test_a_run_with_clocks_checks_shapes() -> None:
    """As one without: what a stream is said to be, and bounds; and it has the values of symbols."""
    with Program() as program:
        rows = program.input("rows", [program.symbol("n", at_most=4)], tile(1, 2))
        parts = Partition(2)(rows, program.input("chosen", ["n"], SelectorType(2, hot=1)))
        parts[0].assume([2])
    one = Tile.of([[1.0, 2.0]])
    inputs = {"rows": [one] * 3 + [DONE], "chosen": "(0) (1) (0) D"}
    assert timed(program, inputs).values[sympy.Symbol("n", integer=True, nonnegative=True)] == 3
    with pytest.raises(StreamFault, match="dimension 0 is 1, and 2 by its type"):
        timed(program, inputs | {"chosen": "(1) (1) (0) D"})
    with pytest.raises(StreamFault, match="beyond the bound n <= 4"):
        timed(program, {"rows": [one] * 5 + [DONE], "chosen": "(0) (1) (0) (1) (1) D"})
