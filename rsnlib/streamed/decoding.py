"""Text of a causal language model whose layers run on generated machines: one for prompts and steps, or one for each.

A machine goes through all layers. The host, which is PyTorch, computes what is before the layers, such as embeddings,
masks and rotary tables, and what is behind them, unless the machine does: the last norm and the product with the
vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.fx import Node

from ...base.errors import CacheFull, PositionError, PromptTooLong, TensorError, UnsupportedError
from ...hw.sim.machine import Run
from ...hw.sim.tasks import TaskMemory
from ..capture import Environment
from ..capture import run as run_on_host
from ..static_cache import empty_cache, parts_of
from .block import Streamed, streamed
from .generate import DEFAULT, Generated
from .lengths import BlockOfLength
from .operators import Array, FromHost, Positions
from .reading import OperatorBlock

Caches = dict[str, Array]
"""What caches hold, by the name of the cache's operator: for each layer the elements that exist, row-major."""


@dataclass(frozen=True)
class GeneratedText:
    """An answer and the runs that made it. tokens: of the answer. prompt: the runs that read the prompt, the last of
    which gives the first token. steps: the runs of the other tokens, one for each."""

    tokens: list[int]
    prompt: list[Run]
    steps: list[Run]

    @property
    def ttft_s(self) -> float:
        """Modelled seconds to the first token, without the time that the host takes."""
        return sum(run.latency_s for run in self.prompt)

    @property
    def tokens_per_s(self) -> float:
        """Modelled tokens in a second, of the steps; 0 if there were none."""
        return len(self.steps) / sum(run.latency_s for run in self.steps) if self.steps else 0.0


