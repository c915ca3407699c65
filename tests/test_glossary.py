"""The entries of the glossary: each once, in alphabetical order, with one meaning."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

GLOSSARY = Path(__file__).resolve().parent.parent / "docs" / "glossary.md"
TWO_MEANINGS = re.compile(r"; or\b|; also\b|\bAlso\b(?! called)|\. (?:In|On|Of|With) [^.:]{1,40}: (?!see)")
"""How an entry adds another meaning: "a; or b", "Also b", "On `xnn2`: b". Two meanings are two entries."""


def entries(text: str) -> dict[str, str]:
    """The terms, each with its text on one line."""
    found: dict[str, str] = {}
    for part in re.split(r"\n(?=- \*\*)", text)[1:]:
        entry = re.fullmatch(r"- \*\*(.+?)\*\*(.*)", re.sub(r"\s+", " ", part).strip())
        assert entry is not None, part
        assert entry[1] not in found, f"{entry[1]} has two entries"
        found[entry[1]] = entry[2]
    return found


def order(term: str) -> tuple[str, str]:
    """Where a term stands: by its letters, then by what it is of."""
    name, _, of = term.lower().partition(" (")
    return re.sub(r"[^a-z0-9 ]", "", name.replace("-", " ")), re.sub(r"[^a-z0-9 ]", "", of)


def test_terms_are_in_alphabetical_order() -> None:
    terms = list(entries(GLOSSARY.read_text("utf-8")))
    assert len(terms) > 180
    assert terms == sorted(terms, key=order)


def test_an_entry_has_one_meaning() -> None:
    two = {
        term: found[0]
        for term, text in entries(GLOSSARY.read_text("utf-8")).items()
        if (found := TWO_MEANINGS.search(text))
    }
    assert not two


@pytest.mark.parametrize(
    "text",
    [
        ": how many words are in a FIFO; or the half of an operation in which a slot is filled.",
        ": a tensor that a layer computes. Also a function of one number.",
        ": an activity of a unit. On `xnn2`: an MME with its memories.",
        ": 1024 bits on a wire. In a stream program: statements that fire together.",
    ],
)
def test_a_second_meaning_is_noticed(text: str) -> None:
    assert TWO_MEANINGS.search(text)
