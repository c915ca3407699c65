"""Colours: every shipped text has some for each of its tokens, and the words are those of the grammar."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

pytest.importorskip("pygments")

from pygments.token import Comment, Error, Keyword, Name, Number, String, Token

from rsn.assembler import highlight, syntax
from rsn.assembler.highlight import RsnLexer
from rsn.isa.program import Layout, Role

SAMPLE = """\
overlay xnn-base
include "lib.rsn"
const K = 0x40  # a comment
param len[0] 1..512 = 512
buffer "layer {2*l+1}/w" ddr 128x64 blocked at 64 view 1x2
scale y f32"AACAPw
  AA=="
shift y [1.0 -2e-3]
block tile(n, x) { load x[0:+128, n*64:128] -> MemA[n] }
for i in 0..3 { packet MemC[0..5] reuse=2 { send dim1=clamp(len[i]-1, 0, 4); tile(i, "a\\"b\\u007b") } }
MeshA { MemA0->MME0 size=1 }
nop; last DDR
"""


def samples(root: Path) -> list[str]:
    return [SAMPLE, *(p.read_text(encoding="utf-8") for p in sorted((root / "programs").glob("*.rsn")))]


def test_every_token_has_a_kind(root: Path) -> None:
    for text in samples(root):
        found = list(RsnLexer().get_tokens(text))
        assert not [x for kind, x in found if kind in Error]
        assert "".join(x for _, x in found) == text


def test_kinds() -> None:
    found = [(kind, text) for kind, text in RsnLexer().get_tokens(SAMPLE) if text.strip()]
    for kind, text in [
        (Keyword.Declaration, "overlay"),
        (Name.Namespace, "xnn-base"),
        (Comment.Single, "# a comment"),
        (String.Interpol, "{2*l+1}"),
        (Number.Integer, "128x64"),
        (Keyword.Type, "blocked"),
        (Number.Float, "AACAPw\n  AA=="),
        (Name.Function, "tile"),
        (Name.Attribute, "reuse"),
        (Name.Class, "MemC"),
        (Keyword, "clamp"),
        (String.Escape, "\\u007b"),
    ]:
        assert (kind, text) in found, text
    assert Token.Error not in {kind for kind, _ in found}


def test_words_are_those_of_the_grammar() -> None:
    terminals = {str(t.pattern.value) for t in syntax._parser().terminals if t.pattern.type == "str"}
    assert {w for w in terminals if w.isalpha()} == {*highlight.DECLARING, *highlight.STANDING, *highlight.INSIDE}
    assert {*highlight.TAGS} == {x.value for x in (*Layout, *Role)}


def test_the_textmate_grammar_is_up_to_date(root: Path) -> None:
    """If not: python -m rsn.assembler.highlight > assembler/rsn.tmLanguage.json"""
    assert (root / "assembler" / "rsn.tmLanguage.json").read_text(encoding="utf-8") == highlight.textmate_text()


def test_the_textmate_grammar_leaves_nothing_out(root: Path) -> None:
    """The first pattern that matches where the last one ended, as editors do it; Python reads these expressions too."""
    grammar = json.loads((root / "assembler" / "rsn.tmLanguage.json").read_text(encoding="utf-8"))
    rules = [
        (re.compile(p.get("match") or p["begin"]), re.compile(p["end"]) if "end" in p else None, p["name"])
        for p in grammar["patterns"]
    ]
    for text in samples(root):
        at, kinds = 0, set()
        while at < len(text):
            if text[at].isspace():
                at += 1
                continue
            for begin, end, name in rules:
                found = begin.match(text, at)
                if found is None or found.end() == at:
                    continue
                if end is None:
                    at = found.end()
                else:  # strings of the samples hold no quotes but escaped ones
                    body = re.compile(r'(?:\\.|[^"\\])*').match(text, found.end())
                    assert body is not None
                    close = end.match(text, body.end())
                    assert close is not None
                    at = close.end()
                kinds.add(name)
                break
            else:
                pytest.fail(f"nothing matches {text[at : at + 40]!r}")
        assert "keyword.declaration.rsn" in kinds
