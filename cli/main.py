"""The `rsn` command. It joins compiler, assembler and runner; a command imports what it needs when it runs."""

from __future__ import annotations

import errno
import json
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .. import __version__
from ..base.errors import RsnError, SourceError
from .check import check_command
from .compile import compile_command
from .diff import diff_command
from .doctor import doctor_command
from .raw import RawImage, load_raw_image, raw_options, refuse_contradictions, was_given
from .reproduce import reproduce_command
from .run import run_command
from .serve import serve_command
from .serve_stdio import serve_stdio_command

if TYPE_CHECKING:
    from ..isa.program import Program


class _Commands(click.Group):
    """A group whose commands report an error as one message on stderr and an exit code, never as a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except RsnError as e:
            click.echo(str(e) if isinstance(e, SourceError) else f"error: {e}", err=True)
            ctx.exit(e.exit_code)
        except OSError as e:
            if e.errno == errno.EPIPE:  # the reader of our output has closed it; click handles that
                raise
            name = f"{e.filename}: " if e.filename else ""
            click.echo(f"error: {name}{e.strerror or e}", err=True)
            ctx.exit(1)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="rsn")
def main() -> None:
    """Compile, assemble, inspect and run programs for reconfigurable stream networks.

    Exit codes: 0 ok, 1 the program or an input is at fault, 2 wrong usage, 3 the board or the environment is at fault.
    """


for _command in (
    compile_command,
    check_command,
    diff_command,
    run_command,
    serve_command,
    reproduce_command,
    doctor_command,
):
    main.add_command(_command)
main.add_command(serve_stdio_command)  # hidden: the other end of --board ssh://

MACHINE = "xnn"
"""The overlay that `rsn info` shows without PROGRAM and --overlay: the one of hw/versal."""

_path = click.Path(path_type=Path)
_json = click.option("--json", "as_json", is_flag=True, help="one JSON object on stdout")


@main.command()
@click.argument("source", type=_path)
@click.option("-o", "--output", type=_path, help="the file to write [default: SOURCE with .bin]")
@click.option("--raw", is_flag=True, help="write the bare wire image: no buffers, no op lists")
@click.option("--mme", type=_path, help="with --raw: file to write the op lists to (JSON, as rsn run --raw takes them)")
@_json
def asm(source: Path, output: Path | None, raw: bool, mme: Path | None, as_json: bool) -> None:
    """Assemble SOURCE (.rsn) to a program (.bin).

    The kernels in SOURCE (a section per unit) are packed; packets written by hand are kept as they are. A program must
    declare buffers for its memory accesses, and op lists for the MMEs; a bare image (--raw) need not.
    """
    from ..assembler import container
    from ..base.files import write_text

    if mme is not None and not raw:
        raise click.UsageError("--mme: only with --raw; a program contains its op lists")
    program = _assembled(source)
    target = output or source.with_suffix(".bin")
    _refuse_overwriting({"--output": target, "--mme": mme}, {"SOURCE": source})
    _refuse_incomplete(program, {"A01", "M05"} if not raw else {"M05"} if mme is not None else set())
    (container.write_raw if raw else container.write)(program, target)
    if mme is not None:
        index = program.overlay.by_unit
        lists = {str(index[u].index): [op.encode()[0] for op in ops] for u, ops in program.preloaded.items()}
        write_text(mme, json.dumps(lists) + "\n")
    if as_json:
        facts = {"program": str(target), "extended": program.extended, "packets": len(program.packets)}
        click.echo(json.dumps(facts | {"image_bytes": 4 * len(program.image)}))


@main.command()
@click.argument("program", type=_path)
@click.option("-o", "--output", type=_path, help="the text to write [default: standard output]")
@raw_options()
def dis(program: Path, output: Path | None, raw: bool, overlay: str, mme: Path | None) -> None:
    """Disassemble PROGRAM (.bin) to text (.rsn) that assembles to the same binary.

    The text of a bare image (--raw) has no buffers, and op lists only with --mme. rsn asm --raw makes the same image of
    it; for rsn asm, add what is missing.
    """
    from ..assembler.printer import show
    from ..base.files import write_text

    refuse_contradictions(raw)
    _refuse_overwriting({"--output": output}, {"PROGRAM": program, "--mme": mme})
    loaded = _loaded(program, raw, overlay, mme)
    text = show(loaded.program)
    if output is None:
        click.echo(text, nl=False)
    else:
        write_text(output, text)
    if raw:
        missing = "no buffers" if loaded.op_lists else "no buffers and no op lists (--mme)"
        click.echo(f"{program}: a bare image; its text has {missing}, which only rsn asm --raw accepts", err=True)


@main.command()
@click.argument("name", default="xnn")
@_json
def overlay(name: str, as_json: bool) -> None:
    """Show the parameters of an overlay (xnn, xnn-base, fig6, fig7): value, unit, and source of each.

    The output is a file for rsn run --overlay-file: keep the lines that you change.
    """
    from ..isa.overlays import find
    from ..isa.overlays.file import facts, show

    found = find(name)
    click.echo(json.dumps(facts(found)) if as_json else show(found), nl=as_json)


@main.command()
@click.argument("files", type=_path, nargs=-1, required=True)
@click.option("--check", is_flag=True, help="change nothing; exit 1 if a file would be changed")
def fmt(files: Sequence[Path], check: bool) -> None:
    """Format .rsn FILES in place: indentation, spacing, blank lines. Words and comments are kept."""
    from ..assembler.formatter import format_text
    from ..assembler.parser import read_text
    from ..base.files import write_text

    changed = []
    for path in files:
        text = read_text(path)
        formatted = format_text(text, str(path))
        if formatted != text:
            changed.append(path)
            if not check:
                write_text(path, formatted)
    for path in changed:
        click.echo(f"{path}: {'not formatted; run rsn fmt' if check else 'formatted'}", err=True)
    if check and changed:
        raise SystemExit(1)


@main.command()
@click.argument("program", type=_path, required=False)
@raw_options("with --raw: the overlay of PROGRAM; without PROGRAM: the overlay to show, by default xnn")
@click.option("--overlay-file", type=_path, help="with --resources or --cycles: changes to the overlay (.toml)")
@click.option("--resources", is_flag=True, help="show instead which resources of its device the machine needs")
@click.option("--cycles", is_flag=True, help="show instead the cycles of its units, by their sources and as simulated")
@_json
def info(
    program: Path | None,
    raw: bool,
    overlay: str,
    mme: Path | None,
    overlay_file: Path | None,
    resources: bool,
    cycles: bool,
    as_json: bool,
) -> None:
    """Show the contents of PROGRAM (.bin or .rsn): mOPs, packets, bytes and uOPs per type of unit, and its buffers.

    Packets and bytes include terminators; terminators are not uOPs. For a bare image (--raw) without op lists (--mme),
    the ops of the MMEs are unknown.

    With --resources or --cycles: what the machine of PROGRAM, or of --overlay, costs.
    """
    if resources and cycles:
        raise click.UsageError("--resources and --cycles: give one of them")
    if overlay_file is not None and not (resources or cycles):
        raise click.UsageError("--overlay-file: only with --resources or --cycles")
    if program is not None:
        refuse_contradictions(raw)
    elif not (resources or cycles) or raw or mme is not None:
        raise click.UsageError("Missing argument 'PROGRAM'; it may be left out with --resources and --cycles")
    loaded = None if program is None else _loaded(program, raw, overlay, mme)
    if resources or cycles:
        from ..isa.overlays import find
        from ..isa.overlays.file import changed
        from .machine import show_cycles, show_resources

        machine = loaded.program.overlay if loaded else find(overlay if was_given("overlay") else MACHINE)
        if overlay_file is not None:
            machine = changed(machine, overlay_file)
        (show_resources if resources else show_cycles)(machine, as_json)
        return
    assert loaded is not None
    _show_program(str(program), loaded, as_json)


def _show_program(name: str, read: RawImage, as_json: bool) -> None:
    from ..isa.statistics import count

    loaded = read.program
    sizes: dict[str, dict[str, int | None]] = {key: {**per_kind} for key, per_kind in count(loaded).items()}
    for kind in () if read.op_lists else loaded.overlay.preloaded:
        sizes["uops"][kind] = sizes["bytes"][kind] = None  # not 0: unknown
    if as_json:
        click.echo(json.dumps(_facts(loaded) | sizes))
        return
    extent = "extended" if loaded.extended else "base"
    click.echo(f"{name}: {extent} program for overlay {loaded.overlay.name} ({loaded.overlay.fingerprint})")
    kinds = [k for k in sizes["uops"] if k != "total"]
    rows = [[k, *(_number(sizes[key].get(k)) for key in sizes), _ratio(sizes, k)] for k in (*kinds, "total")]
    _table([["", *(key.replace("_", " ") for key in sizes), "uop bytes / bytes"], *rows])
    if loaded.parameters:
        click.echo()
        columns = [[p.name, f"{p.low}..{p.high}", str(p.default), str(len(p.patches))] for p in loaded.parameters]
        _table([["parameter", "range", "default", "places"], *columns])
    if loaded.buffers:
        click.echo()
        columns = [
            [b.name, b.bank, f"{b.offset:#x}", "x".join(map(str, b.shape)), b.layout.value, b.role.value]
            for b in loaded.buffers
        ]
        _table([["buffer", "memory", "at", "shape", "layout", "role"], *columns])


def _number(n: int | None) -> str:
    return "" if n is None else str(n)


def _ratio(sizes: Mapping[str, Mapping[str, int | None]], kind: str) -> str:
    """Return the bytes of uOPs per byte of instructions (paper Fig. 9)."""
    uops, instructions = (sizes[key].get(kind) for key in ("uop_bytes", "bytes"))
    return f"{uops / instructions:.1f}" if uops and instructions else ""


def _facts(program: Program) -> dict[str, Any]:
    """Return the facts of `info --json` besides the counts. Offsets are in address units of the overlay."""
    return {
        "overlay": program.overlay.name,
        "fingerprint": program.overlay.fingerprint,
        "extended": program.extended,
        "buffers": [
            {
                "name": b.name,
                "bank": b.bank,
                "offset": b.offset,
                "shape": b.shape,
                "view": b.view,
                "rows": b.rows or None,
                "layout": b.layout.value,
                "role": b.role.value,
            }
            for b in program.buffers
        ],
        "parameters": [
            {"name": p.name, "low": p.low, "high": p.high, "default": p.default, "patches": len(p.patches)}
            for p in program.parameters
        ],
    }


def _table(rows: Sequence[Sequence[str]]) -> None:
    """Print aligned columns: numbers to the right, words to the left. The first row is the heading."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    right = [all(c.isdecimal() or not c for c in column) for column in zip(*rows[1:], strict=True)]
    for row in rows:
        cells = (c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right, strict=True))
        click.echo("  ".join(cells).rstrip())


