// The model itself, independent of the image: similarity of its position embeddings, its patch filters, attention distance and entropy of
// its heads (Dosovitskiy et al. 2021, figures 7 and 11). A second model or checkpoint can be compared, on the same scale.
//
// In the URL: `compare` a model, `compare_step` its checkpoint, `distance` how distances are averaged.

import { chart, legend } from "./chart.js";
import { drawHeatmap, paintValues, minMax } from "./colormap.js";
import { el, formatNumber, select } from "./dom.js";
import { figure } from "./figure.js";
import { PatchGrid } from "./patch_grid.js";
import { standalone, fetchArrays } from "./api.js";
import * as state from "./url_state.js";

const MAX_CACHED = 4; // responses in memory, so that switching between checkpoints is quick
const FILTERS_PER_ROW = 7; // filters per row, as in the paper
const POSITIONS = {
  rotary: "Rotary positions are not added: they rotate queries and keys. The map shows the mean cosine of the rotation angles between two positions.",
  relative_bias: "Nothing is added to the tokens: a bias by the offset of two patches is added to the attention scores. The map shows the cosine similarity "
    + "of the biases of two positions, over all heads of the first layer.",
  relative: "Relative positions are learned per layer: the map shows the cosine similarity of the relative keys of two positions, in the first layer.",
};

export default {
  name: "model", title: "Model", glyph: "❖",
  lead: "What the weights contain, independent of the image, and how the heads behave on many images. Move through the checkpoints in the header to see it develop, "
    + "or compare a second model.",
  build,
};

