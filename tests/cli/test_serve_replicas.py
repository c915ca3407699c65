"""`rsn serve --boards, --replicas`: what is refused, and a small model on two boards of one process."""

from __future__ import annotations

import json
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rsn.base.errors import BoardError
from rsn.cli.main import main
from rsn.cli.serve_replicas import check_devices
from rsn.tests.host.fronts import Front, started
from rsn.tests.host.soak_http import Client

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tokenizers import Tokenizer  # noqa: E402
from tokenizers.models import WordLevel  # noqa: E402
from tokenizers.pre_tokenizers import Whitespace  # noqa: E402
from transformers import PreTrainedTokenizerFast  # noqa: E402

import rsn  # noqa: E402
from rsn.host.generation import Decoder  # noqa: E402
from rsn.tests.host.test_generation import TOKENS, answer, made  # noqa: E402
from rsn.tests.warm_python import WarmPython  # noqa: E402


class Product(torch.nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self, columns: int) -> None:
        super().__init__()
        self.product = torch.nn.Linear(columns, 64)

    def forward(self, x: Any) -> Any:
        return self.product(x)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    """Two models of the same sizes, and the folder of their files."""
    folder, models = tmp_path_factory.mktemp("models"), []
    for name in ("one", "two", "other"):
        columns = 128 if name == "other" else 64
        models.append(Product(columns).eval())
        rsn.compile(models[-1], (torch.zeros(1, 8, columns),)).save(folder / f"{name}.rsnmodel")
    return folder, models


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--boards", "sim", "--board", "csim"], "--board: not with --boards"),
        (["--replicas", "0"], "Invalid value for '--replicas'"),
    ],
)
def test_options_that_do_not_go_together(options: list[str], message: str, files: Any) -> None:
    result = CliRunner().invoke(main, ["serve", str(files[0] / "one.rsnmodel"), *options])
    assert (result.exit_code, message in result.output) == (2, True), result.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--boards", "sim", "--replicas", "2"], "2 x 1 stages, each on a board of its own, need 2 boards; 1 given"),
        (["--boards", "ssh://a", "--boards", "ssh://a"], "board ssh://a is given twice"),
        (["--boards", "vck190", "--boards", "vck190"], "board vck190 is given twice"),
        (["--boards", "vck1900"], "no board 'vck1900'"),
    ],
)
def test_boards_that_are_refused(options: list[str], message: str, files: Any) -> None:
    result = CliRunner().invoke(main, ["serve", str(files[0] / "one.rsnmodel"), "--port", "0", *options])
    assert (result.exit_code, message in result.output) == (3, True), result.output


def test_a_file_that_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "x.rsnmodel").write_bytes(b"nothing")
    result = CliRunner().invoke(main, ["serve", str(tmp_path / "x.rsnmodel"), "--boards", "sim", "--port", "0"])
    assert (result.exit_code, "x.rsnmodel: not a model file" in result.output) == (1, True), result.output


def test_computers_of_a_cluster_may_have_a_device_of_one_name_each() -> None:
    check_devices(["vck190", "vck190", "sim", "sim"], are_elsewhere=True)
    with pytest.raises(BoardError, match="ssh://a is given twice"):
        check_devices(["ssh://a", "ssh://a"], are_elsewhere=True)


def until(condition: Callable[[], bool], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.long
def test_a_model_on_two_boards_that_is_replaced(files: Any, tmp_path: Path, warm_python: WarmPython) -> None:
    """By one with other weights; then not by one of other sizes, and not by what is no model."""
    folder, models = files
    path = tmp_path / "served.rsnmodel"
    shutil.copy(folder / "one.rsnmodel", path)
    x = torch.randn(1, 8, 64)

    def answered() -> Any:
        status, _, text = Client([front]).ask(0, "POST", "/", json.dumps({"inputs": {"x": x.tolist()}}))
        assert status == 200, text
        return torch.tensor(json.loads(text)["outputs"])

    def put(name: str) -> None:
        shutil.copy(folder / name, tmp_path / "next")
        (tmp_path / "next").rename(path)
        process.send_signal(signal.SIGHUP)

    command = ("rsn", "serve", str(path), "--boards", "sim", "--boards", "sim", "--port", "0")
    with started(*command, warm=warm_python) as (process, address):
        front = Front(address)
        assert torch.allclose(answered(), models[0](x), atol=1e-4)
        status, found = front.get("/replicas")
        assert (status, [[s["board"] for s in stages] for stages in found["replicas"]]) == (200, [["sim"], ["sim"]])
        assert front.get("/health")[1]["state"] == "ready"
        assert front.figures()["rsn_requests_total"] == 1
        put("two.rsnmodel")
        until(lambda: torch.allclose(answered(), models[1](x), atol=1e-4))
        put("other.rsnmodel")
        shutil.copy(Path(__file__), tmp_path / "text")
        (tmp_path / "text").rename(path)
        process.send_signal(signal.SIGHUP)
        time.sleep(0.2)
        assert torch.allclose(answered(), models[1](x), atol=1e-4)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


@pytest.mark.long
def test_a_decoder_over_two_boards(tmp_path: Path, warm_python: WarmPython) -> None:
    """Texts at one time, in two sets of slots: those of PyTorch."""
    model = made("Llama")
    words = Tokenizer(WordLevel({str(n): n for n in range(TOKENS)}, unk_token="0"))
    words.pre_tokenizer = Whitespace()
    with Decoder(model, slots=1, capacity=24, chunk=16, boards=2) as decoder:
        decoder.save(tmp_path / "text.rsnmodel", PreTrainedTokenizerFast(tokenizer_object=words))
    prompts = [[3, 1, 4], [1, 5, 9, 2, 6], [5]]
    wanted = [" ".join(map(str, answer(model, prompt, 6))) for prompt in prompts]
    command = ("rsn", "serve", str(tmp_path / "text.rsnmodel"), "--generate", "--port", "0")
    with started(*command, "--boards", "sim", "--boards", "sim", warm=warm_python) as (_, address):
        front, found = Front(address), [""] * len(prompts)

        def ask(number: int) -> None:
            asked = {"model": "text", "prompt": prompts[number], "max_tokens": 6, "temperature": 0}
            status, _, text = Client([front]).ask(0, "POST", "/v1/completions", json.dumps(asked))
            found[number] = json.loads(text)["choices"][0]["text"] if status == 200 else text

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(prompts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [" ".join(text.split()) for text in found] == wanted
        assert [len(stages) for stages in front.get("/replicas")[1]["replicas"]] == [2]
