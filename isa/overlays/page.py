"""The page of the overlays, docs/isa.md, from their tables. It is made, not stored: by `make generate` and `make docs`.

python -m rsn.isa.overlays.page                # writes the page
"""

from __future__ import annotations

from pathlib import Path

from ...base.files import write_text
from ..reference import reference
from . import fig6, fig7, xnn, xnn2, xnn8
from .fig6 import FIG6
from .fig7 import FIG7
from .xnn import XNN, XNN_BASE
from .xnn2 import XNN2
from .xnn8 import XNN8

PAGE = Path(__file__).parents[2] / "docs" / "isa.md"


def page() -> str:
    """Return the text of docs/isa.md, in Markdown."""
    return reference({XNN_BASE: xnn, XNN: xnn, XNN2: xnn2, XNN8: xnn8, FIG6: fig6, FIG7: fig7})


def main() -> None:
    """Write the page. It is docs/isa.md of this installation. Raises `OSError`."""
    write_text(PAGE, page())


if __name__ == "__main__":
    main()
