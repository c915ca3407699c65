"""Sentence encoders and classifiers over HTTP: texts in, vectors or scores out, as OpenAI and text-embeddings-inference
have it (docs/openai.md).

Needs starlette (the extra `serve`).
"""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..text_settings import TextSettings
from .call_times import elements
from .core import LIMIT_BYTES, TIMEOUT_S, Core, Response, unless_gone
from .fields import ANYTHING, FLAG, MODEL, TEXT, USER, RequestError, RequestField, model_named, one_of, parsed, whole
from .http import HttpModel
from .http_json import parsed_json, quoted, value_of, write_json
from .openai import STATUS, error, models
from .policy import QueueFull
from .token_lists import padded, runs

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

Array = npt.NDArray[np.float32]

MAX_TEXTS = 2048
"""The most texts of a request, as OpenAI has it."""
LONGEST = 64
"""Characters of a token, at least, when the longest text is estimated (`completions.LONGEST`)."""
AHEAD = 4
"""Runs of a request that wait at one time, so that a request of many texts does not fill the queue."""
AGAIN_S = 0.02
"""Seconds until a run of a request that has begun is tried again, while the queue is full."""

EMBEDDINGS = (
    RequestField("input", ANYTHING, None, f"a string, a list of tokens, or up to {MAX_TEXTS} of either in a list"),
    MODEL,
    RequestField(
        "dimensions",
        whole(1),
        None,
        "keep this many columns, from the first on; vectors of length 1 are scaled to length 1 again",
    ),
    RequestField("encoding_format", one_of("float", "base64"), "float", "`base64`: of float32, little-endian"),
    USER,
)
RAW = RequestField("raw_scores", FLAG, False, "the logits, not probabilities")
TRUNCATE = RequestField("truncate", FLAG, False, "cut what is too long; otherwise it is an error")
TRUNCATION = RequestField("truncation_direction", one_of("Right", "right"), "Right", "where texts are cut")
RERANK = (
    RequestField("query", TEXT, None, "the text that the others are compared with"),
    RequestField("texts", ANYTHING, None, f"a list of 1 to {MAX_TEXTS} strings"),
    RequestField(
        "documents",
        ANYTHING,
        None,
        'the same in the form of Jina and Cohere: strings, or objects with "text"; the answer is in their form too',
    ),
    RequestField("top_n", whole(1), None, "answer with this many of the best `documents`"),
    RequestField("return_documents", FLAG, False, "results have their `documents`"),
    RAW,
    RequestField("return_text", FLAG, False, "answers have their `texts`"),
    TRUNCATE,
    TRUNCATION,
    MODEL,
)
OF_TEXTS = {"texts": ("return_text",), "documents": ("top_n", "return_documents")}
"""By the field with the texts of `RERANK`, the fields that go with it alone."""
CLASSIFY = (
    RequestField("inputs", ANYTHING, None, f"a string, or a list of up to {MAX_TEXTS} strings or pairs of strings"),
    RAW,
    TRUNCATE,
    TRUNCATION,
    MODEL,
)

Text = str | list[int] | list[str]
"""A text, its tokens, or a pair of texts."""


@dataclass(frozen=True)
class Asked:
    """Texts as tokens. ids: the tokens of each text. types: for each token, which part of a pair it belongs to, 0 or 1;
    None for a model that does not take them. fields: of the request, by name. texts: as the request gave them."""

    ids: list[list[int]]
    types: list[list[int]] | None
    fields: Mapping[str, Any]
    texts: Sequence[Text]


