// Part 5: which patches spoke for the class, by several methods, and which of them to trust.

import { heat } from "./colour.js";
import { button, el, percent, select } from "./dom.js";
import { figure } from "./figure.js";
import { PatchGrid, picture } from "./grid.js";
import * as net from "./net.js";
import { current } from "./rows.js";
import { say, told } from "./say.js";
import * as state from "./state.js";
import { BASELINES, CLASSLESS, ORDER, Ranking, called, curves, meaning } from "./trust.js";

const KEPT = 64; // answers that are held: a few pictures
let thumbnail = null; // of the story; the rollout is drawn into it as soon as it is there
const known = new Map(); // address of a question: its answer

export default {
  name: "flow", title: "Flow", glyph: "⇶",
  lead: "Attention of one layer is not the whole way. These methods follow what flows from the patches to the answer; the curves say how far to trust each of them on this picture.",

  thumb(canvas, studio) {
    thumbnail = canvas;
    const { facts: { depth, heads, prefix, tokens, grid }, arrays: { pooled } } = studio.trace;
    const rollout = known.get(asked(studio, "rollout"));
    if (rollout) heat(canvas, rollout.arrays.map.data, ...grid);
    else {
      const mean = new Float32Array(tokens);
      for (let head = 0; head < heads; head += 1) for (let token = 0; token < tokens; token += 1) mean[token] += pooled.data[((depth - 1) * heads + head) * tokens + token];
      heat(canvas, mean, ...grid, { from: prefix });
    }
  },

  build(section, studio) {
    return new Flow(section, studio);
  },
};

function asked(studio, method) {
  return net.address("api/flow", studio.here({ method }));
}

class Flow {
  constructor(section, studio) {
    Object.assign(this, { section, studio, running: false, laid: null, refused: new Map(), ranking: new Ranking() });
    this.#controls();
    this.strip = el("div", { class: "methods", role: "group", "aria-label": "Methods" });
    this.board = el("div", { class: "board" });
    section.append(this.strip, this.board);
    this.#map();
    this.#curves();
    this.#ranking();
  }

