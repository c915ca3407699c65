"""The bundle for a board: its installer, and rsn with exactly its packages."""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import rsn
from rsn.assembler import container
from rsn.base.errors import BoardError
from rsn.board import bundle
from rsn.cli.main import LEFT_OUT, main
from rsn.host.runner import Runner
from rsn.host.tensors import load_tensors, save_tensors
from rsn.isa.overlays import XNN

from .boards.programs import X, attention
from .boards.xclbins import Made
from .sshd import Server

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
OTHER_PYTHON = ("--python", Path(sys.base_prefix) / "bin" / f"python{PYTHON}")
INSTALLER = bundle.BOARD / "install.sh"


def run(*command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Without any variable of Python's."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "RSN_", "XRT_", "XCL_", "XILINX_"))}
    return subprocess.run(
        [str(c) for c in command], env={**env, **environment}, capture_output=True, text=True, timeout=60, check=False
    )


# -- what is in it


def test_it_leaves_out_what_no_program_takes() -> None:
    project = tomllib.loads((bundle.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = (bundle.BOARD / "requirements.txt").read_text(encoding="utf-8").splitlines()
    pinned = {line.partition("==")[0] for line in lines if line and not line.startswith("#")}
    needed = {line.partition(">=")[0] for line in project["dependencies"]}
    assert pinned < needed
    assert needed - pinned == set(LEFT_OUT)
    assert bundle._version() == rsn.__version__


def test_what_runs_programs_loads_without_them(root: Path) -> None:
    code = f"""
import sys
sys.path.insert(0, {str(root / ".typing")!r})
sys.modules.update(dict.fromkeys({[*LEFT_OUT, "torch", "numba"]!r}))
import rsn.cli.doctor, rsn.cli.run, rsn.cli.serve_stdio"""
    done = run(sys.executable, "-c", code)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_command_that_a_board_does_without(root: Path, tmp_path: Path) -> None:
    code = f"""
import sys
sys.path.insert(0, {str(root / ".typing")!r})
sys.modules["lark"] = None
from rsn.cli.main import main
main(["asm", {str(root / "programs" / "fig10.rsn")!r}, "-o", {str(tmp_path / "x.bin")!r}])"""
    done = run(sys.executable, "-c", code)
    assert (done.returncode, "rsn asm takes the Python package lark" in done.stderr) == (3, True), done.stderr


# -- Debian's packages


def deb(path: Path, files: dict[str, bytes], member: str = "data.tar.xz") -> Path:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for name, data in files.items():
            entry = tarfile.TarInfo(f"./{name}")
            entry.size, entry.mode = len(data), 0o755
            tar.addfile(entry, io.BytesIO(data))
    whole = b"!<arch>\n"
    for name, data in {"debian-binary": b"2.0", member: lzma.compress(raw.getvalue())}.items():
        whole += f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(data):<10}`\n".encode() + data + b"\n" * (len(data) % 2)
    path.write_bytes(whole)
    return path


def test_python_out_of_debians_packages(tmp_path: Path) -> None:
    files = {
        bundle.DEBS[0]: {"usr/bin/python3.11": b"ELF", "usr/share/man/x": b"", "usr/share/doc/p/copyright": b"PSF"},
        bundle.DEBS[1]: {"usr/lib/python3.11/os.py": b"1", "usr/lib/python3.11/test/big.py": b"2", "etc/x": b"3"},
        "zlib1g": {"lib/aarch64-linux-gnu/libz.so.1": b"z"},
    }
    for name in (*bundle.DEBS, *bundle.LIBRARY_DEBS):
        deb(tmp_path / f"{name}_1_arm64.deb", files.get(name, {}))
    bundle.pack_python(tmp_path, tmp_path / "python.tar.gz")
    with tarfile.open(tmp_path / "python.tar.gz") as tar:
        assert sorted(tar.getnames()) == [
            "bin/python3.11",
            "lib/private/libz.so.1",
            "lib/python3.11/os.py",
            "licenses/p/copyright",
        ]
        assert tar.getmember("bin/python3.11").mode == 0o755
        data = tar.extractfile("lib/python3.11/os.py")
        assert data is not None
        assert data.read() == b"1"


def spoil(path: Path, old: bytes, new: bytes) -> None:
    path.write_bytes(path.read_bytes().replace(old, new, 1))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda path: path.unlink(), "has no zlib1g_*.deb of Debian 12"),
        (lambda path: path.write_bytes(b"<html>not found"), "is no package: it does not begin as one"),
        (lambda path: spoil(path, b"3         `", b"x         `"), "is damaged at byte 8"),
        (lambda path: spoil(path, b"7zXZ", b"zstd"), "data.tar.xz cannot be read"),
        (lambda path: deb(path, {}, "other"), "has no data.tar"),
    ],
)
def test_debians_packages_that_are_none(damage: Callable[[Path], Any], said: str, tmp_path: Path) -> None:
    for name in (*bundle.DEBS, *bundle.LIBRARY_DEBS):
        deb(tmp_path / f"{name}_1_arm64.deb", {})
    damage(tmp_path / "zlib1g_1_arm64.deb")
    with pytest.raises(bundle.BundleError) as e:
        bundle.pack_python(tmp_path, tmp_path / "python.tar.gz")
    assert said in str(e.value)


@pytest.mark.parametrize("version", ["3.10", "3", "abc", "2.7", "3.11.2"])
def test_pythons_that_rsn_does_not_take(version: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bundle.main(["--python", version])
    assert f"{version!r}: rsn takes Python 3.11 or newer" in capsys.readouterr().err


# -- the installer


def unpacked(folder: Path, machine: str = platform.machine(), python: str = PYTHON) -> Path:
    """What the archive unpacks to, as far as it matters before anything is installed."""
    (folder / "wheels").mkdir(parents=True)
    shutil.copy(INSTALLER, folder)
    (folder / "bundle.sh").write_text(f"VERSION=1.0\nPYTHON={python}\nMACHINE={machine}\nOWN_PYTHON=no\n")
    files = [path for path in folder.rglob("*") if path.is_file()]
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(folder)}\n" for path in files]
    (folder / "SHA256SUMS").write_text("".join(sums))
    return folder


def refusal(folder: Path, prefix: Path, *options: str | Path) -> str:
    """What the installer says, having changed nothing."""
    before = sorted(prefix.parent.rglob("*"))
    done = run("sh", folder / "install.sh", "--prefix", prefix, "--bin", prefix.parent / "bin", *options)
    assert done.returncode == 1, done.stdout
    assert sorted(prefix.parent.rglob("*")) == before
    return done.stderr


def test_what_the_installer_refuses(tmp_path: Path) -> None:
    prefix = tmp_path / "to" / "rsn"
    prefix.parent.mkdir()
    other = unpacked(tmp_path / "other", machine="riscv64")
    said = refusal(other, prefix)
    assert f"this bundle is for riscv64, and this computer is {platform.machine()}: on the desktop, make " in said
    damaged = unpacked(tmp_path / "damaged")
    (damaged / "bundle.sh").write_text((damaged / "bundle.sh").read_text().replace("1.0", "1.1"))
    assert "a file of the bundle is damaged or missing" in refusal(damaged, prefix)
    old = unpacked(tmp_path / "old", python="3.2")
    assert f"python3 is Python {PYTHON}, and this bundle takes 3.2" in refusal(old, prefix)
    assert f"{sys.executable} is Python {PYTHON}, and" in refusal(old, prefix, "--python", sys.executable)
    good = unpacked(tmp_path / "good")
    assert "/bin/false does not run" in refusal(good, prefix, "--python", "/bin/false")
    assert "unknown option --prefx; sh install.sh --help" in refusal(good, prefix, "--prefx", "x")
    assert "letters, digits" in refusal(good, tmp_path / "to" / "a b")
    assert "cannot be the folder of rsn alone" in refusal(good, tmp_path / "to" / "..")
    (tmp_path / "to" / "link").symlink_to(tmp_path)
    assert "is a link: name the folder" in refusal(good, tmp_path / "to" / "link")
    (tmp_path / "to" / "link").unlink()
    if os.geteuid():  # root may write everywhere
        (locked := tmp_path / "locked").mkdir(0o500)
        assert f"{locked} cannot be written: become root, or" in refusal(good, locked / "rsn")
    assert "there is no rsn in" in refusal(good, prefix, "--uninstall")
    prefix.mkdir()
    (prefix / "thesis.tex").touch()
    assert "is there and is no installation of rsn: choose another" in refusal(good, prefix)
    assert "is there and is no installation of rsn: choose another" in refusal(good, prefix, "--uninstall")
    assert (prefix / "thesis.tex").exists()
    (bundle_less := tmp_path / "less").mkdir()
    shutil.copy(INSTALLER, bundle_less)
    assert "run install.sh in the folder that the archive unpacks to" in refusal(bundle_less, prefix)
    assert "--uninstall" in run("sh", good / "install.sh", "--help").stdout


def test_a_command_of_somebody_else_stays(tmp_path: Path) -> None:
    good = unpacked(tmp_path / "good")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "rsn").write_text("mine")
    assert "belongs to another installation" in refusal(good, tmp_path / "rsn")
    assert (tmp_path / "bin" / "rsn").read_text() == "mine"


# -- all of it


@dataclass(frozen=True)
class Board:
    """An installation from the bundle. folder: also has a program, its weights and inputs."""

    folder: Path
    unpacked: Path

    @property
    def prefix(self) -> Path:
        return self.folder / "rsn"

    @property
    def has_python(self) -> bool:
        return "OWN_PYTHON=yes" in (self.unpacked / "bundle.sh").read_text(encoding="utf-8")

    def install(self, *options: str | Path) -> subprocess.CompletedProcess[str]:
        place = ("--prefix", self.prefix, "--bin", self.folder / "bin")
        return run("sh", self.unpacked / "install.sh", *place, *options)

    def rsn(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return run(self.folder / "bin" / "rsn", *arguments, **environment)

    def files(self, *others: str) -> tuple[str, ...]:
        return "run", *(str(self.folder / n) for n in ("a.bin",)), *self._files(), *others

    def _files(self) -> Iterator[str]:
        for option, name in (("--weights", "w.safetensors"), ("--inputs", "x.npz")):
            yield from (option, str(self.folder / name))


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Board:
    folder = tmp_path_factory.mktemp("board")
    try:
        archive = bundle.make(platform.machine(), PYTHON, None, True, folder)  # with a Python, on Debian
    except subprocess.CalledProcessError:
        if "CI" in os.environ:
            raise
        pytest.skip("needs the packages of board/requirements.txt from a package index")
    subprocess.run(["tar", "-xf", archive, "-C", folder], check=True)  # as the page says
    made = Board(folder, folder / f"rsn-board-{rsn.__version__}")
    done = made.install(*(() if made.has_python else OTHER_PYTHON))
    assert done.returncode == 0, done.stderr
    assert (f"{made.prefix}/python/bin/python{PYTHON}\n" in done.stdout) == made.has_python
    built = attention()
    container.write(built.program, folder / "a.bin")
    save_tensors(folder / "w.safetensors", dict(built.weights), packed=True)
    np.savez(folder / "x.npz", x=X)
    return made


@pytest.mark.long
def test_a_program_with_weights(board: Board) -> None:
    there = board.folder / "y.safetensors"
    done = board.rsn(*board.files("--outputs", str(there), "--json"))
    assert done.returncode == 0, done.stderr
    with Runner(attention().program, weights=attention().weights) as runner:
        expected = runner.run({"x": X})
    np.testing.assert_allclose(load_tensors(there)["y"], expected.outputs["y"], atol=1e-4)
    assert json.loads(done.stdout)["latency_s"] == expected.run.latency_s
    (board.folder / "cut.safetensors").write_bytes((board.folder / "w.safetensors").read_bytes()[:1000])
    for name, said in (("cut.safetensors", "not a readable safetensors file"), ("x.npz", "not a readable safetensors")):
        wrong = board.rsn(*board.files("--weights", str(board.folder / name)))
        assert (wrong.returncode, said in wrong.stderr) == (1, True), wrong.stderr
        assert "Traceback" not in wrong.stderr


@pytest.mark.long
def test_nothing_else_is_installed(board: Board) -> None:
    code = "import importlib.metadata as m; print(*sorted(d.name.lower() for d in m.distributions()))"
    names = run(board.prefix / "bin" / "python", "-P", "-c", code).stdout.split()
    assert names == ["click", "construct", "numpy", "rsn-toolchain", "safetensors", "threadpoolctl"]
    said = board.rsn("doctor")
    assert said.returncode == 0
    assert "This installation is for a board: it runs programs." in said.stdout
    assert "torch" not in said.stdout
    refused = board.rsn("asm", str(bundle.ROOT / "programs" / "fig10.rsn"), "-o", str(board.folder / "z.bin"))
    assert (refused.returncode, "run this command on your desktop computer" in refused.stderr) == (3, True)


XRT = """
import sys
from rsn.cli.main import main
from rsn.host.boards import named
from rsn.host.boards.xrt_ctypes import CtypesXrt, XrtLibrary

named.REAL["xrt"] = lambda index: CtypesXrt(index, XrtLibrary(sys.argv[1]))
main(sys.argv[2:])
"""


@pytest.mark.long
def test_through_xrt(board: Board) -> None:
    """XRT's device that computes nothing, with a graph: as far as a computer without a board goes."""
    libraries = next((p.parent for p in sorted(Path("/usr/lib").glob("*/libxrt_noop.so.2"))), None)
    compiler, headers = shutil.which("cc"), Path("/usr/include/xrt")
    if libraries is None or compiler is None or not headers.exists():
        pytest.skip("needs XRT with its headers, and a C compiler: apt-get install libxrt1 libxrt-dev gcc")
    (board.folder / "xrt").mkdir()
    (board.folder / "xrt" / "lib").symlink_to(libraries)
    stub, library = Path(__file__).parent / "boards" / "graph_stub.c", board.folder / "libgraph.so"
    flags = ["-shared", "-fPIC", "-Wl,--no-as-needed", f"-I{headers}", f"-L{libraries}"]
    subprocess.run([compiler, *flags, stub, "-o", library, "-l:libxrt_coreutil.so.2"], check=True)
    environment = {
        "XILINX_XRT": str(board.folder / "xrt"),
        "XCL_EMULATION_MODE": "noop",
        "RSN_XCLBIN": str(Made().write(board.folder / "our.xclbin")),
        "RSN_STUB_LOG": str(board.folder / "log"),
        "RSN_STUB_FINGERPRINT": XNN.fingerprint,
    }
    python = (board.prefix / "bin" / "python", "-c", XRT, library)
    outputs = board.folder / "zeros.npz"
    done = run(*python, *board.files("--board", "vck190", "--outputs", str(outputs)), **environment)
    assert done.returncode == 0, done.stderr
    assert not load_tensors(outputs)["y"].any()  # it computes nothing, and the memory was cleared
    assert (board.folder / "log").read_text(encoding="utf-8").count("\nupdate 1 ") == 384
    del environment["RSN_XCLBIN"]
    missing = run(*python, *board.files("--board", "vck190"), **environment)
    assert (missing.returncode, "board vck190 needs its bitstream" in missing.stderr) == (3, True)


@pytest.mark.long
def test_at_the_other_end_of_ssh(board: Board, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RSN_REMOTE", str(server.rsn_is(f'unset PYTHONPATH\nexec {board.prefix}/bin/rsn "$@"')))
    built = attention()
    with Runner(built.program, weights=built.weights, board=server.url) as runner:
        there = runner.run({"x": X})
    with Runner(built.program, weights=built.weights) as runner:
        np.testing.assert_allclose(there.outputs["y"], runner.run({"x": X}).outputs["y"], atol=1e-4)
    with pytest.raises(BoardError, match=r"^127\.0\.0\.1: no board 'nowhere'"):
        Runner(built.program, weights=built.weights, board=server.url.replace("/sim", "/nowhere"))
    done = CliRunner().invoke(main, ["doctor", server.url, "--json"])
    assert done.exit_code == 0, done.output
    python = next(row for row in json.loads(done.stdout)["checks"] if row["what"] == "Python")
    assert python["for"] == f"what rsn runs on there: {board.prefix}/bin/python"


@pytest.mark.long
def test_again_and_away(board: Board) -> None:
    """The last test: it removes the installation."""
    (board.prefix / "settings.sh").write_text("export XDG_CACHE_HOME=/mine\n")
    board.prefix.rename(f"{board.prefix}.rsn-old")  # as an installation leaves it that was interrupted
    again = board.install(*OTHER_PYTHON, "--prefix", f"{board.prefix}//", "--bin", f"{board.folder}/bin/")
    assert again.returncode == 0, again.stderr
    assert not (board.prefix / "python").exists()
    assert again.stdout.splitlines()[0] == f"rsn {rsn.__version__} for {platform.machine()} -> {board.prefix}"
    assert (board.prefix / "settings.sh").read_text() == "export XDG_CACHE_HOME=/mine\n"
    assert board.rsn("--version").stdout == f"rsn, version {rsn.__version__}\n"
    (board.unpacked / "requirements.txt").write_text("numpy")
    assert board.install().returncode == 1
    assert board.rsn("--version").returncode == 0  # what was there stays
    gone = board.install("--uninstall", "--prefix", f"{board.prefix}/")
    assert gone.returncode == 0, gone.stderr
    assert not board.prefix.exists()
    assert not (board.folder / "bin" / "rsn").is_symlink()
    assert not list(board.folder.glob("rsn.*"))