function build(section, store) {
  const cache = new Map(); // promises by model and step
  let views = null, loadedKey = "";

  const compareSelect = el("div", { class: "controls" });
  section.append(compareSelect);
  const headFigures = el("div", { class: "columns" }), waiting = el("p", { class: "waiting", role: "status", hidden: true });
  section.append(waiting);
  const figures = {};
  const add = (parent, name, title, caption, python, numbers) => { figures[name] = figure(parent,
    { name, title, caption, level: 2, python, numbers: () => views?.map((view) => ({ model: view.name, ...numbers(view) })) }); };
  add(section, "position-similarity", "Similarity of position embeddings", "", () => snippets("similarity = vitrail.explain.position_similarity(model)  # (y x v u)"),
    ({ arrays }) => ({ position_similarity: arrays.position_similarity }));
  add(section, "filters", "Patch embedding filters", "", () => snippets("components = vitrail.explain.patch_filters(model)  # (n c p q)"),
    ({ arrays }) => ({ filters: arrays.filters }));
  section.append(headFigures);
  add(headFigures, "attention-distance", "Mean attention distance", "", () => snippets(`distance = ${statisticsCode(state.get("distance") === "renormalised" ? "renormalised" : "distance")}`,
    true), ({ arrays }) => ({ distance: arrays.distance, renormalised: arrays.renormalised }));
  add(headFigures, "attention-entropy", "Attention entropy", "", () => snippets(`entropy = ${statisticsCode("entropy")}  # nats`, true),
    ({ arrays }) => ({ entropy: arrays.entropy }));
  add(section, "head-similarity", "Similarity of heads", "", () => snippets(`similarity = ${statisticsCode("similarity")}  # (l h h)`, true),
    ({ arrays }) => ({ head_similarity: arrays.head_similarity }));
  const distanceSelect = select("Weights", [["", "as in the paper"], ["renormalised", "renormalised over patches"]], state.get("distance", ""),
    (value) => state.set({ distance: value || null }));
  figures["attention-distance"].root.insertBefore(distanceSelect, figures["attention-distance"].body);
  const positionTiles = [];

  return { draw };

  async function draw(reason) {
    if (reason === "point") return point();
    chooser();
    distanceSelect.querySelector("select").value = state.get("distance") === "renormalised" ? "renormalised" : "";
    const wanted = [{ model: store.model, step: state.get("step") }, comparedModel()].filter(Boolean);
    const now = JSON.stringify(wanted.map(viewKey));
    if (now !== loadedKey) {
      loadedKey = now;
      section.classList.add("stale");
      waiting.textContent = `Analysing ${wanted.map(displayName).join(" and ")} ...`;
      waiting.hidden = false;
      let responses;
      try {
        responses = await Promise.all(wanted.map(fetchView));
      } catch (error) {
        if (loadedKey === now) loadedKey = "";
        if (loadedKey === "") waiting.hidden = true;
        throw error;
      }
      if (loadedKey !== now) return;
      waiting.hidden = true;
      section.classList.remove("stale");
      section.classList.add("drawn"); // figures appear with their first content
      views = responses.map((one, index) => ({ ...one, ...wanted[index], name: displayName(wanted[index]) }));
      drawAll();
    } else if (views && reason !== "trace") drawHeads();
    point();
  }

  // The best weights of a run in training change with an evaluation, and before the first one with every checkpoint.
  function viewKey({ model, step }) {
    return `${model.id} ${step ?? `best of ${model.checkpoint_steps.at(-1)} ${model === store.model ? store.requestParams().weights_version : ""}`}`;
  }

  function fetchView(one) {
    const key = viewKey(one), response = cache.get(key) ?? fetchArrays("api/model", { model: one.model.id, step: one.step });
    cache.delete(key); // reinserted as the newest
    cache.set(key, response);
    response.catch(() => cache.delete(key));
    while (cache.size > MAX_CACHED) cache.delete(cache.keys().next().value);
    return response;
  }

  // The compared model, if the URL names an existing one.
  function comparedModel() {
    const model = store.info.models.find((one) => one.id === state.get("compare"));
    const step = state.number("compare_step");
    return model && !standalone ? { model, step: step !== null && model.checkpoint_steps.includes(step) ? step : null } : null;
  }

  function displayName({ model, step }) {
    return `${model.name}${step === null ? (model.checkpoint_steps.length ? ", best" : "") : `, step ${Number(step).toLocaleString("en")}`}`;
  }

  function chooser() {
    const options = [["", "none"]];
    for (const model of store.info.models) {
      options.push([model.id, displayName({ model, step: null })]);
      for (const step of model.checkpoint_steps) options.push([`${model.id} ${step}`, displayName({ model, step })]);
    }
    const selected = comparedModel(), value = selected ? `${selected.model.id}${selected.step === null ? "" : ` ${selected.step}`}` : "";
    const created = JSON.stringify(options);
    if (compareSelect.dataset.created !== created) {
      compareSelect.dataset.created = created;
      compareSelect.replaceChildren(standalone ? "" : select("Compare with", options, value, (picked) => {
        const [id, step = null] = picked.split(" ");
        state.set({ compare: id || null, compare_step: step });
      }));
    }
    if (!standalone) compareSelect.querySelector("select").value = value;
  }

  function drawAll() {
    headFigures.className = views.length > 1 ? "compared" : "columns"; // two models are side by side in one figure
    drawPositions();
    drawFilters();
    drawHeads();
    drawHeadSimilarity();
  }

  // One column per model: its name if there are two, then its drawing.
  function drawColumns(name, make) {
    figures[name].body.replaceChildren(el("div", { class: views.length > 1 ? "model-columns two" : "model-columns" },
      views.map((view, index) => el("div", {}, views.length > 1 ? el("p", { class: "model-name" }, view.name) : null, make(view, index)))));
  }

  function drawPositions() {
    const available = views.filter((view) => view.arrays.position_similarity);
    const low = Math.min(0, ...available.map((view) => minMax(view.arrays.position_similarity.data)[0]));
    positionTiles.length = 0;
    drawColumns("position-similarity", (view, index) => {
      if (!view.arrays.position_similarity) return el("p", { class: "soft" }, "This model has no position embeddings: it sees an image as a bag of patches.");
      const created = new PositionTiles(view, low, (patch, grid) => store.hover(patch === null ? null : tokenAt(patch, grid)),
        (patch, grid) => store.pin(tokenAt(patch, grid)));
      positionTiles[index] = created;
      return created.root;
    });
    const kind = (available[0] ?? views[0]).meta.position;
    figures["position-similarity"].caption(`${POSITIONS[kind] ?? "One position vector per patch, learned or fixed, is added to the patch embeddings. "}`
      + ` Each tile belongs to one position and shows its cosine similarity with all others: lighter is more similar. Similar neighbours, rows and columns `
        + `reflect the 2D layout of the image. Scale from ${formatNumber(low)} to 1.`);
  }

  // The token of the image for a patch of these tiles; if the grids of two models differ, the one at the same location.
  function tokenAt(patch, grid) {
    const { meta } = store.trace;
    return mapPatch(patch, grid, meta.grid) + meta.prefix;
  }

  function point() {
    if (!store.trace || !views) return;
    const { meta } = store.trace, activeToken = store.activeToken;
    const patch = activeToken !== null && activeToken >= meta.prefix ? activeToken - meta.prefix : null;
    for (const one of positionTiles) one?.point(patch === null ? null : mapPatch(patch, meta.grid, one.grid));
  }

  function drawFilters() {
    drawColumns("filters", (view) => filterCanvas(view));
    const { meta, arrays } = views[0], [count] = arrays.filters.shape;
    figures.filters.caption(`The first ${count} principal components of the ${meta.filters_of === "stem" ? "stem's first convolution" : "patch embedding's "
      + "kernels"}, strongest first; grey is zero. `
      + "Trained on enough images they resemble a basis for the fine structure of a patch: plain colours, then waves of increasing frequency. Noise suggests "
        + "too few images, or too short a training.");
  }

  function drawHeads() {
    const key = state.get("distance") === "renormalised" ? "renormalised" : "distance";
    drawDots("attention-distance", (view) => view.arrays[key], "distance in pixels", (value) => `${formatNumber(value)} pixels`);
    drawDots("attention-entropy", (view) => view.arrays.entropy, "entropy in nats", (value) => `${formatNumber(value)} nats, equal to uniform attention over ${formatNumber(Math.exp(value))} `
      + `tokens`,
      (view) => Math.log(view.model.tokens), (view) => `uniform over ${view.model.tokens} tokens: ${formatNumber(Math.log(view.model.tokens))} nats`);
    const { meta } = views[0], on = meta.images ? `Mean over ${meta.measured_on?.text ?? `${meta.images} images`}. ` : "";
    figures["attention-distance"].caption(`${on}Each dot is a head: the distance in pixels between query and key patch, weighted by attention, averaged over queries `
      + `and images (Dosovitskiy et al. 2021, figures 7 right and 11). `
      + `${key === "distance" ? "As in the authors' code, the class token and registers are left out and the remaining weights are not renormalised, so a "
        + "head that attends to the class token has a short distance."
        : "The weights on patches are renormalised to sum to one: how far a head attends among the "
          + "patches."} Large distances in the first layers are impossible for a convolution.`);
    figures["attention-entropy"].caption(`${on}Each dot is a head: 0 means attention to a single token, the dashed line uniform attention. Heads with high entropy in the first layers average `
      + `over the image; low entropy in later layers means focused attention.`);
  }

  function drawDots(name, values, y, text, limit = null, line = null) {
    const available = views.filter((view) => values(view));
    const highest = Math.max(...available.map((view) => Math.max(minMax(values(view).data)[1], limit ? limit(view) : 0)));
    drawColumns(name, (view, index) => (values(view) ? dotPlot(values(view), { onpick: index ? null
      : (layer, head) => state.set({ layer, head, part: "attention" }), title: figures[name].root.querySelector("h2").textContent, y, high: 1.04 * highest,
      text, line: limit && { at: limit(view), name: line(view) } })
      : el("p", { class: "soft" }, "There were no images to measure this on.")));
  }

  function drawHeadSimilarity() {
    drawColumns("head-similarity", (view) => (view.arrays.head_similarity ? similarityRow(view.arrays.head_similarity) : el("p", { class: "soft" }, "There were no images to measure this on.")));
    figures["head-similarity"].caption("One square per layer, one row and column per head: the cosine similarity of two heads' attention, from 0 (dark) to 1 (light). A light cell "
      + "off the diagonal means two heads that attend to the same tokens; their values may still differ.");
  }

  // Python for one model or both; `images`: it needs the images that heads were measured on.
  function snippets(line, images = false) {
    const imports = new Set(["import vitrail"]), lines = [];
    for (const { model, step, meta } of views ?? []) {
      lines.push("", `model = ${step === null ? model.python : model.python_at_step.replace("STEP", step)}`);
      if (images) {
        for (const one of meta.measured_on?.imports ?? store.trace?.meta.image.imports ?? []) imports.add(one);
        if (!meta.measured_on) lines.push(`# the figure was measured on ${meta.images} images; here on one`);
        lines.push(`images = vitrail.preprocess(model, ${meta.measured_on?.python ?? `[${store.trace?.meta.image.python ?? '"image.jpg"'}]`})`);
      }
      lines.push(line);
    }
    return [...imports, ...lines].join("\n");
  }

  function statisticsCode(field) {
    return `vitrail.explain.head_statistics(model, [images]).${field}`;
  }
}

