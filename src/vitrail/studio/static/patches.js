// The image split into patches, and a patch projected to a vector (Dosovitskiy et al. 2021, equation 1).

import { minMax } from "./colormap.js";
import { el, formatNumber, select, plural, svg } from "./dom.js";
import { figure } from "./figure.js";
import { PatchGrid, drawPixels } from "./patch_grid.js";
import { channelNames, normalised, drawThumbnail } from "./image.js";
import * as state from "./url_state.js";

const MAX_LISTED_SIDE = 8; // largest side of a patch whose pixel values are all listed

export default {
  name: "patches", title: "Patches", glyph: "▦",
  lead: "The image is split into non-overlapping patches. For the model each patch is like a word, and the image a sentence of them, read row by row.",
  thumb(canvas, store) {
    const { pixels } = store.trace.arrays, [rows, columns] = store.trace.meta.grid;
    const { left, top, width, height, context } = drawThumbnail(canvas, pixels);
    const gap = Math.max(1, Math.min(3, width / columns / 4));
    for (let row = 1; row < rows; row += 1) context.clearRect(left, top + (row * height) / rows - gap / 2, width, gap);
    for (let column = 1; column < columns; column += 1) context.clearRect(left + (column * width) / columns - gap / 2, top, gap, height);
  },
  build(section, store) {
    const columns = el("div", { class: "columns" });
    const views = [gridFigure(columns, store), patchFigure(columns, store)];
    section.append(columns);
    views.push(embeddingFigure(section, store), sequenceFigure(section, store));
    return { draw(reason) {
      section.classList.toggle("empty", !store.trace);
      if (store.trace) for (const view of views) view(reason);
    } };
  },
};

// Handlers of a patch grid: they hover and pin tokens, which all parts share.
export function gridHandlers(store) {
  const token = (patch) => patch + store.trace.meta.prefix;
  return {
    onhover: (patch) => store.hover(patch === null || !store.trace ? null : token(patch)),
    onpick: (patch) => store.trace && store.pin(token(patch)),
    describe: (patch) => store.tokenName(token(patch)),
  };
}

// The active patch, or null if the active token is none.
export function activePatch(store) {
  const { prefix } = store.trace.meta, token = store.activeToken;
  return token !== null && token >= prefix ? token - prefix : null;
}

// The model of the current trace, which may still differ from the one in the URL.
export function tracedModel(store) {
  return store.info.models.find((model) => model.id === store.trace.meta.model) ?? store.model;
}

