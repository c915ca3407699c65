"""Damaged ONNX files: each gives an answer or one of our errors, in little memory and time.

python -m rsn.tests.rsnlib.onnx_hostile --count 20000
"""

from __future__ import annotations

import argparse
import random
import resource
import tempfile
import traceback
import warnings
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

from rsn.base.errors import RsnError
from rsn.rsnlib.onnx_module import load_onnx

MEMORY = 6 << 30
"""Bytes of address space of a process, PyTorch's own included."""


@cache
def originals() -> tuple[bytes, ...]:
    """Small models, with most kinds of things that a file may hold."""
    made = []
    rng = np.random.default_rng(0)
    w = rng.standard_normal((8, 8)).astype(np.float32)
    node = helper.make_node
    bodies: list[tuple[list[Any], int, dict[str, Any]]] = [
        ([node("MatMul", ["x", "w"], ["a"]), node("Relu", ["a"], ["y"])], 17, {"w": w}),
        (
            [
                node("Shape", ["x"], ["s"]),
                node("Gather", ["s", "one"], ["n"], axis=0),
                node("Unsqueeze", ["n", "zero"], ["u"]),
                node("Concat", ["minus", "u"], ["t"], axis=0),
                node("Reshape", ["x", "t"], ["r"]),
                node("LayerNormalization", ["r", "g"], ["y"], axis=-1, epsilon=1e-5),
            ],
            17,
            {"one": np.array(1), "zero": np.array([0]), "minus": np.array([-1]), "g": w[0]},
        ),
        (
            [
                node("Softmax", ["x"], ["p"], axis=1),
                node("ReduceMean", ["p"], ["m"], axes=[1], keepdims=1),
                node("Squeeze", ["m"], ["q"], axes=[1]),
                node("Pad", ["q", "pads"], ["y"]),
            ],
            12,
            {"pads": np.array([1, 1])},
        ),
        (
            [
                node("Slice", ["x", "b", "e", "ax", "st"], ["a"]),
                node("Resize", ["a4", "", "sc"], ["rs"], mode="linear"),
                node("Unsqueeze", ["a", "zz"], ["a4"]),
                node("Flatten", ["rs"], ["y"], axis=2),
            ],
            18,
            {
                "b": np.array([0]),
                "e": np.array([5]),
                "ax": np.array([1]),
                "st": np.array([2]),
                "zz": np.array([0, 1]),
                "sc": np.array([1, 1, 2, 2], np.float32),
            },
        ),
        (
            [
                node("QuantizeLinear", ["x", "s", "z"], ["xq"]),
                node("QLinearMatMul", ["xq", "s", "z", "wq", "s", "z", "s", "z"], ["yq"]),
                node("DequantizeLinear", ["yq", "s", "z"], ["y"]),
            ],
            17,
            {"s": np.array(0.1, np.float32), "z": np.array(0, np.int8), "wq": (w * 10).astype(np.int8)},
        ),
    ]
    branch = helper.make_graph([node("Neg", ["x"], ["b"])], "b", [], [helper.make_empty_tensor_value_info("b")])
    other = helper.make_graph([node("Exp", ["x"], ["c"])], "c", [], [helper.make_empty_tensor_value_info("c")])
    bodies.append(([node("If", ["k"], ["y"], then_branch=branch, else_branch=other)], 17, {"k": np.array(True)}))
    for nodes, opset, constants in bodies:
        if nodes[0].op_type == "Slice":
            nodes = [nodes[0], nodes[2], nodes[1], nodes[3]]
        graph = helper.make_graph(
            nodes,
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, 8))],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            [numpy_helper.from_array(x, name) for name, x in constants.items()],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
        made.append(model.SerializeToString())
    return tuple(made)


def damaged(seed: int) -> bytes:
    """A model with some bytes, or some fields, changed."""
    choose = random.Random(seed)
    data = choose.choice(originals())
    if choose.random() < 0.5:
        changed = bytearray(data)
        for _ in range(choose.randint(1, 4)):
            at = choose.randrange(len(changed))
            way = choose.random()
            if way < 0.6:
                changed[at] = choose.randrange(256)
            elif way < 0.8:
                del changed[at : at + choose.randint(1, 8)]
            else:
                changed[at:at] = bytes(choose.randrange(256) for _ in range(choose.randint(1, 8)))
        return bytes(changed)
    model = onnx.ModelProto.FromString(data)
    for _ in range(choose.randint(1, 3)):
        _change(model, choose)
    return model.SerializeToString()


NUMBERS = (0, 1, -1, 2, 3, 7, 8, 100, -100, 2**31, -(2**31), 2**40, 2**63 - 1, -(2**63) + 1)


def _change(model: onnx.ModelProto, choose: random.Random) -> None:
    graph = model.graph
    node = choose.choice(graph.node)
    names = ["", "x", "y", *(x.name for x in graph.initializer), *(name for n in graph.node for name in n.output)]
    way = choose.randrange(9)
    if way == 0 and node.input:
        node.input[choose.randrange(len(node.input))] = choose.choice(names)
    elif way == 1 and node.attribute:
        a = choose.choice(node.attribute)
        a.i, a.f = choose.choice(NUMBERS), choose.choice([0.0, -1.0, 1e38, float("nan")])
        if a.ints:
            a.ints[0] = choose.choice(NUMBERS)
    elif way == 2 and graph.initializer:
        tensor = choose.choice(graph.initializer)
        if tensor.dims and choose.random() < 0.5:
            tensor.dims[0] = choose.choice(NUMBERS)
        else:
            tensor.dims.append(choose.choice(NUMBERS))
    elif way == 3 and graph.initializer:
        choose.choice(graph.initializer).data_type = choose.randrange(30)
    elif way == 4 and graph.initializer:
        tensor = choose.choice(graph.initializer)
        if tensor.data_type == TensorProto.INT64 and tensor.raw_data:
            tensor.raw_data = choose.choice(NUMBERS).to_bytes(8, "little", signed=True) + tensor.raw_data[8:]
    elif way == 5:
        node.op_type = choose.choice(
            ["Neg", "Concat", "Reshape", "Tile", "Expand", "Conv", "Attention", "OneHot", "Range"]
        )
    elif way == 6:
        model.opset_import[0].version = choose.choice([0, 1, 7, 9, 11, 13, 21, 23, 28, 99])
    elif way == 7:
        node.output[0] = choose.choice(names)
    else:
        node.input.append(choose.choice(names))


def outcome(seed: int, folder: Path) -> str:
    """ "answers", "refused", or what else happened."""
    path = folder / f"{seed}.onnx"
    path.write_bytes(damaged(seed))
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            module = load_onnx(path)
            module(*(x for x in module.example(2, 8).values()))
    except RsnError:
        return "refused"
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        return f"raw: {type(error).__name__} {str(error)[:80]} at {Path(at.filename).name}:{at.lineno}"
    finally:
        path.unlink()
    return "answers"


def some(seeds: range) -> Counter[str]:
    """What damaged files give, in a process whose memory is limited."""
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.RLIM_INFINITY))
    with tempfile.TemporaryDirectory() as folder:
        return Counter(outcome(seed, Path(folder)) for seed in seeds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    parts = [range(i, min(i + 250, given.seed + given.count)) for i in range(given.seed, given.seed + given.count, 250)]
    counts: Counter[str] = Counter()
    with ProcessPoolExecutor(given.processes) as pool:
        for part in pool.map(some, parts):
            counts += part
    for what, count in counts.most_common():
        print(count, what)


if __name__ == "__main__":
    main()
