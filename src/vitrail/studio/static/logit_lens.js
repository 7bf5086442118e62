// Part 6: the logit lens, the head applied to the state after every layer.

import { bars, axisLimit, chart, legend } from "./chart.js";
import { drawHeatmap } from "./colormap.js";
import { button, el, percent } from "./dom.js";
import { figure } from "./figure.js";
import { isCurrent } from "./attention_rows.js";
import * as state from "./url_state.js";

const OTHER_CLASSES = 5; // classes besides the target; with many classes the trace has the top five of each state
const DASHES = [null, "7 3", "2 3", "9 3 2 3", "4 2", "12 4"];

export default {
  name: "lens", title: "Logit lens", glyph: "◔",
  lead: "The head reads the output of the last layer. Here it is applied after every layer, and even before the first: when does the prediction appear?",

  // One row per state, one column per class, the target first.
  thumb(canvas, store) {
    const { meta, arrays } = store.trace;
    if (!meta.has_lens) return canvas.getContext("2d").clearRect(0, 0, canvas.width, canvas.height);
    const lens = new Lens(store.trace), values = lens.states.flatMap((at) => lens.leading.map((classIndex) => lens.probability(at, classIndex)));
    drawHeatmap(canvas, Float32Array.from(values), arrays.lens.shape[0], lens.leading.length, { low: 0, high: Math.max(...values) });
  },

  build(section, store) {
    return new LensPart(section, store);
  },
};

// Probabilities by state (0: before the first layer) and class.
class Lens {
  constructor({ meta, arrays: { lens, lens_classes: classes } }) {
    Object.assign(this, { meta, data: lens.data, classes: Array.from(classes.data), states: Array.from({ length: lens.shape[0] }, (_, at) => at) });
    this.columnOf = new Map(this.classes.map((classIndex, index) => [classIndex, index]));
    const others = meta.top.map((one) => one.class).filter((classIndex) => classIndex !== meta.target && this.columnOf.has(classIndex));
    this.leading = [meta.target, ...others.slice(0, OTHER_CLASSES)];
  }

  probability(at, classIndex) {
    return this.data[at * this.classes.length + this.columnOf.get(classIndex)];
  }

  // Top classes of a state; ties keep class order.
  top(at, count) {
    return [...this.classes].sort((one, other) => this.probability(at, other) - this.probability(at, one) || one - other).slice(0, count);
  }

  // The state from which on the final prediction stays first.
  get stableSince() {
    const prediction = this.top(this.states.length - 1, 1)[0];
    let from = this.states.length - 1;
    while (from > 0 && this.top(from - 1, 1)[0] === prediction) from -= 1;
    return { prediction, from };
  }
}