class MachineDecoder:
    """A causal language model of `transformers` on generated machines, for one sequence. Not for several threads.

    model: in eval mode, in float32 or quantised from it. place: makes the machine of a model's stream program
    (`generate.place`, `search.fastest`). capacity: the most tokens of a sequence, its prompt included. rows: a number
    for one machine that reads prompts, in runs of at most that many tokens, and takes the steps too; None for one
    machine for the steps, which is made now, and one for prompts of each length, which is made when the first such
    prompt comes. head: machines also compute the last norm and the product with the vocabulary. integers: caches hold
    int8 and scales; the model's attention must then be `rsn.quantised_attention`.

    Weights are laid out in a machine's memory once; keys and values stay there. The machines have the weights that the
    model has now: if these change, the next run raises `TensorError`.

    Raises `UnsupportedError` for a model that is no language model of transformers or has no layers that one machine
    can go through, `PositionError` for a capacity beyond the model's positions, `TensorError` for a capacity below 2
    and for `rows` that are not from 1 to the capacity, and as `streamed` and `place` do.
    """

    def __init__(
        self,
        model: nn.Module,
        place: Callable[[Streamed], Generated],
        *,
        capacity: int,
        rows: int | None = None,
        head: bool = False,
        integers: bool = False,
    ) -> None:
        config: Any = getattr(model, "config", None)
        if not hasattr(config, "get_text_config"):
            raise UnsupportedError(f"{type(model).__name__}: no language model of transformers")
        text = config.get_text_config(decoder=True)
        positions = getattr(text, "max_position_embeddings", None)
        if positions is not None and capacity > positions:
            raise PositionError(f"sequences of {capacity} tokens; the model has positions for {positions}")
        if capacity < 2:
            raise TensorError(f"a capacity of {capacity} tokens; the least is 2")
        if rows is not None and not 1 <= rows <= capacity:
            raise TensorError(f"runs of {rows} tokens; sequences have up to {capacity}")
        self.capacity, self.rows, self.head, self.vocabulary = capacity, rows, head, int(text.vocab_size)
        self._model, self._place, self._integers = model, place, integers
        self._steps = self._program(1 if rows is None else rows)
        self._prompts = {1: self._steps}
        self._now = self._steps
        self.length = 0
        """Tokens of the sequence."""

    @property
    def step_machine(self) -> Generated:
        """The machine of a step."""
        return self._steps.made

    def prompt_machine(self, tokens: int) -> Generated:
        """Return the machine for prompts of this number of tokens. Raises as `streamed` and `place` do."""
        return self.program(tokens).made

    def prefill(self, tokens: Sequence[int]) -> tuple[torch.Tensor, list[Run]]:
        """Begin a sequence with a prompt. Returns the logits behind its last token, float32 (vocabulary,), and the
        runs, of which a prompt has several if it has more tokens than a run of the one machine. Raises `PromptTooLong`
        for more tokens than a sequence may have, `TensorError` for none, for unknown ones, and if the model has
        changed, and as `prompt_machine` does."""
        known = self._known(tokens)
        if not known:
            raise TensorError("a prompt without tokens")
        if len(known) > self.capacity:
            raise PromptTooLong(
                f"a prompt of {len(known)} tokens; a sequence has at most {self.capacity}, with its answer"
            )
        self._now, self.length = self.program(len(known)), 0
        runs = []
        for at in range(0, len(known), self._now.rows):
            logits, run = self._now.run(known[at : at + self._now.rows], at)
            runs.append(run)
        self.length = len(known)
        return logits, runs

    def step(self, token: int) -> tuple[torch.Tensor, Run]:
        """Append a token to the sequence. Returns the logits behind it, float32 (vocabulary,), and the run. Raises
        `CacheFull` for a sequence with as many tokens as its cache has rows, `TensorError` without a prompt, for an
        unknown token, and if the model has changed."""
        known = self._known([token])
        if not self.length:
            raise TensorError("a step needs a prompt before it")
        if self.length >= self.capacity:
            raise CacheFull(f"the sequence has {self.capacity} tokens, as many as its cache has rows")
        if self._now is not self._steps:
            self._steps.set_caches(self._now.read_caches())
            self._now = self._steps
        logits, run = self._steps.run(known, self.length)
        self.length += 1
        return logits, run

    def generate(
        self,
        prompt: Sequence[int],
        tokens: int,
        ends: Iterable[int] = (),
        progress: Callable[[float], None] = lambda share: None,
    ) -> GeneratedText:
        """Return the most probable answer, token by token. prompt: its tokens. tokens: of the answer, at most, from 1
        on. ends: tokens that end it; they are part of it. progress: called with the share of the tokens.
        Raises `TensorError` for an answer without tokens, and as `prefill` and `step` do."""
        if tokens < 1:
            raise TensorError(f"an answer of {tokens} tokens; the least is 1")
        logits, runs = self.prefill(prompt)
        text, stop = GeneratedText([int(logits.argmax())], runs, []), set(ends)
        while len(text.tokens) < tokens and text.tokens[-1] not in stop:
            progress(len(text.tokens) / tokens)
            logits, run = self.step(text.tokens[-1])
            text.tokens.append(int(logits.argmax()))
            text.steps.append(run)
        return text

    def program(self, tokens: int) -> DecoderProgram:
        """Return the program that reads this number of tokens. Raises as `streamed` and `place` do."""
        if self.rows is not None:
            return self._steps
        if tokens not in self._prompts:
            self._prompts[tokens] = self._program(tokens)
        return self._prompts[tokens]

    def _program(self, rows: int) -> DecoderProgram:
        name = "decoder" if self.rows is not None else "step" if rows == 1 else f"prompt_{rows}"
        arguments = {
            "input_ids": torch.zeros(1, rows, dtype=torch.long),
            "past_key_values": empty_cache(
                self._model.config, 1, self.capacity, self.capacity, integers=self._integers
            ),
            "logits_to_keep": torch.tensor([rows - 1]),
        }
        one = self.rows is not None
        block = streamed(self._model, arguments, DEFAULT, name=name, repeated=True, any_length=one, head=self.head)
        return DecoderProgram(self._place(block), arguments)

    def _known(self, tokens: Iterable[int]) -> list[int]:
        found = [index(token) for token in tokens]
        for token in found:
            if not 0 <= token < self.vocabulary:
                raise TensorError(f"token {token}; the vocabulary has {self.vocabulary}")
        return found