// A sequence of tiles, wrapping like words: hover, click, or move along it with the arrow keys.
// drawItem(context, item, x, y, wide, high) draws one; `separated(item)`: a separator is drawn before it.
export class TokenSequence {
  constructor({ label, drawItem, onhover, onpick, describe, separated = () => false }) {
    this.below = el("canvas", { "aria-hidden": "true" });
    this.over = el("canvas", { "aria-hidden": "true" });
    this.announcement = el("span", { class: "visually-hidden", "aria-live": "polite" });
    const ariaLabel = `${label}. Arrow keys move along it, Enter selects.`;
    this.root = el("div", { class: "sequence", tabindex: "0", role: "application", "aria-label": ariaLabel }, this.below, this.over, this.announcement);
    Object.assign(this, { drawItem, onhover, onpick, describe, separated, count: 0, at: null, hovered: null, width: 0, shape: 1, rows: Infinity });
    this.root.addEventListener("pointermove", (event) => this.#move(this.#item(event)));
    this.root.addEventListener("pointerleave", () => this.#move(null));
    this.root.addEventListener("blur", () => this.#move(null));
    this.root.addEventListener("click", (event) => this.#item(event) !== null && this.onpick(this.#item(event)));
    this.root.addEventListener("keydown", (event) => this.#key(event));
    new ResizeObserver(() => this.root.clientWidth !== this.width && this.show()).observe(this.root);
  }

  // shape: aspect ratio of a tile (width / height); rows: patches per row of the image.
  show(count = this.count, shape = this.shape, rows = this.rows) {
    Object.assign(this, { count, shape, rows, width: this.root.clientWidth });
    if (!this.width || !count) return;
    const fits = (side) => Math.ceil(count / Math.floor((this.width - 2) / (side + 4))) * (side + 6) <= 240;
    const side = [44, 36, 32, 28, 24, 20, 16, 12].find(fits) ?? 8;
    this.tile = [side * Math.min(1, shape), side / Math.max(1, shape)];
    this.pitch = [this.tile[0] + (side > 12 ? 4 : 2), this.tile[1] + (side > 12 ? 6 : 3)];
    this.columns = Math.max(1, Math.floor((this.width - 2) / this.pitch[0]));
    const breaks = count > this.columns, even = count % this.rows === 0 && this.columns >= 2 * this.rows; // several whole image rows per line
    if (breaks && even) this.columns -= this.columns % this.rows; // their separators line up
    else if (breaks && this.columns > 2 && this.columns % this.rows === 0) this.columns -= 1; // one image row per line would look like the image
    const ratio = devicePixelRatio || 1, height = Math.ceil(count / this.columns) * this.pitch[1] + 2;
    this.root.style.height = `${height}px`;
    for (const canvas of [this.below, this.over]) {
      Object.assign(canvas, { width: Math.round(this.width * ratio), height: Math.round(height * ratio) });
      canvas.getContext("2d").scale(ratio, ratio);
    }
    const context = this.below.getContext("2d");
    context.imageSmoothingQuality = "high";
    for (let item = 0; item < count; item += 1) {
      const [x, y] = this.#position(item);
      this.drawItem(context, item, x, y, ...this.tile);
      context.fillStyle = getComputedStyle(this.root).color;
      if (this.separated(item)) context.fillRect(x - 2.5, y, 1, this.tile[1]);
    }
    this.mark(this.at);
  }

  mark(at) {
    this.at = at;
    const context = this.over.getContext("2d");
    context.clearRect(0, 0, this.width, this.over.height);
    if (at === null || at >= this.count || !this.tile) return;
    const [x, y] = this.#position(at), [wide, high] = this.tile;
    for (const [colour, size, out] of [["#fff", 4, 1], ["#000", 2, 1]]) {
      Object.assign(context, { strokeStyle: colour, lineWidth: size });
      context.strokeRect(x - out, y - out, wide + 2 * out, high + 2 * out);
    }
  }

  #position(item) {
    return [3 + (item % this.columns) * this.pitch[0], 2 + Math.floor(item / this.columns) * this.pitch[1]];
  }

  #item(event) {
    const box = this.root.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left - 1) / this.pitch[0]), row = Math.floor((event.clientY - box.top) / this.pitch[1]);
    const item = row * this.columns + column;
    return column >= 0 && column < this.columns && row >= 0 && item < this.count ? item : null;
  }

  #move(item) {
    if (item === this.hovered) return;
    this.hovered = item;
    this.onhover(item);
  }

  #key(event) {
    const from = this.hovered ?? this.at;
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -this.columns, ArrowDown: this.columns, Home: -this.count, End: this.count };
    if (steps[event.key]) {
      const next = from === null ? 0 : from + steps[event.key];
      this.#move(Math.max(0, Math.min(this.count - 1, next)));
      this.announcement.textContent = this.describe(this.hovered);
    } else if ((event.key === "Enter" || event.key === " ") && from !== null) this.onpick(from);
    else if (event.key === "Escape") this.#move(null);
    else return;
    event.preventDefault();
  }
}

// Returns a function that draws a patch at any position and size; `source` is a canvas of the model's pixels.
export function patchPainter(source, [rows, columns]) {
  const wide = source.width / columns, high = source.height / rows;
  return (context, patch, x, y, width, height) => {
    context.imageSmoothingEnabled = width < wide;
    context.drawImage(source, (patch % columns) * wide, Math.floor(patch / columns) * high, wide, high, x, y, width, height);
  };
}

// --- the figures

function gridFigure(parent, store) {
  const fig = figure(parent, {
    name: "patches", title: "The grid", level: 2,
    python: () => store.python("rows, columns = model.grid(images)", ...patchifyCode(store), "print(patches.shape, rows, columns)"),
    numbers: () => ({ grid: store.trace.meta.grid, patch: patchSize(store), pixels: store.trace.arrays.pixels }),
  });
  const grid = new PatchGrid({ label: "The image in patches", ...gridHandlers(store) });
  fig.body.append(grid.root);
  let drawn = null;
  return () => {
    const { meta, arrays } = store.trace, [rows, columns] = meta.grid, [high, wide] = patchSize(store);
    if (drawn !== store.trace) grid.show(arrays.pixels, meta.grid);
    grid.mark({ at: activePatch(store) });
    if (drawn === store.trace) return;
    drawn = store.trace;
    fig.caption(tracedModel(store).kind === "hybrid"
      ? `This model is a hybrid: a ResNet processes the image first, and its ${rows} × ${columns} feature map is split instead. `
        + `Each cell marks the ${wide} × ${high} pixels of stride of the feature map; the receptive field is much larger.`
      : `${arrays.pixels.shape[1]} × ${arrays.pixels.shape[0]} pixels in patches of ${wide} × ${high} make ${plural(rows, "row")} of ${columns}: `
        + `${plural(rows * columns, "patch", "patches")}. Point at one; click or press Enter to pin it, here and in all other parts.`);
  };
}

