"""Tokenizers of transformers as files, such as those in a model file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ..base.errors import ContainerError, require


def files_of(tokenizer: Any) -> dict[str, bytes]:
    """Return the files that a tokenizer of transformers writes, contents by name."""
    with TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def tokenizer_of(files: Mapping[str, bytes]) -> Any:
    """Return the tokenizer that files are of, as `files_of` returns them. Raises `ContainerError` if it cannot be
    loaded, and `MissingError` without transformers."""
    require("transformers", "tokenizers", "pip install transformers")
    from transformers import AutoTokenizer

    with TemporaryDirectory() as folder:
        for name, content in files.items():
            (Path(folder) / name).write_bytes(content)
        try:
            return AutoTokenizer.from_pretrained(folder)
        except Exception as e:  # of several packages, each with its own errors
            raise ContainerError(f"its tokenizer cannot be loaded: {str(e).partition(chr(10))[0]}") from None
