"""The report: its numbers against the run, its names against attack, and the page itself in a browser."""

import base64
import json
import shutil
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsn.base.errors import DeadlockError
from rsn.hw.sim import scene
from rsn.hw.sim.explain import Explanation, explain
from rsn.hw.sim.machine import Machine
from rsn.hw.sim.report import colours, page, write_report
from rsn.hw.sim.roofline import roofline
from rsn.hw.sim.scene import covered, describe
from rsn.hw.sim.timeline import Timeline
from rsn.isa.expansion import ExpandedProgram
from rsn.isa.overlays import FIG6, OVERLAYS, XNN
from rsn.isa.overlays.xnn import formats as f
from rsn.isa.program import Program, SourceLine
from rsn.isa.segments import stored_buffers
from rsn.isa.statistics import count
from rsn.tests.effort import full, sampled

from .examples import NAMES, assembled, built, encoder, example, machine

EVIL = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"


# -- reading a page ---------------------------------------------------------------------------------------------------


@dataclass
class Page(HTMLParser):
    """Tables by id: rows of cells, each the exact number that stands in it, or its text. scripts: by id."""

    tables: dict[str, list[list[float | str]]] = field(default_factory=dict)
    scripts: dict[str, str] = field(default_factory=dict)
    tags: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    latency: float = 0.0

    def __post_init__(self) -> None:
        super().__init__()
        self._table: list[list[float | str]] = []
        self._script: str | None = None
        self._exact = False
        self._at_latency = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.append((tag, given))
        if tag == "table":
            self._table = self.tables.setdefault(str(given.get("id", len(self.tables))), [])
        elif tag == "tr":
            self._table.append([])
        elif tag in ("td", "th"):
            self._exact = False
            self._table[-1].append("")
        elif tag == "script":
            self._script = str(given.get("id", ""))
            self.scripts.setdefault(self._script, "")
        elif tag == "dd":
            self._at_latency = given.get("id") == "latency"
        elif tag == "data":
            value = float(str(given["value"]))
            if self._at_latency:
                self.latency, self._at_latency = value, False
            elif self._table:
                self._table[-1][-1] = value
                self._exact = True

    def handle_endtag(self, tag: str) -> None:
        if tag == "script":
            self._script = None

    def handle_data(self, data: str) -> None:
        if self._script is not None:
            self.scripts[self._script] += data
        elif self._table and self._table[-1] and not self._exact:
            self._table[-1][-1] = f"{self._table[-1][-1]}{data}".strip()

    def column(self, table: str, name: str, by: int = 0) -> dict[Any, float | str]:
        """One column of a table, by another."""
        head, *rows = self.tables[table]
        at = next(i for i, cell in enumerate(head) if str(cell).startswith(name))
        return {row[by]: row[at] for row in rows}


def read(text: str) -> Page:
    out = Page()
    out.feed(text)
    return out


@cache
def shown(name: str) -> Page:
    return read(page(machine(name), name))


@cache
def reasons(name: str) -> Explanation:
    return explain(machine(name))


def unpacked(text: str) -> tuple[dict[str, Any], Callable[[list[Any]], np.ndarray]]:
    """The timeline's data: header, and how to look an array up."""
    raw = zlib.decompress(base64.b64decode(text))
    size = int.from_bytes(raw[:4], "little")

    def array(ref: list[Any]) -> np.ndarray:
        at, length, kind = ref
        return np.frombuffer(raw, f"<{kind}", length, 4 + size + at).astype(np.int64)

    return json.loads(raw[4 : 4 + size]), array


# -- numbers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_tables_hold_what_the_run_gave(name: str) -> None:
    shows, why, run = shown(name), reasons(name), machine(name).run()
    assert shows.latency == run.latency_s == why.latency_s
    times = shows.column("causes", "time")
    assert {c: times[c] for c in why.causes} == why.causes
    assert times["latency"] == why.latency_s
    assert shows.column("dependencies", "time") == why.dependencies
    assert shows.column("whatif", "latency") == {w.rate: w.latency_s for w in why.what_if}
    assert [row[2] for row in shows.tables["lines"][1:]] == [line.seconds for line in why.lines[:20]]
    busy = shows.column("units", "busy")
    assert {u.removesuffix(" ∥"): b for u, b in busy.items()} == {
        u: f"{100 * share:.1f} %" for u, share in run.utilization.items()
    }
    streams = {s.name: [s.empty, s.full] for s in why.streams}
    assert {row[0]: row[1:] for row in shows.tables["streams"][1:]} == streams


