"""Who may import whom: this file holds the table."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Folder -> the folders it may import, besides itself. "root" is the package itself: its public API and its version.
MAY_IMPORT = {
    "base": set(),
    "machine": {"base"},
    "isa": {"base", "machine"},
    "assembler": {"base", "isa", "machine"},
    "scheduler": {"base", "isa", "machine"},
    "hw": {"base", "isa", "machine"},
    "rsnlib": {"assembler", "base", "isa", "machine", "scheduler"},
    "host": {"assembler", "base", "hw", "isa", "machine", "rsnlib", "scheduler"},
    "root": {"assembler", "base", "host", "hw", "isa", "machine", "rsnlib", "scheduler"},
    "cli": {"assembler", "base", "host", "hw", "isa", "machine", "root", "rsnlib", "scheduler"},
    "programs": {"assembler", "base", "host", "hw", "isa", "machine", "root", "rsnlib", "scheduler"},
}
# Both ends of a connection compare the version; `python -m rsn` is the command line.
MAY_KNOW = {("host", "rsn.__version__"), ("root", "rsn.cli.main"), ("root", "rsn.cli.main.main")}
# Importing these takes seconds: inside functions only, except in these folders.
SLOW = {"torch", "transformers"}
MAY_BE_SLOW = {"rsnlib", "programs"}
# Loads what is in there.
TAKES_TORCH = {Path("nn.py")}


@dataclass(frozen=True)
class Import:
    """One imported module, absolute, e.g. rsn.isa.packet; `lazy` if it is inside a function."""

    module: str
    lazy: bool
    typing: bool
    where: str


def package_files() -> list[Path]:
    """Every Python file of the package, relative to the root."""
    files = [path.relative_to(ROOT) for path in sorted(ROOT.glob("*.py"))]
    for folder in sorted(MAY_IMPORT.keys() - {"root"}):
        files += sorted(path.relative_to(ROOT) for path in (ROOT / folder).rglob("*.py"))
    return files


def module_name(file: Path) -> str:
    return ".".join(("rsn", *file.with_suffix("").parts)).removesuffix(".__init__")


def imports(file: Path, source: str) -> Iterator[Import]:
    package = module_name(file).split(".")
    if file.name != "__init__.py":
        package.pop()

    def walk(node: ast.AST, lazy: bool, typing: bool) -> Iterator[Import]:
        where = f"{file}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, lazy, typing, where)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else []
            base = [*base, *(node.module.split(".") if node.module else [])]
            # `from .. import isa` imports rsn.isa; `from ..isa import x` imports rsn.isa, or more of it.
            for alias in node.names:
                yield Import(".".join([*base, alias.name]), lazy, typing, where)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            for child in ast.iter_child_nodes(node):
                yield from walk(child, True, typing)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for child in node.body:
                yield from walk(child, lazy, True)
            for child in node.orelse:
                yield from walk(child, lazy, typing)
        else:
            for child in ast.iter_child_nodes(node):
                yield from walk(child, lazy, typing)

    yield from walk(ast.parse(source), False, False)


def folder_of(module: str) -> str:
    """rsn.isa.packet -> isa; rsn and rsn.compile -> root."""
    second = module.split(".")[1] if "." in module else ""
    return second if second in MAY_IMPORT else "root"


def violations(file: Path, source: str) -> list[str]:
    """Every import in this file that the table forbids."""
    folder = file.parts[0] if len(file.parts) > 1 else "root"
    found = []
    for line in imports(file, source):
        top = line.module.split(".")[0]
        if top in SLOW and not (line.lazy or line.typing or folder in MAY_BE_SLOW):
            found.append(f"{line.where}: {top} at module level")
        if top in MAY_IMPORT:
            found.append(f"{line.where}: {line.module} is ours; say rsn.{line.module}, or import it relatively")
        if top != "rsn":
            continue
        target = folder_of(line.module)
        allowed = target == folder or target in MAY_IMPORT[folder] or (folder, line.module) in MAY_KNOW
        if not allowed:
            found.append(f"{line.where}: {folder} imports {line.module}")
    return found


@pytest.mark.parametrize("file", package_files(), ids=str)
def test_imports_follow_the_table(file: Path) -> None:
    assert violations(file, (ROOT / file).read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("file", "source", "expected"),
    [
        ("isa/a.py", "from ..assembler import parser", "isa imports rsn.assembler.parser"),
        ("isa/overlays/a.py", "from ... import host", "isa imports rsn.host"),
        ("isa/a.py", "def f():\n from .. import compile", "isa imports rsn.compile"),
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
    (found,) = violations(Path(file), source)
    assert found.split(": ", 1)[1] == expected


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("isa/overlays/xnn.py", "from ..uops import Uop\nfrom . import fig6"),
        ("hw/sim/engine.py", "from ...isa import network\nfrom .decoder import decode"),
        ("cli/main.py", "from .. import __version__\ndef f():\n from ..rsnlib import nn\n import torch"),
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
    names = [module_name(f) for f in files if f.name != "__main__.py"]
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
