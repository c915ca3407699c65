"""Synthesises the pieces of which `isa/versal/logic.py` counts a machine, by Yosys, and writes what they take.

`python -m rsn.hw.versal.pieces > isa/versal/pieces.toml` takes some minutes; `--only NAME` makes some of them. It runs
`yosys`, or the package pyosys (`pip install pyosys`), whichever is there.

The device is an UltraScale+ for Yosys (`-family xcup`), the nearest to a Versal that it knows: LUTs of six inputs, or
of five with two outputs, 64 words of seven bits in eight of them, shift registers of 32 bits. `-nowidelut`: a Versal
has no multiplexers behind its LUTs (AM005). Each piece ends in a register, as HLS makes it.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

SYNTHESIS = "synth_xilinx -family xcup -flatten -nowidelut -noiopad -noclkbuf -top top"
MEMORY_LUTS = {
    "RAM32M16": 8,
    "RAM64M8": 8,
    "RAM32M": 4,
    "RAM64M": 4,
    "RAM32X1D": 2,
    "RAM64X1D": 2,
    "RAM128X1D": 4,
    "RAM256X1D": 8,
    "SRLC32E": 1,
}
"""LUTs of a primitive (UG974)."""
PAIRED_INPUTS = 5
"""Two LUTs fit in one if they have no more inputs than this together (AM005)."""
BLOCKS = ("RAMB18E2", "RAMB36E2")
"""Counted by `block_rams`, so not here."""
NOTHING = ("VCC", "GND", "CARRY4", "CARRY8")
WORD = 64
"""Bits of pieces that are counted by the bit, but for memories."""
MEMORY_BITS = 112
"""A multiple of the 14 bits that eight LUTs hold of 32 words, and of the 7 of 64 words."""


def clocked(ports: str, body: str, before: str = "") -> str:
    """Return a Verilog module `top` whose registers have one clock. ports: its further ports. body: statements at each
    edge of the clock. before: declarations in front of them.
    """
    return f"module top(input clk, {ports});\n{before}\nalways @(posedge clk) begin\n{body}\nend\nendmodule\n"


def multiplexer(ways: int) -> str:
    """Return the Verilog that selects one of `ways` words of 64 bits, by the number of the word."""
    inputs = ", ".join(f"input [{WORD - 1}:0] in{n}" for n in range(ways))
    cases = " ".join(f"{n}: out <= in{n};" for n in range(ways - 1))
    number = (ways - 1).bit_length()
    ports = f"{inputs}, input [{number - 1}:0] which, output reg [{WORD - 1}:0] out"
    return clocked(ports, f"case (which) {cases} default: out <= in{ways - 1}; endcase")


def butterfly(banks: int) -> str:
    """Return the Verilog that puts the cells of a word of 64 bits into another order: cell n comes from cell n xor
    `order`. banks: cells of the word, a power of 2.
    """
    cell = WORD // banks
    word, number = f"[{WORD - 1}:0]", f"[{(banks - 1).bit_length() - 1}:0]"
    ports = f"input {word} in, input {number} order, output reg {word} out"
    body = "\n".join(f"out[{n * cell} +: {cell}] <= in[({n} ^ order) * {cell} +: {cell}];" for n in range(banks))
    return clocked(ports, body)


def crossbar(banks: int) -> str:
    """Return the Verilog of three accesses to a memory of two slots: one side writes a word and reads one of a slot,
    the other side reads a word of the other slot. Each access goes through a butterfly; choices and butterflies have
    registers. banks: of each slot, a power of 2."""
    cell, word = WORD // banks, f"[{WORD - 1}:0]"
    number = f"[{(banks - 1).bit_length() - 1}:0]"
    accesses = ("written", "filling", "emptying")

    def turned(access: str, source: str) -> str:
        return "\n".join(
            f"{access}[{n * cell} +: {cell}] <= {source}[({n} ^ {access}_order) * {cell} +: {cell}];"
            for n in range(banks)
        )

    orders = ", ".join(f"input {number} {access}_order" for access in accesses)
    outs = ", ".join(f"output reg {word} {access}" for access in accesses)
    body = f"""
{turned("written", "in")}
one <= which ? slot0 : slot1; {turned("filling", "one")}
other <= which ? slot1 : slot0; {turned("emptying", "other")}"""
    return clocked(f"input which, input {word} in, slot0, slot1, {orders}, {outs}", body, f"reg {word} one, other;")


def moved(bits: int) -> str:
    """Return the Verilog of a register of `bits` bits, more than 32: in a cycle it is loaded, or moves down by 32 bits
    while 32 others come in above."""
    top = bits - 1
    ports = f"input load, enable, input [{top}:0] in, input [31:0] behind, output reg [{top}:0] out"
    return clocked(ports, f"if (enable) out <= load ? in : {{behind, out[{top}:32]}};")


def fifo(depth: int) -> Callable[[int], str]:
    """Return a function from the bits of a word to the Verilog of a short stream, as HLS makes it: a shift register,
    and the number of the last word in it. depth: in words, a power of 2."""

    def of(width: int) -> str:
        bits = (depth - 1).bit_length()
        before = f"""
