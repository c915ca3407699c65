"""The tables of the language reference are those of the overlays."""

from __future__ import annotations

from pathlib import Path

import pytest

from rsn.assembler.parser import parse
from rsn.assembler.reference import insert, tables
from rsn.isa.overlays import OVERLAYS


def test_tables_are_up_to_date(root: Path) -> None:
    """If not: python -m rsn.assembler.reference docs/rsn-language.md"""
    text = (root / "docs" / "rsn-language.md").read_text(encoding="utf-8")
    assert insert(text) == text


def test_tables_name_every_format() -> None:
    text = tables()
    for overlay in OVERLAYS.values():
        for form in overlay.formats:
            for field in form.mop.FIELDS:
                assert f"`{field.name}`" in text or f"{field.to}`" in text or f"{field.source}`" in text


def test_a_document_without_a_place_for_them() -> None:
    with pytest.raises(ValueError, match="has no <!-- words"):
        insert("nothing")


def test_the_example_of_a_block(root: Path) -> None:
    text = (root / "docs" / "rsn-language.md").read_text(encoding="utf-8")
    example = text.split("## Blocks\n\n```\n")[1].split("```")[0]
    made = parse(f"overlay xnn\nbuffer x ddr 512x128\n{example}", "x.rsn")
    assert len(made.packets) == 3  # type: ignore[union-attr]
