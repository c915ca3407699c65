"""Programs of dynamic streams on the command line: FILE.py:NAME, machines of operators in files, streams as files."""

from __future__ import annotations

import inspect
import runpy
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..base.deferred import deferred
from ..base.errors import ProgramError, RsnError, TensorError
from ..base.files import check_target, write_text
from ..host.tensors import check_tensor_file, load_tensors, save_tensors
from ..hw.sim.machine import Run, summary
from ..isa.program import Program
from .stream_programs import Named, uses_dynamic_streams

if TYPE_CHECKING:
    from ..streams.dynamic import graph
    from ..streams.dynamic import machine as machines
    from ..streams.dynamic.machine import overlay as overlays
    from ..streams.dynamic.machine import token_files
    from ..streams.dynamic.tokens import Token
else:
    graph = deferred("rsn.streams.dynamic.graph")
    machines = deferred("rsn.streams.dynamic.machine")
    overlays = deferred("rsn.streams.dynamic.machine.overlay")
    token_files = deferred("rsn.streams.dynamic.machine.token_files")

Array = npt.NDArray[Any]
TEXT = ".txt"
"""Of the name of a file with streams as texts."""


def dynamic_machine(named: Named) -> machines.OperatorMachine | None:
    """Return the machine that NAME in FILE.py describes; None if NAME is no program of dynamic streams. The file is
    executed.

    NAME is a program, an `OperatorMachine`, an object with the attributes `program` and `depths`, or a function without
    arguments that returns one of these. Raises `ProgramError` for errors of the file and for a NAME that it does not
    have, and `RsnError`s that the file raises.
    """
    if named.region is None or not uses_dynamic_streams(named.file):
        return None
    sys.path.insert(0, str(named.file.resolve().parent))
    try:
        names = runpy.run_path(str(named.file), run_name=named.file.stem)
        found: Any = names.get(named.region)
        if inspect.isfunction(found) and all(_is_optional(one) for one in inspect.signature(found).parameters.values()):
            found = found()
    except RsnError:
        raise
    except Exception as error:
        raise ProgramError(f"{named.file}: {type(error).__name__}: {error}") from error
    finally:
        sys.path.pop(0)
    if named.region not in names:
        known = [name for name, one in names.items() if isinstance(one, graph.Program | machines.OperatorMachine)]
        raise ProgramError(f"{named.file}: there is no {named.region}; its programs: {', '.join(known) or 'none'}")
    name = f"{named.file.stem}_{named.region}"
    if isinstance(found, machines.OperatorMachine):
        return replace(found, name=name)
    if isinstance(found, graph.Program):
        return machines.OperatorMachine(found, name=name)
    program = getattr(found, "program", None)
    if isinstance(program, graph.Program) and hasattr(found, "depths"):
        return machines.OperatorMachine(program, found.depths, name=name)
    return None


def _is_optional(parameter: inspect.Parameter) -> bool:
    variadic = parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return variadic or parameter.default is not inspect.Parameter.empty


def machine_of_operators(machine: machines.OperatorMachine, in_files: bool) -> Program:
    """Return the program of a machine, to print it or to run it. in_files: true for one that can be written to files;
    false for one that runs in this process, whose operators may apply functions of Python. Raises `StepError` for an
    operator that no file holds."""
    return machines.lowered(machine, in_files)


def run_dynamic(
    program: Program, inputs: str | None, weights: str | None, outputs: str | None, with_data: bool
) -> tuple[Program, Run]:
    """Run a machine of operators. inputs: path of a file with streams and tensors. weights: path of a file with
    tensors. outputs: path of a file to write results to. None for none. with_data: whether tensors have values. Returns
    the program with its tokens, and the run.

    Raises `TensorError` for a file of tensors or streams that cannot be read or written, and what `run_machine` raises.
    """
    if outputs is not None:
        (check_target if outputs.endswith(TEXT) else check_tensor_file)(outputs)
    streams, tensors = read_values(overlays.bound_in(program.overlay).machine, inputs, weights)
    done = machines.run_machine(program, streams, tensors, with_data, record=True)
    if outputs is not None:
        write_results(outputs, done.machine, done.tokens, done.times, done.tensors())
    overlay = program.overlay
    run = summary(done.run.engine.timing, overlay, 4 * len(program.image))
    chosen = {name: times for name, times in run.chosen.items() if name not in done.run.requests}
    return done.program, replace(run, chosen=chosen)


