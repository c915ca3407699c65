"""Transformers of today at real size, with random weights, on the simulated machine: one row per model.

One or two layers of each, 4 sequences of 512 rows for texts. FLOPs: the share of the model's that the machine computes;
of a model that is refused as a whole, the share in pieces, as torch.compile runs it. Experts that data chooses count by
top-k x tokens x sizes, on the host; that is exact if no token is dropped.
difference: the largest of the output, relative to its largest magnitude. compile: wall time from the module to a
program, schedule `paper`. paper, best: modelled time of the machine by either schedule. time / bound: modelled time of
`best` by the largest of what this program needs of one resource, without any waiting: bytes of DDR and of LPDDR over
their rates, products over the rate of the MMEs. bytes / least: bytes that the program moves by those that
`compared/unavoidable.py` calls unavoidable on this wiring.

Nothing is downloaded: transformers builds each model from its configuration. Without --values, nothing is computed, and
there is no difference.

Run it as: python benchmarks/families.py [--only NAME ...] [--budget SECONDS] [--values] [--json]
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from rsn.base.errors import RsnError
from rsn.benchmarks.compared.unavoidable import total_bytes, unavoidable_bytes
from rsn.benchmarks.measuring import command_line, markdown, print_models
from rsn.host.model.compiled import Compiled
from rsn.isa.overlay import Overlay
from rsn.isa.overlays import find
from rsn.machine.plan import execute
from rsn.rsnlib.graph_split import work_of
from rsn.rsnlib.partition import Traced
from rsn.rsnlib.pipeline import Pipeline
from rsn.rsnlib.summary import ModuleWork
from rsn.scheduler.best import Best, choose
from rsn.scheduler.dram import Lowered
from rsn.scheduler.lower import lower
from rsn.scheduler.pack import uops_of
from rsn.scheduler.schedule import PAPER

BATCH, ROWS = 4, 512
EAGER = ("Gemma2",)
"""Whose attention transformers has in no other form."""
ONE_LAYER = 3_000
"""From this hidden size on one layer is compiled, else two."""


@dataclass(frozen=True)
class FamilyModel:
    """A model of transformers. kind: the name of its class without Model. config: of the configuration. head: the
    suffix of the class, such as ForCausalLM. inputs: makes its keyword arguments."""

    kind: str
    config: dict[str, Any]
    inputs: Callable[[Any], dict[str, Any]]
    head: str = "Model"

    def model(self) -> nn.Module:
        """Return the model with random weights, in evaluation mode."""
        import transformers

        transformers.utils.logging.set_verbosity_error()
        torch.manual_seed(0)
        kind = getattr(transformers, f"{self.kind}{self.head}")
        made: nn.Module = kind(
            kind.config_class(attn_implementation="eager" if self.kind in EAGER else "sdpa", **self.config)
        ).eval()
        return made


def tokens(config: Any) -> dict[str, Any]:
    """Return arguments of a model of texts by name: token ids, int64 (`BATCH`, `ROWS`). config: not read."""
    torch.manual_seed(1)
    return {"input_ids": torch.randint(5, 1000, (BATCH, ROWS))}


def picture(config: Any) -> dict[str, Any]:
    """Return arguments of a model of images by name: float32 (`BATCH`, 3, size, size). config: of the model, has the
    size."""
    torch.manual_seed(1)
    size = config.image_size
    return {"pixel_values": torch.randn(BATCH, 3, size, size)}


def sound(config: Any) -> dict[str, Any]:
    """Return arguments of a model of speech by name: a spectrogram of 30 seconds, float32 (1, bins, 3000), which is
    1,500 rows behind the stem. config: of the model, has the bins."""
    torch.manual_seed(1)
    return {"input_features": torch.randn(1, config.num_mel_bins, 3000)}


def decoder(hidden: int, heads: int, kv_heads: int, inner: int, words: int, **more: Any) -> dict[str, Any]:
    """Return the configuration of a decoder, by the names of transformers. hidden: columns. heads, kv_heads: of
    queries, and of keys and values. inner: columns of the feed-forward part. words: size of its vocabulary. more: other
    settings."""
    return {
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": inner,
        "vocab_size": words,
        "num_hidden_layers": 1 if hidden >= ONE_LAYER else 2,
        "max_position_embeddings": 4096,
        "use_cache": False,
        "pad_token_id": 0,
        **more,
    }


def encoder(hidden: int, heads: int, inner: int, **more: Any) -> dict[str, Any]:
    """Return the configuration of an encoder. hidden, heads, inner, more: as for `decoder`."""
    sizes = {"hidden_size": hidden, "num_attention_heads": heads, "intermediate_size": inner}
    return sizes | {"num_hidden_layers": 2, **more}


CAUSAL = "ForCausalLM"
CASES: dict[str, FamilyModel] = {
    "llama-3.2-1b": FamilyModel("Llama", decoder(2048, 32, 8, 8192, 128256, head_dim=64), tokens, CAUSAL),
    "llama-2-7b": FamilyModel("Llama", decoder(4096, 32, 32, 11008, 32000), tokens, CAUSAL),
    "qwen2.5-0.5b": FamilyModel("Qwen2", decoder(896, 14, 2, 4864, 151936), tokens, CAUSAL),
    "qwen3-0.6b": FamilyModel("Qwen3", decoder(1024, 16, 8, 3072, 151936, head_dim=128), tokens, CAUSAL),
    "gemma-2-2b": FamilyModel("Gemma2", decoder(2304, 8, 4, 9216, 256000, head_dim=256), tokens, CAUSAL),
    "gemma-3-1b": FamilyModel("Gemma3", decoder(1152, 4, 1, 6912, 262144, head_dim=256), tokens, CAUSAL),
    "mistral-7b": FamilyModel("Mistral", decoder(4096, 32, 8, 14336, 32000, head_dim=128), tokens, CAUSAL),
    "phi-3-mini": FamilyModel("Phi3", decoder(3072, 32, 32, 8192, 32064), tokens, CAUSAL),
    "modernbert-base": FamilyModel("ModernBert", encoder(768, 12, 1152, num_hidden_layers=3), tokens),
    "nomicbert": FamilyModel("NomicBert", encoder(768, 12, 3072), tokens),
    "eurobert-210m": FamilyModel("EuroBert", decoder(768, 12, 12, 3072, 128256), tokens),
    "t5-v1.1-base": FamilyModel(
        "T5",
        {"d_model": 768, "d_kv": 64, "d_ff": 2048, "num_heads": 12, "num_layers": 2, "feed_forward_proj": "gated-gelu"},
        tokens,
        "EncoderModel",
    ),
    "mixtral-8x7b": FamilyModel("Mixtral", decoder(4096, 32, 8, 1024, 32000), tokens, CAUSAL),
    "qwen3-30b-a3b": FamilyModel(
        "Qwen3Moe",
        decoder(2048, 32, 4, 6144, 151936, head_dim=128, num_experts=8, moe_intermediate_size=768),
        tokens,
        CAUSAL,
    ),
    "dinov2-base": FamilyModel("Dinov2", {"num_hidden_layers": 2}, picture),
    "dinov3-vit-b/16": FamilyModel("DINOv3ViT", encoder(768, 12, 3072), picture),
    "siglip-so400m, image": FamilyModel(
        "SiglipVision", encoder(1152, 16, 4304, image_size=384, patch_size=14), picture
    ),
    "siglip-so400m, text": FamilyModel(
        "SiglipText",
        encoder(1152, 16, 4304, max_position_embeddings=64),
        lambda config: {"input_ids": torch.randint(5, 1000, (BATCH, 64))},
    ),
    "whisper-small, encoder": FamilyModel(
        "Whisper",
        {
            "d_model": 768,
            "encoder_layers": 2,
            "decoder_layers": 1,
            "encoder_attention_heads": 12,
            "encoder_ffn_dim": 3072,
        },
        sound,
        "ForAudioClassification",
    ),
    "sam-vit-b": FamilyModel("SamVision", {"num_hidden_layers": 3, "global_attn_indexes": [2]}, picture),
    "swin-tiny": FamilyModel("Swin", {"depths": [2, 2, 2, 2]}, picture),
}


def needs(lowered: Lowered, overlay: Overlay) -> tuple[dict[str, float], int]:
    """Return the seconds that a program needs of each resource (DDR, LPDDR, MME) without waiting, and the bytes that it
    moves off chip."""
    seconds, moved = {}, 0
    rate = {name: overlay.rates[name].value * 1e9 for name in ("ddr_read_gbs", "ddr_write_gbs", "lpddr_read_gbs")}
    for bank, (load, store) in {
        "DDR": ("ddr_read_gbs", "ddr_write_gbs"),
        "LPDDR": ("lpddr_read_gbs", "lpddr_read_gbs"),
    }.items():
        sizes = {False: 0, True: 0}
        for mop in lowered.kernels.sequences.get(bank, ()):
            access: Any = mop
            sizes[bool(getattr(access, "store", 0))] += 4 * access.size * access.chunks
        seconds[bank] = sizes[False] / rate[load] + sizes[True] / rate[store]
        moved += sum(sizes.values())
    seconds["MME"] = 0.0
    for ops in lowered.kernels.preloaded.values():
        seconds["MME"] = max(seconds["MME"], sum(product_s(op, overlay) for op in ops))
    return seconds, moved


def product_s(op: Any, overlay: Overlay) -> float:
    """Return the seconds of the products of an op of an MME. op: a uOP `Mme`."""
    name = "mme_k64_us" if not op.k128 else "mme_tile_us" if op.n128 else "mme_n64_us"
    return overlay.seconds[name] * int(op.a_iter * op.b_iter * op.k_iter * op.acc_a * op.acc_b)


def share(work: list[ModuleWork]) -> float:
    """Return the part of the FLOPs on the machine, 0 to 1. work: of all modules; `ZeroDivisionError` if they have no
    FLOPs."""
    return sum(x.flops for x in work if x.on_machine) / sum(x.flops for x in work)


def in_pieces(pipeline: Pipeline, model: nn.Module, inputs: dict[str, Any]) -> dict[str, Any]:
    """Return the `share` of FLOPs and the number of `pieces` of a model that is refused as a whole, by these names;
    empty if no piece runs. inputs: its arguments by name, in order."""
    try:
        split = pipeline.divide(model, tuple(inputs.values()), whole=False)
    except RsnError:
        return {}
    if isinstance(split, Traced):
        return {"share": share(split.work())}
    work = [x for p in split.pieces for x in (work_of(p) if p.traced is None else p.traced.work())]
    return {"share": share(work), "pieces": sum(p.traced is not None for p in split.pieces)}


def measured(case: FamilyModel, budget_s: float, values: bool) -> dict[str, Any]:
    """Return the figures of one model by name, with ms and seconds in the names; or `refused`, the reason, and
    `in_pieces`. budget_s: seconds of the search for `best`. values: compute, and compare with PyTorch."""
    model = case.model()
    inputs = case.inputs(model.config)
    overlay = find("xnn")
    pipeline = Pipeline.named("xnn")
    start = time.perf_counter()
    try:
        traced = pipeline.trace(model, inputs)
        built = pipeline.build(traced.network)
    except RsnError as error:
        return {"refused": str(error)} | in_pieces(pipeline, model, inputs)
    facts: dict[str, Any] = {"segments": len(traced.network.layers)}
    with Compiled(traced, built, "sim") as compiled, torch.no_grad():
        facts["compile_s"] = time.perf_counter() - start
        facts["share"] = share(traced.work())
        if values:
            got, wanted = (pytree.tree_leaves(call(**inputs)) for call in (compiled, model))
            facts["difference"] = max(
                float((a - b).abs().max() / b.abs().max())
                for a, b in zip(got, wanted, strict=True)
                if isinstance(b, torch.Tensor) and b.is_floating_point()
            )
    for name in ("paper", "best"):
        chosen = choose(traced.network, overlay, Best(budget_s)).schedule if name == "best" else PAPER
        lowered = lower(traced.network, overlay, chosen)
        latency = execute(overlay, {**uops_of(lowered.kernels), **overlay.unrolled(lowered.kernels.preloaded)}).latency
        seconds, moved = needs(lowered, overlay)
        facts[f"{name}_ms"] = 1e3 * latency
        facts[f"{name}_bound"] = max(seconds, key=seconds.__getitem__)
        facts[f"{name}_ratio"] = latency / max(seconds.values())
        facts[f"{name}_bytes"] = moved / sum(total_bytes(unavoidable_bytes(traced.network, overlay)).values())
    return facts


HEAD = (
    "model",
    "FLOPs on the machine",
    "difference",
    "compile, s",
    "paper, ms",
    "best, ms",
    "time / bound",
    "bytes / least",
)


def row(name: str, facts: dict[str, Any]) -> str:
    """Return one row of the table as Markdown. name: of the model. facts: from `measured`."""
    if "refused" in facts:
        pieces = f"{100 * facts['share']:.1f} %, in {facts.get('pieces', 1)} pieces; " if "share" in facts else ""
        return f"| {name} | {pieces}refused as a whole: {facts['refused']} |{' |' * (len(HEAD) - 2)}"
    cells = [
        name,
        f"{100 * facts['share']:.1f} %",
        f"{facts['difference']:.1e}" if "difference" in facts else "",
        f"{facts['compile_s']:.1f}",
        f"{facts['paper_ms']:.2f}",
        f"{facts['best_ms']:.2f}",
        f"{facts['best_ratio']:.2f} ({facts['best_bound']})",
        f"{facts['best_bytes']:.2f}",
    ]
    return markdown(cells)


def main() -> None:
    """Print a row for each model, or JSON."""
    parser = command_line(__doc__, json=True)
    parser.add_argument("--budget", type=float, default=30.0, metavar="SECONDS", help="of the search for best (30)")
    parser.add_argument("--values", action="store_true", help="compute, and compare with PyTorch")

    def facts(name: str, options: Namespace) -> dict[str, Any]:
        return measured(CASES[name], options.budget, options.values)

    print_models(parser, CASES, HEAD, facts, row)


if __name__ == "__main__":
    main()
