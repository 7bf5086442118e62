// Line and dot charts as SVG. Colours come from the style sheet or from LINE_COLOURS; a text summary is in the aria-label.

import { el, formatNumber, percent, plural, svg } from "./dom.js";
import { LINE_COLOURS } from "./colormap.js";

const LEFT = 64, RIGHT = 12, TOP = 10, BOTTOM = 36, LETTER = 9; // the last: maximum width of a digit, on a phone

// lines: [{name, points: [[x, y]...], dashed?: true or a pattern}], dots: [{x, y, text}], mark: an x to highlight, low/high: limits of y,
// fraction: y is a fraction from 0 to 1, integer: x is an integer, log: logarithmic y (all values above 0). onpick(x) makes it clickable.
export function chart({ title, x, y, lines = [], dots = [], mark = null, low, high, fraction = false, integer = false, log = false, width = 440, height = 240, onpick = null }) {
  const points = [...lines.flatMap((line) => line.points), ...dots.map((dot) => [dot.x, dot.y])].filter(([a, b]) => Number.isFinite(a) && Number.isFinite(b));
  const [x0, x1] = span(points.map(([a]) => a));
  const [y0, y1] = span(points.map(([, b]) => b), low, high);
  const across = (value) => LEFT + ((value - x0) / (x1 - x0)) * (width - LEFT - RIGHT);
  const size = log ? Math.log : Number;
  const up = (value) => height - BOTTOM - ((size(value) - size(y0)) / (size(y1) - size(y0))) * (height - TOP - BOTTOM);
  const text = (value) => (fraction ? percent(value, y1 - y0 < 0.05 ? 1 : 0) : formatNumber(value));
  const drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: width === 440 ? "chart plain" : "chart", role: "img", "aria-label": ariaLabel(title, lines, dots, text) });
  const yTicks = log ? logTicks(y0, y1) : ticks(y0, y1, 5), xTicks = ticks(x0, x1, 6, integer), [yText, xText] = [fraction ? text : tickFormat(yTicks, log), tickFormat(xTicks)];
  for (const tick of yTicks) {
    drawing.append(svg("line", { class: "rule", x1: LEFT, x2: width - RIGHT, y1: up(tick), y2: up(tick) }),
      svg("text", { class: "tick", x: LEFT - 6, y: up(tick) + 4, "text-anchor": "end" }, yText(tick)));
  }
  for (const tick of xTicks) {
    const overflows = across(tick) + LETTER * xText(tick).length / 2 > width; // the last label would overflow
    drawing.append(svg("text", { class: "tick", x: overflows ? width - 1 : across(tick), y: height - BOTTOM + 15, "text-anchor": overflows ? "end" : "middle" }, xText(tick)));
  }
  drawing.append(svg("text", { class: "axis", x: (LEFT + width - RIGHT) / 2, y: height - 4, "text-anchor": "middle" }, x),
    svg("text", { class: "axis", transform: `translate(11 ${(TOP + height - BOTTOM) / 2}) rotate(-90)`, "text-anchor": "middle" }, y));
  if (mark !== null) drawing.append(svg("line", { class: "mark", x1: across(mark), x2: across(mark), y1: TOP, y2: height - BOTTOM }));
  lines.forEach((line, index) => {
    const finite = line.points.filter(([a, b]) => Number.isFinite(a) && Number.isFinite(b));
    const path = finite.map(([a, b], number) => `${number ? "L" : "M"}${across(a).toFixed(1)} ${up(b).toFixed(1)}`).join("");
    drawing.append(svg("path", { d: path, fill: "none", stroke: line.colour ?? LINE_COLOURS[index % LINE_COLOURS.length], "stroke-width": 2, "stroke-dasharray": dashes(line, "5 4") }));
    if (finite.length === 1) drawing.append(svg("circle", { cx: across(finite[0][0]), cy: up(finite[0][1]), r: 3, fill: line.colour ?? LINE_COLOURS[index % LINE_COLOURS.length] }));
  });
  for (const dot of dots) {
    drawing.append(svg("circle", { cx: across(dot.x), cy: up(dot.y), r: dot.large ? 6 : 3.5, fill: dot.colour ?? LINE_COLOURS[0], class: dot.large ? "dot large" : "dot" }, svg("title", {}, dot.text)));
  }
  if (onpick) {
    drawing.classList.add("clickable");
    drawing.addEventListener("click", (event) => {
      const box = drawing.getBoundingClientRect();
      onpick(x0 + (((event.clientX - box.left) / box.width) * width - LEFT) / (width - LEFT - RIGHT) * (x1 - x0));
    });
  }
  return drawing;
}

// The legend of a chart.
export function legend(lines) {
  return el("ul", { class: "legend" }, lines.map((line, index) => el("li", {},
    svg("svg", { viewBox: "0 0 18 8", width: 18, height: 8, "aria-hidden": "true" },
      svg("line", { x1: 0, x2: 18, y1: 4, y2: 4, stroke: line.colour ?? LINE_COLOURS[index % LINE_COLOURS.length], "stroke-width": 3, "stroke-dasharray": dashes(line, "5 3") })),
    line.name)));
}

