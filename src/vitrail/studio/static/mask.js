// The mask of a segmentation model over its input: the class of every pixel or how certain it is; a click explains a pixel.
//
// In the URL: `pixel` as column,row; `overlay` (classes or confidence), `opacity` in percent, `hidden` classes.

import { standalone, fetchArrays } from "./api.js";
import { drawHeatmap, minMax } from "./colormap.js";
import { button, el, percent } from "./dom.js";
import { figure } from "./figure.js";
import { PatchGrid } from "./patch_grid.js";
import { showError } from "./toast.js";
import * as state from "./url_state.js";

const OVERLAYS = { classes: "Classes", confidence: "Confidence" };
const MAX_CACHED = 16; // responses in memory

export class MaskFigure {
  constructor(parent, store) {
    Object.assign(this, { store, cache: new Map(), request: null, abort: null });
    const { root, body, caption } = figure(parent, { name: "mask", title: "Predicted mask", level: 2, python: () => this.#python(), numbers: () => this.#numbers() });
    Object.assign(this, { root, caption });
    this.overlays = el("div", { class: "choice", role: "group", "aria-label": "What is drawn over the image" },
      Object.entries(OVERLAYS).map(([name, text]) => button(text, () => state.set({ overlay: name === "classes" ? null : name }), { data: { overlay: name } })));
    this.opacity = el("input", { type: "range", min: 0, max: 100, step: 5, oninput: () => state.set({ opacity: this.opacity.value }) });
    this.grid = new PatchGrid({
      label: "The mask over the model's input. Shift and arrow keys move by a patch", unit: "pixels", lines: false,
      onhover: (pixel) => { this.hovered = pixel; this.#describe(); },
      onpick: (pixel) => this.#pick(pixel),
      describe: (pixel) => this.#pixelText(pixel),
    });
    this.info = el("p", { class: "soft pixel-info" });
    this.legend = el("ul", { class: "legend classes", "aria-label": "Classes that are drawn" });
    this.chosen = el("p", { class: "chosen" });
    body.append(el("div", { class: "controls" }, this.overlays, el("label", { class: "field" }, el("span", {}, "Opacity"), this.opacity)),
      el("div", { class: "stage" }, this.grid.root), this.info, this.legend, this.chosen);
    root.hidden = true;
  }

  // `pixels(arrays, meta)` returns the input with the removed patches.
  draw(view) {
    this.root.hidden = !this.store.model.segments;
    if (this.root.hidden) return;
    this.view = view;
    this.#load().catch(showError);
    this.redraw();
  }

  redraw() {
    if (this.root.hidden || !this.store.trace?.meta.region) return;
    const { meta, arrays } = this.store.trace, [height, width] = arrays.pixels.shape, { pixel } = meta.region;
    for (const one of this.overlays.children) one.setAttribute("aria-pressed", String(one.dataset.overlay === this.overlay));
    this.opacity.value = this.opacityPercent;
    this.grid.stride = [height / meta.grid[0], width / meta.grid[1]];
    this.grid.show(this.view.pixels(arrays, meta), [height, width]);
    this.grid.mark({ at: pixel ? pixel[1] * width + pixel[0] : null });
    this.#paint();
    this.#describe();
    this.#drawChosen();
  }

  get overlay() {
    return state.get("overlay") in OVERLAYS ? state.get("overlay") : "classes";
  }

  get opacityPercent() {
    return Math.max(0, Math.min(100, state.number("opacity", 55)));
  }

  // The response, or while it is loaded the last one of the same image.
  get response() {
    const current = this.cache.get(JSON.stringify(this.#params())), { shown } = this;
    return current ?? (shown?.image === state.get("image") && shown.model === this.store.model.id ? shown.response : null);
  }

  #params() {
    const { model, step, image, weights_version } = this.store.requestParams(), { patches, mode, seed } = this.view;
    return { model, step, image, weights_version, patches, mode: patches ? mode : null, seed: patches && mode === "shuffle" ? seed : null };
  }

  async #load() {
    const params = this.#params(), key = JSON.stringify(params);
    if (this.cache.has(key) || this.request === key || (standalone && params.patches)) return;
    this.abort?.abort();
    const abort = (this.abort = new AbortController());
    this.request = key;
    try {
      if (params.patches) await new Promise((done) => { setTimeout(done, 120); }); // a brush changes patches quickly
      if (abort.signal.aborted) return;
      this.cache.set(key, await fetchArrays("api/mask", params, { signal: abort.signal }));
      if (this.cache.size > MAX_CACHED) this.cache.delete(this.cache.keys().next().value);
    } finally {
      if (this.request === key) this.request = null;
    }
    this.redraw();
  }

  #paint() {
    const { response, grid } = this, hidden = this.#hidden();
    grid.over.hidden = !response;
    this.root.classList.toggle("loading", !this.cache.has(JSON.stringify(this.#params())));
    if (!response) return;
    this.shown = { image: state.get("image"), model: this.store.model.id, response };
    const { classes: { data, shape: [height, width] }, confidence } = response.arrays;
    if (this.overlay === "confidence") drawHeatmap(grid.over, confidence.data, height, width);
    else {
      Object.assign(grid.over, { width, height });
      const context = grid.over.getContext("2d"), image = context.createImageData(width, height), painted = new Uint32Array(image.data.buffer);
      const colours = new Map(response.meta.classes.map((one) => [one.class, hidden.has(one.class) ? 0 : colourNumber(one.colour)]));
      for (let at = 0; at < data.length; at += 1) painted[at] = colours.get(data[at]);
      context.putImageData(image, 0, 0);
    }
    grid.over.style.opacity = this.opacityPercent / 100;
    this.#drawLegend(response, hidden);
    const [low, high] = minMax(confidence.data);
    this.caption(this.overlay === "confidence" ? `Confidence: the probability of the predicted class of each pixel, from ${percent(low)} (dark) to ${percent(high)} (light), on average ${percent(response.meta.mean_confidence)}.`
      : "The class of every pixel, at the size of the model's input. Click a pixel to see what the model looked at for it.");
  }

  #hidden() {
    return new Set((state.get("hidden") ?? "").split(",").filter(Boolean).map(Number));
  }

  #drawLegend({ meta: { classes } }, hidden) {
    const drawn = JSON.stringify([classes, [...hidden]]);
    if (this.drawnLegend === drawn) return;
    this.drawnLegend = drawn;
    const focused = [...this.legend.querySelectorAll("input")].find((one) => one === document.activeElement)?.value;
    this.legend.replaceChildren(...classes.map((one) => el("li", {}, el("label", {},
      el("input", { type: "checkbox", value: one.class, checked: !hidden.has(one.class), onchange: () => this.#toggle(one.class) }),
      el("span", { class: "swatch", style: { background: one.colour }, "aria-hidden": "true" }), `${one.label} ${percent(one.fraction)}`))));
    if (focused) this.legend.querySelector(`input[value="${focused}"]`)?.focus();
  }

  #toggle(label) {
    const hidden = this.#hidden();
    if (!hidden.delete(label)) hidden.add(label);
    state.set({ hidden: [...hidden].join(",") || null });
  }

  #pick(at) {
    if (standalone || !this.store.trace) return;
    const { meta: { grid, prefix }, arrays: { pixels: { shape: [height, width] } } } = this.store.trace, column = at % width, row = Math.floor(at / width);
    const patch = Math.floor((row / height) * grid[0]) * grid[1] + Math.floor((column / width) * grid[1]);
    state.set({ pixel: `${column},${row}`, query: prefix + patch, class: null });
  }

  #pixelText(at) {
    const width = this.store.trace.arrays.pixels.shape[1], place = `column ${at % width}, row ${Math.floor(at / width)}`, { response } = this;
    return response ? `${place}: ${this.store.label(response.arrays.classes.data[at])}, ${percent(response.arrays.confidence.data[at])}` : place;
  }

  #describe() {
    const at = this.hovered ?? this.grid.at;
    this.info.textContent = at === null || at === undefined || !this.store.trace ? "Point at a pixel, or use the arrow keys; a click or Enter explains it." : this.#pixelText(at);
  }

  // What is explained in every part, and where to see it.
  #drawChosen() {
    const { region } = this.store.trace.meta, content = this.store.regionText;
    if (this.drawnChosen === content) return;
    this.drawnChosen = content;
    const focused = this.chosen.contains(document.activeElement) ? document.activeElement.textContent : null;
    this.chosen.replaceChildren(el("span", {}, `Explained: ${content}. `), button("Its attention", () => state.set({ part: "attention" })), " ",
      button("Its saliency", () => state.set({ part: "saliency" })), " ",
      region.pixel && !standalone ? button("Explain the whole region", () => state.set({ pixel: null, query: null, class: null })) : "");
    if (focused) [...this.chosen.querySelectorAll("button")].find((one) => one.textContent === focused)?.focus();
  }

  #python() {
    const { model, trace: { meta: { image } } } = this.store, step = state.get("step");
    return ["import vitrail", ...image.imports, "", `model = ${step === null ? model.python : model.python_at_step.replace("STEP", step)}`, `images = vitrail.preprocess(model, [${image.python}])`, "",
      "confidence, classes = model(images)[0].softmax(0).max(0)  # of every pixel, without any removed patches", "print(classes, confidence)"].join("\n");
  }

  #numbers() {
    const { response } = this;
    return response && { ...response.meta, shape: response.arrays.classes.shape, classes_of_pixels: response.arrays.classes.data, confidence: response.arrays.confidence.data };
  }
}

// "#rrggbb" as ImageData has it on little-endian machines: 0xAABBGGRR.
function colourNumber(text) {
  const [red, green, blue] = [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16));
  return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}