@pytest.mark.parametrize("name", NAMES)
def test_segments_tile_the_run(name: str) -> None:
    shows, why = shown(name), reasons(name)
    rows = shows.tables["all-segments"][1:]
    assert [row[0] for row in rows] == [s.name for s in why.segments]
    if machine(name).program.segments:
        heads = ["segment", "kind", "layers", "first store", "first work"]
        assert [h.split(",")[0] for h in shows.tables["all-segments"][0][:5]] == heads
        assert [row[1:3] for row in rows] == [[s.kind, ", ".join(s.layers)] for s in why.segments]
        assert [row[4] for row in rows] == [s.began for s in why.segments]
        assert all(s.began < s.end for s in why.segments)
        rows = [[row[0], *row[3:4], *row[5:]] for row in rows]
    assert [row[2:4] for row in rows] == [[s.start, s.end] for s in why.segments]
    head, *groups = shows.tables["segments"]
    total = sum(float(row[head.index(next(h for h in head if str(h).startswith("time")))]) for row in groups)
    assert total == pytest.approx(why.segments[-1].end - why.segments[0].start)


@pytest.mark.parametrize("name", NAMES)
def test_sizes_are_those_of_the_program(name: str) -> None:
    shows, counts = shown(name), count(machine(name).program)
    assert shows.column("sizes", "instr") == counts["bytes"]
    for key, head in (("uop_bytes", "uOP bytes"), ("packets", "packets"), ("mops", "mOPs"), ("uops", "uOPs")):
        found = shows.column("sizes", head)
        assert {k: found[k] for k in counts[key]} == counts[key]


def test_waits_of_a_unit_without_lanes_fill_its_time() -> None:
    """Launch, busy, the three waits and the time after the end: nothing is left out, nothing counted twice."""
    bars = [dict(t[1]) for t in shown("gemm768").tags if t[0] == "svg"]
    labels = [str(b["aria-label"]) for b in bars if "has ended" in str(b.get("aria-label"))]
    assert len(labels) > 10
    for label in labels:
        shares = [float(part.split()[-2]) for part in label.split(", ")]
        assert sum(shares) == pytest.approx(100, abs=0.5), label


def test_changed_and_fitted_rates_are_told_apart() -> None:
    program = example("gemm768").program
    text = page(Machine(replace(program, overlay=program.overlay.with_rates(ddr_read_gbs=42))), "faster")
    assert "Changed for this run: ddr_read_gbs = 42 GB/s (overlay: 21)" in text
    assert "Changed for this run" not in page(machine("gemm768"), "gemm768")
    fitted = [name for name, rate in program.overlay.rates.items() if rate.calibrated]
    assert f"{len(fitted)} of the model’s {len(program.overlay.rates)} rates are fitted" in text
    assert ", ".join(fitted) in text


def test_every_cause_of_an_overlay_has_a_colour_of_its_own() -> None:
    for overlay in OVERLAYS.values():
        headings = list(dict.fromkeys(["control", *(r.cause for r in overlay.rates.values())]))
        found = colours(overlay, headings)
        shown_ones = [slot for cause, slot in found.items() if cause != "control"]
        assert len(set(shown_ones)) == len(shown_ones)


def test_page_of_an_overlay_without_operations_says_that_there_is_no_roofline() -> None:
    assert "roofline" not in shown("fig6_app1").tables
    assert "counts no floating-point operations" in page(machine("fig6_app1"), "fig6")


# -- roofline ---------------------------------------------------------------------------------------------------------


