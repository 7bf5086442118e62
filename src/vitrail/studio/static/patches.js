// The picture cut into patches, and a patch made into a vector (Dosovitskiy et al. 2021, equation 1).

import { range } from "./colour.js";
import { el, figure3, select, several, svg } from "./dom.js";
import { figure } from "./figure.js";
import { PatchGrid, picture as painted } from "./grid.js";
import { channelNames, normalised, small } from "./picture.js";
import * as state from "./state.js";

const FEW = 8; // rows and columns of a patch whose numbers are all written out

export default {
  name: "patches", title: "Patches", glyph: "▦",
  lead: "The picture is cut into patches that do not overlap. To the model each of them is a word, and the picture a sentence of them, read row by row.",
  thumb(canvas, studio) {
    const { pixels } = studio.trace.arrays, [rows, columns] = studio.trace.facts.grid;
    const { left, top, width, height, context } = small(canvas, pixels);
    const gap = Math.max(1, Math.min(3, width / columns / 4));
    for (let row = 1; row < rows; row += 1) context.clearRect(left, top + (row * height) / rows - gap / 2, width, gap);
    for (let column = 1; column < columns; column += 1) context.clearRect(left + (column * width) / columns - gap / 2, top, gap, height);
  },
  build(section, studio) {
    const columns = el("div", { class: "columns" });
    const views = [whole(columns, studio), one(columns, studio)];
    section.append(columns);
    views.push(product(section, studio), order(section, studio));
    return { draw(why) {
      section.classList.toggle("empty", !studio.trace);
      if (studio.trace) for (const view of views) view(why);
    } };
  },
};

// How a grid of patches points: at tokens, which all parts share.
export function pointing(studio) {
  const token = (patch) => patch + studio.trace.facts.prefix;
  return {
    onhover: (patch) => studio.hover(patch === null || !studio.trace ? null : token(patch)),
    onpick: (patch) => studio.trace && studio.pin(token(patch)),
    describe: (patch) => studio.token(token(patch)),
  };
}

// The patch that is pointed at, if it is one.
export function pointedPatch(studio) {
  const { prefix } = studio.trace.facts, token = studio.pointed;
  return token !== null && token >= prefix ? token - prefix : null;
}

// The model that the trace is of, which may be another one than the address has just named.
export function traced(studio) {
  return studio.facts.models.find((model) => model.id === studio.trace.facts.model) ?? studio.model;
}