def read_values(
    machine: machines.OperatorMachine, inputs: str | None, weights: str | None = None
) -> tuple[dict[str, Any], dict[str, Array]]:
    """Read the streams and the tensors of a run, each by name. inputs: path of a file of streams as texts (`.txt`), or
    of streams and tensors as arrays. weights: path of a file of tensors. None for no file. Raises `TensorError` for a
    file that cannot be read or does not fit, for inputs of the program without tokens, and for streams of no input."""
    streams: dict[str, Any] = {}
    tensors: dict[str, Array] = {}
    if inputs is not None and inputs.endswith(TEXT):
        try:
            streams |= token_files.read_text(Path(inputs).read_text(encoding="utf-8"), inputs)
        except UnicodeDecodeError as error:
            raise TensorError(f"{inputs}: no text: {error}") from None
    for path in (inputs, weights):
        if path is None or path.endswith(TEXT):
            continue
        arrays = load_tensors(path)
        kinds = {name: stream.type for name, stream in machine.program.inputs.items()}
        found = token_files.streams_in(arrays, kinds, path)
        own = {key for key in arrays for name in found if key.startswith(f"{name}.")}
        streams |= found
        tensors |= {name: value for name, value in arrays.items() if name not in own}
    known, where = machine.program.inputs, inputs or "no --inputs"
    if missing := sorted(known.keys() - streams.keys()):
        names = ", ".join(missing)
        raise TensorError(f"{where}: the program needs tokens of {names}: a line NAME: TOKENS of a .txt, or arrays")
    if unknown := sorted(streams.keys() - known.keys()):
        raise TensorError(f"{where}: no input {', '.join(unknown)}; the program has {', '.join(known) or 'none'}")
    return streams, tensors


def write_results(
    path: str,
    machine: machines.OperatorMachine,
    tokens: Mapping[str, Sequence[Token]],
    times: Mapping[str, Sequence[float]],
    tensors: Mapping[str, Array],
) -> None:
    """Write the results of a run to a file: streams alone as texts (`.txt`), or streams and tensors as arrays (`.npz`,
    `.safetensors`).

    tokens: those of each result stream, by its name; a stream without an entry is left out of a file of arrays. times:
    the clock cycle of each token, by the name of the stream; a stream without an entry is written without times. Texts
    have no times. tensors: those that the program stored, by name.

    Raises `TensorError` for a text if there are tensors, for streams or tensors that need an array of the same name,
    and as `token_files.arrays_of` and `save_tensors` do.
    """
    if path.endswith(TEXT):
        if tensors:
            names = ", ".join(tensors)
            raise TensorError(f"{path}: a text holds streams, and the program stores tensors ({names}): write .npz")
        write_text(path, token_files.text_of(tokens))
        return
    arrays: dict[str, Array] = dict(tensors)
    for name, stream in machine.results.items():
        if name not in tokens:  # of a native run, which drops streams without a name
            continue
        made = token_files.arrays_of(name, stream.type, tokens[name], times.get(name))
        if twice := sorted(arrays.keys() & made.keys()):
            raise TensorError(f"{path}: {twice[0]} is an array of two results, one of them {name}: rename one")
        arrays |= made
    save_tensors(path, arrays)


def tensor_values(machine: machines.OperatorMachine) -> Mapping[str, Array]:
    """Return the values that a program states for tensors off the chip, by name."""
    return {name: np.asarray(one.data) for name, one in machine.tensors.items() if one.data is not None}
