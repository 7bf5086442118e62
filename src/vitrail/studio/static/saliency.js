// Part 5: saliency maps of the class by several methods, and how faithful each of them is.

import { drawHeatmap } from "./colormap.js";
import { button, el, percent, select } from "./dom.js";
import { figure } from "./figure.js";
import { PatchGrid, drawPixels } from "./patch_grid.js";
import * as api from "./api.js";
import { isCurrent } from "./attention_rows.js";
import { toast, showError } from "./toast.js";
import * as state from "./url_state.js";
import { BASELINES, CLASSLESS, METHOD_ORDER, FaithfulnessTable, methodName, faithfulnessCurves, methodDescription } from "./faithfulness.js";

const MAX_CACHED = 64; // responses in memory: a few images
let thumbnail = null; // in the navigation; the rollout is drawn into it as soon as it is loaded
const cache = new Map(); // response by request URL

export default {
  name: "saliency", title: "Saliency", glyph: "⇶",
  lead: "The attention of one layer is not an explanation. These methods estimate how much each patch contributes to the prediction; the deletion and insertion curves measure how faithful each map is for this image.",

  thumb(canvas, store) {
    thumbnail = canvas;
    const { meta: { depth, heads, prefix, tokens, grid }, arrays: { pooled_attention } } = store.trace;
    const rollout = cache.get(requestUrl(store, "rollout"));
    if (rollout) drawHeatmap(canvas, rollout.arrays.map.data, ...grid);
    else {
      const mean = new Float32Array(tokens);
      for (let head = 0; head < heads; head += 1) for (let token = 0; token < tokens; token += 1) mean[token] += pooled_attention.data[((depth - 1) * heads + head) * tokens + token];
      drawHeatmap(canvas, mean, ...grid, { from: prefix });
    }
  },

  build(section, store) {
    return new SaliencyPart(section, store);
  },
};

function requestUrl(store, method) {
  return api.requestUrl("api/saliency", store.requestParams({ method }));
}

class SaliencyPart {
  constructor(section, store) {
    Object.assign(this, { section, store, running: false, drawnTrace: null, failures: new Map(), ranking: new FaithfulnessTable() });
    this.#buildControls();
    this.cardStrip = el("div", { class: "methods", role: "group", "aria-label": "Methods" });
    this.board = el("div", { class: "board" });
    section.append(this.cardStrip, this.board);
    this.#buildMap();
    this.#buildCurves();
    this.#buildTable();
  }

