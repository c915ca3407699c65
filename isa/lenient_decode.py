"""Images made elsewhere: read as far as the hardware would understand them, with everything it would misread.

`packet.decode_image` refuses the first defect, as a loader must. Here every defect is reported with its word, and
decoding goes on where it is known how: padding bits are masked, reuse 0 is kept, opcode 0 is one skipped word.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..base.errors import FieldError
from ..base.finding import Finding
from .fields import Record
from .overlay import Overlay
from .packet import NOP, Header, Packet, Words

MAX = 8
"""Places that one finding about sloppy bits names."""
MAX_KEY = 40
"""Characters of an unknown key that a finding shows."""


@dataclass
class LenientImage:
    """What was read. complete: the whole image could be told into packets."""

    packets: tuple[Packet, ...] = ()
    findings: list[Finding] = field(default_factory=list)
    complete: bool = False


def read_image(data: bytes, overlay: Overlay) -> LenientImage:
    """Decode the bytes of a bare image. Never raises."""
    out = LenientImage()
    reader = _Reader(overlay, out)
    if len(data) % 4:
        text = f"an image consists of words of 4 bytes, this one has {len(data)} bytes"
        reader.error("F01", len(data) // 4, text, "the file was cut, or is no image")
    reader.image(np.frombuffer(data[: len(data) // 4 * 4], "<u4"))
    return out


def read_op_lists(lists: Any, overlay: Overlay) -> tuple[dict[str, tuple[Record, ...]], list[Finding]]:
    """Op lists from JSON: the index of an MME ("0"), or the name of a unit ("MME0"), to a list of words."""
    ops: dict[str, tuple[Record, ...]] = {}
    found: list[Finding] = []
    if not isinstance(lists, Mapping):
        text = "expected an object of indices or unit names with lists of op words"
        return ops, [Finding("F12", text, "op lists")]
    units = _op_list_keys(overlay)
    keys: dict[str, str] = {}
    for key, words in lists.items():
        unit = units.get(key)
        if unit is None:
            text = f"overlay {overlay.name} has no unit {_shown(key)} with an op list"
            known = f"its keys are {', '.join(units)}" if units else "its units have no op lists"
            found.append(Finding("M01", f"{text}; {known}", f"key {_shown(key)}"))
            continue
        if unit in keys:
            text = f"{unit} has two op lists, under the keys {keys[unit]} and {key}"
            found.append(Finding("F12", text, f"key {key}"))
            continue
        keys[unit] = key
        record, _ = overlay.preloaded[overlay.by_unit[unit].kind]
        if not isinstance(words, list) or not all(type(w) is int and 0 <= w < 1 << 32 for w in words):
            found.append(Finding("F12", f"the ops of {unit} (key {key}) are not a list of 32-bit words", unit))
            continue
        sloppy = [i for i, w in enumerate(words) if record.padding_set([w])]
        if sloppy:
            text = f"bits that mean nothing are set in {_places('op', sloppy)}; they are masked"
            found.append(Finding("F10", text, unit, True, "write them as 0", times=len(sloppy)))
        ops[unit] = tuple(record.decode([w]) for w in words)
    return ops, found


def _op_list_keys(overlay: Overlay) -> dict[str, str]:
    """What a unit with an op list may be called: its index, where no other type of unit has op lists, and its name."""
    named = [u for u in overlay.units if u.kind in overlay.preloaded]
    indices = {str(u.index): u.name for u in named} if len(overlay.preloaded) == 1 else {}
    return indices | {u.name: u.name for u in named}


def _shown(key: object) -> str:
    """A key of somebody else's file, fit to stand in a message of one line."""
    text = str(key)
    return text if text.isprintable() and 0 < len(text) <= MAX_KEY else repr(text[:MAX_KEY])


def _places(what: str, at: Sequence[int]) -> str:
    shown = ", ".join(map(str, at[:MAX])) + (f" and {len(at) - MAX} more" if len(at) > MAX else "")
    return f"{what}{'s' if len(at) > 1 else ''} {shown}"


