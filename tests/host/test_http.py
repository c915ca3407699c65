"""A model behind HTTP: what is answered, how mistakes are answered, and that nothing else ever is."""

from __future__ import annotations

import asyncio
import http.client
import json
import math
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import OrderedDict, namedtuple
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np
import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

import rsn
import rsn.cli.serve as command
from rsn.base.errors import BoardError, ProgramError, TensorError, UnsupportedError
from rsn.cli.main import main
from rsn.host.boards.device import BoardLost
from rsn.host.serving import Health, QueueFull, RequestTimeout, Serving, State, http_json
from rsn.host.serving.arguments import Argument
from rsn.host.serving.http import application, listener
from rsn.host.serving.http_json import CHUNK, NotJson, NotTheForm, read_array, read_question, write_json
from rsn.host.serving.metrics import Metrics
from rsn.tests.effort import cases, in_full

from .rigged import COLUMNS, Gate, Rig, attended
from .served import AttentionServer, Stub, opened, serving
from .soak_http import soak
from .test_serving import until

pytestmark = pytest.mark.long

IDS = Argument("input_ids", "int64", ("batch", "length"))
FLOATS = Argument("x", "float32", ("n",))
rng = np.random.default_rng(3)


def call(app: Any, method: str = "POST", path: str = "/", **more: Any) -> httpx.Response:
    """One request, without a network."""

    async def asked() -> httpx.Response:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://rsn") as client:
            return await client.request(method, path, **more)

    return asyncio.run(asked())