def test_roofline_of_the_shipped_gemm() -> None:
    m = machine("gemm768")
    roof = roofline(Timeline(m), explain(m))
    assert roof is not None
    assert roof.whole.flops == 2 * 768 * 1024 * 1024
    assert roof.units == 6
    assert roof.peak == pytest.approx(6 * 2 * 128**3 / 3.709e-6)
    assert roof.mix < roof.peak
    assert {p.name: p.bytes for p in roof.ports} == {
        "DDR": m.run().bytes["ddr_read"] + m.run().bytes["ddr_write"],
        "LPDDR": m.run().bytes["lpddr_read"],
    }
    ceilings = {p.name: p.ceiling for p in roof.ports}
    assert ceilings["LPDDR"] == pytest.approx(20.5e9)
    assert 21e9 < ceilings["DDR"] < 23.5e9


@pytest.mark.parametrize("name", ["gemm768", "fig10", "encoder"])
def test_segments_share_the_operations_and_bytes_of_the_program(name: str) -> None:
    roof = roofline(Timeline(machine(name)), reasons(name))
    assert roof is not None
    assert sum(s.flops for s in roof.segments) == pytest.approx(roof.whole.flops)
    for port in roof.ports:
        assert sum(s.bytes[port.name] for s in roof.segments) == pytest.approx(port.bytes)
    for point in (roof.whole, *roof.segments):
        attainable, _ = roof.attainable(point)
        assert point.speed <= roof.peak * (1 + 1e-9)
        if point is roof.whole:
            assert point.speed <= attainable


# -- the timeline's data ----------------------------------------------------------------------------------------------


