"""Coverage-guided fuzzing of one reader with atheris (pip install '.[fuzz]'; make fuzz).

    python -m rsn.tests.fuzz.run image|binary|text [--seconds 60] [--runs N] [--corpus FOLDER] [-- libFuzzer options]

Starts from the seeds and from what was found before (`tests/fuzz/found/`). An input that a reader does not handle ends
the run and is written to the current folder as crash-..., timeout-... or oom-...; minimised with
`-minimize_crash=1 -runs=100000 crash-...` behind `--` and moved to `tests/fuzz/found/<target>/`, it becomes a test.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.resources
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

SECONDS_PER_INPUT = 20
MEGABYTES = 2048

FOUND = Path(__file__).resolve().parent / "found"


def main(arguments: Sequence[str] | None = None) -> None:
    given = list(sys.argv[1:] if arguments is None else arguments)
    cut = given.index("--") if "--" in given else len(given)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", choices=["image", "binary", "text"])
    parser.add_argument("--seconds", type=int, default=60, help="when to stop [default: 60]")
    parser.add_argument("--runs", type=int, default=-1, help="or after how many inputs")
    parser.add_argument("--corpus", type=Path, help="a folder that keeps what covers more [default: kept for this run]")
    options = parser.parse_args(given[:cut])
    try:
        # By name, because a type-checker need not have it.
        atheris = importlib.import_module("atheris")
    except ImportError:
        raise SystemExit("error: coverage-guided fuzzing needs atheris; pip install '.[fuzz]'") from None
    with atheris.instrument_imports(include=["rsn.assembler", "rsn.isa"]):
        targets = importlib.import_module("rsn.tests.fuzz.targets")
    target = targets.TARGETS[options.target]

    def once(data: bytes) -> None:
        target(data)

    with tempfile.TemporaryDirectory() as scratch:
        start = Path(scratch) / "seeds"
        kept = options.corpus or Path(scratch) / "kept"
        for folder in (start, kept):
            folder.mkdir(parents=True, exist_ok=True)
        for i, data in enumerate(targets.seeds(options.target)):
            (start / f"seed-{i}").write_bytes(data)
        folders = [str(kept), str(start)]
        if (FOUND / options.target).is_dir():
            folders.append(str(FOUND / options.target))
        limits = [f"-timeout={SECONDS_PER_INPUT}", f"-rss_limit_mb={MEGABYTES}", "-max_len=8192"]
        budget = [f"-max_total_time={options.seconds}", f"-runs={options.runs}"]
        if options.target == "text":
            words = Path(scratch) / "words"
            words.write_text(dictionary(), encoding="utf-8")
            limits.append(f"-dict={words}")
        atheris.Setup([sys.argv[0], *limits, *budget, *given[cut + 1 :], *folders], once)
        atheris.Fuzz()


def dictionary() -> str:
    """The words of the language, as libFuzzer wants them: those of the grammar, and the overlays' names."""
    grammar = importlib.resources.files("rsn.assembler").joinpath("rsn.lark").read_text(encoding="utf-8")
    overlays = importlib.import_module("rsn.isa.overlays").OVERLAYS
    words = set(re.findall(r'"([^"\\ ]+)"', grammar))
    for overlay in overlays.values():
        words |= {overlay.name, *overlay.by_unit, *overlay.by_kind, *overlay.by_format, *overlay.banks}
        words |= {f.name for form in overlay.formats for f in form.mop.FIELDS}
    return "".join(f'"{word}"\n' for word in sorted(words))


if __name__ == "__main__":
    main()
