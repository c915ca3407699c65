"""Model files (`.rsnmodel`): the programs of a model for all of its sizes, its weights, and the part that PyTorch runs;
or those of a decoder, for prompts and steps.

The file is a safetensors file. Its tensors are the images of banks that hold only weights, the other weights, the
constants of the host part, and the containers of the programs; equal tensors are stored once. A description in its
metadata, as JSON, says what they are, and holds the operators of the host part and the names and shapes of arguments
and results. Loading a file executes nothing but PyTorch operators that make new tensors (`rsnlib.saved_host`).
Checksums detect a file that was altered or cut short.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError, safe_open

from ...assembler import container
from ...base.deferred import deferred
from ...base.errors import ContainerError, MissingError, RsnError, require_torch
from ...base.files import check_target, replacing
from ...base.json_values import Json, as_bool, as_dict, as_index, as_int, as_ints, as_list, as_str
from ...base.version import __version__
from ...isa.program import Buffer, Program, Role, only_weights
from ...rsnlib.call_padding import CallPadding, Cut, Factor, Sizes
from ...rsnlib.shapes import Arguments, Batch, Dim, Length
from ...scheduler.shards import ShardExchange
from ..tensors import Images, check_dtype, checksum
from .hosted_shards import ShardRound, board_numbers

if TYPE_CHECKING:
    import torch

    from ...rsnlib import precision, saved_host, saved_split
    from ...rsnlib.capture import Interface
    from ...rsnlib.graph_split import Split
    from ...rsnlib.host_part import HostPart
    from ...rsnlib.precision import Borders
else:
    precision = deferred("rsn.rsnlib.precision")
    saved_host = deferred("rsn.rsnlib.saved_host")
    saved_split = deferred("rsn.rsnlib.saved_split")

SUFFIX = ".rsnmodel"
DESCRIPTION = "rsn.model"
"""Key of the safetensors metadata: the description, as JSON."""
CHECKSUM = "rsn.model.blake2b"
"""Key of the safetensors metadata: the description's checksum."""
FORMAT = 3
IN_PIECES = 4
"""The format of a file with a model in pieces, which readers of `FORMAT` alone do not know."""
IN_STAGES = 5
"""The format of a file with a model in stages, which other readers do not know."""
IN_SHARDS = 6
"""The format of a file with a model whose stages several boards compute together."""
NO_BOARD = -1
"""In the place of a board's number: no weights are used."""
KINDS: dict[str, type[Dim]] = {"batch": Batch, "length": Length}


@dataclass(frozen=True, eq=False)
class SavedProgram:
    """A program of a model. weights: flat float32 by buffer name, in memory order. host: what PyTorch computes before
    and after the program."""

    program: Program
    weights: Mapping[str, Any]
    host: HostPart


@dataclass(frozen=True, eq=False)
class ModelVariant:
    """A model for one choice of sizes. sizes: one for each dimension that calls choose, () if there are none. programs:
    of a whole model its only program, or one for each stage, all with the same host part; of a model in pieces one for
    each piece in order, None for a piece that PyTorch runs. split: the pieces; None for a whole model. verified: when a
    call was last compared with the model in PyTorch, in UTC; None if none was. rounds: of a model in shards, which of
    its programs run together; empty for any other model."""

    sizes: Sizes
    programs: tuple[SavedProgram | None, ...]
    split: Split | None = None
    verified: datetime | None = None
    rounds: tuple[ShardRound, ...] = ()

    @property
    def on_machine(self) -> dict[int, SavedProgram]:
        """The programs, by the number of the stage or piece, which is 0 for a whole model."""
        return {i: program for i, program in enumerate(self.programs) if program is not None}

    @property
    def steps(self) -> tuple[ShardRound, ...]:
        """Which programs run together, in order, of a whole model: its rounds, or one program after the other."""
        return self.rounds or tuple(ShardRound(i, (i,), ShardExchange()) for i in self.on_machine)

    @property
    def stages(self) -> int:
        """The number of its stages; 1 for a model that one board runs."""
        if self.rounds:
            return self.rounds[-1].stage + 1
        return len(self.programs) if self.split is None else 1

    @property
    def shards(self) -> int:
        """How many boards compute each stage."""
        return len(self.rounds[0].programs) if self.rounds else 1

    @property
    def boards(self) -> int:
        """How many boards it takes."""
        return self.stages * self.shards

    @property
    def board_numbers(self) -> dict[int, int]:
        """The number of the board of each program, by the number of the program. Pieces share the first board."""
        if self.rounds:
            return dict(enumerate(board_numbers(self.rounds)))
        return {i: i if self.split is None else 0 for i in self.on_machine}

    @property
    def interface(self) -> Interface:
        """How the model is called."""
        return self.on_machine[0].host.interface if self.split is None else self.split.interface


