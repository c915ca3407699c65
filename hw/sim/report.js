// The report's timeline. Shares of time are drawn from prefix sums over fine bins, so a frame costs the same at any zoom;
// uOPs are drawn one by one where they are wide enough to be seen.
"use strict";

(async () => {
  const figure = document.getElementById("timeline");
  const canvas = figure.querySelector("canvas");
  const tip = document.getElementById("tip");
  const status = document.getElementById("range");
  const ctx = canvas.getContext("2d");

  // -- data ---------------------------------------------------------------------------------------------------------

  const packed = Uint8Array.from(atob(document.getElementById("scene").textContent.trim()), (c) => c.charCodeAt(0));
  const unpacked = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const raw = await new Response(unpacked).arrayBuffer();
  const size = new DataView(raw).getUint32(0, true);
  const data = JSON.parse(new TextDecoder().decode(new Uint8Array(raw, 4, size)));
  const TYPES = { u1: Uint8Array, u2: Uint16Array, u4: Uint32Array };
  const array = ([at, count, type]) => new TYPES[type](raw, 4 + size + at, count);
  const { latency, launch, tick, bins, levels } = data;
  const bin = latency / bins;

  // prefix sums: the share of a span is one difference
  const sums = (ref, unit) => {
    const values = array(ref);
    const out = new Float64Array(values.length + 1);
    for (let i = 0; i < values.length; i++) out[i + 1] = out[i] + values[i] * unit;
    return out;
  };
  const clocks = (ref) => {
    const steps = array(ref);
    const out = new Float64Array(steps.length);
    let at = 0;
    for (let i = 0; i < steps.length; i++) out[i] = (at += steps[i]) * tick;
    return out;
  };
  const shares = (rows) => rows.map(([cause, ref, way]) => ({ cause, way: way || 0, sum: sums(ref, bin / levels) }));

  const path = shares(data.path);
  const spans = { end: clocks(data.spans.took), cause: array(data.spans.cause), lane: array(data.spans.lane) };
  const rates = data.rates.map((r) => ({ ...r, sum: sums(r.bytes, 1) }));
  const lanes = data.lanes.map((lane, index) => {
    const start = clocks(lane.start);
    const took = array(lane.took);
    const steps = array(lane.number);
    const number = new Uint32Array(steps.length);
    for (let i = 0, at = 0; i < steps.length; i++) number[i] = at += steps[i];
    const optional = (ref) => (ref ? array(ref) : null);
    return {
      ...lane,
      index,
      start,
      end: Float64Array.from(start, (s, i) => s + took[i] * tick),
      number,
      size: array(lane.size),
      mix: array(lane.mix),
      text: array(lane.text),
      place: array(lane.place),
      buffer: optional(lane.buffer),
      at: optional(lane.at),
      elements: optional(lane.elements),
      rows: shares(lane.rows),
      path: lane.path && sums(lane.path, bin / levels),
    };
  });

  // -- texts --------------------------------------------------------------------------------------------------------

  const UNITS = [["s", 1], ["ms", 1e3], ["µs", 1e6], ["ns", 1e9]];
  const [unit, scale] = UNITS[latency >= 1 ? 0 : latency >= 1e-3 ? 1 : 2];
  const clock = (t, digits) => `${(t * scale).toFixed(digits)} ${unit}`;
  const span = (t) => {
    const [name, by] = UNITS.find(([, by]) => t * by >= 1) || UNITS[3];
    return `${(t * by).toPrecision(4).replace(/\.?0+$/, "")} ${name}`;
  };
  const digits = (step) => Math.max(0, Math.min(9, -Math.floor(Math.log10(step * scale) + 1e-9)));
  const percent = (x) => `${(100 * x).toFixed(1)} %`;
  const bytes = (n) =>
    n >= 1 << 20 ? `${+(n / (1 << 20)).toFixed(2)} MiB` : n >= 1024 ? `${+(n / 1024).toFixed(2)} KiB` : `${n} B`;

  // a piece of a buffer: rows and columns, or elements if it is not a rectangle
  const piece = (lane, i) => {
    const [name, width] = data.buffers[lane.buffer[i] - 1];
    const from = lane.at[i];
    const to = from + lane.elements[i];
    if (width && from % 8192 === 0 && to % 8192 === 0) {
      const [a, b] = [from / 8192, to / 8192 - 1];
      const [r0, c0, r1, c1] = [Math.floor(a / width), a % width, Math.floor(b / width), b % width];
      if (r0 === r1 || (c0 === 0 && c1 === width - 1))
        return `${name}[${r0 * 128}:${r1 * 128 + 128}, ${c0 * 64}:${c1 * 64 + 64}]`;
    }
    return `${name}[${from}:${to}]`;
  };
  const does = (lane, i) => {
    const more = lane.size[i] > 1 ? ` and ${lane.size[i] - 1} more` : "";
    return data.texts[lane.text[i]] + (lane.buffer && lane.buffer[i] ? ` ${piece(lane, i)}` : "") + more;
  };
  const called = (lane, i) => {
    const what = lane.ops ? "op" : lane.unit ? "uOP" : "step";
    const last = lane.number[i] + lane.size[i] - 1;
    return lane.size[i] > 1 ? `${what}s ${lane.number[i]}–${last}` : `${what} ${lane.number[i]}`;
  };

  // -- layout -------------------------------------------------------------------------------------------------------

  // Names of units stand left of their lanes, with 34 pixels for a percentage; the longest ones are cut.
  ctx.font = "11px system-ui, sans-serif";
  const SHARE = 34;
  const longest = Math.max(0, ...lanes.filter((l) => l.unit && l.rows.length).map((l) => ctx.measureText(l.name).width));
  const GUTTER = Math.round(Math.max(92, Math.min(longest + SHARE + 10, 240, 0.3 * figure.clientWidth)));
  const grouped = (() => {
    const found = [];
    for (const [name, start, end] of data.segments) {
      const key = (name.match(/^\D*\d+/) || [name])[0];
      const last = found[found.length - 1];
      if (last && last[0] === key) last[2] = end;
      else found.push([key, start, end]);
    }
    return found.length > 1 && found.length < data.segments.length ? found : [];
  })();
  const before = launch ? [["launch", 0, launch]] : [];
  let folded = true;
  let strips = [];
  let height = 0;

  const arrange = () => {
    strips = [];
    height = 0;
    const add = (kind, h, more, gap = 3) => {
      strips.push({ kind, y: height, h, ...more });
      height += h + gap;
    };
    add("axis", 22, {}, 2);
    if (grouped.length) add("bands", 17, { bands: [...before, ...grouped], name: "part" }, 1);
    if (data.segments.length || launch) add("bands", 17, { bands: [...before, ...data.segments], name: "segment" });
    add("path", 22, { name: "critical path" }, 8);
    const used = lanes.filter((l) => l.unit && l.rows.length);
    const both = used.filter((l) => l.both);
    for (const lane of both) add("lane", 76, { lane, name: lane.name });
    if (rates.length) add("rates", 64, { name: "GB/s" }, 8);
    for (const lane of used) if (!lane.both) add("lane", 20, { lane, name: lane.name });
    if (!folded) {
      height += 6;
      for (const lane of lanes) if (!lane.unit) add("lane", 14, { lane, name: lane.name.replace("decoder", "dec.") });
    }
    height += 2;
  };

  let view = { from: 0, to: latency };
  let width = 0;
  let ratio = 1;
  let pointer = null;
  const LEAST = Math.min(latency, Math.max(latency * 2e-6, 4e-9));

  const resize = () => {
    ratio = window.devicePixelRatio || 1;
    width = Math.max(260, figure.clientWidth);
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = `${height}px`;
  };
  const plot = () => width - GUTTER - 1;
  const x = (t) => GUTTER + ((t - view.from) / (view.to - view.from)) * plot();
  const time = (px) => view.from + ((px - GUTTER) / plot()) * (view.to - view.from);

  // -- colours ------------------------------------------------------------------------------------------------------

  let paint = {};
  const rgb = (text) => {
    const n = parseInt(text.trim().slice(1), 16);
    return [n >> 16, (n >> 8) & 255, n & 255];
  };
  const word = ([r, g, b]) => (255 << 24) | (b << 16) | (g << 8) | r;
  // blends two colours, given as 32-bit pixels; it is the innermost step, so it allocates nothing
  const blend = (a, b, f) => {
    const keep = 1 - f;
    const red = (a & 255) * keep + (b & 255) * f;
    const green = ((a >> 8) & 255) * keep + ((b >> 8) & 255) * f;
    const blue = ((a >> 16) & 255) * keep + ((b >> 16) & 255) * f;
    return (255 << 24) | (blue << 16) | (green << 8) | red;
  };
  const colours = () => {
    const style = getComputedStyle(document.documentElement);
    const get = (name) => style.getPropertyValue(name).trim();
    const names = ["ink", "muted", "line", "lane", "under", "band", "band2", "paper"];
    paint = Object.fromEntries(names.map((n) => [n, get(`--${n}`)]));
    paint.cause = data.slots.map((slot) => get(`--${slot}`));
    paint.words = paint.cause.map((c) => word(rgb(c)));
  };

  // -- drawing ------------------------------------------------------------------------------------------------------

  const scratch = document.createElement("canvas");
  let drawn = 0;
  const rect = (px, y, w, h, fill) => {
    drawn++;
    ctx.fillStyle = fill;
    ctx.fillRect(px, y, w, h);
  };
  const fit = (text, room) => {
    if (room < 14) return "";
    if (ctx.measureText(text).width <= room) return text;
    let [low, high] = [0, text.length];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (ctx.measureText(`${text.slice(0, middle)}…`).width <= room) low = middle;
      else high = middle - 1;
    }
    return low > 1 ? `${text.slice(0, low)}…` : "";
  };

  // the bins' running sum at every edge between pixel columns
  let columns = { at: new Int32Array(0), part: new Float64Array(0) };
  const sample = () => {
    const n = Math.floor(plot());
    columns = { n, at: new Int32Array(n + 1), part: new Float64Array(n + 1) };
    for (let i = 0; i <= n; i++) {
      const f = Math.min(Math.max(time(GUTTER + i) / bin, 0), bins - 1e-9);
      columns.at[i] = f;
      columns.part[i] = f - columns.at[i];
    }
  };
  const level = (sum, i) => {
    const k = columns.at[i];
    return sum[k] + (sum[k + 1] - sum[k]) * columns.part[i];
  };

  // the share of each column; smooth: averaged over a few columns, because steps shorter than a column would show as moiré
  const KERNEL = [1, 2, 3, 2, 1];
  const smoothed = (values) => {
    const out = new Float32Array(values.length);
    for (let i = 0; i < values.length; i++) {
      let [total, weight] = [0, 0];
      for (let k = -2; k <= 2; k++)
        if (i + k >= 0 && i + k < values.length) {
          total += values[i + k] * KERNEL[k + 2];
          weight += KERNEL[k + 2];
        }
      out[i] = total / weight;
    }
    return out;
  };
  const binned = (rows, smooth) => {
    const { n } = columns;
    const dt = (view.to - view.from) / plot();
    return rows.map(({ cause, sum }) => {
      const values = new Float32Array(n);
      let before = level(sum, 0);
      for (let i = 0; i < n; i++) {
        const after = level(sum, i + 1);
        values[i] = (after - before) / dt;
        before = after;
      }
      return { cause, values: smooth ? smoothed(values) : values };
    });
  };
  // the same without bins, for views in which a bin is wider than a column: sums over pieces (start, end, shares by cause)
  const exact = (pieces) => {
    const { n } = columns;
    const found = new Map();
    for (const [start, end, parts] of pieces) {
      const a = Math.max(x(start) - GUTTER, 0);
      const b = Math.min(x(end) - GUTTER, n);
      for (const [cause, share] of parts) {
        if (!found.has(cause)) found.set(cause, new Float32Array(n));
        const values = found.get(cause);
        for (let i = Math.floor(a); i < b; i++) values[i] += share * (Math.min(b, i + 1) - Math.max(a, i));
      }
    }
    return [...found.keys()].sort((p, q) => p - q).map((cause) => ({ cause, values: found.get(cause) }));
  };
  const fine = () => ((view.to - view.from) / plot()) * 1.5 < bin;
  const uops = (strip, wanted) => {
    const { lane } = strip;
    const out = [];
    for (let i = strip.shown[0]; i < strip.shown[1]; i++) {
      const took = lane.end[i] - lane.start[i];
      if (took > 0 && wanted(i)) out.push([lane.start[i], lane.end[i], lane.mixes[lane.mix[i]].map(([c, t]) => [c, (t * tick) / took])]);
    }
    return out;
  };
  // whether the uOPs in view are short; long ones are drawn from bins, which show more than their averages
  const brief = ({ lane, single, shown: [first, last] }) =>
    single && last > first && lane.end[last - 1] - lane.start[first] < 4 * bin * (last - first);
  const inLane = (strip, way) => {
    const { lane } = strip;
    if (fine() && brief(strip)) return exact(uops(strip, (i) => !lane.both || stores(lane, i) === !!way));
    return binned(lane.both ? lane.rows.filter((r) => r.way === way) : lane.rows, short(lane.steps));
  };
  // the critical path's pieces in view
  const onPath = () => {
    const first = after(spans.end, view.from);
    const last = Math.min(after(spans.end, view.to), spans.end.length - 1);
    return Array.from({ length: last - first + 1 }, (_, k) => {
      const i = first + k;
      return [i ? spans.end[i - 1] : 0, spans.end[i], [[spans.cause[i], 1]], spans.lane[i]];
    });
  };
  const after = (values, t) => {
    let [low, high] = [0, values.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (values[middle] <= t) low = middle + 1;
      else high = middle;
    }
    return low;
  };

  // stack rows of shares into `pixels`, upwards from y + h or downwards from y
  const stack = (pixels, rows, y, h, down) => {
    const { n } = columns;
    const values = rows.map((r) => r.values);
    const fills = rows.map(({ cause }) => paint.words[cause]);
    for (let i = 0; i < n; i++) {
      let total = 0;
      for (const v of values) total += v[i];
      if (total < 1e-4) continue;
      const by = h / Math.max(total, 1);
      let done = 0;
      for (let r = 0; r < rows.length; r++) {
        const until = done + values[r][i] * by;
        for (let k = Math.floor(done); k < until && k < h; k++) {
          const inside = Math.min(until, k + 1) - Math.max(done, k);
          const row = down ? y + k : y + h - 1 - k;
          const at = row * n + i;
          pixels[at] = inside > 0.999 ? fills[r] : blend(pixels[at], fills[r], inside);
        }
        done = until;
      }
    }
  };
  const under = (pixels, lane, y, rows, pieces) => {
    const { n } = columns;
    const ink = word(rgb(paint.ink));
    const on = pieces ? exact(pieces.filter((p) => p[3] === lane.index).map((p) => [p[0], p[1], [[0, 1]]])) : binned([{ sum: lane.path }]);
    for (let i = 0; i < n && on.length; i++) {
      const share = Math.min(on[0].values[i], 1);
      if (share > 0.02)
        for (let k = 0; k < rows; k++)
          pixels[(y + k) * n + i] = blend(pixels[(y + k) * n + i], ink, 0.25 + 0.75 * share);
    }
  };

  // whether this many steps are shorter than three columns on average, and no bin is wider than a column
  const short = (steps) => steps * (view.to - view.from) > (latency * columns.n) / 3 && bin * plot() < view.to - view.from;

  const visible = (lane) => [after(lane.end, view.from), after(lane.start, view.to)];
  const stores = (lane, i) => lane.both && data.texts[lane.text[i]].startsWith("store");
  const box = (strip, i) => {
    const { lane } = strip;
    if (!lane.both) return [strip.y, strip.h];
    const half = (strip.h - 2) / 2;
    return stores(lane, i) ? [strip.y + half + 2, half] : [strip.y, half];
  };

  const draw = () => {
    const began = performance.now();
    drawn = 0;
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    ctx.clearRect(0, 0, width, height);
    sample();
    const { n } = columns;
    scratch.width = n;
    scratch.height = height;
    const image = scratch.getContext("2d", { willReadFrequently: true }).createImageData(n, height);
    const pixels = new Uint32Array(image.data.buffer);
    const base = word(rgb(paint.lane));
    const begun = word(rgb(paint.under));
    const pieces = fine() ? onPath() : null;
    for (const strip of strips) {
      if (strip.kind !== "lane" && strip.kind !== "path") continue;
      pixels.fill(base, strip.y * n, (strip.y + strip.h) * n);
      if (strip.kind === "path") {
        stack(pixels, pieces ? exact(pieces) : binned(path, short(spans.end.length)), strip.y, strip.h, false);
        continue;
      }
      const { lane } = strip;
      const [first, last] = visible(lane);
      strip.shown = [first, last];
      strip.single = last - first <= n / 3;
      if (strip.single)
        for (let i = first; i < last; i++) {
          const [y, h] = box(strip, i);
          const a = Math.max(0, Math.round(x(lane.start[i]) - GUTTER));
          const b = Math.min(n, Math.round(x(lane.end[i]) - GUTTER));
          for (let row = y; row < y + h; row++) if (b > a) pixels.fill(begun, row * n + a, row * n + b);
        }
      const mark = lane.path ? 2 : 0;
      if (lane.both) {
        const half = (strip.h - 2) / 2;
        stack(pixels, inLane(strip, 0), strip.y, half, false);
        stack(pixels, inLane(strip, 1), strip.y + half + 2, half, true);
        if (lane.path) under(pixels, lane, strip.y + half, 2, pieces);
      } else {
        stack(pixels, inLane(strip, 0), strip.y, strip.h - mark, false);
        if (lane.path) under(pixels, lane, strip.y + strip.h - mark, mark, pieces);
      }
    }
    scratch.getContext("2d").putImageData(image, 0, 0);
    ctx.imageSmoothingEnabled = false;
    ctx.drawImage(scratch, GUTTER, 0);
    for (const strip of strips) ({ axis: drawAxis, bands: drawBands, rates: drawRates, path: drawName, lane: drawLane })[strip.kind](strip);
    drawMarks();
    canvas.dataset.from = view.from;
    canvas.dataset.to = view.to;
    canvas.dataset.boxes = drawn;
    canvas.dataset.ms = (performance.now() - began).toFixed(1);
    const step = digits((view.to - view.from) / 500);
    status.textContent =
      view.to - view.from >= latency * 0.9999
        ? `all of ${clock(latency, 3)}`
        : `${clock(view.from, step)} to ${clock(view.to, step)} (${span(view.to - view.from)} of ${clock(latency, 3)})`;
  };

  const drawName = (strip) => {
    ctx.font = "11px system-ui, sans-serif";
    ctx.textBaseline = "middle";
    ctx.textAlign = "left";
    ctx.fillStyle = paint.ink;
    if (strip.name) ctx.fillText(fit(strip.name, GUTTER - 8 - (strip.lane && strip.lane.unit ? SHARE : 0)), 0, strip.y + Math.min(strip.h, 22) / 2);
  };

  const drawAxis = (strip) => {
    const target = (view.to - view.from) / Math.max(plot() / 110, 1);
    const power = 10 ** Math.floor(Math.log10(target));
    const step = power * ([1, 2, 5, 10].find((m) => m * power >= target) || 10);
    const places = digits(step);
    ctx.font = "11px system-ui, sans-serif";
    ctx.textBaseline = "middle";
    ctx.textAlign = "center";
    for (let k = Math.ceil(view.from / step); k * step <= view.to; k++) {
      const at = x(k * step);
      rect(at, strip.y + 16, 1, 4, paint.muted);
      const text = clock(k * step, places);
      const room = ctx.measureText(text).width / 2;
      ctx.fillStyle = paint.muted;
      if (at + room <= width && at - room >= GUTTER - 30) ctx.fillText(text, at, strip.y + 8);
    }
    rect(GUTTER, strip.y + 20, plot(), 1, paint.line);
    // where in the run the view is
    if (view.to - view.from < latency * 0.9999) {
      rect(0, strip.y + 6, GUTTER - 34, 4, paint.line);
      const whole = GUTTER - 34;
      rect((view.from / latency) * whole, strip.y + 4, Math.max(2, ((view.to - view.from) / latency) * whole), 8, paint.ink);
    }
  };

  const drawBands = (strip) => {
    drawName(strip);
    ctx.textAlign = "center";
    strip.bands.forEach(([name, start, end], i) => {
      if (end < view.from || start > view.to) return;
      const a = Math.max(x(start), GUTTER);
      const b = Math.min(x(end), width);
      rect(a, strip.y, Math.max(b - a - 1, 0.5), strip.h, i % 2 ? paint.band2 : paint.band);
      ctx.fillStyle = paint.ink;
      const key = (name.match(/^\D*\d+_?/) || [""])[0];
      const rest = key && key.length < name.length ? `…${name.slice(key.length)}` : name;
      const text = [name, rest, (name.match(/\d+$/) || [""])[0]].find((t) => ctx.measureText(t).width <= b - a - 6);
      if (text) ctx.fillText(text, (a + b) / 2, strip.y + strip.h / 2 + 0.5);
    });
  };

  const drawLane = (strip) => {
    drawName(strip);
    const { lane } = strip;
    ctx.fillStyle = paint.muted;
    ctx.textAlign = "right";
    if (lane.unit) ctx.fillText(`${Math.round(100 * lane.busy)} %`, GUTTER - 6, strip.y + Math.min(strip.h, 22) / 2);
    if (lane.both) {
      ctx.fillText("loads ↑", GUTTER - 6, strip.y + strip.h / 2 - 10);
      ctx.fillText("stores ↓", GUTTER - 6, strip.y + strip.h / 2 + 12);
    }
    if (!strip.single) return;
    const [first, last] = strip.shown;
    const h = box(strip, first)[1];
    ctx.beginPath();
    for (let i = first; i < last; i++) {
      const a = x(lane.start[i]);
      const b = x(lane.end[i]);
      const [y] = box(strip, i);
      drawn++;
      if (b - a < 4) continue;
      if (a >= GUTTER) ctx.rect(Math.round(a), y, 0, h);
      if (b <= width) ctx.rect(Math.round(b), y, 0, h);
    }
    ctx.strokeStyle = paint.paper;
    ctx.lineWidth = 1;
    ctx.stroke();
    if (strip.h < 18) return;
    ctx.textAlign = "left";
    for (let i = first; i < last; i++) {
      const a = Math.max(x(lane.start[i]), GUTTER);
      const b = Math.min(x(lane.end[i]), width);
      const room = b - a - 10;
      if (room < 28) continue;
      const text = room > 110 ? fit(does(lane, i), room) : [does(lane, i), called(lane, i)].find((t) => ctx.measureText(t).width <= room);
      if (!text) continue;
      const [y] = box(strip, i);
      const at = lane.both ? (stores(lane, i) ? y + h - 9 : y + 9) : y + (strip.h - 2) / 2;
      // text on a pale ground, because no text colour is legible on every cause's colour
      ctx.globalAlpha = 0.64;
      rect(a + 2.5, at - 7, ctx.measureText(text).width + 6, 13, paint.paper);
      ctx.globalAlpha = 1;
      ctx.fillStyle = paint.ink;
      ctx.fillText(text, a + 5.5, at + 0.5);
    }
  };

  // achieved bandwidth, averaged over a few pixels
  const WIDE = 6;
  const drawRates = (strip) => {
    drawName(strip);
    const top = Math.max(...rates.map((r) => r.gbs)) * 1.1;
    const power = 10 ** Math.floor(Math.log10(top));
    const grid = power * (top / power >= 5 ? 5 : top / power >= 2 ? 1 : 0.5);
    const y = (gbs) => strip.y + strip.h - (Math.min(gbs, top) / top) * strip.h;
    rect(GUTTER, strip.y, plot(), strip.h, paint.lane);
    ctx.textAlign = "right";
    for (let g = 0; g <= top; g += grid) {
      rect(GUTTER, Math.round(y(g)), plot(), 1, paint.line);
      ctx.fillStyle = paint.muted;
      ctx.fillText(`${+g.toPrecision(3)}`, GUTTER - 6, Math.min(Math.max(y(g), strip.y + 5), strip.y + strip.h - 3));
    }
    const dt = ((view.to - view.from) / plot()) * WIDE;
    for (const rate of rates) {
      ctx.beginPath();
      for (let i = 0; i + WIDE <= columns.n; i += WIDE) {
        const at = y((level(rate.sum, i + WIDE) - level(rate.sum, i)) / dt / 1e9);
        ctx.lineTo(GUTTER + i, at);
        ctx.lineTo(GUTTER + i + WIDE, at);
      }
      ctx.strokeStyle = paint.cause[rate.cause];
      ctx.lineWidth = 1.3;
      ctx.stroke();
    }
  };

  // segment ends through all lanes, the pointer's line, and what it points at
  const drawMarks = () => {
    const first = strips.find((s) => s.kind === "path");
    const crowded = grouped.length && data.segments.length * (view.to - view.from) > (latency * plot()) / 12;
    const bands = [...before, ...(crowded ? grouped : data.segments)];
    ctx.globalAlpha = 0.55;
    for (const [, , end] of bands) {
      const at = Math.round(x(end));
      if (at > GUTTER && at < width) rect(at, first.y, 1, height - first.y, paint.muted);
    }
    ctx.globalAlpha = 1;
    if (!pointer || pointer.x < GUTTER) return;
    rect(pointer.x, 0, 1, height, paint.ink);
    const hit = pointer.hit;
    if (hit && hit.strip.kind === "lane" && hit.i >= 0 && hit.strip.single) {
      const [y, h] = box(hit.strip, hit.i);
      const a = Math.max(x(hit.strip.lane.start[hit.i]), GUTTER);
      ctx.strokeStyle = paint.ink;
      ctx.lineWidth = 1.5;
      ctx.strokeRect(a, y, Math.max(Math.min(x(hit.strip.lane.end[hit.i]), width - 1) - a, 1), h);
    }
  };

  // -- pointing -----------------------------------------------------------------------------------------------------

  const find = (px, py) => {
    const strip = strips.find((s) => py >= s.y && py < s.y + s.h + 2);
    if (!strip || px < GUTTER) return strip && px < GUTTER ? { strip, i: -1, name: true } : null;
    const t = time(px);
    if (strip.kind === "bands") return { strip, i: strip.bands.findIndex(([, a, b]) => a <= t && t < b) };
    if (strip.kind !== "lane") return { strip, i: -1 };
    const { lane } = strip;
    const slack = (view.to - view.from) / plot();
    const i = after(lane.start, t) - 1;
    return { strip, i: i >= 0 && t <= lane.end[i] + slack ? i : -1 };
  };

  // from the current view, which may not have been drawn yet
  const upTo = (sum, t) => {
    const f = Math.min(Math.max(t / bin, 0), bins - 1e-9);
    const k = Math.floor(f);
    return sum[k] + (sum[k + 1] - sum[k]) * (f - k);
  };
  const shareAt = (rows, px) => {
    const from = time(Math.floor(px));
    const dt = (view.to - view.from) / plot();
    return rows
      .map((r) => [data.causes[r.cause], (upTo(r.sum, from + dt) - upTo(r.sum, from)) / dt])
      .filter(([, s]) => s > 0.005)
      .sort((a, b) => b[1] - a[1]);
  };

  const tell = (hit, px) => {
    const { strip, i } = hit;
    const at = clock(time(px), digits((view.to - view.from) / 2000));
    if (hit.name) {
      if (strip.kind !== "lane") return null;
      const { lane } = strip;
      const total = lane.size.reduce((a, b) => a + b, 0);
      return [lane.name, `busy ${percent(lane.busy)} of the run`, `${total} ${lane.ops ? "ops" : lane.unit ? "uOPs" : "steps"}`];
    }
    if (strip.kind === "bands" && i >= 0) {
      const [name, start, end] = strip.bands[i];
      return [name, `${clock(start, 3)} to ${clock(end, 3)}: ${span(end - start)}, ${percent((end - start) / latency)} of the run`];
    }
    if (strip.kind === "path") {
      const i = Math.min(after(spans.end, time(px)), spans.end.length - 1);
      const from = i ? spans.end[i - 1] : 0;
      const on = lanes[spans.lane[i]];
      if (x(spans.end[i]) - x(from) < 2) return [`critical path at ${at}`, ...shareAt(path, px).map(([c, s]) => `${percent(s)} ${c}`)];
      return [`critical path at ${at}`, (on ? `${on.name}: ` : "") + data.causes[spans.cause[i]], `from ${clock(from, 4)}, takes ${span(spans.end[i] - from)}`];
    }
    if (strip.kind === "rates") {
      const from = time(GUTTER + Math.floor((px - GUTTER) / WIDE) * WIDE);
      const dt = ((view.to - view.from) / plot()) * WIDE;
      const rows = rates.map((r) => `${r.name}: ${((upTo(r.sum, from + dt) - upTo(r.sum, from)) / dt / 1e9).toFixed(1)} of ${r.gbs} GB/s`);
      return [`off-chip bandwidth at ${at}, over ${span(dt)}`, ...rows];
    }
    if (strip.kind !== "lane") return null;
    const { lane } = strip;
    if (i < 0) return [`${lane.name} at ${at}`, "between uOPs: waits for the next one, or has ended"];
    const took = lane.end[i] - lane.start[i];
    const mix = lane.mixes[lane.mix[i]];
    const busy = mix.reduce((total, [, ticks]) => total + ticks, 0) * tick;
    const rows = [
      `${lane.name} ${called(lane, i)}`,
      does(lane, i) + (lane.elements && lane.buffer[i] ? ` (${bytes(4 * lane.elements[i])})` : ""),
      data.places[lane.place[i]],
      `from ${clock(lane.start[i], Math.max(4, digits((view.to - view.from) / 2000)))}, takes ${span(took)}`,
    ];
    if (took > 0) {
      const beside = busy > took * 1.005 ? " (lanes side by side, added up)" : "";
      rows.push(`busy ${percent(busy / took)}${beside}` + (busy > 0 ? `, mostly ${data.causes[mix.reduce((a, b) => (b[1] > a[1] ? b : a))[0]]}` : ""));
    }
    return rows;
  };

  const point = (event) => {
    const frame = canvas.getBoundingClientRect();
    return [event.clientX - frame.left, event.clientY - frame.top];
  };
  const hover = (px, py) => {
    const hit = find(px, py);
    const rows = hit && tell(hit, px);
    pointer = { x: px, hit };
    tip.hidden = !rows;
    if (rows) {
      tip.replaceChildren(...rows.map((row, i) => Object.assign(document.createElement(i ? "div" : "b"), { textContent: row })));
      const room = figure.clientWidth - tip.offsetWidth - 4;
      const left = px + 14 > room ? px - tip.offsetWidth - 14 : px + 14;
      tip.style.left = `${Math.max(0, Math.min(left, room))}px`;
      tip.style.top = `${canvas.offsetTop + py + 16}px`;
    }
    later();
  };
  const leave = () => {
    pointer = null;
    tip.hidden = true;
    later();
  };

  // -- moving -------------------------------------------------------------------------------------------------------

  let asked = false;
  const later = () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      draw();
    });
  };
  const show = (from, to) => {
    leave();
    const wide = Math.min(Math.max(to - from, LEAST), latency);
    const middle = (from + to) / 2;
    const start = Math.min(Math.max(middle - wide / 2, 0), latency - wide);
    view = { from: start, to: start + wide };
    later();
  };
  const zoom = (by, t) => {
    leave();
    const wide = Math.min(Math.max((view.to - view.from) * by, LEAST), latency);
    const part = (t - view.from) / (view.to - view.from);
    const start = Math.min(Math.max(t - part * wide, 0), latency - wide);
    view = { from: start, to: start + wide };
    later();
  };
  const pan = (dt) => show(view.from + dt, view.to + dt);
  const reset = () => show(0, latency);

  let scrolled = -1e9;
  window.addEventListener("scroll", () => (scrolled = performance.now()), { passive: true });
  canvas.addEventListener(
    "wheel",
    (event) => {
      const full = view.to - view.from >= latency * 0.9999;
      const sideways = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
      // leave the event to the page if it is being scrolled, or if the whole run is already in view
      if (!event.ctrlKey && performance.now() - scrolled < 200) return;
      if (full && (sideways || event.deltaY > 0)) return;
      event.preventDefault();
      const pixels = event.deltaMode === 1 ? 16 : 1;
      if (sideways) pan((((event.deltaX || event.deltaY) * pixels) / plot()) * (view.to - view.from));
      else zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY * pixels * (event.ctrlKey ? 0.01 : 0.003)))), time(Math.max(point(event)[0], GUTTER)));
      hover(...point(event));
    },
    { passive: false },
  );

  const held = new Map();
  const pinch = () => {
    const [a, b] = [...held.values()];
    return { t: time((a[0] + b[0]) / 2), wide: Math.max(Math.abs(a[0] - b[0]), 10) };
  };
  let grip = null;
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    held.set(event.pointerId, point(event));
    grip = held.size === 2 ? pinch() : null;
    canvas.classList.add("held");
  });
  canvas.addEventListener("pointermove", (event) => {
    const [px, py] = point(event);
    const before = held.get(event.pointerId);
    if (!before) return hover(px, py);
    held.set(event.pointerId, [px, py]);
    if (held.size === 1) {
      pan(((before[0] - px) / plot()) * (view.to - view.from));
      hover(px, py);
    } else if (grip) {
      const now = pinch();
      zoom(grip.wide / now.wide, grip.t);
      grip = { t: grip.t, wide: now.wide };
    }
  });
  const release = (event) => {
    held.delete(event.pointerId);
    grip = null;
    if (!held.size) canvas.classList.remove("held");
  };
  canvas.addEventListener("pointerup", release);
  canvas.addEventListener("pointercancel", release);
  canvas.addEventListener("pointerleave", leave);
  canvas.addEventListener("dblclick", (event) => {
    const hit = find(...point(event));
    if (!hit || hit.i < 0) return reset();
    const [from, to] =
      hit.strip.kind === "bands"
        ? hit.strip.bands[hit.i].slice(1)
        : [hit.strip.lane.start[hit.i], hit.strip.lane.end[hit.i]];
    show(from - (to - from) * 0.05, to + (to - from) * 0.05);
  });
  canvas.addEventListener("keydown", (event) => {
    const wide = view.to - view.from;
    const middle = (view.from + view.to) / 2;
    const keys = {
      ArrowLeft: () => pan(-wide / 8),
      ArrowRight: () => pan(wide / 8),
      "+": () => zoom(1 / 1.5, middle),
      "=": () => zoom(1 / 1.5, middle),
      "-": () => zoom(1.5, middle),
      Home: () => show(0, wide),
      End: () => show(latency - wide, latency),
      0: reset,
      Escape: reset,
    };
    if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });

  // -- the bar above ------------------------------------------------------------------------------------------------

  const on = (id, act) => document.getElementById(id).addEventListener("click", act);
  on("in", () => zoom(1 / 2, (view.from + view.to) / 2));
  on("out", () => zoom(2, (view.from + view.to) / 2));
  on("reset", reset);
  const fold = document.getElementById("fold");
  fold.addEventListener("change", () => {
    folded = !fold.checked;
    arrange();
    resize();
    later();
  });
  const choose = document.getElementById("segment");
  data.segments.forEach(([name], i) => choose.append(new Option(name, i)));
  choose.hidden = !data.segments.length;
  choose.addEventListener("change", () => {
    const [, from, to] = data.segments[choose.value] || [];
    if (from === undefined) reset();
    else show(from - (to - from) * 0.02, to + (to - from) * 0.02);
  });
  document.getElementById("tools").hidden = false;

  const repaint = () => {
    colours();
    later();
  };
  for (const query of ["(prefers-color-scheme: dark)", "print"])
    window.matchMedia(query).addEventListener("change", () => {
      colours();
      draw();
    });
  window.addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((d) => (d.open = true)));
  new ResizeObserver(() => {
    if (Math.max(260, figure.clientWidth) === width && (window.devicePixelRatio || 1) === ratio) return;
    resize();
    draw();
  }).observe(figure);
  arrange();
  resize();
  repaint();
  canvas.dataset.ready = "yes";
})().catch((error) => {
  const note = document.getElementById("failed");
  note.hidden = false;
  note.textContent = `The timeline cannot be drawn: ${error.message}`;
  throw error;
});
