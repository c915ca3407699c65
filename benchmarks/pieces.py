"""Small models of transformers with random weights, one of each class, on the simulated machine: whole or in pieces.

For each class that AutoModelForCausalLM knows, or else AutoModel: whether `rsn.compile` takes it as a whole; if not,
what `whole=False` makes of it. pieces: programs of the machine, of all pieces. FLOPs: the share that the machine
computes. difference: the largest of the first output, relative to its largest magnitude in PyTorch. saved: the
same for the model that is loaded from its file, against the compiled one; what PyTorch computes may depend on where its
operands lie in memory. served: a server of it gives the same numbers to the last bit. seconds: of `rsn.compile`, wall
time. Of a model that is refused, the reason is printed.

A class is left out if a configuration of these sizes does not make a model of at most 20 million parameters that
PyTorch runs with tokens and a mask, with pictures, or with their sequences. Nothing is downloaded.

Run it as: python benchmarks/pieces.py [--only NAME ...] [--overlay xnn2] [--experts static] [--in-pieces] [--json]
"""

from __future__ import annotations

import re
import tempfile
import time
import warnings
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers.models.auto import modeling_auto

import rsn
from rsn.base.errors import RsnError
from rsn.benchmarks.measuring import command_line, markdown, print_models
from rsn.host.model.pieces import CompiledPieces

BATCH, ROWS, PIXELS, FRAMES = 2, 20, 64, 4
PARAMETERS = 20_000_000
SMALL: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "projection_dim", "embedding_size"), 128),
    **dict.fromkeys(("intermediate_size", "d_ff", "n_inner", "ffn_dim", "hidden_dim", "encoder_ffn_dim"), 128),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads"), 4),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_topk", "n_group"), 2),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "d_kv", "v_head_dim"), 64),
    **dict.fromkeys(("qk_nope_head_dim", "kv_lora_rank", "head_dim", "global_head_dim"), 32),
    **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 0),
    **dict.fromkeys(("n_shared_experts", "topk_group", "first_k_dense_replace", "mamba_n_groups"), 1),
    "num_key_value_heads": 2,
    "decoder_attention_heads": 4,
    "decoder_ffn_dim": 128,
    "q_lora_rank": 48,
    "qk_rope_head_dim": 16,
    "rotary_dim": 16,
    "depths": 2,
    "pred_hidden_size": 128,
    "pred_num_hidden_layers": 2,
    "pred_num_attention_heads": 4,
    "vocab_size": 100,
    "max_position_embeddings": 64,
    "n_positions": 64,
    "sliding_window": 8,
    "image_size": PIXELS,
    "crop_size": PIXELS,
    "patch_size": 16,
    "window_size": 2,
    "num_frames": FRAMES,
    "frames_per_clip": FRAMES,
    "use_cache": False,
}
"""Settings of configurations, those that a configuration has. A list in a configuration is of its stages: two with
the same number."""
HEAD = ("model", "whole", "pieces", "FLOPs", "difference", "saved", "served", "seconds", "why not")


def classes() -> Iterator[str]:
    """Yield the names of the classes, each family once."""
    causal = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    named = {**modeling_auto.MODEL_MAPPING_NAMES, **causal}.values()
    yield from dict.fromkeys(name for name in named if isinstance(name, str) and hasattr(transformers, name))


def small(name: str) -> tuple[nn.Module, dict[str, Any]]:
    """Return a small model of a class and its inputs by name. Raises whatever transformers raises for a class without
    such a model, and `ValueError` for one that has too many parameters."""
    kind: Any = getattr(transformers, name)
    usual, of = kind.config_class(), kind.config_class
    known = (key for key in SMALL if hasattr(usual, key) and not isinstance(getattr(of, key, None), property))
    given = {key: [SMALL[key]] * 2 if isinstance(getattr(usual, key), list | tuple) else SMALL[key] for key in known}
    if hasattr(usual, "kv_lora_rank"):  # its heads of keys and values are as many as those of queries
        given |= {"num_key_value_heads": given["num_attention_heads"], "head_dim": given["qk_rope_head_dim"]}
    config = of(**given)
    with torch.device("meta"):
        count = sum(x.numel() for x in kind(config).parameters())
    if count > PARAMETERS:
        raise ValueError(f"{count} parameters")
    torch.manual_seed(0)
    model: nn.Module = kind(config).eval()
    torch.manual_seed(1)
    main = getattr(kind, "main_input_name", "")
    if main.startswith("pixel_values"):
        frames = [FRAMES] if hasattr(usual, "num_frames") or hasattr(usual, "frames_per_clip") else []
        inputs = {main: torch.randn(BATCH, *frames, 3, PIXELS, PIXELS)}
    else:
        inputs = {"input_ids": torch.randint(5, 90, (BATCH, ROWS)), "attention_mask": torch.ones(BATCH, ROWS).long()}
    _first(model(**inputs))
    return model, inputs


