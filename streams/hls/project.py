"""The folder of a program for an HLS tool: the region, its header, a testbench, a script, and how to use them."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from ...base.errors import ProgramError
from ...isa.overlays.tasks.program import OffChipTensor, TaskProgram
from ..placing.devices import VC1902, StreamDevice, device_named
from .emit import HlsProgram, held_elements, word_type
from .native import HEADERS

DEVICE = VC1902
"""Of a program that is for none."""


def device_of(program: TaskProgram, name: str | None = None) -> StreamDevice:
    """Return the device with a name. program: whose device is taken if `name` is None or empty; `DEVICE` if it has
    none. Raises `ProgramError` for an unknown name, and for another device than that of the program if tensors lie in
    memory channels of the latter."""
    own = device_named(program.device) if program.device else None
    device = device_named(name) if name else own or DEVICE
    if own is not None and device is not own and any(t.channels for t in program.tensors):
        text = f"{program.name} is a machine for {own.name}, with memory channels of it, not of {device.name}"
        raise ProgramError(text)
    return device


def project(made: HlsProgram, device: StreamDevice, sizes: Mapping[str, int] | None = None) -> dict[str, str]:
    """Return the files of the folder that `rsn hls` writes: the text of each, by its name. device: whose part and
    memory channels the files state. sizes: the values of sizes, by name, with which the testbench runs; the others have
    their largest value. Raises `OSError` if a header cannot be read."""
    return {
        "top.cpp": made.text,
        **{name: (HEADERS / name).read_text(encoding="utf-8") for name in ("kernels.h", "channels.h")},
        "testbench.cpp": testbench(made, sizes or {}),
        "hls.tcl": script(made.name, made.program.clock_hz, device),
        "connectivity.cfg": connectivity(made, device),
        "README.md": readme(made, device),
        **{header.name: header.read_text(encoding="utf-8") for header in made.headers},
    }


def testbench(made: HlsProgram, sizes: Mapping[str, int]) -> str:
    """Return the text of a C++ program that runs the region once on files with the bytes of its tensors, and exits with
    1 if a result differs from the file that holds the expected one. sizes: as for `project`.
    """
    tensors = {t.name: t for t in made.program.tensors}
    used = [t for t in made.program.tensors if any(a.tensor == t.name for a in made.arguments)]
    parameters, given, lines = [], [], []
    for a in made.arguments:
        moved = word_type(tensors[a.tensor], a.packed)
        parameters.append(f"{'' if a.written else 'const '}{moved} *{a.name}")
        local = _local(used, a.tensor)
        if a.channel is None:
            given.append(f"reinterpret_cast<{moved} *>({local}.data())")
        else:
            given.append(f"{local}_channels.channel<{moved}>({a.channel})")
    for k, d in enumerate(made.draws):
        parameters += [f"const bool *{d.name}", f"std::size_t {d.name}_count"]
        given += [f"drawn_{k}.data()", f"drawn_{k}.size()"]
    for scalar in made.sizes:
        parameters.append(f"int {scalar.name}")
        given.append(f'value(count, arguments, "{scalar.size}", {sizes.get(scalar.size, scalar.largest)})')
    for t in used:
        count = -(-prod(t.type.shape) // held_elements(t.type.dtype, 1))
        lines.append(f'    Memory<{word_type(t, 1)}> {_local(used, t.name)}("{t.name}.bin", {count});')
    for k, _ in enumerate(made.draws):
        lines.append(f'    Memory<bool> drawn_{k}("drawn_{k}.bin", 0);')
    apart = {_local(used, t.name): t for t in used if len(t.channels) > 1}
    for name, t in apart.items():
        size = f"{name}.size() * sizeof({word_type(t, 1)})"
        lines.append(f"    rsn::Channels {name}_channels({name}.data(), {size}, {len(t.channels)});")
    lines.append(f"    {made.name}_top({', '.join(given)});")
    lines += [f"    {name}_channels.join({name}.data());" for name, t in apart.items() if t.output]
    outputs = [t for t in used if t.output]
    checks = [f'{_local(used, t.name)}.differs("{t.name}.expected.bin")' for t in outputs]
    lines += [f"    int different = {' + '.join(checks) or '0'};", "    return different != 0;"]
    declaration = f"void {made.name}_top({', '.join(parameters)});"
    return testbench_text("kernels.h", declaration, lines, takes_sizes=bool(made.sizes))


_VALUE = """
// A size that each run gives: NAME=VALUE among the arguments of the program, or the value of the files.
int value(int count, char **arguments, const std::string &name, int stated) {
    for (int k = 1; k < count; ++k)
        if (!std::string(arguments[k]).compare(0, name.size() + 1, name + "="))
            return std::atoi(arguments[k] + name.size() + 1);
    return stated;
}
"""


def testbench_text(header: str, declaration: str, lines: list[str], takes_sizes: bool) -> str:
    """Return the text of a C++ testbench. header: the name of the file that it includes. declaration: of the top
    function. lines: of the body of `main`, in which a `Memory` holds the content of a file. takes_sizes: whether the
    lines call `value` for sizes that are arguments of the testbench."""
    more, main = (_VALUE, "int main(int count, char **arguments)") if takes_sizes else ("", "int main()")
    return f"""// Runs the region once. NAME.bin holds the bytes of a tensor (zeros if there is no such file),