def strict(text: str) -> Any:
    """JSON as its standard has it: no NaN, and nothing that is not Unicode."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    text.encode()
    found = json.loads(text, parse_constant=refuse)
    json.dumps(found, ensure_ascii=False).encode()
    return found


def answered(response: httpx.Response, status: int = 200) -> Any:
    assert response.headers["content-type"] == "application/json"
    found = strict(response.text)
    assert response.status_code == status, response.text
    if status != 200:
        assert list(found) == ["error"]
        assert "Traceback" not in response.text
    return found


def asking(**inputs: Any) -> dict[str, Any]:
    return {"inputs": inputs}


def echo(*arguments: Argument) -> Any:
    return application(Stub(dict, *arguments))


# -- answers


def test_an_answer_is_the_models() -> None:
    x = rng.standard_normal((2, 5, COLUMNS)).astype(np.float32)
    server = AttentionServer((1, 8), (4, 8))
    try:
        found = answered(call(application(server), json=asking(x=x.tolist(), lengths=[5, 3])))
    finally:
        server.close()
    assert list(found) == ["outputs"]
    np.testing.assert_allclose(np.array(found["outputs"]["y"]), attended(x, [5, 3]), atol=1e-4)


@dataclass
class Fields:
    b: Any
    a: Any


Named = namedtuple("Named", "z y")


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (np.float32([[1.5, -2]]), [[1.5, -2.0]]),
        (np.float32(0.1), 0.10000000149011612),
        (np.array(7), 7),
        (np.zeros((2, 0)), [[], []]),
        (np.zeros((0, 2)), []),
        (np.array([True]), [True]),
        (OrderedDict(z=np.int64([1]), a=None), {"z": [1], "a": None}),
        (Fields(np.int8([3]), (1, [2.5, "é"])), {"b": [3], "a": [1, [2.5, "é"]]}),
        (Named(1, None), {"z": 1, "y": None}),
        ((np.float16([1]), None, {3: True}), [[1.0], None, {"3": True}]),
        ([math.nan, -math.inf, 1.0], [None, None, 1.0]),
        (np.array([[np.nan, 1], [np.inf, -np.inf]], np.float32), [[None, 1.0], [None, None]]),
        (np.float64("nan"), None),
        ("\ud800 \U0001f600", "� \U0001f600"),
        ({"\ud800": 1}, {"�": 1}),
    ],
)
def test_results_in_json(result: Any, expected: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for encode in (http_json.encode, None):
        monkeypatch.setattr(http_json, "encode", encode)
        found = answered(call(application(Stub(lambda inputs: result)), json=asking()))
        assert json.dumps(found["outputs"]) == json.dumps(expected)


@given(arrays(st.sampled_from([np.float32, np.float64]), array_shapes(max_dims=3), elements={"allow_subnormal": True}))
@settings(max_examples=50)
def test_numbers_keep_every_bit(x: Any) -> None:
    wanted = np.where(np.isfinite(x), x, np.nan)
    for encode in (http_json.encode, None):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(http_json, "encode", encode)
            found = json.loads(write_json(x))
        np.testing.assert_array_equal(np.array(found, np.float64).astype(x.dtype), wanted)


def test_pytorch_results() -> None:
    torch = pytest.importorskip("torch")
    values = torch.tensor([[1.0, math.nan]], requires_grad=True)
    result = {"f": values, "h": torch.tensor([0.5], dtype=torch.bfloat16), "i": torch.tensor(3), "t": values.T}
    assert strict(write_json(result).decode()) == {"f": [[1.0, None]], "h": [0.5], "i": 3, "t": [[1.0], [None]]}
    big = torch.arange(3 * CHUNK, dtype=torch.float32).reshape(2, 3, -1)
    np.testing.assert_array_equal(np.array(strict(write_json(big).decode())), big.numpy())


@pytest.mark.parametrize(
    "shape", [(CHUNK + 1,), (3, CHUNK), (2, CHUNK + 1), (CHUNK // 2 + 3, 4), (2, 3, CHUNK), (CHUNK, 0)]
)
def test_large_tensors_there_and_back(shape: tuple[int, ...]) -> None:
    x = rng.standard_normal(shape).astype(np.float32)
    text = write_json(asking(x=x))
    found = read_question(text, [Argument("x", "float32", shape)]).inputs["x"]
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, x)


@pytest.mark.parametrize(
    "result",
    [
        {"cache": object()},
        {"cache": np.array([1j])},
        {"cache": b"bytes"},
        {"cache": {(1, 2): 3}},
        {"cache": {1: 1, "1": 2}},
    ],
)
def test_what_json_cannot_hold_is_said(result: Any) -> None:
    found = answered(call(application(Stub(lambda inputs: result)), json=asking()), 500)
    assert found["error"].startswith("outputs.cache: ")


def test_an_argument_that_json_cannot_hold_is_said_before_serving() -> None:
    for dtype in ("complex64", "bfloat16", "object"):
        with pytest.raises(UnsupportedError, match=f"x: {dtype} .* cannot be given in JSON"):
            echo(Argument("x", dtype, ("n",)))


# -- arguments


@pytest.mark.parametrize(
    ("dtype", "shape", "value"),
    [
        ("int64", ("n", 2), [[1, -(2**63)], [2**63 - 1, 0]]),
        ("uint8", ("n",), [0, 255]),
        ("bool", ("n",), [True, False]),
        ("float32", ("n",), [1, 0.5, -0.0, 2**70]),
        ("float16", ("n",), [65504]),
        ("float64", (), 0.1),
        ("int64", (), 3),
        ("int64", ("n", "m"), []),
        ("int64", ("n", "m"), [[]]),
    ],
)
def test_arrays(dtype: str, shape: tuple[int | str, ...], value: Any) -> None:
    found = read_array(Argument("x", dtype, shape), value)
    assert found.dtype == np.dtype(dtype)
    assert found.ndim == len(shape)
    np.testing.assert_array_equal(found.ravel(), np.array(value, dtype).ravel())


NUMBERS = [0, 1, -1, 255, 256, 2**63, -(2**63), 2**70, 10**400, 0.5, 1.0, 1e-50, 65519.0, 65520.0, 1e38, 1e39, 1e308]


@given(
    st.sampled_from(["int8", "uint8", "int64", "uint64", "float16", "float32", "float64", "bool"]),
    st.lists(st.sampled_from([*NUMBERS, True, False]), min_size=1, max_size=4),
)
def test_an_array_has_the_values_or_is_refused(dtype: str, values: list[Any]) -> None:
    kind = np.dtype(dtype).kind
    try:
        found = read_array(Argument("x", dtype, ("n",)), values).tolist()
    except TensorError:
        if kind == "b":
            assert not all(type(v) is bool for v in values)
        elif kind == "f":
            largest = float(np.finfo(dtype).max)
            assert any(type(v) is bool or abs(v) > largest for v in values)
        else:
            low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
            assert any(type(v) is not int or not low <= v <= high for v in values)
        return
    if kind == "f":
        assert found == [float(np.dtype(dtype).type(float(v))) for v in values]
    else:
        assert [(type(v), v) for v in found] == [(type(v), v) for v in values]


# -- mistakes


WRONG: list[tuple[Any, str]] = [
    (None, "the body is null; it should be {"),
    ([], "the body is a list of 0; it should be {"),
    ("inputs", "the body is a string"),
    ({}, 'the body has no "inputs"'),
    ({"inputs": []}, '"inputs" is a list of 0, not an object'),
    ({"inputs": {}}, "argument input_ids is missing; this model takes input_ids, x"),
    (asking(x=[1.0]), "argument input_ids is missing"),
    (asking(input_ids=[[1]], x=[1], y=1), "no argument y; this model takes input_ids, x"),
    (asking(input_ids=[[1]], x=[1], **{"\ud800": 1}), r"no argument '\ud800'; this model takes"),
    (asking(input_ids=[[1]], x=[1]) | {"\ud800": 1}, r"the body has the unknown name '\ud800'"),
    (asking(input_ids=[[1]], x=[1]) | {"timeout": 1}, "the body has the unknown name 'timeout'"),
    (asking(input_ids=[[1]], x=[1]) | {"timeout_s": 0}, '"timeout_s" is 0; it should be a number of seconds above 0'),
    (asking(input_ids=[[1]], x=[1]) | {"timeout_s": True}, '"timeout_s" is true'),
    (asking(input_ids=[[1]], x=[1]) | {"timeout_s": "1"}, "\"timeout_s\" is '1'"),
    (asking(input_ids="101", x=[1]), "input_ids is '101'; it should be a list, of 2 levels (input_ids: int64 (batch, "),
    (asking(input_ids=[101], x=[1]), "input_ids[0] is 101; it should be a list, of 1 level (input_ids"),
    (asking(input_ids=[[[1]]], x=[1]), "input_ids[0][0] is a list of 1; it should be a whole number"),
    (asking(input_ids=[[1, 2], [3]], x=[1]), "input_ids[1] is a list of 1; it should be a list of 2, as the first one"),
    (asking(input_ids=[[1], 3], x=[1]), "input_ids[1] is 3; it should be a list of 1"),
    (asking(input_ids=[[1, 1.5]], x=[1]), "input_ids[0][1] is 1.5; it should be a whole number"),
    (asking(input_ids=[[1, 2], [3, True]], x=[1]), "input_ids[1][1] is true; it should be a whole number"),
    (asking(input_ids=[[None]], x=[1]), "input_ids[0][0] is null"),
    (asking(input_ids=[["\ud800"]], x=[1]), r"input_ids[0][0] is '\ud800'; it"),
    (asking(input_ids=[[1, 2**70]], x=[1]), f"input_ids[0][1] is {2**70}; it should be a number that int64 can hold"),
    (asking(input_ids=[[10**5000]], x=[1]), "input_ids[0][0] is a number too large for a float; it should be a whole"),
    (asking(input_ids=[[10**300]], x=[1]), "input_ids[0][0] is an integer of more than 100 digits"),
    (
        asking(input_ids=[[1]], x=[1, 10**300]),
        "x[1] is an integer of more than 100 digits; it should be a number th",
    ),
    (asking(input_ids=[[1]], x=[1e39]), "x[0] is 1e+39; it should be a number that float32 can hold"),
    (asking(input_ids=[[1]], x=[{}]), "x[0] is an object; it should be a number"),
]


@pytest.fixture
def _long_integers() -> Iterator[None]:
    limit = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    yield
    sys.set_int_max_str_digits(limit)


@pytest.mark.usefixtures("_long_integers")
@pytest.mark.parametrize(("body", "message"), WRONG, ids=[m for _, m in WRONG])
def test_json_that_is_no_request_is_named(body: Any, message: str) -> None:
    server = Stub(dict, IDS, FLOATS)
    text = json.dumps(body)
    sys.set_int_max_str_digits(4300)
    found = answered(call(application(server), content=text), 422)
    assert found["error"].startswith(message)
    assert not server.asked


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"", 400, "the body is not JSON: Expecting value"),
        (b"inputs=1", 400, "the body is not JSON: Expecting value"),
        (b'{"inputs": {"x": [NaN]}}', 400, "the body is not JSON: JSON has no NaN"),
        (b'{"inputs": {"x": [-Infinity]}}', 400, "the body is not JSON: JSON has no -Infinity"),
        (b'{"inputs": "\xff"}', 400, "the body is not JSON: byte 12 is not UTF-8"),
        (b'{"inputs": "\xed\xa0\x80"}', 400, "the body is not JSON: byte 12 is not UTF-8"),
        (b"[" * 100_000, 422, "the body has too many levels of lists or objects"),
        (b'{"a":' * 100_000, 422, "the body has too many levels of lists or objects"),
        (b'{"inputs": {"x": [1]}, "inputs": {"x": [2]}}', 422, "an object has the name 'inputs' twice"),
        (b'{"inputs": {"x": [1], "x": [2]}}', 422, "an object has the name 'x' twice"),
        (
            b'{"inputs": {"x": [1e999]}}',
            422,
            "x[0] is a number too large for a float; it should be a number that float32",
        ),
    ],
)
def test_bodies_of_other_kinds(body: bytes, status: int, message: str) -> None:
    assert answered(call(echo(FLOATS), content=body), status)["error"].startswith(message)


def test_sizes_are_the_servers_to_refuse() -> None:
    server = AttentionServer((1, 8), (4, 8))
    try:
        app = application(server)
        for shape, lengths in (((1, 9, COLUMNS), [9]), ((5, 8, COLUMNS), [8] * 5), ((1, 8, 3), [8]), ((0, 0, 0), [])):
            found = answered(call(app, json=asking(x=np.zeros(shape).tolist(), lengths=lengths)), 422)
            assert "x of" in found["error"] or "x: " in found["error"]
        found = answered(call(app, json=asking(x=np.zeros((1, 8, COLUMNS)).tolist(), lengths=[9])), 422)
        assert "len[0]" in found["error"]
    finally:
        server.close()


def test_other_paths_and_methods() -> None:
    app = echo(FLOATS)
    for method, path in (("GET", "/nowhere"), ("POST", "/nowhere"), ("GET", "/health/"), ("GET", "/metrics")):
        answered(call(app, method, path), 404)
    for path, allowed in (("/", "GET, HEAD, POST"), ("/health", "GET, HEAD")):
        for method in ("PUT", "DELETE", "OPTIONS", "PATCH", "STRANGE"):
            response = call(app, method, path)
            answered(response, 405)
            assert response.headers["allow"] == allowed


def test_a_body_that_is_too_large() -> None:
    server = Stub(dict, FLOATS)
    app = application(server, limit_bytes=1000)
    body = json.dumps(asking(x=[1])).encode()
    fits = body + b" " * (1000 - len(body))

    async def chunks(whole: bytes) -> AsyncIterator[bytes]:
        for at in range(0, len(whole), 100):
            yield whole[at : at + 100]

    for content in (fits, chunks(fits)):
        answered(call(app, content=content))
    for content in (fits + b" ", chunks(fits + b" ")):
        response = call(app, content=content)
        assert answered(response, 413) == {"error": "the body has more than 1000 bytes"}
    assert len(server.asked) == 2


def test_a_body_that_does_not_arrive() -> None:
    async def slow() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.sleep(30)

    began = time.monotonic()
    response = call(application(Stub(dict, FLOATS), timeout_s=0.05), content=slow())
    assert answered(response, 408) == {"error": "the body did not arrive in 0.05 s"}
    assert time.monotonic() - began < 5


# -- what goes wrong on this side


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (QueueFull("256 requests wait"), 503, "256 requests wait"),
        (BoardLost("the device is gone"), 503, "the device is gone"),
        (BoardError("this runner is closed"), 503, "this runner is closed"),
        (RequestTimeout("no answer in 1 s"), 504, "no answer in 1 s"),
        (TensorError("x: \ud800"), 422, "x: �"),
        (ProgramError("the program ends nowhere"), 500, "the program ends nowhere"),
        (ValueError("a secret"), 500, "internal error"),
        (RecursionError("a secret"), 500, "internal error"),
        (TimeoutError("a secret"), 500, "internal error"),
    ],
)
@pytest.mark.parametrize("late", [False, True])
def test_errors_of_the_server(error: Exception, status: int, message: str, late: bool) -> None:
    def fails(inputs: Any) -> Any:
        if not late:
            raise error
        future: Future[Any] = Future()
        threading.Timer(0.01, future.set_exception, [error]).start()
        return future

    response = call(application(Stub(fails)), json=asking())
    assert answered(response, status) == {"error": message}
    assert (response.headers.get("retry-after") == "1") is (status == 503)


def test_a_future_that_the_server_cancels() -> None:
    future: Future[Any] = Future()
    future.cancel()
    answered(call(application(Stub(lambda inputs: future)), json=asking()), 503)


@pytest.mark.parametrize(("asked", "passed_on"), [(None, 7.0), (3, 3.0), (0.5, 0.5), (1e300, 7.0), (10**400, 7.0)])
def test_time_outs(asked: float | None, passed_on: float) -> None:
    server = Stub(dict)
    answered(call(application(server, timeout_s=7.0), json=asking() | {"timeout_s": asked}))
    assert server.asked == [({}, passed_on, 0.0)]


def test_a_full_queue_and_a_time_out_of_a_real_runner() -> None:
    gate = Gate()
    server = AttentionServer((1, 8), board=Rig(before=gate), serving=Serving(queue=1))
    app = application(server, timeout_s=30)
    body = asking(x=np.ones((1, 8, COLUMNS)).tolist(), lengths=[8])
    try:
        running = server.ask({"x": np.ones((1, 8, COLUMNS), np.float32), "lengths": np.array([8])})
        assert gate.entered.wait(10)
        assert "it was still in the queue" in answered(call(app, json=body | {"timeout_s": 0.02}), 504)["error"]
        waiting = server.ask({"x": np.ones((1, 8, COLUMNS), np.float32), "lengths": np.array([8])})
        assert "1 requests wait" in answered(call(app, json=body), 503)["error"]
        gate.open()
        running.result(10), waiting.result(10)
    finally:
        gate.open()
        server.close()
    assert "closed" in answered(call(app, json=body), 503)["error"]


# -- any body at all


NAMES = st.sampled_from(["inputs", "input_ids", "x", "timeout_s", "\ud800"]) | st.text(max_size=3)
LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from([*NUMBERS, "\ud800", "\0"]) | st.text(max_size=3)
)  # fmt: skip
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4), max_leaves=12
)
LIKELY = st.fixed_dictionaries(
    {
        "inputs": st.fixed_dictionaries(
            {"input_ids": VALUES | st.lists(st.lists(LEAVES, max_size=2), max_size=2), "x": VALUES}
        )
    },
    optional={"timeout_s": LEAVES},
)


@pytest.fixture(scope="module")
def attention_app() -> Iterator[Any]:
    server = AttentionServer((1, 8), (4, 8))
    yield application(server)
    server.close()


@settings(max_examples=150)
@given(VALUES | LIKELY)
def test_any_json_is_answered_in_json(value: Any) -> None:
    response = call(echo(IDS, FLOATS), content=json.dumps(value))
    assert response.status_code in (200, 422)
    answered(response, response.status_code)


@settings(max_examples=100)
@given(st.binary(max_size=40) | st.text(max_size=40).map(lambda s: s.encode("utf-8", "surrogatepass")))
def test_any_bytes_are_answered_in_json(body: bytes) -> None:
    response = call(echo(IDS), content=body)
    assert response.status_code in (400, 422)
    answered(response, response.status_code)


NUMERIC = st.recursive(
    st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.none() | st.booleans() | st.text(max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('ab"\\', max_size=1), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=150)
@given(
    NUMERIC, st.sampled_from(["{}", '{{"a": {}, "a": {}}}', '{{"i": {{"x": {}, "x": 1}}}}', "[{}", "{} 1e999", "-{}"])
)
def test_numbers_are_parsed_as_all_json_is(value: Any, form: str) -> None:
    text = form.replace("{}", json.dumps(value)).replace("{{", "{").replace("}}", "}").encode()

    def told(parse: Any) -> str:
        try:
            return repr(parse(text))
        except (NotJson, NotTheForm) as e:
            return f"{type(e).__name__}: {e}"

    assert told(http_json.parsed_numbers) == told(http_json.parsed_json)


@settings(max_examples=60)
@given(
    st.integers(0, 5), st.integers(0, 10), st.sampled_from([COLUMNS] * 5 + [0, 1, 65]),
    st.lists(st.integers(-1, 10), max_size=5) | st.none(), st.sampled_from([0.0, 1.0, 3e38, 1e-45]),
)  # fmt: skip
def test_any_sizes_and_lengths(
    attention_app: Any, n: int, rows: int, columns: int, lengths: list[int] | None, number: float
) -> None:
    """An answer is right, in JSON even where it is not finite; anything else is the request's fault."""
    x = np.full((n, rows, columns), number, np.float32)
    lengths = [rows] * n if lengths is None else lengths
    response = call(attention_app, json=asking(x=x.tolist(), lengths=lengths))
    fits = 1 <= n <= 4 and 1 <= rows <= 8 and columns == COLUMNS and len(lengths) == n
    fits = fits and all(0 < length <= rows for length in lengths)
    if not fits:
        answered(response, 422)
        return
    y = np.array(answered(response)["outputs"]["y"], float)
    assert y.shape == x.shape
    if number < 2:
        np.testing.assert_allclose(y, attended(x, lengths), atol=1e-4)