@given(
    spans=st.lists(st.tuples(st.floats(0, 10), st.floats(0, 10)).map(sorted), max_size=20),
    bins=st.integers(1, 64),
)
def test_bins_cover_what_the_spans_cover(spans: list[list[float]], bins: int) -> None:
    edges = np.linspace(0, 10, bins + 1)
    start, end = (np.array([s[i] for s in spans]) for i in (0, 1))
    expected = [sum(max(min(b, y) - max(a, x), 0) for x, y in spans) for a, b in pairwise(edges)]
    assert covered(start, end, edges) == pytest.approx(np.array(expected), abs=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_lanes_add_up_to_the_units(name: str) -> None:
    m = machine(name)
    header, array = unpacked(shown(name).scripts["scene"])
    timeline = Timeline(m)
    levels = header["levels"] * header["bins"] / header["latency"]
    for lane, track in zip(header["lanes"], timeline.tracks, strict=True):
        assert lane["name"] == track.name
        binned = sum(array(ref).sum() for _, ref, _ in lane["rows"]) / levels
        assert binned == pytest.approx(track.busy.sum(), abs=2 * len(lane["rows"]) / levels)
        start = np.cumsum(array(lane["start"])) * header["tick"] - header["launch"]
        assert start == pytest.approx(track.start, abs=1e-9)
        assert start + array(lane["took"]) * header["tick"] == pytest.approx(track.end, abs=1e-9)
        exact = [sum(t for _, t in lane["mixes"][i]) * header["tick"] for i in array(lane["mix"])]
        assert exact == pytest.approx(track.busy, abs=1e-9)
        places = [header["places"][i] for i in array(lane["place"])]
        assert places == [m.program.where(track.name, o) for o in track.origin.tolist()]


@pytest.mark.parametrize("name", NAMES)
def test_critical_path_lane_is_the_critical_path(name: str) -> None:
    header, array = unpacked(shown(name).scripts["scene"])
    spans = header["spans"]
    took, cause = array(spans["took"]) * header["tick"], array(spans["cause"])
    assert took.sum() == pytest.approx(header["latency"], abs=1e-9)
    for i, heading in enumerate(header["causes"]):
        assert took[cause == i].sum() == pytest.approx(reasons(name).causes.get(heading, 0.0), abs=2e-10 * len(took))
    whole = sum(array(ref).sum() for _, ref in header["path"])
    assert whole == pytest.approx(header["levels"] * header["bins"], abs=len(header["path"]))


def test_stores_and_loads_of_ddr_are_told_apart() -> None:
    header, array = unpacked(shown("gemm768").scripts["scene"])
    ddr = next(lane for lane in header["lanes"] if lane["name"] == "DDR")
    assert ddr["both"]
    ways: dict[int, set[str]] = {}
    for cause, _, way in ddr["rows"]:
        ways.setdefault(way, set()).add(header["causes"][cause])
    assert ways == {0: {"DDR load", "off-chip set-up"}, 1: {"DDR store", "off-chip set-up"}}
    texts = [header["texts"][i] for i in array(ddr["text"])]
    buffers = [header["buffers"][i - 1][0] for i in array(ddr["buffer"]) if i]
    assert texts[0] == "load →MemA0"
    loads = sum(text.startswith("load") for text in texts)
    assert texts[loads] == "store MemC0→"
    assert buffers == ["x"] * loads + ["y"] * (len(buffers) - loads)


@pytest.mark.parametrize("name", NAMES)
def test_stores_name_the_buffer_of_their_segment(name: str) -> None:
    header, array = unpacked(shown(name).scripts["scene"])
    lanes = {lane["name"]: lane for lane in header["lanes"]}
    for s in stored_buffers(ExpandedProgram(machine(name).program)):
        held = array(lanes[s.unit]["buffer"])
        assert [header["buffers"][held[i] - 1][0] for i in (s.first, s.last)] == [s.name, s.name]


@pytest.mark.parametrize(
    ("unit", "uop", "text"),
    [
        ("MemA0", f.MemA(load=1, dim1=256, dim2=128), "dim1=256 dim2=128 load"),
        ("MeshA", f.MeshA(size=512, a0_0=1), "size=512 MemA0→MME0"),
        ("MemA0", f.MemA(), "nothing"),
        ("DDR", f.Transfer(0, 8192, True, "MemC3"), "store MemC3→"),
        ("LPDDR", f.Transfer(7, 8192, False, "MemB1", True), "load →MemB1 bias"),
    ],
)
def test_uop_in_words(unit: str, uop: Any, text: str) -> None:
    assert describe(unit, uop, XNN) == text


def test_uops_follow_run_time_parameters() -> None:
    """What ran is drawn, not the defaults."""
    program = example("encoder").program
    bound = Machine(program, program.bind({"len[0]": 1, "len[1]": 1}))
    texts = [unpacked(read(page(m, "x")).scripts["scene"])[0]["texts"] for m in (machine("encoder"), bound)]
    assert texts[0] != texts[1]


# -- size -------------------------------------------------------------------------------------------------------------


def longer(program: Program, times: int) -> Program:
    """The same again and again: everything before the terminators, and every op list."""
    end = next(i for i, p in enumerate(program.packets) if p.header.last)
    again = program.packets[:end] * times + program.packets[end:]
    return replace(
        program, packets=again, preloaded={u: ops * times for u, ops in program.preloaded.items()}, places=()
    )


@pytest.mark.long
def test_page_of_a_long_program_stays_small() -> None:
    program = built(encoder(1, 6, 512, 1024, 16, 4096), base=True).program
    m = Machine(longer(program, 26))
    uops = sum(len(t.number) for t in Timeline(m).tracks)
    assert uops > 250_000
    assert len(page(m, "long").encode()) < 8e6


def test_too_many_uops_are_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    m = Machine(longer(example("gemm768").program, 20))
    monkeypatch.setattr(scene, "MAX_UOPS", 500)
    header, array = unpacked(read(page(m, "long")).scripts["scene"])
    lanes = {lane["name"]: lane for lane in header["lanes"]}
    drawn = {name: len(array(lane["start"])) for name, lane in lanes.items()}
    # the op lists of the units that do not get packets are left as they are
    assert sum(n for name, n in drawn.items() if not lanes[name]["ops"]) <= 500
    for track in Timeline(m).tracks:
        lane = lanes[track.name]
        assert array(lane["size"]).sum() == len(track.number)
        busy = sum(sum(t for _, t in lane["mixes"][i]) for i in array(lane["mix"])) * header["tick"]
        assert busy == pytest.approx(track.busy.sum(), abs=1e-8)


# -- bad input --------------------------------------------------------------------------------------------------------


def evil_machine() -> Machine:
    """Names and places that try to break out of the page."""
    program = example("fig6_app1").program
    buffers = tuple(replace(b, name=EVIL + b.name) for b in program.buffers)
    places = tuple(SourceLine(EVIL, p.line) for p in program.places)
    return Machine(replace(program, buffers=buffers, places=places))


def test_hostile_names_are_text() -> None:
    text = page(evil_machine(), EVIL)
    assert EVIL not in text
    assert "<img" not in text
    tags = [tag for tag, _ in read(text).tags]
    assert tags.count("script") == 2
    assert "&lt;/script&gt;&lt;script&gt;" in text
    header, _ = unpacked(read(text).scripts["scene"])
    assert header["buffers"][0][0] == EVIL + "x"


def test_page_asks_for_nothing() -> None:
    """The security policy allows exactly the page's own style and script, and nothing from a network."""
    shows = shown("gemm768")
    policy = next(a["content"] for t, a in shows.tags if t == "meta" and a.get("http-equiv"))
    assert policy is not None
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    links = [a[k] for _, a in shows.tags for k in ("src", "href", "action", "data") if k in a]
    assert set(links) == {"data:,", "#rates"}
    assert not [a for _, a in shows.tags if "style" in a]


def test_page_can_be_made_twice_alike() -> None:
    assert page(machine("fig10"), "x") == page(machine("fig10"), "x")


def test_path_that_cannot_be_written_is_an_os_error(tmp_path: Path) -> None:
    target = tmp_path / "missing" / "r.html"
    with pytest.raises(FileNotFoundError) as caught:
        write_report(machine("fig10"), target, title="x")
    assert caught.value.filename == str(target)
    with pytest.raises(IsADirectoryError):
        write_report(machine("fig10"), tmp_path, title="x")


def test_program_that_deadlocks_leaves_no_page(tmp_path: Path) -> None:
    text = "overlay fig6\nbuffer x ddr 100 linear input\nFU1 { x[0:100] -> FU2 }\nFU2 { size=100 }\n"
    old = tmp_path / "r.html"
    old.write_text("before")
    with pytest.raises(DeadlockError):
        write_report(Machine(assembled(text)), old, title="x")
    assert old.read_text() == "before"
    assert list(tmp_path.iterdir()) == [old]


def test_program_without_work_has_a_page() -> None:
    program = Program(FIG6, tuple(p for p in example("fig6_app1").program.packets if p.header.last))
    shows = read(page(Machine(program), "nothing"))
    assert shows.latency == explain(Machine(program)).latency_s


# -- in a browser -----------------------------------------------------------------------------------------------------

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
needs_browser = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="no Chromium with driver: apt-get install chromium chromium-driver"
)
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--window-size=1280,1000",
]