// NAME.expected.bin those that it must have after the run; without that file they are written to NAME.out.bin.
// SPDX-License-Identifier: Apache-2.0
#include "{header}"

#include <cstdio>{chr(10) + "#include <cstdlib>" if takes_sizes else ""}
#include <memory>
#include <string>

{declaration}

template <class T>
class Memory {{
  public:
    Memory(const std::string &file, std::size_t count) : name_(file) {{
        std::FILE *in = std::fopen(file.c_str(), "rb");
        if (in && !count) {{
            std::fseek(in, 0, SEEK_END);
            count = static_cast<std::size_t>(std::ftell(in)) / sizeof(T);
            std::rewind(in);
        }}
        size_ = count;
        data_.reset(new T[count + 1]());
        if (in && std::fread(static_cast<void *>(data_.get()), sizeof(T), count, in) != count)
            std::printf("%s is too short\\n", file.c_str());
        if (in) std::fclose(in);
    }}
    T *data() {{ return data_.get(); }}
    std::size_t size() const {{ return size_; }}
    // 1 if a byte differs from the file.
    int differs(const std::string &file) {{
        std::FILE *in = std::fopen(file.c_str(), "rb");
        if (!in) {{
            const std::string name = name_.substr(0, name_.size() - 4) + ".out.bin";
            std::FILE *out = std::fopen(name.c_str(), "wb");
            if (out) std::fwrite(static_cast<const void *>(data_.get()), sizeof(T), size_, out), std::fclose(out);
            return 0;
        }}
        std::unique_ptr<T[]> expected(new T[size_ + 1]());
        const bool whole = std::fread(static_cast<void *>(expected.get()), sizeof(T), size_, in) == size_;
        std::fclose(in);
        const bool same = whole && !std::memcmp(expected.get(), data_.get(), size_ * sizeof(T));
        std::printf("%s: %s\\n", file.c_str(), same ? "equal bit for bit" : "different");
        return !same;
    }}

  private:
    std::string name_;
    std::size_t size_ = 0;
    std::unique_ptr<T[]> data_;
}};
{more}
{main} {{
{chr(10).join(lines)}
}}
"""


def script(name: str, clock_hz: float, device: StreamDevice) -> str:
    """Return the Tcl commands for the HLS tool. name: of the top function, without `_top`. clock_hz: the wanted clock
    in Hz. device: whose part is named."""
    period = 1e9 / clock_hz
    return f"""# vitis_hls -f hls.tcl
