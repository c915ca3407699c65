"""Whole models in files: written, loaded and served, against the compiled ones that they were made of."""

from __future__ import annotations

import functools
import json
import operator
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections import OrderedDict
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import rsn  # noqa: E402 - torch first: it may be missing
from rsn.base.errors import BoardError, ContainerError, TensorError, UnsupportedError  # noqa: E402
from rsn.host.boards.sim import SimBoard  # noqa: E402
from rsn.host.serving import QueueFull, RequestTimeout, State  # noqa: E402
from rsn.isa.program import Role  # noqa: E402
from rsn.tests.effort import cases, full, in_both, long  # noqa: E402
from rsn.tests.fuzz import models  # noqa: E402
from rsn.tests.host.rigged import Rig  # noqa: E402

C = 64


class Pair(NamedTuple):
    rows: Any
    first: Any


@dataclass
class Answer:
    rows: Any
    first: Any = None


torch.export.register_dataclass(Answer)


class Stack(torch.nn.Module):
    """An encoder with masks. result: makes of its rows what the module returns."""

    def __init__(self, result: Any, layers: int = 1) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = torch.nn.Embedding(50, C)
        self.encoder = rsn.nn.Encoder(layers, C, 2, 128)
        self.result = result

    def forward(self, ids: Any, mask: Any) -> Any:
        return self.result(self.encoder(self.words(ids), mask))


