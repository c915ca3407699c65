"""Included texts: found, read once, reported under their own names, never more than a regular file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rsn.assembler import include
from rsn.assembler.parser import parse_file
from rsn.base.errors import SourceError
from rsn.isa.program import Program, SourceLine


def write(folder: Path, **texts: str) -> Path:
    """Files, `__` in a name for `/`; the path of the one that is called main."""
    for name, text in texts.items():
        path = folder / (name.replace("__", "/") + ".rsn")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder / "main.rsn"


def complaint(path: Path) -> str:
    with pytest.raises(SourceError) as caught:
        parse_file(path)
    return str(caught.value).replace(f"{path.parent}/", "")


def test_everything_may_be_included(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        main='overlay xnn\ninclude "lib/first.rsn"\nload(K)\nlast DDR\n',
        lib__first='include "second.rsn"\nconst K = 3\n\nblock load(n) {\n  packet MemA0 { load dim1=n }\n}\nnop\n',
        lib__second="buffer x ddr 128x64\n",
    )
    made = parse_file(path)
    assert isinstance(made, Program)
    assert [b.name for b in made.buffers] == ["x"]
    lib = str(tmp_path / "lib" / "first.rsn")
    assert made.places == (SourceLine(lib, 7), SourceLine(lib, 5), SourceLine(str(path), 4))


def test_a_text_is_included_once(tmp_path: Path) -> None:
    both = 'include "c.rsn"\n'
    path = write(
        tmp_path, main='overlay xnn\ninclude "a.rsn"\ninclude "./b.rsn"\nnop', a=both, b=both, c="const K = 1\n"
    )
    assert isinstance(parse_file(path), Program)


def test_mistakes_lie_in_their_own_text(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        main='overlay xnn\ninclude "a.rsn"\nMemA0 { b(600); lod }\n',
        a="const K = 1\nblock b(n) {\n  load dim1=n\n}\nMemA1 { sned }\n",
    )
    found = complaint(path)
    assert "a.rsn:5:9: error: MemA has no sned\n" in found
    assert "a.rsn:3:8: error: MemA.dim1: 600 does not fit in 9 bits (0..511)\n" in found
    assert "note: called from main.rsn:3:9\nnote: included from main.rsn:2:9\n" in found
    assert "main.rsn:3:17: error: MemA has no lod\n" in found


def test_syntax_errors_of_included_texts(tmp_path: Path) -> None:
    path = write(tmp_path, main='overlay xnn\ninclude "a.rsn"\ninclude "b.rsn"\n', a="const = 1\n", b="nop nop\n")
    found = complaint(path)
    assert found.startswith("a.rsn:1:7: error: '=' is not expected here\n")
    assert "note: included from main.rsn:2:9\nb.rsn:1:5: error: 'nop' is not expected here\n" in found


def test_cycles(tmp_path: Path) -> None:
    path = write(tmp_path, main='overlay xnn\ninclude "a.rsn"\n', a='nop\ninclude "main.rsn"\n')
    found = complaint(path)
    assert found.startswith("a.rsn:2:9: error: main.rsn includes itself\n")
    assert found.endswith("note: included from main.rsn:2:9")


def test_what_cannot_be_included(tmp_path: Path) -> None:
    names = ["none.rsn", ".", "pipe", "latin", "long", "/etc/passwd", "", "a\\u0000b"]
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "latin").write_bytes(b"# \xff")
    with (tmp_path / "long").open("wb") as file:
        file.truncate(include.LONGEST + 1)
    (tmp_path / "null").symlink_to("/dev/zero")
    names.append("null")
    path = write(tmp_path, main="overlay xnn\n" + "".join(f'include "{name}"\n' for name in names))
    found = complaint(path)
    for line, message in enumerate(
        [
            "none.rsn cannot be read: No such file or directory",
            "is not a regular file",
            "pipe is not a regular file",
            "byte 2 of latin is not UTF-8",
            f"long has {include.LONGEST + 1} bytes; an included text has at most {include.LONGEST}",
            "an include names a file by its path relative to this file",
            "an include names a file by its path relative to this file",
            "an include names a file by its path relative to this file",
            "null is not a regular file",
        ],
        2,
    ):
        (shown,) = [x for x in found.splitlines() if x.startswith(f"main.rsn:{line}:9: error: ")]
        assert message in shown
    assert "include stands" not in found


def test_chains_have_an_end(tmp_path: Path) -> None:
    texts = {f"f{n}": f'include "f{n + 1}.rsn"\n' for n in range(include.DEPTH + 5)}
    found = complaint(write(tmp_path, main='overlay xnn\ninclude "f0.rsn"\n', **texts))
    assert f"more than {include.DEPTH} nested includes" in found


def test_where_includes_stand(tmp_path: Path) -> None:
    path = write(tmp_path, main='overlay xnn\nfor 2 {\n  include "a.rsn"\n}\n', a="nop\n")
    assert complaint(path).startswith("main.rsn:3:11: error: constants, blocks and includes cannot stand in a loop\n")
    path = write(tmp_path, main='include "a.rsn"\noverlay xnn\n', a="nop\n")
    assert complaint(path).startswith("main.rsn:1:9: error: a program begins with its overlay: overlay NAME\n")
    path = write(tmp_path, main='overlay xnn\ninclude "a.rsn"\n', a="overlay xnn\n")
    assert complaint(path).startswith("a.rsn:1:9: error: the overlay is already set to xnn\n")
