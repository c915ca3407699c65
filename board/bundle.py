"""`make board-bundle`: one archive with all that rsn takes on a board, for boards without a network.

It holds wheels (rsn, and the packages of requirements.txt for the board's processor), the installer, checksums, and,
where Debian's packages can be had, a Python: the image of Vitis 2024.1 has an older one than rsn takes.

    python board/bundle.py [--machine aarch64] [--python 3.11] [--debs FOLDER | --no-python] [--output build]

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import argparse
import hashlib
import io
import lzma
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

BOARD = Path(__file__).resolve().parent
ROOT = BOARD.parent

RELEASE = "12"
"""Debian's release whose Python is taken. Its libraries ask for glibc 2.36, which is that of AMD's 2023.1 to 2024.1
images (Yocto 4.1, langdale) and older than that of all later ones."""
PYTHON_OF_RELEASE = "3.11"

DEBIAN_MACHINES = {"aarch64": "arm64", "x86_64": "amd64"}

DEBS = ("python3.11-minimal", "libpython3.11-minimal", "libpython3.11-stdlib")
"""Debian's packages of the interpreter and its standard library."""
LIBRARY_DEBS = ("libexpat1", "libffi8", "zlib1g")
"""Those of the libraries that it loads, for images that lack one."""

LEFT_OUT = ("ensurepip", "idlelib", "lib2to3", "pydoc_data", "test", "tkinter", "turtledemo", "unittest")
"""Folders of the standard library that a board does without. (unittest: only numpy.testing imports it, lazily.)"""


LONG_AGO = 315532800
"""The time of every file, 1980-01-01, in seconds since 1970."""


OLDEST = 11
"""The oldest Python 3 that rsn takes (pyproject.toml)."""


class BundleError(Exception):
    """The bundle cannot be made. The message says what to do."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the archive that the command line asks for, and print its size. arguments: None for those of the process.
    Raises `SystemExit`, with a message, after an error."""
    parser = argparse.ArgumentParser(description="Make the archive that installs rsn on a board.")
    parser.add_argument("--machine", default="aarch64", choices=DEBIAN_MACHINES, help="of the board [%(default)s]")
    parser.add_argument(
        "--python", default=PYTHON_OF_RELEASE, type=python_version, help="that rsn runs on there [%(default)s]"
    )
    parser.add_argument("--debs", type=Path, help=f"folder with Debian {RELEASE}'s packages {', '.join(DEBS)}")
    parser.add_argument("--no-python", action="store_true", help="the board has a Python of that version")
    parser.add_argument("--output", type=Path, default=ROOT / "build", help="folder of the archive [%(default)s]")
    given = parser.parse_args(arguments)
    try:
        archive = make(given.machine, given.python, given.debs, not given.no_python, given.output)
    except BundleError as e:
        sys.exit(f"error: {e}")
    except OSError as e:
        sys.exit(f"error: {e.filename}: {e.strerror}")
    except subprocess.CalledProcessError as e:
        sys.exit(f"error: this failed with exit code {e.returncode}: {' '.join(map(str, e.cmd))}")
    print(f"{archive}: {archive.stat().st_size / 1e6:.1f} MB")


def python_version(text: str) -> str:
    """Return the text if it is the version of a Python that rsn takes, such as 3.11. Raises `ArgumentTypeError`, which
    argparse shows, for another text."""
    first, _, second = text.partition(".")
    if first != "3" or not second.isdecimal() or int(second) < OLDEST:
        raise argparse.ArgumentTypeError(f"{text!r}: rsn takes Python 3.{OLDEST} or newer, named as 3.{OLDEST}")
    return text