# -- the other paths


def test_the_model_says_what_it_takes() -> None:
    server = AttentionServer((1, 8), (4, 16))
    try:
        assert answered(call(application(server), "GET")) == {
            "name": "attention",
            "arguments": [
                {"name": "x", "dtype": "float32", "shape": ["batch", "length", COLUMNS]},
                {"name": "lengths", "dtype": "int64", "shape": ["batch"]},
            ],
            "sizes": {"batch": [1, 4], "length": [8, 16]},
            "version": rsn.__version__,
        }
    finally:
        server.close()


@pytest.mark.parametrize(
    ("state", "status"), [(State.READY, 200), (State.DEGRADED, 200), (State.FAILING, 503), (State.CLOSED, 503)]
)
def test_health(state: State, status: int) -> None:
    health = Health(state, "BoardLost: \ud800", 12.5, 3)
    response = call(application(Stub(dict, health=health)), "GET", "/health")
    assert response.status_code == status
    assert strict(response.text) == {"state": state.value, "error": "BoardLost: �", "since": 12.5, "failures": 3}
    assert call(application(Stub(dict, health=health)), "HEAD", "/health").status_code == status


def test_figures() -> None:
    registry = CollectorRegistry()
    server = AttentionServer((1, 8), metrics=Metrics(registry))
    app = application(server, registry=registry)
    try:
        answered(call(app, json=asking(x=np.ones((1, 8, COLUMNS)).tolist(), lengths=[8])))
        response = call(app, "GET", "/metrics")
    finally:
        server.close()
    assert response.headers["content-type"].startswith("text/plain; version=")
    samples = [s for family in text_string_to_metric_families(response.text) for s in family.samples]
    ok = [s.value for s in samples if s.name == "rsn_requests_total" and s.labels["outcome"] == "ok"]
    assert ok == [1.0]


