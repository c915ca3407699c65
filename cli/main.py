"""The `rsn` command. The module of a command is imported when that command is asked for, so that each loads only what
it needs."""

from __future__ import annotations

import errno
from importlib import import_module
from typing import Any, NamedTuple

import click

from ..base.errors import MissingError, RsnError, SourceError
from ..base.version import __version__


class ListedCommand(NamedTuple):
    """A command as `rsn --help` lists it. module: of this folder; it holds the command as NAME_command. help: the first
    sentence of the command's own help."""

    module: str
    help: str


COMMANDS = {
    "asm": ListedCommand("asm", "Assemble SOURCE (.rsn) to a program (.bin)."),
    "check": ListedCommand("check", "Check a program, or a stream program, before it runs."),
    "compile": ListedCommand("compile", "Compile a model, or a stream program, to a program."),
    "depths": ListedCommand("depths", "Find safe and fast depths for a stream program's streams."),
    "diff": ListedCommand("diff", "Show where the programs FIRST and SECOND (.bin) differ."),
    "dis": ListedCommand("dis", "Disassemble PROGRAM (.bin) to text (.rsn)."),
    "doctor": ListedCommand("doctor", "Show what this computer can run, and what is missing."),
    "fmt": ListedCommand("fmt", "Format .rsn FILES in place: indentation, spacing, blank lines."),
    "generate": ListedCommand("generate", "Generate text with a language model, on a machine of its own."),
    "hls": ListedCommand("hls", "Write a stream program as HLS C++, and run it here."),
    "info": ListedCommand("info", "Show what PROGRAM (.bin, .rsn or .rsnmodel) holds."),
    "map": ListedCommand("map", "Map a stream program onto the tiles of a machine."),
    "overlay": ListedCommand("overlay", "Show the parameters of an overlay: value, unit, source."),
    "reproduce": ListedCommand("reproduce", "Compare the paper's TABLE, or all, with the model."),
    "run": ListedCommand("run", "Run a program, or a stream program: results and time."),
    "serve": ListedCommand("serve", "Serve MODEL (.rsnmodel, or a folder) over HTTP, until SIGTERM or ^C."),
    "tune": ListedCommand("tune", "Search the knobs of a generated machine, or of an overlay of row lanes."),
}
"""The commands by name."""

HIDDEN = {
    "serve-stdio": ListedCommand(
        "serve_stdio", "Run programs on this computer's boards for the process at the other end of stdin and stdout."
    ),
}
"""Commands that `rsn --help` does not list: the other end of --board ssh://."""


LEFT_OUT = ("jinja2", "lark", "markupsafe", "pygments", "rich", "scipy", "sympy")
"""Packages that the bundle for a board leaves out (board/requirements.txt): running a program takes none of them."""


def _left_out(command: str, package: str) -> str:
    return (
        f"rsn {command} takes the Python package {package} here, which is not installed. An installation for a board "
        "leaves it out: run this command on your desktop computer. Elsewhere: pip install " + package
    )


class _Commands(click.Group):
    """A group whose commands report an error as one message on stderr and an exit code, never as a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except RsnError as e:
            click.echo(str(e) if isinstance(e, SourceError) else f"error: {e}", err=True)
            ctx.exit(e.exit_code)
        except ModuleNotFoundError as e:
            if e.name is None or e.name.partition(".")[0] not in LEFT_OUT:
                raise
            click.echo(f"error: {_left_out(ctx.invoked_subcommand or 'this', e.name.partition('.')[0])}", err=True)
            ctx.exit(MissingError.exit_code)
        except OSError as e:
            if e.errno == errno.EPIPE:  # the reader of our output has closed it; click handles that
                raise
            name = f"{e.filename}: " if e.filename else ""
            click.echo(f"error: {name}{e.strerror or e}", err=True)
            ctx.exit(1)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        listed = COMMANDS.get(cmd_name) or HIDDEN.get(cmd_name)
        if listed is None:
            return None
        module = import_module(f".{listed.module}", __package__)
        command: click.Command = getattr(module, f"{listed.module}_command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing them."""
        room = formatter.width - 6 - max(map(len, COMMANDS))
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, click.Command(name, help=c.help).get_short_help_str(room)) for name, c in COMMANDS.items()]
            )


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="rsn")
def main() -> None:
    """Compile, check and run programs for reconfigurable stream networks.

    A PyTorch model: rsn compile, asm, run. Tasks with streams between them, in Python: rsn check, depths, map, run.

    Exit codes: 0 ok, 1 the program or an input is at fault, 2 wrong usage, 3 the board or the environment is at fault.
    """
