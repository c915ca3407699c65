"""The programs, how long each takes, and which of them see a mistake in each kernel."""

from __future__ import annotations

from collections.abc import Callable

from rsn.isa.overlay import Overlay
from rsn.isa.overlays.xnn import formats as f
from rsn.tests.hw.score_modes import Scores
from rsn.tests.hw.store_modes import Halves
from rsn.tests.isa.mutants.mode_programs import both, leaving, loads, loads_without_mean, parts, stores, table, values
from rsn.tests.isa.mutants.programs import (
    CAUSAL,
    EARLY,
    MASKED,
    activations,
    attention,
    flags,
    groups,
    halves,
    in_place,
    long_vector,
    modes,
    norm,
    on_the_way,
    pieces,
    products,
    softmax,
    stale,
)
from rsn.tests.isa.mutants.steps import (
    Outcome,
    random,
)

PROGRAMS: dict[str, Callable[[Overlay], Outcome]] = {
    "flags": flags,
    "stale": stale,
    "pieces": pieces,
    "in place": in_place,
    "on the way": on_the_way,
    "modes": modes,
    "groups": groups,
    "long vector": long_vector,
    "activations": activations,
    "attention": attention((None, None), softmax),
    "attention, masked": attention(
        [f.MemCConfig(softmax_cols=n, max_sub=1, scale=0.5) for n in (200, 90)],
        lambda s: softmax(s, MASKED, 0.5),
        size=30,
        loud=slice(256 + 90, None),
    ),
    "attention, causal": attention([f.MemCConfig(causal=1, offset=100)] * 2, lambda s: softmax(s, CAUSAL), pair=1),
    "attention, no keys": attention([f.MemCConfig(causal=1, offset=-3, max_sub=1)] * 2, lambda s: softmax(s, EARLY)),
    "attention, alone": attention([f.MemCConfig(alone=1)] * 2, halves, pair=1),
    "attention, alone, maxima": attention([f.MemCConfig(alone=1, max_sub=1)] * 2, halves, size=30),
    "norm": norm((None, None)),
    "norm, columns": norm((f.MemCConfig(norm_cols=320, eps=0.01), f.MemCConfig(norm_cols=64, eps=0.01)), 1),
    "norm, rms": norm([f.MemCConfig(rms=1, norm_cols=256)] * 2),
    "products": products,
    "parts": parts(Scores(random(192, 3, 2, 128, 128) * 20, max_sub=0, first=200, end=700, low=120, offset=650)),
    "parts, alone": parts(Scores(random(193, 2, 2, 128, 128) * 4, alone=1, cap=3.0, scale=0.5, offset=100)),
    "parts, late": parts(Scores(random(194, 2, 2, 128, 128), first=300, offset=250)),
    "softcap": parts(Scores(random(195, 1, 2, 128, 128) * 4, parts=False, cap=3.0, first=5)),
    "softcap, alone": parts(Scores(random(197, 1, 2, 128, 128) * 4, parts=False, alone=1, max_sub=0, cap=3.0)),
    "leaving": leaving,
    "gate": stores(
        Halves(
            random(182, 2, 256, 256),
            (128, 64),
            both(f.MemCConfig(activation=3)),
            both(f.MemCStore(gate=1)),
            {"gelu": 1},
        )
    ),
    "heads": stores(
        Halves(
            random(183, 2, 256, 256) + 1,
            (256, 128),
            both(f.MemCConfig(eps=0.25)),
            both(f.MemCStore(head=1, head_norm=1, head_cols=40, rotate=1)),
            {"layernorm": 1},
            table(64),
            repeats=2,
        )
    ),
    "statistics": stores(
        Halves(
            random(184, 2, 256, 256) * 3 + 1,
            (256, 128),
            (f.MemCConfig(norm_cols=256), f.MemCConfig(norm_cols=100)),
            both(f.MemCStore(statistics=1)),
            {"layernorm": 1},
            repeats=4,
        )
    ),
    "values": values,
    "loads": loads,
    "loads, rms": loads_without_mean,
}

SECONDS = {
    "flags": 2.047672092930422e-05,
    "stale": 2.547172092930422e-05,
    "pieces": 3.0243378146676056e-05,
    "in place": 0.0001207474349222824,
    "on the way": 2.702005899773985e-05,
    "modes": 4.294872092930422e-05,
    "groups": 8.377937545312329e-05,
    "long vector": 7.515044486200533e-05,
    "activations": 0.00034484317755778207,
    "attention": 8.16220919647728e-05,
    "attention, masked": 8.876043628711714e-05,
    "attention, causal": 8.16220919647728e-05,
    "attention, no keys": 8.876043628711714e-05,
    "attention, alone": 8.16220919647728e-05,
    "attention, alone, maxima": 8.783735936404021e-05,
    "norm": 0.0002650178304107238,
    "norm, columns": 0.00039104859964149256,
    "norm, rms": 0.0002650178304107238,
    "products": 0.00047067186813186705,
    "values": 8.774966939443543e-05,
    "parts": 6.061503452575794e-05,
    "parts, alone": 9.694567438235526e-05,
    "parts, late": 3.982439638375809e-05,
    "softcap": 3.847674803210972e-05,
    "leaving": 0.00016926551398955658,
    "softcap, alone": 3.3122597459278305e-05,
    "gate": 6.870393889798148e-05,
    "heads": 0.0005041834918556627,
    "statistics": 0.0005879373760423978,
    "loads": 4.3301759800483195e-05,
    "loads, rms": 1.3451835554516407e-05,
}
"""How long each takes by the clocks of the executor."""

FIRST = {
    "DDR and LPDDR": ("pieces", "in place", "flags", "long vector"),
    "ring of slots": ("flags", "pieces", "loads", "on the way", "stale", "statistics"),
    "buffer": ("pieces", "stale", "attention", "long vector", "groups"),
    "MemA": ("flags", "attention", "pieces"),
    "MemB": ("flags", "attention", "long vector", "products", "on the way"),
    "MemB2": ("in place", "values", "attention"),
    "MemC": ("pieces", "attention", "in place", "activations", "products"),
    "softmax": ("attention, no keys", "attention, masked", "attention, alone", "attention", "attention, causal"),
    "norm": ("norm, rms", "norm, columns", "norm"),
    "activation": ("in place", "activations"),
    "parts": ("parts", "parts, alone", "softcap", "parts, late", "leaving"),
    "heads and gates": ("gate", "heads"),
    "statistics": ("loads", "loads, rms", "statistics"),
    "Mesh": ("attention", "pieces"),
    "MME": ("flags", "modes", "groups", "on the way", "products"),
}
"""The programs that are most likely to see a mistake in each kernel; the others come after them."""
