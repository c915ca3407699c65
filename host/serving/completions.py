"""Generated text over HTTP in the form of OpenAI's completions and chats, whole or as server-sent events
(docs/openai.md).

Needs starlette (the extra `serve`).
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
import uuid
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from ...base.errors import RsnError, TensorError
from ..generation.batching import Event, Stream
from ..generation.sampling import Sampling, TokenScores
from ..generation.text import UNFINISHED, TextPieces, Tokenizer
from .core import LIMIT_BYTES, TIMEOUT_S, Core, StreamingResponse, json_answer, unless_gone
from .fields import RequestError
from .health import Health
from .http_json import parsed_json
from .openai import STATUS, described, error, models
from .policy import RequestTimeout
from .text_forms import LONGEST, TextForms, TextRequest

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

log = logging.getLogger("rsn.generation")

LEAST_LOGPROB = -9999.0
"""What stands for the logarithm of a probability of 0, which JSON does not have."""


def application(
    generation: TextGenerator,
    tokenizer: Tokenizer,
    name: str,
    *,
    ends: Iterable[int] = (),
    registry: CollectorRegistry | None = None,
    timeout_s: float = TIMEOUT_S,
    limit_bytes: int = LIMIT_BYTES,
    keys: Collection[str] = (),
    replicas: Callable[[], Any] | None = None,
) -> Any:
    """Return the ASGI application that answers completions and chats. It does not close `generation`.

    name: of the model, as requests say it. ends: tokens that end a text, beside the tokenizer's. registry: the
    Prometheus registry that /metrics shows; without one there is no such path. timeout_s: the most seconds for a body
    to arrive, and for each token to come. limit_bytes: the most bytes of a body; less if
    the longest prompts need less. keys, replicas: as for `http.application`.
    """
    own = tokenizer.eos_token_id
    vocabulary: Iterable[str] = getattr(tokenizer, "get_vocab", list)()
    forms = TextForms(
        name,
        frozenset(ends) | (set() if own is None else {own}),
        generation.capacity,
        generation.vocabulary,
        max([LONGEST, *map(len, vocabulary)]),
    )
    core: Core[Any] = Core(
        parsed_json, lambda: generation.health, error, STATUS,
        registry=registry, timeout_s=timeout_s, limit_bytes=min(limit_bytes, forms.most_bytes),
        keys=keys, replicas=replicas,
    )  # fmt: skip
    service = _GenerationService(generation, tokenizer, forms, core)
    return core.application(
        {
            "/v1/completions": ("POST", service.complete),
            "/v1/chat/completions": ("POST", service.chat),
            **models(name),
        },
        "unknown path; POST /v1/completions and /v1/chat/completions generate text",
    )


class TextGenerator(Protocol):
    """Generates texts for many callers, as a `Generation`."""

    @property
    def capacity(self) -> int:
        """The most tokens of a sequence, its prompt included."""

    @property
    def vocabulary(self) -> int:
        """The number of tokens that there are."""

    @property
    def health(self) -> Health:
        """Whether requests are being answered, and the board's latest error."""

    def submit(
        self,
        tokens: Sequence[int],
        sampling: Sampling | None = None,
        *,
        heard: Callable[[Event], None] | None = None,
    ) -> Stream:
        """As `Generation.submit`."""


class _GenerationService:
    """Answers the requests for one generation."""

    def __init__(self, generation: TextGenerator, tokenizer: Tokenizer, forms: TextForms, core: Core[Any]) -> None:
        self._generation, self._tokenizer, self._forms, self._core = generation, tokenizer, forms, core

    async def complete(self, request: Any) -> Any:
        """Answer /v1/completions."""
        return await self._answered(request, self._forms.completion, _Completion)

    async def chat(self, request: Any) -> Any:
        """Answer /v1/chat/completions."""
        return await self._answered(request, self._forms.chat, _Chat)

    async def _answered(
        self, request: Any, read: Callable[[Any, Any], TextRequest], shape: Callable[[Tokenizer], _Shape]
    ) -> Any:
        """Answer a request, whole or piece by piece. read: its form. shape: of the answer."""
        asked = await self._core.in_thread(read, await self._core.request(request), self._tokenizer)
        made = shape(self._tokenizer)
        answer = _Answer(asked, made, self._forms.name, self._core)
        answer.begin(self._generation, self._tokenizer)
        if asked.is_streamed:
            return StreamingResponse(
                answer.chunks(), media_type="text/event-stream", headers={"cache-control": "no-store"}
            )
        return json_answer(await unless_gone(request, answer.whole()))


