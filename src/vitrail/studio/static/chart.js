// Lines and dots over a pair of axes, as SVG. Colours come from the style sheet or from LINES; the numbers are also in words.

import { el, figure3, percent, svg } from "./dom.js";
import { LINES } from "./colour.js";

const LEFT = 64, RIGHT = 12, TOP = 10, BOTTOM = 36, LETTER = 9; // the last: how wide a digit is at most, on a phone

// lines: [{name, points: [[x, y]...], dashed?: true or a pattern}], dots: [{x, y, words}], mark: an x to point out, low/high: bounds of y,
// share: y is a share from 0 to 1, whole: x counts, log: y by its logarithm (all of it above 0). onpick(x) makes it clickable.
export function chart({ title, x, y, lines = [], dots = [], mark = null, low, high, share = false, whole = false, log = false, width = 440, height = 240, onpick = null }) {
  const points = [...lines.flatMap((line) => line.points), ...dots.map((dot) => [dot.x, dot.y])].filter(([a, b]) => Number.isFinite(a) && Number.isFinite(b));
  const [x0, x1] = span(points.map(([a]) => a));
  const [y0, y1] = span(points.map(([, b]) => b), low, high);
  const across = (value) => LEFT + ((value - x0) / (x1 - x0)) * (width - LEFT - RIGHT);
  const size = log ? Math.log : Number;
  const up = (value) => height - BOTTOM - ((size(value) - size(y0)) / (size(y1) - size(y0))) * (height - TOP - BOTTOM);
  const words = (value) => (share ? percent(value, y1 - y0 < 0.05 ? 1 : 0) : figure3(value));
  const drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: width === 440 ? "chart plain" : "chart", role: "img", "aria-label": spoken(title, lines, dots, words) });
  const rungs = log ? powers(y0, y1) : ticks(y0, y1, 5), marks = ticks(x0, x1, 6, whole), [tall, wide] = [share ? words : alike(rungs, log), alike(marks)];
  for (const tick of rungs) {
    drawing.append(svg("line", { class: "rule", x1: LEFT, x2: width - RIGHT, y1: up(tick), y2: up(tick) }),
      svg("text", { class: "tick", x: LEFT - 6, y: up(tick) + 4, "text-anchor": "end" }, tall(tick)));
  }
  for (const tick of marks) {
    const cut = across(tick) + LETTER * wide(tick).length / 2 > width; // the last one would stick out
    drawing.append(svg("text", { class: "tick", x: cut ? width - 1 : across(tick), y: height - BOTTOM + 15, "text-anchor": cut ? "end" : "middle" }, wide(tick)));
  }
  drawing.append(svg("text", { class: "axis", x: (LEFT + width - RIGHT) / 2, y: height - 4, "text-anchor": "middle" }, x),
    svg("text", { class: "axis", transform: `translate(11 ${(TOP + height - BOTTOM) / 2}) rotate(-90)`, "text-anchor": "middle" }, y));
  if (mark !== null) drawing.append(svg("line", { class: "mark", x1: across(mark), x2: across(mark), y1: TOP, y2: height - BOTTOM }));
  lines.forEach((line, place) => {
    const sound = line.points.filter(([a, b]) => Number.isFinite(a) && Number.isFinite(b));
    const path = sound.map(([a, b], number) => `${number ? "L" : "M"}${across(a).toFixed(1)} ${up(b).toFixed(1)}`).join("");
    drawing.append(svg("path", { d: path, fill: "none", stroke: line.colour ?? LINES[place % LINES.length], "stroke-width": 2, "stroke-dasharray": dashes(line, "5 4") }));
    if (sound.length === 1) drawing.append(svg("circle", { cx: across(sound[0][0]), cy: up(sound[0][1]), r: 3, fill: line.colour ?? LINES[place % LINES.length] }));
  });
  for (const dot of dots) {
    drawing.append(svg("circle", { cx: across(dot.x), cy: up(dot.y), r: dot.large ? 6 : 3.5, fill: dot.colour ?? LINES[0], class: dot.large ? "dot large" : "dot" }, svg("title", {}, dot.words)));
  }
  if (onpick) {
    drawing.classList.add("pick");
    drawing.addEventListener("click", (event) => {
      const box = drawing.getBoundingClientRect();
      onpick(x0 + (((event.clientX - box.left) / box.width) * width - LEFT) / (width - LEFT - RIGHT) * (x1 - x0));
    });
  }
  return drawing;
}