// Things in a row, in order, wrapping like words: hover, click, or walk along them with the arrow keys.
// paint(context, item, x, y, wide, high) draws one; `begins(item)`: a bar stands before it.
export class Sequence {
  constructor({ label, paint, onhover, onpick, describe, begins = () => false }) {
    this.below = el("canvas", { "aria-hidden": "true" });
    this.over = el("canvas", { "aria-hidden": "true" });
    this.words = el("span", { class: "unseen", "aria-live": "polite" });
    const spoken = `${label}. Arrow keys move along it, Enter chooses.`;
    this.root = el("div", { class: "sequence", tabindex: "0", role: "application", "aria-label": spoken }, this.below, this.over, this.words);
    Object.assign(this, { paint, onhover, onpick, describe, begins, count: 0, at: null, here: null, width: 0, shape: 1, rows: Infinity });
    this.root.addEventListener("pointermove", (event) => this.#move(this.#item(event)));
    this.root.addEventListener("pointerleave", () => this.#move(null));
    this.root.addEventListener("blur", () => this.#move(null));
    this.root.addEventListener("click", (event) => this.#item(event) !== null && this.onpick(this.#item(event)));
    this.root.addEventListener("keydown", (event) => this.#key(event));
    new ResizeObserver(() => this.root.clientWidth !== this.width && this.show()).observe(this.root);
  }

  // shape: width of a tile over its height; rows: how many make a row of the picture.
  show(count = this.count, shape = this.shape, rows = this.rows) {
    Object.assign(this, { count, shape, rows, width: this.root.clientWidth });
    if (!this.width || !count) return;
    const fits = (side) => Math.ceil(count / Math.floor((this.width - 2) / (side + 4))) * (side + 6) <= 240;
    const side = [44, 36, 32, 28, 24, 20, 16, 12].find(fits) ?? 8;
    this.tile = [side * Math.min(1, shape), side / Math.max(1, shape)];
    this.pitch = [this.tile[0] + (side > 12 ? 4 : 2), this.tile[1] + (side > 12 ? 6 : 3)];
    this.columns = Math.max(1, Math.floor((this.width - 2) / this.pitch[0]));
    const breaks = count > this.columns, even = count % this.rows === 0 && this.columns >= 2 * this.rows; // nothing but whole rows, some of them a line
    if (breaks && even) this.columns -= this.columns % this.rows; // their bars stand below each other
    else if (breaks && this.columns > 2 && this.columns % this.rows === 0) this.columns -= 1; // a row a line would look like the picture again
    const ratio = devicePixelRatio || 1, height = Math.ceil(count / this.columns) * this.pitch[1] + 2;
    this.root.style.height = `${height}px`;
    for (const canvas of [this.below, this.over]) {
      Object.assign(canvas, { width: Math.round(this.width * ratio), height: Math.round(height * ratio) });
      canvas.getContext("2d").scale(ratio, ratio);
    }
    const context = this.below.getContext("2d");
    context.imageSmoothingQuality = "high";
    for (let item = 0; item < count; item += 1) {
      const [x, y] = this.#place(item);
      this.paint(context, item, x, y, ...this.tile);
      context.fillStyle = getComputedStyle(this.root).color;
      if (this.begins(item)) context.fillRect(x - 2.5, y, 1, this.tile[1]);
    }
    this.mark(this.at);
  }

  mark(at) {
    this.at = at;
    const context = this.over.getContext("2d");
    context.clearRect(0, 0, this.width, this.over.height);
    if (at === null || at >= this.count || !this.tile) return;
    const [x, y] = this.#place(at), [wide, high] = this.tile;
    for (const [colour, size, out] of [["#fff", 4, 1], ["#000", 2, 1]]) {
      Object.assign(context, { strokeStyle: colour, lineWidth: size });
      context.strokeRect(x - out, y - out, wide + 2 * out, high + 2 * out);
    }
  }

  #place(item) {
    return [3 + (item % this.columns) * this.pitch[0], 2 + Math.floor(item / this.columns) * this.pitch[1]];
  }

  #item(event) {
    const box = this.root.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left - 1) / this.pitch[0]), row = Math.floor((event.clientY - box.top) / this.pitch[1]);
    const item = row * this.columns + column;
    return column >= 0 && column < this.columns && row >= 0 && item < this.count ? item : null;
  }

  #move(item) {
    if (item === this.here) return;
    this.here = item;
    this.onhover(item);
  }

  #key(event) {
    const from = this.here ?? this.at;
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -this.columns, ArrowDown: this.columns, Home: -this.count, End: this.count };
    if (steps[event.key]) {
      const next = from === null ? 0 : from + steps[event.key];
      this.#move(Math.max(0, Math.min(this.count - 1, next)));
      this.words.textContent = this.describe(this.here);
    } else if ((event.key === "Enter" || event.key === " ") && from !== null) this.onpick(from);
    else if (event.key === "Escape") this.#move(null);
    else return;
    event.preventDefault();
  }
}

// A patch of the picture, drawn where and as large as one likes; `source` is a canvas of the model's pixels.
export function patchPainter(source, [rows, columns]) {
  const wide = source.width / columns, high = source.height / rows;
  return (context, patch, x, y, width, height) => {
    context.imageSmoothingEnabled = width < wide;
    context.drawImage(source, (patch % columns) * wide, Math.floor(patch / columns) * high, wide, high, x, y, width, height);
  };
}

// --- the figures

function whole(parent, studio) {
  const made = figure(parent, {
    name: "patches", title: "The grid", level: 2,
    python: () => studio.python("rows, columns = model.grid(images)", ...cut(studio), "print(patches.shape, rows, columns)"),
    numbers: () => ({ grid: studio.trace.facts.grid, patch: side(studio), pixels: studio.trace.arrays.pixels }),
  });
  const grid = new PatchGrid({ label: "The picture in patches", ...pointing(studio) });
  made.body.append(grid.root);
  let drawn = null;
  return () => {
    const { facts, arrays } = studio.trace, [rows, columns] = facts.grid, [high, wide] = side(studio);
    if (drawn !== studio.trace) grid.show(arrays.pixels, facts.grid);
    grid.mark({ at: pointedPatch(studio) });
    if (drawn === studio.trace) return;
    drawn = studio.trace;
    made.caption(traced(studio).kind === "hybrid"
      ? `This model is a hybrid: a ResNet goes over the picture first, and its ${rows} × ${columns} feature map is cut instead. `
        + `Each cell is the ${wide} × ${high} pixels that a place of the map steps by; the convolutions look well beyond it.`
      : `${arrays.pixels.shape[1]} × ${arrays.pixels.shape[0]} pixels in patches of ${wide} × ${high} make ${several(rows, "row")} of ${columns}: `
        + `${several(rows * columns, "patch", "patches")}. Point at one; click or press Enter to keep it, here and in all other parts.`);
  };
}

