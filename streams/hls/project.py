"""The folder of a program for an HLS tool: the region, its header, a testbench, a script, and how to use them."""

from __future__ import annotations

from math import prod

from ...isa.overlays.tasks.program import OffChipTensor
from .emit import HlsProgram
from .kinds import CPP
from .native import HEADERS

PART = "xcvc1902-vsva2197-2MP-e-S"
"""The device of a VCK190, which the script names."""


def project(made: HlsProgram) -> dict[str, str]:
    """Return the text of each file by its name."""
    return {
        "top.cpp": made.text,
        "kernels.h": (HEADERS / "kernels.h").read_text(encoding="utf-8"),
        "testbench.cpp": testbench(made),
        "hls.tcl": script(made),
        "README.md": readme(made),
    }


def testbench(made: HlsProgram) -> str:
    """A program that runs the region once on files with the bytes of its tensors."""
    tensors = {t.name: t for t in made.program.tensors}
    used = [t for t in made.program.tensors if any(a.tensor == t.name for a in made.arguments)]
    parameters, given, lines = [], [], []
    for a in made.arguments:
        parameters.append(f"{'' if a.written else 'const '}{_element(tensors[a.tensor])} *{a.name}")
        given.append(f"{_local(used, a.tensor)}.data()")
    for k, d in enumerate(made.draws):
        parameters += [f"const bool *{d.name}", f"std::size_t {d.name}_count"]
        given += [f"drawn_{k}.data()", f"drawn_{k}.size()"]
    for t in used:
        lines.append(f'    Memory<{_element(t)}> {_local(used, t.name)}("{t.name}.bin", {prod(t.type.shape)});')
    for k, _ in enumerate(made.draws):
        lines.append(f'    Memory<bool> drawn_{k}("drawn_{k}.bin", 0);')
    lines.append(f"    {made.name}_top({', '.join(given)});")
    outputs = [t for t in used if t.output]
    checks = [f'{_local(used, t.name)}.differs("{t.name}.expected.bin")' for t in outputs]
    lines += [f"    int different = {' + '.join(checks) or '0'};", "    return different != 0;"]
    return f"""// Runs the region once. NAME.bin holds the bytes of a tensor (zeros if there is no such file),
// NAME.expected.bin those that it must have after the run; without that file they are written to NAME.out.bin.
// SPDX-License-Identifier: Apache-2.0
#include "kernels.h"

#include <cstdio>
#include <memory>
#include <string>

void {made.name}_top({", ".join(parameters)});

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

int main() {{
{chr(10).join(lines)}
}}
"""


def script(made: HlsProgram) -> str:
    """The commands for the HLS tool."""
    period = 1e9 / made.program.clock_hz
    return f"""# vitis_hls -f hls.tcl
open_project -reset {made.name}
set_top {made.name}_top
add_files top.cpp
add_files -tb testbench.cpp
add_files -tb [glob -nocomplain *.bin]
open_solution -reset solution
set_part {PART}
create_clock -period {period:.3f}
csim_design
csynth_design
"""


def readme(made: HlsProgram) -> str:
    """What is in the folder, and how it is built."""
    return f"""# {made.program.name}: HLS C++ of {made.program.file}

| file | what it holds |
|---|---|
| `top.cpp` | `{made.name}_top`: one dataflow region; a function for each class of equal task instances |
| `kernels.h` | Python's integers, tiles, library kernels |
| `testbench.cpp` | runs the region once on files with the bytes of its tensors |
| `hls.tcl` | the commands for Vitis HLS: `vitis_hls -f hls.tcl` |

These files were compiled by a C++17 compiler for a computer. **No HLS tool has been run on them**: whether a tool takes
them, which clock and interval it reaches, and what area they need, is not known.

- A tensor that several processes access has a pointer for each of them: pass the same buffer to all.
- A stream that moves P elements at a time carries vectors of P elements, and is as deep in transfers.
- Integers are exact up to 128 bits. What is put or stored wraps, and is right for any size.
- Float arithmetic is not fused and not reordered: a tool that may do either gives other last bits.
- A call of `data()` takes the next bit of the argument `drawn_...` of its task instance.
"""


def _element(t: OffChipTensor) -> str:
    return CPP[t.type.dtype]


def _local(used: list[OffChipTensor], name: str) -> str:
    """A variable of the testbench for a tensor."""
    return f"tensor_{[t.name for t in used].index(name)}"
