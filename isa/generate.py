"""Writes what is generated from the tables: C++ headers and link configuration of XNN, reference of overlays.

    python -m rsn.isa.generate        # or: make generate

writes into the checkout. The files are not edited by hand; a test generates them again and compares.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from ..base.files import write_text
from .header import header
from .overlays.xnn import XNN
from .overlays.xnn.board import system_cfg
from .overlays.xnn.cycles import LOOPS
from .overlays.xnn.placement import placement_header
from .overlays.xnn2 import XNN2, network
from .overlays.xnn2.cycles import LOOPS as XNN2_LOOPS
from .reference import reference

ROOT = Path(__file__).resolve().parent.parent

OUTPUTS: Mapping[str, Callable[[], str]] = {
    "hw/versal/isa.h": partial(header, XNN, LOOPS),
    "hw/versal/xnn2/isa.h": partial(header, XNN2, XNN2_LOOPS),
    "hw/versal/xnn2/dma_hls.cpp": partial(network.top, XNN2),
    "hw/versal/xnn2/dispatch.h": partial(network.dispatcher_header, XNN2),
    "hw/versal/xnn2/dispatch.cpp": partial(network.dispatcher, XNN2),
    "hw/versal/system.cfg": partial(system_cfg, XNN),
    "hw/versal/aie/placement.h": partial(placement_header, XNN),
    "docs/isa.md": reference,
}


def main() -> None:
    """Write all of `OUTPUTS`."""
    for path, text in OUTPUTS.items():
        write_text(ROOT / path, text())


if __name__ == "__main__":
    main()