// Height and width of a patch in pixels.
function patchSize(store) {
  const { shape: [height, width] } = store.trace.arrays.pixels, [rows, columns] = store.trace.meta.grid;
  return [height / rows, width / columns];
}

// Python that splits the image into patches.
function patchifyCode(store) {
  const { kind, config: { patch: [p, q] } } = tracedModel(store);
  return ["from einops import rearrange", "", ...(kind === "hybrid" ? ["images = model.stem(images)  # the feature map"] : []),
    `patches = rearrange(images, "b c (y p) (x q) -> b (y x) (c p q)", p=${p}, q=${q})`];
}

// The current patch: the active one, else the centre one; its position and its pixels.
function currentPatch(store) {
  const { meta: { grid: [rows, columns], preprocess }, arrays: { pixels } } = store.trace, [high, wide] = patchSize(store);
  const patch = activePatch(store) ?? Math.floor(rows / 2) * columns + Math.floor(columns / 2);
  const row = Math.floor(patch / columns), column = patch % columns, channels = pixels.shape[2], data = new Uint8Array(high * wide * channels);
  for (let y = 0; y < high; y += 1) {
    const from = ((row * high + y) * pixels.shape[1] + column * wide) * channels;
    data.set(pixels.data.subarray(from, from + wide * channels), y * wide * channels);
  }
  return { patch, row, column, top: row * high, left: column * wide, high, wide, channels, preprocess, pixels: { shape: [high, wide, channels], data } };
}

function patchFigure(parent, store) {
  const fig = figure(parent, {
    name: "patch", title: "One patch", level: 2,
    python: () => {
      const { top, left, high, wide } = currentPatch(store);
      return store.python(`pixels = images[0, :, ${top}:${top + high}, ${left}:${left + wide}]  # normalised, channel by channel`,
        "print(pixels, pixels.mean(dim=(1, 2)))");
    },
    numbers: () => {
      const { pixels, preprocess, ...rest } = currentPatch(store);
      return { ...rest, pixels: pixels.data, mean: preprocess.mean, std: preprocess.std };
    },
  });
  let patchInfo = null, pixelIndex = null; // the patch, and the active pixel in it
  const point = (pixel) => { pixelIndex = pixel; read(); };
  const grid = new PatchGrid({ label: "The pixels of the patch", unit: "pixels", onhover: point, onpick: point, describe: (pixel) => describePixel(patchInfo, pixel) });
  const details = el("dl", { class: "details" }), readout = el("p", { class: "readout" }), table = el("div", { class: "values" });
  const unit = select("Values", [["raw", "0 to 255"], ["normal", "normalised"]], state.get("patch_values", "raw"),
    (value) => state.set({ patch_values: value === "raw" ? null : value }));
  fig.body.append(el("div", { class: "one-patch" }, grid.root, el("div", { class: "info" }, details, unit), readout, table));

  function read() {
    grid.mark({ at: pixelIndex });
    readout.textContent = pixelIndex === null ? "Point at a pixel." : describePixel(patchInfo, pixelIndex);
    fig.root.dispatchEvent(new CustomEvent("pixel", { bubbles: true, detail: pixelIndex }));
  }

  return () => {
    patchInfo = currentPatch(store);
    const { patch, row, column, top, left, high, wide, pixels } = patchInfo, prefix = store.trace.meta.prefix;
    grid.show(pixels, [high, wide]);
    if (pixelIndex !== null && pixelIndex >= high * wide) pixelIndex = null;
    read();
    details.replaceChildren(...[["Patch", `${patch}${prefix ? `, which is token ${patch + prefix}` : ""}`], ["Position", `row ${row}, column ${column}`],
      ["Pixels", `rows ${top} to ${top + high - 1}, columns ${left} to ${left + wide - 1}`],
    ].flatMap(([name, text]) => [el("dt", {}, name), el("dd", {}, text)]));
    const normal = state.get("patch_values") === "normal";
    unit.querySelector("select").value = normal ? "normal" : "raw";
    const listed = Math.max(high, wide) <= MAX_LISTED_SIDE ? channelNames(patchInfo.channels) : [];
    table.replaceChildren(channelMeans(patchInfo, normal), ...listed.map((name, channel) => pixelTable(patchInfo, name, channel, normal)));
    const hybrid = "The pixels at this position; the model gets the ResNet features of them and their surroundings. ";
    fig.caption(`${tracedModel(store).kind === "hybrid" ? hybrid : ""}${activePatch(store) === null ? "This is the centre patch; point at another one. " : ""}`
      + "All indices start at 0, at the top left.");
  };
}