class DecoderProgram:
    """A machine of a language model with its memory, which reads a number of tokens in a run.

    made: the machine. arguments: of the model, by name: the example that the machine was made for. rows: how many
    tokens a run reads; for a machine of any length, how many at most. block, written: the operators and the text of its
    stream program. given: names of the tensors that the host computes for each run. carried: name of the one among them
    with the input rows of the first layer. result: name of the tensor with the output rows of the last layer, or with
    logits. chosen: name of the tensor with the number of the row whose logits are computed, "" if there is none.
    caches: name of the tensor of each cache, by the name of the operator that replaces its rows.
    """

    def __init__(self, made: Generated, arguments: dict[str, Any]) -> None:
        self.made, self._arguments = made, arguments
        self.rows: int = arguments["input_ids"].shape[1]
        self.block, self.written = made.streamed.block, made.streamed.written
        self._memory = TaskMemory(made.machine)
        self._memories: dict[int, TaskMemory] = {}
        replaced = {x.name for x in self.block.graph.kernels if x.op == "replace"}
        self.caches = {x: tensor for x, tensor in self.written.outputs.items() if x in replaced}
        self.given = [
            name
            for name, held in self.written.inputs.items()
            if name not in self.caches.values()
            and isinstance(held[0] if isinstance(held, tuple) else held, FromHost | Positions)
        ]
        repeated = self.block.repeated
        assert repeated is not None, "it was made of layers"
        data = next(x.data for x in self.block.graph.operators if x.name == repeated.carried)
        self.carried = next(name for name, held in self.written.inputs.items() if held is data)
        (self.result,) = (name for x, name in self.written.outputs.items() if x not in replaced)
        at = [x.positions for x in self.block.graph.kernels if x.op == "select"]
        inputs = self.written.inputs.items()
        self.chosen = next((name for name, held in inputs if isinstance(held, Positions) and held in at), "")
        for name, tensor in made.streamed.tensors(**arguments).items():
            self._memory.write(name, tensor)

    @property
    def is_sized(self) -> bool:
        """Whether each run gives the number of its tokens."""
        return self.made.streamed.lengths is not None

    def run(self, tokens: Sequence[int], position: int) -> tuple[torch.Tensor, Run]:
        """Run the machine on tokens at positions from `position` on. Returns the logits behind the last one, float32
        (vocabulary,), and the run. Raises `TensorError` for no tokens, for more than a run has, for unknown ones, for
        positions that the caches do not have, and if a weight of the model has changed."""
        at, values = self.host_values(tokens, position)
        if at.length not in self._memories:
            self._memories[at.length] = self._memory.with_sizes(at.sizes)
        memory = self._memories[at.length]
        for name in self.given:
            memory.write(name, self.made.streamed.tensor(name, at, values))
        run = memory.run()
        for node, shown in at.block.results.items():
            if shown.operator.name not in self.caches:
                tensor = self.written.outputs[shown.operator.name]
                values[node] = self.made.streamed.result(node, at, {tensor: memory.read(tensor)})
        assert at.block.repeated is not None
        run_on_host(at.block.repeated.behind, values)
        return values[logits_of(at.block)][0, -1], run

    def host_values(self, tokens: Sequence[int], position: int) -> tuple[BlockOfLength, Environment]:
        """Return what the host computes before a run: the block for this number of tokens, and the values of the nodes
        that the host computes, by node. position: of the first token in the sequence, from 0. Raises `TensorError` for
        no tokens, for more than a run has, and for unknown tokens."""
        for layer in self._arguments["past_key_values"].layers:
            for part in parts_of(layer):
                part.cumulative_length.fill_(position)
        arguments = self._arguments | {
            "input_ids": torch.tensor([tokens]),
            "logits_to_keep": torch.tensor([len(tokens) - 1]),
        }
        at = self.made.streamed.of_length((), arguments)
        return at, at.block.environment(at.block.interface.bind((), arguments))

    def read(self, name: str) -> Array:
        """Return a copy of a tensor of the machine's memory, by its name, in its own shape. Raises `KeyError` for an
        unknown one."""
        return self._memory.read(name)

    def read_caches(self) -> Caches:
        """Return the contents of all caches, so that another program of the same model can go on from them
        (`set_caches`)."""
        found = {}
        for x, tensor in self.caches.items():
            lying = self._memory.read(tensor).reshape(-1, *self.written.shape_of_one(tensor))
            found[x] = np.stack([self.written.elements(tensor, of_layer) for of_layer in lying])
        return found

    def set_caches(self, caches: Caches) -> None:
        """Replace the contents of all caches. caches: as `read_caches` of a program of the same model returns them."""
        for x, tensor in self.caches.items():
            lying = np.stack([self.written.laid_out(tensor, of_layer) for of_layer in caches[x]])
            self._memory.write(tensor, lying.reshape(self.written.shapes[tensor]))


def logits_of(block: OperatorBlock) -> Node:
    """Return the node of the logits in the result of a language model of transformers. block: of the model."""
    interface = block.interface
    node: Node = interface.result_structure.unflatten(list(interface.returned)).logits
    return node
