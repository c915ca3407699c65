"""The files of a decoder on generated machines, for a board: C++ of the machines, the model, and a host program."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np

from ...base.deferred import deferred
from ...base.element_types import whole_bytes
from ...isa.layout import Array
from ...isa.overlays.tasks.overlay import program_of
from ...isa.overlays.tasks.program import OffChipTensor
from ...streams.hls.emit import HlsProgram, cpp_program
from ...streams.hls.native import HEADERS
from ...streams.hls.project import project
from ..native_tasks import to_memory

if TYPE_CHECKING:
    from ...rsnlib.streamed import decoding, host_tables
else:
    host_tables = deferred("rsn.rsnlib.streamed.host_tables")

LINE = 64
"""Each part of the file of the model begins at a multiple of this, in bytes."""

MODEL = "model.bin"
"""The name of the file of the model: weights as they lie in memories, and the host's tables."""


README = """# A decoder on generated machines

{machines} Each folder becomes a kernel by its hls.tcl and `v++ --link --config connectivity.cfg`; its README says more.
The program for the host:

    g++ -std=c++17 host.cpp -o host -I$XILINX_XRT/include -L$XILINX_XRT/lib -lxrt_coreutil -pthread
    ./host {files} model.bin COUNT TOKEN...

**No HLS tool and no board has been tried.** host.cpp compiles against XRT 2.13.
"""
ONE = "`decoder/` is the machine of prompts, {rows} tokens in a run at most, and of the other tokens."
TWO = "`prompt/` is the machine of prompts of {rows} tokens, `step/` that of the other tokens."


class _ModelFile:
    """The bytes of the file of the model."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self.size = 0

    def add(self, data: bytes) -> int:
        """Append bytes; returns where they begin."""
        at = self.size
        self._parts += [data, bytes(-len(data) % LINE)]
        self.size += len(data) + -len(data) % LINE
        return at

    def optional(self, data: Array | None) -> str:
        """As `add`, for what may be missing, as C++."""
        return "NONE" if data is None else str(self.add(data.tobytes()))

    @property
    def content(self) -> bytes:
        return b"".join(self._parts)


def machine_files(decoder: decoding.MachineDecoder, prompt: int) -> dict[str, str | bytes]:
    """Return the files of a folder for a board, by their paths in it: `decoder/`, or `prompt/` and `step/`, each a
    folder for an HLS tool (`streams.hls.project`), host.cpp with its headers, and the model.

    decoder: on machines of a device. prompt: tokens of a prompt. Raises `UnsupportedError` for a model of which the
    host's part is more than tables.
    """
    made = programs_of(decoder, prompt)
    file, files, rows = _ModelFile(), dict[str, str | bytes](), list[str]()
    *_, last = made.values()
    tables = host_tables.host_tables(last, decoder.capacity, decoder.vocabulary)
    at = [
        str(file.add(tables.embedding.tobytes())),
        *map(file.optional, (tables.places, tables.gamma, tables.beta, tables.head, tables.bias)),
    ]
    for name, of in made.items():
        hls = native_program(of)
        files |= {f"{name}/{path}": text for path, text in project(hls, of.made.device).items()}
        rows.append(_program(of, hls, file, 1 if name == "prompt" else decoder.capacity))
    sizes = f"{tables.embedding.shape[1]}, {decoder.vocabulary}, {decoder.capacity}, {file.size}"
    centred = str(tables.centred).lower()
    model = ["// The model that model.bin holds (decoder.h).", '#include "decoder.h"', "", "namespace rsn::decoder {"]
    model += [f"static const Model model{{{sizes}, {', '.join(at)}, {centred}, {tables.eps!r},"]
    model += ["    {", ",\n".join(rows), "    }};", "}  // namespace rsn::decoder", ""]
    headers = ("decoder.h", "channels.h", "host.cpp")
    files |= {name: (HEADERS / name).read_text(encoding="utf-8") for name in headers}
    machines = (ONE if decoder.rows is not None else TWO).format(rows=made[next(iter(made))].rows)
    readme = README.format(machines=machines, files=" ".join(f"{name}.xclbin" for name in made))
    return files | {"README.md": readme, "model.h": "\n".join(model), MODEL: file.content}


def programs_of(decoder: decoding.MachineDecoder, prompt: int) -> dict[str, decoding.DecoderProgram]:
    """Return the programs of the machines, by the names of their folders. prompt: tokens of a prompt. Raises as
    `MachineDecoder.program`."""
    step = decoder.program(1)
    return {"decoder": step} if decoder.rows is not None else {"prompt": decoder.program(prompt), "step": step}


def native_program(of: decoding.DecoderProgram) -> HlsProgram:
    """Return the C++ of a machine."""
    return cpp_program(program_of(of.made.machine.overlay), float_add=of.made.device.float_add)


def _program(of: decoding.DecoderProgram, hls: HlsProgram, file: _ModelFile, positions: int) -> str:
    """A machine's program as C++ (`Program` of decoder.h), whose contents go into the file. positions: from 0 on, at
    which rows of its runs may be, or of a program of one length those at which runs begin."""
    tensors = hls.program.tensors
    number = {t.name: k for k, t in enumerate(tensors)}
    changing = {*of.given, *of.caches.values(), of.result}
    lines = []
    for t in tensors:
        at = "NONE"
        if t.name not in changing and of.written.inputs.get(t.name) is not None:
            at = str(file.add(to_memory(of.read(t.name), t)))
        lines.append(f'        {{"{t.name}", {_bytes(t)}, {max(1, len(t.channels))}, {at}}},')
    tables = []
    for name, found in host_tables.positional_tensors(of, positions).items():
        lying = _lying(number[name], found.lying, found.rows.shape[1], file)
        tables.append(f"{{{lying}, {file.add(found.rows.tobytes())}}}")
    arguments = ", ".join(f"{{{number[a.tensor]}, {a.channel or 0}}}" for a in hls.arguments)
    caches = ", ".join(f"{{{number[x]}, {_bytes(tensors[number[x]], -2)}}}" for x in of.caches.values())
    ends = ", ".join(_rows(of, name, number[name], file) for name in (of.carried, of.result))
    return (
        f'    {{"{hls.name}_top", {of.rows}, {str(of.is_sized).lower()},\n     {{\n' + "\n".join(lines) + "\n     },\n"
        f"     {{{arguments}}},\n     {{{', '.join(tables)}}}, {ends}, {number.get(of.chosen, 'NONE')}, {{{caches}}}}}"
    )


def _rows(of: decoding.DecoderProgram, name: str, number: int, file: _ModelFile) -> str:
    """Where the rows of all layers' input or result lie in a tensor, as C++ (`Rows` of decoder.h)."""
    shape = of.written.shapes[name]
    existing = of.written.existing.get(name)
    count = prod(existing[0] if existing else shape)
    # Logits are of one row.
    width = count if of.chosen and name == of.result else count // of.rows
    return _lying(number, of.written.laid_out(name, np.arange(count, dtype=np.int32)), width, file)


def _lying(number: int, lying: Array, width: int, file: _ModelFile) -> str:
    """How rows lie in a tensor, as C++ (`Rows` of decoder.h). lying: the number of each of its elements in the rows."""
    return f"{{{number}, {file.add(lying.astype(np.int32).tobytes())}, {lying.size}, {width}}}"


def _bytes(tensor: OffChipTensor, axis: int = 0) -> int:
    """The bytes of a tensor, or of a part of it: the axes from `axis` on."""
    return whole_bytes(prod(tensor.type.shape[axis:]), tensor.type.dtype)
