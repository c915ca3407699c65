"""Which attention masks are a prefix of keys per sequence, and what is said of the others."""

from __future__ import annotations

import pytest
import torch

from rsn.base.errors import TensorError
from rsn.rsnlib.key_spans import KeySpans
from rsn.rsnlib.mask import Pattern, attended_keys, key_spans, pattern_of

KEYS = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 0, 0, 0, 0]], dtype=torch.bool)


def additive(value: float) -> torch.Tensor:
    return torch.zeros(3, 1, 1, 5).masked_fill(~KEYS[:, None, None], value)


@pytest.mark.parametrize(
    "mask",
    [
        KEYS[:, None, None],
        KEYS[:, None, None].expand(3, 1, 5, 5),
        KEYS[:, None, None].expand(3, 4, 5, 5),
        KEYS[:, None, None].repeat(1, 4, 5, 1),
        additive(float("-inf")),
        additive(torch.finfo(torch.float32).min),
        additive(-10000.0),
        additive(-10000.0).double(),
    ],
    ids=["keys", "rows", "heads", "copied", "inf", "min", "ten thousand", "double"],
)
def test_lengths(mask: torch.Tensor) -> None:
    lengths = key_spans(mask, 3, 5).lengths
    assert lengths.tolist() == [5, 3, 1]
    assert lengths.dtype == "int64"


@pytest.mark.parametrize("shape", [(5,), (1, 5), (5, 5), (1, 1, 5), (1, 1, 1, 5), (1, 2, 5, 5), (3, 1, 1, 1)])
def test_mask_broadcasts_over_sequences(shape: tuple[int, ...]) -> None:
    assert key_spans(torch.ones(shape, dtype=torch.bool), 3, 5).lengths.tolist() == [5, 5, 5]


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (torch.tensor([[1, 1, 1], [1, 0, 1]]).bool()[:, None, None], r"sequence 1 is not a prefix: key 1 is hidden"),
        (torch.tensor([[0, 1, 1], [1, 1, 1]]).bool()[:, None, None], r"sequence 0 is not a prefix.*pad on the right"),
        (torch.tensor([[1, 1, 1], [0, 0, 0]]).bool()[:, None, None], r"hides every key of sequence 1"),
        (torch.ones(3, 3).tril().bool(), "differs between query rows"),
        (torch.eye(3).bool()[None, :, None], "differs between heads"),
        (torch.full((2, 1, 1, 3), -1.0), "0 or at most -10000"),
        (torch.full((2, 1, 1, 3), float("nan")), "0 or at most -10000"),
        (torch.ones(2, 1, 1, 3, dtype=torch.int64), "bool or float, not torch.int64"),
        (torch.ones(2, 1, 1, 2).bool(), r"\(2, 1, 1, 2\) does not fit 2 sequences of 3 keys"),
        (torch.ones(2, 1, 1, 4).bool(), "shows rows of a cache behind the 3 new ones"),
        (torch.ones(4, 1, 1, 3).bool(), r"\(4, 1, 1, 3\) does not fit"),
        (torch.ones(1, 2, 1, 1, 3).bool(), r"\(1, 2, 1, 1, 3\) does not fit"),
    ],
)
def test_other_masks_are_refused(mask: torch.Tensor, message: str) -> None:
    with pytest.raises(TensorError, match=message):
        key_spans(mask, 2, 3)


def test_attended_keys_need_not_be_a_prefix() -> None:
    mask = torch.tensor([[0, 1, 1], [0, 0, 0]]).bool()
    assert attended_keys(mask[:, None, None], 2, 3).tolist() == mask.tolist()


def shown(pattern: Pattern, seq: int, *spans: tuple[int, int]) -> torch.Tensor:
    """The mask, bool (batch, 1, seq, seq), of sequences whose keys are valid from and up to a number."""
    key = torch.arange(seq)
    valid = torch.stack([(key >= first) & (key < end) for first, end in spans])
    return pattern.shows(seq) & valid[:, None, None]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [None, 2, 4])
@pytest.mark.parametrize("spans", [[(0, 9), (0, 5)], [(3, 9), (0, 9)], [(2, 8), (1, 9)]], ids=["right", "left", "both"])
def test_patterns(causal: bool, window: int | None, spans: list[tuple[int, int]]) -> None:
    """What a row sees is found in the example; rows that see nothing may show anything."""
    left = any(first for first, _ in spans)
    pattern = Pattern(causal, window, left)
    mask = shown(pattern, 9, *spans)
    for seen in (mask, mask | ~mask.any(-1, keepdim=True)):
        for form in (seen, torch.where(seen, 0.0, -torch.inf), seen.expand(-1, 3, -1, -1)):
            assert pattern_of(form, 2, 9) == pattern
            found = key_spans(form, 2, 9, pattern)
            assert found.lengths.tolist() == [end for _, end in spans]
            assert (found.starts is not None) == left
            assert not left or list(found.starts) == [first for first, _ in spans]  # type: ignore[arg-type]


def test_run_time_parameters() -> None:
    pattern = Pattern(causal=True, left=True)
    found = key_spans(shown(pattern, 9, (3, 9), (0, 7)), 2, 9, pattern)
    named = {"len[0]": 9, "len[1]": 7, "start[0]": 3, "start[1]": 0}
    assert found.parameters() == named
    assert found.parameters(1) == {"len[0]": 9, "start[0]": 3}
    again = KeySpans.of(named, 2)
    assert again.starts is not None
    assert (again.lengths.tolist(), again.starts.tolist()) == ([9, 7], [3, 0])
    assert KeySpans.of({"len[0]": 4}, 1).starts is None


def test_two_pieces_are_no_pattern() -> None:
    """As of several texts in one sequence."""
    mask = torch.block_diag(torch.ones(3, 3), torch.ones(2, 2)).bool()
    for seen in (mask, mask.tril()):
        with pytest.raises(TensorError, match="differs between query rows"):
            pattern_of(seen, 1, 5)


def test_another_pattern_than_in_the_example() -> None:
    mask = shown(Pattern(), 5, (0, 5))
    with pytest.raises(TensorError, match="is not causal with a window of 2 rows, as it was in the example"):
        key_spans(mask, 1, 5, Pattern(causal=True, window=2))
    with pytest.raises(TensorError, match="or give an example that is padded on the left"):
        key_spans(shown(Pattern(causal=True), 5, (2, 5)), 1, 5, Pattern(causal=True))
    with pytest.raises(TensorError, match="hides a key between others"):
        key_spans(torch.tensor([[0, 1, 0, 1, 0]]).bool(), 1, 5, Pattern(left=True))
