"""The C++ sources of the machines: those of this folder, and those that tables generate, which are made, not stored.

    python -m rsn.hw.versal.sources [FOLDER]        # or: make generate

writes the latter into FOLDER, or beside the former, for AMD's tools and for readers. The C++ machine needs no such
files: it is built from `sources`.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path

from ...base import files
from ...isa.overlays.xnn import XNN
from ...isa.overlays.xnn.cycles import LOOPS
from ...isa.overlays.xnn2 import XNN2, network
from ...isa.overlays.xnn2.cycles import LOOPS as XNN2_LOOPS
from ...isa.overlays.xnn8 import XNN8
from ...isa.overlays.xnn8 import network as xnn8_network
from ...isa.overlays.xnn8 import placement as xnn8_placement
from ...isa.overlays.xnn8.cycles import LOOPS as XNN8_LOOPS
from ...isa.overlays.xnn8.formats import ChunkKind, ChunkRecord
from ...isa.versal.board import ARGUMENTS, lanes, system_cfg
from ...isa.versal.dispatcher import dispatcher, dispatcher_header
from ...isa.versal.header import header, record_header
from ...isa.versal.placement import placement_header

VERSAL = Path(__file__).resolve().parent
GENERATED: Mapping[str, Callable[[], str]] = {
    "isa.h": partial(header, XNN, LOOPS, "pl/fields.h"),
    "xnn2/isa.h": partial(header, XNN2, XNN2_LOOPS, "../pl/fields.h"),
    "xnn2/dma_hls.cpp": partial(network.top, XNN2),
    "xnn2/dispatch.h": partial(dispatcher_header, XNN2),
    "xnn2/dispatch.cpp": partial(dispatcher, XNN2),
    "xnn8/isa.h": partial(header, XNN8, XNN8_LOOPS, "../pl/fields.h"),
    "xnn8/dma_hls.cpp": partial(xnn8_network.top, XNN8),
    "xnn8/dispatch.h": partial(dispatcher_header, XNN8),
    "xnn8/dispatch.cpp": partial(dispatcher, XNN8),
    "xnn8/tables.h": xnn8_network.tables,
    "xnn8/placement.h": xnn8_placement.placement_header,
    "xnn8/record.h": partial(record_header, ChunkRecord, ChunkKind, "../pl/fields.h"),
    "xnn8/system.cfg": lambda: system_cfg((p.stream for p in xnn8_placement.plios()), xnn8_placement.ARGUMENTS),
    "system.cfg": lambda: system_cfg(lanes(XNN), ARGUMENTS),
    "aie/placement.h": partial(placement_header, XNN),
}
"""Files by their path in this folder, each with what makes its text."""
SUFFIXES = (".cc", ".cfg", ".cpp", ".h", ".hpp")


def cache_folder() -> Path:
    """Return the folder of what is made of the sources, in the user's cache. Raises as `files.cache_folder`."""
    return files.cache_folder("csim")


@cache
def _texts() -> Mapping[str, bytes]:
    """All sources, by their path."""
    found = {path.relative_to(VERSAL).as_posix(): path for path in VERSAL.rglob("*") if path.suffix in SUFFIXES}
    stored = {name: path.read_bytes() for name, path in found.items() if not name.startswith(("build", "hlscheck"))}
    return dict(sorted((stored | {name: made().encode() for name, made in GENERATED.items()}).items()))


def sources() -> Path:
    """Return a folder with all sources, laid out as in hw/versal. It is in the user's cache, under a hash of what it
    holds, because the folder of an installation may be read only. Raises `OSError` if it cannot be written, and as
    `cache_folder`."""
    h = hashlib.sha256(repr(list(_texts().items())).encode())
    folder = cache_folder() / "sources" / h.hexdigest()[:16]
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".making-"))
        try:
            for name, text in _texts().items():
                (made / name).parent.mkdir(parents=True, exist_ok=True)
                (made / name).write_bytes(text)
            made.chmod(0o755)
            made.rename(folder)
        except OSError:
            shutil.rmtree(made, ignore_errors=True)
            if not folder.exists():  # another process may have made it
                raise
    return folder


def write(folder: Path = VERSAL) -> None:
    """Write the generated files. What has not changed keeps its time, so that make builds nothing anew.

    folder: laid out as hw/versal; its subfolders must exist. Raises `OSError`.
    """
    for name, made in GENERATED.items():
        path, text = folder / name, made()
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            files.write_text(path, text)


if __name__ == "__main__":
    write(*map(Path, sys.argv[1:]))
