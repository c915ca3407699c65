"""Syntax highlighting for `.rsn`: a Pygments lexer and a TextMate grammar for editors, from the same word lists.

`python -m rsn.assembler.highlight` prints rsn.tmLanguage.json. Pygments finds the lexer through an entry point.
"""

from __future__ import annotations

import json
import sys
from typing import Any, ClassVar

from pygments.lexer import RegexLexer, bygroups  # type: ignore[import-untyped]
from pygments.token import Comment, Keyword, Name, Number, Operator, Punctuation, String, Text  # type: ignore[import-untyped]

DECLARING = ("block", "buffer", "const", "include", "overlay", "param", "scale", "segment", "shift")
"""Keywords that begin a declaration."""

STANDING = ("for", "last", "nop", "packet")
"""Keywords that begin a loop or a packet."""

INSIDE = ("at", "clamp", "in", "kind", "layers", "outputs", "rows", "view")
"""Keywords inside an item; elsewhere they may be names."""

TAGS = ("blocked", "linear", "integers", "short", "long", "input", "output", "weight", "state", "scratch")
"""Keywords for layouts and roles of buffers."""

NAME = r"[A-Za-z_]\w*(?:\.\w+)*"
UNIT = r"[A-Z]\w*"
"""Matches units, kinds and formats, which overlays spell with a capital."""
NUMBER = r"0x[0-9a-fA-F]+|[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?"
SHAPE = r"[1-9][0-9]*(?:x[1-9][0-9]*)+\b"
OPERATOR = r"->|<-|\.\.|:[ \t]*\+|[-+*/%=:]"
ESCAPE = r"\\(?:u[0-9a-fA-F]{4}|.)"


def _word(keywords: tuple[str, ...]) -> str:
    return rf"(?<![\w.])(?:{'|'.join(keywords)})(?![\w.])"


RULES = (
    (rf"{NAME}(?=[ \t]*=)", Name.Attribute, "variable.other.field"),
    (_word(DECLARING), Keyword.Declaration, "keyword.declaration"),
    (_word((*STANDING, *INSIDE)), Keyword, "keyword.control"),
    (_word(TAGS), Keyword.Type, "storage.modifier"),
    (rf"{NAME}(?=\()", Name.Function, "entity.name.function"),
    (rf"{UNIT}(?![\w.])", Name.Class, "entity.name.type"),
    (NAME, Name, "variable.other"),
    (SHAPE, Number.Integer, "constant.numeric.shape"),
    (NUMBER, Number, "constant.numeric"),
    (OPERATOR, Operator, "keyword.operator"),
    (r"[\[\](){},;]", Punctuation, "punctuation"),
)
"""What follows comments and strings: the match, the token of Pygments, and the scope of TextMate."""


class RsnLexer(RegexLexer):  # type: ignore[misc]
    """Pygments lexer for `.rsn` programs."""

    name = "RSN"
    aliases: ClassVar[list[str]] = ["rsn"]
    filenames: ClassVar[list[str]] = ["*.rsn"]
    url = ""
    tokens: ClassVar[dict[str, Any]] = {
        "root": [
            (r"\s+", Text.Whitespace),
            (r"#[^\n]*", Comment.Single),
            (r'(f32)(")([^"]*)(")', bygroups(String.Affix, String, Number.Float, String)),
            (r'"', String, "string"),
            (r"(overlay)([ \t]+)([A-Za-z_][\w.-]*)", bygroups(Keyword.Declaration, Text.Whitespace, Name.Namespace)),
            (rf"(block)([ \t]+)({NAME})", bygroups(Keyword.Declaration, Text.Whitespace, Name.Function)),
            *((match, token) for match, token, _ in RULES),
        ],
        "string": [
            (r'"', String, "#pop"),
            (r"\n", Text.Whitespace, "#pop"),
            (ESCAPE, String.Escape),
            (r"\{[^{}\"\n]*\}", String.Interpol),
            (r'[^"\\{\n]+|.', String),
        ],
    }


def textmate() -> dict[str, Any]:
    """Return the TextMate grammar of the language as a JSON object: the keys are those of a `.tmLanguage.json` file."""

    def rule(match: str, name: str) -> dict[str, Any]:
        return {"match": match, "name": f"{name}.rsn"}

    return {
        "$schema": "https://raw.githubusercontent.com/martinring/tmlanguage/master/tmlanguage.json",
        "name": "RSN",
        "scopeName": "source.rsn",
        "fileTypes": ["rsn"],
        "patterns": [
            rule(r"#[^\n]*", "comment.line.number-sign"),
            {"begin": r'f32"', "end": '"', "name": "constant.numeric.packed.rsn"},
            {
                "begin": '"',
                "end": r'"|$',
                "name": "string.quoted.double.rsn",
                "patterns": [
                    rule(ESCAPE, "constant.character.escape"),
                    rule(r"\{[^{}\"]*\}", "meta.embedded.expression"),
                ],
            },
            rule(rf"(?<=block )[ \t]*{NAME}", "entity.name.function"),
            *(rule(match, scope) for match, _, scope in RULES),
        ],
    }


def textmate_text() -> str:
    """Return the text of rsn.tmLanguage.json."""
    return json.dumps(textmate(), indent=2) + "\n"


def _main() -> None:
    sys.stdout.write(textmate_text())


if __name__ == "__main__":
    _main()
