"""`rsn fmt`: one layout for every text, and nothing but layout."""

from __future__ import annotations

from pathlib import Path

import pytest

from rsn.assembler.diagnostic import SourceText
from rsn.assembler.formatter import format_text
from rsn.assembler.printer import WIDTH
from rsn.assembler.syntax import read
from rsn.base.errors import SourceError

LOOSE = """\


overlay   xnn-base
const K=8*3 - -2   # steps
const LONGER = 2# tiles
param  len[0]   1 .. 512=512

# what is stored
buffer  x  ddr 128x64   at 0   view 1x2
scale "x y" [1,2
   3  -4]  # four



MemC[ 0,2..3 ] , MemC4 {  recv;store  dim1 = 128*( K+1 )  }
   DDR {
 for k in 0 .. K { load x [ 0 : + 128 , k*64 :+ 64 ] ->MemA0
      # inside
      }
 "a # b"  ->  MemA0
 load -> MemA0 size=- 4
}
MeshA { MemA0->MME0 MemA0  ->  MME1 a=clamp ( len[0] - 3 , 0, 256 ) } ; nop

"""

TIGHT = """\
overlay xnn-base
const K = 8*3 - -2  # steps
const LONGER = 2    # tiles
param len[0] 1..512 = 512

# what is stored
buffer x ddr 128x64 at 0 view 1x2
scale "x y" [1 2 3 -4]  # four

MemC[0, 2..3], MemC4 { recv; store dim1=128*(K+1) }
DDR {
  for k in 0..K { load x[0:+128, k*64:+64] -> MemA0
    # inside
  }
  "a # b" -> MemA0
  load -> MemA0 size=-4
}
MeshA { MemA0->MME0 MemA0 -> MME1 a=clamp(len[0] - 3, 0, 256) }; nop
"""


def test_layout() -> None:
    assert format_text(LOOSE, "x.rsn") == TIGHT
    assert format_text(TIGHT, "x.rsn") == TIGHT
    assert format_text(LOOSE.replace("\n", "\r\n"), "x.rsn") == TIGHT


def test_meaning_stays(root: Path) -> None:
    for path in sorted((root / "programs").glob("*.rsn")):
        text = path.read_text(encoding="utf-8")
        laid = format_text(text, path.name)
        assert read(SourceText(laid, "x")) == read(SourceText(text, "x"))
        assert format_text(laid, path.name) == laid


def test_a_wrong_text_is_left_alone() -> None:
    with pytest.raises(SourceError, match=r"x\.rsn:2:1"):
        format_text("overlay xnn\n}", "x.rsn")


def test_long_vectors_are_broken() -> None:
    laid = format_text(f"overlay xnn\nscale x [{' '.join(['0.125'] * 40)}]", "x.rsn")
    lines = laid.splitlines()[1:]
    assert len(lines) == 3
    assert max(map(len, lines)) <= WIDTH
    assert lines[1].startswith("  0.125 ")
