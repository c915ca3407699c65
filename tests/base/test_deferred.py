"""Modules that are imported at their first use."""

from __future__ import annotations

import copy
import pickle
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rsn.base.deferred import deferred


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module that counts in `sys.imported_slowly` how often it was imported, and takes a while."""
    name = "module_of_the_deferred_test"
    lines = "import sys, time", "time.sleep(0.05)", "sys.imported_slowly += 1", "def double(x): return 2 * x"
    (tmp_path / f"{name}.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "imported_slowly", 0, raising=False)
    yield name
    sys.modules.pop(name, None)


def test_it_is_imported_at_the_first_use_and_once(module: str) -> None:
    stands_for = deferred(module)
    assert repr(stands_for) == f"<deferred module {module!r}>"
    assert not hasattr(stands_for, "__wrapped__")  # as inspect asks
    assert module not in sys.modules
    results: list[int] = []
    threads = [threading.Thread(target=lambda: results.append(stands_for.double(3))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [6] * 8
    assert sys.imported_slowly == 1  # type: ignore[attr-defined]


def test_a_replaced_attribute_is_seen(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stands_for = deferred(module)
    assert stands_for.double(2) == 4
    monkeypatch.setattr(f"{module}.double", lambda x: -x)
    assert stands_for.double(2) == -2


def test_a_copy_stands_for_the_same_module(module: str) -> None:
    for copied in (pickle.loads(pickle.dumps(deferred(module))), copy.deepcopy(deferred(module))):
        assert repr(copied) == repr(deferred(module))
        assert module not in sys.modules
    assert copied.double(4) == 8


def test_what_is_missing_is_said_at_the_first_use(module: str) -> None:
    with pytest.raises(AttributeError, match="triple"):
        _ = deferred(module).triple
    missing = deferred("rsn.there_is_none")
    with pytest.raises(ModuleNotFoundError, match="there_is_none"):
        _ = missing.anything