def given(batch: int, length: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(batch * 100 + length)
    ids = torch.randint(0, 50, (batch, length), generator=generator)
    mask = torch.ones_like(ids)
    mask[-1, max(1, length - 2) :] = 0
    return {"ids": ids, "mask": mask}


def equal(a: Any, b: Any) -> bool:
    """Whether two results are the same, to the last bit and in structure."""
    (x, one), (y, other) = (torch.utils._pytree.tree_flatten(r) for r in (a, b))
    return one == other and all(torch.equal(p, q) if hasattr(p, "shape") else p == q for p, q in zip(x, y, strict=True))


RESULTS: dict[str, Any] = {
    "a tensor": lambda y: y,
    "a tuple": lambda y: (y, y[:, 0]),
    "a list": lambda y: [y, [y[:, 0].tanh()]],
    "a dictionary": lambda y: {"rows": y, "more": {"first": y[:, 0], "number": 3, "text": "x", "none": None}},
    "an ordered dictionary": lambda y: OrderedDict(b=y, a=y[:, 0]),
    "a named tuple": lambda y: Pair(y, y[:, 0]),
    "a dataclass": lambda y: Answer(y, y[:, 0]),
    "elements that are there again": lambda y: (y[:, :1].expand_as(y), y.unsqueeze(1).expand(-1, 3, -1, -1)),
    "memory that is not initialised": lambda y: torch.empty_like(y).fill_(1) + y.new_empty(y.shape).copy_(y),
    "a dataclass, in part": lambda y: (Answer(y), 1.5),
}


@pytest.mark.parametrize("name", RESULTS)
def test_results_come_back_in_their_structure(name: str, tmp_path: Path) -> None:
    path = tmp_path / "x.rsnmodel"
    with rsn.compile(Stack(RESULTS[name]).eval(), given(2, 12)) as compiled:
        compiled.save(path)
        expected = compiled(**given(2, 12))
    with rsn.load(path) as loaded:
        answer = loaded(**given(2, 12))
        assert type(answer) is type(expected)
        assert equal(answer, expected)
        x = given(2, 12)
        assert equal(loaded(x["ids"], x["mask"]), expected)
        assert equal(loaded(x["ids"].numpy(), mask=x["mask"]), expected)
        assert loaded.last_run is not None
        with pytest.raises(
            TensorError, match=r"torch.int64 \(2, 11\); the module was traced with torch.int64 \(2, 12\)"
        ):
            loaded(**given(2, 11))
        with pytest.raises(TensorError, match="missing a required argument: 'mask'"):
            loaded(ids=x["ids"])
        with pytest.raises(TensorError, match="unexpected keyword argument 'more'"):
            loaded(**x, more=1)
        with pytest.raises(TensorError, match=r"^aten\.embedding\.default at the top level: index out of range"):
            loaded(ids=x["ids"] + 50, mask=x["mask"])


def dims(batches: tuple[int, ...], lengths: tuple[int, ...]) -> dict[str, Any]:
    both = {0: rsn.Batch(*batches), 1: rsn.Length(*lengths)}
    return {"ids": both, "mask": both}


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A model in four sizes, and the file of it."""
    path = tmp_path_factory.mktemp("family") / "x.rsnmodel"
    made = rsn.compile(
        Stack(RESULTS["a dictionary"]).eval(), given(4, 24), dynamic_shapes=dims((1, 4), (12, 24))
    )  # fmt: skip
    made.save(path)
    return made, path


@pytest.mark.parametrize("sizes", [(1, 1), (1, 12), (2, 5), (3, 13), (4, 24), (4, 1)])
def test_a_family_answers_all_sizes(family: tuple[Any, Path], sizes: tuple[int, int]) -> None:
    made, path = family
    with rsn.load(path) as loaded:
        answer, expected = loaded(**given(*sizes)), made(**given(*sizes))
    assert equal(answer, expected)
    assert answer["rows"].shape == (*sizes, C)
    assert answer["more"]["first"].shape == (sizes[0], C)


@pytest.mark.long
def test_a_family_with_padding_on_the_left_answers_batches_between_those_of_its_programs(tmp_path: Path) -> None:
    """Their first rows are parameters of a program, so that a request is as large as its program."""

    def on_the_left(batch: int, length: int) -> dict[str, Any]:
        x = given(batch, length)
        return x | {"mask": x["mask"].flip(1)}

    path = tmp_path / "x.rsnmodel"
    with rsn.compile(Stack(lambda y: y).eval(), on_the_left(3, 12), dynamic_shapes=dims((1, 3), (12,))) as made:
        made.save(path)
        with rsn.load(path) as loaded, loaded.server() as server:
            for sizes in ((2, 12), (2, 7), (3, 5), (1, 9)):
                x = on_the_left(*sizes)
                expected = made(**x)
                assert equal(loaded(**x), expected)
                assert equal(server.submit(**x).result(60), expected)


def test_what_a_loaded_family_says_of_itself(family: tuple[Any, Path]) -> None:
    loaded = rsn.load(family[1])
    assert repr(loaded) == (
        "<rsn.Loaded: ids: int64 (batch, length), mask: int64 (batch, length); batch 1|4; length 12|24; 4 programs>"
    )
    assert loaded.sizes == {"batch": (1, 4), "length": (12, 24)}
    assert loaded.dims == (rsn.Batch(1, 4), rsn.Length(12, 24))
    assert list(loaded.programs) == [(1, 12), (1, 24), (4, 12), (4, 24)]
    assert loaded.device == torch.device("cpu")
    there_are = "there are programs for batch 1 to 4, length 1 to 24"
    for wrong, words in (
        (given(5, 12), rf"^no program takes ids of \(5, 12\), mask of \(5, 12\); {there_are}$"),
        (given(1, 25), rf"^no program takes ids of \(1, 25\), mask of \(1, 25\); {there_are}$"),
        (dict.fromkeys(("ids", "mask"), torch.ones(0, 0).long()), "argument ids has a batch of 0; this module takes"),
        ({"ids": given(1, 9)["ids"], "mask": given(1, 8)["mask"]}, "mask has a length of 8, but ids has one of 9"),
    ):
        with pytest.raises(TensorError, match=words):
            loaded(**wrong)


def test_weights_are_once_in_the_file_in_memory_and_on_the_board(family: tuple[Any, Path]) -> None:
    made, path = family
    loaded = rsn.load(path)
    _, tensors = models.contents(path)
    images = [x for name, x in tensors.items() if name.startswith("bank")]
    assert len(images) == 1
    words = [x for name, x in tensors.items() if name.startswith("constant") and x.shape == (50, C)]
    assert len(words) == 1
    programs = [part.on_machine[0] for part in loaded._saved.parts]
    images = [program.weights.image("lpddr") for program in programs]
    assert all(np.shares_memory(images[0], image) for image in images)
    assert not images[0].flags.writeable
    boards = [SimBoard() for _ in images]
    for board, program in zip(boards, programs, strict=True):
        board.load(program.program, program.weights)
    banks = [board._memories.banks["lpddr"] for board in boards]  # type: ignore[union-attr]
    assert all(np.shares_memory(banks[0], bank) for bank in (*banks, *images))
    # What was compiled, too: its weights are packed for each board, and are equal.
    for board, sizes in zip(boards, made.programs, strict=True):
        part = made.program(*sizes).part(sizes).on_machine[0]
        board.load(part.program, part.weights)
    banks = [board._memories.banks["lpddr"] for board in boards]  # type: ignore[union-attr]
    assert all(np.shares_memory(banks[0], bank) for bank in banks)
    networks = [made.program(*sizes)._traced.network for sizes in made.programs]
    assert len({id(layer.weight) for net in networks for layer in net.layers if layer.path.endswith("up")}) == 1


def test_boards_with_other_weights_share_nothing() -> None:
    """The same program, with other numbers in its last weight alone."""
    built = [rsn.compile(Stack(RESULTS["a tensor"]).eval(), given(1, 12)).saved() for _ in range(2)]
    one, other = ({name: part.weights[name] for name in part.weights} for part in built)
    last = list(built[1].program.with_role(Role.WEIGHT))[-1].name
    other[last] = other[last] + 1
    boards = SimBoard(), SimBoard(), SimBoard()
    for board, weights in zip(boards, (one, other, one), strict=True):
        board.load(built[0].program, weights)
    banks = [board._memories.banks["lpddr"] for board in boards]  # type: ignore[union-attr]
    assert np.shares_memory(banks[0], banks[2])
    assert not np.shares_memory(banks[0], banks[1])
    buffer = built[0].program.buffer(last)
    unit = built[0].program.overlay.address_unit
    at = slice(buffer.offset * unit, buffer.offset * unit + buffer.size)
    assert (banks[1][at] == other[last]).all()
    assert (
        np.delete(banks[1], np.arange(at.start, at.stop)) == np.delete(banks[0], np.arange(at.start, at.stop))
    ).all()


@pytest.mark.long
def test_a_model_with_a_bias_for_each_length_keeps_its_programs_apart(tmp_path: Path) -> None:
    """Relative positions: what lies in DDR follows the length, so that a request runs on its own program alone."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.T5Config(vocab_size=50, d_model=64, d_kv=32, d_ff=128, num_layers=1, num_heads=2)
    model = transformers.T5EncoderModel(config).eval()
    x = given(2, 12)
    inputs = {"input_ids": x["ids"], "attention_mask": x["mask"]}
    both = {0: rsn.Batch(1, 2), 1: rsn.Length(12, 24)}
    with rsn.compile(model, inputs, dynamic_shapes=dict.fromkeys(inputs, both)) as made:
        made.save(tmp_path / "t5.rsnmodel")
        loaded = rsn.load(tmp_path / "t5.rsnmodel")
        assert len(set(loaded._saved.same)) == 2
        with loaded, loaded.server() as server:
            for sizes in ((1, 3), (2, 12), (1, 20), (2, 24)):
                x = given(*sizes)
                inputs = {"input_ids": x["ids"], "attention_mask": x["mask"]}
                expected = made(**inputs)
                assert equal(loaded(**inputs), expected)
                assert type(expected) is type(loaded(**inputs))
                assert torch.allclose(
                    server.submit(**inputs).result(60).last_hidden_state, expected.last_hidden_state, atol=1e-5
                )
            assert server.health.state is State.READY


FRESH = """
    import sys
    class Without:
        def find_spec(self, name, *rest):
            if name.partition(".")[0] in ("transformers", "answers"):
                raise ImportError(name)
    if {without}:
        sys.meta_path.insert(0, Without())
    import torch, rsn
    if {imported}:
        import answers
    with rsn.load({path!r}) as loaded:
        answer = loaded(torch.ones(1, 8, dtype=torch.long), torch.ones(1, 8, dtype=torch.long))
    print(type(answer).__module__, type(answer).__name__, list(answer), answer.missing, tuple(answer[0].shape))
    print(answer.rows.shape == answer["rows"].shape, repr(answer)[:12], "answers" in sys.modules)
"""

ANSWERS = """
    from dataclasses import dataclass
    from typing import Any
    from transformers.utils import ModelOutput

    @dataclass
    class Answer(ModelOutput):
        rows: Any = None
        missing: Any = None
        first: Any = None
"""


@pytest.mark.long
@pytest.mark.parametrize(("without", "imported"), [(True, False), full(False, False), (False, True)])
def test_a_fresh_process_without_the_code_of_the_model(
    without: bool, imported: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The class of the result is there where it was imported, and there is one with the same fields elsewhere. A file
    has no module imported that is not of transformers."""
    pytest.importorskip("transformers")
    (tmp_path / "answers.py").write_text(textwrap.dedent(ANSWERS))
    monkeypatch.syspath_prepend(str(tmp_path))
    import answers  # type: ignore[import-not-found]

    path = tmp_path / "x.rsnmodel"
    model = Stack(lambda y: answers.Answer(rows=y, first=y[:, 0])).eval()
    with rsn.compile(model, given(1, 8)) as compiled:
        compiled.save(path)
    script = textwrap.dedent(FRESH).format(without=without, imported=imported, path=str(path))
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert not ran.returncode, ran.stderr
    ours = ["rsn.rsnlib.structure Record ['rows', 'first'] None (1, 8, 64)", "True Answer(rows= False"]
    theirs = ["answers Answer ['rows', 'first'] None (1, 8, 64)", "True Answer(rows= True"]
    assert ran.stdout.splitlines() == (theirs if imported else ours)


@pytest.mark.long
def test_requests_of_all_sizes_share_runs(family: tuple[Any, Path]) -> None:
    made, path = family
    asked, rig = [given(1 + i % 3, 1 + (7 * i) % 24) for i in range(40)], Rig()
    with rsn.load(path, board=rig).server(rsn.Serving(queue=64, max_wait_s=0.2), name="x") as server:
        futures = [server.submit(**x) for x in asked]
        for x, future in zip(asked, futures, strict=True):
            answer, expected = future.result(120), made(**x)
            rows, first = answer["rows"], answer["more"]["first"]
            assert rows.shape == expected["rows"].shape
            valid = x["mask"].bool()
            for a, b in ((rows[valid], expected["rows"][valid]), (first, expected["more"]["first"])):
                assert float((a - b).abs().max()) <= 1e-5 * float(b.abs().max())
        assert len(rig.runs) < len(asked) * 0.75
        assert server.health.state is State.READY
        assert server.sizes == {"batch": (1, 4), "length": (12, 24)}
    assert server.health.state is State.CLOSED
    with pytest.raises(BoardError, match="closed"):
        server.submit(**asked[0])


def test_a_server_cancels_times_out_and_refuses(tmp_path: Path) -> None:
    path = tmp_path / "x.rsnmodel"
    with rsn.compile(Stack(RESULTS["a tensor"]).eval(), given(1, 8)) as compiled:
        compiled.save(path)
        expected = compiled(**given(1, 8))
    runs, let = threading.Semaphore(0), threading.Event()
    rig = Rig(before=lambda n: (runs.release(), let.wait()))  # type: ignore[func-returns-value,arg-type,return-value]
    with rsn.load(path, board=rig).server(rsn.Serving(queue=2)) as server:
        running = server.submit(**given(1, 8))
        assert runs.acquire(timeout=60)
        waiting = server.submit(**given(1, 8))
        late = server.ask(given(1, 8), timeout=0.01)
        with pytest.raises(RequestTimeout):
            late.result(60)
        third = server.ask(given(1, 8), wait=0)
        with pytest.raises(QueueFull):
            server.ask(given(1, 8), wait=0)
        assert waiting.cancel()
        with pytest.raises(CancelledError):
            waiting.result(1)
        with pytest.raises(TensorError, match="missing a required argument: 'mask'"):
            server.submit(ids=given(1, 8)["ids"])
        let.set()
        assert torch.equal(running.result(60), expected)
        assert torch.equal(third.result(60), expected)


@pytest.mark.long
def test_what_cannot_be_saved(tmp_path: Path) -> None:
    class Own:
        def __init__(self, rows: Any) -> None:
            self.rows = rows

    torch.utils._pytree.register_pytree_node(Own, lambda x: ([x.rows], None), lambda values, _: Own(*values))
    with rsn.compile(Stack(Own).eval(), given(1, 8)) as compiled:
        with pytest.raises(
            UnsupportedError, match="the model's result is a Own, which cannot be saved: return tensors"
        ):
            compiled.save(tmp_path / "x.rsnmodel")
        with pytest.raises(OSError, match="No such file"):
            compiled.save(tmp_path / "nowhere" / "x.rsnmodel")
    with rsn.compile(Stack(lambda y: torch.empty(y.shape).fill_(1) + y).eval(), given(1, 8)) as compiled:  # noqa: SIM117
        with pytest.raises(
            UnsupportedError,
            match=r"aten.empty.memory_format at .*: this operator cannot be saved; a file holds",
        ):
            compiled.save(tmp_path / "x.rsnmodel")
    assert not list(tmp_path.iterdir())


def test_a_saved_model_has_the_weights_of_now(tmp_path: Path) -> None:
    model = Stack(RESULTS["a tensor"]).eval()
    with rsn.compile(model, given(1, 8)) as compiled:
        with torch.no_grad():
            model.words.weight.mul_(2)
            next(model.encoder.parameters()).mul_(0.5)
        compiled.save(tmp_path / "x.rsnmodel")
        assert torch.equal(rsn.load(tmp_path / "x.rsnmodel")(**given(1, 8)), compiled(**given(1, 8)))


def test_files_that_are_no_models(family: tuple[Any, Path], tmp_path: Path) -> None:
    path = tmp_path / "x.rsnmodel"
    whole = family[1].read_bytes()
    said, tensors = models.contents(family[1])

    def refused(words: str) -> None:
        with pytest.raises(ContainerError, match=rf"x\.rsnmodel: {words}"):
            rsn.load(path)

    refused("no such file")
    for cut in (0, 7, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        refused("not a safetensors file")
    path.write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
    refused(r"the checksum of \w+/\d+ differs: the file is damaged; copy it again")
    at = whole.index(b"aten.")
    path.write_bytes(whole[:at] + b"b" + whole[at + 1 :])
    refused("the checksum of its description differs")
    models.save_file(tensors, path, metadata={"rsn.layout": "blocked"})
    refused(r"not a model but other tensors: compiled\.save\(path\), with one argument, writes a model")
    models.seal(path, said | {"format": 7, "version": "9.1"}, tensors)
    refused(r"has format 7, written by rsn 9\.1; rsn \S+ reads formats 3, 4, 5 and 6")
    models.seal(path, said, {name: x for name, x in tensors.items() if not name.startswith("bank")})
    refused("not a model that rsn can read")
    for old, new, words in (
        ("aten.embedding.default", "aten.embedding_renorm_.default", "is not allowed in a file"),
        ("aten.embedding.default", "aten.from_file.default", "is not allowed in a file"),
        ("aten.embedding.default", "aten.new_empty.default", "is not allowed in a file"),
        ("aten.embedding.default", "prims.add.default", "is not allowed in a file"),
        ("aten.embedding.default", "aten.rand_like.default", "draws random numbers"),
        ("aten.embedding.default", "aten.nothing.default", "has no attribute 'nothing'"),
        ('"dict"', '"set"', "no structure is called 'set'"),
    ):
        text = json.dumps(said)
        assert old in text
        models.seal(path, json.loads(text.replace(old, new)), tensors)
        refused(f"not a model that rsn can read: .*{words}")
    with pytest.raises(ContainerError, match="a folder; a model is one file"):
        rsn.load(tmp_path)


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        ("buckets masks 0", {}, "{} is not a string"),
        ("buckets masks 0", "words", "the mask 'words' is no tensor among the arguments ids, mask"),
        ("buckets shapes mask 0 0", 0.5, "0.5 is not a whole number"),
        ("buckets shapes mask 0 0", 2, "argument mask is .*; it needs an axis 2"),
        ("buckets shapes mask 0 1", -1, "-1 is not a number from 0 to 1"),
        ("buckets cuts 0 1 0 0 0 2", None, "None is not a whole number"),
        ("buckets signature 0 2", "no", "'no' is not true or false"),
        ("parts 0 host lengths", [1, 2], r"its lengths are \(1, 2\), for 1 sequences of 12 rows"),
        ("parts 0 host results 0 2 0", 1 << 40, "shows elements beyond 768"),
        ("parts 0 host results 0 2 1 1 0", [13, 64], "is no view of 768 elements"),
        ("parts 0 host masks 0 1", 1, "1 is not true or false"),
        ("parts 0 weights", [], r"\[\] is not an object"),
    ],
)
def test_each_value_of_a_description_is_checked(
    place: str, value: Any, words: str, family: tuple[Any, Path], tmp_path: Path
) -> None:
    """A file is refused when it is read, not when it is called."""
    said, tensors = models.contents(family[1])
    *way, last = [int(step) if step.isdigit() else step for step in place.split()]
    at = functools.reduce(operator.getitem, way, said)
    at[last] = value
    models.seal(tmp_path / "x.rsnmodel", said, tensors)
    with pytest.raises(ContainerError, match=rf"x\.rsnmodel: .*{words}"):
        rsn.load(tmp_path / "x.rsnmodel")


@in_both
def test_changed_descriptions() -> None:
    """A tenth of the full run, `python -m rsn.tests.fuzz.models`, would be too slow; a seeded part of it."""
    count = cases(150, 25)
    outcomes = models.run(count, seed=5)
    assert outcomes.total() == count
    assert outcomes["refused"] > count * 2 / 3
    assert outcomes["answers"] > count / 50


def test_a_forked_process_opens_a_board_of_its_own(family: tuple[Any, Path]) -> None:
    made, path = family
    expected = made(**given(2, 9))["rows"]
    with rsn.load(path) as loaded, loaded.server() as server:
        assert torch.equal(loaded(**given(2, 9))["rows"], expected)
        child = os.fork()
        if not child:
            code = 1
            with suppress(BaseException):
                signal.alarm(120)
                torch.set_num_threads(1)
                assert torch.equal(loaded(**given(2, 9))["rows"], expected)
                try:
                    server.submit(**given(2, 9))
                except BoardError:
                    code = 0
            os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        assert torch.equal(server.submit(**given(2, 9)).result(60)["rows"], expected)


@pytest.mark.parametrize("dtype", [long(torch.float16), long(torch.bfloat16)])
def test_half_precision(dtype: Any, tmp_path: Path) -> None:
    """Converted at the borders, as what was compiled does; a server takes float32, too."""

    class Rows(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.encoder = rsn.nn.Encoder(1, C, 2, 128)

        def forward(self, x: Any, mask: Any) -> Any:
            y = self.encoder(x, mask)
            return {"rows": y, "first": y[:, 0].float()}

    x, mask = torch.randn(2, 8, C, dtype=dtype), torch.ones(2, 8, dtype=torch.long)
    dims = {0: rsn.Batch(1, 2), 1: rsn.Length(8)}
    with pytest.warns(UserWarning, match="arguments and results are converted"):
        made = rsn.compile(Rows().to(dtype).eval(), {"x": x, "mask": mask}, dynamic_shapes={"x": dims, "mask": dims})
    made.save(tmp_path / "x.rsnmodel")
    expected = made(x=x[:, :5], mask=mask[:, :5])
    assert (expected["rows"].dtype, expected["first"].dtype) == (dtype, torch.float32)
    with rsn.load(tmp_path / "x.rsnmodel") as loaded, loaded.server() as server:
        assert [a.dtype for a in loaded.arguments] == ["float32", "int64"]
        assert equal(loaded(x=x[:, :5], mask=mask[:, :5]), expected)
        with pytest.raises(TensorError, match=f"argument x is torch.float32; the example's is {dtype}"):
            loaded(x=x[:, :5].float(), mask=mask[:, :5])
        for given in (x[:, :5], x[:, :5].float(), x[:, :5].float().numpy()):
            assert equal(server.submit(x=given, mask=mask[:, :5]).result(60), expected)
    with rsn.compile(Rows().to(dtype).eval(), (x, mask)) as one:
        one.save(tmp_path / "one.rsnmodel")
        assert equal(rsn.load(tmp_path / "one.rsnmodel")(x, mask), one(x, mask))
