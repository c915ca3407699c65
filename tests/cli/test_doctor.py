"""What the doctor says of installations in every state of health."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner

import rsn
from rsn.cli import doctor
from rsn.cli.main import main
from rsn.host.boards.xrt_ctypes import LIBRARY

pytestmark = pytest.mark.long

LIBRARIES = Path("/usr/lib/x86_64-linux-gnu")


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With nothing on PATH, and no variable of anybody's. A computer with much else to do may start programs late."""
    monkeypatch.setattr(doctor, "PATIENCE_S", 120.0)
    for name in ("XILINX_XRT", "XCL_EMULATION_MODE", "RSN_XCLBIN", "VITIS", "XILINX_VITIS", "CXX", "LD_LIBRARY_PATH"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def asked(code: int = 0) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """All that it says, and the rows by the beginning of their name."""
    done = CliRunner().invoke(main, ["doctor", "--json"])
    assert done.exit_code == code, (done.output, done.exception)
    said = json.loads(done.stdout)
    for row in said["checks"]:
        assert set(row) == {"what", "ok", "version", "for", "problem", "mend"}
        assert row["ok"] == (not row["problem"]) == (not row["mend"]), row
    found = {" ".join(row["what"].split()[:2]): row for row in said["checks"]}
    assert len(found) == len(said["checks"])
    return said, found


def test_a_bare_machine(machine: Path) -> None:
    said, rows = asked()
    assert (said["version"], said["runs"]) == (rsn.__version__, ["sim"])
    assert "sudo apt install g++" in rows["board csim"]["mend"]
    assert rows["ssh client"]["mend"] == "sudo apt install openssh-client"
    assert rows["Vitis"]["mend"] == "install AMD Vitis 2024.1, then: . hw/versal/env.sh"
    text = CliRunner().invoke(main, ["doctor"])
    assert text.exit_code == 0
    assert "boards that can be used here: sim\n" in text.stdout
    assert "no  ssh client (rsn run --board ssh://USER@BOARD)\n      not on PATH; sudo apt install" in text.stdout


def test_a_complete_machine(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(machine / "bin" / "g++", "echo g++ '(Debian 12.2.0-14) 12.2.0'")
    program(machine / "bin" / "ssh", "echo 'OpenSSH_9.2p1 Debian-2+deb12u6, OpenSSL 3.0.19' >&2")
    program(machine / "Vitis" / "2024.1" / "bin" / "v++", "exec sleep 60")
    monkeypatch.setenv("PATH", f"{machine}/bin:{machine}/Vitis/2024.1/bin:/bin")
    said, rows = asked()
    assert said["runs"] == ["sim", "csim", "ssh://"]
    assert [rows[n]["version"] for n in ("board csim", "ssh client", "Vitis at")] == ["12.2.0", "9.2p1", "2024.1"]


def test_vitis_that_is_not_on_path_or_of_another_version(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(machine / "Vitis" / "2023.2" / "bin" / "v++", "exec sleep 60")
    monkeypatch.setenv("VITIS", f"{machine}/Vitis/2023.2")
    row = asked()[1]["Vitis"]
    assert (row["version"], row["mend"]) == ("2023.2", ". hw/versal/env.sh")
    monkeypatch.setenv("PATH", f"{machine}/Vitis/2023.2/bin")
    assert asked()[1]["Vitis"]["mend"] == "the sources are for 2024.1"


@pytest.mark.parametrize("text", ["exit 1", "exec sleep 60", "kill -9 $$", "printf '\\377\\033[2J'; exit 1"])
def test_programs_that_do_not_run(text: str, machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "sleep" in text:
        monkeypatch.setattr(doctor, "PATIENCE_S", 0.3)
    monkeypatch.setenv("PATH", f"{machine}/bin:/bin:/usr/bin")
    for name in ("g++", "ssh"):
        program(machine / "bin" / name, text)
    said, rows = asked()
    assert said["runs"] == ["sim"]
    assert rows["ssh client"]["problem"] == f"{machine}/bin/ssh does not run"
    assert rows["board csim"]["problem"] == f"{machine}/bin/g++ does not run"


def test_an_ssh_of_another_make(machine: Path) -> None:
    program(machine / "bin" / "ssh", "echo Dropbear v2022.83")
    assert asked()[1]["ssh client"]["problem"] == f"{machine}/bin/ssh is not OpenSSH"


def test_no_xrt(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (machine / LIBRARY).write_bytes(b"")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(machine))
    rows = asked()[1]
    assert f"{machine}/{LIBRARY}: file too short" in rows["XRT library"]["problem"]
    assert rows["XRT library"]["mend"].startswith("install XRT (")
    assert not rows["XRT device"]["ok"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("#include <cstdlib>\nstatic int x = (std::abort(), 0);", "loading it ends the process with signal 6"),
        ("#include <unistd.h>\nstatic int x = sleep(60);", "it does not answer in 0.3 s"),
        ("#include <unistd.h>\nstatic int x = (_exit(0), 0);", "it cannot be loaded"),
        ("int nothing;", f"{LIBRARY} has no xrtDeviceOpen; XRT 2.13 (2022.1) or newer is needed"),
    ],
)
def test_an_xrt_that_is_broken(text: str, problem: str, machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = shutil.which("g++", path="/usr/bin:/usr/local/bin")
    if compiler is None:
        pytest.skip("needs g++")
    if "sleep" in text:
        monkeypatch.setattr(doctor, "PATIENCE_S", 0.3)
    (machine / "x.cpp").write_text(text)
    (machine / "lib").mkdir()
    (machine / "lib" / "libxrt_core.so.2").write_bytes(b"")
    command = [compiler, "-shared", "-fPIC", machine / "x.cpp", "-o", machine / "lib" / LIBRARY]
    subprocess.run(command, check=True, env={"PATH": "/usr/bin:/bin"})
    monkeypatch.setenv("LD_LIBRARY_PATH", str(machine / "lib"))
    monkeypatch.setenv("XILINX_XRT", str(machine))
    row = asked()[1]["XRT library"]
    assert row["problem"] == problem
    assert "libxrt1" in row["mend"]


def test_the_real_xrt(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not (LIBRARIES / LIBRARY).exists():
        pytest.skip("needs libxrt1")
    row = asked()[1]["XRT library"]
    assert row["problem"] == "XILINX_XRT is not set"
    assert row["mend"].startswith("export XILINX_XRT=")
    monkeypatch.setenv("XILINX_XRT", str(machine))
    assert asked()[1]["XRT library"]["mend"] == "export XILINX_XRT=FOLDER"
    (machine / "lib").symlink_to(LIBRARIES)
    said, rows = asked()
    assert rows["XRT library"]["version"].startswith("2.")
    assert rows["XRT device"]["problem"] == "there is none, or it cannot be opened"
    assert said["runs"] == ["sim"]
    monkeypatch.setenv("XCL_EMULATION_MODE", "noop")
    assert asked()[1]["XRT device"]["mend"] == "unset XCL_EMULATION_MODE"


def test_a_board(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as it can be had here: what asks XRT says that there is a device."""
    monkeypatch.setattr(doctor, "_TRY_XRT", "print('noise'); print('\\nlibrary 2.17.0'); print('\\ndevice 0')")
    said, rows = asked()
    assert said["runs"] == ["sim", "vck190", "vck190-isca25", "vck190-xnn2"]
    assert rows["bitstream"]["mend"] == "rsn run --xclbin FILE, or export RSN_XCLBIN=FILE"
    for path, problem in ((machine / "none", "none"), (machine / "bin", "bin"), (machine / "x", "x: ")):
        (machine / "x").write_bytes(b"nothing")
        monkeypatch.setenv("RSN_XCLBIN", str(path))
        assert problem in asked()[1]["bitstream"]["problem"]


def test_packages_in_disorder(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = ModuleType("pyxrt")
    broken.__spec__ = None
    monkeypatch.setitem(sys.modules, "pyxrt", broken)
    (machine / "pynq").mkdir()
    (machine / "pynq" / "__init__.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(machine))
    rows = asked()[1]
    assert "ValueError" in rows["pyxrt"]["problem"]
    assert (rows["pynq"]["ok"], rows["pynq"]["version"]) == (True, "")


def test_where_nothing_runs(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(machine / "bin" / "ssh", "echo OpenSSH_9.2p1")  # other computers' boards are not this one's
    monkeypatch.setattr(doctor, "BROKEN", ImportError("no numpy"))
    said, rows = asked(3)
    assert said["runs"] == ["ssh://"]
    for name in ("board sim", "board csim", "XRT"):
        assert rows[name]["problem"] == "ImportError: no numpy"
        assert rows[name]["mend"] == "install rsn and what it needs anew"


def test_where_numpy_is_broken() -> None:
    code = "import sys; sys.modules['numpy'] = None\nfrom rsn.cli.main import main\nmain(['doctor', '--json'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 3, done.stderr
    rows = {row["what"]: row for row in json.loads(done.stdout)["checks"]}
    assert "numpy" in rows["board sim"]["problem"]
    for package in ("torch", "optuna"):
        row = rows[package]
        assert row["problem"] == row["mend"] == "" or row["problem"] == "not installed"


@pytest.mark.parametrize(
    ("name", "version", "said"),
    [
        ("torch", "2.12.1+cu130", ""),
        ("torch", "2.14.0a0+git1", ""),
        ("torch", "2.9.1", ", not tested with rsn: 2.12 to 2.14 is"),
        ("torch", "2.15.0", ", not tested with rsn: 2.12 to 2.14 is"),
        ("torch", "3.0", ", not tested with rsn: 2.12 to 2.14 is"),
        ("transformers", "5.24.0", ""),
        ("transformers", "4.57", ", not tested with rsn: 5.0 to 5.39 is"),
        ("transformers", "5.40.0", ", not tested with rsn: 5.0 to 5.39 is"),
        ("optuna", "5.0.0", ""),
    ],
)
def test_versions_that_no_test_has_seen(name: str, version: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(doctor.importlib.metadata, "version", lambda name: version)
    assert doctor._package(name, "what for", "how") == doctor.Check(name, "what for", version + said)


def test_nothing_it_does_may_raise(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ill() -> list[doctor.Check]:
        raise MemoryError("no\x1b[2J\nmore")

    monkeypatch.setattr(doctor, "CHECKS", dict.fromkeys(doctor.CHECKS, ill))
    done = CliRunner().invoke(main, ["doctor"])
    assert done.exit_code == 3
    assert done.stdout.count("MemoryError: no [2J;") == len(doctor.CHECKS)


def test_it_is_quick_and_loads_nothing_heavy(tmp_path: Path) -> None:
    code = (
        "import sys, time\n"
        "from rsn.cli.main import main\n"
        "main(['doctor'], standalone_mode=False)\n"
        "print(sorted({'torch', 'transformers', 'numba', 'pynq', 'pyxrt'} & set(sys.modules)), file=sys.stderr)\n"
        "print(time.process_time() < 5, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=300, check=True,
        env={k: v for k, v in os.environ.items() if k != "XILINX_XRT"},
    )  # fmt: skip
    assert done.stderr == "[]\nTrue\n"