@dataclass(frozen=True, eq=False)
class SavedText:
    """What a file says of a model of texts besides its programs. settings: as JSON. files: of the tokenizer, contents
    by name."""

    settings: Mapping[str, Json]
    files: Mapping[str, bytes]


@dataclass(frozen=True, eq=False)
class Saved:
    """The content of a model file. parts: one for each choice of sizes, or each program of a decoder. padding: how
    calls are padded, None for a model of one size. borders: the data types of arguments and results of a model in half
    precision, None for float32. same: for each part, if the model is whole, the index of the first part that has the
    same weights at the same addresses. version: of the toolchain that wrote the file. decoder: what the file says of a
    decoder; None for any other model. encoder: what it says of a model of texts; None for a model without a
    tokenizer."""

    parts: tuple[ModelVariant, ...]
    padding: CallPadding | None
    borders: Borders | None
    same: tuple[int, ...]
    version: str
    decoder: SavedText | None = None
    encoder: SavedText | None = None
    unchecked: dict[int, tuple[str, torch.Tensor, str]] = field(default_factory=dict)
    """Tensors whose checksums have not been verified, by their address, each with its name and its checksum."""

    def check(self, tensors: Iterable[torch.Tensor]) -> None:
        """Verify the checksums of tensors that were left out because only other stages should take them. Raises
        `ContainerError` for one that differs."""
        for tensor in tensors:
            if (left_out := self.unchecked.get(tensor.data_ptr())) is None:
                continue
            name, whole, wanted = left_out
            if _checksum(whole) != wanted:
                raise _damaged(name)
            self.unchecked.pop(tensor.data_ptr(), None)  # another thread may have done so

    @property
    def stages(self) -> int:
        """The number of stages; 1 for a model that one board runs. Programs of prompts of a decoder may lack the last
        ones."""
        return max(part.stages for part in self.parts)

    @property
    def shards(self) -> int:
        """How many boards compute each stage."""
        return self.parts[0].shards

    @property
    def boards(self) -> int:
        """How many boards the model takes."""
        return self.stages * self.shards


class _Tensors:
    """The tensors to write. Equal ones are kept once. A name begins with what the tensor is."""

    def __init__(self) -> None:
        self.kept: dict[str, torch.Tensor] = {}
        self.checksums: dict[str, str] = {}
        self._names: dict[tuple[Any, ...], str] = {}

    def keep(self, what: str, tensor: torch.Tensor) -> str:
        tensor = tensor.detach().contiguous()
        found = _checksum(tensor)
        key = (tensor.dtype, tuple(tensor.shape), found)
        if key not in self._names:
            name = f"{what}/{len(self.kept)}"
            self.kept[name] = tensor if tensor.nbytes == tensor.untyped_storage().nbytes() else tensor.clone()
            self._names[key], self.checksums[name] = name, found
        return self._names[key]

    def keep_array(self, what: str, array: np.ndarray[Any, Any]) -> str:
        import torch

        return self.keep(what, torch.from_numpy(array))


def _checksum(tensor: torch.Tensor) -> str:
    import torch

    flat = tensor.reshape(-1)
    raw = flat.view(torch.uint8).numpy() if flat.numel() else np.empty(0, np.uint8)
    return checksum(raw.data)


