"""What belongs together: program and bitstream, bitstream and profile. Each refusal names both and the way out."""

from __future__ import annotations

from ...isa.overlay import Overlay
from ...isa.overlays import OVERLAYS
from ...isa.program import Program
from .device import BoardMismatch
from .profile import INSTRUCTIONS, VCK190, VCK190_ISCA25, Profile
from .tiles import tiles
from .xclbin import Xclbin


def match_program(program: Program, profile: Profile) -> None:
    """Raises `BoardMismatch` for a program that this bitstream is not for, or that needs larger buffers."""
    machine, made_for = profile.overlay, program.overlay
    if not _understands(machine, made_for):
        raise BoardMismatch(
            f"the program is for overlay {made_for.name} {made_for.fingerprint}, board {profile.name} is "
            f"{machine.name} {machine.fingerprint}: compile it for that one, with its own depths (--overlay "
            f"{machine.name})"
        )
    if program.extended and machine.extends is None:
        raise BoardMismatch(
            f"the program uses what overlay {made_for.name} adds to {machine.name}, which is all that board "
            f"{profile.name} knows: compile it with --overlay {machine.name}, or run it on a bitstream of "
            f"{made_for.name} (--board {VCK190.name})"
        )
    for name, limit in profile.limits.items():
        size = 4 * len(program.image) if name == INSTRUCTIONS else 4 * program.bank_size(name)
        if size > limit:
            raise BoardMismatch(
                f"the program needs {size} bytes of {name}, board {profile.name} has {limit}: compile fewer layers or "
                "a smaller batch; or, if the board's Linux can give more, say so in a profile of your own "
                f"(limits.{name})"
            )


def _understands(machine: Overlay, made_for: Overlay) -> bool:
    """Whether they are the same, or one adds opcodes to the other."""
    if made_for.fingerprint == machine.fingerprint:
        return True
    larger, smaller = (machine, made_for) if machine.extends else (made_for, machine)
    shipped = [OVERLAYS.get(name or "") for name in (larger.name, larger.extends)]
    return [o and o.fingerprint for o in shipped] == [larger.fingerprint, smaller.fingerprint]


def match_xclbin(profile: Profile, xclbin: Xclbin) -> None:
    """Raises `BoardMismatch` for a bitstream that is not the profile's, as far as it says itself."""
    path, taken = xclbin.path, len(profile.arguments)
    if profile.kernel not in xclbin.kernels:
        there = ", ".join(xclbin.kernels) or "none"
        raise BoardMismatch(f"{path}: no kernel {profile.kernel}, which board {profile.name} drives; it has {there}")
    names = xclbin.kernels[profile.kernel]
    scalar = names[taken] if len(names) > taken else ""
    if len(names) < taken or (profile.fingerprint and scalar != profile.fingerprint):
        wanted = f"{taken} buffers" + (f" and {profile.fingerprint}" if profile.fingerprint else "")
        other = f"; the published image is --board {VCK190_ISCA25.name}" if profile.name == VCK190.name else ""
        raise BoardMismatch(
            f"{path}: kernel {profile.kernel} takes {', '.join(names[: taken + 1]) or 'nothing'}; board {profile.name} "
            f"gives it {wanted}{other}"
        )
    if not profile.fingerprint and scalar == VCK190.fingerprint:
        raise BoardMismatch(
            f"{path}: this bitstream says itself what it is, which that of board {profile.name} does not: use "
            f"--board {VCK190.name}"
        )
    if xclbin.graphs is not None and profile.graph not in xclbin.graphs:
        there = ", ".join(xclbin.graphs) or "none"
        raise BoardMismatch(f"{path}: no graph {profile.graph}, which board {profile.name} drives; it has {there}")
    missing = (
        [] if not xclbin.ports else [p for p, _, _ in tiles(profile.overlay, profile.graph) if p not in xclbin.ports]
    )
    if missing:
        raise BoardMismatch(
            f"{path}: graph {profile.graph} has no parameter {missing[0]} ({len(missing)} are missing): its tiles are "
            f"not those of board {profile.name}"
        )
    for what, wanted, found in (("UUID", profile.uuid, xclbin.uuid), ("SHA-256", profile.sha256, xclbin.sha256)):
        if wanted and wanted != found:
            raise BoardMismatch(
                f"{path}: its {what} is {found}, board {profile.name} is {wanted}: give the file that the profile "
                "means, or change the profile"
            )
    if not (profile.fingerprint or profile.uuid or profile.sha256):
        raise BoardMismatch(
            f"{path}: nothing says that this is {profile.name} ({profile.source}), and the kernel cannot tell. If you "
            "know that it is, write a profile, say mine.toml, and use --board mine.toml:\n"
            f'    base = "{profile.name}"\n'
            f'    uuid = "{xclbin.uuid}"\n    sha256 = "{xclbin.sha256}"'
        )