reg [{bits}:0] last;
wire push = write & full_n, pop = read & empty_n;
wire [{bits - 1}:0] at = last[{bits}] ? {bits}'d0 : last[{bits - 1}:0];
genvar n;
generate for (n = 0; n < {width}; n = n + 1) begin : bits
    reg [{depth - 1}:0] words;
    always @(posedge clk) if (push) words <= {{words[{depth - 2}:0], in[n]}};
    assign out[n] = words[at];
end endgenerate"""
        body = _ends(depth, "last")
        return clocked(_stream_ports(width), body, before)

    return of


def fifo_in_block_ram(width: int) -> str:
    """Return the Verilog of a stream of 512 words of `width` bits, as HLS makes it: a memory, and a choice between its
    output and the word that has just come in."""
    depth, bits = 512, 9
    before = f"""
(* ram_style = "block" *) reg [{width - 1}:0] words [0:{depth - 1}];
reg [{width - 1}:0] memory, passed;
reg [{bits - 1}:0] from, to;
reg [{bits}:0] last;
reg past;
wire push = write & full_n, pop = read & empty_n;
wire [{bits - 1}:0] next = pop ? from + 1 : from;
assign out = past ? passed : memory;"""
    body = f"""
if (push) words[to] <= in;
memory <= words[next];
passed <= in;
past <= push & next == to;
if (rst) begin from <= 0; to <= 0; end
else begin from <= next; if (push) to <= to + 1; end
{_ends(depth, "last")}"""
    return clocked(_stream_ports(width), body, before)


def fifo_in_lut_ram(depth: int) -> Callable[[int], str]:
    """Return a function from the bits of a word to the Verilog of a stream in LUTs, as HLS makes it of `impl=lutram`: a
    memory that is read where a register says. depth: in words, a power of 2."""

    def of(width: int) -> str:
        bits = (depth - 1).bit_length()
        before = f"""
(* ram_style = "distributed" *) reg [{width - 1}:0] words [0:{depth - 1}];
reg [{bits - 1}:0] from, to;
reg [{bits}:0] last;
wire push = write & full_n, pop = read & empty_n;
assign out = words[from];"""
        body = f"""
if (push) words[to] <= in;
if (rst) begin from <= 0; to <= 0; end
else begin if (pop) from <= from + 1; if (push) to <= to + 1; end
{_ends(depth, "last")}"""
        return clocked(_stream_ports(width), body, before)

    return of


def _stream_ports(width: int) -> str:
    """Of a FIFO."""
    data = f"input [{width - 1}:0] in, output [{width - 1}:0] out"
    return f"input rst, write, read, {data}, output reg empty_n, full_n"


def _ends(depth: int, last: str) -> str:
    """Keeps the number of the last word of a FIFO, and whether it is empty or full."""
    return f"""