def write(
    path: str | os.PathLike[str],
    parts: Iterable[ModelVariant],
    padding: CallPadding | None,
    borders: Borders | None,
    decoder: SavedText | None = None,
    encoder: SavedText | None = None,
) -> None:
    """Write a model file, completely or not at all.

    parts: one for each choice of sizes, or each program of a decoder; they are taken one by one, so that a generator
    may compile each when it is needed. padding: how calls are padded; None for a model of one size. borders: of a model
    in half precision; None for float32. decoder: what the file says of a decoder; None for any other model. encoder:
    what it says of a model of texts; None for a model without a tokenizer. Raises `UnsupportedError` for a host part
    that cannot be written, `OSError` if the file cannot be, and what `parts` raises.
    """
    from safetensors.torch import save_file

    target = Path(path)
    check_target(target)
    tensors = _Tensors()
    described = [_part(part, tensors, writes=decoder is not None) for part in parts]
    kinds = {"rounds": IN_SHARDS, "split": IN_PIECES, "stages": IN_STAGES}
    formats = (number for kind, number in kinds.items() if any(kind in part for part in described))
    description: dict[str, Json] = {"format": next(formats, FORMAT), "version": __version__}
    description["parts"] = described
    description["buckets"] = None if padding is None else _padding(padding)
    description["borders"] = None if borders is None else asdict(borders)
    for kind, saved in (("decoder", decoder), ("encoder", encoder)):
        if saved is not None:
            files = {name: tensors.keep_array("file", _bytes(content)) for name, content in saved.files.items()}
            description[kind] = {"settings": dict(saved.settings), "files": files}
    description["checksums"] = tensors.checksums
    text = json.dumps(description, allow_nan=False)
    metadata = {DESCRIPTION: text, CHECKSUM: checksum(text.encode())}
    with replacing(target) as temporary:
        save_file(tensors.kept, temporary, metadata=metadata)


def _bytes(content: bytes) -> np.ndarray[Any, Any]:
    return np.frombuffer(content, np.uint8).copy()


def _part(part: ModelVariant, tensors: _Tensors, *, writes: bool) -> dict[str, Json]:
    made: dict[str, Json] = {
        "sizes": list(part.sizes),
        "verified": None if part.verified is None else part.verified.isoformat(),
    }
    if part.split is None:
        stages = [_program(program, tensors) for program in part.on_machine.values()]
        host = {"host": _host(part.on_machine[0].host, tensors, writes=writes)}
        rounds: dict[str, Json] = {"rounds": list(map(_round, part.rounds))} if part.rounds else {}
        return made | host | rounds | (stages[0] if len(stages) == 1 else {"stages": stages})
    programs = [
        None if program is None else _program(program, tensors) | {"host": _host(program.host, tensors)}
        for program in part.programs
    ]
    split = saved_split.encode(part.split, programs, lambda x: tensors.keep("constant", x))
    return made | {"programs": programs, "split": split}


def _round(one: ShardRound) -> Json:
    exchange = one.exchange
    columns, caches = (
        {name: [[own.start, own.stop] for own in of] for name, of in found.items()}
        for found in (exchange.columns, exchange.caches)
    )
    programs: list[Json] = list(one.programs)
    return {
        "stage": one.stage,
        "programs": programs,
        "sums": list(exchange.sums),
        "columns": columns,
        "caches": caches,
        "spread": list(exchange.spread),
    }


def _of_round(described: Json) -> ShardRound:
    def ranges(of: Json) -> dict[str, tuple[slice, ...]]:
        return {
            as_str(name): tuple(slice(start, stop) for start, stop in map(as_ints, as_list(each)))
            for name, each in as_dict(of).items()
        }

    programs = tuple(None if number is None else as_int(number) for number in as_list(described["programs"]))
    exchange = ShardExchange(
        tuple(map(as_str, as_list(described["sums"]))),
        ranges(described["columns"]),
        ranges(described["caches"]),
        tuple(map(as_str, as_list(described["spread"]))),
    )
    return ShardRound(as_int(described["stage"]), programs, exchange)


def _host(host: HostPart, tensors: _Tensors, *, writes: bool = False) -> Json:
    return saved_host.encode(host, lambda x: tensors.keep("constant", x), writes=writes)


def _program(part: SavedProgram, tensors: _Tensors) -> dict[str, Json]:
    program, images = part.program, {}
    for bank in program.overlay.banks:
        buffers = program.in_bank(bank)
        if only_weights(buffers):
            image = np.zeros(program.bank_size(bank), np.float32)
            for b in buffers:
                image[program.place(b)] = part.weights[b.name]
            images[bank] = tensors.keep_array("bank", image)
    others = [b.name for b in program.with_role(Role.WEIGHT) if b.bank not in images]
    return {
        "program": tensors.keep_array("program", _bytes(container.dumps(program))),
        "banks": images,
        "weights": {name: tensors.keep_array("weight", np.array(part.weights[name], np.float32)) for name in others},
    }


