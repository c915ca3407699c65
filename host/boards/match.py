"""Checks that program and profile, and profile and bitstream, belong together. Each refusal names both and says what to
do."""

from __future__ import annotations

import dataclasses

from ...base.errors import DeadlockError, ProgramError
from ...isa.fields import Record
from ...isa.instruction_path import plan_of
from ...isa.overlay import FIFO_DEPTHS, Overlay
from ...isa.overlays import OVERLAYS
from ...isa.overlays.file import without_hardware
from ...isa.overlays.xnn.formats import Mme
from ...isa.overlays.xnn2.mme import LaneMme
from ...isa.program import Program
from .device import BoardMismatch
from .profile import INSTRUCTIONS, PROFILES, VCK190, VCK190_ISCA25, Profile
from .tiles import tiles
from .xclbin import Xclbin


def match_program(program: Program, profile: Profile) -> None:
    """Raise `BoardMismatch` unless the profile's bitstream can run the program: its overlay and opcodes, FIFO depths,
    buffer sizes in bytes, and the order in which MMEs take their buffers of results."""
    machine, made_for = profile.overlay, program.overlay
    if reason := without_hardware(made_for):
        raise BoardMismatch(f"board {profile.name}: {reason}")
    if not _understands(machine, made_for):
        raise BoardMismatch(
            f"the program is for overlay {made_for.label}, board {profile.name} is {machine.label}: "
            f"{_way_out(machine, made_for)}"
        )
    fifos = {n: (getattr(made_for, n), getattr(machine, n)) for n in FIFO_DEPTHS}
    deeper = [f"{name} = {wanted} (the board has {there})" for name, (wanted, there) in fifos.items() if wanted > there]
    if deeper:
        raise BoardMismatch(
            f"the program is for an overlay with {', '.join(deeper)}: on board {profile.name} it may deadlock: compile "
            f"the program for the board's overlay (--overlay {machine.name}), without changed depths"
        )
    if program.extended and machine.extends is None:
        raise BoardMismatch(
            f"the program uses opcodes that overlay {made_for.name} adds to {machine.name}; board {profile.name} has "
            f"only {machine.name}: compile it with --overlay {machine.name}, or run it on a bitstream of "
            f"{made_for.name} (--board {VCK190.name})"
        )
    for name, limit in profile.limits.items():
        size = 4 * len(program.image) if name == INSTRUCTIONS else 4 * program.bank_size(name)
        if size > limit:
            raise BoardMismatch(
                f"the program needs {size} bytes of {name}, board {profile.name} has {limit}: compile fewer layers or "
                "a smaller batch, or give a bare image a shorter file of that memory; or, if the board's Linux can "
                f"give more, set limits.{name} in a profile of your own"
            )

    if profile.fingerprint:
        _require_room_for_sums(program, profile)


