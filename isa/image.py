"""The decoder of instruction images (contract section 1).

`decode_image` raises at the first defect, as a loader must. `read_image` is for images made by other tools: it reports
every defect with its word and continues as the hardware does: padding bits are ignored, reuse 0 is kept, opcode 0 is
one skipped word. Both use one reader.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..base.errors import FieldError, ImageError
from ..base.finding import Finding
from .fields import Record
from .overlay import Overlay
from .overlays import OVERLAYS
from .packet import NOP, Header, Packet, Words

MAX_PLACES = 8
"""Words or ops that one finding names; it counts the others."""


@dataclass
class ReadImage:
    """The result of `read_image`. complete: all words of the image were assigned to packets."""

    packets: tuple[Packet, ...] = ()
    findings: list[Finding] = field(default_factory=list)
    complete: bool = False


def decode_image(words: Words, overlay: Overlay) -> tuple[Packet, ...]:
    """Return the packets of an image, a vector of uint32 (contract section 1). Raises `ImageError`, with the word's
    index, if the hardware would misread it.
    """
    reader = _ImageReader(overlay, strict=True)
    reader.image(words)
    return reader.out.packets


def read_image(data: bytes, overlay: Overlay) -> ReadImage:
    """Return the packets of a bare image, given as bytes, and a finding for each defect. Never raises."""
    reader = _ImageReader(overlay, strict=False)
    if len(data) % 4:
        text = f"an image consists of words of 4 bytes, this one has {len(data)} bytes"
        reader.error("F01", len(data) // 4, text, "check that the file is an image, and complete")
    reader.image(np.frombuffer(data[: len(data) // 4 * 4], "<u4"))
    return reader.out


def places(what: str, at: Sequence[int]) -> str:
    """Format several places: `words 2, 5 and 7 more`. what: the singular, e.g. `word`. at: their numbers, at
    least one.
    """
    shown = ", ".join(map(str, at[:MAX_PLACES])) + (f" and {len(at) - MAX_PLACES} more" if len(at) > MAX_PLACES else "")
    return f"{what}{'s' if len(at) > 1 else ''} {shown}"


class _ImageReader:
    """Decodes one image. strict: raise `ImageError` at the first error, and report no warnings."""

    def __init__(self, overlay: Overlay, strict: bool) -> None:
        self.overlay = overlay
        self.strict = strict
        self.out = ReadImage()
        # Programs repeat mOPs: by the words of a mOP, the mOP and which of its words have padding bits set.
        self._known: dict[tuple[type[Record], tuple[int, ...]], tuple[Record, tuple[int, ...]]] = {}

    def error(self, code: str, word: int, text: str, help: str, *, lost: bool = False) -> None:
        """Raise or report an error. lost: the position of the next packet is unknown, so reading stops."""
        if self.strict:
            raise ImageError(text, word)
        text += "; where the next packet begins is not known" if lost else ""
        self.out.findings.append(Finding(code, text, f"word {word}", help=help))

    def image(self, words: Words) -> None:
        if len(words) < 2:
            text = f"an image has at least 2 words, this one {len(words)}"
            self.error("F01", 0, text, "check that the file is complete")
            return
        raw: list[int] = words.tolist()
        announced, packets, held = raw[0], raw[1], len(raw) - 2
        if announced != held:
            then, way_out = ("read beyond it", "all the words") if announced > held else ("stop early", "cut the file")
            text = f"the image announces {announced} packet words and holds {held}: the dispatcher would {then}"
            self.error("F02", 0, text, f"write {held}, or {way_out}")
        self.out.complete = self._packets(raw, 2 + min(announced, held))
        found = len(self.out.packets)
        if self.out.complete and packets != found:
            after = "the rest is never issued" if packets < found else "the dispatcher waits for more"
            text = f"the image announces {packets} packets and holds {found}: {after}"
            self.error("F03", 1, text, f"write {found}")

    def _packets(self, raw: Sequence[int], end: int) -> bool:
        """Read packets up to word `end`; return whether all words were assigned to packets."""
        out: list[Packet] = []
        skipped: list[int] = []
        dirty: list[int] = []
        padded: list[int] = []
        idle: list[int] = []
        at, complete = 2, True
        while at < end:
            header = Header.decode(raw[at : at + 1])
            if header.opcode == NOP:
                (dirty if raw[at] else skipped).append(at)
                out.append(Packet(Header(opcode=NOP)))
                at += 1
                continue
            stop, packet = self._packet(header, raw, at, end, padded)
            if packet is None:
                complete = False
                break
            if not header.reuse and packet.mops:
                idle.append(at)
            out.append(packet)
            at = stop
        self.out.packets = tuple(out)
        if not self.strict:
            unheeded = "opcode 0 with other bits set: skipped as one word without payload"
            nothing_issued = "reuse 0: the operations are consumed and nothing is issued"
            self._warn(
                "F11", skipped, "opcode 0: skipped, and counted in W and P", "drop it, if it is not to be patched"
            )
            self._warn("F11", dirty, unheeded, "write the word as 0, or give it the opcode that was meant")
            self._warn("F10", padded, "padding bits are set; the hardware ignores them", "write them as 0")
            self._warn("F13", idle, nothing_issued, "drop the packet, or set reuse")
        return complete

    def _warn(self, code: str, at: Sequence[int], text: str, help: str) -> None:
        if at:
            where = f"word {at[0]}"
            self.out.findings.append(Finding(code, f"{text} ({places('word', at)})", where, True, help, len(at)))

    def _packet(
        self, header: Header, raw: Sequence[int], at: int, end: int, padded: list[int]
    ) -> tuple[int, Packet | None]:
        """Read the packet at word `at`; return the word behind it and the packet, None if it cannot be read."""
        form = self.overlay.by_opcode.get(header.opcode)
        if form is None:
            text = f"opcode {header.opcode} is not defined in overlay {self.overlay.name}"
            others = " or ".join(f"--overlay {o.name}" for o in OVERLAYS.values() if header.opcode in o.by_opcode)
            hint = f" (opcode {header.opcode}: {others})" if others else ""
            way_out = f"check that the image is for this overlay{hint}, and the length of the packet before it"
            self.error("F04", at, text, way_out, lost=True)
            return at, None
        if header.last and (header.window or header.reuse):
            text = f"a terminator has window = reuse = 0, not {header.window} and {header.reuse}"
            self.error("F05", at, text, "clear the last bit, or window and reuse", lost=True)
            return at, None
        if header.last and form.config:
            self.error("F05", at, f"a {form.name} packet cannot be a terminator", "clear the last bit", lost=True)
            return at, None
        size = form.mop.WORDS
        stop = at + 1 + header.window * size
        if stop > end:
            text = (
                f"a packet of {header.window} {form.name} mOPs runs past the end of the image: it ends at word {stop}, "
                f"the image at word {end}"
            )
            self.error("F06", at, text, "check the window field, and that the image is complete")
            return at, None
        mops = []
        for word in range(at + 1, stop, size):
            key = form.mop, tuple(raw[word : word + size])
            known = self._known.get(key)
            if known is None:
                try:
                    mop = form.mop.decode(key[1])
                except FieldError as e:
                    self.error("F07", word, str(e), "write a finite float32 value")
                    return at, None
                padding = (i for i, (w, p) in enumerate(zip(key[1], form.mop.PADDING, strict=True)) if w & p)
                known = self._known[key] = mop, tuple(padding)
            mops.append(known[0])
            if known[1]:
                padded += [word + i for i in known[1]]
        return stop, Packet(header, tuple(mops))
