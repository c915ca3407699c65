"""Files of earlier versions give what they gave, or say by which version they were written and what helps."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("optuna")

from click.testing import CliRunner

from rsn.cli.main import main
from rsn.host.tensors import load_tensors
from rsn.tests.earlier.files import FOLDER, OUTCOMES, READ, TUNE

VERSIONS = sorted(path.parent.name for path in FOLDER.glob(f"*/{OUTCOMES}"))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", READ)
def test_a_file_of_an_earlier_version(version: str, name: str) -> None:
    recorded = load_tensors(FOLDER / version / OUTCOMES)[name]
    found = READ[name](FOLDER / version / name)
    assert found.shape == recorded.shape
    if recorded.size:
        assert np.abs(found - recorded).max() <= 1e-6 * np.abs(recorded).max()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_study_of_an_earlier_version_is_refused(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(FOLDER / version)
    study = shutil.copy(FOLDER / version / "machine.study", tmp_path)
    refused = CliRunner().invoke(main, [*shlex.split(TUNE), study])
    assert refused.exit_code == 1
    assert f"rsn {version}" in refused.output
    assert "give another file" in refused.output