// Height and width of a patch in pixels.
function side(studio) {
  const { shape: [height, width] } = studio.trace.arrays.pixels, [rows, columns] = studio.trace.facts.grid;
  return [height / rows, width / columns];
}

// The lines that cut it, in Python.
function cut(studio) {
  const { kind, config: { patch: [p, q] } } = traced(studio);
  return ["from einops import rearrange", "", ...(kind === "hybrid" ? ["images = model.stem(images)  # the feature map that is cut"] : []),
    `patches = rearrange(images, "b c (y p) (x q) -> b (y x) (c p q)", p=${p}, q=${q})`];
}

// The patch in question: the pointed one, else the one in the middle; its place and its pixels.
function looked(studio) {
  const { facts: { grid: [rows, columns], preprocess }, arrays: { pixels } } = studio.trace, [high, wide] = side(studio);
  const patch = pointedPatch(studio) ?? Math.floor(rows / 2) * columns + Math.floor(columns / 2);
  const row = Math.floor(patch / columns), column = patch % columns, channels = pixels.shape[2], data = new Uint8Array(high * wide * channels);
  for (let y = 0; y < high; y += 1) {
    const from = ((row * high + y) * pixels.shape[1] + column * wide) * channels;
    data.set(pixels.data.subarray(from, from + wide * channels), y * wide * channels);
  }
  return { patch, row, column, top: row * high, left: column * wide, high, wide, channels, preprocess, pixels: { shape: [high, wide, channels], data } };
}

function one(parent, studio) {
  const made = figure(parent, {
    name: "patch", title: "One patch", level: 2,
    python: () => {
      const { top, left, high, wide } = looked(studio);
      return studio.python(`pixels = images[0, :, ${top}:${top + high}, ${left}:${left + wide}]  # normalised, channel by channel`,
        "print(pixels, pixels.mean(dim=(1, 2)))");
    },
    numbers: () => {
      const { pixels, preprocess, ...rest } = looked(studio);
      return { ...rest, pixels: pixels.data, mean: preprocess.mean, std: preprocess.std };
    },
  });
  let seen = null, inner = null; // the patch, and the pixel in it that is pointed at
  const point = (pixel) => { inner = pixel; read(); };
  const grid = new PatchGrid({ label: "The pixels of the patch", unit: "pixels", onhover: point, onpick: point, describe: (pixel) => told(seen, pixel) });
  const facts = el("dl", { class: "facts" }), reading = el("p", { class: "reading" }), table = el("div", { class: "values" });
  const unit = select("Numbers", [["raw", "0 to 255"], ["normal", "normalised"]], state.get("patch_values", "raw"),
    (value) => state.set({ patch_values: value === "raw" ? null : value }));
  made.body.append(el("div", { class: "onepatch" }, grid.root, el("div", { class: "about" }, facts, unit), reading, table));

  function read() {
    grid.mark({ at: inner });
    reading.textContent = inner === null ? "Point at a pixel." : told(seen, inner);
    made.root.dispatchEvent(new CustomEvent("pixel", { bubbles: true, detail: inner }));
  }

  return () => {
    seen = looked(studio);
    const { patch, row, column, top, left, high, wide, pixels } = seen, prefix = studio.trace.facts.prefix;
    grid.show(pixels, [high, wide]);
    if (inner !== null && inner >= high * wide) inner = null;
    read();
    facts.replaceChildren(...[["Patch", `${patch}${prefix ? `, which is token ${patch + prefix}` : ""}`], ["Place", `row ${row}, column ${column}`],
      ["Pixels", `rows ${top} to ${top + high - 1}, columns ${left} to ${left + wide - 1}`],
    ].flatMap(([name, words]) => [el("dt", {}, name), el("dd", {}, words)]));
    const normal = state.get("patch_values") === "normal";
    unit.querySelector("select").value = normal ? "normal" : "raw";
    const spelled = Math.max(high, wide) <= FEW ? channelNames(seen.channels) : [];
    table.replaceChildren(means(seen, normal), ...spelled.map((name, channel) => all(seen, name, channel, normal)));
    const hybrid = "The pixels that lie at this place; what the model takes is what its ResNet says of them and of those around. ";
    made.caption(`${traced(studio).kind === "hybrid" ? hybrid : ""}${pointedPatch(studio) === null ? "This is the patch in the middle; point at any other. " : ""}`
      + "Everything is counted from 0, from the top left.");
  };
}