# -- clients that go away, and the loop


def scope() -> dict[str, Any]:
    return {"type": "http", "method": "POST", "path": "/", "headers": [], "query_string": b"", "http_version": "1.1"}


def test_a_client_that_disconnects_cancels_its_request() -> None:
    server = Stub(lambda inputs: Future())

    async def leave() -> None:
        asked = asyncio.Event()
        first = iter([{"type": "http.request", "body": b'{"inputs": {}}'}])

        async def receive() -> dict[str, Any]:
            for message in first:
                return message
            await asked.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None: ...

        task = asyncio.create_task(application(server)(scope(), receive, send))
        while not server.futures:
            await asyncio.sleep(0.002)
        asked.set()
        await asyncio.wait_for(task, 10)

    asyncio.run(leave())
    assert server.futures[0].cancelled()


def test_a_client_that_leaves_while_it_sends_asks_nothing() -> None:
    server = Stub(dict)

    async def leave() -> None:
        messages = iter([{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}])

        async def receive() -> Any:
            return next(messages)

        async def send(message: Any) -> None: ...

        await application(server)(scope(), receive, send)

    asyncio.run(leave())
    assert server.asked == []


def test_large_bodies_leave_the_loop_free() -> None:
    """A health check is answered while a body of some megabytes is read and its answer written."""
    n = 800_000
    text = b'{"inputs": {"x": [' + b",".join([b"0.12345678"] * n) + b"]}}"
    app = echo(FLOATS)
    waits: list[float] = []

    async def both() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://rsn") as client:
            large = asyncio.create_task(client.post("/", content=text))
            while not large.done():
                began = time.thread_time()  # of the loop alone, whatever else this computer does
                assert (await client.get("/health")).status_code == 200
                waits.append(time.thread_time() - began)
                await asyncio.sleep(0.005)
            return await large

    response = asyncio.run(both())
    assert response.status_code == 200
    assert len(waits) > 5
    assert max(waits) < 0.5, sorted(waits)[-5:]