def _padding(padding: CallPadding) -> Json:
    arguments, dims = padding.arguments, padding.arguments.dims
    return {
        "dims": [[type(d).what, list(d.sizes), d.exact] for d in dims],
        "signature": saved_host.parameters(arguments.signature),
        "example": [[name, saved_host.described(x)] for name, x in arguments.example.items()],
        "shapes": {
            name: [[axis, dims.index(dim)] for axis, dim in axes.items()] for name, axes in arguments.shapes.items()
        },
        "masks": list(padding.masks),
        "least": [[dims.index(dim), n] for dim, n in padding.least.items()],
        "cuts": [[list(sizes), [_cut(cut) for cut in cuts]] for sizes, cuts in padding.cuts.items()],
    }


def _cut(cut: Cut | None) -> Json:
    return None if cut is None else [[[f.size, f.dim, f.offset, f.every] for f in axis] for axis in cut.axes]


def read(path: str | os.PathLike[str], board: int | None = None) -> Saved:
    """Read a model file.

    Weights are mapped, not copied: they are read from the file when they are used, and processes that load the same
    file share them. board: number of the only board whose programs will be used (without shards, that is the number of
    its stage), or `NO_BOARD`: weights of other boards are neither read nor checked. None reads all. Raises
    `ContainerError`, naming the file, if it is cut short, altered, not a model, or of another format; `MissingError`
    without PyTorch.
    """
    require_torch("loading a model")
    try:
        description, tensors, unchecked = _opened(path, board)
        return replace(_saved(description, tensors), unchecked=unchecked)
    except FileNotFoundError:
        raise ContainerError(f"{path}: no such file") from None
    except (MissingError, MemoryError):
        raise
    except RsnError as e:
        raise ContainerError(f"{path}: {e}") from e
    except OSError as e:
        raise ContainerError(f"{path}: {e.strerror or e}") from e
    except Exception as e:  # a hostile description may raise anything
        message = str(e).strip().partition("\n")[0]
        raise ContainerError(f"{path}: not a model that rsn can read: {type(e).__name__}: {message}") from e


def refuse_shards(path: str | os.PathLike[str], saved: Saved, what: str) -> None:
    """Raise `ContainerError` for a model in shards. path: of its file. saved: what the file holds. what: the name of
    the function that needs stages of one board, for the message."""
    if saved.shards > 1:
        raise ContainerError(
            f"{path}: cut with shards={saved.shards}, whose boards compute each stage together; {what} takes stages of "
            "one board: load the whole model with its boards, or compile it without shards"
        )


def identity(path: str | os.PathLike[str]) -> str:
    """Return a checksum that tells the content of a model file from any other: that of its description, which holds the
    checksums of its tensors. Nothing else is read. Raises `ContainerError` if there is no such model, `OSError` if the
    file cannot be read."""
    try:
        with safe_open(path, framework="np") as file:
            return str((file.metadata() or {})[CHECKSUM])
    except FileNotFoundError:
        raise ContainerError(f"{path}: no such file") from None
    except (KeyError, SafetensorError) as e:
        raise ContainerError(f"{path}: not a model file") from e