if (rst) begin {last} <= ~0; empty_n <= 0; full_n <= 1; end
else if (push & ~pop) begin {last} <= {last} + 1; empty_n <= 1; full_n <= {last} != {depth - 2}; end
else if (pop & ~push) begin {last} <= {last} - 1; empty_n <= {last} != 0; full_n <= 1; end"""


def register_slice(width: int) -> str:
    """Return the Verilog of an AXI4-Stream port of `width` bits with registers in both directions."""
    word = f"[{width - 1}:0]"
    before = f"reg {word} second; reg waits; assign ready = ~waits;"
    body = """
if (rst) begin valid <= 0; waits <= 0; end
else begin
    if (~valid | taken) begin
        out <= waits ? second : in;
        valid <= waits | given;
        waits <= 0;
    end else if (given & ~waits) waits <= 1;
    if (~waits) second <= in;
end"""
    return clocked(
        f"input rst, given, taken, input {word} in, output reg {word} out, output reg valid, output ready", body, before
    )


def memory(depth: int) -> str:
    """Return the Verilog of `depth` words of 112 bits in LUTs, with a port to write and one to read."""
    bits = (depth - 1).bit_length()
    word = f"[{MEMORY_BITS - 1}:0]"
    before = f'(* ram_style = "distributed" *) reg {word} words [0:{depth - 1}];'
    body = "if (write) words[to] <= in;\nout <= words[from];"
    return clocked(f"input write, input [{bits - 1}:0] from, to, input {word} in, output reg {word} out", body, before)


def larger(bits: int) -> str:
    """Return the Verilog of the larger of two numbers of float32; the first one if one of them is not a number. bits:
    32; an assertion fails for another size."""
    assert bits == 32
    before = """
wire nan = &b[30:23] & |b[22:0] | &a[30:23] & |a[22:0];
wire [30:0] x = a[31] ? b[30:0] : a[30:0], y = a[31] ? a[30:0] : b[30:0];
wire more = ~nan & (a[31] != b[31] ? a[31] : y > x);"""
    return clocked("input [31:0] a, b, output reg [31:0] out", "out <= more ? b : a;", before)


def masked(bits: int) -> str:
    """Return the Verilog that passes an element of float32 whose column lies in the range from `first` to before
    `end_`, and gives minus infinity for any other. The column is a sum of an input and of a constant. bits: 32; an
    assertion fails for another size."""
    assert bits == 32
    before = "wire signed [12:0] at = {col, 5'd13};\nwire valid = at >= first & at < end_;"
    ports = "input [7:0] col, input signed [12:0] first, end_, input [31:0] in, output reg [31:0] out"
    return clocked(ports, "out <= valid ? in : 32'hff800000;", before)


def bound(bits: int) -> str:
    """Return the Verilog of the larger of two signed numbers: a column, and the sum of a row and an offset. bits: of
    each."""
    before = f"wire signed [{bits - 1}:0] sum = row + offset;"
    ports = f"input signed [{bits - 1}:0] row, offset, col, output reg signed [{bits - 1}:0] out"
    return clocked(ports, "out <= sum > col ? sum : col;", before)


def adder(bits: int) -> str:
    """Return the Verilog of a sum of float32 without DSPs, in seven steps; a number below the least normal one counts
    as 0. bits: 32; an assertion fails for another size."""
    assert bits == 32
    before = """