  #controls() {
    this.classes = select("Class to explain", [], "", (value) => this.#explain(value));
    this.names = el("datalist", { id: "flow-classes" });
    this.any = el("input", { type: "text", list: "flow-classes", placeholder: "any class", "aria-label": "Any class by name or number", disabled: net.alone,
      oninput: () => this.#offer(), onchange: () => this.#named(this.any.value) });
    this.classes.querySelector("select").disabled = net.alone;
    this.controls = el("div", { class: "controls" }, this.classes, this.any, this.names, net.alone ? el("span", { class: "soft" }, "A saved copy explains the one class that it was saved with.") : null);
    this.none = el("p", { hidden: true }, "This model has no classes: only what needs none is drawn, and there is no probability that could fall when patches go.");
    this.section.append(this.controls, this.none);
  }

  #map() {
    const { body } = figure(this.board, { name: "flow-map", title: "Where the answer comes from", level: 2, python: () => this.#python(), numbers: () => this.#numbers() });
    this.map = new PatchGrid({
      label: "The map of the chosen method",
      onhover: (patch) => this.studio.trace && this.studio.hover(patch === null ? null : patch + this.studio.trace.facts.prefix),
      onpick: (patch) => this.studio.trace && this.studio.pin(patch + this.studio.trace.facts.prefix),
      describe: (patch) => this.#patchWords(patch),
    });
    this.title = el("p", { class: "who" });
    this.under = el("p", { class: "soft under" });
    body.append(this.title, this.map.root, this.under);
  }

  #curves() {
    const { body, caption, root } = figure(this.board, { name: "flow-curves", title: "Does the model agree?", level: 2, python: () => this.#python(), numbers: () => this.#curveNumbers() });
    Object.assign(this, { curves: body, curvesCaption: caption, curvesRoot: root });
  }

  #ranking() {
    const { body, root } = figure(this.section, { name: "flow-trust", title: "Which one to trust on this picture", level: 2,
      caption: ["Deletion: mean probability of the class while patches go, most important first; low is good. ",
        "Insertion: while they come into a blurred picture; high is good. One picture is an anecdote: ", el("code", {}, "vitrail explain RUN --trust DATA"), " measures on many."],
      python: () => this.#pythonAll(), numbers: () => this.#methods().map((method) => this.answer(method)?.facts ?? { method }) });
    this.tableRoot = root;
    body.append(this.ranking.root);
  }

  #methods() {
    const { methods } = this.studio.facts, all = ORDER.filter((name) => methods.includes(name)).concat(methods.filter((name) => !ORDER.includes(name)));
    return this.studio.trace.facts.target === null ? all.filter((name) => CLASSLESS.includes(name)) : all;
  }

  get method() {
    const methods = this.#methods(), wanted = state.get("method");
    return methods.includes(wanted) ? wanted : methods[0];
  }

  answer(method) {
    return known.get(asked(this.studio, method)) ?? null;
  }

  draw(why) {
    if (this.asking && this.question !== asked(this.studio, this.asking)) this.asked.abort(); // nobody waits for it any more
    if (!current(this.studio)) return;
    if (why === "point" && this.laid === this.studio.trace) return this.#marks();
    if (why === "trace") this.refused.clear();
    this.#settle();
    this.#show();
    this.#fetch().catch(told);
  }

  #settle() {
    const { facts, arrays } = this.studio.trace, methods = this.#methods();
    this.map.show(arrays.pixels, facts.grid);
    this.controls.hidden = facts.target === null;
    this.none.hidden = facts.target !== null;
    this.curvesRoot.hidden = this.tableRoot.hidden = facts.target === null;
    const options = facts.top.map((one) => [one.class, `${one.label} (${percent(one.probability)})`]);
    if (facts.target !== null && !facts.top.some((one) => one.class === facts.target)) options.push([facts.target, this.studio.label(facts.target)]);
    const box = this.classes.querySelector("select");
    if (String(options) !== this.options) box.replaceChildren(...options.map(([value, words]) => el("option", { value }, words)));
    this.options = String(options);
    box.value = facts.target;
    if (this.laid === this.studio.trace && this.cards?.size === methods.length) return;
    this.laid = this.studio.trace;
    this.cards = new Map(methods.map((method) => [method, this.#card(method)]));
    this.strip.replaceChildren(...[...this.cards.values()].map((card) => card.root));
  }

  // One method in small: the picture, the map over it as soon as it is there, its name.
  #card(method) {
    const below = el("canvas", { class: "pixels", "aria-hidden": "true" }), over = el("canvas", { class: "pixels over", hidden: true, "aria-hidden": "true" });
    const { pixels } = this.studio.trace.arrays, state_ = el("span", { class: "state" });
    picture(below, pixels);
    const frame = el("span", { class: "small" }, below, over);
    frame.style.aspectRatio = `${pixels.shape[1]} / ${pixels.shape[0]}`;
    return { below, over, state: state_, drawn: null, root: button([frame, el("span", {}, called(method)), state_], () => state.set({ method }), { data: { method } }) };
  }

  #show() {
    const { facts } = this.studio.trace, chosen = this.answer(this.method);
    for (const [method, card] of this.cards) this.#fill(method, card);
    const name = called(this.method);
    this.title.textContent = facts.target === null ? name : `${name}, for ${this.studio.label(facts.target)}`;
    this.map.heat(chosen?.arrays.map.data ?? null, {});
    this.words = chosen ? meaning(this.method) : this.refused.get(this.method) ?? "On its way ...";
    this.#marks();
    if (facts.target === null) return;
    this.#drawCurves(chosen);
    this.#drawTable();
  }

  #fill(method, card) {
    const found = this.answer(method), refused = this.refused.get(method);
    card.root.setAttribute("aria-pressed", String(method === this.method));
    card.root.classList.toggle("waiting", !found && !refused);
    card.state.textContent = found ? "" : refused ? "not for this model" : this.asking === method ? "on its way ..." : "waits";
    card.over.hidden = !found;
    if (found && card.drawn !== found) heat(card.over, found.arrays.map.data, ...this.studio.trace.facts.grid);
    card.drawn = found;
  }

  #marks() {
    const { facts } = this.studio.trace, token = this.studio.pointed, patch = token !== null && token >= facts.prefix ? token - facts.prefix : null;
    this.map.mark({ at: patch });
    this.under.textContent = patch === null ? this.words ?? "" : this.#patchWords(patch);
  }

  #patchWords(patch) {
    const { data } = this.answer(this.method)?.arrays.map ?? {}, words = this.studio.token(patch + this.studio.trace.facts.prefix);
    if (!data) return words;
    const total = data.reduce((all, value) => all + value, 0), rank = data.reduce((before, value) => before + (value > data[patch]), 1);
    return `${words}: ${total > 0 ? percent(data[patch] / total, 2) : "0 %"} of the map, number ${rank} of ${data.length}`;
  }

  #drawCurves(chosen) {
    if (!chosen) return this.curves.replaceChildren(el("p", { class: "waiting" }, this.refused.get(this.method) ?? "The curves are on their way ..."));
    const label = this.studio.label(this.studio.trace.facts.target), width = Math.max(260, Math.min(560, this.curves.clientWidth || 440));
    const beside = BASELINES.filter((name) => name !== this.method).map((name) => this.answer(name)).filter(Boolean);
    this.curves.replaceChildren(...curves([chosen, ...beside], label, width));
    this.curvesCaption(`Probability of ${label}. The numbers are areas: mean heights of the lines. Dashed: the maps to beat.`);
  }