# -- the command, in a process of its own

BODY = asking(x=np.ones((1, 8, COLUMNS)).tolist(), lengths=[8])


def figure(url: str, name: str, **labels: str) -> float:
    families = text_string_to_metric_families(httpx.get(f"{url}/metrics").text)
    samples = [s for family in families for s in family.samples if s.name == name]
    return next(s.value for s in samples if s.labels.items() >= labels.items())


@pytest.mark.long
def test_sigterm_answers_what_is_under_way() -> None:
    """Of three requests one runs, which takes a second, one waits, and the last one leaves while it waits."""
    with serving("slow") as (process, url):
        connections = [http.client.HTTPConnection(url.removeprefix("http://"), timeout=30) for _ in range(3)]
        for waiting, connection in enumerate(connections):
            connection.request("POST", "/", json.dumps(BODY))
            until(lambda waiting=waiting: figure(url, "rsn_queue_depth") >= waiting)
        connections.pop().close()
        until(lambda: figure(url, "rsn_requests_total", outcome="cancelled") == 1)
        assert httpx.get(f"{url}/health").json()["state"] == "ready"
        process.send_signal(signal.SIGTERM)
        for connection in connections:
            with connection.getresponse() as response:
                assert response.status == 200
                y = strict(response.read().decode())["outputs"]["y"]
            np.testing.assert_allclose(np.array(y), attended(np.ones((1, 8, COLUMNS), np.float32)), atol=1e-4)
        out, err = process.communicate(timeout=20)
        assert (process.returncode, out, err) == (0, "", "")
        with pytest.raises(httpx.ConnectError):
            httpx.get(url)