// All tiles in one image, and the active tile enlarged next to it.
class PositionTiles {
  constructor(view, low, onhover, onpick) {
    const { shape: [rows, columns], data } = view.arrays.position_similarity;
    Object.assign(this, { grid: [rows, columns], data, low });
    this.sheet = new PatchGrid({ label: `Position similarity of ${view.name}, one tile per position`, onhover: (patch) => onhover(patch, this.grid),
      onpick: (patch) => onpick(patch, this.grid), describe: (patch) => this.text(patch) });
    this.sheet.show(tileImage(data, rows, columns, low), this.grid);
    this.large = el("canvas", { class: "pixels", "aria-hidden": "true" });
    this.info = el("p", { class: "soft" });
    this.root = el("div", { class: "position-tiles" }, el("div", { class: "sheet" }, this.sheet.root),
      el("div", { class: "large" }, this.large, colorbar(low, 1), this.info));
    this.point(null);
  }

  // null: the centre position.
  point(patch) {
    const [rows, columns] = this.grid, count = rows * columns, at = patch ?? Math.floor(rows / 2) * columns + Math.floor(columns / 2);
    this.sheet.mark({ at: patch });
    drawHeatmap(this.large, this.data, rows, columns, { from: at * count, low: this.low, high: 1 });
    this.large.style.aspectRatio = `${columns} / ${rows}`;
    this.info.textContent = count === 1 ? "" : `${this.text(at)}${patch === null ? " (the centre; point at a tile for another)" : ""}`;
  }

