"""The requests for generated text, in OpenAI's form: completions and chats, as fields and as what is generated
(docs/openai.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...base.errors import TensorError
from ..generation.sampling import Sampling
from ..generation.text import Tokenizer
from .fields import (
    ANYTHING,
    BIASES,
    FLAG,
    MODEL,
    STOPS,
    USER,
    Kind,
    RequestError,
    RequestField,
    RequestFields,
    model_named,
    nothing,
    number,
    parsed,
    whole,
)  # fmt: skip
from .http_json import value_of

SEEDS = 1 << 64
"""How many seeds there are: a negative one counts from the end."""
MAX_CHOICES, MAX_PROMPTS = 128, 20
"""The most texts, and the most prompts, of a request."""
MAX_LOGPROBS = 20
"""The most tokens whose probabilities come with each token, as OpenAI has it."""
LONGEST = 64
"""Characters of a token, at least, when the length of the longest prompt is estimated: a word that the tokenizer does
not know, or white space, may be one token, and longer than any of the vocabulary."""
LETTER_BYTES, OTHER_BYTES = 12, 1 << 16
"""The most bytes of a body: of a character in JSON (two escapes), and of all that is not the prompt."""
ROLES = ("system", "developer", "user", "assistant")


def _stream_options(value: Any) -> bool | None:
    """Whether the last event has the usage."""
    right = isinstance(value, dict) and value.keys() <= {"include_usage"}
    usage = value.get("include_usage") if right else None
    return usage is True if right and (usage is None or type(usage) is bool) else None


SAMPLING = (
    MODEL,
    RequestField("temperature", number(0), 1.0, "0 always takes the most probable token"),
    RequestField("top_p", number(0, 1), 1.0, "only the most probable tokens that together have this probability"),
    RequestField("top_k", whole(0), 0, "take only this many of the most probable tokens; 0: all. OpenAI lacks it"),
    RequestField("presence_penalty", number(-2, 2), 0.0, "taken from the logits of tokens that the answer has already"),
    RequestField("frequency_penalty", number(-2, 2), 0.0, "the same, as often as the answer has them"),
    RequestField("logit_bias", BIASES, None, "added to the logits of tokens"),
    RequestField("seed", whole(), None, "of the random numbers; the same seed gives the same answer"),
    RequestField("n", whole(1, MAX_CHOICES), 1, f"answers for each prompt; at most {MAX_CHOICES} in a request"),
    RequestField("stop", STOPS, (), "strings at which an answer ends; it does not have them"),
    RequestField("stream", FLAG, False, "the answer comes as events, piece by piece"),
    RequestField(
        "stream_options",
        Kind('an object with "include_usage", true or false', _stream_options),
        None,
        "whether an event with the usage comes last; only with `stream`",
    ),
    USER,
)  # fmt: skip
COMPLETIONS = (
    RequestField("prompt", ANYTHING, None, f"a string, a list of tokens, or up to {MAX_PROMPTS} of either in a list"),
    RequestField("max_tokens", whole(1), 16, "the most tokens of an answer"),
    RequestField("echo", FLAG, False, "the text begins with the prompt; not with `logprobs`"),
    RequestField(
        "logprobs", whole(0, MAX_LOGPROBS), None, "also give the log probabilities of this many tokens at each place"
    ),
    RequestField("best_of", whole(1, MAX_CHOICES), None, "as many as `n`; others are not supported"),
    *SAMPLING,
    RequestField("suffix", nothing("")),
)
CHAT = (
    RequestField("messages", ANYTHING, None, "see below"),
    RequestField("max_completion_tokens", whole(1), None, "the most tokens of an answer; else as there is room"),
    RequestField("max_tokens", whole(1), None, "the same, under its older name"),
    RequestField("logprobs", FLAG, False, "each token comes with the logarithm of its probability"),
    RequestField(
        "top_logprobs",
        whole(0, MAX_LOGPROBS),
        None,
        "also give this many other tokens at each place; only with `logprobs`",
    ),
    *SAMPLING,
    *(RequestField(name, nothing([])) for name in ("tools", "functions")),
    RequestField("tool_choice", nothing("none", "auto")),
    RequestField("function_call", nothing("none")),
    RequestField("parallel_tool_calls", nothing(False, True)),
    RequestField("response_format", nothing({"type": "text"})),
    RequestField("modalities", nothing(["text"])),
    *(
        RequestField(name, nothing())
        for name in ("audio", "prediction", "reasoning_effort", "verbosity", "web_search_options")
    ),
    RequestField("store", nothing(False)),
    RequestField("metadata", nothing({})),
    RequestField("service_tier", nothing("auto", "default")),
)


@dataclass(frozen=True)
class Prompt:
    """A prompt. tokens: its tokens. shown: the text with which an answer begins: the prompt's own text if the request
    asks for `echo`, else ""."""

    tokens: tuple[int, ...]
    shown: str = ""


@dataclass(frozen=True)
class TextRequest:
    """A parsed request. prompts: its prompts. samplings: one for each answer that a prompt gets. stops: texts at which
    an answer ends. is_streamed: the answer is sent piece by piece. has_usage: the number of tokens follows the
    pieces."""

    prompts: tuple[Prompt, ...]
    samplings: tuple[Sampling, ...]
    stops: tuple[str, ...]
    is_streamed: bool
    has_usage: bool


@dataclass(frozen=True)
class TextForms:
    """The forms of requests. name: of the model. ends: tokens that end a text. capacity: the most tokens of a sequence.
    vocabulary: how many tokens there are. longest: the most characters of a token."""

    name: str
    ends: frozenset[int]
    capacity: int
    vocabulary: int
    longest: int = LONGEST

    @property
    def most_bytes(self) -> int:
        """A limit of the bytes of a body, which no valid request exceeds."""
        return MAX_PROMPTS * self.capacity * self.longest * LETTER_BYTES + OTHER_BYTES

    def completion(self, body: Any, tokenizer: Tokenizer) -> TextRequest:
        """Read a request for completions, and tokenize its prompts, which takes long. body: as parsed from JSON. Raises
        `RequestError`, also for a prompt that is too long."""
        fields = self._fields(COMPLETIONS, body)
        if fields["echo"] and fields["logprobs"] is not None:
            raise RequestError("logprobs with echo: the scores of a prompt's tokens are not computed", "logprobs")
        if fields["best_of"] not in (None, fields["n"]):
            raise RequestError(f"best_of is {fields['best_of']}; this server makes n ({fields['n']}) texts", "best_of")
        given = fields["prompt"]
        several = isinstance(given, list) and bool(given) and type(given[0]) is not int
        if several and len(given) > MAX_PROMPTS:
            raise RequestError(f"prompt has {len(given)} prompts; there may be {MAX_PROMPTS}", "prompt")
        prompts = [self._prompt(x, tokenizer, fields["echo"]) for x in (given if several else [given])]
        return self._request(fields, prompts, fields["max_tokens"], fields["logprobs"])

    def chat(self, body: Any, tokenizer: Any) -> TextRequest:
        """Read a request for a chat, and make its prompt with the tokenizer's template, which takes long. body: as
        parsed from JSON. Raises `RequestError`, also for a chat that is too long, and for a tokenizer without a
        template."""
        fields = self._fields(CHAT, body)
        most, older = fields["max_completion_tokens"], fields["max_tokens"]
        if None not in (most, older) and most != older:
            raise RequestError(f"max_tokens is {older}, and max_completion_tokens {most}", "max_tokens")
        top = fields["top_logprobs"]
        if top is not None and not fields["logprobs"]:
            raise RequestError("top_logprobs needs logprobs: true", "top_logprobs")
        messages = _messages(fields["messages"])
        self._check_length(sum(len(message["content"]) for message in messages), "messages")
        if not getattr(tokenizer, "chat_template", None):
            raise RequestError("the tokenizer of this model has no chat template", "messages")
        try:
            text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        except Exception as e:  # whatever the template raises
            raise RequestError(f"the chat template does not take these messages: {e}", "messages") from None
        prompt = Prompt(self._checked(tokenizer(text, add_special_tokens=False)["input_ids"], "messages"))
        logprobs = (top or 0) if fields["logprobs"] else None
        return self._request(fields, [prompt], most or older or self.capacity, logprobs)

    def _fields(self, table: RequestFields, body: Any) -> dict[str, Any]:
        fields = parsed(table, body)
        model_named(self.name, fields)
        if fields["stream_options"] is not None and not fields["stream"]:
            raise RequestError("stream_options needs stream: true", "stream_options")
        unknown = max(fields["logit_bias"] or {0: 0.0})
        if unknown >= self.vocabulary:
            raise RequestError(f"logit_bias has token {unknown}; the vocabulary has {self.vocabulary}", "logit_bias")
        return fields

    def _request(
        self, fields: Mapping[str, Any], prompts: Sequence[Prompt], max_tokens: int, logprobs: int | None
    ) -> TextRequest:
        count = fields["n"]
        if count * len(prompts) > MAX_CHOICES:
            raise RequestError(f"n is {count} for {len(prompts)} prompts; a request has {MAX_CHOICES} answers", "n")
        names = ("temperature", "top_p", "top_k", "presence_penalty", "frequency_penalty")
        more = {name: fields[name] for name in names} | {"logit_bias": fields["logit_bias"] or {}}
        try:
            samplings = tuple(
                Sampling(
                    max_tokens=max_tokens,
                    seed=_seed(fields["seed"], number),
                    stop_tokens=self.ends,
                    logprobs=logprobs,
                    **more,
                )
                for number in range(count)
            )
        except TensorError as e:
            raise RequestError(str(e), str(e).partition(" ")[0]) from None
        return TextRequest(
            tuple(prompts), samplings, fields["stop"], fields["stream"], bool(fields["stream_options"])
        )  # fmt: skip

    def _prompt(self, prompt: Any, tokenizer: Tokenizer, is_shown: bool) -> Prompt:
        if isinstance(prompt, str):
            self._check_length(len(prompt), "prompt")
            _check_text(prompt, "prompt")
            tokens = self._checked(tokenizer(prompt)["input_ids"], "prompt")
            return Prompt(tokens, prompt if is_shown else "")
        if isinstance(prompt, list) and prompt and all(type(x) is int for x in prompt):
            tokens = self._checked(prompt, "prompt")
            shown = ""
            if is_shown:
                shown = tokenizer.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False)
            return Prompt(tokens, shown)
        what = "missing" if prompt is None else value_of(prompt)
        raise RequestError(f"prompt is {what}; it should be a string, or a list of tokens that is not empty", "prompt")

    def _check_length(self, letters: int, field: str) -> None:
        if letters > self.capacity * self.longest:
            raise RequestError(
                f"the {field} has {letters} characters; a sequence has at most {self.capacity} tokens, of at most "
                f"{self.longest} characters",
                field,
            )

    def _checked(self, tokens: Sequence[int], field: str) -> tuple[int, ...]:
        """The tokens of a prompt. Raises `RequestError` for none, too many, and unknown ones."""
        if not tokens:
            raise RequestError(f"the {field} has no tokens", field)
        if len(tokens) > self.capacity:
            raise RequestError(
                f"the {field} has {len(tokens)} tokens; a sequence has at most {self.capacity}, with its answer", field
            )
        if not 0 <= min(tokens) <= max(tokens) < self.vocabulary:
            raise RequestError(f"the {field} has a token that is not one of 0 to {self.vocabulary - 1}", field)
        return tuple(tokens)


def _seed(seed: int | None, number: int) -> int | None:
    """The seed of an answer to a prompt. number: of the answer; the first one has the request's seed."""
    if seed is None or number == 0:
        return None if seed is None else seed % SEEDS
    return int(np.random.SeedSequence([seed % SEEDS, number]).generate_state(1, np.uint64)[0])