function pixelText(patchInfo, pixel, channel, normal) {
  const value = patchInfo.pixels.data[pixel * patchInfo.channels + channel];
  return normal ? normalised(value, channel, patchInfo.preprocess).toFixed(2) : String(value);
}

function describePixel(patchInfo, pixel) {
  const values = channelNames(patchInfo.channels).map((name, channel) => `${name} ${pixelText(patchInfo, pixel, channel, false)} → ${pixelText(patchInfo, pixel, channel, true)}`);
  return `Pixel in row ${Math.floor(pixel / patchInfo.wide)}, column ${pixel % patchInfo.wide}: ${values.join(", ")}.`;
}

// Mean and range per channel, since a patch of 16 x 16 has too many values to list.
function channelMeans({ channels, pixels: { data }, preprocess }, normal) {
  const shown = (value, channel) => (normal ? normalised(value, channel, preprocess).toFixed(2) : formatNumber(value));
  const heads = ["Channel", "mean", "min", "max"];
  return el("table", {}, el("thead", {}, el("tr", {}, heads.map((text, at) => el("th", { scope: "col", class: at ? "number" : null }, text)))),
    el("tbody", {}, channelNames(channels).map((name, channel) => {
      const values = data.filter((_, at) => at % channels === channel), [low, high] = minMax(values);
      const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
      return el("tr", {}, el("th", { scope: "row" }, name), [mean, low, high].map((value) => el("td", { class: "number" }, shown(value, channel))));
    })));
}

function pixelTable(patchInfo, name, channel, normal) {
  return el("table", { class: "matrix" }, el("caption", {}, `All pixels, ${name}`), el("tbody", {}, Array.from({ length: patchInfo.high }, (_, row) => el("tr", {},
    Array.from({ length: patchInfo.wide }, (__, column) => el("td", { class: "number" }, pixelText(patchInfo, row * patchInfo.wide + column, channel, normal)))))));
}