def _require_room_for_sums(program: Program, profile: Profile) -> None:
    """Raise `BoardMismatch` if the program may deadlock because an MME takes a buffer of C early.

    An MME of hw/versal that sums over k keeps the sum in one of its two buffers of C from the first product on
    (hw/versal/aie/kernels.h); the simulator takes the buffer at the last one. A program that also ends with one buffer
    ends with both rules: whenever a sum begins, at most one buffer is in use then.
    """
    summing = [unit for unit, ops in program.preloaded.items() if any(_sums(op) for op in ops)]
    results = {s.name: s.depth // 2 for s in program.overlay.streams if s.src in summing}
    if not results:
        return
    fewer = dataclasses.replace(program, overlay=program.overlay.with_depths(results))
    if _deadlocks(fewer) and not _deadlocks(program):
        raise BoardMismatch(
            f"the program may deadlock on board {profile.name}: its MMEs sum over k, for which they take one of two "
            f"buffers of C when a sum begins, and the program needs both: {_relief(program)}"
        )


def _relief(program: Program) -> str:
    if program.overlay.lanes:
        return "let C of a lane take its tiles earlier"
    return "let MemC receive earlier, or sum there (k_iter of MemC)"


def _sums(op: Record) -> bool:
    match op:
        case Mme():
            return bool(op.acc_k and op.k128) and op.k_iter > 1
        case LaneMme():
            return max(op.first_depth, op.second_depth) > 1
    return False


def _deadlocks(program: Program) -> bool:
    try:
        plan_of(program).run()
    except DeadlockError:
        return True
    except ProgramError:  # words are left over; or data decides
        return False
    return False


def _way_out(machine: Overlay, made_for: Overlay) -> str:
    """What to do about a program for an overlay that the machine does not understand."""
    if machine.name == made_for.name and machine.extension != made_for.extension:
        return "compile it with the rsn that the bitstream was built with, or build the bitstream with this rsn"
    others = [p.name for p in PROFILES.values() if p.fingerprint and _understands(p.overlay, made_for)]
    other = f"; or run it on a bitstream of {made_for.name} (--board {others[0]})" if others else ""
    return (
        f"compile the program for the board's overlay (--overlay {machine.name}), without changed depths or sizes of "
        f"banks{other}"
    )


def _understands(machine: Overlay, made_for: Overlay) -> bool:
    """Return whether programs for `made_for` run on `machine`: the overlays are equal, or one adds opcodes to the
    other."""
    if made_for.fingerprint == machine.fingerprint:
        return True
    larger, smaller = (machine, made_for) if machine.extends else (made_for, machine)
    shipped = [OVERLAYS.get(name or "") for name in (larger.name, larger.extends)]
    return [o and o.fingerprint for o in shipped] == [larger.fingerprint, smaller.fingerprint]


def match_xclbin(profile: Profile, xclbin: Xclbin) -> None:
    """Raise `BoardMismatch` unless the bitstream is the profile's, as far as its metadata tells."""
    path, taken = xclbin.path, len(profile.arguments)
    if profile.kernel not in xclbin.kernels:
        found = ", ".join(xclbin.kernels) or "none"
        raise BoardMismatch(f"{path}: no kernel {profile.kernel}, which board {profile.name} needs; it has {found}")
    names = xclbin.kernels[profile.kernel]
    scalar = names[taken] if len(names) > taken else ""
    if len(names) < taken or (profile.fingerprint and scalar != profile.fingerprint):
        needed = f"{taken} buffers" + (f" and {profile.fingerprint}" if profile.fingerprint else "")
        other = f"; the published image is --board {VCK190_ISCA25.name}" if profile.name == VCK190.name else ""
        raise BoardMismatch(
            f"{path}: kernel {profile.kernel} takes {', '.join(names[: taken + 1]) or 'nothing'}; board {profile.name} "
            f"gives it {needed}{other}"
        )
    if not profile.fingerprint and scalar == VCK190.fingerprint:
        raise BoardMismatch(
            f"{path}: this bitstream has a fingerprint, which the bitstream of board {profile.name} has not: use "
            f"--board {VCK190.name}"
        )
    if xclbin.graphs is not None and profile.graph not in xclbin.graphs:
        found = ", ".join(xclbin.graphs) or "none"
        raise BoardMismatch(f"{path}: no graph {profile.graph}, which board {profile.name} needs; it has {found}")
    missing = (
        [] if not xclbin.ports else [p for p, _, _ in tiles(profile.overlay, profile.graph) if p not in xclbin.ports]
    )
    if missing:
        raise BoardMismatch(
            f"{path}: graph {profile.graph} has no parameter {missing[0]} ({len(missing)} are missing): its tiles are "
            f"not those of board {profile.name}"
        )
    for kind, expected, found in (("UUID", profile.uuid, xclbin.uuid), ("SHA-256", profile.sha256, xclbin.sha256)):
        if expected and expected != found:
            raise BoardMismatch(
                f"{path}: its {kind} is {found}, board {profile.name} expects {expected}: give the profile's file, or "
                "change the profile"
            )
    if not (profile.fingerprint or profile.uuid or profile.sha256):
        raise BoardMismatch(
            f"{path}: nothing shows that this is {profile.name} ({profile.source}): its kernel has no fingerprint. If "
            "you know that it is, write a profile, for example mine.toml, and use --board mine.toml:\n"
            f'    base = "{profile.name}"\n'
            f'    uuid = "{xclbin.uuid}"\n    sha256 = "{xclbin.sha256}"'
        )
