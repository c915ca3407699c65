"""Models of texts: sentence encoders and sequence classifiers, with their tokenizers (docs/openai.md)."""

from __future__ import annotations

import copy
import inspect
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .base.deferred import deferred
from .base.errors import TensorError, UnsupportedError, require, require_torch
from .compiler import compile as rsn_compile
from .host import tokenizers
from .host.closing import Closing
from .host.model.family import Family
from .host.model.file import SavedText
from .host.text_settings import TextSettings
from .rsnlib.shapes import Batch, Length

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from torch import nn

    from .host.model import torch_module
    from .rsnlib import text_models
else:
    text_models = deferred("rsn.rsnlib.text_models")
    torch_module = deferred("rsn.host.model.torch_module")

BATCHES = (1, 8)
"""Numbers of texts that there are programs for."""
LENGTHS = (32, 128)
"""Tokens that there are programs for, besides the most that the model takes."""
NO_LIMIT = 1 << 24
"""Tokenizers without a limit state a larger one."""
OFFSET = ("camembert", "mpnet", "roberta", "xlm-roberta")
"""Types of models whose positions begin behind the number of their padding token."""
CLASSIFIER = "ForSequenceClassification"
"""How the architecture of a sequence classifier ends."""


class TextEncoder(Closing):
    """A model of texts, compiled for several sizes. family: the compiled model; it takes `input_ids` and
    `attention_mask`, int64 (texts, tokens), and, of classifiers of pairs, `token_type_ids`. tokenizer: of transformers.
    settings: what a server has to know.

    folder: a `SentenceTransformer`, or a sequence classifier of transformers. batches: numbers of texts that there are
    programs for. lengths: numbers of tokens that there are programs for; None for `LENGTHS` and the most that the model
    takes. board: as for `rsn.compile`. pooling: of an encoder whose folder does not say it (no modules.json): how the
    vectors of tokens become one of the text, as sentence-transformers calls it, such as "mean". normalize: vectors of
    such an encoder get the length 1. overlay: as for `rsn.compile`.

    Raises `TensorError` for a folder without such a model, and for settings that do not go with it, `MissingError`
    without sentence-transformers, and what `rsn.compile` raises.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        batches: Sequence[int] = BATCHES,
        lengths: Sequence[int] | None = None,
        board: str = "sim",
        pooling: str | None = None,
        normalize: bool = False,
        overlay: str = "xnn",
    ) -> None:
        require_torch("models of texts")
        require("transformers", "models of texts", "pip install transformers")
        path = Path(folder)
        try:
            config = json.loads((path / "config.json").read_text("utf-8"))
        except (OSError, ValueError) as e:
            why = "there is no" if isinstance(e, FileNotFoundError) else f"{e}:"
            raise TensorError(
                f"{folder}: no model of texts ({why} config.json): a folder has a model as save_pretrained of "
                "transformers writes it, with its tokenizer, or one of sentence-transformers"
            ) from None
        if any(str(name).endswith(CLASSIFIER) for name in config.get("architectures") or ()):
            if pooling is not None or normalize:
                raise TensorError(f"{folder}: a classifier has no pooling, and no vectors to normalize")
            module, self.tokenizer, found = _classifier(path)
        else:
            module, self.tokenizer, found = _encoder(path, pooling, normalize)
        chosen = sizes_for(found.longest, lengths)
        self.settings = replace(found, longest=max(chosen))
        named = ["token_type_ids"] if found.has_types else []
        self.family = _compiled(module, named, batches, chosen, board, overlay)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model with its tokenizer to a file (`.rsnmodel`), for `rsn serve` and `rsn.load`. Raises as
        `Family.save`."""
        self.family.save(path, SavedText(asdict(self.settings), tokenizers.files_of(self.tokenizer)))

    def close(self) -> None:
        """Release the board."""
        self.family.close()


def sentence_transformer(
    model: str | os.PathLike[str] | SentenceTransformer,
    *,
    batches: Sequence[int] = BATCHES,
    lengths: Sequence[int] | None = None,
    board: str = "sim",
) -> SentenceTransformer:
    """Return a `SentenceTransformer` whose transformer runs on the machine. Its other modules are those of `model`.

    model: a `SentenceTransformer`, which is not changed, or the folder of one. batches: numbers of texts that there are
    programs for; a larger batch becomes several runs of the largest one. lengths: as for `TextEncoder`; a longer text
    raises `TensorError`. board: as for `rsn.compile`. Raises `UnsupportedError` for a model that does not begin with a
    transformer of text, `MissingError` without sentence-transformers, and what `rsn.compile` raises.
    """
    require_torch("sentence encoders")
    if isinstance(model, str | os.PathLike):
        model = _loaded(Path(model))
    first = model[0]
    if not hasattr(first, "auto_model"):
        raise UnsupportedError(f"{type(first).__name__}: no transformer that could run on the machine")
    chosen = sizes_for(_longest(model.max_seq_length, first.auto_model.config, model.tokenizer), lengths)
    takes = ["token_type_ids"] if "token_type_ids" in model.tokenizer.model_input_names else []
    family = _compiled(first.auto_model.eval(), takes, batches, chosen, board)
    most = max(batches)

    def call(**given: Any) -> Any:
        """Call the program, several times for a batch that is larger than the largest program."""
        import torch
        from torch.utils import _pytree as pytree

        count = len(given["input_ids"])
        if count <= most:
            return family(**given)
        parts = [family(**{name: x[at : at + most] for name, x in given.items()}) for at in range(0, count, most)]
        return pytree.tree_map(lambda *xs: torch.cat(xs), *parts)

    module = torch_module.as_module(first.auto_model, call, ("input_ids", "attention_mask", *takes))
    held = next(name for name, part in first.named_children() if part is first.auto_model)
    return _with(model, next(iter(model._modules)), _with(first, held, module))