def _first(result: Any) -> torch.Tensor:
    found = next(x for x in result.to_tuple() if isinstance(x, torch.Tensor))
    if not bool(found.isfinite().all()):
        raise ValueError("its first output is not finite")
    return found


def measured(name: str, options: Namespace) -> dict[str, Any]:
    """Return the facts of a class by name, as far as it came. `left_out`, `refused`: why there are no others. `whole`:
    whether it was compiled as a whole; `why`: why not. `seconds`: of compiling. `pieces`: how many, and how many
    reasons. `share`: of the FLOPs, in %. `difference`: from PyTorch, over the largest magnitude. `saved`: the same of a
    loaded file from the compiled model, or why there is none. `served`: whether a server gives the same bits. options:
    `overlay`, `experts`, `in_pieces`, of the command line."""
    try:
        model, given = small(name)
        wanted = _first(model(**given))
    except Exception as e:  # whatever transformers raises
        return {"left_out": str(e).strip().partition("\n")[0]}
    how = {"overlay": options.overlay, "experts": options.experts}
    facts: dict[str, Any] = {"whole": False}
    begun = time.perf_counter()
    try:
        if options.in_pieces:
            raise rsn.errors.UnsupportedError("not tried")
        compiled: Any = rsn.compile(model, given, **how)
        facts["whole"] = True
    except RsnError as e:
        begun, facts["why"] = time.perf_counter(), str(e)
        try:
            compiled = rsn.compile(model, given, whole=False, **how)
        except RsnError as other:
            return facts | {"refused": f"{type(other).__name__}: {other}"}
    facts["seconds"] = time.perf_counter() - begun
    if isinstance(compiled, CompiledPieces):
        facts["pieces"] = len(compiled.programs), len(compiled.reasons)
    share = re.search(r"([<>]?[\d.]+) % of", compiled.explain())
    facts["share"] = None if share is None else share[1]
    with compiled, tempfile.TemporaryDirectory() as folder:
        got = _first(compiled(**given))
        facts["difference"] = float((got - wanted).abs().max() / wanted.abs().max())
        path = Path(folder) / "x.rsnmodel"
        try:
            compiled.save(path)
            with rsn.load(path) as loaded, loaded.server() as server:
                again = _first(loaded(**given))
                facts["saved"] = float((again - got).abs().max() / got.abs().max())
                facts["served"] = torch.equal(_first(server.submit(**given).result()), again)
        except RsnError as e:
            facts["saved"] = str(e)
    return facts


def row(name: str, facts: dict[str, Any]) -> str:
    """Return the row of a class in the table, in Markdown. facts: as `measured` returns them."""
    said = facts.get("left_out") or facts.get("refused") or (facts.get("why", "") if not facts.get("whole") else "")
    if "share" not in facts:
        return markdown([name, "left out" if "left_out" in facts else "refused", *[""] * 6, said[:160]])
    pieces = "{} ({} reasons)".format(*facts["pieces"]) if "pieces" in facts else ""
    cells = [
        name,
        "yes" if facts["whole"] else "no",
        pieces,
        f"{facts['share']} %",
        f"{facts['difference']:.1e}",
        saved if isinstance(saved := facts["saved"], str) else f"{saved:.1g}",
        facts.get("served", ""),
        f"{facts['seconds']:.1f}",
        said[:160],
    ]
    return markdown(cells)


def main() -> None:
    """Print a row for each class, or JSON."""
    parser = command_line(__doc__, json=True)
    parser.add_argument("--overlay", default="xnn", help="of the programs (xnn)")
    parser.add_argument("--experts", choices=["static"], help="how experts that data choose are computed")
    parser.add_argument("--in-pieces", action="store_true", help="do not try the whole model first")
    warnings.simplefilter("ignore")
    transformers.utils.logging.set_verbosity_error()
    with torch.no_grad():
        print_models(parser, list(classes()), HEAD, measured, row)


if __name__ == "__main__":
    main()