  #buildControls() {
    this.classes = select("Class to explain", [], "", (value) => this.#setTarget(value));
    this.names = el("datalist", { id: "saliency-classes" });
    this.classInput = el("input", { type: "text", list: "saliency-classes", placeholder: "any class", "aria-label": "Any class by name or index", disabled: api.standalone,
      oninput: () => this.#suggest(), onchange: () => this.#selectByName(this.classInput.value) });
    this.classes.querySelector("select").disabled = api.standalone;
    this.controls = el("div", { class: "controls" }, this.classes, this.classInput, this.names, api.standalone ? el("span", { class: "soft" }, "A saved page explains only the class that it was saved with.") : null);
    this.noHead = el("p", { hidden: true }, "This model predicts no classes: only maps that need none are drawn, and there is no probability to measure faithfulness with.");
    this.section.append(this.controls, this.noHead);
  }

  #buildMap() {
    const { body } = figure(this.board, { name: "saliency-map", title: "Saliency map", level: 2, python: () => this.#python(), numbers: () => this.#numbers() });
    this.map = new PatchGrid({
      label: "Saliency map of the selected method",
      onhover: (patch) => this.store.trace && this.store.hover(patch === null ? null : patch + this.store.trace.meta.prefix),
      onpick: (patch) => this.store.trace && this.store.pin(patch + this.store.trace.meta.prefix),
      describe: (patch) => this.#patchText(patch),
    });
    this.title = el("p", { class: "head-title" });
    this.patchInfo = el("p", { class: "soft patch-info" });
    body.append(this.title, this.map.root, this.patchInfo);
  }

  #buildCurves() {
    const { body, caption, root } = figure(this.board, { name: "faithfulness-curves", title: "Deletion and insertion curves", level: 2, python: () => this.#python(), numbers: () => this.#curveNumbers() });
    Object.assign(this, { curvesBody: body, curvesCaption: caption, curvesRoot: root });
  }

  #buildTable() {
    const { body, root } = figure(this.section, { name: "faithfulness-table", title: "Faithfulness of all methods on this image", level: 2,
      caption: ["Deletion: mean probability of the class while patches are removed, most important first; lower is better. ",
        "Insertion: while patches are added to a blurred image; higher is better. One image proves little: ", el("code", {}, "vitrail explain RUN --faithfulness DATA"), " measures it on many."],
      python: () => this.#pythonAll(), numbers: () => this.#methods().map((method) => this.response(method)?.meta ?? { method }) });
    this.tableRoot = root;
    body.append(this.ranking.root);
  }

  #methods() {
    const { methods } = this.store.info, all = METHOD_ORDER.filter((name) => methods.includes(name)).concat(methods.filter((name) => !METHOD_ORDER.includes(name)));
    return this.store.trace.meta.target === null ? all.filter((name) => CLASSLESS.includes(name)) : all;
  }

  get method() {
    const methods = this.#methods(), wanted = state.get("method");
    return methods.includes(wanted) ? wanted : methods[0];
  }

  response(method) {
    return cache.get(requestUrl(this.store, method)) ?? null;
  }

  draw(reason) {
    if (this.pending && this.url !== requestUrl(this.store, this.pending)) this.controller.abort(); // the request is outdated
    if (!isCurrent(this.store)) return;
    if (reason === "point" && this.drawnTrace === this.store.trace) return this.#markPatch();
    if (reason === "trace") this.failures.clear();
    this.#update();
    this.#show();
    this.#fetch().catch(showError);
  }

  #update() {
    const { meta, arrays } = this.store.trace, methods = this.#methods();
    this.map.show(arrays.pixels, meta.grid, meta.region?.bounds);
    this.controls.hidden = meta.target === null;
    this.noHead.hidden = meta.target !== null;
    this.curvesRoot.hidden = this.tableRoot.hidden = meta.target === null;
    const options = meta.top.map((one) => [one.class, `${one.label} (${percent(one.probability)})`]);
    if (meta.target !== null && !meta.top.some((one) => one.class === meta.target)) options.push([meta.target, this.store.label(meta.target)]);
    const box = this.classes.querySelector("select");
    if (String(options) !== this.options) box.replaceChildren(...options.map(([value, text]) => el("option", { value }, text)));
    this.options = String(options);
    box.value = meta.target;
    if (this.drawnTrace === this.store.trace && this.cards?.size === methods.length) return;
    this.drawnTrace = this.store.trace;
    this.cards = new Map(methods.map((method) => [method, this.#card(method)]));
    this.cardStrip.replaceChildren(...[...this.cards.values()].map((card) => card.root));
  }

  // A card per method: the image, the map over it once it is loaded, the name.
  #card(method) {
    const below = el("canvas", { class: "pixels", "aria-hidden": "true" }), over = el("canvas", { class: "pixels over", hidden: true, "aria-hidden": "true" });
    const { pixels } = this.store.trace.arrays, status = el("span", { class: "state" });
    drawPixels(below, pixels);
    const frame = el("span", { class: "small" }, below, over);
    frame.style.aspectRatio = `${pixels.shape[1]} / ${pixels.shape[0]}`;
    return { below, over, state: status, drawn: null, root: button([frame, el("span", {}, methodName(method)), status], () => state.set({ method }), { data: { method } }) };
  }

  #show() {
    const { meta } = this.store.trace, selected = this.response(this.method);
    for (const [method, card] of this.cards) this.#fill(method, card);
    const name = methodName(this.method);
    this.title.textContent = meta.target === null ? name : `${name}, for ${this.store.label(meta.target)}`;
    this.map.showHeatmap(selected?.arrays.map.data ?? null, {});
    this.text = selected ? methodDescription(this.method) : this.failures.get(this.method) ?? "Loading ...";
    this.#markPatch();
    if (meta.target === null) return;
    this.#drawCurves(selected);
    this.#drawTable();
  }

  #fill(method, card) {
    const response = this.response(method), failure = this.failures.get(method);
    card.root.setAttribute("aria-pressed", String(method === this.method));
    card.root.classList.toggle("waiting", !response && !failure);
    card.state.textContent = response ? "" : failure ? "not available" : this.pending === method ? "loading ..." : "queued";
    card.over.hidden = !response;
    if (response && card.drawn !== response) drawHeatmap(card.over, response.arrays.map.data, ...this.store.trace.meta.grid);
    card.drawn = response;
  }

  #markPatch() {
    const { meta } = this.store.trace, token = this.store.activeToken, patch = token !== null && token >= meta.prefix ? token - meta.prefix : null;
    this.map.mark({ at: patch });
    this.patchInfo.textContent = patch === null ? this.text ?? "" : this.#patchText(patch);
  }

  #patchText(patch) {
    const { data } = this.response(this.method)?.arrays.map ?? {}, text = this.store.tokenName(patch + this.store.trace.meta.prefix);
    if (!data) return text;
    const total = data.reduce((all, value) => all + value, 0), rank = data.reduce((before, value) => before + (value > data[patch]), 1);
    return `${text}: ${total > 0 ? percent(data[patch] / total, 2) : "0 %"} of the total saliency, rank ${rank} of ${data.length}`;
  }

  #drawCurves(selected) {
    if (!selected) return this.curvesBody.replaceChildren(el("p", { class: "waiting" }, this.failures.get(this.method) ?? "Loading the curves ..."));
    const label = this.store.label(this.store.trace.meta.target), width = Math.max(260, Math.min(560, this.curvesBody.clientWidth || 440));
    const baselines = BASELINES.filter((name) => name !== this.method).map((name) => this.response(name)).filter(Boolean);
    this.curvesBody.replaceChildren(...faithfulnessCurves([selected, ...baselines], label, width));
    this.curvesCaption(`Probability of ${label}. The numbers are areas under the curves (AUC). Dashed: the baselines.`);
  }

