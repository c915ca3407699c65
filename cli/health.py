"""Checks of `rsn doctor` that concern a board's own computer: memory and disk."""

from __future__ import annotations

import shutil
from pathlib import Path

from ..base.files import cache_folder
from .checks import Check

MEMINFO = Path("/proc/meminfo")

ENOUGH_MEMORY = 512 << 20
"""Bytes of free memory: the process takes about 100 MB, inputs and outputs of a large model the rest."""

ENOUGH_CONTIGUOUS = 256 << 20
"""Bytes of contiguous memory (CMA). AMD's device tree for the VCK190 platform reserves 512 MB with cma=512M."""

ENOUGH_DISK = 2 << 30
"""Bytes of free disk. The weight cache takes at most half of it, and the weights of BERT-Large are 1.2 GB."""


def memory() -> list[Check]:
    """Return the check of free memory."""
    what, purpose = "memory", "the process, inputs and outputs"
    free = _meminfo("MemAvailable")
    if free is None:
        return [Check(what, purpose, problem=f"{MEMINFO} does not tell", mend="look with: free -m")]
    if free < ENOUGH_MEMORY:
        return [Check(what, purpose, _mb(free), "little is free", "end other processes there; look with: free -m, top")]
    return [Check(what, purpose, f"{_mb(free)} free")]


def contiguous_memory() -> list[Check]:
    """Return the check of the memory for buffers."""
    what, purpose = "contiguous memory", "buffers outside of the memory that the device tree reserves"
    total, free = _meminfo("CmaTotal"), _meminfo("CmaFree")
    if not total:
        return [Check(what, purpose, problem="Linux has set none aside", mend=CMA)]
    if total < ENOUGH_CONTIGUOUS:
        return [Check(what, purpose, _mb(total), "too little", CMA)]
    return [Check(what, purpose, f"{_mb(total)}, {_mb(free or 0)} free")]


CMA = "add cma=512M to the kernel's boot arguments (docs/boards.md, step 7)"


def disk() -> list[Check]:
    """Return the check of the disk that keeps weights."""
    folder = cache_folder("weights")
    what, purpose = "disk", f"weights, in {folder}"
    existing = next(path for path in (folder, *folder.parents) if path.is_dir())
    free = shutil.disk_usage(existing).free
    if free < ENOUGH_DISK:
        mend = "make room, or enlarge the partition (docs/boards.md, step 2), or name another folder: XDG_CACHE_HOME"
        return [Check(what, purpose, f"{_mb(free)} free", "weights may take half of it", mend)]
    return [Check(what, purpose, f"{_mb(free)} free")]


def _meminfo(key: str) -> int | None:
    """Return a size of /proc/meminfo in bytes, or None if it is not there."""
    try:
        lines = MEMINFO.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    sizes = [line.split() for line in lines if line.startswith(f"{key}:")]
    return int(sizes[0][1]) << 10 if sizes and len(sizes[0]) > 1 and sizes[0][1].isdecimal() else None


def _mb(size: int) -> str:
    return f"{size / 1e6:,.0f} MB"
