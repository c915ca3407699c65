"""The choice of a shape bucket: the cheapest that fits, whoever asks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import signature
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from rsn.base.errors import TensorError  # noqa: E402
from rsn.host.serving.family import ProgramFamily  # noqa: E402 - torch first: it may be missing
from rsn.rsnlib.call_padding import CallPadding  # noqa: E402
from rsn.rsnlib.shape_buckets import (  # noqa: E402
    MAX_SHOWN,
    Extent,
    SequenceSize,
    ShapeBuckets,
    SizeBucket,
    SlotBucket,
    no_bucket,
)
from rsn.rsnlib.shapes import Arguments, Batch, Length  # noqa: E402
from rsn.tests.host.rigged import attention  # noqa: E402

SIZE = st.integers(1, 9)
EXTENT = st.builds(Extent, SIZE, st.booleans())
SLOTS = st.builds(SlotBucket, st.lists(SIZE, max_size=4).map(tuple), st.booleans())
SEQUENCES = st.lists(st.builds(SequenceSize, SIZE, st.booleans()), min_size=1, max_size=4)


def fits_somehow(bucket: SlotBucket, asked: Sequence[SequenceSize]) -> bool:
    """By trying each way to give each sequence a slot of its own."""

    def goes(slot: int, sequence: SequenceSize) -> bool:
        return sequence.rows <= slot if bucket.masked else sequence.rows == slot and not sequence.needs_mask

    return any(all(map(goes, slots, asked)) for slots in permutations(bucket.slots, len(asked)))


def is_cheapest(chosen: Any, buckets: Sequence[Any], fits: Callable[[Any], bool]) -> bool:
    """By the order that the module states, written down once more: fewest rows, then first in the list."""
    fitting = [i for i, bucket in enumerate(buckets) if fits(bucket)]
    best = min(fitting, key=lambda i: (buckets[i].rows, i), default=None)
    return chosen is None if best is None else chosen is buckets[best]


@given(st.integers(1, 3).flatmap(lambda n: st.tuples(
    st.lists(st.lists(EXTENT, min_size=n, max_size=n).map(tuple).map(SizeBucket), max_size=6),
    st.lists(st.integers(0, 10), min_size=n, max_size=n),
)))  # fmt: skip
def test_a_call_takes_the_cheapest_bucket_that_fits(drawn: tuple[list[SizeBucket], list[int]]) -> None:
    buckets, asked = drawn

    def fits(bucket: SizeBucket) -> bool:
        return all(n == e.size if e.exact else 1 <= n <= e.size for n, e in zip(asked, bucket.extents, strict=True))

    assert is_cheapest(ShapeBuckets(buckets).choose(asked), buckets, fits)


@given(st.lists(SLOTS, max_size=5), SEQUENCES)
def test_sequences_take_the_cheapest_bucket_with_slots_for_all(
    buckets: list[SlotBucket], asked: list[SequenceSize]
) -> None:
    chosen = ShapeBuckets(buckets).choose(asked)
    assert is_cheapest(chosen, buckets, lambda bucket: fits_somehow(bucket, asked))
    if chosen is not None:
        slots = chosen.place(asked)
        assert slots is not None
        assert len(set(slots)) == len(asked)
        assert all(x.rows <= chosen.slots[slot] for x, slot in zip(asked, slots, strict=True))


@given(
    st.lists(st.lists(SIZE, min_size=1, max_size=3, unique=True), min_size=1, max_size=3),
    st.lists(st.booleans(), min_size=3, max_size=3),
    st.lists(SIZE, min_size=3, max_size=3),
)
def test_of_all_combinations_each_dimension_has_its_smallest(
    sizes: list[list[int]], exact: list[bool], asked: list[int]
) -> None:
    """What `dynamic_shapes` promises, though rows are compared as a product."""
    dims = [Length(*of, exact=e) for of, e in zip(sizes, exact, strict=False)]
    shapes = {"x": dict(enumerate(dims))}
    example = (torch.zeros(*(d.sizes[-1] for d in dims)),)
    arguments = Arguments(signature(lambda x: x), example, shapes)
    chosen = arguments.buckets().choose(asked[: len(arguments.dims)])  # equal ones are one dimension
    best = [
        min((n for n in dim.sizes if (n == size if dim.exact else n >= size)), default=None)
        for dim, size in zip(arguments.dims, asked, strict=False)
    ]
    assert (chosen is None) == (None in best)
    assert chosen is None or list(chosen.sizes) == best


@given(st.lists(SLOTS, max_size=5), SEQUENCES)
def test_what_fits_any_bucket_fits_one_that_is_shown(buckets: list[SlotBucket], asked: list[SequenceSize]) -> None:
    shown = ShapeBuckets(buckets).shown()
    if any(bucket.fits(asked) for bucket in buckets):
        assert any(bucket.fits(asked) for bucket in buckets if str(bucket) in shown)


def test_families_and_servers_refuse_in_the_same_words() -> None:
    x = torch.zeros(1, 8, 64)
    dims = {0: Batch(1, 4), 1: Length(8, 16)}
    padding = CallPadding(Arguments(signature(lambda x: x), (x,), {"x": dims}), ())
    family = ProgramFamily([attention(batch, seq).program for seq in (8, 16) for batch in (1, 4)])
    for batch, seq in ((5, 8), (1, 17)):
        with pytest.raises(TensorError) as told:
            padding.fit((torch.zeros(batch, seq, 64),), {})
        with pytest.raises(TensorError) as told_by_server:
            family.admit({"x": np.zeros((batch, seq, 64), np.float32)}, {})
        message = f"no program takes x of ({batch}, {seq}, 64); there are programs for batch 1 to 4, length 1 to 16"
        assert str(told.value) == str(told_by_server.value) == message
    assert padding.fit((torch.zeros(2, 9, 64),), {}).taken == (4, 16)
    request = family.admit({"x": np.zeros((2, 9, 64), np.float32)}, {})
    assert family.batch([request]).member.slots == (16,) * 4


def test_buckets_in_words() -> None:
    def shown(*buckets: Any) -> list[str]:
        return ShapeBuckets(buckets).shown()

    assert shown(SlotBucket((20, 200, 130), True), SlotBucket((), True)) == ["batch 1 to 3, lengths up to 20, 130, 200"]
    assert shown(SlotBucket((8, 8), False), SlotBucket((8,), False)) == ["batch 1 to 2, length 8"]
    src, tgt = Length(4, 8), Length(3)
    arguments = Arguments(
        signature(lambda a, b: a), (torch.zeros(1, 4), torch.zeros(1, 3)), {"a": {1: src}, "b": {1: tgt}}
    )
    assert arguments.buckets().shown() == ["length of a 1 to 8, length of b 1 to 3"]
    many = shown(*(SizeBucket((Extent(n, exact=True),)) for n in range(1, MAX_SHOWN + 3)))
    assert str(no_bucket({"x": (1, 20)}, many)) == (
        "no program takes x of (1, 20); there are programs for length 1; length 2; length 3; length 4; length 5; "
        "length 6; and 2 more"
    )
