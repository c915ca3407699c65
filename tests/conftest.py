"""What holds for every test: it tests this checkout, and loads each of its modules once, under the name `rsn`."""

from __future__ import annotations

import atexit
import fcntl
import gc
import logging
import multiprocessing.spawn
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import Any

import hypothesis
import pytest

if "PYTEST_XDIST_WORKER" in os.environ:
    # A process for each core already: threads of BLAS and of PyTorch would wait for each other, and spin meanwhile.
    # This has to be said before numpy is imported, and holds for processes that tests start.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")

# Dynamo's own collection behind each capture would look through all that is young, which is much here.
os.environ.setdefault("TORCH_DYNAMO_RUN_GC_AFTER_COMPILE", "0")

import rsn
from rsn.base.freed_memory import keep_freed_memory
from rsn.tests.warm_python import WarmPython

# The graphs of PyTorch are many objects that live long: looking for cycles among them each 700 new objects, as is set
# unless one says otherwise, takes a fifth of the time of the tests. Most of what it takes now is to free them.
gc.set_threshold(1_000_000)

keep_freed_memory()

ROOT = Path(__file__).resolve().parent.parent

# A slow machine is not a failure. In continuous integration the same commit tries the same examples, so that red means
# the change; new ones are for those who sit before it.
hypothesis.settings.register_profile("rsn", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "rsn")


def pytest_configure() -> None:
    loaded = Path(rsn.__file__).resolve().parent
    if loaded != ROOT:
        raise pytest.UsageError(f"`rsn` is {loaded}, not this checkout; run: pip install --no-deps -e {ROOT}")


def find_misnamed() -> list[str]:
    """Loaded modules whose file is ours and whose name is not the one that follows from `rsn` and the file's path."""
    found = []
    for name, module in list(sys.modules.items()):
        origin = Path(getattr(module, "__file__", None) or "")
        path = origin.resolve()
        # Not absolute: modules made at run time, such as torch.ops, invent a file.
        if not origin.is_absolute() or not path.is_relative_to(ROOT):
            continue
        relative = path.relative_to(ROOT).with_suffix("")
        if relative.parts[0] in ("tests", "build") or relative.parts[0].startswith("."):  # .venv; of make test-torch
            continue
        expected = ".".join(("rsn", *relative.parts)).removesuffix(".__init__")
        if name not in (expected, "__main__"):
            found.append(f"{name} ({path})")
    return found


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import a file of which every test is left out: some import packages that cost seconds."""
    if config.option.markexpr != "not long" or collection_path.suffix != ".py":
        return None
    marked = "\npytestmark = pytest.mark.long\n" in collection_path.read_text(encoding="utf-8")
    return True if marked else None


LONGEST = (
    "test_docs.py",
    "host/test_on_ray.py",
    "rsnlib/test_machine_decoder.py",
    "hw/versal/test_hlscheck.py",
    "streams/dynamic/test_hls.py",
    "host/boards/test_in_process.py",
    "rsnlib/test_generated_hls.py",
    "streams/test_hls.py",
    "test_end_to_end.py",
    "cli/test_reproduce.py",
    "rsnlib/test_structures.py",
    "rsnlib/test_onnx_packages.py",
    "test_families_text.py",
    "test_dynamo.py",
    "test_generate.py",
    "host/test_generation.py",
    "test_families_positions.py",
    "test_writes.py",
    "cli/test_raw_boards.py",
    "test_integer_programs.py",
    "test_shards.py",
    "test_stages.py",
    "test_load.py",
    "test_sentences.py",
    "test_pieces.py",
    "test_integers.py",
    "tuning/test_tuning.py",
)
"""The files whose tests take most time, from the longest on, and those of more than ten seconds that would be among the
last. They are first, so that no process is left alone with one of them at the end."""
CUT = ("test_docs.py", "test_families_text.py")
"""Files that take minutes, of which each test is given to a process on its own: these share little."""


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """In a fresh checkout one process reads the files after the other: the first leaves bytecode of them and of all
    that they import, which takes two thirds of the time, and which each would make for itself."""
    made = sum("-pytest-" in path.name for path in (ROOT / "tests").rglob("__pycache__/test_*.pyc"))
    is_fresh = 2 * made < sum(1 for _ in (ROOT / "tests").rglob("test_*.py"))
    if is_fresh and "PYTEST_XDIST_WORKER" in os.environ and not sys.dont_write_bytecode:
        common = pytest.TempPathFactory.from_config(session.config, _ispytest=True).getbasetemp().parent
        with (common / "collecting").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            return (yield)
    return (yield)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("full"):
            item.add_marker("long")  # `make test` leaves out what is long
    order = {ROOT / "tests" / name: rank for rank, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path, len(order)))


def pytest_collection_finish() -> None:
    """What is loaded by now stays to the end: the garbage collector need not look at it, now or again and again."""
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """As `--dist loadfile`, where that is asked for, but for the files in CUT."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class ByFile(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file: str = super()._split_scope(nodeid)
            return nodeid if file.removeprefix("tests/") in CUT else file

    return ByFile(config, log)


def pytest_unconfigure() -> None:
    """A process of pytest-xdist ends when all is done that waits for its end. The interpreter would first free what all
    tests have made, object by object."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        atexit.register(_leave)


def _leave() -> None:
    atexit.unregister(_leave)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout, which is also the package `rsn`."""
    return ROOT


@pytest.fixture(scope="session")
def warm_python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmPython]:
    """One in all processes of pytest-xdist. It starts with the first test that asks for it."""
    own = tmp_path_factory.getbasetemp()
    with closing(WarmPython((own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "warm")) as python:
        yield python


@pytest.fixture
def warm_processes(warm_python: WarmPython) -> Iterator[None]:
    """Processes that `multiprocessing` starts have their imports done."""
    executable = multiprocessing.spawn.get_executable()
    multiprocessing.spawn.set_executable(str(warm_python.bin / "python"))
    yield
    multiprocessing.spawn.set_executable(executable)


@pytest.fixture
def logged() -> Iterator[list[logging.LogRecord]]:
    """What is logged in this test: of this package from INFO on, of others at the levels that they have."""
    handler = BufferingHandler(sys.maxsize)
    root, own, transformers = (logging.getLogger(name) for name in (None, "rsn", "transformers"))
    for logger in (root, transformers):  # what the latter get stays there
        logger.addHandler(handler)
    own.setLevel(logging.INFO)
    yield handler.buffer
    own.setLevel(logging.NOTSET)
    for logger in (root, transformers):
        logger.removeHandler(handler)


@pytest.fixture
def misnamed_modules() -> Callable[[], list[str]]:
    return find_misnamed


@pytest.fixture(scope="session", autouse=True)
def _every_module_is_loaded_once() -> Iterator[None]:
    """A module loaded under two names has two copies of every class, and isinstance fails far from the cause."""
    yield
    found = find_misnamed()
    assert not found, "loaded under a name outside `rsn`: " + ", ".join(found)
