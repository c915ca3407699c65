"""The logic of a process as Verilog: its states, the choices between them, and its integers, as LLVM shows them.

HLS makes a state machine of a function: a state for each block of its instructions, one more for each access to a
stream in it. A pipelined loop is one state, in which branches become choices, with registers between its steps. This
writes such a machine, for a tool that synthesises it. Products and quotients are left out: they are DSPs, or counted by
themselves. So are memories and streams: what is read is an input, and what is written is an output.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import gcd, prod

from ...isa.overlays.xnn8.resources import DSP_BITS
from .hlscheck.design import HlsDesign
from .hlscheck.ir import Instruction, LlvmFunction
from .hlscheck.memory import Address, Offset, Types
from .widths import (
    DIVISIONS,
    SHIFTS,
    constant_of,
    is_of_luts,
    operand_bits,
    operand_sizes,
    power_of,
    size_of,
    type_bits,
    widths,
)

BLOCKING = frozenset(("rsn_hls_get", "rsn_hls_put", "rsn_hls_request", "rsn_hls_response"))
OPERATORS = {"add": "+", "sub": "-", "and": "&", "or": "|", "xor": "^"}
COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
FEW_ELEMENTS = 4
"""An array of fewer elements is registers (UG1399: complete_threshold)."""
MOST_COPIED = 512
"""Bytes of what is set to zero in a cycle; more is a memory that is cleared."""
MOST_REGISTERS = 64
"""Bytes of a struct up to which it is registers; a larger one is memories."""


def verilog(design: HlsDesign, function: LlvmFunction) -> str:
    """Return the Verilog of a module `top` with the logic of a function: its states, the choices between them, and its
    integers. design: the sources with the function. function: one that the design has not inlined."""
    return _VerilogWriter(design, function).module()


@dataclass
class _VerilogOutput:
    """What is written somewhere: values, each with when it is."""

    bits: int
    values: list[tuple[str, str]] = field(default_factory=list)


class _VerilogWriter:
    def __init__(self, design: HlsDesign, function: LlvmFunction) -> None:
        self._function = function
        self._width = widths(function)
        self._headers = {loop.header for loop in function.loops}
        self._pipelined = dict[str, str]()  # its loop's header, by block
        for place in design.pipelines:
            if place.function is function:
                header = place.loop.header if place.loop else next(iter(function.blocks))
                self._pipelined |= dict.fromkeys(place.blocks, header)
        self._names = dict[str, str]()
        self._inputs, self._outputs, self._body = dict[str, str](), dict[object, _VerilogOutput](), list[str]()
        self._memory, self._types = design.memories[function.name], Types(design.module)
        self._partitions = dict[str, set[str]]()  # dimensions of an array of which registers are made
        for mark, marked in design.marks(function, "variable"):
            pragma = marked.pragma
            if pragma.name == "array_partition" and ("complete", None) in pragma.arguments:
                self._partitions.setdefault(mark.arguments[1], set()).add(pragma.option("dim") or "")
        self._active, self._moves = dict[str, str](), dict[str, str]()  # by block, by state: when it is left
        self._taken = dict[tuple[str, str], str]()  # when a way is taken to another state, or to the next iteration
        self._stores = dict[str, list[tuple[str, str, str]]]()
        self._ports = dict[tuple[str, str, str], list[object]]()
        self._enables = dict[tuple[str, str], list[str]]()
        self._users = dict[str, list[Instruction]]()
        for i in function.instructions():
            for value in set(i.operands):
                self._users.setdefault(value, []).append(i)

    # -- states

    @cached_property
    def _order(self) -> list[str]:
        """Blocks that are reached, each behind those that lead to it, unless a loop closes there."""
        entry = next(iter(self._function.blocks))
        done, order = {entry}, list[str]()
        stack = [(entry, iter(self._function.blocks[entry].successors))]
        while stack:
            label, ahead = stack[-1]
            following = next((b for b in ahead if b not in done), None)
            if following is None:
                order.append(label)
                stack.pop()
            else:
                done.add(following)
                stack.append((following, iter(self._function.blocks[following].successors)))
        return order[::-1]

    @cached_property
    def _edges(self) -> Mapping[tuple[str, str], str]:
        """The condition of each way from a block to another one."""
        edges = dict[tuple[str, str], str]()
        for label in self._order:
            last = self._function.blocks[label].instructions[-1]
            targets = re.findall(r"label (%(?:\"[^\"]*\"|[-\w.$]+))", last.rest)
            if last.opcode == "switch":
                bits = _first_bits(last.rest)
                value = self._read(last.parts[0].split()[1], bits, label)
                cases = re.findall(r"i\d+ (-?\d+|true|false), label", last.rest)
                tests = [f"({value} == {self._read(case, bits, label)})" for case in cases]
                others = f"~({' | '.join(tests)})"
                ways = [*zip(targets, [others, *tests], strict=True)]
            elif len(targets) == 2:
                value = self._read(last.parts[0].split()[1], 1, label)
                ways = [(targets[0], value), (targets[1], f"~{value}")]
            else:
                ways = [(target, "1'b1") for target in targets]
            for target, test in ways:
                edges[label, target] = f"{edges[label, target]} | {test}" if (label, target) in edges else test
        return edges

    @cached_property
    def _state(self) -> Mapping[str, str]:
        """The state of each block, by that state's first one. Outside of pipelines, blocks in a row are one state."""
        before: dict[str, list[str]] = {}
        for lead in self._order:
            for label in self._function.blocks[lead].successors:
                before.setdefault(label, []).append(lead)
        state = dict[str, str]()
        for label in self._order:
            leads = before.get(label, [])
            lead = leads[0] if len(leads) == 1 else ""
            joined = lead in state and lead not in self._pipelined and len(self._function.blocks[lead].successors) == 1
            state[label] = self._pipelined.get(label) or (state[lead] if joined else label)
        return state

    def _way(self, lead: str, label: str) -> str:
        """When a block of a state is behind another one in it."""
        return f"({self._active[lead]} & ({self._edges[lead, label]}))"

    def _is_register(self, i: Instruction) -> bool:
        return i.opcode == "phi" and (i.block in self._headers or i.block not in self._pipelined)

    def _leaves_state(self, i: Instruction) -> bool:
        """Whether a value is read in another state."""
        state = self._state[i.block]
        for user in self._users.get(i.result, []):
            blocks = [b for v, b in user.incoming if v == i.result] if user.opcode == "phi" else [user.block]
            if any(self._state.get(b, state) != state for b in blocks):
                return True
        return False

    # -- values

    def _name(self, key: str) -> str:
        return self._names.setdefault(key, f"n{len(self._names)}")

    def _read(self, value: str, bits: int, block: str) -> str:
        """An operand where a block needs it. bits: of its type."""
        if not value.startswith("%"):
            known = {"true": 1, "undef": 0, "poison": 0, "false": 0}
            return _constant(known[value] if value in known else int(value), bits)
        made, name = self._function.defined.get(value), self._name(value)
        if made is None:
            self._inputs[name] = _range(size_of(value, bits, self._width), bits)
        elif not self._is_register(made) and self._state[made.block] != self._state[block]:
            return f"{name}_kept"
        return name

    def _operands(self, i: Instruction, bits: int) -> Iterator[str]:
        for part in i.parts:
            yield self._read(part.split()[-1], bits, i.block)

    def _expression(self, i: Instruction) -> str | None:
        """The value of an instruction from its operands; None if it is an input."""
        bits, constant = operand_bits(i), constant_of(i)
        if self._is_cut(i):
            return None
        if i.opcode in OPERATORS:
            one, other = self._operands(i, bits)
            return f"{one} {OPERATORS[i.opcode]} {other}"
        if i.opcode == "mul" and (power := power_of(abs(constant or 0))) is not None:
            one, _ = self._operands(i, bits)
            return f"{'-' if (constant or 0) < 0 else ''}({one} <<< {power})"
        if i.opcode == "mul":
            one, other = self._operands(i, bits)
            return f"{one} * {other}"
        if i.opcode == "load":
            return self._loaded(i.parts[1].split()[-1], self._types.size(f"i{bits}"), i)
        if i.opcode in SHIFTS:
            one, by = self._operands(i, bits)
            if i.opcode == "lshr" and size_of(i.parts[0].split()[-1], bits, self._width) == bits:
                one = f"$signed({{1'b0, {one}}})"
            places = str(constant)
            if constant is None:
                size = size_of(i.parts[1].split()[-1], bits, self._width)
                places = f"{by}[{size - 2}:0]" if 2 < size < bits else f"$unsigned({by})"
            return f"{one} {'<<<' if i.opcode == 'shl' else '>>>'} {places}"
        if i.opcode in ("zext", "sext", "trunc"):
            source = i.rest.split(" to ")[0].split()[-1]
            one = self._read(source, bits, i.block)
            unsigned = i.opcode == "zext" and size_of(source, bits, self._width) == bits
            return f"$signed({{1'b0, {one}}})" if unsigned else f"$signed({one})" if i.opcode == "sext" else one
        if i.opcode == "select" and (of := re.match(r"i(\d+)\b", i.parts[1])):
            which = self._read(i.parts[0].split()[-1], 1, i.block)
            one, other = (self._read(part.split()[-1], int(of[1]), i.block) for part in i.parts[1:])
            return f"{which} ? {one} : {other}"
        if i.opcode == "icmp" and bits:
            kind = i.parts[0].split()[-3]
            one, other = self._operands(i, bits)
            if kind[0] == "u":  # the order of numbers without a sign is the same at any width that both have
                wide = max(size_of(part.split()[-1], bits, self._width) for part in i.parts)
                one, other = (f"$unsigned({self._wire(wide, x)})" for x in (one, other))
            return f"{one} {COMPARISONS[kind if kind in COMPARISONS else kind[1:]]} {other}"
        return None

    # -- memories, registers and streams

    def _kind(self, root: str) -> str:
        """What an address leads to: a stream; registers; a memory; or wires, of what is only copied."""
        made = self._function.defined.get(root)
        if made is None or made.opcode != "alloca":
            return "stream" if root in self._function.parameters else "memory"
        users = self._users.get(root, [])
        if all(i.opcode == "call" for i in users) and not any(i.callee == "rsn_hls_variable" for i in users):
            return "wire"
        kind = made.parts[0]
        dims = [int(n) for n in re.findall(r"\[(\d+) x", kind)]
        if not dims or root.startswith("%.sroa"):
            return "register" if self._types.size(kind) <= MOST_REGISTERS else "memory"
        parted = self._partitions.get(root, set())
        whole = "0" in parted or (len(dims) == 1 and parted) or {str(n + 1) for n in range(len(dims))} <= parted
        return "register" if whole or prod(dims) < FEW_ELEMENTS else "memory"

    def _places(self, pointer: str) -> list[tuple[str, Address]]:
        """Where a pointer leads, and, of several places, when."""
        found = self._memory.addresses(pointer)
        if len(found) == 1:
            return [("", found[0])]
        at = self._function.defined.get(pointer)
        while at is not None and at.opcode == "getelementptr":
            at = self._function.defined.get(at.parts[1].split()[-1])
        ways = [self._way(b, at.block) for _, b in at.incoming] if at is not None and at.opcode == "phi" else []
        if at is not None and at.opcode == "select":
            which = self._read(at.parts[0].split()[-1], 1, at.block)
            ways = [which, f"~{which}"]
        return [*zip(ways, found, strict=True)] if len(ways) == len(found) else [("", found[0])]

    def _index(self, offset: Offset, block: str) -> tuple[str, int]:
        """An offset without its constant, as the number of an element, and the bytes of that."""
        unit = gcd(*(abs(scale) for _, scale in offset.terms))
        text, before = "", 0
        for value, scale in sorted(offset.terms, key=lambda term: term[1]):
            made = self._function.defined.get(value)
            bits = type_bits(made) if made is not None else 64
            shifted = f"({self._read(value, bits, block)} * {_constant(scale // unit, 64)})"
            apart = text and scale // unit >= 1 << before
            text = f"{text} {'|' if apart else '+'} {shifted}" if text else shifted
            before = size_of(value, bits, self._width) + (scale // unit).bit_length() - 1
        return text, unit

    def _words(self, address: Address, size: int, block: str) -> tuple[str, list[str]]:
        """The parts of a variable that an address may mean, and which of them it is."""
        root, offset = address.root, address.offset
        made = self._function.defined[root]
        total, name = self._types.size(made.parts[0]), self._name(root)
        if not offset.terms:
            return "", [f"{name}[{8 * offset.constant} +: {8 * size}]"]
        index, unit = self._index(offset, block)
        first = offset.constant % unit if offset.constant < 0 else offset.constant
        places = range(first, total - size + 1, unit)
        bits = max(1, (len(places) - 1).bit_length())
        return self._wire(bits, index, signed=False), [f"{name}[{8 * at} +: {8 * size}]" for at in places]

    def _loaded(self, pointer: str, size: int, i: Instruction) -> str:
        """So many bytes that an instruction reads at an address."""
        made = ""
        for when, address in reversed(self._places(pointer)):
            one = self._loaded_at(address, size, i)
            made = f"{when} ? {one} : {made}" if made and when else one
        return made

    def _loaded_at(self, address: Address, size: int, i: Instruction) -> str:
        kind = self._kind(address.root)
        if kind in ("register", "wire"):
            index, words = self._words(address, size, i.block)
            if len(words) == 1:
                return words[0]
            all_words = self._wire(8 * size * len(words), f"{{{', '.join(reversed(words))}}}", signed=False)
            return f"{all_words}[{index} * {8 * size} +: {8 * size}]"
        if kind == "stream":
            name = self._name(f"{address.root} {address.offset} {size}")
        else:
            name = self._name(f"{address} {i.line}")
            self._port(address, "reads", i)
        self._inputs[name] = _range(8 * size, 1)
        return name

    def _port(self, address: Address, way: str, i: Instruction) -> None:
        """The address of an access to a memory. Accesses of one block with different addresses have different ports."""
        if address.offset.terms:
            block = self._ports.setdefault((address.root, way, i.block), [])
            if address.offset.terms not in block:
                block.append(address.offset.terms)
            index, _ = self._index(address.offset, i.block)
            bits = max(1, (self._depth(address) - 1).bit_length())
            port = (address.root, way, block.index(address.offset.terms))
            self._write(port, bits, index, self._active[i.block])

    def _depth(self, address: Address) -> int:
        made = self._function.defined.get(address.root)
        unit = gcd(*(abs(scale) for _, scale in address.offset.terms))
        return self._types.size(made.parts[0]) // unit if made is not None and made.opcode == "alloca" else 1 << 16

    def _store(self, pointer: str, size: int, value: str, i: Instruction) -> None:
        """What an instruction writes: so many bytes at an address."""
        active = f"{self._active[i.block]} & {self._moves[self._state[i.block]]}"
        for when, address in self._places(pointer):
            kind, now = self._kind(address.root), f"({active} & {when})" if when else active
            if kind in ("register", "wire"):
                index, words = self._words(address, size, i.block)
                for n, word in enumerate(words):
                    test = f"{now} & {index} == {n}" if index else now
                    self._stores.setdefault(address.root, []).append((test, word, value))
                continue
            if kind == "memory":
                self._port(address, "writes", i)
                self._enables.setdefault((address.root, "writes"), []).append(now)
            place = (address.root, address.offset, kind if kind == "stream" else address.offset.terms, "data")
            self._write(place, 8 * size, value, now)

    def _write(self, key: object, bits: int, value: str, when: str) -> None:
        made = self._outputs.setdefault(key, _VerilogOutput(bits))
        made.bits = max(made.bits, bits)
        if (when, value) not in made.values:
            made.values.append((when, value))

    def _variables(self) -> None:
        """Registers and wires of variables, as all instructions write them."""
        for made in self._function.instructions():
            kind = self._kind(made.result) if made.opcode == "alloca" else ""
            if kind not in ("register", "wire"):
                continue
            bits, name = 8 * self._types.size(made.parts[0]), self._name(made.result)
            stores = self._stores.get(made.result, [])
            if kind == "register":
                moved = " ".join(f"if ({when}) {word} <= {value};" for when, word, value in stores)
                self._body.append(f"reg [{bits - 1}:0] {name}; always @(posedge clk) begin {moved} end")
                continue
            ways = {(when, word): value for when, word, value in stores}  # the last one of a block counts
            moved = " ".join(
                f"{f'if ({when}) ' if n else ''}{word} = {value};"
                for n, ((when, word), value) in enumerate(ways.items())
            )
            self._body.append(f"reg [{bits - 1}:0] {name}; always @* begin {moved} end")

    # -- text

    def _wire(self, bits: int, expression: str, *, signed: bool = True) -> str:
        name = self._name(f"wire {len(self._names)}")
        self._body.append(f"wire {_range(bits, bits if signed else 1)}{name} = {expression};")
        return name

    def _register(self, name: str, kind: str, ways: Sequence[tuple[str, str]]) -> None:
        """A register that takes a value where a condition holds, the first one of some."""
        taken = " else ".join(f"if ({when}) {name} <= {value};" for when, value in ways)
        self._body.append(f"reg {kind}{name};" + (f" always @(posedge clk) {taken}" if ways else ""))

    def module(self) -> str:
        """All of the module."""
        waits = self._activity()
        self._transitions(waits)
        for label in self._order:
            for i in self._function.blocks[label].instructions:
                self._instruction(i)
        self._variables()
        for key, ways in self._enables.items():
            self._write(("enable", *key), 1, " | ".join(ways), "")
        inputs = ["input clk, reset, start", *(f"input {kind}{name}" for name, kind in self._inputs.items())]
        outputs = []
        for n, made in enumerate(self._outputs.values()):
            outputs.append(f"output {_range(made.bits, 1)}o{n}")
            *others, (_, last) = made.values
            self._body.append(f"assign o{n} = {''.join(f'{when} ? {value} : ' for when, value in others)}{last};")
        return f"module top({', '.join(inputs + outputs)});\n" + "\n".join(self._body) + "\nendmodule\n"

    def _activity(self) -> Mapping[str, Sequence[str]]:
        """When a block is computed, and when a state is left; returns what each state waits for, in order."""
        stalls, waits = dict[str, list[str]](), dict[str, list[str]]()
        for label in self._order:
            header, state = self._pipelined.get(label), self._state[label]
            if label in (header, state):
                self._active[label] = self._name(f"in {state}")
            elif header is None:
                self._active[label] = self._active[state]
            else:
                ways = [self._way(p, b) for p, b in self._edges if b == label and p in self._active]
                self._active[label] = self._wire(1, " | ".join(ways), signed=False)
            for access in self._function.blocks[label].instructions:
                if access.callee in BLOCKING:
                    ready = self._name(f"ready {access.arguments[0]} {access.callee}")
                    self._inputs[ready] = ""
                    waits.setdefault(state, []).append(ready)
                    stalls.setdefault(state, []).append(f"({self._active[label]} & ~{ready})")
        for state in dict.fromkeys(self._state.values()):
            if state in self._pipelined:
                self._moves[state] = self._wire(1, f"~({' | '.join(stalls.get(state, [_NO]))})", signed=False)
            else:
                self._moves[state] = waits[state][-1] if state in waits else _YES
        return waits

    def _transitions(self, waits: Mapping[str, Sequence[str]]) -> None:
        """A bit for each state; outside of pipelines one for each access that a state waits for."""
        came, left = dict[str, list[str]](), dict[str, list[str]]()
        for (lead, label), test in self._edges.items():
            source, target = self._state[lead], self._state[label]
            way = self._taken[lead, label] = f"({self._active[lead]} & {self._moves[source]} & ({test}))"
            if source != target or (label == target and source not in self._pipelined):
                came.setdefault(target, []).append(way)
                left.setdefault(source, []).append(way)
        for n, state in enumerate(dict.fromkeys(self._state.values())):
            entered = " | ".join(came.get(state, [] if n else ["start"]))
            own = self._name(f"in {state}")
            if state in self._pipelined:
                self._flag(own, f"{entered} | ({own} & ~({' | '.join(left.get(state, [_NO]))}))")
                continue
            *others, last = waits.get(state, [_YES])
            for k, ready in enumerate(others):
                before = self._name(f"in {state} {k}")
                self._flag(before, f"{entered} | ({before} & ~{ready})")
                entered = f"({before} & {ready})"
            self._flag(own, f"{entered} | ({own} & ~{last})")

    def _flag(self, name: str, following: str) -> None:
        self._body.append(f"reg {name}; always @(posedge clk) if (reset) {name} <= 0; else {name} <= {following};")

    def _instruction(self, i: Instruction) -> None:
        label, state = i.block, self._state[i.block]
        bits, moves = type_bits(i), self._moves[state]
        self._sinks(i, self._active[label])
        if not i.result or not (size := self._width.get(i.result, 0)) or not _is_integer(i):
            return
        name, kind = self._name(i.result), _range(size, bits)
        incoming = [(v, b) for v, b in i.incoming if (b, label) in self._edges] if i.opcode == "phi" else []
        if self._is_register(i):
            ways = [(self._taken[b, label], self._read(v, bits, b)) for v, b in incoming]
            self._register(name, kind, [way for way in ways if way[1] != name])
            return
        expression = self._expression(i)
        if i.opcode == "phi":
            choices = dict[str, list[str]]()
            for v, b in incoming:
                choices.setdefault(self._read(v, bits, label), []).append(self._way(b, label))
            *others, default = choices
            expression = "".join(f"({' | '.join(choices[v])}) ? {v} : " for v in others) + default
        if expression is None:
            self._inputs[name] = kind
        elif self._is_sum(i) and not (self._is_chained(i) and not any(map(self._is_chained, self._leads(i)))):
            self._register(name, kind, [(moves, expression)])
        else:
            self._body.append(f"wire {kind}{name} = {expression};")
        if self._leaves_state(i):
            self._register(f"{name}_kept", kind, [(f"{self._active[label]} & {moves}", name)])

    def _leads(self, i: Instruction) -> list[Instruction]:
        return [self._function.defined[v] for v in i.operands if v in self._function.defined]

    def _is_sum(self, i: Instruction) -> bool:
        return i.opcode in ("add", "sub") and i.block in self._pipelined

    def _is_chained(self, i: Instruction) -> bool:
        """Whether a sum is an operand of one other sum, and of nothing else: HLS makes one adder of the two."""
        users = self._users.get(i.result, [])
        return self._is_sum(i) and len(users) == 1 and self._is_sum(users[0])

    def _sinks(self, i: Instruction, when: str) -> None:
        """What an instruction writes, or asks for; operands of products and quotients that are cut out."""
        if i.opcode == "store":
            bits = _first_bits(i.parts[0])
            value, where = i.parts[0].split()[-1], i.parts[1].split()[-1]
            if bits:
                size = self._types.size(f"i{bits}")
                self._store(where, size, self._wire(8 * size, self._read(value, bits, i.block)), i)
        elif i.callee.startswith("llvm.memcpy"):
            to, source, count = i.arguments[:3]
            size = int(count)
            self._store(to, size, self._wire(8 * size, self._loaded(source, size, i), signed=False), i)
        elif i.callee.startswith("llvm.memset"):
            bits = 8 * int(i.arguments[2])
            if bits <= 8 * MOST_COPIED:
                self._store(i.arguments[0], bits // 8, f"{{{bits // 8}{{8'd{int(i.arguments[1]) & 255}}}}}", i)
        elif i.callee in BLOCKING:
            self._enables.setdefault((i.arguments[0], i.callee), []).append(
                f"({when} & {self._moves[self._state[i.block]]})"
            )
            for n, value in enumerate(i.arguments[1:]):
                if value.startswith("%"):
                    self._output((i.arguments[0], i.callee, n), 64, value, i.block, when)
        elif self._is_cut(i):
            for n, part in enumerate(i.parts):
                if part.split()[-1].startswith("%"):
                    self._output((i, n), operand_bits(i), part.split()[-1], i.block, when)

    def _is_cut(self, i: Instruction) -> bool:
        return i.opcode in DIVISIONS or self._is_product(i) or (i.opcode in ("add", "sub") and self._is_in_dsp(i))

    def _is_product(self, i: Instruction) -> bool:
        return i.opcode == "mul" and not is_of_luts(i, self._width)

    def _is_in_dsp(self, i: Instruction) -> bool:
        """Whether a sum is made by the DSP of a product: behind it, of a product that nothing else reads; or in front
        of it, if nothing else reads the sum."""
        if any(self._has_one_dsp(self._behind(lead)) for lead in self._leads(i)):
            return True
        users = self._users.get(i.result, [])
        while len(users) == 1 and self._is_narrowing(users[0]):
            users = self._users.get(users[0].result, [])
        if len(users) != 1 or not self._has_one_dsp(users[0]) or max(operand_sizes(i, self._width)) > DSP_BITS[0] + 1:
            return False
        sums = [lead for lead in map(self._behind, self._leads(users[0])) if lead and lead.opcode in ("add", "sub")]
        return sums[0] is i and min(operand_sizes(users[0], self._width)) <= DSP_BITS[1] + 1

    def _is_narrowing(self, i: Instruction) -> bool:
        return i.opcode in ("trunc", "sext") or (i.opcode in ("shl", "ashr") and constant_of(i) is not None)

    def _behind(self, i: Instruction) -> Instruction | None:
        """What a value was before it was said how many bits it has; None if something else reads it, too."""
        while self._is_narrowing(i) and len(self._users.get(i.result, [])) == 1 and self._leads(i):
            i = self._leads(i)[0]
        return i if len(self._users.get(i.result, [])) == 1 else None

    def _has_one_dsp(self, i: Instruction | None) -> bool:
        if i is None or not self._is_product(i):
            return False
        smaller, larger = sorted(operand_sizes(i, self._width))
        return smaller <= DSP_BITS[1] + 1 and larger <= DSP_BITS[0] + 1

    def _output(self, key: object, bits: int, value: str, block: str, when: str) -> None:
        self._write(key, size_of(value, bits, self._width), self._read(value, bits, block), when)


_NO, _YES = "1'b0", "1'b1"


def _constant(number: int, bits: int) -> str:
    if bits == 1:
        return f"1'b{number & 1}"
    size = number.bit_length() + 1
    return f"-{size}'sd{-number}" if number < 0 else f"{size}'sd{number}"


def _range(size: int, bits: int) -> str:
    """The declaration of a value of some bits. bits: of its type; one has no sign."""
    return f"{'signed ' if bits > 1 else ''}{f'[{size - 1}:0] ' if size > 1 else ''}"


def _first_bits(part: str) -> int:
    found = re.match(r"(?:\S+ )*?i(\d+) ", part)
    return int(found[1]) if found else 0


def _is_integer(i: Instruction) -> bool:
    """Whether a result is an integer, not an address or more than one value."""
    if i.opcode in ("getelementptr", "alloca", "inttoptr", "call"):
        return False
    if i.opcode in ("load", "phi"):
        return re.match(r"\s*(?:volatile )?i\d+\b", i.rest) is not None
    if i.opcode == "select":
        return re.match(r"i\d+\b", i.parts[1]) is not None
    return True