def make(machine: str, python: str, debs: Path | None, with_python: bool, output: Path) -> Path:
    """Make the archive.

    machine: as `uname -m` prints it there. python: such as "3.11". debs: a folder with Debian's packages of Python;
    None: apt downloads them, on Debian. with_python: put a Python into the bundle, if there is one. Returns the
    archive's path in `output`, whose name says version and machine. Raises `BundleError`, `CalledProcessError` if a
    command fails, and `OSError` for a file that cannot be read or written.
    """
    version = _version()
    with tempfile.TemporaryDirectory() as scratch:
        bundle = Path(scratch) / f"rsn-board-{version}"
        (bundle / "wheels").mkdir(parents=True)
        print(f"rsn {version} for {machine}, Python {python}")
        own_wheel(bundle / "wheels", Path(scratch) / "source")
        other_wheels(machine, python, bundle / "wheels")
        own = with_python and _add_python(machine, python, debs, Path(scratch), bundle)
        for name in ("install.sh", "requirements.txt"):
            shutil.copy(BOARD / name, bundle)
        shutil.copy(ROOT / "LICENSE", bundle)
        (bundle / "bundle.sh").write_text(
            f"VERSION={version}\nPYTHON={python}\nMACHINE={machine}\nOWN_PYTHON={'yes' if own else 'no'}\n"
        )
        files = sorted(path for path in bundle.rglob("*") if path.is_file())
        sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(bundle)}\n" for path in files]
        (bundle / "SHA256SUMS").write_text("".join(sums))
        for path in (path for path in files if path.suffix == ".whl" or path.name == "python.tar.gz"):
            print(f"  {path.stat().st_size / 1e6:5.1f} MB  {path.name}")
        output.mkdir(parents=True, exist_ok=True)
        archive = output / f"{bundle.name}-{machine}.tar"
        with tarfile.open(archive, "w") as tar:  # not compressed again: what is in it already is
            tar.add(bundle, bundle.name, filter=_of_nobody)
    return archive


def _version() -> str:
    text = (ROOT / "base" / "version.py").read_text(encoding="utf-8")
    return text.partition('__version__ = "')[2].partition('"')[0]


def _of_nobody(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Leave out of an archive who made it and when: the board's clock may be wrong, and tar then warns."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mtime = LONG_AGO
    return entry


def own_wheel(folder: Path, scratch: Path) -> None:
    """Build rsn's wheel into a folder, from a copy of the sources: what earlier builds left in `build/` stays out.
    Raises `BundleError` if it cannot be built.

    scratch: an empty folder for the copy.
    """
    aside = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "docs", "tests", "*.egg-info", "*.tar")
    shutil.copytree(ROOT, scratch, ignore=aside, dirs_exist_ok=True)
    command = [sys.executable, "-m", "build", "--wheel", "--outdir", str(folder), str(scratch)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise BundleError(f"rsn's wheel cannot be built:\n{done.stdout[-2000:]}")


def other_wheels(machine: str, python: str, folder: Path) -> None:
    """Download the wheels of requirements.txt for the board into a folder. machine: as `uname -m` prints it. python:
    such as "3.11". Raises `CalledProcessError` if pip fails."""
    options = ["--only-binary=:all:", "--no-deps", "--platform", f"manylinux2014_{machine}", "--python-version", python]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "download"]
    subprocess.run([*pip, *options, "--dest", folder, "--requirement", BOARD / "requirements.txt"], check=True)


# -- the board's own Python


def _add_python(machine: str, python: str, debs: Path | None, scratch: Path, bundle: Path) -> bool:
    """Put a Python into the bundle, or say why there is none."""
    if python != PYTHON_OF_RELEASE:
        print(f"  no Python in it: Debian {RELEASE} has {PYTHON_OF_RELEASE}; the board must have {python} of its own.")
        return False
    if debs is None:
        debs = downloaded(DEBIAN_MACHINES[machine], scratch / "debs")
        if debs is None:
            print(
                f"  no Python in it: this is not Debian {RELEASE}; the board must have {PYTHON_OF_RELEASE} of its own."
            )
            print("  docs/boards.md, step 9, tells how to put one into it")
            return False
    pack_python(debs, bundle / "python.tar.gz")
    return True