  text(patch) {
    const [rows, columns] = this.grid, row = Math.floor(patch / columns), column = patch % columns, of = (y, x) => this.data[(patch * rows + y) * columns + x];
    const near = [[row - 1, column, "above"], [row + 1, column, "below"], [row, column - 1, "left"], [row, column + 1, "right"]].filter(([y, x]) => y >= 0
      && y < rows && x >= 0 && x < columns);
    if (!near.length) return `Row ${row}, column ${column}: the only position`;
    return `Row ${row}, column ${column}: cosine ${near.map(([y, x, where]) => `${of(y, x).toFixed(2)} ${where}`).join(", ")}`;
  }
}

// One tile per patch, with an empty line at its right and lower edge, so that tiles divide the image evenly; small ones are enlarged.
function tileImage(data, rows, columns, low) {
  const factor = Math.max(1, Math.ceil(28 / columns)), wide = factor * columns, high = factor * rows, width = columns * (wide + 1), height = rows * (high + 1);
  const pixels = new Uint32Array(width * height).fill(0xff808080), line = new Float32Array(wide);
  for (let patch = 0; patch < rows * columns; patch += 1) {
    const top = Math.floor(patch / columns) * (high + 1), left = (patch % columns) * (wide + 1);
    for (let y = 0; y < high; y += 1) {
      const from = (patch * rows + Math.floor(y / factor)) * columns;
      for (let x = 0; x < wide; x += 1) line[x] = data[from + Math.floor(x / factor)];
      paintValues(pixels, (top + y) * width + left, line, 0, wide, low, 1);
    }
  }
  return { shape: [height, width, 4], data: new Uint8Array(pixels.buffer) };
}

function mapPatch(patch, [rows, columns], [toRows, toColumns]) {
  const down = Math.floor(((Math.floor(patch / columns) + 0.5) / rows) * toRows), across = Math.floor((((patch % columns) + 0.5) / columns) * toColumns);
  return down * toColumns + across;
}

function colorbar(low, high) {
  const canvas = el("canvas", { class: "colorbar", "aria-hidden": "true" });
  drawHeatmap(canvas, Float32Array.from({ length: 128 }, (_, index) => index), 1, 128);
  return el("p", { class: "scale" }, el("span", {}, formatNumber(low)), canvas, el("span", {}, formatNumber(high)));
}