class LensPart {
  constructor(section, store) {
    Object.assign(this, { store, drawnTrace: null });
    this.noHead = el("p", { hidden: true }, "This model predicts no classes, so there is no logit lens of their probabilities.");
    this.summary = el("p", { class: "summary" });
    this.board = el("div", { class: "columns" });
    section.append(this.noHead, this.summary, this.board);
    this.chart = figure(this.board, { name: "lens-depth", title: "Probabilities over depth", level: 2,
      caption: "The final norm and the head were trained on the last state only. Early values show what they make of a state they were never trained on, not what the model \"thinks\" at that point.",
      python: () => this.#python(), numbers: () => this.#numbers() });
    this.layer = figure(this.board, { name: "lens-layer", title: "One state", level: 2, python: () => this.#python(this.at), numbers: () => this.#layerNumbers() });
    this.table = figure(section, { name: "lens-table", title: "Layer by layer", level: 2, python: () => this.#python(), numbers: () => this.#rows() });
    this.rows = el("table", { class: "lens" });
    this.table.body.append(this.rows);
  }

  draw(reason) {
    const { trace } = this.store;
    if (!isCurrent(this.store) || (reason === "point" && this.drawnTrace === trace)) return;
    const empty = !trace.meta.has_lens;
    this.noHead.hidden = !empty;
    this.noHead.textContent = trace.meta.classes ? "The head of this model reads several blocks, or tokens of its own, so it cannot be applied after each block."
      : "This model predicts no classes, so there is no logit lens of their probabilities.";
    this.summary.hidden = this.board.hidden = this.table.root.hidden = empty;
    if (empty) return;
    if (!this.lens || this.drawnTrace !== trace) Object.assign(this, { lens: new Lens(trace), drawnTrace: trace });
    this.summary.replaceChildren(...this.#summaryText());
    this.#chart();
    this.#layer();
    this.#table();
  }

  // The selected state; by default the last one.
  get at() {
    const wanted = state.number("lens_layer"), last = this.lens.states.length - 1;
    return Number.isInteger(wanted) && wanted >= 0 && wanted <= last ? wanted : last;
  }

  #choose(at) {
    state.set({ lens_layer: at === this.lens.states.length - 1 ? null : at });
  }

  #summaryText() {
    const { prediction, from } = this.lens.stableSince, last = this.lens.states.length - 1, name = el("strong", {}, this.store.label(prediction));
    if (from === 0) return [name, " is the top class even before the first layer, and stays first."];
    if (from === last) return [name, " becomes the top class only after the last layer: one layer earlier the head predicts something else."];
    return [name, ` becomes the top class after ${from} of ${last} layers, with ${percent(this.lens.probability(from, prediction))}, `
      + `and stays first to the end, where it has ${percent(this.lens.probability(last, prediction))}.`];
  }

  #chart() {
    const { lens } = this, width = Math.max(260, Math.min(720, this.chart.body.clientWidth || 440));
    const lines = lens.leading.map((classIndex, index) => ({ dashed: DASHES[index], name: this.store.label(classIndex), points: lens.states.map((at) => [at, lens.probability(at, classIndex)]) }));
    const high = axisLimit(lines.flatMap((line) => line.points.map(([, fraction]) => fraction)));
    this.chart.body.replaceChildren(
      chart({ title: "Probability of the leading classes after each layer", x: "layers", y: "probability", lines, mark: this.at,
        fraction: true, low: 0, high, integer: true, width, height: 280,
        onpick: (x) => this.#choose(Math.max(0, Math.min(lens.states.length - 1, Math.round(x)))) }), legend(lines));
  }

  #layer() {
    const { lens, at } = this, { meta } = this.store.trace;
    const listed = lens.top(at, lens.classes.length === meta.classes ? 8 : OTHER_CLASSES);
    if (!listed.includes(meta.target)) listed.push(meta.target);
    this.layer.body.replaceChildren(el("p", { class: "head-title" }, stateName(at, lens.states.length - 1)),
      bars(listed.map((classIndex) => ({ label: this.store.label(classIndex), value: lens.probability(at, classIndex), selected: classIndex === meta.target }))));
    this.layer.caption(meta.sigmoid ? "This model was trained with the sigmoid loss: each class has its own probability, and they do not sum to one."
      : "The top classes of this state, and the target class. Click another layer in the chart or in the table.");
  }

  #table() {
    const { target } = this.store.trace.meta, name = this.store.label(target), focus = document.activeElement?.closest("table.lens [data-at]")?.dataset.at;
    this.rows.replaceChildren(el("caption", { class: "visually-hidden" }, "Logit lens of every state"),
      el("thead", {}, el("tr", {}, ["State", "Prediction", "Probability", `Probability of ${name}`, `Its rank of ${this.lens.meta.classes.toLocaleString("en")}`].map((text, index) => el("th", { scope: "col", class: index > 1 ? "number" : null }, text)))),
      el("tbody", {}, this.#rows().map((row) => el("tr", { class: row.at === this.at ? "selected" : null },
        el("th", { scope: "row" }, button(stateName(row.at, this.lens.states.length - 1), () => this.#choose(row.at), { "aria-pressed": String(row.at === this.at), data: { at: row.at } })),
        el("td", {}, row.prediction), el("td", { class: "number" }, percent(row.probability)), el("td", { class: "number" }, percent(row.target)),
        el("td", { class: "number" }, row.rank.toLocaleString("en"))))));
    if (focus) this.rows.querySelector(`[data-at="${focus}"]`)?.focus();
  }

  #rows() {
    const { lens } = this, { target } = this.store.trace.meta;
    return lens.states.map((at) => {
      const [classIndex] = lens.top(at, 1);
      return { at, class: classIndex, prediction: this.store.label(classIndex), probability: lens.probability(at, classIndex), target: lens.probability(at, target), rank: lens.meta.ranks[at] };
    });
  }

  #numbers() {
    const { lens } = this;
    return { classes: lens.leading, class_names: lens.leading.map((classIndex) => this.store.label(classIndex)), probabilities: lens.states.map((at) => lens.leading.map((classIndex) => lens.probability(at, classIndex))) };
  }

  #layerNumbers() {
    return { state: this.at, classes: this.lens.classes.map((classIndex) => ({ class: classIndex, label: this.store.label(classIndex), probability: this.lens.probability(this.at, classIndex) })) };
  }

  #python(at = null) {
    const how = this.store.trace.meta.sigmoid ? "sigmoid()" : "softmax(dim=-1)";
    return this.store.python("logits = vitrail.explain.logit_lens(model, images)[:, 0]  # before the first layer, then after each", `probabilities = logits.double().${how}`,
      at === null ? `print(probabilities[:, [${this.lens.leading}]])  # ${this.lens.leading.map((classIndex) => this.store.label(classIndex)).join(", ").replace(/\s+/g, " ")}` : `print(probabilities[${at}].topk(${Math.min(OTHER_CLASSES, this.lens.meta.classes)}))`,
      ...(at === null ? ["print(probabilities.max(dim=1))  # the top class of each state"] : []));
  }
}

function stateName(at, last) {
  return at === 0 ? "before the first layer" : at === last ? `after all ${last} layers` : `after ${at} of ${last} layers`;
}