class _Reader:
    def __init__(self, overlay: Overlay, out: LenientImage) -> None:
        self.overlay = overlay
        self.out = out

    def error(self, code: str, word: int, text: str, help: str, warning: bool = False, times: int = 1) -> None:
        self.out.findings.append(Finding(code, text, f"word {word}", warning, help, times))

    def image(self, words: Words) -> None:
        if len(words) < 2:
            self.error("F01", 0, f"an image has at least 2 words, this one {len(words)}", "is the file complete?")
            return
        raw: list[int] = words.tolist()
        announced, packets, held = raw[0], raw[1], len(raw) - 2
        if announced > held:
            text = f"announces {announced} packet words and holds {held}: the dispatcher would read beyond it"
            self.error("F02", 0, text, f"write {held}, or all the words")
        elif announced < held:
            text = f"announces {announced} packet words and holds {held}: the dispatcher would stop early"
            self.error("F02", 0, text, f"write {held}, or cut the file")
        self.out.complete = self._packets(raw, 2 + min(announced, held))
        found = len(self.out.packets)
        if self.out.complete and packets != found:
            after = "the rest is never issued" if packets < found else "the dispatcher waits for more"
            self.error("F03", 1, f"announces {packets} packets and holds {found}: {after}", f"write {found}")

    def _packets(self, raw: Sequence[int], end: int) -> bool:
        """Packets up to word `end`; whether all words could be told into packets."""
        out: list[Packet] = []
        skipped: list[int] = []
        dirty: list[int] = []
        padded: list[int] = []
        idle: list[int] = []
        at, good = 2, True
        while at < end and good:
            header = Header.decode(raw[at : at + 1])
            if header.opcode == NOP:
                (dirty if raw[at] else skipped).append(at)
                out.append(Packet(Header(opcode=NOP)))
                at += 1
                continue
            stop, packet = self._packet(header, raw, at, end, padded)
            if packet is None:
                good = False
                break
            if not header.reuse and packet.mops:
                idle.append(at)
            out.append(packet)
            at = stop
        self.out.packets = tuple(out)
        for code, places, text, way_out in (
            ("F11", skipped, "opcode 0: skipped, and counted in W and P", "drop it, if nobody patches it later"),
            (
                "F11",
                dirty,
                "opcode 0 with other bits set: skipped as one word without payload",
                "did it mean to say more?",
            ),
            ("F10", padded, "bits that mean nothing are set; they are masked", "write them as 0"),
            (
                "F13",
                idle,
                "reuse 0: the operations are consumed and nothing is issued",
                "drop the packet, or set reuse",
            ),
        ):
            if places:
                text = f"{text} ({_places('word', places)})"
                self.error(code, places[0], text, way_out, warning=True, times=len(places))
        return good

    def _packet(
        self, header: Header, raw: Sequence[int], at: int, end: int, padded: list[int]
    ) -> tuple[int, Packet | None]:
        """One packet, and the word behind it; none where the hardware would lose its place."""
        form = self.overlay.by_opcode.get(header.opcode)
        lost = "; where the next packet begins is not known"
        if form is None:
            text = f"opcode {header.opcode} means nothing on overlay {self.overlay.name}{lost}"
            other = " (opcode 8 belongs to overlay xnn: --overlay xnn)" if header.opcode == 8 else ""
            self.error("F04", at, text, f"is it an image for another overlay{other}, or a payload of another length?")
            return at, None
        if header.last and (header.window or header.reuse):
            text = f"a terminator has window = reuse = 0, not {header.window} and {header.reuse}{lost}"
            self.error("F05", at, text, "clear the last bit, or window and reuse")
            return at, None
        if header.last and form.config:
            self.error("F05", at, f"a {form.name} packet cannot be a terminator{lost}", "clear the last bit")
            return at, None
        size = form.mop.WORDS
        stop = at + 1 + header.window * size
        if stop > end:
            text = f"a packet of {header.window} {form.name} mOPs ends at word {stop}, behind the image's end {end}"
            self.error("F06", at, text, "is the window right, and the image complete?")
            return at, None
        mops = []
        for word in range(at + 1, stop, size):
            words = raw[word : word + size]
            padded += [word + i for i, (w, p) in enumerate(zip(words, form.mop.PADDING, strict=True)) if w & p]
            try:
                mops.append(form.mop.decode(words))
            except FieldError as e:
                self.error("F07", word, str(e), "no such value can be meant")
                return at, None
        return stop, Packet(header, tuple(mops))
