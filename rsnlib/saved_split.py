"""Save a module in pieces as JSON and tensors, and read it. Programs are saved apart, each with its own host part."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.fx import Node

from ..base.json_values import Json, as_list
from .exporting import unlogged
from .graph_split import Piece, Split
from .host_part import HostPart
from .saved_host import FakeRun, SavedGraphReader, constants, described, described_interface, of_described, operators


def encode(split: Split, programs: Sequence[object], keep: Callable[[torch.Tensor], str]) -> Json:
    """Return a split module as JSON, without its programs. split: with those constants alone that PyTorch needs.
    programs: one for each piece, None for PyTorch. keep: stores a tensor and returns its name. Raises as
    `saved_host.encode`."""
    return {
        "constants": constants(split.constants, keep),
        "pieces": [
            {"operators": operators(piece.nodes)}
            if program is None
            else {
                "takes": [node.name for node in piece.takes],
                "gives": [[node.name, described(node.meta["val"])] for node in piece.gives],
            }
            for piece, program in zip(split.pieces, programs, strict=True)
        ],
        **described_interface(split.interface, keep),
    }


def decode(description: Json, hosts: Sequence[HostPart | None], tensor: Callable[[str], torch.Tensor]) -> Split:
    """Read a split module from JSON. Its pieces have no trace. hosts: the host part of each piece's program, None for
    PyTorch. tensor: returns a stored tensor by its name. Raises any `Exception` for a wrong description; callers must
    expect that, because anybody may have written the file."""
    reader = SavedGraphReader(tensor)
    arguments = reader.arguments(description)
    values = reader.constants(description["constants"])
    pieces: list[Piece] = []
    for piece, host in zip(as_list(description["pieces"]), hosts, strict=True):
        if host is None:
            pieces.append(Piece(reader.operators(piece["operators"]), (), (), None, ()))
        else:
            takes = tuple(reader.nodes[name] for name in as_list(piece["takes"]))
            gives = tuple(reader.outside(name, of_described(x)) for name, x in as_list(piece["gives"]))
            pieces.append(Piece((), takes, gives, None, ()))
    split = Split(reader.interface(description, arguments), values, tuple(pieces))
    _check(split, hosts)
    return split


def _check(split: Split, hosts: Sequence[HostPart | None]) -> None:
    """Run the pieces with fake tensors, to check that operators and shapes fit (`FakeRun`), also those between pieces
    and their programs. Raises whatever PyTorch raises, and `ValueError`."""
    with unlogged():
        fake = FakeRun(split.interface, split.constants)
        for number, (piece, host) in enumerate(zip(split.pieces, hosts, strict=True)):
            if host is None:
                fake.run(piece.nodes)
                continue
            _check_same(number, piece.takes, host.interface.arguments, fake)
            if len(piece.gives) != host.interface.result_structure.num_leaves:
                raise ValueError(f"piece {number} gives {len(piece.gives)} values; its program gives others")
            for node in piece.gives:
                fake.add(node, node.meta["val"])


def _check_same(number: int, takes: Sequence[Node], arguments: Sequence[Node], fake: FakeRun) -> None:
    """Raise `ValueError` if a piece does not take what its program takes."""
    if len(takes) != len(arguments):
        raise ValueError(f"piece {number} takes {len(takes)} values; its program takes {len(arguments)}")
    for node, argument in zip(takes, arguments, strict=True):
        x, wanted = fake.values.get(node), argument.meta["val"]
        if x is not None and (x.shape, x.dtype) != (wanted.shape, wanted.dtype):
            raise ValueError(f"piece {number} takes {node.name}, which is not what its program takes")
