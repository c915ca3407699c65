"""The sentence encoder of the demo as a server of text: JSON with sentences in, one vector for each out.

    {"sentences": ["The cat sits on the mat."]}  ->  {"embeddings": [[0.13, ...]]}

The tokenizer runs here; the server behind it takes token ids.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from ..base.errors import BoardError, TensorError
from ..compiler import compile as rsn_compile
from ..host.serving import Health
from ..host.serving.arguments import Argument
from ..host.serving.http import HttpModel
from ..host.serving.http_json import NotTheForm, Question, kind_of, read_fields, value_of, write_json
from ..host.serving.token_lists import padded
from ..rsnlib.shapes import Batch, Length

MAX = 256
"""The most sentences of a request."""
LIMIT_BYTES = 1 << 20
"""The most bytes of a body: enough for `MAX` sentences; tokenizers are slow with longer texts."""
FORM = f'{{"sentences": ["...", ...], "timeout_s": SECONDS}} with 1 to {MAX} strings; timeout_s may be left out'
"""The format of a body, for messages."""


class SentenceTokenizer(Protocol):
    """A tokenizer of transformers."""

    def __call__(self, sentence: str) -> Mapping[str, Any]:
        """Return a mapping whose "input_ids" is a list of token ids."""


def save(model: torch.nn.Module, path: Path, batches: Sequence[int] = (1, 8), length: int = 128) -> None:
    """Compile a model of token ids and their mask, and save it to a file (`.rsnmodel`).

    model: takes `input_ids` and `attention_mask`, both int64 (sentences, tokens). batches: numbers of sentences, from 1
    on, with a program for each; fewer sentences are padded. length: the tokens of a sentence in all programs, 1 or
    more; shorter sentences are padded. Raises what `rsn.compile` raises, and `UnsupportedError` if the model cannot be
    saved.
    """
    mask = torch.ones(max(batches), length, dtype=torch.long)
    example = {"input_ids": 2 * mask, "attention_mask": mask}  # ids of 0 and 1 would be taken for a mask
    sizes = {0: Batch(*batches), 1: Length(length)}
    rsn_compile(model, example, dynamic_shapes=dict.fromkeys(example, sizes)).save(path)


class SentenceForm:
    """The body format for `rsn.host.serving.http.application`. Sentences in, embeddings out."""

    def read(self, body: bytes) -> Question:
        """Parse a request's body, JSON in UTF-8. Raises `NotJson`, and `NotTheForm` naming what is wrong, such as the
        sentence that is not a string."""
        sentences, timeout = read_fields(body, "sentences", FORM)
        if type(sentences) is not list:
            raise NotTheForm(f'"sentences" is {kind_of(sentences)}; the body should be {FORM}')
        if not 1 <= len(sentences) <= MAX:
            raise NotTheForm(f"the request has {len(sentences)} sentences; it may have 1 to {MAX}")
        for i, sentence in enumerate(sentences):
            if type(sentence) is not str:
                raise NotTheForm(f"sentences[{i}] is {value_of(sentence)}; it should be a string")
            if any("\ud800" <= letter <= "\udfff" for letter in sentence):
                raise NotTheForm(f"sentences[{i}] is not valid text: it has half of a surrogate pair")
        return Question({"sentences": sentences}, timeout)

    def write(self, result: Any) -> bytes:
        """Return the embeddings, (sentences, columns), as JSON. Raises as `write_json`."""
        return write_json({"embeddings": result})


class Sentences:
    """A server of sentences in front of a server of token ids, which must take `input_ids` and `attention_mask` of
    several sizes and return a vector for each sentence. Closing it closes the other."""

    def __init__(self, server: HttpModel, tokenizer: SentenceTokenizer) -> None:
        self._server, self._tokenizer = server, tokenizer
        self._turn = threading.Lock()  # tokenizers are not thread-safe
        self._most, self._longest = max(server.sizes["batch"]), max(server.sizes["length"])

    @property
    def name(self) -> str:
        """The name of the model behind it."""
        return self._server.name

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """What a call takes: `sentences`, a list of strings."""
        return (Argument("sentences", "str", ("batch",)),)

    @property
    def sizes(self) -> Mapping[str, tuple[int, ...]]:
        """The most sentences of a request ("batch"), and the numbers of tokens that there are programs for
        ("length")."""
        return {"batch": (MAX,), "length": self._server.sizes["length"]}

    @property
    def health(self) -> Health:
        """The health of the server of token ids."""
        return self._server.health

    def ask(self, inputs: Mapping[str, Any], *, timeout: float | None = None, wait: float | None = None) -> Future[Any]:
        """Queue sentences, and return the future of their vectors, float32 (sentences, columns).

        inputs: "sentences", a list of at least one string. timeout, wait: as for the other server. A request with more
        sentences than a run takes becomes several; if one of them fails, all are cancelled. Raises `TensorError` for no
        sentences, for one with more tokens than the model takes, and what the other server raises.
        """
        sentences = inputs["sentences"]
        if isinstance(sentences, str) or not sentences:
            raise TensorError(f"sentences is {sentences!r:.40}; it should be a list of at least one string")
        ids = [self._tokens(i, sentence) for i, sentence in enumerate(sentences)]
        parts: list[Future[Any]] = []
        try:
            for at in range(0, len(ids), self._most):
                given = padded(ids[at : at + self._most])
                parts.append(self._server.ask(given, timeout=timeout, wait=wait))
        except BaseException:
            for future in parts:
                future.cancel()
            raise
        return joined(parts, lambda results: np.concatenate([np.asarray(y, np.float32) for y in results]))

    def _tokens(self, i: int, sentence: str) -> list[int]:
        with self._turn:
            ids: list[int] = list(self._tokenizer(sentence)["input_ids"])
        if len(ids) > self._longest:
            raise TensorError(f"sentences[{i}] has {len(ids)} tokens; this model takes up to {self._longest}")
        return ids

    def close(self) -> None:
        """Close the server of token ids."""
        self._server.close()


def joined(parts: Sequence[Future[Any]], join: Callable[[list[Any]], Any]) -> Future[Any]:
    """Return one future for several. Its result is `join` of all their results, or the first error, which cancels the
    others; cancelling it cancels all. parts: at least one."""
    whole: Future[Any] = Future()
    lock, left, over = threading.Lock(), len(parts), False

    def cancel() -> None:
        for part in parts:
            part.cancel()

    def ended(part: Future[Any]) -> None:
        nonlocal left, over
        error = BoardError("the server was closed") if part.cancelled() else part.exception()
        with lock:
            left -= 1
            if over or (error is None and left):
                return
            over = True
        if not whole.set_running_or_notify_cancel():
            return
        if error is None:
            try:
                whole.set_result(join([part.result() for part in parts]))
            except BaseException as e:
                whole.set_exception(e)
        else:
            cancel()
            whole.set_exception(error)

    whole.add_done_callback(lambda whole: cancel() if whole.cancelled() else None)
    for part in parts:
        part.add_done_callback(ended)
    return whole