def _check_text(text: str, field: str) -> None:
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise RequestError(f"{field} has half of a character (a surrogate)", field)


def _messages(given: Any) -> list[dict[str, str]]:
    """The messages of a chat, as templates take them. A developer is what a system is called in newer models."""
    if not isinstance(given, list) or not given:
        what = "missing" if given is None else value_of(given)
        raise RequestError(f"messages is {what}; it should be a list of messages that is not empty", "messages")
    return [_message(message, f"messages[{i}]") for i, message in enumerate(given)]


def _message(given: Any, place: str) -> dict[str, str]:
    if not isinstance(given, dict):
        raise RequestError(f"{place} is {value_of(given)}, not an object", "messages")
    for name, value in given.items():
        if name not in ("role", "content", "name") and value not in (None, []):
            raise RequestError(f"{place}.{name} is not supported", "messages")
    role = given.get("role")
    if role not in ROLES:
        raise RequestError(f"{place}.role is {value_of(role)}; it should be one of {', '.join(ROLES)}", "messages")
    content = given.get("content")
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(parts, list) or not all(map(_is_text, parts)):
        what = value_of(content)
        raise RequestError(f"{place}.content is {what}; it should be a string, or a list of parts of text", "messages")
    text = "".join(x["text"] for x in parts)
    _check_text(text, "messages")
    made = {"role": "system" if role == "developer" else role, "content": text}
    named = given.get("name")
    if named is None:
        return made
    if not isinstance(named, str):
        raise RequestError(f"{place}.name is {value_of(named)}; it should be a string", "messages")
    return made | {"name": named}


def _is_text(part: Any) -> bool:
    """Whether a part of a message is a text."""
    right = isinstance(part, dict) and part.keys() == {"type", "text"}
    return right and part["type"] == "text" and isinstance(part["text"], str)
