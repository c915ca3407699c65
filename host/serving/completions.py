"""Generated text over HTTP in the form of OpenAI's completions, whole or as server-sent events (docs/generation.md).

Needs starlette (the extra `serve`).
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
import uuid
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...base.errors import RsnError, TensorError
from ..generation.batching import Event, Generation, Stream
from ..generation.sampling import Sampling
from ..generation.text import TextPieces, Tokenizer
from ..tensors import LONGEST_SHOWN
from .core import LIMIT_BYTES, TIMEOUT_S, Core, StreamingResponse, json_answer, unless_gone
from .http_json import NotJson, NotTheForm, kind_of, parsed_json, quoted, value_of
from .policy import RequestTimeout

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

log = logging.getLogger("rsn.generation")

SEEDS = 1 << 64
"""How many seeds there are: a negative one counts from the end."""
MAX_STOPS = 4
"""The most stop strings of a request, as OpenAI has it."""
IGNORED = ("user",)
"""Fields that change nothing."""
ONLY: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "logprobs": (None,),
    "suffix": (None, ""),
    "logit_bias": (None, {}),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "stream_options": (None,),
}
"""Fields that this server does not support, each with the values that ask for nothing."""


class RequestError(RsnError, ValueError):
    """A request that is not of the form. field: the one at fault, "" for the whole."""

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(message)
        self.field = field


STATUS = ((NotJson, 400), (NotTheForm, 400), (RequestError, 400))
"""HTTP status codes by error, before those of `core.STATUS`."""


@dataclass(frozen=True)
class CompletionRequest:
    """A parsed request. prompt: a text, or tokens. stops: texts at which the answer ends. is_streamed: the answer is
    sent token by token."""

    prompt: str | tuple[int, ...]
    sampling: Sampling
    stops: tuple[str, ...]
    is_streamed: bool


LONGEST = 64
"""Characters of a token, at least, when the length of the longest prompt is estimated: a word that the tokenizer does
not know, or white space, may be one token, and longer than any of the vocabulary."""
LETTER_BYTES, OTHER_BYTES = 12, 1 << 16
"""The most bytes of a body: of a character in JSON (two escapes), and of all that is not the prompt."""


@dataclass(frozen=True)
class Completions:
    """The form of requests. name: of the model. ends: tokens that end a text. capacity: the most tokens of a sequence.
    longest: the most characters of a token."""

    name: str
    ends: frozenset[int]
    capacity: int
    longest: int = LONGEST

    @property
    def most_bytes(self) -> int:
        """More bytes than a body needs."""
        return self.capacity * self.longest * LETTER_BYTES + OTHER_BYTES

    def parsed(self, body: bytes) -> CompletionRequest:
        """Parse the body of a request. body: JSON in UTF-8. Raises `NotJson`, `NotTheForm`, and `RequestError`, also
        for a prompt that is too long."""
        fields = parsed_json(body)
        if not isinstance(fields, dict):
            raise RequestError(f"the body is {kind_of(fields)}, not an object")
        if fields.get("model") not in (None, self.name):
            raise RequestError(f"there is no model {value_of(fields['model'])}; this server has {self.name!r}", "model")
        known = {"model", "prompt", "max_tokens", "temperature", "top_p", "top_k", "stop", "stream", "seed"}
        for field, value in fields.items():
            if field in ONLY and not any(_same(value, only) for only in (None, *ONLY[field])):
                raise RequestError(f"{field} is {value_of(value)}, which this server does not support", field)
            if field not in known and field not in ONLY and field not in IGNORED:
                raise RequestError(f"unknown field {quoted(field)}", field)
        stops = _stops(fields.get("stop"))
        seed = _number(fields, "seed", None, whole=True)
        try:
            sampling = Sampling(
                max_tokens=_number(fields, "max_tokens", 16, whole=True),
                temperature=_number(fields, "temperature", 1.0),
                top_k=_number(fields, "top_k", 0, whole=True),
                top_p=_number(fields, "top_p", 1.0),
                seed=None if seed is None else seed % SEEDS,
                stop_tokens=self.ends,
            )
        except TensorError as e:
            raise RequestError(str(e), str(e).partition(" ")[0]) from None
        streamed = fields.get("stream")
        if streamed is not None and type(streamed) is not bool:
            raise RequestError(f"stream is {value_of(streamed)}; it should be true or false", "stream")
        return CompletionRequest(self._prompt(fields.get("prompt")), sampling, stops, bool(streamed))

    def _prompt(self, prompt: Any) -> str | tuple[int, ...]:
        if isinstance(prompt, str):
            if len(prompt) > self.capacity * self.longest:
                raise RequestError(
                    f"the prompt has {len(prompt)} characters; a sequence has at most {self.capacity} tokens, of at "
                    f"most {self.longest} characters",
                    "prompt",
                )
            try:
                prompt.encode()
            except UnicodeEncodeError:
                raise RequestError("prompt has half of a character (a surrogate)", "prompt") from None
            return prompt
        if isinstance(prompt, list) and prompt and all(type(x) is int for x in prompt):
            if len(prompt) > self.capacity:
                raise RequestError(
                    f"the prompt has {len(prompt)} tokens; a sequence has at most {self.capacity}", "prompt"
                )
            return tuple(prompt)
        what = "missing" if prompt is None else value_of(prompt)
        raise RequestError(f"prompt is {what}; it should be a string, or a list of tokens that is not empty", "prompt")


def _same(value: Any, other: Any) -> bool:
    """Whether two values of JSON are the same; true is not 1, but 0.0 is 0."""
    return isinstance(value, bool) == isinstance(other, bool) and bool(value == other)


def _number(fields: Mapping[str, Any], field: str, default: Any, *, whole: bool = False) -> Any:
    value = fields.get(field)
    if value is None:
        return default
    if type(value) is not int and (whole or type(value) is not float):
        raise RequestError(f"{field} is {value_of(value)}; it should be a {'whole ' * whole}number", field)
    return value


def _stops(value: Any) -> tuple[str, ...]:
    stops = (value,) if isinstance(value, str) else () if value is None else value
    if not isinstance(stops, list | tuple) or not all(isinstance(x, str) and x for x in stops):
        raise RequestError(f"stop is {value_of(value)}; it should be a string or several", "stop")
    if len(stops) > MAX_STOPS:
        raise RequestError(f"stop has {len(stops)} strings; there may be {MAX_STOPS}", "stop")
    return tuple(stops)


def _tokens(prompt: str, tokenizer: Tokenizer) -> tuple[int, ...]:
    found = tokenizer(prompt)["input_ids"]
    if not found:
        raise RequestError("the prompt has no tokens", "prompt")
    return tuple(found)


def application(
    generation: Generation,
    tokenizer: Tokenizer,
    name: str,
    *,
    ends: Iterable[int] = (),
    registry: CollectorRegistry | None = None,
    timeout_s: float = TIMEOUT_S,
    limit_bytes: int = LIMIT_BYTES,
    keys: Collection[str] = (),
) -> Any:
    """Return the ASGI application that answers completions. It does not close `generation`.

    name: of the model, as requests say it. ends: tokens that end a text, beside the tokenizer's. registry: the
    Prometheus registry that /metrics shows; without one there is no such path. timeout_s: the most seconds for a body
    to arrive, and for each token to come. limit_bytes: the most bytes of a body; less if
    the longest prompt needs less. keys: as for `http.application`.
    """
    own = tokenizer.eos_token_id
    vocabulary: Iterable[str] = getattr(tokenizer, "get_vocab", list)()
    form = Completions(
        name,
        frozenset(ends) | (set() if own is None else {own}),
        generation.capacity,
        max([LONGEST, *map(len, vocabulary)]),
    )
    core = Core(
        form.parsed, lambda: generation.health, _error, STATUS,
        registry=registry, timeout_s=timeout_s, limit_bytes=min(limit_bytes, form.most_bytes),
        keys=keys,
    )  # fmt: skip
    service = _CompletionService(generation, tokenizer, name, core)
    return core.application(
        {"/v1/completions": ("POST", service.complete), "/v1/models": ("GET", service.models)},
        "unknown path; POST /v1/completions generates text",
    )


class _CompletionService:
    """Answers the requests for one generation."""

    def __init__(self, generation: Generation, tokenizer: Tokenizer, name: str, core: Core[CompletionRequest]) -> None:
        self._generation, self._tokenizer, self._name, self._core = generation, tokenizer, name, core
        self._since = int(time.time())

    async def models(self, request: Any) -> Any:
        """The one model."""
        model = {"id": self._name, "object": "model", "created": self._since, "owned_by": "rsn"}
        return json_answer({"object": "list", "data": [model]})

    async def complete(self, request: Any) -> Any:
        """Answer a request, whole or token by token."""
        asked = await self._core.request(request)
        tokens = asked.prompt
        if isinstance(tokens, str):
            tokens = await self._core.in_thread(_tokens, tokens, self._tokenizer)
        events: asyncio.Queue[Event] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def heard(event: Event) -> None:
            if not loop.is_closed():  # as when the server has stopped
                loop.call_soon_threadsafe(events.put_nowait, event)

        try:
            stream = self._generation.submit(tokens, asked.sampling, heard=heard)
        except TensorError as e:
            raise RequestError(str(e), "prompt") from None
        pieces = TextPieces(self._tokenizer, asked.stops, tokens)
        facts = {"id": f"cmpl-{uuid.uuid4().hex}", "object": "text_completion", "created": int(time.time())}
        answer = _Answer(facts | {"model": self._name}, len(tokens), pieces, stream, events, self._core)
        if asked.is_streamed:
            return StreamingResponse(
                answer.chunks(), media_type="text/event-stream", headers={"cache-control": "no-store"}
            )
        return json_answer(await unless_gone(request, answer.whole()))


@dataclass(eq=False)
class _Answer:
    """One answer: the events of its stream as text. facts: with which each piece of it begins. prompt: tokens of it.
    tokens: so far."""

    facts: dict[str, Any]
    prompt: int
    pieces: TextPieces
    stream: Stream
    events: asyncio.Queue[Event]
    core: Core[CompletionRequest]
    tokens: int = 0

    async def texts(self) -> AsyncIterator[tuple[str, str | None]]:
        """Pieces of text, and with the last one why the text ends. Raises the error of the run, `RequestTimeout` if a
        token does not come, and `Stopping`. Whoever stops listening cancels the request."""
        seconds, outcome = self.core.timeout_s, "cancelled"
        try:
            while True:
                async with self.core.within(seconds, f"no token came in {seconds:g} s"):
                    event = await self.events.get()
                if event.error is not None:
                    raise event.error
                if event.token is None:
                    yield self.pieces.rest(), event.reason
                    return
                self.tokens += 1
                piece = self.pieces.add(event.token)
                if self.pieces.is_stopped:
                    outcome = "ok"
                    yield piece, "stop"
                    return
                if piece:
                    yield piece, None
        except RequestTimeout:
            outcome = "timeout"
            raise
        finally:
            self.stream.cancel(outcome)

    def _choice(self, text: str, reason: str | None) -> dict[str, Any]:
        return {**self.facts, "choices": [{"text": text, "index": 0, "logprobs": None, "finish_reason": reason}]}

    async def chunks(self) -> AsyncIterator[str]:
        """The answer as server-sent events."""
        try:
            async for text, reason in self.texts():
                yield f"data: {json.dumps(self._choice(text, reason))}\n\n"
        except Exception as e:
            told = str(e) if isinstance(e, RsnError) else "internal error"
            if not isinstance(e, RsnError):
                log.exception("a request failed")
            yield f"data: {json.dumps(_described(told, type(e).__name__))}\n\n"
            return
        yield "data: [DONE]\n\n"

    async def whole(self) -> dict[str, Any]:
        """The answer in one piece."""
        text, reason = "", None
        async for piece, reason in self.texts():  # noqa: B007 - the last one counts
            text += piece
        usage = {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.tokens,
            "total_tokens": self.prompt + self.tokens,
        }
        return self._choice(text, reason) | {"usage": usage}


def _described(message: str, code: str | None = None, field: str = "") -> dict[str, Any]:
    kind = "invalid_request_error" if code is None else "server_error"
    return {"error": {"message": message, "type": kind, "param": field[:LONGEST_SHOWN] or None, "code": code}}


def _error(status: int, message: str, field: str) -> dict[str, Any]:
    if status == 401:
        return {"error": _described(message)["error"] | {"code": "invalid_api_key"}}
    return _described(message, None if status < 500 else "unavailable" if status == 503 else "internal", field)