function filterCanvas({ arrays: { filters: { shape: [count, channels, high, wide], data } }, name }) {
  const across = Math.min(FILTERS_PER_ROW, count), down = Math.ceil(count / across), width = across * (wide + 1) - 1, height = down * (high + 1) - 1;
  const canvas = el("canvas", { class: "pixels filters", width, height, role: "img", "aria-label": `${count} filters of ${name}, ${high} by ${wide} pixels `
    + `each` });
  const context = canvas.getContext("2d"), image = context.createImageData(width, height);
  for (let one = 0; one < count; one += 1) {
    const top = Math.floor(one / across) * (high + 1), left = (one % across) * (wide + 1);
    for (let y = 0; y < high; y += 1) for (let x = 0; x < wide; x += 1) {
      const to = 4 * ((top + y) * width + left + x);
      for (let colour = 0; colour < 3; colour += 1) image.data[to + colour] = 255 * data[((one * channels + (channels === 3 ? colour : 0)) * high
        + y) * wide + x];
      image.data[to + 3] = 255;
    }
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

// One dot per head, the layers side by side; arrow keys move between dots, and the value of the active one is below.
function dotPlot({ shape: [layers, heads], data }, { title, y, high, text, line, onpick }) {
  const dots = [];
  for (let layer = 0; layer < layers; layer += 1) for (let head = 0; head < heads; head += 1) {
    const value = data[layer * heads + head];
    dots.push({ layer, head, x: layer + (heads > 1 ? 0.5 * (head / (heads - 1) - 0.5) : 0), y: value, text: `layer ${layer}, head ${head}: ${text(value)}` });
  }
  const lines = line ? [{ name: line.name, dashed: true, colour: "var(--soft)", points: [[-0.4, line.at], [layers - 0.6, line.at]] }] : [];
  const drawing = chart({ title, x: "layer", y, lines, dots, low: 0, high, integer: true });
  const circles = [...drawing.querySelectorAll("circle.dot")], info = el("p", { class: "soft text", "aria-live": "polite" },
    `Point at a dot, or use the arrow keys${onpick ? "; a click or Enter shows its attention" : ""}.`);
  let at = null;
  const activate = (index) => {
    if (at !== null) circles[at].classList.remove("large"), circles[at].setAttribute("r", 3.5);
    at = index;
    if (at === null) return;
    circles[at].classList.add("large");
    circles[at].setAttribute("r", 6);
    info.textContent = dots[at].text;
  };
  const root = el("div", { class: "dots", tabindex: "0", role: "application", "aria-label": `${title}: one dot per head. Left and right change the layer, up and `
    + `down the head.`,
    onpointermove: (event) => { const index = circles.indexOf(event.target.closest("circle")); if (index >= 0) activate(index); },
    onclick: (event) => onpick && at !== null && event.target.closest("circle") && onpick(dots[at].layer, dots[at].head),
    onkeydown: (event) => {
      if (event.key === "Enter" && onpick && at !== null) onpick(dots[at].layer, dots[at].head);
      const step = { ArrowLeft: -heads, ArrowRight: heads, ArrowUp: 1, ArrowDown: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      const next = at === null ? 0 : at + step;
      if (next >= 0 && next < dots.length && (Math.abs(step) === heads || Math.floor(next / heads) === Math.floor(at / heads) || at === null)) activate(next);
    } }, drawing);
  return el("div", {}, root, lines.length ? legend(lines) : null, info);
}

// One square per layer.
function similarityRow({ shape: [layers, heads], data }) {
  const info = el("p", { class: "soft text", "aria-live": "polite" }, "Point at a cell, or use the arrow keys; Page up and Page down "
    + "change the layer.");
  let at = [0, 0, 0];
  const squares = Array.from({ length: layers }, (_, layer) => {
    const canvas = el("canvas", { class: "pixels", "aria-hidden": "true" });
    drawHeatmap(canvas, data, heads, heads, { from: layer * heads * heads, low: 0, high: 1 });
    return el("div", { data: { layer } }, canvas, el("span", { class: "soft" }, `${layer}`));
  });
  const activate = (layer, one, other) => {
    at = [layer, one, other];
    squares.forEach((square, index) => square.classList.toggle("at", index === layer));
    info.textContent = `layer ${layer}, heads ${one} and ${other}: cosine ${data[(layer * heads + one) * heads + other].toFixed(3)}`;
  };
  const within = (value, limit) => Math.max(0, Math.min(limit - 1, value));
  return el("div", {}, el("div", { class: "squares", tabindex: "0", role: "application", "aria-label": "Similarity of heads, one square per layer. Arrow keys "
    + "change the heads, Page up and Page down the layer.",
    onpointermove: (event) => {
      if (event.target.localName !== "canvas") return;
      const box = event.target.getBoundingClientRect(), index = (fraction) => within(Math.floor(fraction * heads), heads);
      activate(Number(event.target.parentElement.dataset.layer), index((event.clientY - box.top) / box.height), index((event.clientX - box.left) / box.width));
    },
    onkeydown: (event) => {
      const move = { ArrowLeft: [0, 0, -1], ArrowRight: [0, 0, 1], ArrowUp: [0, -1, 0], ArrowDown: [0, 1, 0], PageUp: [-1, 0, 0],
        PageDown: [1, 0, 0] }[event.key];
      if (!move) return;
      event.preventDefault();
      activate(within(at[0] + move[0], layers), within(at[1] + move[1], heads), within(at[2] + move[2], heads));
    } }, squares), info);
}