def downloaded(architecture: str, folder: Path) -> Path | None:
    """Download Debian's packages with apt, from the sources of this computer, into a folder, and return that.
    architecture: Debian's name, such as "arm64". Nothing is installed, and apt's own state is left alone. Returns None
    where this is not Debian's release. Raises `CalledProcessError` if apt fails."""
    release = Path("/etc/os-release")
    lines = release.read_text(encoding="utf-8").splitlines() if release.is_file() else []
    if not {"ID=debian", f'VERSION_ID="{RELEASE}"'} <= set(lines) or shutil.which("apt-get") is None:
        return None
    for name in ("lists/partial", "cache/archives/partial"):
        (folder / "apt" / name).mkdir(parents=True)
    (folder / "apt" / "status").touch()
    settings = {
        "APT::Architecture": architecture,
        "APT::Architectures": architecture,
        "APT::Sandbox::User": "",
        "Dir::State": folder / "apt",
        "Dir::State::Lists": folder / "apt" / "lists",
        "Dir::State::Status": folder / "apt" / "status",
        "Dir::Cache": folder / "apt" / "cache",
    }
    apt: list[str] = ["apt-get", "-qq", *(part for key, value in settings.items() for part in ("-o", f"{key}={value}"))]
    environment = {**os.environ, "LC_ALL": "C"}
    # Other sources of this computer may have nothing for that architecture; what matters is the download.
    subprocess.run([*apt, "update"], check=False, env=environment, stderr=subprocess.DEVNULL)
    subprocess.run([*apt, "download", *DEBS, *LIBRARY_DEBS], check=True, cwd=folder, env=environment)
    return folder


def pack_python(debs: Path, archive: Path) -> None:
    """Pack Debian's packages `DEBS` and `LIBRARY_DEBS` into one archive, which holds the files of an installed Python:
    bin/, lib/python3.11/, the shared libraries in lib/private/, and the copyright notices in licenses/.

    debs: the folder with the packages; of several versions of a package, the last by name is taken. archive: the
    .tar.gz file to write. Raises `BundleError` if a package is missing, damaged, or not a Debian package, `OSError` for
    a file that cannot be read or written."""
    with tarfile.open(archive, "w:gz", compresslevel=6) as packed:
        for name in (*DEBS, *LIBRARY_DEBS):
            found = sorted(debs.glob(f"{name}_*.deb"))
            if not found:
                raise BundleError(f"{debs} has no {name}_*.deb of Debian {RELEASE}")
            with contents(found[-1]) as tar:
                for entry in tar:
                    place = _place(entry.name.removeprefix("./"))
                    if place is None or entry.isdir():
                        continue
                    data = tar.extractfile(entry) if entry.isfile() else None
                    entry.name = place
                    packed.addfile(_of_nobody(entry), data)


def _place(name: str) -> str | None:
    """Return where a file of Debian's packages goes in the board's Python; None: it is left out."""
    parts = name.split("/")
    if parts[:3] == ["usr", "share", "doc"] and parts[-1] == "copyright":
        return "/".join(["licenses", *parts[3:]])
    if name == f"usr/bin/python{PYTHON_OF_RELEASE}":
        return f"bin/python{PYTHON_OF_RELEASE}"
    if parts[:3] == ["usr", "lib", f"python{PYTHON_OF_RELEASE}"]:
        return None if len(parts) > 3 and parts[3] in LEFT_OUT else "/".join(parts[1:])
    if ".so." in parts[-1] and parts[0] in ("lib", "usr"):
        return f"lib/private/{parts[-1]}"
    return None


def contents(deb: Path) -> tarfile.TarFile:
    """Open the files of a Debian package, as a tar file: the package is an `ar` archive whose member data.tar.xz holds
    them. Raises `BundleError` for a file that is no such package, `OSError` for one that cannot be read."""
    for name, data in _members(deb):
        if name.startswith("data.tar"):
            try:
                plain = lzma.decompress(data) if name.endswith(".xz") else data
                return tarfile.open(fileobj=io.BytesIO(plain))
            except (lzma.LZMAError, tarfile.TarError) as e:
                raise BundleError(f"{deb}: {name} cannot be read: {e}") from None
    raise BundleError(f"{deb} has no data.tar: it is no package of Debian {RELEASE}")


def _members(archive: Path) -> Iterator[tuple[str, bytes]]:
    """The members of an `ar` archive: a line of 8 bytes, then headers of 60 bytes, each before its data (man 5 ar)."""
    raw = archive.read_bytes()
    if not raw.startswith(b"!<arch>\n"):
        raise BundleError(f"{archive} is no package: it does not begin as one; download it again")
    at = 8
    while at + 60 <= len(raw):
        header = raw[at : at + 60]
        size = header[48:58].strip()
        if not size.isdigit():
            raise BundleError(f"{archive} is damaged at byte {at}: download it again")
        yield header[:16].decode("ascii", "replace").strip().rstrip("/"), raw[at + 60 : at + 60 + int(size)]
        at += 60 + int(size) + int(size) % 2


if __name__ == "__main__":
    main()