def test_a_real_socket() -> None:
    with serving("attention", "--limit-mb", "1") as (process, url):
        response = httpx.post(url, content=b" " * 5_000_000)
        assert answered(response, 413) == {"error": "the body has more than 1000000 bytes"}
        assert response.headers["connection"] == "close"
        response = httpx.post(url, content=iter([b" " * 100_000] * 50))
        answered(response, 413)
        with httpx.Client(base_url=url) as client:
            answered(client.post("/", json=BODY))
            answered(client.post("/", content=b"["), 400)
            answered(client.post("/", json={}), 422)
            answered(client.get("/nowhere"), 404)
            answered(client.put("/"), 405)
            answered(client.post("/", json=BODY))
            assert client.head("/").content == b""
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
        assert (process.returncode, err) == (0, "")


def test_a_traceback_stays_here() -> None:
    with serving("broken") as (process, url):
        assert answered(httpx.post(url, json=BODY), 500) == {"error": "internal error"}
        process.terminate()
        _, err = process.communicate(timeout=20)
    assert process.returncode == 0
    assert "Traceback (most recent call last)" in err
    assert "ValueError: a secret" in err


def rsn_serve(*options: str) -> Result:
    return CliRunner().invoke(main, ["serve", "attention", *options])


@pytest.mark.parametrize("listens", [True, False])
def test_a_port_that_is_taken(listens: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rsn.cli.serve._open", opened)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        if listens:
            taken.listen()
        port = taken.getsockname()[1]
        result = rsn_serve("--port", str(port))
    assert result.exit_code == 3
    assert result.stderr == f"error: cannot listen at 127.0.0.1, port {port}: Address already in use\n"


@pytest.mark.parametrize("host", ["256.0.0.1", "192.0.2.1", "\ud800", "a" * 300])
def test_an_address_that_is_not_ours(host: str) -> None:
    result = rsn_serve("--host", host, "--port", "0")
    assert result.exit_code == 3
    assert result.stderr.startswith("error: cannot listen at ")


@pytest.mark.parametrize("port", [-1, 1 << 16])
def test_a_number_that_is_no_port(port: int) -> None:
    with pytest.raises(BoardError, match=f"port {port}: a port is from 0 to 65535"):
        listener("127.0.0.1", port)


def test_figures_are_left_out_where_prometheus_client_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(command._figures())
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    assert command._figures() == (None, None)


def test_the_command_needs_no_prometheus_client() -> None:
    code = "import sys; sys.modules['prometheus_client'] = None; from rsn.cli.main import main; main(sys.argv[1:])"
    command = [sys.executable, "-c", code, "serve", "no.rsnmodel", "--boards", "sim", "--port", "0"]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 1
    assert ended.stderr.endswith("no.rsnmodel: no such file\n")


@pytest.mark.parametrize("package", ["starlette", "uvicorn"])
def test_what_is_not_installed_is_said(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    result = rsn_serve("--port", "0")
    assert result.exit_code == 3
    assert result.stderr == (
        f"error: serving over HTTP takes {package}, which is not installed: pip install starlette uvicorn\n"
    )


@pytest.mark.parametrize("option", [["--port", "65536"], ["--timeout", "0"], ["--timeout", "nan"], ["--queue", "0"],
                                    ["--max-wait", "inf"], ["--limit-mb", "0"], ["--limit-mb", "nan"]])  # fmt: skip
def test_wrong_usage(option: list[str]) -> None:
    assert rsn_serve(*option).exit_code == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--generate", "--max-wait", "1"], "--max-wait cannot be used with --generate"),
        (["--generate", "--chunk", "64"], "--chunk is that of the file: only with --generate and a folder"),
        (["--slots", "8"], "--slots needs --generate"),
        (["--capacity", "64"], "--capacity needs --generate"),
    ],
)
def test_options_that_do_not_apply_are_not_ignored(options: list[str], message: str) -> None:
    result = rsn_serve(*options)
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (2, f"Error: {message}")


def test_an_option_of_an_earlier_version_is_taken() -> None:
    before = rsn_serve("--generate", "--port", "0")
    result = rsn_serve("--generate", "--port", "0", "--warm-up")
    said = "--warm-up is deprecated and changes nothing: all programs are compiled first\n"
    assert (result.exit_code, result.stderr) == (before.exit_code, said + before.stderr)


# -- many clients


@in_full
def test_a_small_soak() -> None:
    requests, kills = cases(200, 60), cases(2, 1)
    tally = soak(requests=requests, clients=16, seed=2, faults=0.15, kills=kills)
    assert tally.problems == []
    assert tally.ended.total() == kills
    assert tally.failures > 0
    assert tally.outcomes["ok"] > requests * 3 / 4


@pytest.mark.long
def test_a_soak_finds_an_answer_to_another_request() -> None:
    tally = soak(requests=150, clients=8, seed=3, faults=0.0, kills=0, model="late")
    assert any("AssertionError: the answer to another request" in problem for problem in tally.problems)
