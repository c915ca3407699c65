"""The size of a program by FU type: mOPs, packets, uOPs, bytes (paper section 5.1 and Fig. 9)."""

from __future__ import annotations

from .program import Program

KEYS = ("mops", "packets", "bytes", "uops", "uop_bytes")


def count(program: Program) -> dict[str, dict[str, int]]:
    """Count mOPs, packets, bytes, uOPs and bytes of uOPs, each by FU type and as `total`. The outer keys of the result
    are `KEYS`, the inner ones FU types.

    A packet counts once, however many units it selects; uOPs count once per selected unit. Terminators are packets with
    bytes but without uOPs: the uOP that a decoder issues when it ends launches no kernel (contract 1.3 and 5, paper
    section 3.1). Bytes are those of headers and mOPs; the two leading words of the image count only in the total. For
    FU types without packets (MMEs) the longest op list of a unit counts, and not in the total: its bytes, and as uOPs
    the ops that it executes. Raises `KeyError` for a packet with an unknown opcode, `ProgramError` for a repeat in an
    op list that is not possible.
    """
    overlay = program.overlay
    out: dict[str, dict[str, int]] = {key: {} for key in KEYS}

    def add(key: str, kind: str, n: int) -> None:
        out[key][kind] = out[key].get(kind, 0) + n

    for form in overlay.formats:
        for key in out:
            add(key, form.kind, 0)
    for packet in program.packets:
        header = packet.header
        if not header.opcode:
            continue
        form = overlay.by_opcode[header.opcode]
        units = len(overlay.selected(header.opcode, header.mask))
        add("packets", form.kind, 1)
        add("mops", form.kind, len(packet.mops))
        add("bytes", form.kind, 4 * packet.words)
        # Each repetition gives as many uOPs as the first: counted once, a huge `reuse` costs nothing.
        each = sum(1 for mop in packet.mops for _ in form.uops(mop, 0))
        uops = 0 if header.last else units * header.reuse * each
        add("uops", form.kind, uops)
        add("uop_bytes", form.kind, uops * (form.uop_bytes or 4 * form.mop.WORDS))
    for per_kind in out.values():
        per_kind["total"] = sum(per_kind.values())
    out["packets"]["total"] = len(program.packets)
    out["bytes"]["total"] = 4 * (2 + sum(p.words for p in program.packets))
    for kind, held in overlay.preloaded.items():
        lists = [program.preloaded.get(u.name, ()) for u in overlay.by_kind[kind]]
        out["uops"][kind] = max(map(held.executed, lists), default=0)
        out["bytes"][kind] = 4 * held.record.WORDS * max(map(len, lists), default=0)
    return out
