"""Generated machines on the memory channels of their devices: shares, latency, bursts, and where tensors lie."""

from __future__ import annotations

import re
from dataclasses import replace
from math import ceil, prod
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from torch import nn

from rsn.base.element_types import whole_bytes
from rsn.base.errors import ResourceError
from rsn.host.native_tasks import run_native
from rsn.hw.sim.tasks import run_on_tensors
from rsn.isa.overlays.tasks.overlay import program_of
from rsn.rsnlib.streamed import Knobs, Streamed, streamed
from rsn.rsnlib.streamed.generate import DEFAULT, Generated, generate, place
from rsn.rsnlib.streamed.ports import ChannelPorts
from rsn.streams.hls.emit import cpp_program
from rsn.streams.placing.channels import ChannelError, ChannelShares
from rsn.streams.placing.devices import U55C, U280, VC1902, MemoryChannel, OffChip, StreamDevice
from rsn.tests.effort import cases, full, in_both, in_full, long
from rsn.tests.rsnlib.decoder_models import decoder_model, with_cache
from rsn.tests.rsnlib.streamed_blocks import Cached, Drawn, Gated, block
from rsn.tests.streams.test_hls import built

BEGIN = 338
"""Bytes that an HBM channel could move while a burst begins: 23.5 ns at 14.375 GB/s."""


def few(device: StreamDevice, *gbs: float) -> StreamDevice:
    """The device with channels of these speeds alone."""
    channels = tuple(MemoryChannel(f"M[{k}]", speed, 23.5) for k, speed in enumerate(gbs))
    return replace(device, off_chip=(OffChip("M", 16, channels),))


def check(made: Generated) -> None:
    """No channel and no port is over its bandwidth, and each token of a tensor has as many words in each channel."""
    device, written = made.device, made.streamed.written
    program = program_of(made.machine.overlay)
    assert program.device == device.name
    channels = {tensor.name: tensor.channels for tensor in program.tensors}
    assert channels.keys() == written.shapes.keys()
    for k, (use, channel) in enumerate(zip(made.channels, device.channels, strict=True)):
        assert sum(use.shares.values()) <= channel.gbs * 1e9 / (device.mhz * 1e6)
        assert max(use.shares.values(), default=0) <= 64
        assert use.shares.keys() == {task for task, moved in written.moved.items() if k in channels[moved.tensor]}
        assert use.busy_s <= made.latency_s
    for name, chosen in channels.items():
        assert chosen
        assert set(chosen) <= set(range(len(device.channels)))
        if len(chosen) > 1:
            packed = written.packed_tensors.get(name)
            token = written.rows_together[name] if packed is None else whole_bytes(prod(packed.tile), packed.dtype)
            covered_once(written.tensor_bytes(name), token, len(chosen))


