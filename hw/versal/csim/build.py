"""Build the machine's C++ sources for this computer: a library for `rsn run --board csim`, or a stand-alone program.

    python -m rsn.hw.versal.csim.build                     # prints the path of the library
    python -m rsn.hw.versal.csim.build --program
    python -m rsn.hw.versal.csim.build --program --sanitize thread
    python -m rsn.hw.versal.csim.build --machine xnn2

Results are kept in the user's cache, under a hash of the sources, the compiler and its options.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ....base.errors import BoardError
from ....base.files import replacing
from ..sources import cache_folder, sources

MAIN = "csim/main.cpp"


@dataclass(frozen=True)
class MachineSources:
    """The sources of a machine, as patterns below the folder of all sources.

    kernel: for HLS, without `top_graph`. graph: programs of the AI Engine's tiles. native: of the native run alone.
    hls_cfg: path of the configuration of HLS. flags: options of the compiler. top_graph: the source with the graph, for
    AMD's compiler; the native run makes a graph of its own from the same header."""

    kernel: tuple[str, ...]
    graph: tuple[str, ...]
    native: tuple[str, ...]
    hls_cfg: str
    flags: tuple[str, ...] = ()
    top_graph: str = "aie/graph.cpp"

    def kernel_files(self, versal: Path) -> list[Path]:
        """Return the source files of the kernel. versal: as for `files`."""
        graph = versal / self.top_graph
        return [path for pattern in self.kernel for path in sorted(versal.glob(pattern)) if path != graph]

    def files(self, versal: Path, *, program: bool = False) -> list[Path]:
        """Return the source files of the library. versal: the folder of all sources. program: whether to add the source
        of the stand-alone program. A pattern without files gives none."""
        patterns = (*self.graph, *self.native, *([MAIN] if program else []))
        others = [path for pattern in patterns for path in sorted(versal.glob(pattern))]
        return self.kernel_files(versal) + others


_SHARED = ("csim/csim.cpp", "csim/machine.cpp")
_MMES = (*_SHARED, "csim/arrays.cpp", "csim/engine.cpp")
MACHINES: Mapping[str, MachineSources] = {
    "xnn": MachineSources(("pl/*.cpp",), ("aie/kernels.cc",), (*_MMES, "csim/mme.cpp"), "hls.cfg"),
    "xnn2": MachineSources(
        ("pl/fetch.cpp", "xnn2/*.cpp"),
        ("xnn2/kernels.cc",),
        (*_MMES, "csim/mme_xnn2.cpp"),
        "xnn2/hls.cfg",
        ("-DRSN_XNN2",),
    ),
    "xnn8": MachineSources(
        ("pl/fetch.cpp", "xnn8/*.cpp"),
        ("xnn8/kernels.cc",),
        (*_SHARED, "csim/machine_xnn8.cpp"),
        "xnn8/hls.cfg",
        ("-DRSN_XNN8", "-O1"),  # -O3 takes twice as long to build, and saves little
        "xnn8/graph.cpp",
    ),
}
"""By the overlay that a machine is for."""
SANITIZERS = ("thread", "address,undefined")

# No option may reorder or fuse float arithmetic or depend on this processor, so that results are bit-identical on all
# computers. Unused labels are names of loops, unknown pragmas are for HLS.
FLAGS = (
    *("-std=c++17", "-O3", "-fPIC", "-pthread", "-fvisibility=hidden", "-ffp-contract=off", "-DRSN_CSIM"),
    *("-Wall", "-Wextra", "-Werror", "-Wno-unused-label", "-Wno-unknown-pragmas"),
)
RENAMES = "-ffile-prefix-map="
"""The option that gives the folder of the sources another name in objects, FOLDER=NAME. The folder of the cache changes
with any source, and objects with line numbers tell it."""
ELSEWHERE = "set XDG_CACHE_HOME to build in another folder"
INSTALL_HINT = "install a C++17 compiler (Debian, Ubuntu: sudo apt install g++), or name one in CXX"


def compiler(what: str = "board csim") -> str:
    """Return the path of the C++ compiler: CXX of the environment, else g++. what: what needs it, for the message.
    Raises `BoardError` if it is not found."""
    name = os.environ.get("CXX", "g++")
    found = shutil.which(name)
    if found is None:
        raise BoardError(f"{what} is built from C++ and there is no compiler {name!r}; {INSTALL_HINT}")
    return found