// Horizontal bars for rows of {label, value, before?, selected?}, values from 0 to 1; `before` is drawn as a tick. onpick(row) makes them buttons.
export function bars(rows, { onpick = null, digits = 1 } = {}) {
  return el("ol", { class: "bars" }, rows.map((row) => {
    const reached = row.threshold !== undefined && row.value >= row.threshold;
    const hint = row.threshold === undefined ? "" : `, ${reached ? "reaches" : "below"} its threshold of ${percent(row.threshold)}`;
    const parts = [el("span", { class: "name", title: `${row.label}${hint}` }, row.label, hint && el("span", { class: "visually-hidden" }, hint)),
      el("span", { class: "track", "aria-hidden": "true" },
        el("span", { class: "fill", style: { width: `${100 * Math.max(0, Math.min(1, row.value))}%` } }),
        row.threshold === undefined ? null : el("span", { class: "threshold", style: { left: `${100 * row.threshold}%` } }),
        row.before === undefined ? null : el("span", { class: "before", style: { left: `${100 * Math.max(0, Math.min(1, row.before))}%` } })),
      el("span", { class: "value" }, percent(row.value, digits))];
    return el("li", { class: [row.selected && "selected", reached && "reached"].filter(Boolean).join(" ") || null },
      onpick ? el("button", { type: "button", "aria-pressed": String(Boolean(row.selected)), onclick: () => onpick(row) }, parts) : parts);
  }));
}

// How many labels of a model that predicts several per image reach their threshold, the line across a bar.
export function labelsText(meta, arrays) {
  const count = meta.thresholds.filter((threshold, label) => arrays.probabilities.data[label] >= threshold).length;
  const many = count > 1 ? "reach their thresholds (the grey lines) and are predicted" : `reaches its threshold (the grey line)${count ? " and is predicted" : ""}`;
  return `${count || "None"} of ${plural(meta.thresholds.length, "label")} ${many}.`;
}

// `dashed` is true, or a dash pattern if there are many lines: colour alone does not distinguish them.
function dashes({ dashed }, fallback) {
  return dashed === true ? fallback : dashed || null;
}

// A round upper limit for fractions, close to the largest one.
export function axisLimit(fractions) {
  const maximum = Math.max(...fractions);
  return [0.02, 0.05, 0.1, 0.2, 0.5].find((bound) => bound >= maximum) ?? 1;
}

function ariaLabel(title, lines, dots, text) {
  const ends = lines.filter((line) => line.points.length).map((line) => `${line.name} from ${text(line.points[0][1])} to ${text(line.points.at(-1)[1])}`);
  return `${title}. ${ends.slice(0, 8).join("; ")}${dots.length ? `${ends.length ? "; " : ""}${dots.length} dots` : ""}`;
}

function span(values, low, high) {
  let [minimum, maximum] = [Infinity, -Infinity];
  for (const value of values) [minimum, maximum] = [Math.min(minimum, value), Math.max(maximum, value)];
  minimum = low ?? (Number.isFinite(minimum) ? minimum : 0);
  maximum = high ?? (Number.isFinite(maximum) ? maximum : 1);
  return maximum > minimum ? [minimum, maximum] : [minimum, minimum + (Math.abs(minimum) || 1)];
}

// Logarithmic ticks: 1, 2 and 5 of every power of ten; over many powers only 1.
function logTicks(low, high) {
  const values = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1) {
    for (const times of Math.log10(high / low) > 3 ? [1] : [1, 2, 5]) values.push(Number((times * 10 ** power).toPrecision(6)));
  }
  return values.filter((value) => value >= low * 0.999 && value <= high * 1.001);
}

// One number format for all ticks of an axis: as many decimals as the finest needs, or scientific notation for all.
function tickFormat(values, log = false) {
  const finest = Math.min(...values.filter(Boolean).map(Math.abs)), maximum = Math.max(...values.map(Math.abs));
  const decimals = (value) => (String(value).includes("e") ? 9 : String(value).split(".")[1]?.length ?? 0), needed = Math.max(0, ...values.map(decimals));
  if (finest < 1e-4 || maximum >= 1e7) {
    const digits = Math.max(...values.map((value) => value.toExponential().split("e")[0].replace(/\D/g, "").length)) - 1;
    return (value) => (value ? value.toExponential(digits) : "0");
  }
  return (value) => (value ? value.toLocaleString("en", { minimumFractionDigits: log ? 0 : needed, maximumFractionDigits: needed }) : "0");
}

function ticks(low, high, count, integer = false) {
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  let step = [1, 2, 5, 10].map((times) => times * power).find((size) => size >= rough) ?? rough;
  if (integer) step = Math.max(1, Math.round(step));
  const values = [];
  for (let value = Math.ceil(low / step - 1e-9) * step; value <= high + step * 1e-6; value += step) values.push(Number(value.toPrecision(12)));
  return values;
}