def application(
    server: HttpModel,
    settings: TextSettings,
    tokenizer: Any,
    *,
    registry: CollectorRegistry | None = None,
    timeout_s: float = TIMEOUT_S,
    limit_bytes: int = LIMIT_BYTES,
    keys: Collection[str] = (),
    replicas: Callable[[], Any] | None = None,
) -> Any:
    """Return the ASGI application of a model of texts. It does not close `server`.

    settings: of the model. tokenizer: of transformers. registry, timeout_s, limit_bytes, keys, replicas: as for
    `http.application`.
    """
    core: Core[Any] = Core(
        parsed_json, lambda: server.health, error, STATUS,
        registry=registry, timeout_s=timeout_s, limit_bytes=limit_bytes, keys=keys, replicas=replicas,
    )  # fmt: skip
    service = _TextService(server, settings, tokenizer, core)
    if not settings.labels:
        paths, does = {"/v1/embeddings": service.embeddings}, "POST /v1/embeddings makes vectors of texts"
    else:
        paths = {"/v1/classify": service.classify, "/predict": service.classify}
        does = "POST /v1/classify classifies texts"
        if len(settings.labels) == 1:
            paths |= {"/v1/rerank": service.rerank, "/rerank": service.rerank}
            does = "POST /v1/rerank compares texts with a query"
    routes = {path: ("POST", answer) for path, answer in paths.items()}
    return core.application({**routes, **models(server.name)}, f"unknown path; {does}")