reg s1, d1, s2, d2, s3, d3, s4, s5, s6, z5, z6;
reg [7:0] e1, e2, e3, e4, e5, e6, n1;
reg [2:0] f2;
reg [23:0] x1, y1, x2, x3;
reg [26:0] y2, y3;
reg [27:0] m4, m5, m6;
reg [4:0] l5;
reg [1:0] l6;
wire swap = b[30:0] > a[30:0];
wire [31:0] p = swap ? b : a, q = swap ? a : b;
wire [26:0] by8 = n1[7:5] != 0 ? 0 : {y1, 3'b0} >> {n1[4:3], 3'b0};
wire lost8 = n1[7:5] != 0 ? |y1 : n1[4:3] == 3 ? |y1[20:0] : n1[4:3] == 2 ? |y1[12:0] : n1[4:3] == 1 ? |y1[4:0] : 0;
wire [26:0] by1 = y2 >> f2;
wire lost1 = |(y2 & ~(27'h7ffffff << f2));
integer k;
reg [4:0] lead;
always @* begin lead = 27; for (k = 0; k < 28; k = k + 1) if (m4[k]) lead = 27 - k; end
wire up = m6[3] & (m6[4] | m6[2] | m6[1] | m6[0]);
wire [24:0] rounded = m6[27:4] + up;"""
    body = """
s1 <= p[31]; d1 <= p[31] ^ q[31]; e1 <= p[30:23]; n1 <= p[30:23] - q[30:23];
x1 <= {|p[30:23], p[22:0]}; y1 <= {|q[30:23], q[22:0] & {23{|q[30:23]}}};
s2 <= s1; d2 <= d1; e2 <= e1; x2 <= x1; f2 <= n1[2:0]; y2 <= {by8[26:1], by8[0] | lost8};
s3 <= s2; d3 <= d2; e3 <= e2; x3 <= x2; y3 <= {by1[26:1], by1[0] | lost1};
s4 <= s3; e4 <= e3; m4 <= d3 ? {1'b0, x3, 3'b0} - {1'b0, y3} : {1'b0, x3, 3'b0} + {1'b0, y3};
s5 <= s4; e5 <= e4 - lead + 1; z5 <= lead > e4 | m4 == 0; l5 <= lead; m5 <= m4;
s6 <= s5; e6 <= e5; z6 <= z5; m6 <= m5 << l5;
out <= z6 ? 0 : {s6, e6 + rounded[24], rounded[24] ? rounded[23:1] : rounded[22:0]};"""
    return clocked("input [31:0] a, b, output reg [31:0] out", body, before)


DIGITS, BY_STEP = 26, 2
"""Digits of a quotient or root: a mantissa, and two to round it. So many are made between two registers."""


def divider(bits: int) -> str:
    """Return the Verilog of a quotient of float32: for each digit the divisor is added to the remainder or subtracted.
    bits: 32; an assertion fails for another size."""
    assert bits == 32
    start = """
wire signed [26:0] r_0 = {3'b0, |a[30:23], a[22:0]};
wire [24:0] d_0 = {|b[30:23], b[22:0], 1'b0};
wire signed [9:0] e_0 = a[30:23] - b[30:23] + 127;
wire s_0 = a[31] ^ b[31];"""

    def digit(n: int) -> str:
        return f"""
wire [27:0] sum_{n} = {{r_{n}[25:0], 2'b01}} + {{{{2'b0, d_{n}}} ^ {{27{{~r_{n}[26]}}}}, ~r_{n}[26]}};
wire signed [26:0] r_{n}_next = sum_{n}[27:1];
wire [24:0] d_{n}_next = d_{n};
wire q_{n}_digit = ~r_{n}_next[26];"""

    return _by_digits("input [31:0] a, b, output reg [31:0] out", start, digit, lambda n: {"r": 27, "d": 25})


def square_root(bits: int) -> str:
    """Return the Verilog of a square root of float32: for each digit, the digits found so far are added to the
    remainder or subtracted. bits: 32; an assertion fails for another size."""
    assert bits == 32
    start = """
wire [25:0] m_0 = a[23] ? {1'b0, |a[30:23], a[22:0], 1'b0} : {|a[30:23], a[22:0], 2'b0};
wire signed [2:0] r_0 = 0;
wire signed [9:0] e_0 = (a[30:23] + 127) >> 1;
wire s_0 = a[31];"""

    def digit(n: int) -> str:
        known = f"q_{n}[{n - 1}:0] ^ {{{n}{{less_{n}}}}}, " if n else ""
        pair = f"m_{n}[25:24]" if n < DIGITS // 2 else "2'b0"
        return f"""
wire less_{n} = ~r_{n}[{n + 2}];
wire signed [{n + 3}:0] r_{n}_next = {{r_{n}, {pair}}} + {{{{2{{less_{n}}}}}, {known}2'b11}};
wire [25:0] m_{n}_next = {{m_{n}[23:0], 2'b0}};
wire q_{n}_digit = ~r_{n}_next[{n + 3}];"""

    return _by_digits("input [31:0] a, output reg [31:0] out", start, digit, lambda n: {"r": n + 3, "m": 26})


def _by_digits(ports: str, start: str, digit: Callable[[int], str], state: Callable[[int], Mapping[str, int]]) -> str:
    """An operator that makes its result digit by digit. start: sets the state of digit 0, exponent and sign. digit: of
    the state n, makes the next one and the digit. state: names and bits of it before a digit."""
    lines, ends = [start, f"wire [{DIGITS - 1}:0] q_0 = 0;"], []
    for n in range(DIGITS):
        lines.append(digit(n))
        lines.append(f"wire [{DIGITS - 1}:0] q_{n}_next = {{q_{n}[{DIGITS - 2}:0], q_{n}_digit}};")
        lines.append(f"wire signed [9:0] e_{n}_next = e_{n};\nwire s_{n}_next = s_{n};")
        for name, width in {**state(n + 1), "q": DIGITS, "e": 10, "s": 1}.items():
            signed = "signed " if name in "re" else ""
            if (n + 1) % BY_STEP == 0:
                lines.append(f"reg {signed}[{width - 1}:0] {name}_{n + 1};")
                ends.append(f"{name}_{n + 1} <= {name}_{n}_next;")
            else:
                lines.append(f"wire {signed}[{width - 1}:0] {name}_{n + 1} = {name}_{n}_next;")
    end = DIGITS
    lines.append(f"wire [25:0] q = q_{end}[25] ? q_{end} : {{q_{end}[24:0], 1'b0}};")
    lines.append(f"wire [24:0] rounded = q[25:2] + (q[1] & (q[0] | q[2] | |r_{end}));")
    lines.append(f"wire signed [9:0] e = e_{end} - {{9'b0, !q_{end}[25]}} + {{9'b0, rounded[24]}};")
    ends.append(f"out <= {{s_{end}, e[9] ? 31'b0 : e[8] ? 31'h7f800000 : {{e[7:0], rounded[22:0]}}}};")
    return clocked(ports, "\n".join(ends), "\n".join(lines))


def integer_divider(bits: int) -> str:
    """Return the Verilog of a divider of unsigned integers of `bits` bits, which makes one quotient at a time, one
    digit in each cycle."""
    word = f"[{bits - 1}:0]"
    count = f"[{bits.bit_length() - 1}:0]"
    before = f"""
reg {word} rest, by; reg {count} left;
wire [{bits}:0] less = {{rest, out[{bits - 1}]}} - by;"""
    body = f"""
if (start) begin rest <= 0; by <= b; out <= a; left <= {bits}; end
else if (|left) begin
    left <= left - 1;
    rest <= less[{bits}] ? {{rest[{bits - 2}:0], out[{bits - 1}]}} : less[{bits - 1}:0];
    out <= {{out[{bits - 2}:0], ~less[{bits}]}};
end
ready <= ~|left;"""
    return clocked(f"input start, input {word} a, b, output reg {word} out, output reg ready", body, before)


def integer_dividers(bits: int) -> str:
    """Return the Verilog of a divider of unsigned integers of `bits` bits, which begins a quotient in each cycle: a
    register stands behind each digit."""
    word = f"[{bits - 1}:0]"
    before, body = [f"wire {word} rest_0 = 0, by_0 = b, made_0 = a;"], []
    for n in range(bits):
        before.append(f"reg {word} rest_{n + 1}, by_{n + 1}, made_{n + 1};")
        before.append(f"wire [{bits}:0] next_{n} = {{rest_{n}, made_{n}[{bits - 1}]}};")
        before.append(f"wire [{bits}:0] less_{n} = next_{n} - by_{n};")
        body.append(f"rest_{n + 1} <= less_{n}[{bits}] ? next_{n} : less_{n}; by_{n + 1} <= by_{n};")
        body.append(f"made_{n + 1} <= {{made_{n}[{bits - 2}:0], ~less_{n}[{bits}]}};")
    before.append(f"assign out = made_{bits};")
    return clocked(f"input {word} a, b, output {word} out", "\n".join(body), "\n".join(before))


@dataclass(frozen=True)
class PieceKind:
    """A kind of pieces, which differ in size.

    name: of the kind, in the table. size: what a size counts, as text, such as `bits of a word`. verilog: makes a
    module `top` of one size. sizes: those that are synthesised, in rising order."""

    name: str
    size: str
    verilog: Callable[[int], str]
    sizes: Sequence[int]


WAYS = (2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 32)
WIDTHS = (16, 64, 256, 1024)
FIFO_DEPTHS = (2, 4, 16, 32)
INTEGERS = (8, 16, 32, 64)
PIECES = (
    PieceKind("multiplexer", f"ways, of {WORD} bits", multiplexer, WAYS),
    PieceKind("butterfly", f"banks, of {WORD} bits", butterfly, (2, 4, 8)),
    PieceKind("crossbar", f"banks of two slots, of {WORD} bits", crossbar, (2, 8)),
    PieceKind("patch", "bits", moved, (64, 256, 1024)),
    *(PieceKind(f"fifo of {depth}", "bits of a word", fifo(depth), WIDTHS) for depth in FIFO_DEPTHS),
    PieceKind("fifo in block RAM", "bits of a word", fifo_in_block_ram, (64, 256, 1024)),
    *(PieceKind(f"fifo of {n} in LUT RAM", "bits of a word", fifo_in_lut_ram(n), WIDTHS[:3]) for n in (32, 64)),
    PieceKind("register slice", "bits of a word", register_slice, (64, 256)),
    PieceKind("memory", f"words of {MEMORY_BITS} bits", memory, (32, 64, 128, 256, 512)),
    PieceKind("larger", "bits", larger, (32,)),
    PieceKind("mask", "bits", masked, (32,)),
    PieceKind("bound", "bits", bound, (13,)),
    PieceKind("adder", "bits", adder, (32,)),
    PieceKind("divider", "bits", divider, (32,)),
    PieceKind("square root", "bits", square_root, (32,)),
    *(
        PieceKind(name, "bits", verilog, INTEGERS)
        for name, verilog in (
            ("integer divider", integer_divider),
            ("integer dividers", integer_dividers),
        )
    ),
)


def _yosys(*arguments: str, python: str) -> str:
    """Run the Yosys that is installed and return what it prints. arguments: of its command. python: the same for the
    package, of which `ys` is the module. Raises `FileNotFoundError` if there is none, `CalledProcessError` if it
    fails."""
    if shutil.which("yosys"):
        command = ["yosys", *arguments]
    elif importlib.util.find_spec("pyosys"):
        command = [sys.executable, "-c", f"from pyosys import libyosys as ys; {python}"]
    else:
        raise FileNotFoundError("yosys: neither it nor pyosys is installed (pip install pyosys)")
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def version() -> str:
    """Return the version that the installed Yosys prints, without the compiler that built it. Raises as
    `synthesised`."""
    return _yosys("-V", python="print(ys.yosys_maybe_version())").partition("(")[0].strip()


def synthesised(verilog: Sequence[str], command: str = SYNTHESIS) -> list[tuple[int, int]]:
    """Return how many LUTs and flip-flops each of some modules `top` takes, in their order. verilog: the text of each.
    command: of Yosys, which synthesises.

    Raises `FileNotFoundError` if there is no Yosys, `CalledProcessError` if it fails, `ValueError` as `counted`."""
    with tempfile.TemporaryDirectory() as name:
        folder, script = Path(name), []
        for n, text in enumerate(verilog):
            file = folder / f"{n}.v"
            file.write_text(text, encoding="utf-8")
            netlist = file.with_suffix(".json")
            script += ["design -reset", f"read_verilog {file}", command, f"write_json {netlist}"]
        commands = folder / "all.ys"
        commands.write_text("\n".join(script), encoding="utf-8")
        _yosys("-q", "-s", str(commands), python=f"ys.run_pass('tee -q script {commands}', ys.Design())")
        made = (json.loads((folder / f"{n}.json").read_text("utf-8")) for n in range(len(verilog)))
        return [counted(design["modules"]["top"]["cells"].values()) for design in made]


def counted(cells: Collection[Mapping[str, Any]]) -> tuple[int, int]:
    """Return LUTs and flip-flops of a netlist. cells: as in the JSON that Yosys writes. Two LUTs count as one if they
    share an input and have at most five inputs together.

    Raises `ValueError` for a type of cell whose size is not known."""
    luts = flops = halves = 0
    free: list[frozenset[int]] = []  # inputs of LUTs that may be halves of one
    carried = {bit for cell in cells if cell["type"].startswith("CARRY") for bit in cell["connections"]["S"]}
    for cell in cells:
        kind, wires = cell["type"], cell["connections"]
        if kind == "INV" or kind.startswith("LUT"):
            inputs = _inputs(wires)
            if len(inputs) > PAIRED_INPUTS or carried.intersection(wires["O"]):
                luts += 1
            else:
                free.append(inputs)
        elif kind == "SRL16E":
            halves += 1
        elif kind.startswith("FD"):
            flops += 1
        elif kind in MEMORY_LUTS:
            luts += MEMORY_LUTS[kind]
        elif kind not in (*NOTHING, *BLOCKS):
            raise ValueError(f"what {kind} takes is not known")
    return luts + -(-halves // 2) + _paired(free), flops


def _inputs(wires: Mapping[str, Sequence[Any]]) -> frozenset[int]:
    """What a LUT depends on: nets have numbers, constants are texts."""
    return frozenset(bit for port, bits in wires.items() if port != "O" for bit in bits if isinstance(bit, int))


def _paired(free: Sequence[frozenset[int]]) -> int:
    """LUTs that remain when each is paired with the one that shares most inputs with it, the largest first."""
    waiting = sorted(free, key=lambda inputs: (-len(inputs), sorted(inputs)))
    remain = 0
    while waiting:
        one = waiting.pop(0)
        remain += 1
        fits = [n for n, other in enumerate(waiting) if one & other and len(one | other) <= PAIRED_INPUTS]
        if fits:
            waiting.pop(max(fits, key=lambda n: len(one & waiting[n])))
    return remain


def table(pieces: Sequence[PieceKind]) -> Iterator[str]:
    """Yield the lines of the table, as TOML: of each kind of pieces, LUTs and flip-flops by size. Raises as
    `synthesised`."""
    yield "# LUTs and flip-flops of pieces of a machine, by size. Made by: python -m rsn.hw.versal.pieces"
    yield f'tool = "{version()}"'
    yield f'command = "{SYNTHESIS}"'
    found = iter(synthesised([piece.verilog(size) for piece in pieces for size in piece.sizes]))
    for piece in pieces:
        yield ""
        yield f'["{piece.name}"]  # {piece.size}'
        for size in piece.sizes:
            luts, flops = next(found)
            yield f"{size} = [{luts}, {flops}]"


@click.command(help=__doc__)
@click.option("--only", multiple=True, help="Pieces of this name.")
def main(only: tuple[str, ...]) -> None:
    """Print the table of all kinds of pieces, or of those named by --only. Raises as `synthesised`."""
    for line in table([piece for piece in PIECES if not only or piece.name in only]):
        click.echo(line)


if __name__ == "__main__":
    main()