class Browser:
    """A page in Chromium, and what a user does with it."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, path: Path) -> None:
        self.driver.get_log("browser")
        self.driver.get_log("performance")
        self.driver.get(path.as_uri())
        self.wait("document.querySelector('#timeline canvas').dataset.ms")

    def run(self, script: str) -> Any:
        return self.driver.execute_script(script)

    def wait(self, condition: str) -> None:
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(self.driver, 20, 0.02).until(lambda _: self.run(f"return {condition}"))

    def command(self, name: str, **given: Any) -> Any:
        return self.driver.execute_cdp_cmd(name, given)

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """At a place of the canvas."""
        left, top = self.run(
            "const c = document.querySelector('#timeline canvas'); c.scrollIntoView({block: 'start'});"
            "const r = c.getBoundingClientRect(); return [r.left, r.top]"
        )
        self.command("Input.dispatchMouseEvent", type=kind, x=left + x, y=top + y, **more)

    def settle(self) -> None:
        """Until what was asked for is drawn; a page that has just been scrolled does not zoom."""
        self.driver.execute_async_script(
            "const done = arguments[0]; setTimeout(() => requestAnimationFrame(() => requestAnimationFrame(done)), 250)"
        )

    @property
    def view(self) -> tuple[float, float]:
        found = self.run("const d = document.querySelector('#timeline canvas').dataset; return [d.from, d.to]")
        return float(found[0]), float(found[1])

    @property
    def width(self) -> float:
        found = self.view
        return found[1] - found[0]

    def complaints(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        events = [json.loads(e["message"])["message"] for e in self.driver.get_log("performance")]
        page = self.driver.current_url  # the browser's own first tab asks for things too
        asked = [e["params"] for e in events if e["method"] == "Network.requestWillBeSent"]
        return [a["request"]["url"] for a in asked if a["documentURL"] == page]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    webdriver = pytest.importorskip("selenium.webdriver")
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(str(DRIVER)))
    yield Browser(driver)
    driver.quit()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("pages")

    @cache
    def written(name: str) -> Path:
        target = folder / f"{name}.html"
        write_report(
            evil_machine() if name == "evil" else machine(name), target, title=EVIL if name == "evil" else name
        )
        return target

    return written


@pytest.mark.long
@needs_browser
@pytest.mark.parametrize("name", sampled([*NAMES, "evil"], ("encoder", "fig10", "evil"), full))
def test_page_draws_without_complaint_and_without_a_network(
    browser: Browser, pages: Callable[[str], Path], name: str
) -> None:
    browser.open(pages(name))
    hues = browser.run(
        "const c = document.querySelector('#timeline canvas');"
        "const p = new Uint32Array(c.getContext('2d').getImageData(0, 0, c.width, c.height).data.buffer);"
        "return new Set(p).size"
    )
    assert hues > 10
    assert browser.complaints() == []
    # a page's icon is an empty data: address
    assert [url for url in browser.requests() if not url.startswith("data:")] == [pages(name).as_uri()]
    assert browser.run("return document.title") != "owned"
    assert browser.run("return document.getElementById('failed').hidden")
    for width in (1280, 800, 400):
        browser.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False
        )
        browser.settle()
        assert browser.run("return document.documentElement.scrollWidth <= innerWidth"), width
    browser.command("Emulation.clearDeviceMetricsOverride")


@pytest.mark.long
@needs_browser
def test_timeline_zooms_moves_and_tells(browser: Browser, pages: Callable[[str], Path]) -> None:
    latency = machine("gemm768").run().latency_s
    browser.open(pages("gemm768"))
    assert browser.view == (0, latency)
    browser.mouse("mouseMoved", 600, 80)
    browser.settle()

    for _ in range(3):
        browser.mouse("mouseWheel", 600, 55, deltaX=0, deltaY=-300)
        # at once, before the next frame: the critical path under the pointer, in shares of one pixel
        tip = browser.run("return document.getElementById('tip').innerText").split("\n")
        assert tip[0].startswith("critical path at")
        assert sum(float(row.split(" %")[0]) for row in tip[1:] if " % " in row) <= 100.3
        browser.settle()
    zoomed = browser.view
    assert browser.width < latency / 5
    assert "of" in browser.run("return document.getElementById('range').textContent")

    browser.mouse("mousePressed", 600, 80, button="left", buttons=1, clickCount=1)
    browser.mouse("mouseMoved", 500, 80, button="left", buttons=1)
    browser.mouse("mouseReleased", 500, 80, button="left", clickCount=1)
    browser.settle()
    assert browser.view[0] > zoomed[0]
    assert browser.width == pytest.approx(zoomed[1] - zoomed[0])

    before = browser.view
    browser.mouse("mouseWheel", 600, 80, deltaX=-200, deltaY=0)
    browser.settle()
    assert browser.view[0] < before[0]

    browser.run("document.getElementById('reset').click()")
    browser.settle()
    assert browser.view == (0, latency)
    assert browser.complaints() == []


@pytest.mark.long
@needs_browser
def test_tooltip_names_uop_source_and_times(browser: Browser, pages: Callable[[str], Path]) -> None:
    m = machine("gemm768")
    browser.open(pages("gemm768"))
    track = next(t for t in Timeline(m).tracks if t.name == "DDR")
    latency = m.run().latency_s
    launch = m.program.overlay.seconds["launch_us"]
    width = browser.run("return document.querySelector('#timeline canvas').clientWidth")
    middle = (track.start[5] + track.end[5]) / 2 + launch
    # axis 22 + 2, segments 17 + 3, critical path 22 + 8: then DDR, its loads above
    browser.mouse("mouseMoved", 92 + middle / latency * (width - 93), 22 + 2 + 17 + 3 + 22 + 8 + 30)
    browser.settle()
    assert not browser.run("return document.getElementById('tip').hidden")
    tip = browser.run("return document.getElementById('tip').innerText").split("\n")
    assert tip[0] == "DDR uOP 5"
    assert tip[1] == "load →MemA2 x[512:768, 64:128] (64 KiB)" or tip[1].startswith("load →MemA")
    assert tip[2] == m.program.where("DDR", int(track.origin[5]))
    assert tip[3].startswith("from ")
    assert "busy" in tip[4]
    browser.mouse("mouseMoved", 400, 2000)
    browser.settle()
    assert browser.run("return document.getElementById('tip').hidden")


@pytest.mark.long
@needs_browser
def test_timeline_obeys_the_keyboard_and_the_bar(browser: Browser, pages: Callable[[str], Path]) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import Select

    browser.open(pages("encoder"))
    latency = browser.width
    canvas = browser.driver.find_element(By.CSS_SELECTOR, "#timeline canvas")
    for keys, changes in (("++", True), (Keys.ARROW_RIGHT, True), ("0", True), ("0", False)):
        before = browser.view
        canvas.send_keys(keys)
        browser.settle()
        assert (browser.view != before) == changes
    assert browser.width == latency
    segments = reasons("encoder").segments
    Select(browser.driver.find_element(By.ID, "segment")).select_by_visible_text(segments[3].name)
    browser.settle()
    start, end = browser.view
    assert start < segments[3].start < segments[3].end < end
    assert browser.width < 1.1 * (segments[3].end - segments[3].start)
    height = browser.run("return document.querySelector('#timeline canvas').clientHeight")
    browser.run("document.getElementById('fold').click()")
    browser.settle()
    assert browser.run("return document.querySelector('#timeline canvas').clientHeight") > height + 100
    browser.run("document.getElementById('reset').click()")


@pytest.mark.long
@needs_browser
def test_zooming_in_as_far_as_it_goes_stays_quick_and_right(browser: Browser, pages: Callable[[str], Path]) -> None:
    browser.open(pages("encoder"))
    browser.mouse("mouseMoved", 700, 80)
    browser.settle()
    for _ in range(60):
        browser.run("document.getElementById('in').click()")
    browser.settle()
    least = browser.width
    assert 0 < least <= 1e-8
    boxes, ms = browser.run("const d = document.querySelector('#timeline canvas').dataset; return [+d.boxes, +d.ms]")
    assert boxes < 5000
    assert ms < 1000
    for _ in range(60):
        browser.run("document.getElementById('out').click()")
    browser.settle()
    assert browser.view == (0, machine("encoder").run().latency_s)
    assert browser.complaints() == []


@pytest.mark.long
@needs_browser
def test_dark_page_is_dark(browser: Browser, pages: Callable[[str], Path]) -> None:
    pixel = (
        "const c = document.querySelector('#timeline canvas');"
        "return [...c.getContext('2d').getImageData(c.width - 3, 49, 1, 1).data].slice(0, 3)"
    )
    ground = "return getComputedStyle(document.body).backgroundColor"
    browser.open(pages("fig10"))
    light = browser.run(pixel), browser.run(ground)
    browser.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    browser.settle()
    dark = browser.run(pixel), browser.run(ground)
    browser.command("Emulation.setEmulatedMedia", features=[])
    assert light[1] == "rgb(255, 255, 255)"
    assert dark[1] != light[1]
    assert dark[0] != light[0]


@pytest.mark.long
@needs_browser
def test_all_but_the_timeline_is_there_without_javascript(browser: Browser, pages: Callable[[str], Path]) -> None:
    browser.command("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.driver.get(pages("gemm768").as_uri())
        from selenium.webdriver.common.by import By

        text = browser.driver.find_element(By.TAG_NAME, "body").text
    finally:
        browser.command("Emulation.setScriptExecutionDisabled", value=False)
    assert "The timeline needs JavaScript" in text
    for heading in ("Critical path", "Utilization", "Roofline", "Program size", "Rates of the model"):
        assert heading in text