@dataclass(eq=False)
class _Choice:
    """One of the texts of an answer. shown: with which its text begins. tokens: so far. scores: of tokens that have not
    been sent, each with where it stands in the text."""

    index: int
    stream: Stream
    pieces: TextPieces
    shown: str
    tokens: int = 0
    is_done: bool = False
    has_begun: bool = False
    """Whether an event of it was sent."""
    scores: list[tuple[int, int, TokenScores]] = field(default_factory=list)


class _Shape:
    """How an answer is written. tokenizer: gives the text of single tokens."""

    prefix, kind, kind_of_chunk = "", "", ""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def text(self, token: int) -> str:
        """The text of one token."""
        return self._tokenizer.decode([token], skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def logprobs(self, scores: Sequence[tuple[int, int, TokenScores]]) -> Any:
        """The scores of tokens. scores: tokens, where they stand, and what the model gave them."""
        raise NotImplementedError

    def whole(self, text: str) -> dict[str, Any]:
        """The text of a choice that is complete."""
        raise NotImplementedError

    def piece(self, text: str, is_first: bool) -> dict[str, Any]:
        """A piece of the text of a choice. is_first: it is the first one."""
        raise NotImplementedError


class _Completion(_Shape):
    prefix, kind, kind_of_chunk = "cmpl", "text_completion", "text_completion"

    def logprobs(self, scores: Sequence[tuple[int, int, TokenScores]]) -> Any:
        return {
            "tokens": [self.text(token) for token, _, _ in scores],
            "token_logprobs": [_logprob(x.logprob) for _, _, x in scores],
            "top_logprobs": [{self.text(t): _logprob(y) for t, y in reversed(x.top)} for _, _, x in scores],
            "text_offset": [at for _, at, _ in scores],
        }

    def whole(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def piece(self, text: str, is_first: bool) -> dict[str, Any]:
        return {"text": text}


class _Chat(_Shape):
    prefix, kind, kind_of_chunk = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def logprobs(self, scores: Sequence[tuple[int, int, TokenScores]]) -> Any:
        made = [
            self._token(token, x.logprob) | {"top_logprobs": [self._token(t, y) for t, y in x.top]}
            for token, _, x in scores
        ]
        return {"content": made, "refusal": None}

    def _token(self, token: int, logprob: float) -> dict[str, Any]:
        text = self.text(token)
        known = None if UNFINISHED in text else list(text.encode())
        return {"token": text, "logprob": _logprob(logprob), "bytes": known}

    def whole(self, text: str) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text, "refusal": None}}

    def piece(self, text: str, is_first: bool) -> dict[str, Any]:
        role = {"role": "assistant"} if is_first else {}
        return {"delta": role | ({"content": text} if text or is_first else {})}


def _logprob(value: float) -> float:
    return max(value, LEAST_LOGPROB)


