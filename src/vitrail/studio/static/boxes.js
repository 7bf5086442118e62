// The boxes that a detection model finds, over its input: a threshold for their scores, the objects of the dataset, a click explains a box.
//
// In the URL: `box` as the index of a detection, `threshold` in percent (without it, that of each class), `objects` ("hidden").

import { standalone, fetchArrays } from "./api.js";
import { button, el, plural, svg } from "./dom.js";
import { figure } from "./figure.js";
import { drawPixels } from "./patch_grid.js";
import { showError } from "./toast.js";
import * as state from "./url_state.js";

const MAX_CACHED = 16; // responses in memory
const LETTER = 12, PAD = 4; // CSS pixels of a label
const LABEL_FONT = `${LETTER}px system-ui, sans-serif`;

export class BoxFigure {
  constructor(parent, store) {
    Object.assign(this, { store, cache: new Map(), request: null, abort: null, hovered: null });
    const { root, body, caption } = figure(parent, { name: "boxes", title: "Detected objects", level: 2, python: () => this.#python(), numbers: () => this.#numbers() });
    Object.assign(this, { root, caption });
    this.slider = el("input", { type: "range", min: 0, max: 100, step: 1, oninput: () => state.set({ threshold: this.slider.value }) });
    this.value = el("output");
    this.reset = button("That of each class", () => state.set({ threshold: null }), { title: "The thresholds that the model predicts with" });
    this.toggle = el("input", { type: "checkbox", onchange: () => state.set({ objects: this.toggle.checked ? null : "hidden" }) });
    this.toggleLabel = el("label", { class: "field" }, this.toggle, el("span", {}, "Objects of the dataset (dashed)"));
    this.canvas = el("canvas", { class: "pixels", "aria-hidden": "true" });
    this.drawing = svg("svg", { role: "img" });
    this.stage = el("div", { class: "box-stage", onclick: (event) => this.#click(event), onpointermove: (event) => this.#hover(this.#at(event)), onpointerleave: () => this.#hover(null) }, this.canvas, this.drawing);
    this.summary = el("p", { role: "status" });
    this.list = el("ol", { class: "box-list", onkeydown: (event) => this.#walk(event) });
    this.info = el("p", { class: "soft pixel-info" });
    this.chosen = el("p", { class: "chosen" });
    body.append(el("div", { class: "controls" }, el("label", { class: "field" }, el("span", {}, "Score threshold"), this.slider, this.value), this.reset, this.toggleLabel),
      el("div", { class: "box-columns" }, el("div", {}, this.stage, this.info), el("div", {}, this.summary, this.list, this.chosen)));
    new ResizeObserver(() => this.#paint()).observe(this.stage);
    root.hidden = true;
  }

  // `pixels(arrays, meta)` returns the input with the removed patches.
  draw(view) {
    this.root.hidden = !this.store.model.detects;
    if (this.root.hidden) return;
    this.view = view;
    this.#load().catch(showError);
    this.redraw();
  }

  redraw() {
    if (this.root.hidden || !this.store.trace?.meta.region) return;
    const { meta, arrays } = this.store.trace, pixels = this.view.pixels(arrays, meta), [height, width] = pixels.shape;
    if (this.drawnPixels !== pixels) drawPixels(this.canvas, pixels);
    this.drawnPixels = pixels;
    Object.assign(this.stage.style, { aspectRatio: `${width} / ${height}` });
    this.toggleLabel.hidden = !meta.objects;
    this.toggle.checked = state.get("objects") !== "hidden";
    this.#drawThreshold();
    this.#drawList();
    this.#paint();
    this.#drawChosen();
    this.caption(this.view.patches ? "What is found without the removed patches. To choose a box, select no patches."
      : "Boxes at the size of the model's input. Click one, or choose it in the list, to see what the model looked at for it.");
  }

  get threshold() {
    const value = state.number("threshold");
    return value === null ? null : Math.max(0, Math.min(100, value)) / 100;
  }

  // The response, or while it is loaded the last one of the same image.
  get response() {
    const current = this.cache.get(JSON.stringify(this.#params())), { shown } = this;
    return current ?? (shown?.image === state.get("image") && shown.model === this.store.model.id ? shown.response : null);
  }

  // The boxes above the threshold, each with its index.
  get visible() {
    const { boxes = [], thresholds = [] } = this.response?.meta ?? {};
    return boxes.map((box, index) => ({ ...box, index })).filter((box) => box.score >= (this.threshold ?? thresholds[box.class]));
  }

  // The index of the box that all parts explain; null while patches are removed, which changes the boxes.
  get selected() {
    return this.view.patches ? null : this.store.trace.meta.region.index;
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
      this.cache.set(key, await fetchArrays("api/boxes", params, { signal: abort.signal }));
      if (this.cache.size > MAX_CACHED) this.cache.delete(this.cache.keys().next().value);
    } finally {
      if (this.request === key) this.request = null;
    }
    this.redraw();
  }

  #drawThreshold() {
    const own = this.response?.meta.thresholds ?? [0.5], [low, high] = [Math.min(...own), Math.max(...own)], { threshold } = this;
    this.slider.value = Math.round(100 * (threshold ?? low));
    this.value.textContent = threshold !== null ? threshold.toFixed(2) : low === high ? low.toFixed(2) : `${low.toFixed(2)} to ${high.toFixed(2)}, by class`;
    this.slider.setAttribute("aria-valuetext", this.value.textContent);
    this.reset.hidden = threshold === null;
  }

  // The boxes as buttons: one stop of the tab key, arrow keys move over them.
  #drawList() {
    const { visible, response } = this;
    this.root.classList.toggle("loading", !this.cache.has(JSON.stringify(this.#params())));
    if (!response) return;
    this.shown = { image: state.get("image"), model: this.store.model.id, response };
    const { boxes } = response.meta, { objects } = this.store.trace.meta;
    const best = boxes.reduce((first, one) => (one.score > (first?.score ?? -1) ? one : first), null);
    const limit = this.threshold === null ? "reaches the threshold of its class" : `has a score of at least ${this.threshold.toFixed(2)}`;
    this.summary.textContent = `${visible.length ? `${plural(visible.length, "box", "boxes")}.` : `No box ${limit}${best ? `; the highest score is ${best.score.toFixed(2)}, of ${best.label}` : ""}.`}`
      + `${objects ? ` The dataset has ${plural(objects.length, "object")} here.` : ""}`;
    const drawn = JSON.stringify([visible, this.selected, this.view.patches]);
    if (this.drawnList === drawn) return;
    this.drawnList = drawn;
    const focused = document.activeElement?.closest(".box-list button")?.dataset.index, fixed = standalone || this.view.patches;
    const tabStop = visible.some((one) => one.index === this.selected) ? this.selected : visible[0]?.index;
    this.list.replaceChildren(...visible.map((one) => {
      const parts = [el("span", { class: "swatch", style: { background: one.colour }, "aria-hidden": "true" }), el("span", { class: "name" }, one.label), el("span", { class: "score" }, one.score.toFixed(2))];
      const mark = { onpointerenter: () => this.#hover(one.index), onpointerleave: () => this.#hover(null), onfocus: () => this.#hover(one.index), onblur: () => this.#hover(null) };
      return el("li", {}, fixed ? el("span", { class: "row", ...mark }, parts)
        : el("button", { type: "button", class: "row", tabindex: one.index === tabStop ? "0" : "-1", "aria-pressed": String(one.index === this.selected), data: { index: one.index },
          onclick: () => this.#pick(one.index), ...mark }, parts));
    }));
    if (focused !== undefined) (this.list.querySelector(`button[data-index="${focused}"]`) ?? this.list.querySelector("button"))?.focus();
  }

  #walk(event) {
    const rows = [...this.list.querySelectorAll("button")], at = rows.indexOf(document.activeElement);
    const next = { ArrowDown: at + 1, ArrowRight: at + 1, ArrowUp: at - 1, ArrowLeft: at - 1, Home: 0, End: rows.length - 1 }[event.key];
    if (next === undefined || !rows[next]) return;
    event.preventDefault();
    for (const row of rows) row.tabIndex = -1;
    rows[next].tabIndex = 0;
    rows[next].focus();
  }

  // Frames and labels in CSS pixels, so that they are equally thin whatever the size of the input.
  #paint() {
    const { width, height } = this.stage.getBoundingClientRect();
    if (!width || this.root.hidden || !this.store.trace?.meta.region || !this.response) return;
    const { meta, arrays } = this.store.trace, scale = width / arrays.pixels.shape[1], { visible, selected } = this;
    const objects = meta.objects && state.get("objects") !== "hidden" ? meta.objects : [], { region } = meta;
    const order = [...visible].reverse(), explained = this.view.patches ? null : region.bounds;
    const best = this.response.meta.boxes[selected], hidden = best && !visible.some((one) => one.index === selected) ? { ...best, index: selected } : null; // below the threshold
    const frames = order.map((one) => [one, frame(one.bounds, scale, [width, height])]);
    this.drawing.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.drawing.setAttribute("aria-label", `${plural(visible.length, "box", "boxes")} over the model's input${objects.length ? `, and ${plural(objects.length, "object")} of the dataset` : ""}`);
    this.drawing.replaceChildren(
      ...objects.flatMap((one) => outline(frame(one.bounds, scale, [width, height]), one.colour, 2, "5 4")),
      ...frames.flatMap(([one, rect]) => outline(rect, one.colour, one.index === this.hovered ? 4 : 2)),
      ...(explained ? outline(frame(explained, scale, [width, height], 3), "#fff", 2, null, "#000") : []),
      ...labels([...frames.reverse(), ...(hidden ? [[hidden, frame(hidden.bounds, scale, [width, height])]] : [])], [width, height], this.hovered ?? selected));
    this.#describe();
  }

  #at(event) {
    const box = this.stage.getBoundingClientRect(), [height, width] = this.store.trace?.arrays.pixels.shape ?? [1, 1];
    const x = ((event.clientX - box.left) / box.width) * width, y = ((event.clientY - box.top) / box.height) * height;
    const area = ({ bounds: [left, top, right, bottom] }) => (right - left) * (bottom - top);
    const inside = this.visible.filter(({ bounds: [left, top, right, bottom] }) => left <= x && x < right && top <= y && y < bottom);
    return inside.sort((one, other) => area(one) - area(other))[0]?.index ?? null; // the smallest: one in another can be reached
  }

  #click(event) {
    const index = this.#at(event);
    if (index !== null) this.#pick(index);
  }

  #hover(index) {
    if (this.hovered === index) return;
    this.hovered = index;
    this.stage.classList.toggle("pointing", index !== null && !standalone && !this.view.patches);
    this.#paint();
  }

  #pick(index) {
    if (standalone || this.view.patches || !this.store.trace) return;
    state.set({ box: index, class: null, query: this.store.trace.meta.prefix + this.response.meta.boxes[index].patch });
  }

  #describe() {
    const one = this.response?.meta.boxes[this.hovered];
    this.info.textContent = one ? this.#boxText(one) : "Point at a box for its score and its place in the image.";
  }

  #boxText({ label, score, bounds }) {
    const { image, preprocess: { box: [left, top, right, bottom] } } = this.store.trace.meta, [height, width] = this.store.trace.arrays.pixels.shape;
    const [across, down] = [(right - left) / width, (bottom - top) / height], within = (value, limit) => Math.round(Math.max(0, Math.min(limit, value)));
    return `${label}, score ${score.toFixed(3)}: columns ${within(left + bounds[0] * across, image.width)} to ${within(left + bounds[2] * across, image.width)}, `
      + `rows ${within(top + bounds[1] * down, image.height)} to ${within(top + bounds[3] * down, image.height)} of the image`;
  }

  // What is explained in every part, and where to see it.
  #drawChosen() {
    const { region } = this.store.trace.meta, content = JSON.stringify([this.store.regionText, region]);
    if (this.drawnChosen === content) return;
    this.drawnChosen = content;
    const focused = this.chosen.contains(document.activeElement) ? document.activeElement.textContent : null;
    this.chosen.replaceChildren(el("span", {}, `Explained: ${this.store.regionText} with a score of ${region.score.toFixed(2)}. `), button("Its attention", () => state.set({ part: "attention" })), " ",
      button("Its saliency", () => state.set({ part: "saliency" })), " ",
      region.box !== null && !standalone ? button("Explain the best box", () => state.set({ box: null, query: null, class: null })) : "");
    if (focused) [...this.chosen.querySelectorAll("button")].find((one) => one.textContent === focused)?.focus();
  }

  #python() {
    const { model, trace: { meta: { image } } } = this.store, step = state.get("step");
    return ["import vitrail", ...image.imports, "", `model = ${step === null ? model.python : model.python_at_step.replace("STEP", step)}`,
      `(prediction,) = vitrail.predict(model, [${image.python}]${this.threshold === null ? "" : `, threshold=${this.threshold}`})  # without any removed patches`,
      "for box in prediction.boxes:", "    print(box.label, box.score, box.box)  # left, top, right, bottom in pixels of the image"].join("\n");
  }

  #numbers() {
    const { response, store } = this;
    return response && { threshold: this.threshold, ...response.meta, boxes: this.visible, objects: store.trace.meta.objects };
  }
}

// The rectangle of a box in CSS pixels, inside of the stage; `outset`: how far around the box.
function frame([left, top, right, bottom], scale, [width, height], outset = 0) {
  const within = (value, limit) => Math.max(1, Math.min(limit - 1, value));
  const [x, y] = [within(left * scale - outset, width), within(top * scale - outset, height)];
  return { x, y, width: Math.max(2, within(right * scale + outset, width) - x), height: Math.max(2, within(bottom * scale + outset, height) - y) };
}

// A frame with a halo, so that it is seen on any image.
function outline(rect, colour, width, dashes = null, halo = "rgb(0 0 0 / .45)") {
  const shared = { ...rect, fill: "none", "stroke-dasharray": dashes };
  return [svg("rect", { ...shared, stroke: halo, "stroke-width": width + 2 }), svg("rect", { ...shared, stroke: colour, "stroke-width": width })];
}

// Labels where there is room: above the frame, in it, below it; that of `first` always.
function labels(frames, [width, height], first) {
  const context = el("canvas").getContext("2d"), placed = [], drawn = [], tall = LETTER + PAD;
  context.font = LABEL_FONT;
  const sorted = [...frames].sort(([one], [other]) => Number(other.index === first) - Number(one.index === first) || other.score - one.score);
  for (const [one, rect] of sorted) {
    const text = `${one.label} ${one.score.toFixed(2)}`, wide = context.measureText(text).width + 2 * PAD;
    const x = Math.max(0, Math.min(rect.x - 1, width - wide));
    const spots = [rect.y - tall - 1, rect.y + 1, rect.y + rect.height + 1, rect.y + rect.height - tall - 1].filter((y) => y >= 0 && y + tall <= height);
    const y = spots.find((at) => !placed.some((other) => x < other.x + other.wide && other.x < x + wide && at < other.y + tall && other.y < at + tall)) ?? (one.index === first ? spots[0] : undefined);
    if (y === undefined) continue;
    placed.push({ x, y, wide });
    drawn.push(svg("rect", { x, y, width: wide, height: tall, fill: one.colour }), svg("text", { x: x + PAD, y: y + LETTER, fill: inkOn(one.colour), "font-size": LETTER, "font-family": "system-ui, sans-serif" }, text));
  }
  return drawn;
}

// Black or white, whichever contrasts more with "#rrggbb".
function inkOn(colour) {
  const [red, green, blue] = [1, 3, 5].map((at) => (parseInt(colour.slice(at, at + 2), 16) / 255) ** 2.2);
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.18 ? "#000" : "#fff";
}
