"""The C++ of generated machines is the machine whose cycles are printed: its loops, its units, its ports."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from math import ceil
from pathlib import Path

import pytest
import torch
from torch import nn

from rsn.assembler import container
from rsn.benchmarks.hls_cycles import counted
from rsn.isa.overlays.tasks.overlay import program_of
from rsn.rsnlib.streamed.generate import DEFAULT, generate
from rsn.rsnlib.streamed.knobs import PRODUCTS
from rsn.rsnlib.streamed.resources import lane_operations
from rsn.streams.hls.emit import cpp_program
from rsn.streams.placing.devices import U55C, VC1902, StreamDevice
from rsn.tests.effort import full, long
from rsn.tests.rsnlib.streamed_blocks import Cached, block

Made = tuple[nn.Module, tuple[torch.Tensor, ...]]


def perceptron() -> Made:
    layers = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
    return layers, (torch.randn(32, 64),)


def encoder() -> Made:
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, norm_first=True, activation="gelu")
    return layer, (torch.randn(1, 64, 64),)


def rotated() -> Made:
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
    return block("llama", **sizes), (torch.randn(1, 32, 64),)


def decoding() -> Made:
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}
    return Cached(block("gpt2", **sizes)), (torch.randn(1, 1, 64), *torch.randn(2, 1, 4, 31, 16))


def ragged() -> Made:
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, norm_first=True, activation="gelu")
    return layer, (torch.randn(1, 61, 64),)


def words_of(text: str, kernel: str) -> set[int]:
    """The elements that the loops of a kernel take in a cycle, by its C++."""
    (body,) = re.findall(rf"^static void {kernel}\(.*?^}}", text, re.MULTILINE | re.DOTALL)
    computed = re.findall(r"rsn::(?:softmax|layernorm|rmsnorm|assign|put|put_apart)<rsn::Word<(\d+), (\d+)>", body)
    return {int(rows) * int(columns) for rows, columns in computed}


@pytest.mark.parametrize(
    ("made", "device"),
    [full(perceptron, U55C), full(encoder, U55C), full(rotated, VC1902), long(decoding, U55C), full(ragged, U55C)],
)
def test_cycles_and_units_of_the_source(made: Callable[[], Made], device: StreamDevice, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, inputs = made()
    machine = generate(module.eval(), inputs, device, replace(DEFAULT, rows=16))
    file = tmp_path / "block.bin"
    container.write(machine.machine, file)
    found = counted(file)
    assert not found.report.findings
    assert found.modelled == pytest.approx(machine.cycles, abs=2)  # the period of the clock is rounded
    assert found.path == pytest.approx(machine.cycles, rel=0.1)
    kernels = {x.name: x for x in machine.streamed.plans}
    text = cpp_program(program_of(machine.machine.overlay), float_add=device.float_add).text
    for unit in found.units:
        if unit.name in kernels:
            assert unit.derived <= 1.1 * unit.modelled + 60, unit
            # What is no loop, as the norm of a single row, takes no time for the checker.
            loops = machine.streamed.plans[kernels[unit.name]].sizes["tm"] > 1 or kernels[unit.name].op in PRODUCTS
            assert unit.derived >= 0.9 * unit.modelled - 60 or not loops, unit
        elif unit.stated:
            assert unit.derived <= 1.1 * unit.modelled, unit
    for name, x in kernels.items():
        if x.op in PRODUCTS:  # multiplications of an iteration share units if its interval is longer
            loops = [loop for loop in found.report.loops if loop.function == name]
            units = max(ceil(loop.multiplications / loop.stated) for loop in loops)
            assert units == machine.streamed.units[name], name
        else:
            assert machine.streamed.units[name] in words_of(text, name), name
            _, products, _, powers = lane_operations(machine.streamed.dataflow.node(name))
            products += 4 * powers  # of integers
            multiplied = sum(loop.multiplications for loop in found.report.loops if loop.function == name)
            rows = machine.streamed.plans[x].sizes["tm"]
            # Beside lanes, mean and variance of each row.
            assert multiplied <= products * machine.streamed.units[name] + 2 * rows, name
            assert multiplied or not products or rows == 1, name
