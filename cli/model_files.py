"""`rsn info` of a model file: its programs, and the stages of a model over several boards."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from ..host.generation.loaded import decoder_bytes
from ..host.model.board_memory import board_table
from ..host.model.file import NO_BOARD, read
from ..host.model.stage_figures import figures_of, stage_table
from ..isa.statistics import count
from .shown import table


def show_model(path: Path, as_json: bool) -> None:
    """Print what a model file (.rsnmodel) holds: its programs, and of the largest in stages what each stage takes.
    Raises as `read`."""
    saved = read(path, NO_BOARD)
    programs: list[dict[str, Any]] = [
        {
            "sizes": list(part.sizes),
            "number": number,
            "board": part.board_numbers[number],
            "overlay": program.program.overlay.name,
            "fingerprint": program.program.overlay.fingerprint,
            "bytes": count(program.program)["bytes"]["total"],
            "banks": {bank: 4 * program.program.bank_size(bank) for bank in program.program.overlay.banks},
        }
        for part in saved.parts
        for number, program in part.on_machine.items()
    ]
    largest = max(saved.parts, key=lambda part: part.sizes)
    stages = [program.program for program in largest.on_machine.values()] if saved.boards > 1 else []
    figures = figures_of(stages, largest.rounds, largest.on_machine[0].host.columns) if stages else []
    boards = decoder_bytes(saved) if saved.decoder is not None else []
    served = decoder_bytes(saved, saved.stages) if boards and saved.stages > 1 else []
    if as_json:
        facts = {"version": saved.version, "programs": programs, "stages": [asdict(of) for of in figures]}
        facts |= {"boards": boards, "boards_served": served} if boards else {}
        click.echo(json.dumps(facts))
        return
    cut = f" in {saved.stages} stage{'s' * (saved.stages > 1)}" * bool(stages)
    cut += f" of {saved.shards} shards" * (saved.shards > 1)
    kind = ("a decoder" if saved.decoder is not None else "a model") + cut
    click.echo(f"{path}: {kind}, written by rsn {saved.version}")
    what = "program" if saved.shards > 1 else "stage" if stages else "piece"
    rows = [
        [
            " x ".join(map(str, of["sizes"])) or "-",
            f"{of['number']} on board {of['board']}" if saved.shards > 1 else str(of["number"]),
            f"{of['overlay']} ({of['fingerprint']})",
            str(of["bytes"]),
            *(f"{size / 1e6:.1f} MB" for size in of["banks"].values()),
        ]
        for of in programs
    ]
    click.echo(table([["sizes", what, "overlay", "program bytes", *programs[0]["banks"]], *rows]))
    if figures:
        click.echo()
        click.echo("\n".join(stage_table(figures)))
    if boards:
        click.echo()
        click.echo("\n".join(board_table(boards, saved.stages, served)))
