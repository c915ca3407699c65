"""A decoder from a file: its programs and weights, without the model's code and without compiling anything."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from ...base.errors import BoardError, ContainerError, TensorError
from ...base.json_values import as_int, as_ints, as_list
from ...rsnlib.key_spans import RowsOfCaches
from ..boards.several import BoardName, boards_for
from ..model.board_memory import LESS, board_bytes, require_room
from ..model.file import ModelVariant, Saved, SavedText, read
from ..model.hosted import HostedProgram
from ..model.hosted_shards import HostedShards
from ..model.stage_calls import HostErrors
from ..runner import Runner
from ..tokenizers import tokenizer_of
from .slots import PromptProgram, Slots

if TYPE_CHECKING:
    import torch

    from ...hw.sim.machine import Run
    from ...isa.program import Program

CACHE, TENSORS = "past_key_values_{}", 3
"""The name of a tensor of a cache among the arguments of programs, by its number; how many each layer has: keys,
values, and the number of tokens."""


def load(
    path: str | os.PathLike[str],
    *,
    board: BoardName = "sim",
    boards: Sequence[BoardName] | None = None,
    xclbin: str | os.PathLike[str] | None = None,
) -> LoadedDecoder:
    """Load a decoder that `Decoder.save` wrote, and open its boards. board, boards, xclbin: as for `rsn.load`. PyTorch
    is needed for the host part. Weights are mapped, not copied.

    Raises `ContainerError`, naming the file, as `rsn.load` does and for a file of any other model; `RoomError` for more
    memory than boards have; `BoardError` if the board cannot be used.
    """
    saved = read(path)
    if saved.decoder is None:
        raise ContainerError(f"{path}: no decoder; Decoder.save writes one")
    try:
        require_decoder_room(path, saved)
        return LoadedDecoder(saved, boards_for(path, saved.boards, board, boards), xclbin)
    except (AttributeError, LookupError, TypeError, ValueError, TensorError) as e:
        raise ContainerError(f"{path}: not a decoder that rsn can read: {type(e).__name__}: {e}") from e


class DecoderSizes(NamedTuple):
    """The sizes of a decoder, as its file states them. slots: number of sequences that are decoded together. capacity:
    the most tokens of a sequence. chunk: the most rows of a prompt that run at once. vocabulary: number of tokens that
    there are. ends: the tokens that end a text."""

    slots: int
    capacity: int
    chunk: int
    vocabulary: int
    ends: tuple[int, ...]

    @classmethod
    def of(cls, saved: SavedText) -> DecoderSizes:
        """Return the sizes that a decoder's description states. Raises some `Exception`, of any class, for a wrong
        description."""
        settings = saved.settings
        slots, capacity, chunk, vocabulary = (
            as_int(settings[name]) for name in ("slots", "capacity", "chunk", "vocabulary")
        )
        if slots < 1 or capacity < 2 or chunk < 2:
            raise ValueError(f"{slots} slots of {capacity} rows, chunks of {chunk}")
        return cls(slots, capacity, chunk, vocabulary, as_ints(settings["ends"]))


def decoder_bytes(saved: Saved, sets: int = 1) -> list[dict[str, int]]:
    """Return the bytes that all programs of a decoder take on each board, by bank. saved: its file. sets: how many sets
    of slots there are: the programs of prompts are there once, that of a step, with the caches, for each set."""
    programs: list[list[tuple[Program, int]]] = [[] for _ in range(saved.boards)]
    for number, part in enumerate(saved.parts):
        for i, board in part.board_numbers.items():
            programs[board].append((part.on_machine[i].program, 1 if number else sets))
    return [board_bytes(of) for of in programs]


def require_decoder_room(path: str | os.PathLike[str], saved: Saved, sets: int = 1) -> None:
    """Raise `RoomError` if boards cannot hold a decoder. path: of its file, for the message. saved, sets: as for
    `decoder_bytes`."""
    for board, sizes in enumerate(decoder_bytes(saved, sets)):
        overlay = saved.parts[0].on_machine[0].program.overlay
        of = f" with {sets} sets of slots, one for each stage," * (sets > 1)
        require_room(sizes, overlay, f"{os.fspath(path)}: the programs of board {board}{of}", LESS)


def saved_tokenizer(saved: SavedText) -> Any:
    """Return the tokenizer (of transformers) in a decoder's description. Raises `ContainerError` if there is none or if
    it cannot be loaded, and `MissingError` without transformers."""
    if not saved.files:
        raise ContainerError("the decoder was saved without a tokenizer: decoder.save(path, tokenizer)")
    return tokenizer_of(saved.files)


@dataclass
class _Layer:
    """Keys and values of a layer, as a layer of a `StaticCache` has them."""

    keys: torch.Tensor
    values: torch.Tensor
    cumulative_length: torch.Tensor
    max_cache_len: int


@dataclass
class _Caches:
    """The layers of a cache."""

    layers: list[_Layer]


@dataclass
class LogitsResult:
    """The result of a call. logits: (batch, rows, vocabulary)."""

    logits: Any


class _Program:
    """A program of the file on a board, or its stages and shards on theirs."""

    def __init__(self, part: ModelVariant, boards: Sequence[BoardName], xclbin: Any) -> None:
        stages = list(part.on_machine.values())
        self._runners: list[Runner] = []
        try:
            for saved, board in zip(stages, boards, strict=True):
                self._runners.append(Runner(saved.program, weights=saved.weights, board=board, xclbin=xclbin))
        except BaseException:
            self.close()
            raise
        host = stages[0].host
        self._hosted = (
            HostedShards(host, part.rounds, *self._runners) if part.rounds else HostedProgram(host, *self._runners)
        )

    def __call__(self, **arguments: Any) -> Any:
        return self.step(None, **arguments)

    def step(self, rows: RowsOfCaches | None, **arguments: Any) -> Any:
        with HostErrors():
            return LogitsResult(self._hosted.call((), tensors_of(arguments), rows))

    @property
    def last_run(self) -> Run | None:
        return self._hosted.last_run

    def close(self) -> None:
        for runner in self._runners:
            runner.close()


class SavedSlots(Slots):
    """The slots of a decoder from a file, which has the slots, the capacity and the chunks of the one that was saved.
    Calls are not compared with the model, which the file does not have.

    saved: the file's content. takes: names of the arguments that its programs take, as in `tensors_of`; None for all.
    If no program takes the cache of a layer, that cache has no columns here. Raises some `Exception`, of any class, for
    a wrong description.
    """

    def __init__(self, saved: Saved, takes: Set[str] | None = None) -> None:
        assert saved.decoder is not None
        sizes = DecoderSizes.of(saved.decoder)
        super().__init__(sizes.slots, sizes.capacity, sizes.chunk)
        self.vocabulary, self.ends = sizes.vocabulary, sizes.ends
        layers = [as_ints(of) for of in as_list(saved.decoder.settings["layers"])]
        if takes is None:
            self._layers = layers
        else:
            kept = [not takes.isdisjoint(CACHE.format(TENSORS * i + j) for j in range(2)) for i in range(len(layers))]
            self._layers = [
                (heads, rows, keys * is_own, values * is_own)
                for (heads, rows, keys, values), is_own in zip(layers, kept, strict=True)
            ]
        self._cache = self._empty_cache(sizes.slots)

    def _empty_cache(self, batch: int, rows: int | None = None) -> _Caches:
        import torch

        layers = []
        for heads, own, keys, values in self._layers:
            count = rows or own
            k, v = (torch.zeros(batch, heads, count, columns) for columns in (keys, values))
            layers.append(_Layer(k, v, torch.zeros((), dtype=torch.long), count))
        return _Caches(layers)


class LoadedDecoder(SavedSlots):
    """A decoder from a file, with all its boards. boards: names of boards, in the order of the stages and of their
    shards. xclbin: path of the bitstream for a real board. Raises some `Exception`, of any class, for a wrong
    description, and `BoardError` if a board cannot be used."""

    def __init__(self, saved: Saved, boards: Sequence[BoardName], xclbin: str | os.PathLike[str] | None) -> None:
        super().__init__(saved)
        assert saved.decoder is not None
        self._text = saved.decoder
        prompts = self._prompt_programs()
        if len(saved.parts) != 1 + len(prompts):
            raise ValueError(f"{len(saved.parts)} programs for a step and {len(prompts)} kinds of prompts")
        for part, prompt in zip(saved.parts, (None, *prompts), strict=True):
            arguments = self._step_arguments({}) if prompt is None else self._example(prompt)
            part.interface.bind((), tensors_of(arguments))  # raises for programs of other sizes
        self._programs: list[_Program] = []
        try:
            for part in saved.parts:
                self._programs.append(_Program(part, [boards[i] for i in part.board_numbers.values()], xclbin))
        except BaseException:
            self._release()
            raise
        self._prompts = dict(zip(prompts, self._programs[1:], strict=True))
        self._closed = False

    def tokenizer(self) -> Any:
        """Return the tokenizer that was saved, of transformers. Raises `ContainerError` if there is none or if it
        cannot be loaded, and `MissingError` without transformers."""
        return saved_tokenizer(self._text)

    def close(self) -> None:
        """Release the boards. Further prompts and steps raise `BoardError`."""
        self._closed = True
        self._release()

    def _release(self) -> None:
        for program in self._programs:
            program.close()

    def _follow(self) -> None:
        if self._closed:
            raise BoardError("this decoder is closed")

    @property
    def _step(self) -> _Program:
        return self._programs[0]

    def _prompt_program(self, wanted: PromptProgram) -> _Program:
        return self._prompts[wanted]


def tensors_of(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the model's arguments as tensors by the names of `Interface.of_tensors`."""
    flat: dict[str, Any] = {}
    for name, value in arguments.items():
        if isinstance(value, _Caches):
            tensors = [x for layer in value.layers for x in (layer.keys, layer.values, layer.cumulative_length)]
            flat |= {f"{name}_{i}": x for i, x in enumerate(tensors)}
        else:
            flat[name] = value
    return flat
