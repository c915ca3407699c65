"""Bit fields: one class per word format, its codec and its range checks derived from the annotations.

A format is a frozen dataclass whose fields say where they sit::

    class MemA(Record, words=1):
        dim1: int = bits(0, 0, 9, "rows to load")

The table is checked when the class is made: fields may neither overlap nor leave their word, names are unique. An
instance that does not fit its fields cannot exist (`FieldError`).
"""

from __future__ import annotations

import dataclasses
import math
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

from ..base.errors import FieldError
from ..machine.unit import Immutable


@dataclasses.dataclass(frozen=True)
class Field:
    """Where a value sits: `width` bits from bit `low` of word `word`, and how people spell it.

    to, source: a one-bit field that stands for a stream: the peer unit it sends to or receives from. Both: a route.
    """

    name: str
    word: int
    low: int
    width: int
    doc: str
    signed: bool = False
    real: bool = False
    to: str | None = None
    source: str | None = None

    @property
    def flag(self) -> bool:
        return self.width == 1

    @property
    def mask(self) -> int:
        return ((1 << self.width) - 1) << self.low

    @property
    def bounds(self) -> tuple[int, int]:
        """Smallest and largest value that fit."""
        if self.signed:
            return -(1 << (self.width - 1)), (1 << (self.width - 1)) - 1
        return 0, (1 << self.width) - 1


def bits(
    word: int,
    low: int,
    width: int,
    doc: str,
    *,
    default: Any = 0,
    signed: bool = False,
    real: bool = False,
    to: str | None = None,
    source: str | None = None,
) -> Any:
    """Declare a field of a `Record`. `real` reads the 32 bits as an IEEE float32."""
    spec = Field("", word, low, width, doc, signed, real, to, source)
    return dataclasses.field(default=default, metadata={"bits": spec})


class Record(Immutable):
    """A fixed number of 32-bit words, made of fields. Subclass with `words=N`."""

    WORDS: ClassVar[int] = 0
    FIELDS: ClassVar[tuple[Field, ...]] = ()
    PADDING: ClassVar[tuple[int, ...]] = ()
    _BOUNDS: ClassVar[tuple[tuple[str, int, int], ...]] = ()
    _REALS: ClassVar[tuple[str, ...]] = ()
    _PLAIN: ClassVar[tuple[tuple[str, int, int, int], ...]] = ()
    """Name, word, lowest bit and mask before shifting, of what is neither signed nor real: nearly all fields, and what
    takes nearly all the time of the codec."""
    _OTHER: ClassVar[tuple[Field, ...]] = ()

    if TYPE_CHECKING:  # made by `dataclass`; every field has a default, which dataclass_transform cannot be told

        def __init__(self, **values: float) -> None: ...

    def __init_subclass__(cls, *, words: int, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        dataclasses.dataclass(frozen=True, kw_only=True)(cls)
        specs = [
            dataclasses.replace(f.metadata["bits"], name=f.name)
            for f in dataclasses.fields(cls)  # type: ignore[arg-type]
            if "bits" in f.metadata
        ]
        used = [0] * words
        for spec in specs:
            if spec.word >= words or spec.low + spec.width > 32:
                raise TypeError(f"{cls.__name__}.{spec.name} lies outside its {words} words")
            if used[spec.word] & spec.mask:
                raise TypeError(f"{cls.__name__}.{spec.name} overlaps another field in word {spec.word}")
            used[spec.word] |= spec.mask
        cls.WORDS = words
        cls.FIELDS = tuple(specs)
        cls.PADDING = tuple(0xFFFF_FFFF & ~u for u in used)
        cls._BOUNDS = tuple((s.name, *s.bounds) for s in specs if not s.real)
        cls._REALS = tuple(s.name for s in specs if s.real)
        cls._OTHER = tuple(s for s in specs if s.signed or s.real)
        cls._PLAIN = tuple((s.name, s.word, s.low, s.mask >> s.low) for s in specs if s not in cls._OTHER)

    def __post_init__(self) -> None:
        values = self.__dict__
        for name, low, high in self._BOUNDS:
            if not low <= values[name] <= high:
                self._refuse(name)
        if self._REALS:
            self._round()

    def _refuse(self, name: str) -> None:
        low, high = self.field(name).bounds
        width = (high - low + 1).bit_length() - 1
        value = getattr(self, name)
        raise FieldError(f"{type(self).__name__}.{name}: {value} does not fit in {width} bits ({low}..{high})")

    def _round(self) -> None:
        for name in self._REALS:  # as the wire holds it, so that what is decoded equals what was encoded
            value = getattr(self, name)
            try:
                (rounded,) = struct.unpack("<f", struct.pack("<f", value))
            except OverflowError:
                rounded = math.inf
            if not math.isfinite(rounded):
                raise FieldError(f"{type(self).__name__}.{name}: {value} is not a finite float32")
            object.__setattr__(self, name, rounded)

    @classmethod
    def field(cls, name: str) -> Field:
        for spec in cls.FIELDS:
            if spec.name == name:
                return spec
        raise FieldError(
            f"{cls.__name__} has no field {name!r}; its fields are {', '.join(f.name for f in cls.FIELDS)}"
        )

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed."""
        out = object.__new__(type(self))
        values = out.__dict__
        values.update(self.__dict__)
        values.update(changes)
        if len(values) > len(self.__dict__):
            raise TypeError(f"{type(self).__name__} has no {', '.join(changes.keys() - self.__dict__.keys())}")
        for name, low, high in self._BOUNDS:
            if name in changes and not low <= values[name] <= high:
                out._refuse(name)
        if self._REALS:
            out._round()
        return out

    def encode(self) -> tuple[int, ...]:
        """The words on the wire, padding 0."""
        out = [0] * self.WORDS
        values = self.__dict__
        for name, word, low, _ in self._PLAIN:
            out[word] |= int(values[name]) << low
        for spec in self._OTHER:
            value = values[spec.name]
            if spec.real:
                (value,) = struct.unpack("<I", struct.pack("<f", value))
            out[spec.word] |= (int(value) << spec.low) & spec.mask
        return tuple(out)

    @classmethod
    def decode(cls, words: Sequence[int]) -> Self:
        """The record in `words`; padding bits are masked, as the hardware does (see `padding_set`)."""
        if len(words) != cls.WORDS:
            raise FieldError(f"{cls.__name__} takes {cls.WORDS} words, not {len(words)}")
        raw = [int(w) for w in words]
        values: dict[str, Any] = {name: raw[word] >> low & mask for name, word, low, mask in cls._PLAIN}
        for spec in cls._OTHER:
            value = (raw[spec.word] & spec.mask) >> spec.low
            if spec.real:
                values[spec.name] = struct.unpack("<f", struct.pack("<I", value))[0]
            else:
                values[spec.name] = value - (1 << spec.width) if value >> (spec.width - 1) else value
        # What comes out of a field fits into it: only reals are left to check.
        out = cls.__new__(cls)
        out.__dict__.update(values)
        out._round()
        return out

    @classmethod
    def padding_set(cls, words: Sequence[int]) -> bool:
        """Whether bits that mean nothing are set: harmless on the machine, but a sign of a sloppy generator."""
        return any(int(w) & p for w, p in zip(words, cls.PADDING, strict=True))