  #drawTable() {
    const rows = this.#methods().map((method) => ({
      method, meta: this.response(method)?.meta, text: this.failures.get(method) ?? (this.pending === method ? "loading ..." : "queued"),
    }));
    this.ranking.draw(rows, this.method, !this.#next());
  }

  // Load one after the other: the selected method, the baselines, then the rest. Stops when the part is hidden.
  async #fetch() {
    if (this.running) return;
    this.running = true;
    try {
      for (let method = this.#next(); method; method = this.#next()) {
        const url = requestUrl(this.store, method);
        this.pending = method;
        this.#fill(method, this.cards.get(method));
        await this.#load(method, url);
        if (this.section.hidden || !isCurrent(this.store)) return;
        this.#show();
      }
    } finally {
      this.pending = null;
      this.running = false;
    }
  }

  #next() {
    const methods = this.#methods();
    return [this.method, ...BASELINES, ...methods].find((method) => methods.includes(method) && !this.response(method) && !this.failures.has(method));
  }

  async #load(method, url) {
    try {
      this.url = url;
      this.controller = new AbortController();
      cache.set(url, await api.fetchArrays("api/saliency", this.store.requestParams({ method }), { signal: this.controller.signal }));
      if (cache.size > MAX_CACHED) cache.delete(cache.keys().next().value);
      if (method === "rollout" && thumbnail && url === requestUrl(this.store, method)) drawHeatmap(thumbnail, cache.get(url).arrays.map.data, ...cache.get(url).arrays.map.shape);
    } catch (error) {
      if (error.name === "AbortError") return;
      if (url === requestUrl(this.store, method)) this.failures.set(method, error.message);
      if (error.status === undefined) throw error;
    }
  }

  #setTarget(value) {
    const { meta } = this.store.trace;
    state.set({ class: Number(value) === meta.predicted ? null : value });
  }

  #suggest() {
    const query = this.classInput.value.trim().toLowerCase(), { class_names } = this.store.model;
    this.names.replaceChildren(...(query ? class_names.filter((label) => label.toLowerCase().includes(query)).slice(0, 20) : []).map((label) => el("option", { value: label })));
  }

  #selectByName(text) {
    const query = text.trim().toLowerCase(), { class_names } = this.store.model, { classes } = this.store.trace.meta;
    if (!query) return;
    const exact = class_names.findIndex((label) => label.toLowerCase() === query), number = /^\d+$/.test(query) ? Number(query) : -1;
    const classIndex = exact >= 0 ? exact : number >= 0 ? number : class_names.findIndex((label) => label.toLowerCase().includes(query));
    if (classIndex < 0 || classIndex >= classes) return toast(`There is no class ${text.trim()}; enter a class name, or an index from 0 to ${classes - 1}.`);
    this.classInput.value = "";
    this.#setTarget(classIndex);
  }

  #python(method = this.method) {
    const { target } = this.store.trace.meta, classesArgument = target === null ? "" : ", classes";
    const { [method]: baseline } = { random: "random_map", edges: "edge_map" };
    const map = baseline ? [`from vitrail.explain.faithfulness import ${baseline}`, `maps = ${baseline}(images, model.grid(images))`]
      : [`maps = vitrail.explain.saliency(model, images, "${method}"${classesArgument})`];
    if (target === null) return this.store.python(...map, "print(maps[0])");
    return this.store.python(`classes = torch.tensor([${target}])  # ${oneLine(this.store.label(target))}`, ...map,
      "faith = vitrail.explain.faithfulness(model, images, maps, classes)",
      "print(maps[0], faith.deletion_curve[0], faith.insertion_curve[0])", "print(faith.deletion_auc, faith.insertion_auc)  # areas under the curves");
  }

  #pythonAll() {
    const { target } = this.store.trace.meta, methods = this.#methods().filter((method) => !BASELINES.includes(method));
    return this.store.python("from vitrail.explain.faithfulness import edge_map, random_map",
      `classes = torch.tensor([${target}])  # ${oneLine(this.store.label(target))}`,
      `maps = {name: vitrail.explain.saliency(model, images, name, classes) for name in ${JSON.stringify(methods)}}`,
      `maps["random"], maps["edges"] = random_map(images, model.grid(images)), edge_map(images, model.grid(images))`,
      "for name, heat in maps.items():", "    faith = vitrail.explain.faithfulness(model, images, heat, classes)", "    print(name, faith.deletion_auc.item(), faith.insertion_auc.item())");
  }

  #numbers() {
    const response = this.response(this.method);
    return response && { ...response.meta, shape: response.arrays.map.shape, map: response.arrays.map.data };
  }

  #curveNumbers() {
    return Object.fromEntries([...new Set([this.method, ...BASELINES])].filter((method) => this.response(method)).map((method) => {
      const { meta, arrays } = this.response(method);
      return [method, { ...meta, deletion: arrays.deletion.data, insertion: arrays.insertion.data }];
    }));
  }
}

// A label inside a Python comment must not contain a line break.
function oneLine(text) {
  return text.replace(/\s+/g, " ");
}