def _with(module: Any, name: str, part: Any) -> Any:
    """A copy of a module, with another submodule of this name. All others are shared."""
    copied = copy.copy(module)
    vars(copied)["_modules"] = dict(module._modules) | {name: part}
    return copied


def _compiled(
    module: nn.Module,
    named: Sequence[str],
    batches: Sequence[int],
    lengths: Sequence[int],
    board: str,
    overlay: str = "xnn",
) -> Family:
    """Compile a module of texts for all sizes. named: its arguments besides ids and mask."""
    import torch

    mask = torch.ones(max(batches), max(lengths), dtype=torch.long)
    # ids of 0 and 1 would be taken for a mask
    example = {"input_ids": 2 * mask, "attention_mask": mask} | dict.fromkeys(named, 0 * mask)
    sizes = {0: Batch(*batches), 1: Length(*lengths)}
    shapes = dict.fromkeys(example, sizes)
    family: Family = rsn_compile(module, example, dynamic_shapes=shapes, board=board, whole=False, overlay=overlay)
    return family


def sizes_for(longest: int, lengths: Sequence[int] | None = None) -> Sequence[int]:
    """Return the numbers of tokens to compile programs for. longest: the most tokens that the model takes. lengths: the
    numbers that the user has chosen; None for the usual ones. Raises `TensorError` for a number above `longest`."""
    chosen = sorted({n for n in (*LENGTHS, longest) if n <= longest}) if lengths is None else lengths
    if max(chosen, default=0) > longest:
        raise TensorError(f"lengths up to {max(chosen)}; the model takes {longest} tokens")
    return chosen


def _encoder(path: Path, pooling: str | None, normalize: bool) -> tuple[nn.Module, Any, TextSettings]:
    """The modules of a sentence encoder as one, its tokenizer, and its settings."""
    if (path / "modules.json").exists():
        if pooling is not None or normalize:
            raise TensorError(f"{path}: pooling and normalization are those of its modules.json")
        model = _loaded(path)
    elif pooling is None:
        raise TensorError(f"{path}: no modules.json, so that the pooling has to be stated, such as mean or cls")
    else:
        model = _loaded(path, pooling, normalize)
    prompt = model.prompts.get(model.default_prompt_name) or "" if model.default_prompt_name else ""
    if prompt and not all(getattr(module, "include_prompt", True) for module in model):
        raise UnsupportedError(f"{path}: a prompt whose tokens the pooling leaves out")
    known = model.tokenizer
    config = model[0].auto_model.config
    settings = TextSettings(
        _longest(model.max_seq_length, config, known),
        config.vocab_size,
        model.get_embedding_dimension(),
        is_normalized=type(list(model)[-1]).__name__ == "Normalize",
        prompt=prompt,
    )
    return text_models.Embedder(model).eval(), known, settings


def _loaded(path: Path, pooling: str | None = None, normalize: bool = False) -> SentenceTransformer:
    """Load a sentence encoder. pooling, normalize: as for `TextEncoder`. Raises `TensorError`, `MissingError`."""
    require("sentence_transformers", "sentence encoders", "pip install sentence-transformers")
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules as parts

    try:
        if pooling is None:
            return SentenceTransformer(str(path), device="cpu", local_files_only=True).eval()
        first = parts.Transformer(str(path))
        made = [first, parts.Pooling(first.get_embedding_dimension(), pooling)]
        return SentenceTransformer(modules=made + [parts.Normalize()] * normalize, device="cpu").eval()
    except Exception as e:  # of several packages, each with its own errors
        raise TensorError(f"{path}: no sentence encoder: {str(e).partition(chr(10))[0]}") from None


def _classifier(path: Path) -> tuple[nn.Module, Any, TextSettings]:
    """A sequence classifier, its tokenizer, and its settings."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    try:
        model = AutoModelForSequenceClassification.from_pretrained(path, dtype="float32").eval()
        tokenizer = AutoTokenizer.from_pretrained(path)
    except Exception as e:  # of several packages, each with its own errors
        raise TensorError(f"{path}: no classifier of transformers: {str(e).partition(chr(10))[0]}") from None
    config = model.config
    takes = inspect.signature(model.forward).parameters
    several = getattr(config, "problem_type", None) == "multi_label_classification"
    settings = TextSettings(
        _longest(None, config, tokenizer),
        config.vocab_size,
        config.num_labels,
        has_types="token_type_ids" in takes and "token_type_ids" in tokenizer.model_input_names,
        labels=tuple(str(config.id2label[i]) for i in range(config.num_labels)),
        activation="sigmoid" if several or config.num_labels == 1 else "softmax",
    )
    return text_models.Scorer(model).eval(), tokenizer, settings


def _longest(stated: int | None, config: Any, tokenizer: Any) -> int:
    """The most tokens that a model of texts takes: as its folder states it, and no more than it has positions for."""
    positions = getattr(config, "max_position_embeddings", None)
    if positions is not None and config.model_type in OFFSET:
        positions -= config.pad_token_id + 1
    known = [n for n in (stated, positions, tokenizer.model_max_length) if n is not None and n < NO_LIMIT]
    if not known:
        raise TensorError("the model does not say how many tokens it takes; state lengths")
    return int(min(known))


def save_folder(folder: Path, path: Path, **settings: Any) -> None:
    """Compile the model of texts in a folder, and write it to a file. folder: of the model. path: of the file.
    settings: further arguments of `TextEncoder`, whose errors it raises. It is a function so that a process of its own
    can call it (`host.own_process.call_apart`)."""
    with TextEncoder(folder, **settings) as encoder:
        encoder.save(path)