def build(
    *,
    machine: str = "xnn",
    program: bool = False,
    sanitize: str = "",
    short_streams: bool = False,
    versal: Path | None = None,
) -> Path:
    """Build the library, or the program, unless it is in the cache; return its path.

    versal: the folder of all sources; None: that of this installation. machine: one of `MACHINES`. sanitize: one of
    `SANITIZERS`, or "" for none; only for the program. short_streams: streams without a FIFO hold four beats, as in
    hardware, which takes several times as long. Of several processes one builds, and the others wait. Raises
    `BoardError` if there is no compiler, or if the build fails, `KeyError` for an unknown machine.
    """
    cxx = compiler()
    made_of = MACHINES[machine]
    flags = [*FLAGS, *made_of.flags, *(["-DRSN_SHORT_STREAMS"] if short_streams else [])]
    if sanitize:
        flags += [f"-fsanitize={sanitize}", "-fno-sanitize-recover=all", "-g1", "-O1"]
    try:
        versal = versal or sources()
    except OSError as e:
        raise BoardError(f"board csim cannot be built: {e}; {ELSEWHERE}") from e
    files = made_of.files(versal, program=program)
    flags_of_files = [*flags, f"{RENAMES}{versal}=.", f"-I{versal / 'csim' / 'include'}"]
    target = cache_folder() / _key(cxx, flags, versal, files) / ("rsn-csim" if program else "librsn_csim.so")
    kept(target, lambda made: _compile(cxx, flags_of_files, files, made, shared=not program))
    if not os.access(target, os.X_OK):
        target.chmod(0o755)
    return target


def kept(target: Path, make: Callable[[Path], object], failed: str = "board csim cannot be built") -> Path:
    """Return `target`, the path of a file of the cache, which is made if it is not there. make: writes the file to the
    path that it gets; of several processes and threads only one calls it. failed: how the message begins if that fails.
    Raises `BoardError` if the file cannot be written, and what `make` raises."""
    if not target.exists():
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with _alone(target):
                if not target.exists():
                    with replacing(target) as made:
                        make(made)
        except OSError as e:
            raise BoardError(f"{failed}: {e}; {ELSEWHERE}") from e
    return target


@contextmanager
def _alone(target: Path) -> Iterator[None]:
    """One process or thread at a time makes `target`. Should the lock fail to keep another one out, as on a network's
    file system without locks, both make the same file, which takes longer and is not wrong."""
    path = target.with_name(f".{target.name}.lock")
    with path.open("w") as file:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)  # who waits for it finds the target, unless that cannot be made


def compiled(source: Path, flags: Sequence[str]) -> Path:
    """Compile a source to an object file, unless the cache has one of the same text, with all that it includes, and the
    same options; return its path. flags: options of the compiler. Raises `BoardError` if there is no compiler, or if it
    finds a mistake.
    """
    cxx = compiler()
    places = [] if any(flag.startswith("-g") for flag in flags) else ["-P"]  # an object tells them only with -g
    text = call([cxx, *flags, "-E", *places, str(source)])
    for flag in flags:
        if flag.startswith(RENAMES):
            folder, _, name = flag.removeprefix(RENAMES).rpartition("=")
            text = text.replace(folder, name)
    options = [flag for flag in flags if not flag.startswith(("-D", "-I", RENAMES))]  # the text has what these decide
    version = subprocess.run([cxx, "--version"], capture_output=True, text=True, check=False).stdout
    key = hashlib.sha256(repr((version, options, text)).encode()).hexdigest()[:16]
    target = cache_folder() / "objects" / f"{key}.o"
    return kept(target, lambda made: call([cxx, *flags, "-c", str(source), "-o", str(made)]))


def _key(cxx: str, flags: Sequence[str], versal: Path, files: Sequence[Path]) -> str:
    """Return a hash of all that the result depends on: compiler, options and sources, but not the sources' folder.
    files: those that are compiled."""
    version = subprocess.run([cxx, "--version"], capture_output=True, text=True, check=False).stdout
    compiled = [path.relative_to(versal).as_posix() for path in files]
    h = hashlib.sha256(repr((version, flags, compiled)).encode())
    for path in sorted(p for suffix in ("h", "hpp", "cpp", "cc") for p in versal.rglob(f"*.{suffix}")):
        h.update(f"{path.relative_to(versal)}\0".encode() + path.read_bytes() + b"\0")
    return h.hexdigest()[:16]


def _compile(cxx: str, flags: Sequence[str], sources: Sequence[Path], target: Path, *, shared: bool) -> None:
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(lambda source: str(compiled(source, flags)), sources))
    call([cxx, *flags, *(["-shared"] if shared else []), *objects, "-o", str(target)])


def call(command: Sequence[str], what: str = "board csim") -> str:
    """Run a compiler, and return what it prints to stdout. command: its path and arguments. what: what it builds, for
    the message. Raises `BoardError` with the first lines of its output if it fails.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        output = "\n".join((done.stderr or done.stdout).splitlines()[:20])
        raise BoardError(f"{what} cannot be built: {' '.join(command)}\n{output}")
    return done.stdout


def main() -> None:
    """Build, as the command line asks, and print the path of the result. Raises `BoardError` as `build`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--program", action="store_true", help="build a stand-alone program instead of the library")
    parser.add_argument("--machine", choices=MACHINES, default="xnn", help="build the machine of this overlay")
    parser.add_argument("--sanitize", choices=SANITIZERS, default="", help="build with these sanitizers")
    given = parser.parse_args()
    print(build(machine=given.machine, program=given.program, sanitize=given.sanitize))  # noqa: T201


if __name__ == "__main__":
    main()
