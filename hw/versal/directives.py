"""The pragmas of Vitis HLS 2024.1, as a table: what each may say and must say, and where it may stand, after UG1399.

A directive that is not in it needs a row before it is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class PragmaValue(Enum):
    """What the value of an option may be, if it is not one of a few words."""

    NUMBER = "a number"
    VARIABLE = "a variable"
    PORT = "an argument of the function"
    FUNCTION = "a function"
    NAME = "a name"


Legal = PragmaValue | frozenset[str]
"""What an option may be: a kind of value, or one of these words, in lower case."""


class PragmaPlace(Enum):
    """Where a pragma may stand. The value of a member is its text in a finding."""

    FUNCTION = "at the head of a function"
    LOOP = "in the body of a loop"
    LOOP_OR_FUNCTION = "in the body of a loop or function"
    INSIDE = "inside a function"


@dataclass(frozen=True)
class Directive:
    """One directive, with what its pragma may say.

    section: its page of UG1399 (2024.1), in the chapter HLS Pragmas. place: where it may stand. options: by key, what
    the value in `key=value` may be. words: words that may stand alone, without a value. required: options that must be
    there; `a|b` if one of the two must. free: an option whose value may also stand without its key, as in `INTERFACE
    axis`."""

    section: str
    place: PragmaPlace
    options: Mapping[str, Legal] = field(default_factory=dict)
    words: frozenset[str] = frozenset()
    required: tuple[str, ...] = ()
    free: str = ""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_BOOL = _words("true false")
_NUMBER, _VARIABLE, _NAME = PragmaValue.NUMBER, PragmaValue.VARIABLE, PragmaValue.NAME

INTEGER_OPERATIONS = _words("mul add sub")
FLOAT_OPERATIONS = frozenset(
    kind + what for kind in "fd" for what in _words("add sub div exp log mul rsqrt recip sqrt")
) | _words("hadd hsub hdiv hmul hsqrt facc fmacc fmadd")
OPERATORS: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(INTEGER_OPERATIONS, _words("fabric dsp")),
    **dict.fromkeys(FLOAT_OPERATIONS, _words("fabric meddsp fulldsp maxdsp primitivedsp")),
}
"""Implementations by operation of BIND_OP. Not every float operation has every one; HLS says which it took."""

_RAM = _words("auto memory bram lutram uram")
STORAGE: Mapping[str, frozenset[str]] = {
    "fifo": _RAM | {"srl"},
    "ram_1p": _RAM,
    "ram_1wnr": _RAM,
    "ram_2p": _RAM,
    "ram_s2p": _RAM | {"bram_ecc", "uram_ecc"},
    "ram_t2p": _RAM - {"lutram"},
    **dict.fromkeys(("rom_1p", "rom_2p", "rom_np"), _RAM - {"uram"}),
}
"""Implementations by type of memory of BIND_STORAGE."""

MEMORY_OPTIONS = _words(
    "bundle depth offset latency channel max_widen_bitwidth max_read_burst_length max_write_burst_length "
    "num_read_outstanding num_write_outstanding"
)
"""Options of INTERFACE for m_axi. `ONLY_MEMORY` of them are for no other mode."""
ONLY_MEMORY = MEMORY_OPTIONS - {"bundle", "depth", "offset", "latency"}

MODES = _words(
    "ap_none ap_stable ap_vld ap_ack ap_hs ap_ovld ap_memory ap_fifo ap_auto bram m_axi s_axilite axis ap_ctrl_none "
    "ap_ctrl_hs ap_ctrl_chain"
)

_ARRAY: Mapping[str, Legal] = {
    "variable": _VARIABLE,
    "type": _words("cyclic block complete"),
    "factor": _NUMBER,
    "dim": _NUMBER,
    "off": _BOOL,
}

DIRECTIVES: Mapping[str, Directive] = {
    "aggregate": Directive(
        "pragma HLS aggregate",
        PragmaPlace.INSIDE,
        {"variable": _VARIABLE, "compact": _words("bit byte none auto")},
        required=("variable",),
    ),
    "allocation": Directive(
        "pragma HLS allocation",
        PragmaPlace.INSIDE,
        {"instances": PragmaValue.FUNCTION, "limit": _NUMBER, "type": _words("function operation")},
        required=("type", "instances", "limit"),
        free="type",
    ),
    "array_partition": Directive(
        "pragma HLS array_partition", PragmaPlace.INSIDE, _ARRAY, required=("variable", "type|off"), free="type"
    ),
    "array_reshape": Directive(
        "pragma HLS array_reshape",
        PragmaPlace.INSIDE,
        _ARRAY,
        _words("object"),
        required=("variable", "type|off"),
        free="type",
    ),
    "bind_op": Directive(
        "pragma HLS bind_op",
        PragmaPlace.INSIDE,
        {
            "variable": _VARIABLE,
            "op": frozenset(OPERATORS),
            "impl": frozenset().union(*OPERATORS.values()),
            "latency": _NUMBER,
        },
        required=("variable", "op"),
    ),
    "bind_storage": Directive(
        "pragma HLS bind_storage",
        PragmaPlace.INSIDE,
        {
            "variable": _VARIABLE,
            "type": frozenset(STORAGE),
            "impl": frozenset().union(*STORAGE.values()),
            "latency": _NUMBER,
        },
        required=("variable", "type"),
    ),
    "dataflow": Directive(
        "pragma HLS dataflow", PragmaPlace.LOOP_OR_FUNCTION, words=_words("disable_start_propagation")
    ),
    "dependence": Directive(
        "pragma HLS dependence",
        PragmaPlace.INSIDE,
        {
            "variable": _VARIABLE,
            "class": _words("array pointer"),
            "type": _words("inter intra"),
            "direction": _words("raw war waw"),
            "distance": _NUMBER,
            "dependent": _BOOL,
        },
        required=("variable|class", "type", "dependent"),
    ),
    "disaggregate": Directive(
        "pragma HLS disaggregate", PragmaPlace.INSIDE, {"variable": _VARIABLE}, required=("variable",)
    ),
    "expression_balance": Directive("pragma HLS expression_balance", PragmaPlace.INSIDE, words=_words("off")),
    "function_instantiate": Directive(
        "pragma HLS function_instantiate", PragmaPlace.FUNCTION, {"variable": _VARIABLE}, required=("variable",)
    ),
    "inline": Directive("pragma HLS inline", PragmaPlace.FUNCTION, words=_words("off recursive")),
    "interface": Directive(
        "pragma HLS interface",
        PragmaPlace.FUNCTION,
        {
            "mode": MODES,
            "port": PragmaValue.PORT,
            "name": _NAME,
            "clock": _NAME,
            "bundle": _NAME,
            "channel": _NAME,
            "offset": _NAME,
            "register_mode": _words("both forward reverse off"),
            "storage_type": frozenset(STORAGE) - {"fifo"},
            "storage_impl": frozenset().union(*STORAGE.values()) - {"srl"},
            "interrupt": _NUMBER,
            **dict.fromkeys(MEMORY_OPTIONS - {"bundle", "channel", "offset"}, _NUMBER),
        },
        _words("register direct_io"),
        required=("mode", "port"),
        free="mode",
    ),
    "latency": Directive(
        "pragma HLS latency", PragmaPlace.INSIDE, {"min": _NUMBER, "max": _NUMBER}, required=("min|max",)
    ),
    "loop_flatten": Directive("pragma HLS loop_flatten", PragmaPlace.LOOP, words=_words("off")),
    "loop_merge": Directive("pragma HLS loop_merge", PragmaPlace.INSIDE, words=_words("force")),
    "loop_tripcount": Directive(
        "pragma HLS loop_tripcount",
        PragmaPlace.LOOP,
        {"min": _NUMBER, "max": _NUMBER, "avg": _NUMBER},
        required=("max",),
    ),
    "occurrence": Directive(
        "pragma HLS occurrence", PragmaPlace.INSIDE, {"cycle": _NUMBER, "off": _BOOL}, required=("cycle|off",)
    ),
    "pipeline": Directive(
        "pragma HLS pipeline",
        PragmaPlace.LOOP_OR_FUNCTION,
        {"ii": _NUMBER, "style": _words("stp flp frp")},
        _words("off rewind"),
    ),
    "protocol": Directive("pragma HLS protocol", PragmaPlace.INSIDE, {"mode": _words("floating fixed")}),
    "reset": Directive(
        "pragma HLS reset", PragmaPlace.INSIDE, {"variable": _VARIABLE}, _words("off"), required=("variable",)
    ),
    "stable": Directive("pragma HLS stable", PragmaPlace.FUNCTION, {"variable": _VARIABLE}, required=("variable",)),
    "stream": Directive(
        "pragma HLS stream",
        PragmaPlace.INSIDE,
        {"variable": _VARIABLE, "type": _words("fifo pipo shared unsync"), "depth": _NUMBER},
        _words("off"),
        required=("variable",),
    ),
    "top": Directive("pragma HLS top", PragmaPlace.FUNCTION, {"name": _NAME}),
    "unroll": Directive(
        "pragma HLS unroll", PragmaPlace.LOOP, {"factor": _NUMBER, "off": _BOOL}, _words("skip_exit_check")
    ),
}
"""By name, in lower case; the case of names in a pragma does not matter."""