function written(seen, pixel, channel, normal) {
  const value = seen.pixels.data[pixel * seen.channels + channel];
  return normal ? normalised(value, channel, seen.preprocess).toFixed(2) : String(value);
}

function told(seen, pixel) {
  const values = channelNames(seen.channels).map((name, channel) => `${name} ${written(seen, pixel, channel, false)} → ${written(seen, pixel, channel, true)}`);
  return `Pixel in row ${Math.floor(pixel / seen.wide)}, column ${pixel % seen.wide}: ${values.join(", ")}.`;
}

// Of each channel the mean and its range, since a patch of 16 x 16 has more numbers than one reads.
function means({ channels, pixels: { data }, preprocess }, normal) {
  const shown = (value, channel) => (normal ? normalised(value, channel, preprocess).toFixed(2) : figure3(value));
  const heads = ["Channel", "mean", "lowest", "highest"];
  return el("table", {}, el("thead", {}, el("tr", {}, heads.map((words, at) => el("th", { scope: "col", class: at ? "number" : null }, words)))),
    el("tbody", {}, channelNames(channels).map((name, channel) => {
      const values = data.filter((_, at) => at % channels === channel), [low, high] = range(values);
      const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
      return el("tr", {}, el("th", { scope: "row" }, name), [mean, low, high].map((value) => el("td", { class: "number" }, shown(value, channel))));
    })));
}

function all(seen, name, channel, normal) {
  return el("table", { class: "matrix" }, el("caption", {}, `All pixels, ${name}`), el("tbody", {}, Array.from({ length: seen.high }, (_, row) => el("tr", {},
    Array.from({ length: seen.wide }, (__, column) => el("td", { class: "number" }, written(seen, row * seen.wide + column, channel, normal)))))));
}

// x E + b: the shapes of this model, and the numbers of this patch in the order in which they are flattened.
function product(parent, studio) {
  const made = figure(parent, {
    name: "embedding", title: "From pixels to a vector", level: 2,
    python: () => studio.python(...cut(studio), "E, b = model.embed.project.weight.flatten(1).T, model.embed.project.bias",
      `vector = patches[0, ${looked(studio).patch}] @ E + b`, "print(vector.shape, vector.norm().item())"),
    numbers: () => {
      const seen = looked(studio);
      return { patch: seen.patch, ...shapes(studio), flat: shapes(studio).hybrid ? null : flat(seen), length: studio.trace.arrays.embedded.data[seen.patch] };
    },
  });
  const strip = el("canvas", { class: "pixels", "aria-hidden": "true" }), marks = svg("svg", { preserveAspectRatio: "none", "aria-hidden": "true" });
  const parts = el("div", { class: "thirds", "aria-hidden": "true" }), line = el("div", { class: "flat" }, el("div", { class: "strip" }, strip, marks), parts);
  const sum = el("div", { class: "product" });
  made.body.append(line, sum);
  let inner = null, count = 1, each = 1;

  function point() {
    marks.setAttribute("viewBox", `0 0 ${count} 10`);
    const wide = Math.max(1, count / 300), look = { width: wide, y: 0, height: 10, fill: "#fff", stroke: "#000", "vector-effect": "non-scaling-stroke" };
    marks.replaceChildren(...Array.from({ length: inner === null ? 0 : count / each }, (_, channel) =>
      svg("rect", { x: channel * each + inner + 0.5 - wide / 2, ...look })));
  }
  parent.addEventListener("pixel", (event) => { inner = event.detail; point(); });

  return () => {
    const seen = looked(studio), { inputs, width, hybrid } = shapes(studio), length = studio.trace.arrays.embedded.data[seen.patch];
    line.hidden = hybrid;
    [count, each] = [seen.high * seen.wide * seen.channels, seen.high * seen.wide];
    flattened(strip, seen);
    point();
    parts.replaceChildren(...channelNames(seen.channels).map((name) => el("span", {}, `${name}: ${each} numbers, row by row`)));
    sum.replaceChildren(
      term(el("span", {}, "x", el("sub", {}, "p")), hybrid ? "the place of the feature map" : "the patch, flattened", `1 × ${inputs}`), sign("·"),
      term("E", `learned, the same for all patches${hybrid ? "" : "; part 8 shows the principal components of its columns"}`, `${inputs} × ${width}`), sign("+"),
      term("b", "learned, too", `1 × ${width}`), sign("="),
      term(el("span", {}, "x", el("sub", {}, "p"), " E + b"), `the patch as a vector, ${figure3(length)} long`, `1 × ${width}`));
    const what = hybrid ? "What the ResNet says of the place in its channels"
      : `The ${seen.high} × ${seen.wide} × ${seen.channels} = ${count} numbers of the patch, normalised and one channel after the other`;
    const [rows, columns] = studio.trace.facts.grid, number = seen.patch + 1;
    made.caption(el("span", {}, `${what}, times one matrix: that is all. In the words of the paper the ${number}${ending(number)} patch of N = ${rows * columns} `,
      "(it counts from 1) becomes ", el("i", {}, "x", el("sub", {}, "p"), el("sup", {}, String(number)), "E"),
      ". Nothing in the vector says where the patch lies: positions do, in the next part."));
  };
}