// Which line is which; beside or below the chart.
export function legend(lines) {
  return el("ul", { class: "legend" }, lines.map((line, place) => el("li", {},
    svg("svg", { viewBox: "0 0 18 8", width: 18, height: 8, "aria-hidden": "true" },
      svg("line", { x1: 0, x2: 18, y1: 4, y2: 4, stroke: line.colour ?? LINES[place % LINES.length], "stroke-width": 3, "stroke-dasharray": dashes(line, "5 3") })),
    line.name)));
}

// Rows of {label, value, before?, chosen?}: shares as bars; `before` is drawn as an outline. onpick(row) makes them buttons.
export function bars(rows, { onpick = null, digits = 1 } = {}) {
  return el("ol", { class: "bars" }, rows.map((row) => {
    const parts = [el("span", { class: "name", title: row.label }, row.label),
      el("span", { class: "track", "aria-hidden": "true" },
        el("span", { class: "fill", style: { width: `${100 * Math.max(0, Math.min(1, row.value))}%` } }),
        row.before === undefined ? null : el("span", { class: "before", style: { left: `${100 * Math.max(0, Math.min(1, row.before))}%` } })),
      el("span", { class: "value" }, percent(row.value, digits))];
    return el("li", { class: row.chosen ? "chosen" : null },
      onpick ? el("button", { type: "button", "aria-pressed": String(Boolean(row.chosen)), onclick: () => onpick(row) }, parts) : parts);
  }));
}

// `dashed` is true, or a pattern of its own where there are many lines: colour alone does not tell them apart.
function dashes({ dashed }, usual) {
  return dashed === true ? usual : dashed || null;
}

// A bound above all shares that leaves little room empty.
export function ceiling(shares) {
  const most = Math.max(...shares);
  return [0.02, 0.05, 0.1, 0.2, 0.5].find((bound) => bound >= most) ?? 1;
}

function spoken(title, lines, dots, words) {
  const ends = lines.filter((line) => line.points.length).map((line) => `${line.name} from ${words(line.points[0][1])} to ${words(line.points.at(-1)[1])}`);
  return `${title}. ${ends.slice(0, 8).join("; ")}${dots.length ? `${ends.length ? "; " : ""}${dots.length} dots` : ""}`;
}

function span(values, low, high) {
  let [least, most] = [Infinity, -Infinity];
  for (const value of values) [least, most] = [Math.min(least, value), Math.max(most, value)];
  least = low ?? (Number.isFinite(least) ? least : 0);
  most = high ?? (Number.isFinite(most) ? most : 1);
  return most > least ? [least, most] : [least, least + (Math.abs(least) || 1)];
}

// 1, 2 and 5 of every power of ten; of many powers the ones alone.
function powers(low, high) {
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1) {
    for (const times of Math.log10(high / low) > 3 ? [1] : [1, 2, 5]) found.push(Number((times * 10 ** power).toPrecision(6)));
  }
  return found.filter((value) => value >= low * 0.999 && value <= high * 1.001);
}

// Words for all ticks of an axis in one format: as many places as the finest needs, or powers of ten for all.
function alike(values, log = false) {
  const finest = Math.min(...values.filter(Boolean).map(Math.abs)), most = Math.max(...values.map(Math.abs));
  const places = (value) => (String(value).includes("e") ? 9 : String(value).split(".")[1]?.length ?? 0), needed = Math.max(0, ...values.map(places));
  if (finest < 1e-4 || most >= 1e7) {
    const digits = Math.max(...values.map((value) => value.toExponential().split("e")[0].replace(/\D/g, "").length)) - 1;
    return (value) => (value ? value.toExponential(digits) : "0");
  }
  return (value) => (value ? value.toLocaleString("en", { minimumFractionDigits: log ? 0 : needed, maximumFractionDigits: needed }) : "0");
}

function ticks(low, high, about, whole = false) {
  const rough = (high - low) / about, power = 10 ** Math.floor(Math.log10(rough));
  let step = [1, 2, 5, 10].map((times) => times * power).find((size) => size >= rough) ?? rough;
  if (whole) step = Math.max(1, Math.round(step));
  const found = [];
  for (let value = Math.ceil(low / step - 1e-9) * step; value <= high + step * 1e-6; value += step) found.push(Number(value.toPrecision(12)));
  return found;
}
