"""Who may import whom: this file holds the table."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TypeGuard

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Folder -> the folders it may import, besides itself. "root" is the public API; `python -m rsn` is the command line.
MAY_IMPORT = {
    "base": set(),
    "machine": {"base"},
    "isa": {"base", "machine"},
    "streams": {"base", "isa", "machine"},
    "assembler": {"base", "isa", "machine"},
    "scheduler": {"base", "isa", "machine", "streams"},
    "hw": {"base", "isa", "machine"},
    "rsnlib": {"assembler", "base", "hw", "isa", "machine", "scheduler", "streams", "tuning"},
    "host": {"assembler", "base", "hw", "isa", "machine", "rsnlib", "scheduler", "streams"},
    "root": {"assembler", "base", "host", "hw", "isa", "machine", "rsnlib", "scheduler"},
    "tuning": {"base"},
    "cli": {"assembler", "base", "host", "hw", "isa", "machine", "root", "rsnlib", "scheduler", "streams", "tuning"},
    "programs": {"assembler", "base", "host", "hw", "isa", "machine", "root", "rsnlib", "scheduler", "streams"},
}
# Folder or file pattern -> modules that its files may not import although they are of the same folder of the table.
MAY_NOT_IMPORT = {
    "isa/*.py": {f"rsn.isa.overlays.{name}" for name in ("fig6", "fig7", "moe", "tasks", "xnn", "xnn2", "xnn8")},
    "isa/versal/*.py": {"rsn.isa.overlays"},  # what overlays share
    "isa/overlays/xnn/*.py": {"rsn.isa.overlays.moe", "rsn.isa.overlays.xnn2"},
    "isa/overlays/xnn2/*.py": {"rsn.isa.overlays.moe", "rsn.isa.overlays.xnn"},
    "isa/overlays/xnn8/*.py": {"rsn.isa.overlays.moe", "rsn.isa.overlays.xnn", "rsn.isa.overlays.xnn2"},
    "isa/overlays/moe/*.py": {"rsn.isa.overlays.xnn", "rsn.isa.overlays.xnn2"},
}
# Packages that a function may import, and why. Modules of ours that load one of them at their top may be `deferred`;
# all other imports are at the top of their file.
COSTLY = {
    "torch": "takes seconds",
    "transformers": "takes seconds",
    "safetensors.torch": "loads torch",
    "sentence_transformers": "extra `sentences`; takes seconds",
    "numba": "extra `fast`; takes longer than most programs",
    "onnx": "extra `onnx`",
    "optuna": "extra `tune`",
    "ray": "extra `ray`",
    "starlette": "extra `serve`",
    "uvicorn": "extra `serve`",
    "msgspec": "extra `serve`",
    "prometheus_client": "extra `serve`",
    "llvmlite": "extra `check`",
    "networkx": "extra `check`; half a second",
    "scipy": "0.15 s and more, for activations only",
    "sympy": "0.3 s; a board does without",
    "lark": "50 ms, for texts only",
    "jinja2": "30 ms, for reports only",
    "rich": "30 ms, on terminals only",
}
# Importing these takes seconds: not at the top of a file, except in these folders.
SLOW = {"torch", "transformers"}
MAY_BE_SLOW = {"rsnlib", "programs"}
# Files that load what is in there.
TAKES_TORCH = {Path("nn.py"), Path("host/model/torch_backend.py"), Path("host/model/torch_module.py")}
# Files that import modules of this package by names that they compute: from tables of public names and of commands, for
# `deferred`, and classes of results that a file names.
IMPORTS_BY_NAME = {Path("__init__.py"), Path("base/deferred.py"), Path("cli/main.py"), Path("rsnlib/structure.py")}


@dataclass(frozen=True)
class Import:
    """One imported module, absolute, e.g. rsn.isa.packet. lazy: inside a function. typing: for the type-checker only.
    deferred: by `deferred("rsn.isa.packet")`."""

    module: str
    lazy: bool
    typing: bool
    where: str
    deferred: bool = False


def package_files() -> list[Path]:
    """Every Python file of the package, relative to the root."""
    files = [path.relative_to(ROOT) for path in sorted(ROOT.glob("*.py"))]
    for folder in sorted(MAY_IMPORT.keys() - {"root"}):
        files += sorted(path.relative_to(ROOT) for path in (ROOT / folder).rglob("*.py"))
    return files


def module_name(file: Path) -> str:
    return ".".join(("rsn", *file.with_suffix("").parts)).removesuffix(".__init__")


def _is_call(node: ast.AST, name: str) -> TypeGuard[ast.Call]:
    called = node.func if isinstance(node, ast.Call) else None
    return name in (getattr(called, "id", None), getattr(called, "attr", None))


def _is_typing(node: ast.AST) -> TypeGuard[ast.If]:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def _imported(node: ast.Import | ast.ImportFrom, file: Path) -> Iterator[tuple[str, str]]:
    """The names that an import binds, each with its absolute module."""
    if isinstance(node, ast.Import):
        yield from ((alias.asname or alias.name, alias.name) for alias in node.names)
        return
    package = module_name(file).split(".")
    if file.name != "__init__.py":
        package.pop()
    base = package[: len(package) + 1 - node.level] if node.level else []
    base = [*base, *(node.module.split(".") if node.module else [])]
    # `from .. import isa` imports rsn.isa; `from ..isa import x` imports rsn.isa, or more of it.
    for alias in node.names:
        yield alias.asname or alias.name, ".".join([*base, alias.name])


@cache
def imports(file: Path, source: str) -> tuple[Import, ...]:
    parts = ast.AST if "deferred(" in source else ast.stmt | ast.excepthandler | ast.match_case
    """Where an import may be: an expression holds none, but for `deferred`."""

    def walk(node: ast.AST, lazy: bool, typing: bool) -> Iterator[Import]:
        where = f"{file}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from (Import(module, lazy, typing, where) for _, module in _imported(node, file))
        elif _is_call(node, "deferred") and node.args and isinstance(node.args[0], ast.Constant):
            yield Import(str(node.args[0].value), lazy, typing, where, deferred=True)
        elif _is_typing(node):
            for child in node.body:
                yield from walk(child, lazy, True)
            for child in node.orelse:
                yield from walk(child, lazy, typing)
        else:
            inside = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            for child in ast.iter_child_nodes(node):
                if isinstance(child, parts):
                    yield from walk(child, inside, typing)

    return tuple(walk(ast.parse(source), False, False))


def misused(file: Path, source: str) -> Iterator[str]:
    """Every use of `deferred` and `import_module` that hides an import from the reader or the type-checker."""
    if "deferred(" not in source and "import_module" not in source:
        return
    tree = ast.parse(source)
    right: set[ast.AST] = set()
    for block in filter(_is_typing, ast.walk(tree)):
        seen: dict[str, str] = {}
        for line in block.body:
            if isinstance(line, ast.Import | ast.ImportFrom):
                seen |= dict(_imported(line, file))
        for statement in block.orelse:
            if isinstance(statement, ast.Assign) and _is_call(statement.value, "deferred"):
                (argument,), (target,) = statement.value.args, statement.targets
                name = argument.value if isinstance(argument, ast.Constant) else None
                if isinstance(target, ast.Name) and seen.get(target.id) == name:
                    right.add(statement.value)
    for node in ast.walk(tree):
        if _is_call(node, "deferred") and node not in right:
            yield f"{file}:{node.lineno}: deferred(...) belongs beside the same import for the type-checker"
        if _is_call(node, "import_module") and file not in IMPORTS_BY_NAME:
            name = node.args[0].value if isinstance(node.args[0], ast.Constant) else ""
            if not name or str(name).split(".")[0] in ("", "rsn"):
                yield f"{file}:{node.lineno}: import_module hides an import"


def costly(module: str) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in COSTLY)


def folder_of(module: str) -> str:
    """rsn.isa.packet -> isa; rsn and rsn.compile -> root."""
    second = module.split(".")[1] if "." in module else ""
    return second if second in MAY_IMPORT else "root"


def violations(file: Path, source: str) -> list[str]:
    """Every import in this file that the tables forbid."""
    folder = file.parts[0] if len(file.parts) > 1 else "cli" if file.name == "__main__.py" else "root"
    found = []
    for line in imports(file, source):
        top = line.module.split(".")[0]
        may_be_slow = folder in MAY_BE_SLOW or file in TAKES_TORCH
        if top in SLOW and not (line.lazy or line.typing or may_be_slow):
            found.append(f"{line.where}: {top} at module level")
        if line.lazy and not costly(line.module):
            found.append(f"{line.where}: {line.module} in a function")
        if top in MAY_IMPORT:
            found.append(f"{line.where}: {line.module} is ours; say rsn.{line.module}, or import it relatively")
        if top != "rsn":
            continue
        inner = {other for pattern, others in MAY_NOT_IMPORT.items() if file.match(pattern) for other in others}
        if any(line.module == other or line.module.startswith(f"{other}.") for other in inner) and not line.typing:
            found.append(f"{line.where}: {file.parent} imports {line.module}")
        target = folder_of(line.module)
        if target != folder and target not in MAY_IMPORT[folder]:
            found.append(f"{line.where}: {folder} imports {line.module}")
    return found + list(misused(file, source))


@cache
def at_the_top() -> dict[str, set[str]]:
    """The modules that each module of the package imports when it is imported itself."""
    return {
        module_name(file): {
            line.module
            for line in imports(file, (ROOT / file).read_text(encoding="utf-8"))
            if not (line.lazy or line.typing or line.deferred)
        }
        for file in package_files()
    }


def loads_costly(module: str) -> bool:
    """Whether importing a module of the package imports a costly package, by itself or through others."""
    known, seen, left = at_the_top(), set[str](), [module]
    while left:
        name = left.pop()
        if costly(name):
            return True
        while name and name not in known:  # an attribute of a module
            name = name.rpartition(".")[0]
        if name and name not in seen:
            seen.add(name)
            left += [*known[name], name.rpartition(".")[0]]  # a package is imported before its modules
    return False


@pytest.mark.long
def test_only_what_costs_much_is_deferred() -> None:
    deferred = {
        line.module: line.where
        for file in package_files()
        for line in imports(file, (ROOT / file).read_text(encoding="utf-8"))
        if line.deferred
    }
    assert deferred.keys() <= at_the_top().keys()
    assert [where for module, where in deferred.items() if not loads_costly(module)] == []
    assert not loads_costly("rsn.isa.program")
    assert not loads_costly("rsn.cli.main")


def imported_by_the_package() -> set[str]:
    """The modules that another module of the package imports, or finds by a name, and those that pip's entry points
    name."""
    names = set(re.findall(r'= "(rsn\.[\w.]+):', (ROOT / "pyproject.toml").read_text(encoding="utf-8")))
    for file in package_files():
        source = (ROOT / file).read_text(encoding="utf-8")
        names |= {line.module for line in imports(file, source)}
        if file in IMPORTS_BY_NAME:
            strings = re.findall(r'"(\.?[\w.]+)(?::\w+)?"', source)
            names |= {f"rsn{s}" if s.startswith(".") else f"rsn.cli.{s}" for s in strings}
    modules = {module_name(file) for file in package_files()}
    # `from rsn.isa.packet import Header` names an attribute of a module
    return {name if name in modules else name.rpartition(".")[0] for name in names}


def test_no_module_serves_tests_or_benchmarks_alone() -> None:
    """What only these import belongs beside them. Programs to be run or read are none of this."""
    found = []
    imported = imported_by_the_package()
    for file in package_files():
        source = (ROOT / file).read_text(encoding="utf-8")
        runs = file.stem.startswith("__") or '__name__ == "__main__"' in source or "from rsn.streams import *" in source
        if not runs and module_name(file) not in imported:
            found.append(str(file))
    assert found == []


def _deferring(line: str, name: str, module: str) -> str:
    return f'if TYPE_CHECKING:\n {line}\nelse:\n {name} = deferred("{module}")\n'


BESIDE = "deferred(...) belongs beside the same import for the type-checker"


def test_imports_follow_the_table() -> None:
    files = package_files()
    assert [x for file in files for x in violations(file, (ROOT / file).read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize(
    ("file", "source", "expected"),
    [
        ("isa/a.py", "from ..assembler import parser", "isa imports rsn.assembler.parser"),
        ("isa/overlays/a.py", "from ... import host", "isa imports rsn.host"),
        ("isa/a.py", "from .overlays.xnn import tiles", "isa imports rsn.isa.overlays.xnn.tiles"),
        ("isa/versal/a.py", "from ..overlays import XNN", "isa/versal imports rsn.isa.overlays.XNN"),
        ("isa/overlays/xnn2/a.py", "from ..xnn import mme", "isa/overlays/xnn2 imports rsn.isa.overlays.xnn.mme"),
        ("isa/a.py", "from .. import compile", "isa imports rsn.compile"),
        ("host/a.py", "from .. import compile", "host imports rsn.compile"),
        ("compiler.py", "from .cli import main", "root imports rsn.cli.main"),
        ("cli/a.py", "def f():\n from ..isa import packet", "rsn.isa.packet in a function"),
        ("isa/a.py", "class C:\n def f(self):\n  import json", "json in a function"),
        (
            "isa/a.py",
            _deferring("from ..host import runner", "runner", "rsn.host.runner"),
            "isa imports rsn.host.runner",
        ),
        ("cli/a.py", _deferring("from ..rsnlib import trace", "trace", "rsn.rsnlib.rules"), BESIDE),
        ("cli/a.py", _deferring("from ..rsnlib import trace", "other", "rsn.rsnlib.trace"), BESIDE),
        ("cli/a.py", 'trace = deferred("rsn.rsnlib.trace")', BESIDE),
        ("isa/a.py", 'def f():\n return importlib.import_module("rsn.isa.packet")', "import_module hides an import"),
        ("isa/a.py", 'packet = import_module(".packet", __package__)', "import_module hides an import"),
        ("hw/sim/a.py", "import rsn.scheduler.cost", "hw imports rsn.scheduler.cost"),
        ("hw/sim/__init__.py", "from ...assembler import parser", "hw imports rsn.assembler.parser"),
        ("rsnlib/a.py", "if TYPE_CHECKING:\n from ..host import runner", "rsnlib imports rsn.host.runner"),
        ("host/a.py", "from ..cli import run", "host imports rsn.cli.run"),
        ("cli/main.py", "from ..programs import minilm", "cli imports rsn.programs.minilm"),
        ("host/a.py", "class C:\n import torch", "torch at module level"),
        ("assembler/a.py", "from isa import packet", "isa.packet is ours; say rsn.isa.packet, or import it relatively"),
    ],
)
def test_forbidden_import_is_found(file: str, source: str, expected: str) -> None:
    found = {line.split(": ", 1)[1] for line in violations(Path(file), source)}
    assert found == {expected}


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("isa/overlays/xnn.py", "from ..uops import Uop\nfrom . import fig6"),
        ("isa/overlays/xnn2/a.py", "from ...versal import tiles\nfrom . import mme"),
        ("hw/sim/engine.py", "from ...isa import network\nfrom .decoder import decode"),
        ("__main__.py", "from .cli.main import main"),
        ("cli/main.py", "from ..base.version import __version__\ndef f():\n import torch.fx"),
        ("cli/a.py", _deferring("from ..rsnlib import trace as tracing", "tracing", "rsn.rsnlib.trace")),
        ("machine/jit.py", 'def f():\n return importlib.import_module("numba")'),
        ("host/runner.py", "if TYPE_CHECKING:\n import torch"),
        ("cli/published/a.py", "from ...scheduler import pack\nfrom . import rows"),
        ("programs/minilm.py", "import torch\nimport rsn"),
        ("rsnlib/trace.py", "import torch"),
    ],
)
def test_allowed_import_is_allowed(file: str, source: str) -> None:
    assert violations(Path(file), source) == []


def run_python(code: str, cwd: Path) -> str:
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_all_but_the_compiler_loads_without_torch(root: Path) -> None:
    files = [f for f in package_files() if f.parts[0] not in MAY_BE_SLOW and f not in TAKES_TORCH]
    names = [module_name(f) for f in files if f.name != "__main__.py" and (find_spec("ray") or f.name != "on_ray.py")]
    code = f"""
import importlib, sys
for name in {names!r}:
    importlib.import_module(name)
    assert not {SLOW!r} & set(sys.modules), name + " loads torch"
"""
    run_python(code, root)


@pytest.mark.parametrize("cwd", [".", "isa", "tests"])
def test_one_name_wherever_python_starts(root: Path, cwd: str) -> None:
    """Python started in the checkout finds its folders first on sys.path; ours still load under `rsn`."""
    code = """
import sys
import rsn.base.errors
assert rsn.errors is rsn.base.errors
print(*sorted(n for n in sys.modules if n.split(".")[-1] == "errors" and "rsn" in n))
print(*(n for n in ("isa", "cli", "host", "hw", "assembler") if n in sys.modules))
"""
    assert run_python(code, root / cwd) == "rsn.base.errors"


def test_module_under_a_second_name_is_found(
    root: Path, misnamed_modules: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """conftest.py asks this at the end of every session."""
    assert misnamed_modules() == []
    stray = ModuleType("packet")
    stray.__file__ = str(root / ".typing" / "rsn" / "isa" / "packet.py")
    monkeypatch.setitem(sys.modules, "packet", stray)
    assert misnamed_modules() == [f"packet ({root / 'isa' / 'packet.py'})"]