def covered_once(size: int, token: int, count: int) -> None:
    """Each word is in one channel, and each token is one piece of each, at the same place in all of them."""
    words = np.arange(size // 64)
    parts = [words[k::count] for k in range(count)]
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), words)
    each = token // 64 // count
    assert each * 64 * count == token
    for t in range(size // token):
        pieces = np.stack([part[t * each : (t + 1) * each] for part in parts])
        np.testing.assert_array_equal(np.sort(pieces.reshape(-1)), np.arange(t * token // 64, (t + 1) * token // 64))


@in_both
def test_no_channel_of_a_machine_is_over_its_bandwidth() -> None:
    random, fitted = Random(5), 0
    for seed in range(cases(60, 2, share=30)):
        torch.manual_seed(seed)
        module = Drawn(random).eval()
        x = torch.randn(1, module.rows, module.width)
        speeds = [random.choice([6.4, 14.375, 19.2]) for _ in range(random.randint(1, 9))]
        device = random.choice([U55C, U280, VC1902, few(U55C, *speeds), few(VC1902, *speeds)])
        rows, packed = random.choice([2, 8, 32]), random.randint(0, 1)
        rule, lanes = random.choice([("balanced", 256), ("printed", 4)])
        knobs = replace(DEFAULT, rows=rows, columns=16, depth=16, lanes=lanes, packed=packed)
        try:
            made = generate(module, (x,), device, knobs, rule=rule)
        except ResourceError:
            continue
        fitted += 1
        check(made)
        with torch.no_grad():
            torch.testing.assert_close(made.streamed.run(x), module(x), rtol=1e-4, atol=1e-4)
    assert fitted > cases(60, 2, share=30) / 2


@pytest.mark.long
def test_a_layer_that_decodes_uses_many_channels() -> None:
    torch.manual_seed(0)
    module = Cached(block("gpt2", hidden_size=128, intermediate_size=512, num_attention_heads=4)).eval()
    past = torch.randn(1, 4, 15, 32), torch.randn(1, 4, 15, 32)
    x = torch.randn(1, 1, 128)
    made = generate(module, (x, *past), U55C)
    check(made)
    # One channel gives less than 58 bytes a cycle: weights of a layer that waits for them lie in several.
    assert sum(bool(use.shares) for use in made.channels) == 32
    several = [name for name, found in made.streamed.written.packed_tensors.items() if "weight" in name and found]
    assert all(len(made.streamed.ports.channels(name)) > 1 for name in several)  # type: ignore[union-attr]


@in_full
@pytest.mark.parametrize("name", [long("layers"), full("cached")])
def test_the_cpp_of_a_machine_reads_and_stores_its_channels(tmp_path: Path, name: str) -> None:
    """Run natively, from buffers for each channel, it gives the simulator's results, bit for bit."""
    torch.manual_seed(0)
    module: nn.Module = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
    arguments = [torch.randn(32, 64)]
    if name == "cached":
        module = Cached(block("gpt2", hidden_size=128, intermediate_size=512, num_attention_heads=4))
        arguments = [torch.randn(1, 1, 128), torch.randn(1, 4, 15, 32), torch.randn(1, 4, 15, 32)]
    made = generate(module.eval(), tuple(arguments), U55C)
    program = program_of(made.machine.overlay)
    assert "rsn::send_rounds<" in cpp_program(program).text
    tensors = made.streamed.tensors(*arguments)
    expected, _ = run_on_tensors(made.machine, tensors)
    got = run_native(built(tmp_path, {name: program})[name], tensors)
    assert {tensor: x.tobytes() for tensor, x in got.items()} == {t: x.tobytes() for t, x in expected.items()}


@pytest.mark.parametrize("columns", [long(16), full(64)])
def test_a_cache_that_is_written_in_place_lies_in_several_channels(tmp_path: Path, columns: int) -> None:
    """Its tiles are loaded by rounds of words, and its new rows stored word by word: natively, as on the engine."""
    torch.manual_seed(0)
    model = decoder_model("gpt2", n_layer=1, n_embd=4 * columns, n_positions=128)
    arguments = with_cache(model, torch.zeros(1, 1, dtype=torch.long), 70, 128)
    made = place(streamed(model, arguments, repeated=True), U55C, replace(DEFAULT, rows=1, columns=32, depth=32))
    check(made)
    written, ports = made.streamed.written, made.streamed.ports
    assert ports is not None
    assert len(written.rows_together) == 2
    for name, token in written.rows_together.items():
        assert token == 4 * columns * 128
        count = len(ports.channels(name))
        assert count > 1
        # The heads and tiles of a cache follow each other: one run, in bursts of 4 KiB on each channel.
        size = written.tensor_bytes(name) // made.streamed.layers // count
        run = size + ceil(size / 4096) * BEGIN
        assert run <= written.moved[f"load_{name}"].cost / made.streamed.layers <= run * 1.01 + 64
    program = program_of(made.machine.overlay)
    tensors = made.streamed.tensors(**arguments)
    expected, _ = run_on_tensors(made.machine, tensors)
    got = run_native(built(tmp_path, {"cache": program})["cache"], tensors)
    assert {tensor: x.tobytes() for tensor, x in got.items()} == {t: x.tobytes() for t, x in expected.items()}


def of_text(made: Streamed, task: str) -> list[int]:
    """The cycles that a task states."""
    (body,) = re.findall(rf"^def {task}\(.*\n((?: .*\n)+)", made.text, re.MULTILINE)
    return [int(n) for n in re.findall(r"cycles\((\d+)\)", body)]


def linear(columns: int, knobs: Knobs, shares: ChannelShares, device: StreamDevice = U55C) -> Streamed:
    """x of 16 x 16 times a weight."""
    made = streamed(nn.Sequential(nn.Linear(16, columns, bias=False)).eval(), (torch.randn(16, 16),), knobs)
    return made.changed(made.knobs, ports=ChannelPorts(device, shares))


TILES = Knobs(rows=16, columns=16, depth=16, unroll=4096, packed=1)


def test_latency_and_bursts_of_a_small_block() -> None:
    tensors = {"input_2": (4,), "linear_0_weight": (0, 1), "linear_0_result": (2,)}
    ports = {"load_input_2": 40, "load_linear_0_weight": 100, "store_linear_0_result": 20}
    made = linear(16, TILES, ChannelShares(tensors, ports))
    # A tile has 1,024 bytes: 64 cycles to the first word, then a burst of as many bytes as it has on a channel.
    x, weight, result = ceil((1024 + BEGIN) / 40), ceil((512 + BEGIN) / 50), ceil((1024 + BEGIN) / 20)
    assert (x, weight, result) == (35, 17, 69)
    assert of_text(made, "load_input_2") == [64, x]
    assert of_text(made, "load_linear_0_weight") == [64, weight]
    assert of_text(made, "store_linear_0_result") == [result, 64]
    # x is there last, in 4 words; the product adds to 8 words of sums in 16 steps, and is 8 cycles deep; the put takes
    # 4 words; the store ends with the response to its last word.
    times = made.sized().together({})
    assert times is not None
    assert times.latency == (64 + x) + (4 + 1) + (16 * 8 + 8) + 4 + (result + 64)


def test_tokens_that_follow_each_other_are_one_run() -> None:
    tensors = {"input_2": (4,), "linear_0_weight": (0, 1), "linear_0_result": (2,)}
    made = linear(256, TILES, ChannelShares(tensors, {"load_linear_0_weight": 100, "store_linear_0_result": 57}))
    # 16 tiles: 8 KiB on each of two channels in two bursts of 4 KiB; 16 KiB on one channel in four.
    each = ceil((8192 + 2 * BEGIN) / 16)
    assert of_text(made, "load_linear_0_weight") == [64, ceil(each / 50)]
    assert of_text(made, "store_linear_0_result") == [ceil(ceil((16384 + 4 * BEGIN) / 16) / 57), 64]
    assert made.written.moved["load_linear_0_weight"].cost == 16 * each


def test_rows_that_do_not_follow_each_other_begin_bursts() -> None:
    plain = replace(TILES, packed=0)
    made = linear(256, plain, ChannelShares({}, {"load_linear_0_weight": 57, "load_input_2": 57}))
    # 16 rows of a tile of the weight lie 1,024 bytes apart; those of x are a whole tensor.
    assert of_text(made, "load_linear_0_weight") == [64, ceil(16 * (64 + BEGIN) / 57)]
    assert of_text(made, "load_input_2") == [64, ceil((1024 + BEGIN) / 57)]
    # Rows of 24 bytes touch a word more than they fill, and a border of 4 KiB may lie inside.
    narrow = linear(12, replace(plain, columns=6), ChannelShares({}, {"load_linear_0_weight": 57}))
    assert of_text(narrow, "load_linear_0_weight") == [64, ceil(16 * (2 * 64 + 2 * BEGIN) / 57)]


def test_streams_of_one_channel_share_it() -> None:
    torch.manual_seed(0)
    module = Gated(32, 64, nn.SiLU(), packed=False).eval()
    x = torch.randn(8, 32)
    one, many = (generate(module, (x,), device) for device in (few(U55C, 14.375), U55C))
    (use,) = one.channels
    assert len(use.shares) == len(one.streamed.written.moved)
    assert sum(use.shares.values()) <= 57
    assert one.bounds_s["busiest channel"] == use.busy_s <= one.latency_s
    assert one.latency_s > many.latency_s
    check(one)


def test_ports_that_are_given_stay_or_are_refused() -> None:
    module, x = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)).eval(), torch.randn(8, 64)
    made = streamed(module, (x,), DEFAULT)
    given = place(made, U55C, replace(DEFAULT, of={"linear_0": {"port": 7}}))
    tasks = [task for task, operator in given.streamed.written.loads.items() if operator == "linear_0"]
    assert [given.streamed.written.moved[task].share for task in tasks] == [7, 7]
    check(given)
    wide = replace(DEFAULT, of={"linear_0": {"port": 3000}})
    with pytest.raises(ChannelError, match=r"its 32 memory channels move 1,824, none more than 57\.5"):
        place(made, U55C, wide)


def test_a_device_with_too_few_channels_is_refused() -> None:
    made = streamed(nn.Linear(16, 16).eval(), (torch.randn(4, 16),), DEFAULT)
    with pytest.raises(
        ChannelError, match=r"3 loads and stores need at least 3 bytes a cycle, and its 1 memory channel"
    ):
        place(made, few(U55C, 0.5))
