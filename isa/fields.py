"""Bit fields: one class per record format; codec and range checks are derived from its annotations.

A format is a frozen dataclass whose fields state their bits::

    class MemA(Record, words=1):
        dim1: int = bits(0, 0, 9, "rows to load")

The table is checked when the class is defined: fields must not overlap and must lie inside their word. An instance with
a value that does not fit its field cannot be made (`FieldError`).
"""

from __future__ import annotations

import dataclasses
import math
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

from ..base.errors import FieldError


@dataclasses.dataclass(frozen=True)
class Field:
    """One bit field: `width` bits from bit `low` of word `word`.

    doc: its meaning, as text. signed: the bits are two's complement. real: 32 bits that hold an IEEE float32. to,
    source: for a one-bit field that enables a stream: the unit that it sends to, or receives from; with both it is a
    route from `source` to `to`; None for any other field.
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
        """Whether the field has one bit."""
        return self.width == 1

    @property
    def mask(self) -> int:
        """The field's bits in its 32-bit word, as a mask that is not shifted down."""
        return ((1 << self.width) - 1) << self.low

    @property
    def bounds(self) -> tuple[int, int]:
        """The smallest and the largest integer that fit."""
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
    """Declare a field of a `Record`, with a default where no value is given; the other arguments are those of `Field`:
    word, lowest bit (from 0) and width in bits, its meaning, and so on.
    """
    spec = Field("", word, low, width, doc, signed, real, to, source)
    return dataclasses.field(default=default, metadata={"bits": spec})


class Record:
    """A record of N 32-bit words, made of bit fields. Declare a format as `class NAME(Record, words=N)`; add
    `name="..."` if programs name the format otherwise than by its class, for example because two overlays have formats
    of one name.

    NAME: the name of the format in programs. WORDS: N. FIELDS: the fields in declaration order. PADDING: for each word,
    a mask of the bits that belong to no field. A subclass whose fields overlap or leave their word raises `TypeError`
    when it is defined. An instance takes its fields as keywords, and raises `FieldError` for a value that does not fit.
    """

    NAME: ClassVar[str] = ""
    WORDS: ClassVar[int] = 0
    FIELDS: ClassVar[tuple[Field, ...]] = ()
    PADDING: ClassVar[tuple[int, ...]] = ()
    _BOUNDS: ClassVar[tuple[tuple[str, int, int], ...]] = ()
    _REALS: ClassVar[tuple[str, ...]] = ()
    _PLAIN: ClassVar[tuple[tuple[str, int, int, int], ...]] = ()
    """Name, word, lowest bit and unshifted mask of the fields that are neither signed nor real. A table, because nearly
    all fields are of this kind and their codec must be fast."""
    _OTHER: ClassVar[tuple[Field, ...]] = ()

    if TYPE_CHECKING:  # made by `dataclass`; dataclass_transform cannot express that every field has a default

        def __init__(self, **values: float) -> None: ...

    def __init_subclass__(cls, *, words: int, name: str = "", **kwargs: Any) -> None:
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
        cls.NAME = name or cls.__name__
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
        raise FieldError(f"{self.NAME}.{name}: {value} does not fit in {width} bits ({low}..{high})")

    def _round(self) -> None:
        for name in self._REALS:  # rounded to the value on the wire, so that decode(encode(x)) == x
            value = getattr(self, name)
            try:
                (rounded,) = struct.unpack("<f", struct.pack("<f", value))
            except OverflowError:
                rounded = math.inf
            if not math.isfinite(rounded):
                raise FieldError(f"{self.NAME}.{name}: {value} is not a finite float32")
            object.__setattr__(self, name, rounded)

    @classmethod
    def field(cls, name: str) -> Field:
        """Return the field of this name. Raises `FieldError` if there is none."""
        for spec in cls.FIELDS:
            if spec.name == name:
                return spec
        raise FieldError(f"{cls.NAME} has no field {name!r}; its fields are {', '.join(f.name for f in cls.FIELDS)}")

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some fields changed. Raises `FieldError` if a value does not fit its field, `TypeError`
        for an unknown field.
        """
        out = object.__new__(type(self))
        values = out.__dict__
        values.update(self.__dict__)
        values.update(changes)
        if len(values) > len(self.__dict__):
            raise TypeError(f"{self.NAME} has no {', '.join(changes.keys() - self.__dict__.keys())}")
        for name, low, high in self._BOUNDS:
            if name in changes and not low <= values[name] <= high:
                out._refuse(name)
        if self._REALS:
            out._round()
        return out

    def encode(self) -> tuple[int, ...]:
        """Return the 32-bit words of the record; padding bits are 0. Word i of the record is element i."""
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
        """Return the record that the 32-bit integers `words` hold; padding bits are ignored, as by the hardware (see
        `padding_set`).

        Raises `FieldError` for a wrong number of words, or for a real field that is infinite or NaN.
        """
        if len(words) != cls.WORDS:
            raise FieldError(f"{cls.NAME} takes {cls.WORDS} words, not {len(words)}")
        raw = [int(w) for w in words]
        values: dict[str, Any] = {name: raw[word] >> low & mask for name, word, low, mask in cls._PLAIN}
        for spec in cls._OTHER:
            value = (raw[spec.word] & spec.mask) >> spec.low
            if spec.real:
                values[spec.name] = struct.unpack("<f", struct.pack("<I", value))[0]
            else:
                values[spec.name] = value - (1 << spec.width) if value >> (spec.width - 1) else value
        # A value read from a field fits into it: only reals need a check.
        out = cls.__new__(cls)
        out.__dict__.update(values)
        out._round()
        return out

    @classmethod
    def padding_set(cls, words: Sequence[int]) -> bool:
        """Whether padding bits of the record's `words` are set. The hardware ignores them, but they show a faulty
        generator. Raises `ValueError` for a wrong number of words.
        """
        return any(int(w) & p for w, p in zip(words, cls.PADDING, strict=True))