open_project -reset {name}
set_top {name}_top
add_files top.cpp -cflags -std=c++17
add_files -tb testbench.cpp -cflags -std=c++17
add_files -tb [glob -nocomplain *.bin]
open_solution -reset solution
set_part {device.part}
create_clock -period {period:.3f}
csim_design
csynth_design
"""


def channels_of(made: HlsProgram, device: StreamDevice) -> dict[str, tuple[int, ...]]:
    """Return the numbers of the memory channels of each tensor, by its name: the chosen ones, or, for a tensor without,
    one channel of the device; such tensors get the channels in turn."""
    names = dict.fromkeys(a.tensor for a in made.arguments)
    chosen = {t.name: t.channels for t in made.program.tensors}
    return {name: chosen[name] or (turn % len(device.channels),) for turn, name in enumerate(names)}


def connectivity(made: HlsProgram, device: StreamDevice) -> str:
    """Return the text of the options of the linker (UG1393, v++ --config): the memory channel of each argument of the
    top function.
    """
    of_tensor = channels_of(made, device)
    return connectivity_text(made.name, device, {a.name: of_tensor[a.tensor][a.channel or 0] for a in made.arguments})


def connectivity_text(name: str, device: StreamDevice, channels: Mapping[str, int]) -> str:
    """Return the text of the options of the linker (UG1393, v++ --config). name: of the top function, without `_top`.
    channels: the number of the memory channel of each argument, by the argument's name.
    """
    lines = [f"# v++ --link --config connectivity.cfg: {device.name}", "[connectivity]", f"nk={name}_top:1:{name}_1"]
    lines += [f"sp={name}_1.{argument}:{device.channels[of].name}" for argument, of in channels.items()]
    return "\n".join(lines) + "\n"


_SIZES = """\
- Sizes that each run gives are the last arguments, each a register (`s_axilite`). Tensors have room for the largest
  values: a run with smaller ones accesses the leading part of each axis. The testbench takes them as `NAME=VALUE`
  (`csim_design -argv`).
"""


def readme(made: HlsProgram, device: StreamDevice) -> str:
    """Return the text of README.md, in Markdown: what is in the folder, and how it is built for `device`."""
    return f"""# {made.program.name}: HLS C++ of {made.program.file}

| file | what it holds |
|---|---|
| `top.cpp` | `{made.name}_top`: one dataflow region; a function for each class of equal task instances |
| `kernels.h` | Python's integers, tiles, library kernels |
| `channels.h` | tensors in several memory channels, on the host |
| `testbench.cpp` | runs the region once on files with the bytes of its tensors |
| `hls.tcl` | commands for Vitis HLS, {device.name} at {made.program.clock_hz / 1e6:g} MHz: `vitis_hls -f hls.tcl` |
| `connectivity.cfg` | the memory channel of each argument, for `v++ --link --config` |
{"".join(f"| `{header.name}` | functions of variants of kernels |{chr(10)}" for header in made.headers)}
These files were compiled by a C++17 compiler for a computer. **No HLS tool has been run on them**: whether a tool takes
them, which clock and interval it reaches, and what area they need, is not known.

- A tensor that several processes access has a pointer for each of them: pass the same buffer to all. A process has a
  bundle of its own, of up to 512 bits; its pointers are to vectors of as many elements.
- A tensor in n memory channels has a pointer for each of them (`_c0` and so on), in a bundle of its own: a buffer with
  every n-th word of 64 bytes, the first one from word 0 on. `rsn::Channels` deals them out and joins them.
- A tile goes over a stream in words of up to 2,048 bits, row by row; to and from a tensor in several memory channels in
  words of up to 4,096 bits.
- A stream that moves P elements at a time carries vectors of P elements, and is as deep in transfers.
- Integers are exact up to 128 bits. What is put or stored wraps, and is right for any size.
- Float arithmetic is not fused and not reordered: a tool that may do either gives other last bits.
{_SIZES if made.sizes else ""}- A call of `data()` takes the next bit of the argument `drawn_...` of its task instance.
"""


def _local(used: list[OffChipTensor], name: str) -> str:
    """A variable of the testbench for a tensor."""
    return f"tensor_{[t.name for t in used].index(name)}"