def _assembled(path: Path) -> Program:
    from ..assembler.parser import parse_file
    from ..isa.program import Program

    source = parse_file(path)
    if isinstance(source, Program):
        return source
    from ..scheduler.pack import pack

    return pack(source)


def _refuse_overwriting(written: Mapping[str, Path | None], read: Mapping[str, Path | None]) -> None:
    """Raise `click.UsageError` if a file to write is also read, or written twice. A path that is not a regular file,
    such as /dev/stdout, may be both."""
    seen = {path.resolve(): name for name, path in read.items() if path is not None}
    for name, path in written.items():
        if path is None or (path.exists() and not path.is_file()):
            continue
        other = seen.setdefault(path.resolve(), name)
        if other != name:
            raise click.UsageError(f"{name} {path} is {other}, too: it would be overwritten; name another file")


def _refuse_incomplete(program: Program, codes: Container[str]) -> None:
    """Raise `ProgramError` if a text lacks the buffers or op lists that its packets need. codes: the findings to look
    for."""
    from ..base.errors import ProgramError
    from ..isa.verify import missing_declarations

    found = [f for f in missing_declarations(program) if f.code in codes]
    if found:
        raise ProgramError("\n".join(f"{f}\n  help: {f.help}" for f in found))


def _loaded(path: Path, raw: bool, overlay: str, mme: Path | None) -> RawImage:
    """Read a program from a container, a bare image or a text."""
    from ..assembler import container

    if raw:
        return load_raw_image(path, overlay, mme)
    program = _assembled(path) if path.suffix == ".rsn" else container.read(path)
    return RawImage(program, [], complete=True, op_lists=True)