function shapes(studio) {
  const { kind, config } = traced(studio), hybrid = kind === "hybrid", [p, q] = config.patch;
  const channels = config.inputs ?? (hybrid ? null : config.channels);
  return { inputs: channels === null ? "C" : p * q * channels, width: config.width, hybrid };
}

function flat({ high, wide, channels, pixels: { data }, preprocess }) {
  const each = high * wide, channel = (at) => Math.floor(at / each);
  return Float32Array.from({ length: each * channels }, (_, at) => normalised(data[(at % each) * channels + channel(at)], channel(at), preprocess));
}

// Every number one pixel, in its channel's own colour.
function flattened(canvas, { high, wide, channels, pixels: { data } }) {
  const each = high * wide;
  Object.assign(canvas, { width: each * channels, height: 1 });
  const context = canvas.getContext("2d"), line = context.createImageData(each * channels, 1);
  for (let at = 0; at < each * channels; at += 1) {
    const channel = Math.floor(at / each), value = data[(at % each) * channels + channel];
    for (let colour = 0; colour < 3; colour += 1) line.data[4 * at + colour] = channels !== 3 || colour === channel ? value : value / 4;
    line.data[4 * at + 3] = 255;
  }
  context.putImageData(line, 0, 0);
}

function term(name, words, shape) {
  return el("div", { class: "term" }, el("strong", {}, name), el("span", { class: "shape" }, shape), el("span", { class: "soft" }, words));
}

function sign(words) {
  return el("span", { class: "sign" }, words);
}

function ending(number) {
  return [11, 12, 13].includes(number % 100) ? "th" : { 1: "st", 2: "nd", 3: "rd" }[number % 10] ?? "th";
}

function order(parent, studio) {
  const made = figure(parent, {
    name: "sequence", title: "The picture as a sequence", level: 2,
    python: () => studio.python(...cut(studio), "print(patches[0])  # a row for each patch, in this order"),
    numbers: () => ({ patches: studio.trace.facts.grid[0] * studio.trace.facts.grid[1], columns: studio.trace.facts.grid[1] }),
  });
  const begins = (patch) => patch % studio.trace.facts.grid[1] === 0;
  const source = el("canvas"), row = new Sequence({ label: "All patches in their order", paint: () => {}, begins, ...pointing(studio) });
  made.body.append(row.root);
  made.caption("This is how the model receives it: one patch after the other, a bar where a row of the picture begins. "
    + "Without positions it could not tell this order from any other.");
  let drawn = null;
  return (why) => {
    if (drawn !== studio.trace || why === "theme") {
      drawn = studio.trace;
      painted(source, drawn.arrays.pixels);
      row.paint = patchPainter(source, drawn.facts.grid);
      const [high, wide] = side(studio);
      row.show(drawn.facts.grid[0] * drawn.facts.grid[1], wide / high, drawn.facts.grid[1]);
    }
    row.mark(pointedPatch(studio));
  };
}
