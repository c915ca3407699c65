"""What the generated files hold, section by section: `generated.txt`, in which a review sees what a change changes.

python -m rsn.tests.isa.generated        # writes it anew
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from rsn.hw.versal.sources import GENERATED
from rsn.isa.overlays.page import page

RECORD = Path(__file__).parent / "generated.txt"
FILES: Mapping[str, Callable[[], str]] = {
    **{f"hw/versal/{name}": made for name, made in GENERATED.items()},
    "docs/isa.md": page,
}
HEADING = re.compile(
    r"(?:#{2,4} |\[|struct |enum class |namespace (?!rsn)|constexpr Shim|void |    // [A-Z]| *case Opcode).*"
)
"""A line with which a section begins, in C++, in Markdown, or in the linker's configuration."""


def record() -> Iterator[str]:
    """Lines of the record: of each file and section its title, its lines, and a hash of its text."""
    for name, made in FILES.items():
        text = made()
        yield f"{name}: {_facts(text)}"
        title, lines = "(begin)", list[str]()
        for line in [*text.splitlines(), None]:
            if line is None or HEADING.fullmatch(line):
                yield f"    {title.rstrip(' {')}: {_facts(chr(10).join(lines))}"
                title, lines = line or "", []
            lines.append(line or "")


def _facts(text: str) -> str:
    return f"{len(text.splitlines())} lines, {hashlib.sha256(text.encode()).hexdigest()[:12]}"


if __name__ == "__main__":
    RECORD.write_text("\n".join(record()) + "\n", encoding="utf-8")