class _TextService:
    """Answers the requests for one model."""

    def __init__(self, server: HttpModel, settings: TextSettings, tokenizer: Any, core: Core[Any]) -> None:
        self._server, self._settings, self._tokenizer, self._core = server, settings, tokenizer, core
        self._most = max(server.sizes["batch"])
        self._longest = settings.longest
        self._letters = self._longest * max([LONGEST, *map(len, tokenizer.get_vocab())])
        self._turn = threading.Lock()  # tokenizers are not thread-safe

    # -- requests

    async def embeddings(self, request: Any) -> Any:
        """Answer /v1/embeddings."""
        return await self._answered(request, self._embedding_request, self._embedding_answer)

    async def rerank(self, request: Any) -> Any:
        """Answer /v1/rerank."""
        return await self._answered(request, self._rerank_request, self._rerank_answer)

    async def classify(self, request: Any) -> Any:
        """Answer /v1/classify."""
        return await self._answered(request, self._classify_request, self._classify_answer)

    async def _answered(
        self, request: Any, ask: Callable[[Any], Asked], answer: Callable[[Asked, Array], bytes]
    ) -> Any:
        """Read a request, run its texts, and write the answer. ask: parses and tokenizes; answer: writes. Both run in a
        thread, beside other requests."""
        asked = await self._core.in_thread(ask, await self._core.request(request))
        rows = await unless_gone(request, self._rows(asked))
        return Response(await self._core.in_thread(answer, asked, rows), media_type="application/json")

    def _embedding_request(self, body: Any) -> Asked:
        fields = parsed(EMBEDDINGS, body)
        model_named(self._server.name, fields)
        most = self._settings.columns
        if fields["dimensions"] is not None and fields["dimensions"] > most:
            raise RequestError(f"dimensions is {fields['dimensions']}; this model has {most}", "dimensions")
        value = fields["input"]
        is_one = isinstance(value, str) or (isinstance(value, list) and value and type(value[0]) is int)
        texts = self._list([value] if is_one else value, "input", "" if is_one else "[{}]", self._text_or_tokens)
        prompt = self._settings.prompt
        return self._tokenized([prompt + x if isinstance(x, str) else x for x in texts], "input", fields)

    def _rerank_request(self, body: Any) -> Asked:
        fields = parsed(RERANK, body)
        model_named(self._server.name, fields)
        query = self._text(fields["query"], "query", "query")
        own, other = ("texts", "documents") if fields["documents"] is None else ("documents", "texts")
        for name in (other, *OF_TEXTS[other]):
            if fields[name]:
                raise RequestError(f"{name}: not with {own}", name)
        texts = self._list(fields[own], own, "[{}]", self._text if own == "texts" else self._document)
        return self._tokenized([[query, text] for text in texts], own, fields)

    def _classify_request(self, body: Any) -> Asked:
        fields = parsed(CLASSIFY, body)
        model_named(self._server.name, fields)
        value = fields["inputs"]
        is_one = isinstance(value, str)
        texts = self._list([value] if is_one else value, "inputs", "" if is_one else "[{}]", self._text_or_pair)
        return self._tokenized(texts, "inputs", fields)

    def _list(self, value: Any, field: str, place: str, read: Callable[[Any, str, str], Any]) -> list[Any]:
        """Check a list of texts. place: how messages number them. read: checks one; takes the value, its place and the
        field."""
        if not isinstance(value, list) or not 1 <= len(value) <= MAX_TEXTS:
            what = "missing" if value is None else value_of(value)
            raise RequestError(f"{field} is {what}; there may be 1 to {MAX_TEXTS} texts", field)
        return [read(x, f"{field}{place.format(i)}", field) for i, x in enumerate(value)]

    def _text(self, value: Any, place: str, field: str) -> str:
        if not isinstance(value, str):
            raise RequestError(f"{place} is {'missing' if value is None else value_of(value)}, not a string", field)
        if len(value) > self._letters:
            raise RequestError(f"{place} has {len(value)} characters; this model takes {self._longest} tokens", field)
        if any("\ud800" <= letter <= "\udfff" for letter in value):
            raise RequestError(f"{place} has half of a character (a surrogate)", field)
        return value

    def _document(self, value: Any, place: str, field: str) -> str:
        if not isinstance(value, dict):
            return self._text(value, place, field)
        for unknown in sorted(value.keys() - {"text"}):
            raise RequestError(f"{place} has the unknown name {quoted(unknown)}; a document has a text", field)
        return self._text(value.get("text"), f"{place}.text", field)

    def _text_or_tokens(self, value: Any, place: str, field: str) -> str | list[int]:
        if not isinstance(value, list):
            return self._text(value, place, field)
        if not value or not all(type(x) is int for x in value):
            raise RequestError(f"{place} is {value_of(value)}; tokens are whole numbers, one at least", field)
        known = self._settings.vocabulary
        if not 0 <= min(value) <= max(value) < known:
            raise RequestError(f"{place} has a token that is not one of 0 to {known - 1}", field)
        return value

    def _text_or_pair(self, value: Any, place: str, field: str) -> str | list[str]:
        if not isinstance(value, list):
            return self._text(value, place, field)
        if len(value) != 2:
            raise RequestError(f"{place} is {value_of(value)}, not a text or a pair of texts", field)
        return [self._text(part, f"{place}[{i}]", field) for i, part in enumerate(value)]

    def _tokenized(self, texts: Sequence[Text], field: str, fields: Mapping[str, Any]) -> Asked:
        """Tokenize texts; takes long. field: where they stand in the request. Raises `RequestError` for one with too
        many tokens, or none."""
        cut = {"truncation": "longest_first", "max_length": self._longest} if fields.get("truncate") else {}
        ids, types = [], []
        for i, text in enumerate(texts):
            if isinstance(text, str) or isinstance(text[0], str):
                with self._turn:
                    made = self._tokenizer(*([text] if isinstance(text, str) else text), **cut)
                found, kinds = made["input_ids"], made.get("token_type_ids", [0] * len(made["input_ids"]))
            else:
                found, kinds = text, [0] * len(text)
            if not 1 <= len(found) <= self._longest:
                message = f"text {i} of {field} has {len(found)} tokens; this model takes 1 to {self._longest}"
                raise RequestError(message, field)
            ids.append(list(found))
            types.append(list(kinds))
        return Asked(ids, types if self._settings.has_types else None, fields, texts)

    # -- runs

    async def _rows(self, asked: Asked) -> Array:
        """Run texts. Returns a row for each, float32 (texts, columns)."""
        rows: dict[int, Array] = {}
        tasks: list[tuple[list[int], asyncio.Task[Array]]] = []

        async def take() -> None:
            numbers, task = tasks[0]
            rows.update(zip(numbers, await task, strict=True))
            del tasks[0]

        seconds = self._core.timeout_s
        try:
            async with self._core.within(seconds, f"no answer in {seconds:g} s"):
                for numbers in runs(list(map(len, asked.ids)), self._most):
                    if len(tasks) == AHEAD:
                        await take()
                    tasks.append(
                        (numbers, asyncio.create_task(self._run(asked, numbers, is_first=not (rows or tasks))))
                    )
                while tasks:
                    await take()
        finally:
            for _, task in tasks:
                task.cancel()
        return np.stack([rows[i] for i in range(len(asked.ids))])

    async def _run(self, asked: Asked, numbers: Sequence[int], *, is_first: bool) -> Array:
        """Run some texts of a request together. is_first: none of the request has run. Raises `QueueFull` then; later
        ones wait for a place."""
        types = None if asked.types is None else [asked.types[i] for i in numbers]
        inputs = padded([asked.ids[i] for i in numbers], types)
        ask, seconds = self._server.ask, self._core.timeout_s
        while True:
            try:
                rows = await self._core.asked(elements(inputs), ask, inputs, timeout=seconds, wait=0.0)
                return np.asarray(rows, np.float32)
            except QueueFull:
                if is_first:
                    raise
                await asyncio.sleep(AGAIN_S)

    # -- answers

    def _embedding_answer(self, asked: Asked, rows: Array) -> bytes:
        columns = asked.fields["dimensions"]
        if columns is not None:
            rows = rows[:, :columns]
            if self._settings.is_normalized:
                rows = rows / np.linalg.norm(rows, axis=1, keepdims=True).clip(1e-12)
        is_text = asked.fields["encoding_format"] == "base64"
        shown = [base64.b64encode(row.astype("<f4").tobytes()).decode() if is_text else row for row in rows]
        tokens = sum(map(len, asked.ids))
        return write_json(
            {
                "object": "list",
                "data": [{"object": "embedding", "index": i, "embedding": row} for i, row in enumerate(shown)],
                "model": self._server.name,
                "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
            }
        )

    def _scores(self, asked: Asked, logits: Array) -> npt.NDArray[np.float64]:
        """What the answer shows of logits, (texts, labels)."""
        wide = logits.astype(np.float64)
        if asked.fields["raw_scores"]:
            return wide
        if self._settings.activation == "sigmoid":
            return 0.5 * (1 + np.tanh(wide / 2))
        powers = np.exp(wide - wide.max(1, keepdims=True))
        made: npt.NDArray[np.float64] = powers / powers.sum(1, keepdims=True)
        return made

    def _rerank_answer(self, asked: Asked, rows: Array) -> bytes:
        scores = self._scores(asked, rows)[:, 0]
        fields, order = asked.fields, np.argsort(-scores, kind="stable").tolist()
        if fields["documents"] is None:
            named = [{"text": x} if fields["return_text"] else {} for x in fields["texts"]]
            return write_json([{"index": i, "score": float(scores[i]), **named[i]} for i in order])
        texts = [x["text"] if isinstance(x, dict) else x for x in fields["documents"]]
        shown = [{"document": {"text": x}} if fields["return_documents"] else {} for x in texts]
        return write_json(
            {
                "model": self._server.name,
                "results": [
                    {"index": i, "relevance_score": float(scores[i]), **shown[i]} for i in order[: fields["top_n"]]
                ],
                "usage": {"total_tokens": sum(map(len, asked.ids))},
            }
        )

    def _classify_answer(self, asked: Asked, rows: Array) -> bytes:
        labels, scores = self._settings.labels, self._scores(asked, rows)
        made = [
            [{"label": labels[k], "score": float(row[k])} for k in np.argsort(-row, kind="stable").tolist()]
            for row in scores
        ]
        return write_json(made[0] if isinstance(asked.fields["inputs"], str) else made)
