"""`rsn asm`, `dis`, `info` and `fmt`: files, exit codes, messages."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rsn.assembler.container import read
from rsn.cli.main import main

PACKETS = """\
overlay xnn

param len 1..512 = 100

buffer x ddr 128x64 blocked output at 512

MME0 {
  k128
}

packet DDR reuse=2 { load x -> MemA0 }
packet MemCConfig MemC1 { softmax_cols=clamp(len-0, 0, 256) }
packet MemA[0..2] reuse=3 { load dim1=128 dim2=128; send acc_a=1 }
nop
last DDR
"""


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "p.rsn").write_text(PACKETS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def rsn(*args: str) -> Result:
    result = CliRunner().invoke(main, args)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_text_to_binary_to_text_to_binary(files: Path) -> None:
    assert rsn("asm", "p.rsn").exit_code == 0
    assert rsn("dis", "p.bin").stdout == PACKETS
    assert rsn("dis", "p.bin", "-o", "q.rsn").stdout == ""
    assert (files / "q.rsn").read_text() == PACKETS
    (files / "p.rsn").rename(files / "old.rsn")
    (files / "q.rsn").rename(files / "p.rsn")
    assert rsn("asm", "p.rsn", "-o", "again.bin").exit_code == 0
    assert (files / "again.bin").read_bytes() == (files / "p.bin").read_bytes()


def test_sections_are_packed(files: Path, root: Path) -> None:
    assert rsn("asm", str(root / "programs" / "fig10.rsn"), "-o", "fig10.bin").exit_code == 0
    program = read("fig10.bin")
    assert program.packets[-1].header.last
    assert Path(program.places[0].file).name == "fig10.rsn"


def test_raw_image(files: Path) -> None:
    result = rsn("asm", "p.rsn", "-o", "p.raw", "--raw", "--json")
    facts = json.loads(result.stdout)
    assert facts == {"program": "p.raw", "extended": True, "packets": 5, "image_bytes": 68}
    assert (files / "p.raw").stat().st_size == 68
    note = "p.raw: a bare image has no run-time parameters; their defaults are fixed in it: len = 100\n"
    assert result.stderr == note
    text = rsn("dis", "--raw", "--overlay", "xnn", "p.raw").stdout
    assert "packet DDR reuse=2 { load -> MemA0 addr=512 size=8192 }" in text
    result = rsn("dis", "--raw", "p.raw")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: p.raw: word 7: error F04: opcode 8 is not defined in overlay xnn-base; ")
    assert "(opcode 8: --overlay xnn or --overlay xnn2)" in result.stderr
    assert rsn("dis", "--raw", "--overlay", "ynn", "p.raw").exit_code == 1


def test_info(files: Path) -> None:
    rsn("asm", "p.rsn")
    facts = json.loads(rsn("info", "--json", "p.bin").stdout)
    assert (facts["overlay"], facts["extended"]) == ("xnn", True)
    assert facts["mops"] | {"DDR": 1, "MemA": 2, "MemC": 1, "total": 4} == facts["mops"]
    assert facts["packets"] | {"DDR": 2, "MemA": 1, "MemC": 1, "total": 5} == facts["packets"]
    assert facts["bytes"] | {"DDR": 24, "MemA": 12, "MemC": 20, "total": 68} == facts["bytes"]
    assert facts["uops"] | {"DDR": 2, "MemA": 18, "MemC": 1, "total": 21} == facts["uops"]
    assert [(b["name"], b["offset"], b["shape"], b["role"]) for b in facts["buffers"]] == [
        ("x", 512, [128, 64], "output")
    ]
    assert facts["parameters"] == [{"name": "len", "low": 1, "high": 512, "default": 100, "patches": 1}]
    lines = rsn("info", "p.bin").stdout.splitlines()
    assert lines[0].startswith("p.bin: extended program for overlay xnn (")
    assert lines[1].split() == ["mops", "packets", "bytes", "uops", "uop", "bytes", "uop", "bytes", "/", "bytes"]
    assert lines[2].split() == ["DDR", "1", "2", "24", "2", "24", "1.0"]
    assert any(line.split() == ["x", "ddr", "0x200", "128x64", "blocked", "output"] for line in lines)
    assert rsn("info", "p.rsn").stdout.splitlines()[1:] == lines[1:]


def test_info_does_not_count_one_by_one(files: Path) -> None:
    (files / "huge.rsn").write_text("overlay xnn\n" + "packet DDR reuse=65535 { for 31 { load chunks=15 } }\n" * 100)
    facts = json.loads(rsn("info", "--json", "huge.rsn").stdout)
    assert facts["uops"]["DDR"] == 100 * 31 * 15 * 65535


BARE = """\
overlay xnn-base

