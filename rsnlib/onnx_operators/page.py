"""The page of supported ONNX operators, docs/onnx.md, from the table.

python -m rsn.rsnlib.onnx_operators.page                # writes the page anew
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from onnx import defs

from .. import onnx_module
from .normal import INTERNAL, OLDEST, OPSET, QUANTISED
from .table import REQUIRED, TABLE, InputReading, OnnxOperator

PAGE = Path(__file__).parents[2] / "docs" / "onnx.md"
NEWEST = 28
"""The newest opset of which the table is known to have all attributes."""
READS = {
    InputReading.TENSOR: "",
    InputReading.NUMBER: "",
    InputReading.INTS: " (known)",
    InputReading.FLOATS: " (known)",
    InputReading.KNOWN: " (known)",
}

INTRODUCTION = f"""# ONNX files

<!-- Made by `make generate` from the table of operators (rsnlib/onnx_operators). -->

An ONNX file becomes a module of PyTorch operators, which is compiled like any other model:

```python
from rsn.rsnlib.onnx_module import load_onnx

module = load_onnx("model.onnx")
compiled = rsn.compile(module, module.example(batch=1, seq=128))
```

`rsn compile model.onnx` does the same. Functions of the file are inlined and its opset is converted to {OPSET} by the
onnx package; opsets {OLDEST} to {NEWEST} are read. Files may have external data, initializers that are inputs too,
sparse initializers, outputs without shapes, and weights in float16 and bfloat16. `If` takes the branch that is known.

Sizes that the file leaves open are those of the example, or chosen by each call, by the names that the file gives them:

```python
shapes = module.dynamic_shapes(batch=rsn.Batch(1, 4), sequence=rsn.Length(16, 128))
family = rsn.compile(module, module.example(batch=1, seq=16), dynamic_shapes=shapes)
```

What the machine runs in pieces only, `torch.compile` runs from the module's graph, which is for the shapes of an
example:

```python
fast = torch.compile(module.captured(*inputs), backend="rsn")
```

Quantised models (QDQ, QOperator, and products of integers whose scale is computed) are recognised; a warning says
"{QUANTISED}".

## What is refused

An operator that is not listed here, and an input or attribute of one that its row does not have, are refused with the
node's name when the file is loaded. An input that is marked "known" must be a constant, or follow from constants and
shapes; otherwise the capture refuses it. Indices may be negative. One that is out of range is refused when it is known;
in calls it is a `TensorError`.

Numbers are those of onnxruntime, but for these:

- LayerNorm and RMSNorm are computed in the type of their operand (`stash_type`), an attention in float32.
- What a mask of onnxruntime's attentions hides has the weight 0, and not that of a score of `mask_filter_value`.
- Before opset 13 `Hardmax` is another function, and refused.

## Operators

"""


def _row(row: OnnxOperator) -> str:
    inputs = ", ".join(
        f"{x.name}{READS[x.read]}{' ...' if x.is_variadic else ''}{'?' if x.is_optional else ''}" for x in row.inputs
    )
    attributes = ", ".join(
        f"{name}" if default is None else f"{name} (needed)" if default is REQUIRED else f"{name}={default}"
        for name, default in row.attributes.items()
    )
    since = f"{max(_first_versions()[row.name], OLDEST)}" if not row.domain else ""
    return f"| {row.name} | {since} | {inputs} | {attributes} | {row.summary} |"


@cache
def _first_versions() -> dict[str, int]:
    """By operator, the opset that it is in since."""
    versions: dict[str, int] = {}
    for schema in defs.get_all_schemas_with_history():
        if not schema.domain:
            versions[schema.name] = min(schema.since_version, versions.get(schema.name, schema.since_version))
    return versions


def page() -> str:
    """Return the text of docs/onnx.md, as Markdown: an introduction, and one row for each operator of the table."""
    assert onnx_module.GROUPS  # which fill the table
    parts = [INTRODUCTION]
    for domain, title in (("", "ONNX's own"), ("com.microsoft", "Of onnxruntime's optimizer (com.microsoft)")):
        rows = sorted((row for (of, _), row in TABLE.items() if of == domain), key=lambda row: row.name)
        parts.append(f"### {title}\n\n")
        parts.append("| operator | from opset | inputs (? may be missing) | attributes | note |\n")
        parts.append("|---|---|---|---|---|\n")
        parts.append("\n".join(map(_row, rows)) + "\n\n")
    assert all(domain in ("", "com.microsoft", INTERNAL) for domain, _ in TABLE)
    return "".join(parts).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