def _opened(
    path: str | os.PathLike[str], board: int | None
) -> tuple[Json, Mapping[str, torch.Tensor], dict[int, tuple[str, torch.Tensor, str]]]:
    """Return the description and the tensors of a file, and those whose checksums are not verified (`Saved.unchecked`):
    the tensors that only other boards than `board` take. Tensors are mapped."""
    if Path(path).is_dir():
        raise ContainerError(f"this is a folder; a model is one file ({SUFFIX})")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if DESCRIPTION not in metadata:
                raise ContainerError(
                    "not a model but other tensors: compiled.save(path), with one argument, writes a model; packed "
                    "weights are for rsn.Runner"
                )
            if metadata.get(CHECKSUM) != checksum(metadata[DESCRIPTION].encode()):
                raise ContainerError("the checksum of its description differs: the file is damaged; copy it again")
            description = as_dict(json.loads(metadata[DESCRIPTION]))
            if description["format"] not in (FORMAT, IN_PIECES, IN_STAGES, IN_SHARDS):
                written = f"has format {description['format']}, written by rsn {description['version']}"
                known = f"{FORMAT}, {IN_PIECES}, {IN_STAGES} and {IN_SHARDS}"
                raise ContainerError(f"{written}; rsn {__version__} reads formats {known}: save the model again")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as e:
        raise ContainerError(f"not a safetensors file, as a model is ({e}); rsn compile and save make models") from e
    checksums, foreign = as_dict(description["checksums"]), _of_others(description, board)
    with ThreadPoolExecutor() as pool:
        own = {name: x for name, x in tensors.items() if name not in foreign}
        for name, found in zip(own, pool.map(_checksum, own.values()), strict=True):
            if checksums[name] != found:
                raise _damaged(name)
    return description, tensors, {tensors[name].data_ptr(): (name, tensors[name], checksums[name]) for name in foreign}


def _damaged(name: str) -> ContainerError:
    return ContainerError(f"the checksum of {name} differs: the file is damaged; copy it again")


def _of_others(description: Json, board: int | None) -> set[str]:
    """The names of the tensors that other boards take, but not this one: weights, and unless it is of the first or last
    stage the constants of the host part, of which it may need some (`Saved.check`). None: none, all boards are used."""
    others, own = set[str](), set[str]()
    if board is None:
        return others
    for part in as_list(description["parts"]):
        if "split" in part:
            return set()
        programs = as_list(part.get("stages", [part]))
        rounds = tuple(map(_of_round, as_list(part.get("rounds", []))))
        numbers = board_numbers(rounds) if rounds else range(len(programs))
        for number, program in zip(numbers, programs, strict=True):
            (own if number == board else others).update((*program["banks"].values(), *program["weights"].values()))
        shards = len(rounds[0].programs) if rounds else 1
        if board // shards not in (0, max(numbers) // shards):
            others.update(name for name in as_dict(description["checksums"]) if name.startswith("constant/"))
    return others - own


def _saved(description: Json, tensors: Mapping[str, torch.Tensor]) -> Saved:
    arrays = {name: x.numpy() for name, x in tensors.items() if name.partition("/")[0] in ("bank", "weight")}
    parts = tuple(_of_part(part, tensors, arrays) for part in as_list(description["parts"]))
    if not parts:
        raise ValueError("the description has no program")
    placed = [
        None if "split" in part else [(program["banks"], program["weights"]) for program in part.get("stages", [part])]
        for part in description["parts"]
    ]
    if "decoder" not in description and len({(x.stages, tuple(one.programs for one in x.rounds)) for x in parts}) > 1:
        raise ValueError("its programs have different stages")
    same = tuple(
        i
        if placed[i] is None
        else next(j for j, other in enumerate(parts) if placed[j] == placed[i] and _ends(other) == _ends(part))
        for i, part in enumerate(parts)
    )
    padding = None if description["buckets"] is None else _of_padding(description["buckets"], parts)
    decoder, encoder = (
        _of_text(description[kind], tensors) if kind in description else None for kind in ("decoder", "encoder")
    )
    called = [x for part in parts for x in (part.interface, *(p.host.interface for p in part.on_machine.values()))]
    if decoder is None and any(interface.written for interface in called):
        raise ValueError("it writes to arguments")
    if padding is None and decoder is None and [part.sizes for part in parts] != [()]:
        raise ValueError("it does not say which calls its programs are for")
    borders = _of_borders(description["borders"], parts)
    return Saved(parts, padding, borders, same, as_str(description["version"]), decoder, encoder)


def _of_text(described: Json, tensors: Mapping[str, torch.Tensor]) -> SavedText:
    files = {as_str(name): tensors[as_str(of)].numpy().tobytes() for name, of in as_dict(described["files"]).items()}
    if any(name in ("", ".", "..") or not {"/", "\\"}.isdisjoint(name) for name in files):
        raise ValueError(f"the files of a tokenizer are called {sorted(files)}")
    return SavedText(as_dict(described["settings"]), files)