  #drawTable() {
    const rows = this.#methods().map((method) => ({
      method, facts: this.answer(method)?.facts, words: this.refused.get(method) ?? (this.asking === method ? "on its way ..." : "waits for its turn"),
    }));
    this.ranking.draw(rows, this.method, !this.#next());
  }

  // One after the other: the chosen one first, then what it is measured by, then the rest. Stops when nobody looks.
  async #fetch() {
    if (this.running) return;
    this.running = true;
    try {
      for (let method = this.#next(); method; method = this.#next()) {
        const question = asked(this.studio, method);
        this.asking = method;
        this.#fill(method, this.cards.get(method));
        await this.#ask(method, question);
        if (this.section.hidden || !current(this.studio)) return;
        this.#show();
      }
    } finally {
      this.asking = null;
      this.running = false;
    }
  }

  #next() {
    const methods = this.#methods();
    return [this.method, ...BASELINES, ...methods].find((method) => methods.includes(method) && !this.answer(method) && !this.refused.has(method));
  }

  async #ask(method, question) {
    try {
      this.question = question;
      this.asked = new AbortController();
      known.set(question, await net.binary("api/flow", this.studio.here({ method }), { signal: this.asked.signal }));
      if (known.size > KEPT) known.delete(known.keys().next().value);
      if (method === "rollout" && thumbnail && question === asked(this.studio, method)) heat(thumbnail, known.get(question).arrays.map.data, ...known.get(question).arrays.map.shape);
    } catch (error) {
      if (error.name === "AbortError") return;
      if (question === asked(this.studio, method)) this.refused.set(method, error.message);
      if (error.status === undefined) throw error;
    }
  }

  #explain(value) {
    const { facts } = this.studio.trace;
    state.set({ class: Number(value) === facts.top[0].class ? null : value });
  }

  #offer() {
    const word = this.any.value.trim().toLowerCase(), { labels } = this.studio.model;
    this.names.replaceChildren(...(word ? labels.filter((label) => label.toLowerCase().includes(word)).slice(0, 20) : []).map((label) => el("option", { value: label })));
  }

  #named(words) {
    const word = words.trim().toLowerCase(), { labels } = this.studio.model, { classes } = this.studio.trace.facts;
    if (!word) return;
    const same = labels.findIndex((label) => label.toLowerCase() === word), number = /^\d+$/.test(word) ? Number(word) : -1;
    const found = same >= 0 ? same : number >= 0 ? number : labels.findIndex((label) => label.toLowerCase().includes(word));
    if (found < 0 || found >= classes) return say(`There is no class ${words.trim()}; name one, or give its number from 0 to ${classes - 1}.`);
    this.any.value = "";
    this.#explain(found);
  }

  #python(method = this.method) {
    const { target } = this.studio.trace.facts, which = target === null ? "" : ", classes";
    const { [method]: baseline } = { random: "random_map", edges: "edge_map" };
    const map = baseline ? [`from vitrail.explain.faithfulness import ${baseline}`, `maps = ${baseline}(images, model.grid(images))`]
      : [`maps = vitrail.explain.saliency(model, images, "${method}"${which})`];
    if (target === null) return this.studio.python(...map, "print(maps[0])");
    return this.studio.python(`classes = torch.tensor([${target}])  # ${oneLine(this.studio.label(target))}`, ...map,
      "faith = vitrail.explain.faithfulness(model, images, maps, classes)",
      "print(maps[0], faith.deletion[0], faith.insertion[0])", "print(faith.deleted, faith.inserted)  # the areas");
  }

  #pythonAll() {
    const { target } = this.studio.trace.facts, methods = this.#methods().filter((method) => !BASELINES.includes(method));
    return this.studio.python("from vitrail.explain.faithfulness import edge_map, random_map",
      `classes = torch.tensor([${target}])  # ${oneLine(this.studio.label(target))}`,
      `maps = {name: vitrail.explain.saliency(model, images, name, classes) for name in ${JSON.stringify(methods)}}`,
      `maps["random"], maps["edges"] = random_map(images, model.grid(images)), edge_map(images, model.grid(images))`,
      "for name, heat in maps.items():", "    faith = vitrail.explain.faithfulness(model, images, heat, classes)", "    print(name, faith.deleted.item(), faith.inserted.item())");
  }

  #numbers() {
    const found = this.answer(this.method);
    return found && { ...found.facts, shape: found.arrays.map.shape, map: found.arrays.map.data };
  }

  #curveNumbers() {
    return Object.fromEntries([...new Set([this.method, ...BASELINES])].filter((method) => this.answer(method)).map((method) => {
      const { facts, arrays } = this.answer(method);
      return [method, { ...facts, deletion: arrays.deletion.data, insertion: arrays.insertion.data }];
    }));
  }
}

// A label goes into a comment of Python: it must not end it.
function oneLine(words) {
  return words.replace(/\s+/g, " ");
}