packet DDR reuse=2 { load -> MemA0 addr=512 size=8192 }
packet MemA0 { load dim1=128 dim2=128; send acc_a=1 acc_b=1 }
packet MeshA { MemA0->MME0 size=512 }
last DDR
last MemA[0..2]
last MeshA
"""
LISTS = '{"0": [29526049]}'


@pytest.fixture
def bare(files: Path) -> Path:
    """A bare image, its op lists, and the texts that they are disassembled to."""
    (files / "bare.rsn").write_text(BARE)
    (files / "mme.json").write_text(LISTS)
    assert rsn("asm", "--raw", "bare.rsn", "-o", "bare.raw").exit_code == 0
    return files


def test_a_bare_image_there_and_back(bare: Path) -> None:
    """Its text has neither buffers nor, without --mme, op lists: which is said at once, and asked for by asm."""
    result = rsn("dis", "--raw", "bare.raw")
    assert (result.exit_code, result.stdout) == (0, BARE)
    assert "its text has no buffers and no op lists (--mme)" in result.stderr
    result = rsn("dis", "--raw", "bare.raw", "--mme", "mme.json", "-o", "listed.rsn")
    assert "its text has no buffers, which only rsn asm --raw accepts" in result.stderr
    assert rsn("asm", "--raw", "listed.rsn", "-o", "again.raw", "--mme", "again.json").exit_code == 0
    assert (bare / "again.raw").read_bytes() == (bare / "bare.raw").read_bytes()
    assert json.loads((bare / "again.json").read_text()) == json.loads(LISTS)


NO_BUFFER = (
    "error: {}: error A01: DDR reads 8192 elements at ddr address 0x200, which lie in no declared buffer: the program "
    "declares none in ddr, and accesses its elements up to 16384\n"
    "  help: declare what lies in ddr, as `buffer NAME ddr ROWSxCOLUMNS blocked input`; a bare image does not say it, "
    "but runs as it is: rsn run --raw\n"
)
NO_OPS = (
    (
        "bare.rsn:5: error M05: no MME has ops, but MeshA sends 1 words to MME0\n"
        "  help: write the ops of each MME that works, as a section `MME0 {{ ... }}`; a bare image does not hold them: "
        "rsn dis --raw IMAGE --mme OPS.json\n"
    )
    .replace("{{", "{")
    .replace("}}", "}")
)


def test_asm_says_what_the_text_of_a_bare_image_lacks(bare: Path) -> None:
    result = rsn("asm", "bare.rsn")
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", NO_BUFFER.format("bare.rsn:3") + NO_OPS)
    assert not (bare / "bare.bin").exists()
    rsn("dis", "--raw", "bare.raw", "--mme", "mme.json", "-o", "listed.rsn")
    assert rsn("asm", "listed.rsn").stderr == NO_BUFFER.format("listed.rsn:7")
    result = rsn("asm", "--raw", "bare.rsn", "--mme", "lists.json")  # lists of no ops would be a lie
    assert (result.exit_code, result.stderr) == (1, f"error: {NO_OPS}")
    assert not (bare / "lists.json").exists()
    text = (bare / "listed.rsn").read_text().replace("\n\n", "\n\nbuffer x ddr 256x128 blocked input\n\n", 1)
    (bare / "whole.rsn").write_text(text)
    assert rsn("asm", "whole.rsn").exit_code == 0


def test_ops_that_nobody_gave_are_not_counted_as_none(bare: Path) -> None:
    unknown = json.loads(rsn("info", "--raw", "bare.raw", "--json").stdout)
    known = json.loads(rsn("info", "--raw", "bare.raw", "--mme", "mme.json", "--json").stdout)
    assert (unknown["uops"]["MME"], unknown["bytes"]["MME"]) == (None, None)
    assert (known["uops"]["MME"], known["bytes"]["MME"]) == (1, 4)
    assert unknown["uops"]["total"] == known["uops"]["total"] == 5
    assert any(line.split() == ["MME"] for line in rsn("info", "--raw", "bare.raw").stdout.splitlines())


def test_the_overlay_of_a_bare_image_is_the_same_for_all(bare: Path) -> None:
    for command in (["dis"], ["info"], ["check", "--mme", "mme.json"], ["run", "--mme", "mme.json", "--timing-only"]):
        result = rsn(*command, "--raw", "bare.raw", "--overlay", "fig6")
        assert (result.exit_code, "in overlay fig6" in result.output) == (1, True), command
    assert rsn("dis", "--raw", "bare.raw").stdout.startswith("overlay xnn-base\n")
    assert json.loads(rsn("info", "--raw", "bare.raw", "--json").stdout)["overlay"] == "xnn-base"
    assert "on xnn-base" not in rsn("check", "--raw", "bare.raw", "--overlay", "xnn").stdout
    assert json.loads(rsn("info", "--resources", "--json").stdout)["overlay"] == "xnn"


@pytest.mark.parametrize("command", ["dis", "info"])
def test_options_of_bare_images_alone(bare: Path, command: str) -> None:
    rsn("asm", "p.rsn")
    for given in (["--overlay", "xnn"], ["--mme", "mme.json"]):
        result = rsn(command, "p.bin", *given)
        assert (result.exit_code, f"{given[0]}: only with --raw" in result.stderr) == (2, True)
    result = rsn(command, "--raw", "bare.raw", "--mme", "bare.raw")
    assert (result.exit_code, "bare.raw: not a JSON object" in result.stderr) == (1, True)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["asm", "bare.rsn", "-o", "bare.rsn"], "--output bare.rsn is SOURCE, too: it would be overwritten"),
        (["asm", "bare.rsn", "--raw", "-o", "./sub/../bare.rsn"], "is SOURCE, too"),
        (["asm", "text.bin"], "--output text.bin is SOURCE, too"),
        (["asm", "bare.rsn", "--raw", "--mme", "bare.rsn"], "--mme bare.rsn is SOURCE, too"),
        (["asm", "bare.rsn", "--raw", "-o", "new", "--mme", "new"], "--mme new is --output, too"),
        (["dis", "--raw", "bare.raw", "-o", "bare.raw"], "--output bare.raw is PROGRAM, too"),
        (["dis", "--raw", "bare.raw", "--mme", "mme.json", "-o", "link"], "--output link is --mme, too"),
    ],
)
def test_no_file_is_overwritten_that_was_read(bare: Path, args: list[str], message: str) -> None:
    (bare / "sub").mkdir()
    (bare / "text.bin").write_text(PACKETS)
    (bare / "link").symlink_to("mme.json")
    before = {path.name: path.read_bytes() for path in bare.iterdir() if path.is_file()}
    result = rsn(*args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert {path.name: path.read_bytes() for path in bare.iterdir() if path.is_file()} == before


@pytest.mark.parametrize("command", [["dis"], ["info"], ["check"], ["run", "--timing-only", "--mme", "mme.json"]])
def test_a_program_or_a_text_is_no_bare_image(bare: Path, command: list[str]) -> None:
    rsn("asm", "p.rsn")
    result = rsn(*command, "--raw", "p.bin")
    message = "error: p.bin: a program of this toolchain, not a bare image: leave out --raw\n"
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", message)
    result = rsn(*command, "--raw", "p.rsn")
    message = "error: p.rsn: a text, not a bare image: rsn asm --raw makes an image of it\n"
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", message)


def test_fmt(files: Path) -> None:
    loose = files / "loose.rsn"
    loose.write_text("overlay  xnn\nMemA0 {\nload\n}\n")
    assert rsn("fmt", "--check", "p.rsn").exit_code == 0
    result = rsn("fmt", "--check", "p.rsn", "loose.rsn")
    assert result.exit_code == 1
    assert result.stderr == "loose.rsn: not formatted; run rsn fmt\n"
    assert rsn("fmt", "loose.rsn").exit_code == 0
    assert loose.read_text() == "overlay xnn\nMemA0 {\n  load\n}\n"
    assert rsn("fmt", "--check", "loose.rsn").exit_code == 0


def test_mistakes_are_shown_as_they_are(files: Path) -> None:
    (files / "bad.rsn").write_text("overlay xnn\nMemA9 { }\n")
    result = rsn("asm", "bad.rsn")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr == (
        "bad.rsn:2:1: error: this datapath has no MemA9\nMemA9 { }\n^^^^^\nnote: MemA units are MemA0, MemA1, MemA2\n"
    )
    assert not (files / "bad.bin").exists()


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["asm", "none.rsn"], 1, "error: none.rsn: No such file or directory"),
        (["dis", "none.bin"], 1, "error: none.bin: No such file or directory"),
        (["asm", "p.rsn", "-o", "no/p.bin"], 1, "error: no/p.bin: No such file or directory"),
        (["dis", "p.rsn"], 0, ""),
        (["dis", "notes.txt"], 1, "error: notes.txt: byte 0: not a program of this toolchain"),
        (["asm", "."], 1, "error: .: Is a directory"),
        (["info", "--raw", "notes.txt"], 1, "error: notes.txt: word 1: error F01: an image consists of words"),
        (["asm"], 2, "Missing argument 'SOURCE'"),
        (["asm", "--nonsense", "p.rsn"], 2, "No such option"),
        (["assemble"], 2, "No such command 'assemble'"),
    ],
)
def test_exit_codes(files: Path, args: list[str], code: int, message: str) -> None:
    (files / "notes.txt").write_text("notes")
    result = rsn(*args)
    assert result.exit_code == code
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_help_is_quick() -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    code = "import sys; sys.argv = ['rsn', '--help']\nfrom rsn.cli.main import main\ntry: main()\nfinally: "
    code += "print(*(m for m in ('numpy', 'lark', 'construct', 'torch') if m in sys.modules), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "disassemble" in done.stdout.lower()
    assert done.stderr.strip() == ""
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < 2  # seconds; 0.1 on an idle machine


def test_closed_output_is_no_error(files: Path) -> None:
    rsn("asm", "p.rsn")
    command = f"{sys.executable} -m rsn dis p.bin | head -n 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[0] == "overlay xnn"
    assert "Traceback" not in done.stderr


def test_standard_output_may_be_the_target(files: Path) -> None:
    rsn("asm", "p.rsn")
    command = [sys.executable, "-m", "rsn", "asm", "p.rsn", "-o", "/dev/stdout"]
    assert subprocess.run(command, capture_output=True, check=True).stdout == (files / "p.bin").read_bytes()
