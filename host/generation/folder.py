"""Decoders from folders of transformers."""

from __future__ import annotations

import os

from ...base.errors import TensorError, require
from .decoder import Decoder


def save_folder(
    folder: str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    slots: int,
    capacity: int,
    chunk: int,
    overlay: str = "xnn",
) -> None:
    """Compile a language model, and write it with its tokenizer to a file for `load`. Each program is run once on the
    simulator, and compared with the model.

    folder: what `from_pretrained` of transformers reads. path: of the file. slots, capacity, chunk, overlay: as for
    `Decoder`.
    Raises `TensorError` for another folder, `MissingError` without transformers, and what `Decoder`, its `try_out` and
    its `save` raise.
    """
    require("transformers", "generation", "pip install transformers")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32").eval()
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except Exception as e:  # of several packages, each with its own errors
        raise TensorError(f"{folder}: no language model of transformers: {str(e).partition(chr(10))[0]}") from None
    with Decoder(model, slots=slots, capacity=capacity, chunk=chunk, overlay=overlay) as decoder:
        decoder.try_out()
        decoder.save(path, tokenizer)
