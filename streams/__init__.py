"""Stream programs: tasks with typed streams between them, checked before the run.

`from rsn.streams import *` brings the names of the language; `rsn.streams.check` and `rsn.streams.reader` are tools.
"""

from __future__ import annotations

from .language import (
    Layout,
    Stream,
    bf16,
    boolean,
    data,
    drop,
    f16,
    f32,
    f64,
    get_tid,
    grid,
    i8,
    i16,
    i32,
    i64,
    meta_elif,
    meta_else,
    meta_for,
    meta_if,
    task,
    tile,
    u8,
    u16,
    u32,
    u64,
    use,
)

__all__ = [
    "Layout",
    "Stream",
    "bf16",
    "boolean",
    "data",
    "drop",
    "f16",
    "f32",
    "f64",
    "get_tid",
    "grid",
    "i8",
    "i16",
    "i32",
    "i64",
    "meta_elif",
    "meta_else",
    "meta_for",
    "meta_if",
    "task",
    "tile",
    "u8",
    "u16",
    "u32",
    "u64",
    "use",
]
