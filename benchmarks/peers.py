"""How long an estimate of an encoder takes here and in ZigZag and Stream: CPU time to the answer, all in one run.

    python3.12 -m venv /tmp/peers                 # Stream needs 3.12; outside the checkout
    /tmp/peers/bin/pip install zigzag-dse==3.9.1 stream-dse==2.1.1 six==1.17.0
    python benchmarks/peers.py --zigzag /tmp/peers/bin/python --stream /tmp/peers/bin/python [--runs 3] [--json]

ZigZag imports six but does not declare it. Without the options only our rows are measured.

The layers are those of BERT-Large at B = 6, L = 512: one GEMM (Q's projection), and the encoder layer. The peers get
its GEMMs, each of five shapes once; our program has all 198, in order, with softmax, GELU and normalization. A mapping
is either found by the tool or given to it; found mappings are compared with found ones, given ones with given ones:

- found: our scheduler, packing included; ZigZag's search over loop orders, as its API does it; the mapping that Stream
  generates
- given: our program, in a file; ZigZag's cost model for one loop order (the best of the six that split no loop), by its
  stages without the files and drawings that its API makes; Stream's solver for 64×64×64 tiles on 4×4 cores

Every measurement is a process of its own. "start-up" is the interpreter and the imports. "first" is the time from there
to the answer; ours includes loading numba, if the program is large enough to need it. "again" is the same question a
second time in that process; for a given program, with other rates and the traces kept. "whole" is start-up and first.
"wall" is the wall time from the start of the process to its first answer. Ratios are a peer's CPU time divided by ours
for the same work: below 1 the peer is faster.

The machines differ, so predictions cannot be compared: ours is the base overlay; ZigZag's is its tpu_like (32×32 array,
2 MB, DRAM), the fastest to search of the six that we tried; Stream's is its AIE whole_array (16 cores, memory tiles,
DRAM). The answers differ too. Ours is the time of every step of a whole program. ZigZag's is a formula for one layer at
a time, Stream's an optimal allocation of one layer; both in cycles, summed here over the GEMMs of the work.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from rsn.benchmarks.measuring import command_line
from rsn.machine.jit import available

Row = dict[str, Any]

SHAPES = {(3072, 1024, 1024): 4, (512, 64, 512): 96, (512, 512, 64): 96, (3072, 1024, 4096): 1, (3072, 4096, 1024): 1}
"""How often the encoder has a GEMM of M, K, N: Q, K, V and dense; attention, twice; up; down."""

# The drivers. Each gets a task as JSON and prints its result as JSON. They call the tools' APIs and copy none of them.

RSN = """
import json, sys, time
task = json.loads(sys.argv[1])
import numpy as np
from rsn.assembler import container
from rsn.machine.plan import TimedWorkload
from rsn.isa.overlays.xnn import XNN_BASE
from rsn.isa.instruction_path import InstructionPath
from rsn.isa.image import decode_image
from rsn.scheduler.lower import lower
from rsn.scheduler.pack import pack
from rsn.scheduler.schedule import PAPER
from rsn.scheduler.graph import Gemm, LayerGraph, Output
from rsn.cli.published.networks import encoder

if len(task["shapes"]) > 1:
    layers = encoder(6, 512, 1)
