// Part 5: which patches spoke for the class, by several methods, and which of them to trust.

import { ceiling, chart, legend } from "./chart.js";
import { LINES, heat } from "./colour.js";
import { button, el, percent, select } from "./dom.js";
import { figure } from "./figure.js";
import { PatchGrid, picture } from "./grid.js";
import * as net from "./net.js";
import { say, told } from "./say.js";
import * as state from "./state.js";

const KEPT = 64; // answers that are held: a few pictures
const ORDER = ["rollout", "gradient_rollout", "relevance", "attention", "gradcam", "integrated", "random", "edges"];
const BASELINES = ["random", "edges"];
const WORDS = {
  rollout: ["Rollout", "The attention of all layers multiplied through, with the residual: what of each patch arrives at what is read. It is the same for every class. Abnar and Zuidema 2020."],
  gradient_rollout: ["Gradient rollout", "Rollout of the weights that the class's gradient calls useful: what arrives and speaks for the class."],
  relevance: ["Relevance", "Gradient times attention, gathered over the layers. Chefer, Gur and Wolf 2021."],
  attention: ["Last attention", "What is read looks at in the last layer, mean over heads. It is the same for every class."],
  gradcam: ["Grad-CAM", "Channels of the tokens that enter the last layer, weighed by the class's gradient. Selvaraju et al. 2017."],
  integrated: ["Integrated gradients", "What each patch adds to the class on the way from a grey picture to this one. Sundararajan, Taly and Yan 2017."],
  random: ["Random", "Chance, which no explanation should fall behind. No model is asked."],
  edges: ["Edges", "How much of an edge each patch holds. No model is asked: a method that is no better has found edges, not reasons."],
};

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
    Object.assign(this, { section, studio, running: false, laid: null, refused: new Map(), order: { by: "trust", down: true } });
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
      caption: ["Deletion: mean probability of the class while patches go, most important first; low is good. Insertion: while they come into a blurred picture; high is good. One picture is an anecdote: ", el("code", {}, "vitrail explain RUN --trust DATA"), " measures on many."],
      python: () => this.#pythonAll(), numbers: () => this.#methods().map((method) => this.answer(method)?.facts ?? { method }) });
    this.table = el("table", { class: "trust" });
    this.tableRoot = root;
    body.append(this.table);
  }

  #methods() {
    const { methods } = this.studio.facts, all = ORDER.filter((name) => methods.includes(name)).concat(methods.filter((name) => !ORDER.includes(name)));
    return this.studio.trace.facts.target === null ? all.filter((name) => ["rollout", "attention"].includes(name)) : all;
  }

  get method() {
    const methods = this.#methods(), wanted = state.get("method");
    return methods.includes(wanted) ? wanted : methods[0];
  }

  answer(method) {
    return known.get(asked(this.studio, method)) ?? null;
  }

  draw(why) {
    const { trace, busy } = this.studio;
    if (!trace || (busy && why !== "trace" && why !== "point" && why !== "theme")) return; // the trace of what is asked for is on its way
    if (why === "point") return this.#marks();
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
    return { below, over, state: state_, drawn: null, root: button([frame, el("span", {}, WORDS[method]?.[0] ?? method), state_], () => state.set({ method }), { data: { method } }) };
  }

  #show() {
    const { facts } = this.studio.trace, chosen = this.answer(this.method);
    for (const [method, card] of this.cards) this.#fill(method, card);
    const [name, words] = WORDS[this.method] ?? [this.method, ""];
    this.title.textContent = facts.target === null ? name : `${name}, for ${this.studio.label(facts.target)}`;
    this.map.heat(chosen?.arrays.map.data ?? null, {});
    this.words = chosen ? words : this.refused.get(this.method) ?? "On its way ...";
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
    const drawn = [this.method, ...BASELINES.filter((name) => name !== this.method && this.answer(name))];
    const lines = (what) => drawn.map((method) => {
      const { data } = this.answer(method).arrays[what];
      return { name: WORDS[method]?.[0] ?? method, colour: colour(method, this.method), dashed: method !== this.method, points: Array.from(data, (value, step) => [(100 * step) / (data.length - 1), value]) };
    });
    const both = { y: "probability", share: true, low: 0, high: ceiling(drawn.flatMap((method) => ["deletion", "insertion"].flatMap((what) => Array.from(this.answer(method).arrays[what].data)))), width, height: 190 };
    this.curves.replaceChildren(legend(lines("deletion")),
      el("p", { class: "what" }, el("strong", {}, `Deletion ${chosen.facts.deleted.toFixed(3)}`), ": patches go, most important first. A good map makes the line fall early."),
      chart({ ...both, title: `Probability of ${label} while patches go`, x: "patches that are gone, %", lines: lines("deletion") }),
      el("p", { class: "what" }, el("strong", {}, `Insertion ${chosen.facts.inserted.toFixed(3)}`), ": they come into a blurred picture. A good map makes the line rise early."),
      chart({ ...both, title: `Probability of ${label} while patches come`, x: "patches that have come, %", lines: lines("insertion") }));
    this.curvesCaption(`Probability of ${label}. The numbers are areas: mean heights of the lines. Dashed: the maps to beat.`);
  }

  #drawTable() {
    const { by, down } = this.order;
    const rows = this.#methods().map((method) => ({ method, found: this.answer(method)?.facts }));
    const value = ({ method, found }) => by === "name" ? WORDS[method]?.[0] ?? method : found ? { trust: found.inserted - found.deleted, deleted: found.deleted, inserted: found.inserted }[by] : null;
    rows.sort((one, other) => {
      const [a, b] = [value(one), value(other)];
      if (a === null || b === null) return (a === null) - (b === null);
      return (a < b ? -1 : a > b ? 1 : 0) * (down ? -1 : 1);
    });
    const head = (name, words, first) => el("th", { scope: "col", class: name === "name" ? null : "number", "aria-sort": by === name ? (down ? "descending" : "ascending") : null },
      button([words, el("span", { "aria-hidden": "true" }, by === name ? (down ? " ▾" : " ▴") : "")], () => {
        this.order = { by: name, down: by === name ? !down : first };
        this.#drawTable();
        this.table.querySelector(`[data-by="${name}"]`).focus();
      }, { data: { by: name } }));
    const best = rows.filter((row) => row.found).sort((one, other) => other.found.inserted - other.found.deleted - one.found.inserted + one.found.deleted)[0];
    this.table.replaceChildren(el("caption", { class: "unseen" }, "Areas under the curves of every method"),
      el("thead", {}, el("tr", {}, head("name", "Method", false), head("deleted", "Deletion, low is good", false), head("inserted", "Insertion, high is good", true), head("trust", "Insertion less deletion", true))),
      el("tbody", {}, rows.map(({ method, found }) => el("tr", { class: method === this.method ? "chosen" : null },
        el("th", { scope: "row" }, WORDS[method]?.[0] ?? method, BASELINES.includes(method) ? el("span", { class: "soft" }, " (to beat)") : null, best?.method === method && rows.every((row) => row.found || this.refused.has(row.method)) ? el("span", { class: "best" }, " best here") : null),
        found ? [found.deleted, found.inserted, found.inserted - found.deleted].map((number) => el("td", { class: "number" }, number.toFixed(3)))
          : el("td", { class: "waiting", colspan: 3 }, this.refused.get(method) ?? (this.asking === method ? "on its way ..." : "waits for its turn"))))));
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
        if (this.section.hidden || this.studio.busy) return;
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
      known.set(question, await net.binary("api/flow", this.studio.here({ method })));
      if (known.size > KEPT) known.delete(known.keys().next().value);
      if (method === "rollout" && thumbnail && question === asked(this.studio, method)) heat(thumbnail, known.get(question).arrays.map.data, ...known.get(question).arrays.map.shape);
    } catch (error) {
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
    const map = BASELINES.includes(method) ? [`from vitrail.explain.faithfulness import ${method === "random" ? "random_map" : "edge_map"}`, `maps = ${method === "random" ? "random_map" : "edge_map"}(images, model.grid(images))`]
      : [`maps = vitrail.explain.saliency(model, images, "${method}"${which})`];
    if (target === null) return this.studio.python(...map, "print(maps[0])");
    return this.studio.python(`classes = torch.tensor([${target}])  # ${this.studio.label(target)}`, ...map, "faith = vitrail.explain.faithfulness(model, images, maps, classes)", "print(maps[0], faith.deletion[0], faith.insertion[0])", "print(faith.deleted, faith.inserted)  # the areas");
  }

  #pythonAll() {
    const { target } = this.studio.trace.facts, methods = this.#methods().filter((method) => !BASELINES.includes(method));
    return this.studio.python("from vitrail.explain.faithfulness import edge_map, random_map", `classes = torch.tensor([${target}])  # ${this.studio.label(target)}`,
      `maps = {name: vitrail.explain.saliency(model, images, name, classes) for name in ${JSON.stringify(methods)}}`, `maps["random"], maps["edges"] = random_map(images, model.grid(images)), edge_map(images, model.grid(images))`,
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

// The chosen one is always of the same colour, and so are those to beat.
function colour(method, chosen) {
  return method === chosen ? LINES[0] : method === "random" ? LINES[3] : LINES[2];
}