def _ends(part: ModelVariant) -> list[tuple[Any, ...]]:
    """Return what programs of one network have in common: inputs and outputs, except their number of rows."""
    buffers = [b for program in part.on_machine.values() for b in program.program.buffers]
    ends = [b for b in buffers if b.role in (Role.INPUT, Role.OUTPUT)]
    return sorted((b.name, b.role.value, (b.view or b.shape)[-1:], b.scale, b.shift) for b in ends)


def _of_part(described: Json, tensors: Mapping[str, torch.Tensor], arrays: Mapping[str, Any]) -> ModelVariant:
    when = described.get("verified")  # which files of before lack
    verified = None if when is None else datetime.fromisoformat(as_str(when))
    sizes = as_ints(described["sizes"])
    if "split" not in described:
        host = saved_host.decode(described["host"], tensors.__getitem__)
        stages = as_list(described.get("stages", [described]))
        made = tuple(_of_program(stage, host, tensors, arrays) for stage in stages)
        rounds = tuple(map(_of_round, as_list(described.get("rounds", []))))
        ends = [_ProgramEnds.of(x.program, host.batch) for x in made]
        _check_ends(_joined_ends(rounds, ends, host) if rounds else ends, host)
        return ModelVariant(sizes, made, None, verified, rounds)
    programs = tuple(
        None if program is None else _of_piece(program, tensors, arrays) for program in as_list(described["programs"])
    )
    hosts = [None if program is None else program.host for program in programs]
    split = saved_split.decode(described["split"], hosts, tensors.__getitem__)
    if all(host is None for host in hosts):
        raise ValueError("the description has no program")
    return ModelVariant(sizes, programs, split, verified)


def _of_piece(described: Json, tensors: Mapping[str, torch.Tensor], arrays: Mapping[str, Any]) -> SavedProgram:
    host = saved_host.decode(described["host"], tensors.__getitem__)
    made = _of_program(described, host, tensors, arrays)
    _check_ends([_ProgramEnds.of(made.program, host.batch)], host)
    return made


def _of_program(
    described: Json, host: HostPart, tensors: Mapping[str, torch.Tensor], arrays: Mapping[str, Any]
) -> SavedProgram:
    program = container.loads(tensors[described["program"]].numpy().tobytes(), described["program"])
    images = {bank: arrays[name] for bank, name in as_dict(described["banks"]).items()}
    for bank, image in images.items():
        if image.shape != (program.bank_size(bank),):
            raise ValueError(f"the image of {bank} has shape {image.shape}, not ({program.bank_size(bank)},)")
    others = {buffer: arrays[name] for buffer, name in as_dict(described["weights"]).items()}
    for name, array in (*images.items(), *others.items()):
        check_dtype(name, array)
    weights = Images(images, program.with_role(Role.WEIGHT), others, program.overlay.address_unit)
    return SavedProgram(program, weights, host)


View = tuple[int, ...] | None