class _Answer:
    """One answer: the events of its streams as texts."""

    def __init__(self, asked: TextRequest, shape: _Shape, model: str, core: Core[Any]) -> None:
        self._asked, self._shape, self._core = asked, shape, core
        self._facts = {"id": f"{shape.prefix}-{uuid.uuid4().hex}", "object": shape.kind, "created": int(time.time())}
        self._facts |= {"model": model}
        self._events: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()
        self._choices: list[_Choice] = []

    def begin(self, generation: TextGenerator, tokenizer: Tokenizer) -> None:
        """Queue all texts, or none. Raises what `Generation.submit` raises."""
        loop = asyncio.get_running_loop()

        def hearing(index: int) -> Callable[[Event], None]:
            def heard(event: Event) -> None:
                if not loop.is_closed():  # as when the server has stopped
                    loop.call_soon_threadsafe(self._events.put_nowait, (index, event))

            return heard

        try:
            for prompt in self._asked.prompts:
                for sampling in self._asked.samplings:
                    index = len(self._choices)
                    stream = generation.submit(prompt.tokens, sampling, heard=hearing(index))
                    pieces = TextPieces(tokenizer, self._asked.stops, prompt.tokens)
                    self._choices.append(_Choice(index, stream, pieces, prompt.shown))
        except BaseException as e:
            for choice in self._choices:
                choice.stream.cancel()
            if isinstance(e, TensorError):
                raise RequestError(str(e)) from None
            raise

    async def _texts(self) -> AsyncIterator[tuple[_Choice, str, str | None]]:
        """Pieces of text, and with the last one of a choice why it ends. Raises the error of a run, `RequestTimeout` if
        no token comes, and `Stopping`. Whoever stops listening cancels the request."""
        seconds, outcome = self._core.timeout_s, "cancelled"
        left = len(self._choices)
        try:
            while left:
                async with self._core.within(seconds, f"no token came in {seconds:g} s"):
                    index, event = await self._events.get()
                choice = self._choices[index]
                if choice.is_done:
                    continue
                if event.error is not None:
                    raise event.error
                found = self._piece(choice, event)
                left -= choice.is_done
                if found is not None:
                    yield found
        except RequestTimeout:
            outcome = "timeout"
            raise
        finally:
            for choice in self._choices:
                choice.stream.cancel(outcome)

    def _piece(self, choice: _Choice, event: Event) -> tuple[_Choice, str, str | None] | None:
        """What an event adds to a choice; None for nothing that can be sent yet."""
        if event.token is None:
            choice.is_done = True
            return choice, choice.pieces.rest(), event.reason
        choice.tokens += 1
        if event.scores is not None:
            choice.scores.append((event.token, len(choice.shown) + choice.pieces.length, event.scores))
        piece = choice.pieces.add(event.token)
        if choice.pieces.is_stopped:
            choice.is_done = True
            choice.stream.cancel("ok")
            return choice, piece, "stop"
        return (choice, piece, None) if piece else None

    def _choice(self, choice: _Choice, text: dict[str, Any], reason: str | None) -> dict[str, Any]:
        """A choice as it is written, with the scores that have not been sent."""
        scores = None
        if self._asked.samplings[0].logprobs is not None:
            scores, choice.scores = self._shape.logprobs(choice.scores), []
        return {**text, "index": choice.index, "logprobs": scores, "finish_reason": reason}

    @property
    def _usage(self) -> dict[str, int]:
        prompt = sum(len(prompt.tokens) for prompt in self._asked.prompts)
        made = sum(choice.tokens for choice in self._choices)
        return {"prompt_tokens": prompt, "completion_tokens": made, "total_tokens": prompt + made}

    async def chunks(self) -> AsyncIterator[str]:
        """The answer as server-sent events."""
        facts = self._facts | {"object": self._shape.kind_of_chunk}
        usage: dict[str, Any] = {"usage": None} if self._asked.has_usage else {}
        try:
            async for choice, text, reason in self._texts():
                shown = text if choice.has_begun else choice.shown + text
                piece = self._shape.piece(shown, not choice.has_begun)
                choice.has_begun = True
                yield _event({**facts, "choices": [self._choice(choice, piece, reason)], **usage})
        except Exception as e:
            told = str(e) if isinstance(e, RsnError) else "internal error"
            if not isinstance(e, RsnError):
                log.exception("a request failed")
            yield _event(described(told, type(e).__name__))
            return
        if self._asked.has_usage:
            yield _event({**facts, "choices": [], "usage": self._usage})
        yield "data: [DONE]\n\n"

    async def whole(self) -> dict[str, Any]:
        """The answer in one piece."""
        texts = [choice.shown for choice in self._choices]
        reasons: list[str | None] = [None] * len(texts)
        async for choice, piece, reason in self._texts():
            texts[choice.index] += piece
            reasons[choice.index] = reason
        choices = [self._choice(x, self._shape.whole(texts[x.index]), reasons[x.index]) for x in self._choices]
        return {**self._facts, "choices": choices, "usage": self._usage}


def _event(value: Any) -> str:
    return f"data: {json.dumps(value)}\n\n"