// x E + b: the shapes of this model, and the values of this patch in flattened order.
function embeddingFigure(parent, store) {
  const fig = figure(parent, {
    name: "embedding", title: "From pixels to a vector", level: 2,
    python: () => store.python(...patchifyCode(store), "E, b = model.embed.project.weight.flatten(1).T, model.embed.project.bias",
      `vector = patches[0, ${currentPatch(store).patch}] @ E + b`, "print(vector.shape, vector.norm().item())"),
    numbers: () => {
      const patchInfo = currentPatch(store);
      return { patch: patchInfo.patch, ...embeddingShapes(store), flat: embeddingShapes(store).hybrid ? null : flat(patchInfo), length: store.trace.arrays.patch_norms.data[patchInfo.patch] };
    },
  });
  const flatCanvas = el("canvas", { class: "pixels", "aria-hidden": "true" }), marks = svg("svg", { preserveAspectRatio: "none", "aria-hidden": "true" });
  const channelLabels = el("div", { class: "channel-labels", "aria-hidden": "true" }), line = el("div", { class: "flat" }, el("div", { class: "strip" }, flatCanvas, marks), channelLabels);
  const sum = el("div", { class: "product" });
  fig.body.append(line, sum);
  let pixelIndex = null, count = 1, each = 1;

  function point() {
    marks.setAttribute("viewBox", `0 0 ${count} 10`);
    const wide = Math.max(1, count / 300), style = { width: wide, y: 0, height: 10, fill: "#fff", stroke: "#000", "vector-effect": "non-scaling-stroke" };
    marks.replaceChildren(...Array.from({ length: pixelIndex === null ? 0 : count / each }, (_, channel) =>
      svg("rect", { x: channel * each + pixelIndex + 0.5 - wide / 2, ...style })));
  }
  parent.addEventListener("pixel", (event) => { pixelIndex = event.detail; point(); });

  return () => {
    const patchInfo = currentPatch(store), { inputDim, width, hybrid } = embeddingShapes(store), length = store.trace.arrays.patch_norms.data[patchInfo.patch];
    line.hidden = hybrid;
    [count, each] = [patchInfo.high * patchInfo.wide * patchInfo.channels, patchInfo.high * patchInfo.wide];
    drawFlat(flatCanvas, patchInfo);
    point();
    channelLabels.replaceChildren(...channelNames(patchInfo.channels).map((name) => el("span", {}, `${name}: ${each} values, row by row`)));
    sum.replaceChildren(
      term(el("span", {}, "x", el("sub", {}, "p")), hybrid ? "one position of the feature map" : "the patch, flattened", `1 × ${inputDim}`), sign("·"),
      term("E", `learned, shared by all patches${hybrid ? "" : "; part 8 shows the principal components of its columns"}`, `${inputDim} × ${width}`), sign("+"),
      term("b", "learned bias", `1 × ${width}`), sign("="),
      term(el("span", {}, "x", el("sub", {}, "p"), " E + b"), `the patch embedding, with norm ${formatNumber(length)}`, `1 × ${width}`));
    const input = hybrid ? "The ResNet features at this position"
      : `The ${patchInfo.high} × ${patchInfo.wide} × ${patchInfo.channels} = ${count} values of the patch, normalised and flattened channel by channel`;
    const [rows, columns] = store.trace.meta.grid, number = patchInfo.patch + 1;
    fig.caption(el("span", {}, `${input}, times one matrix. In the notation of the paper the ${number}${ordinalSuffix(number)} patch of N = ${rows * columns} `,
      "(it counts from 1) becomes ", el("i", {}, "x", el("sub", {}, "p"), el("sup", {}, String(number)), "E"),
      ". The vector holds no position; the position embedding is added in the next part."));
  };
}

function embeddingShapes(store) {
  const { kind, config } = tracedModel(store), hybrid = kind === "hybrid", [p, q] = config.patch;
  const channels = config.patch_channels ?? (hybrid ? null : config.channels);
  return { inputDim: channels === null ? "C" : p * q * channels, width: config.width, hybrid };
}

function flat({ high, wide, channels, pixels: { data }, preprocess }) {
  const each = high * wide, channel = (at) => Math.floor(at / each);
  return Float32Array.from({ length: each * channels }, (_, at) => normalised(data[(at % each) * channels + channel(at)], channel(at), preprocess));
}

// One pixel per value, in the colour of its channel.
function drawFlat(canvas, { high, wide, channels, pixels: { data } }) {
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

function term(name, text, shape) {
  return el("div", { class: "term" }, el("strong", {}, name), el("span", { class: "shape" }, shape), el("span", { class: "soft" }, text));
}

function sign(text) {
  return el("span", { class: "sign" }, text);
}

function ordinalSuffix(number) {
  return [11, 12, 13].includes(number % 100) ? "th" : { 1: "st", 2: "nd", 3: "rd" }[number % 10] ?? "th";
}

function sequenceFigure(parent, store) {
  const fig = figure(parent, {
    name: "sequence", title: "The image as a sequence", level: 2,
    python: () => store.python(...patchifyCode(store), "print(patches[0])  # one row per patch, in this order"),
    numbers: () => ({ patches: store.trace.meta.grid[0] * store.trace.meta.grid[1], columns: store.trace.meta.grid[1] }),
  });
  const separated = (patch) => patch % store.trace.meta.grid[1] === 0;
  const source = el("canvas"), row = new TokenSequence({ label: "All patches in order", drawItem: () => {}, separated, ...gridHandlers(store) });
  fig.body.append(row.root);
  fig.caption("The model receives the image as a sequence of patches; a bar marks the start of an image row. "
    + "Without position embeddings it could not distinguish this order from any other.");
  let drawn = null;
  return (reason) => {
    if (drawn !== store.trace || reason === "theme") {
      drawn = store.trace;
      drawPixels(source, drawn.arrays.pixels);
      row.drawItem = patchPainter(source, drawn.meta.grid);
      const [high, wide] = patchSize(store);
      row.show(drawn.meta.grid[0] * drawn.meta.grid[1], wide / high, drawn.meta.grid[1]);
    }
    row.mark(activePatch(store));
  };
}