@dataclass(frozen=True)
class _ProgramEnds:
    """What a program takes, gives and keeps: the shape of each buffer by its name, with sequences apart; and the names
    of its run-time parameters."""

    inputs: Mapping[str, View]
    outputs: Mapping[str, View]
    states: Mapping[str, View]
    parameters: frozenset[str]

    @classmethod
    def of(cls, program: Program, batch: int) -> _ProgramEnds:
        """Those of a program. batch: sequences of the network."""

        def items(buffer: Buffer) -> View:
            view = buffer.view  # the rows of all sequences may lie together
            is_flat = view is not None and len(view) == 2 and view[0] % batch == 0
            return (batch, view[0] // batch, view[1]) if view and is_flat else view

        return cls(
            {b.name: items(b) for b in program.with_role(Role.INPUT)},
            {b.name: items(b) for b in program.with_role(Role.OUTPUT)},
            {b.name: b.view for b in program.with_role(Role.STATE)},
            frozenset(p.name for p in program.parameters),
        )


def _joined_ends(rounds: Sequence[ShardRound], ends: Sequence[_ProgramEnds], host: HostPart) -> list[_ProgramEnds]:
    """Return the ends of each round of shards, as of one program. Raises `ValueError` unless each program is in one
    round, and what its shards give fits the exchange."""
    numbers = [number for one in rounds for number in one.programs if number is not None]
    steps = [b.stage - a.stage for a, b in pairwise(rounds)]
    shards = {len(one.programs) for one in rounds}
    if numbers != [*range(len(ends))] or rounds[0].stage or not {0, 1}.issuperset(steps) or len(shards) > 1:
        raise ValueError("its rounds are not all of its programs, stage by stage")
    found = []
    for one in rounds:
        own = [None if number is None else ends[number] for number in one.programs]
        first, exchange = own[0], one.exchange
        if first is None:
            raise ValueError("a round without a program of the first shard")
        present = [of for of in own if of is not None]
        outputs = dict(first.outputs)
        states: dict[str, View] = {name: view for of in present for name, view in of.states.items()}
        for name in exchange.sums:
            if len(present) < len(own) or any(of.outputs.get(name) != outputs.get(name) for of in present):
                raise ValueError(f"not each shard gives its part of {name}")
        for name, columns in (*exchange.columns.items(), *exchange.caches.items()):
            kept = name in exchange.caches
            width = max(part.stop for part in columns)
            covered = np.zeros(width, bool)
            for of, part in zip(own, columns, strict=True):
                view = None if of is None else (of.states if kept else of.outputs).get(name)
                count = part.stop - part.start
                if kept and view is not None:
                    stored = host.stored_columns[name][:count]
                    count = view[-1] if len(stored) == count and stored.max() < view[-1] else -1
                if view is None or part.start < 0 or count < 1 or view[-1] != count:
                    raise ValueError(f"a shard has other columns of {name}")
                covered[part] = True
            if not covered.all():
                raise ValueError(f"the shards lack columns of {name}")
            if kept:
                stored = host.stored_columns[name]
                states[name] = (*(states[name] or ())[:-1], int(stored.max()) + 1 if len(stored) == width else 0)
            else:
                outputs[name] = (*(outputs[name] or ())[:-1], width)
        inputs: dict[str, View] = {}
        for of in present:
            for name, view in of.inputs.items():
                if inputs.setdefault(name, view) != view:
                    raise ValueError(f"its shards take {name} in different sizes")
            if not of.outputs.keys() <= outputs.keys() or (of is not first and not _is_given(of, exchange)):
                raise ValueError("a shard gives what the first does not, or what is not exchanged")
        found.append(_ProgramEnds(inputs, outputs, states, frozenset().union(*(of.parameters for of in present))))
    return found


def _is_given(ends: _ProgramEnds, exchange: ShardExchange) -> bool:
    return ends.outputs.keys() <= {*exchange.sums, *exchange.columns}


def _check_ends(programs: Sequence[_ProgramEnds], host: HostPart) -> None:
    """Raise `ValueError` unless the host part computes the inputs of a network's stages that no stage before gives, and
    uses the outputs that no later stage takes."""
    inputs: dict[str, View] = {}
    outputs: dict[str, View] = {}
    passed = set[str]()
    for program in programs:
        for name, shape in program.inputs.items():
            if (outputs if name in outputs else inputs).setdefault(name, shape) != shape:
                raise ValueError(f"its stages take and give {name} in different sizes")
            passed |= {name} & outputs.keys()
        made = program.outputs
        if made.keys() & (outputs.keys() | inputs.keys()):
            raise ValueError(f"several stages give {sorted(made.keys() & (outputs.keys() | inputs.keys()))}")
        outputs |= made
    outputs = {name: shape for name, shape in outputs.items() if name in host.columns or name not in passed}
    states = {name: shape for program in programs for name, shape in program.states.items()}

    def view(name: str, columns: int, seq: int | None = None) -> tuple[int, ...] | None:
        return (host.batch, host.seq_of(name) if seq is None else seq, columns)

    given = {
        name: view(name, int(np.prod(of.shape)) // (host.batch * host.seq_of(name)))
        for name, (_, of) in host.sources.items()
    } | {name: view(name, 2 * table.pitch, host.seq) for name, table in host.tables.items()}
    taken = {name: view(name, columns) for name, columns in host.columns.items()}
    for name in {*states, *host.states}:
        kept, columns = states.get(name) or (), host.stored_columns.get(name, np.zeros(0))
        if kept[:2] != (host.batch, host.seq_of(name)) or not 0 < len(columns) <= columns.max() + 1 <= kept[2]:
            raise ValueError(f"the program keeps {name} as {kept}; the host part has another cache")
    shown = {part for name, _ in host.results.values() for part in host.joined.get(name, (name,))}
    if inputs != given or outputs != taken or not shown <= outputs.keys():
        raise ValueError(
            f"the program takes {inputs} and gives {outputs}; the host part gives {given} and takes {taken}"
        )
    taking = {kind or "" for kind in (*host.rows_taken.values(), *host.rings.values())}
    rows = {f"row{kind}[{b}]" for kind in taking for b in range(host.batch)}
    parameters = {name for program in programs for name in program.parameters}
    if rows != {name for name in parameters if name.startswith("row")} or bool(parameters - rows) != bool(host.masks):
        raise ValueError("of the program and the host part, only one has masks or caches")


def _of_padding(described: Json, parts: Sequence[ModelVariant]) -> CallPadding:
    dims = [KINDS[kind](*as_ints(sizes), exact=as_bool(exact)) for kind, sizes, exact in as_list(described["dims"])]

    def dim(index: Json) -> Dim:
        return dims[as_index(index, len(dims))]

    shapes = {name: {as_int(axis): dim(i) for axis, i in axes} for name, axes in as_dict(described["shapes"]).items()}
    example = {as_str(name): saved_host.of_described(x) for name, x in as_list(described["example"])}
    distinct = {part.sizes for part in parts}
    if not len(distinct) == len(parts) == prod(len(dim.sizes) for dim in dims):
        raise ValueError(f"{len(parts)} programs for {len(distinct)} sizes, which are not one for each choice of sizes")
    arguments = Arguments(saved_host.of_parameters(described["signature"]), example, shapes)
    if arguments.dims != tuple(dims):
        raise ValueError("its dimensions are not those of its arguments")
    arguments.sizes(arguments.example)  # raises if it lacks one of these axes
    masks = [as_str(name) for name in as_list(described["masks"])]
    for name in masks:
        if not hasattr(example.get(name), "shape"):
            raise ValueError(f"the mask {name!r} is no tensor among the arguments {', '.join(example)}")
    padding = CallPadding(arguments, masks)
    padding.least = {dim(i): as_int(n) for i, n in as_list(described["least"])}
    for sizes, cuts in as_list(described["cuts"]):
        padding.cuts[as_ints(sizes)] = [None if cut is None else _of_cut(cut, len(dims)) for cut in as_list(cuts)]
    for part in parts:
        if len(part.sizes) != len(dims) or any(n not in d.sizes for n, d in zip(part.sizes, dims, strict=True)):
            raise ValueError(f"a program is for sizes {part.sizes}, which its dimensions do not have")
        results = part.interface.result_structure.num_leaves
        if len(padding.cuts.get(part.sizes) or range(results)) != results:
            raise ValueError(f"the program for {part.sizes} has {results} results, and others are cut")
    return padding


def _of_borders(described: Json, parts: Sequence[ModelVariant]) -> Borders | None:
    if described is None:
        return None

    def dtypes(names: Json) -> tuple[str | None, ...]:
        if any(name is not None and name not in precision.HALVES for name in as_list(names)):
            raise ValueError(f"{names} are not all data types of half precision")
        return tuple(names)

    results = None if described["results"] is None else dtypes(described["results"])
    if results is not None and any(p.interface.result_structure.num_leaves != len(results) for p in parts):
        raise ValueError(f"it has data types for {len(results)} results; a program has another number of results")
    arguments = {name: dtypes(of) for name, of in as_dict(described["arguments"]).items()}
    return precision.Borders(dtypes(described["weights"]), arguments, results, dtypes([described["usual"]])[0])


def _of_cut(described: Json, dims: int) -> Cut:
    def factor(size: Json, dim: Json, offset: Json, every: Json) -> Factor:
        followed = None if dim is None else as_index(dim, dims)
        made = Factor(as_int(size), followed, as_int(offset), as_int(every))
        if min(made.size, made.every) < 1:
            raise ValueError("an axis of a result has a factor below 1")
        return made

    return Cut(tuple(tuple(factor(*of) for of in as_list(axis)) for axis in as_list(described)))
