"""The folder of a dynamic program for an HLS tool."""

from __future__ import annotations

from ...hls.native import HEADERS
from ...hls.project import connectivity_text, script, testbench_text
from ...placing.devices import StreamDevice
from .emit import STEP, DynamicHls

TESTBENCH_WORDS = 1 << 20
"""Words of 32 bits for a result in the testbench."""


def dynamic_project(made: DynamicHls, device: StreamDevice) -> dict[str, str]:
    """Return the files of the folder that `rsn hls` writes: the text of each, by its name. device: whose clock and
    memory channels the files state. Raises `OSError` if a header of this package cannot be read."""
    return {
        "top.cpp": made.text,
        **{name: (HEADERS / name).read_text(encoding="utf-8") for name in ("kernels.h", "channels.h")},
        **{header.name: header.read_text(encoding="utf-8") for header in sorted(STEP.glob("step*.h"))},
        "testbench.cpp": testbench(made),
        "hls.tcl": script(made.name, device.mhz * 1e6, device),
        "connectivity.cfg": connectivity(made, device),
        "README.md": readme(made, device),
    }


def testbench(made: DynamicHls) -> str:
    """Return the text of a C++ program that runs the region once on files with the bytes of its tensors and tokens, and
    exits with 1 if a result differs from the file that holds the expected one.
    """
    parameters, given = [], []
    for a in made.arguments:
        parameters.append(f"{a.moved} *{a.name}")
        given.append(f"reinterpret_cast<{a.moved} *>(memory_{made.memories[a.memory]}.data())")
        if a.memory.is_result:
            parameters.append(f"std::size_t {a.name}_size")
            given.append(f"memory_{made.memories[a.memory]}.size()")
    lines, checks = [], []
    written = {a.memory for a in made.arguments if a.written}
    for memory, name in made.memories.items():
        # In words of the widest port, so that the memory begins where the others may begin, too.
        words = [(a.words, a.moved.removeprefix("const ")) for a in made.arguments if a.memory is memory]
        count, word = min(words)
        if memory.is_result:
            count = TESTBENCH_WORDS
        lines.append(f'    Memory<{word}> memory_{name}("{name}.bin", {count});')
        if memory in written:
            checks.append(f'memory_{name}.differs("{name}.expected.bin")')
    lines.append(f"    {made.name}_top({', '.join(given)});")
    lines += [f"    const int different = {' + '.join(checks)};", "    return different != 0;"]
    return testbench_text("step.h", f"void {made.name}_top({', '.join(parameters)});", lines, takes_sizes=False)


def connectivity(made: DynamicHls, device: StreamDevice) -> str:
    """Return the text of the options of the linker (UG1393, v++ --config): the memory channel of each argument. Tensors
    and streams get the channels of the device in turn.
    """
    turn = {memory: number % len(device.channels) for number, memory in enumerate(made.memories)}
    return connectivity_text(made.name, device, {a.name: turn[a.memory] for a in made.arguments})


def readme(made: DynamicHls, device: StreamDevice) -> str:
    """Return the text of README.md, in Markdown: what is in the folder, and how it is built for `device`."""
    return f"""# {made.name}: HLS C++ of a dynamic program

| file | what it holds |
|---|---|
| `top.cpp` | `{made.name}_top`: one dataflow region; a process for each operator |
| `step.h` | includes `step_tokens.h`, `step_memory.h`, `step_operators.h` and `step_functions.h`: tokens, tokens in a \
memory, a function template for each operator, what operators apply |
| `kernels.h`, `channels.h` | 16-bit floats, integers; tensors in several memory channels, on the host |
| `testbench.cpp` | runs the region once on files with the bytes of its tensors and tokens |
| `hls.tcl` | commands for Vitis HLS, {device.name} at {device.mhz} MHz: `vitis_hls -f hls.tcl` |
| `connectivity.cfg` | the memory channel of each argument, for `v++ --link --config` |

These files were compiled by a C++17 compiler for a computer. **No HLS tool has been run on them**: whether a tool takes
them, which clock and interval it reaches, and what area they need, is not known.

- A tensor that several operators access has a pointer for each of them: pass the same buffer to all. An operator has a
  bundle of its own, of up to 512 bits.
- Tokens of inputs and results lie in words of 32 bits, as `step_memory.h` says (`feed`, `collect`). Behind the
  pointer to a result comes the number of its words; hardware does not check it.
- A stream is a FIFO of heads, as deep in tokens as the program says, and one of words for each tile in its elements.
- EagerMerge, and Reassemble where several are chosen, take what comes first: their order may differ from run to run.
- Float arithmetic is not fused and not reordered: a tool that may do either gives other last bits.
"""