else:
    (m, k, n), = task["shapes"]
    weight, row = (np.broadcast_to(np.float32(0), shape) for shape in ((k, n), n))
    layers = LayerGraph(6, m // 6, {"x": k}, (Output("y", row, row),), (Gemm("gemm", "x", "y", weight, row),))

def schedule():
    return pack(lower(layers, XNN_BASE, PAPER).kernels)

def plan(program):
    packets = decode_image(program.image, XNN_BASE)
    return TimedWorkload(XNN_BASE, InstructionPath(XNN_BASE, packets, program.preloaded))

if task["write"]:
    program = schedule()
    plan(program).run()  # caches the compiled engine
    container.write(program, task["file"])
    sys.exit()
program = container.read(task["file"]) if task["given"] else None
started = time.process_time()
known = plan(program or schedule())
latency = known.run().latency
first, wall = time.process_time() - started, time.time() - task["time"]
before = time.process_time()
known.run(XNN_BASE.with_rates(ddr_read_gbs=42, ddr_write_gbs=47)) if task["given"] else plan(schedule()).run()
again = time.process_time() - before
print(json.dumps(dict(startup=started, first=first, again=again, wall=wall, predicted=f"{1e3 * latency:.3f} ms")))
"""

ZIGZAG = """
import json, logging, os, sys, tempfile, time
from importlib.metadata import version
import yaml
import zigzag
from zigzag.api import get_hardware_performance_zigzag
from zigzag.mapping.temporal_mapping import TemporalMappingType
from zigzag.stages.evaluation.cost_model_evaluation import CostModelStage
from zigzag.stages.main import MainStage
from zigzag.stages.mapping.spatial_mapping_generation import SpatialMappingGeneratorStage
from zigzag.stages.mapping.temporal_mapping_generator_stage import TemporalMappingGeneratorStage
from zigzag.stages.parser.accelerator_parser import AcceleratorParserStage
from zigzag.stages.parser.workload_parser import WorkloadParserStage
from zigzag.stages.results.reduce_stages import MinimalLatencyStage, SumStage
from zigzag.stages.workload_iterator import WorkloadStage

logging.disable(logging.WARNING)
task = json.loads(sys.argv[1])
inputs = os.path.join(os.path.dirname(zigzag.__file__), "inputs")
accelerator, shipped = (os.path.join(inputs, kind, "tpu_like.yaml") for kind in ("hardware", "mapping"))
workload = [
    dict(id=i, name=f"gemm{i}", operator_type="Gemm", equation="O[b][k]+=I[b][c]*W[c][k]",
         loop_dims=["B", "K", "C"], loop_sizes=[m, n, k], operand_source={},
         operand_precision=dict(I=8, W=8, O=16, O_final=8))
    for i, (m, k, n) in enumerate(task["shapes"])
]

def found(folder):
    cost = get_hardware_performance_zigzag(
        workload, accelerator, shipped, dump_folder=folder, loma_show_progress_bar=False)
    return [layer[0].latency_total2 for layer in cost[2][0][1]]

def given(folder):
    orders = [dict(spatial_mapping=dict(D1=["K, 32"], D2=["C, 32"]), memory_operand_links=dict(O="O", W="I2", I="I1"),
                   name=layer["name"], temporal_ordering=[["C", k // 32], ["B", m], ["K", n // 32]])
              for layer, (m, k, n) in zip(workload, task["shapes"])]
    orders.append(dict(orders[0], name="default"))
    mapping = os.path.join(folder, "mapping.yaml")
    with open(mapping, "w") as file:
        yaml.safe_dump(orders, file)
    stages = [WorkloadParserStage, AcceleratorParserStage, SumStage, WorkloadStage, MinimalLatencyStage,
              SpatialMappingGeneratorStage, MinimalLatencyStage, TemporalMappingGeneratorStage, CostModelStage]
    costs = MainStage(
        stages, workload=workload, accelerator=accelerator, mapping=mapping, loma_lpf_limit=6,
        loma_show_progress_bar=False, nb_mappings_generated=3, enable_mix_spatial_mapping_generation=False,
        access_same_data_considered_as_no_access=True, temporal_mapping_type=TemporalMappingType.UNEVEN).run()
    return [layer[0].latency_total2 for layer in costs[0][1]]

def once():
    with tempfile.TemporaryDirectory() as folder:
        return (given if task["given"] else found)(folder)

started = time.process_time()
cycles = once()
first, wall = time.process_time() - started, time.time() - task["time"]
before = time.process_time()
once()
again = time.process_time() - before
total = sum(n * each for n, each in zip(task["counts"], cycles, strict=True))
print(json.dumps(dict(startup=started, first=first, again=again, wall=wall, predicted=f"{total / 1e6:.3f} Mcycles",
                      version="zigzag-dse " + version("zigzag-dse"))))
"""

STREAM = """
import json, logging, os, sys, tempfile, time
from importlib.metadata import version
import onnx
import stream
import yaml
from onnx import TensorProto, helper
from stream.api import SolveOptions, evaluate_mapping

logging.disable(logging.WARNING)
task = json.loads(sys.argv[1])
accelerator = os.path.join(os.path.dirname(stream.__file__), "inputs", "aie", "hardware", "whole_array.yaml")
CORES = [first + row for first in (2, 8, 14, 20) for row in range(4)]

def tensor(name, *shape):
    return helper.make_tensor_value_info(name, TensorProto.BFLOAT16, shape)

def once(m, k, n):
    with tempfile.TemporaryDirectory() as folder:
        workload, mapping = (os.path.join(folder, name) for name in ("gemm.onnx", "mapping.yaml"))
        node = helper.make_node("Gemm", ["A", "B"], ["Y"], name="Gemm")
        graph = helper.make_graph([node], "gemm", [tensor("A", m, k), tensor("B", k, n)], [tensor("Y", m, n)])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
        onnx.save(onnx.shape_inference.infer_shapes(model), workload)
        tile = dict(D1=min(64, k), D0=min(64, m // 4), D2=min(64, n // 4))
        kernel = dict(name="gemm", kwargs=dict(m=tile["D0"], k=tile["D1"], n=tile["D2"], layout="default"))
        split = [[dict(dim="D0", split=4), dict(dim="D2", split=4)]]
        layer = dict(name="Gemm", core_allocation=[CORES], inter_core_tiling=split, kernel=kernel)
        tiling = [dict(dim="Gemm." + dim, tile=size) for dim, size in tile.items()]
        group = dict(name="group", layers=["Gemm"], intra_core_tiling=tiling)
        with open(mapping, "w") as file:
            yaml.safe_dump(dict(layers=[layer], fused_groups=[group], runtime_args=dict(A={}, B={}, Y={})), file)
        options = SolveOptions(artifacts=False, time_limit_s=60)
        return evaluate_mapping(accelerator, workload, folder, mapping if task["given"] else None, options).cycles

started = time.process_time()
total, failed, spent = 0, {}, [0, 0]
for turn in range(2):
    for shape, n in zip(task["shapes"], task["counts"], strict=True):
        before = time.process_time()
        try:
            cycles = once(*shape)
        except (RuntimeError, ValueError) as error:
            failed["×".join(map(str, shape))] = str(error).splitlines()[0]
        else:
            total += n * cycles * (not turn)
            spent[turn] += time.process_time() - before
    if not turn:
        wall = time.time() - task["time"]
print(json.dumps(dict(startup=started, first=spent[0], again=spent[1], wall=wall, failed=failed,
                      predicted=f"{total / 1e6:.3f} Mcycles", version="stream-dse " + version("stream-dse"))))
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark. arguments: those of the command line by default."""
    parser = command_line(__doc__, runs=3, json=True)
    parser.add_argument("--zigzag", metavar="PYTHON", help="the interpreter of an environment with zigzag-dse")
    parser.add_argument("--stream", metavar="PYTHON", help="the interpreter of an environment with stream-dse")
    options = parser.parse_args(arguments)
    for python in filter(None, (options.zigzag, options.stream)):
        if shutil.which(python) is None:
            parser.error(f"{python} is not an interpreter")
    drivers = {"rsn": (sys.executable, RSN), "zigzag": (options.zigzag, ZIGZAG), "stream": (options.stream, STREAM)}
    rows = measure({tool: driver for tool, driver in drivers.items() if driver[0]}, options.runs)
    if options.json:
        click.echo(json.dumps(rows))
        return
    click.echo(report(rows))
    if not available():
        click.echo("\nnumba is not installed, so ours are the Python path's: pip install numba")
    if not (options.zigzag and options.stream):
        setup = "\n".join(line for line in (__doc__ or "").splitlines() if line.startswith("    "))
        click.echo(f"\nNot measured, as no interpreter was given: ZigZag, Stream or both. To set them up:\n\n{setup}")


# -- what is measured ---------------------------------------------------------------------------------------------


def measure(drivers: Mapping[str, tuple[str, str]], runs: int) -> list[Row]:
    """Return a row for each tool and task: CPU seconds (`startup`, `first`, `again`, `whole`), seconds of real time
    (`wall`), and `ratios` to ours. drivers: for each tool its Python interpreter and its program; "rsn" is the first.
    runs: processes, of which the fastest counts. Raises `SystemExit` as `ask`."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for given in (False, True):
            for work, shapes in (("one GEMM", list(SHAPES)[:1]), ("encoder", list(SHAPES))):
                task = {
                    "shapes": shapes,
                    "counts": [SHAPES[s] if len(shapes) > 1 else 1 for s in shapes],
                    "given": given,
                    "write": False,
                    "file": str(Path(folder) / f"{work}.bin"),
                }
                ask(*drivers["rsn"], {**task, "write": True}, folder)
                ours = None
                for tool, driver in drivers.items():
                    found = [json.loads(ask(*driver, task, folder)) for _ in range(runs)]
                    row = {**found[0], "tool": tool, "work": work, "mapping": "given" if given else "found"}
                    row |= {key: min(f[key] for f in found) for key in ("startup", "first", "again", "wall")}
                    row["whole"] = min(f["startup"] + f["first"] for f in found)
                    ours = ours or row
                    row["ratios"] = {key: row[key] / ours[key] for key in ("whole", "first", "again")}
                    rows.append(row)
    return rows


def ask(python: str, driver: str, task: Mapping[str, Any], folder: str) -> str:
    """Run a driver in a process of its own, and return the last line that it prints, "" for none. python: path of the
    interpreter. driver: text of the program. task: its argument, as JSON. folder: where it leaves files. Raises
    `SystemExit`, with what it printed, if it fails."""
    path = Path(python).absolute() if "/" in python else python
    command = [str(path), "-c", driver, json.dumps({**task, "time": time.time()})]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise SystemExit(f"{python}:\n{ended.stderr.strip()}")
    return (ended.stdout.strip().splitlines() or [""])[-1]


# -- the table ----------------------------------------------------------------------------------------------------


def report(rows: Sequence[Row]) -> str:
    """Return the rows of `measure` as a table, lines of text."""
    keys = ("whole", "first", "again")
    lines = [
        f"{'':30}{'CPU seconds':^27}{'':8} {'times ours':^24}",
        f"{'':30}{'start-up':>9}{'first':>9}{'again':>9}{'wall':>8} {''.join(f'{key:>8}' for key in keys)}   predicts",
    ]
    notes = []
    for row in rows:
        name, ratios = row["tool"], ""
        if name == "rsn":
            lines += ["", f"{row['work']}, mapping {row['mapping']}"]
        else:
            name, ratios = row["version"], "".join(f"{row['ratios'][key]:8.1f}" for key in keys)
        if failed := row.get("failed"):
            notes += [f"{name}, mapping {row['mapping']}, {shape}: {why}" for shape, why in failed.items()]
            name += f" ({len(SHAPES) - len(failed)} of {len(SHAPES)})"
        lines.append(
            f"  {name:<28}{row['startup']:9.3f}{row['first']:9.4f}{row['again']:9.4f}{row['wall']:8.2f} "
            f"{ratios:24}   {row['predicted']}"
        )
    return "\n".join(line.rstrip() for line in [*lines, *(["", *notes] if notes else [])])


if __name__ == "__main__":
    main()
