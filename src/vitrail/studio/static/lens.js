// Part 6: what the head would say if it were asked earlier.

import { bars, ceiling, chart, legend } from "./chart.js";
import { heat } from "./colour.js";
import { button, el, percent } from "./dom.js";
import { figure } from "./figure.js";
import { current } from "./rows.js";
import * as state from "./state.js";

const FEW = 5; // classes beside the target; of more than the trace holds whole, the first five of each state are exact
const DASHES = [null, "7 3", "2 3", "9 3 2 3", "4 2", "12 4"];

export default {
  name: "lens", title: "Lens", glyph: "◔",
  lead: "The head reads what the last layer leaves. Here it is asked after every layer, and even before the first: when does the answer appear?",

  // A row a state, a column a class, the answer's first.
  thumb(canvas, studio) {
    const { facts, arrays } = studio.trace;
    if (!facts.classes) return canvas.getContext("2d").clearRect(0, 0, canvas.width, canvas.height);
    const lens = new Lens(studio.trace), values = lens.states.flatMap((at) => lens.leading.map((which) => lens.odds(at, which)));
    heat(canvas, Float32Array.from(values), arrays.lens.shape[0], lens.leading.length, { low: 0, high: Math.max(...values) });
  },

  build(section, studio) {
    return new LensPart(section, studio);
  },
};

// The trace's numbers by state (0: before the first layer) and class.
class Lens {
  constructor({ facts, arrays: { lens, lens_classes: classes } }) {
    Object.assign(this, { facts, data: lens.data, classes: Array.from(classes.data), states: Array.from({ length: lens.shape[0] }, (_, at) => at) });
    this.place = new Map(this.classes.map((which, place) => [which, place]));
    const others = facts.top.map((one) => one.class).filter((which) => which !== facts.target && this.place.has(which));
    this.leading = [facts.target, ...others.slice(0, FEW)];
  }

  odds(at, which) {
    return this.data[at * this.classes.length + this.place.get(which)];
  }

  // Most probable first; of equal ones the first comes first.
  first(at, count) {
    return [...this.classes].sort((one, other) => this.odds(at, other) - this.odds(at, one) || one - other).slice(0, count);
  }

  // From which state on the final answer leads without a break.
  get settled() {
    const answer = this.first(this.states.length - 1, 1)[0];
    let from = this.states.length - 1;
    while (from > 0 && this.first(from - 1, 1)[0] === answer) from -= 1;
    return { answer, from };
  }
}

class LensPart {
  constructor(section, studio) {
    Object.assign(this, { studio, drawn: null });
    this.none = el("p", { hidden: true }, "This model has no head (classes=0): there is nothing to ask.");
    this.told = el("p", { class: "told" });
    this.board = el("div", { class: "columns" });
    section.append(this.none, this.told, this.board);
    this.chart = figure(this.board, { name: "lens-depth", title: "The answer over depth", level: 2,
      caption: "The last norm and the head were trained for the last state only. Early numbers say what they would make of a state that they were never trained on, not what the model thinks at that point.",
      python: () => this.#python(), numbers: () => this.#numbers() });
    this.layer = figure(this.board, { name: "lens-layer", title: "One state", level: 2, python: () => this.#python(this.at), numbers: () => this.#layerNumbers() });
    this.table = figure(section, { name: "lens-table", title: "Layer by layer", level: 2, python: () => this.#python(), numbers: () => this.#rows() });
    this.rows = el("table", { class: "lens" });
    this.table.body.append(this.rows);
  }

  draw(why) {
    const { trace } = this.studio;
    if (!current(this.studio) || (why === "point" && this.drawn === trace)) return;
    const empty = !trace.facts.classes;
    this.none.hidden = !empty;
    this.told.hidden = this.board.hidden = this.table.root.hidden = empty;
    if (empty) return;
    if (!this.lens || this.drawn !== trace) Object.assign(this, { lens: new Lens(trace), drawn: trace });
    this.told.replaceChildren(...this.#sentence());
    this.#chart();
    this.#layer();
    this.#table();
  }

  // The state that is looked at: by itself, the last one.
  get at() {
    const wanted = state.number("lens_layer"), last = this.lens.states.length - 1;
    return Number.isInteger(wanted) && wanted >= 0 && wanted <= last ? wanted : last;
  }

  #choose(at) {
    state.set({ lens_layer: at === this.lens.states.length - 1 ? null : at });
  }

  #sentence() {
    const { answer, from } = this.lens.settled, last = this.lens.states.length - 1, name = el("strong", {}, this.studio.label(answer));
    if (from === 0) return [name, " leads before the first layer already, and stays ahead."];
    if (from === last) return [name, " leads for good only after the last layer: one layer earlier the head would still say something else."];
    return [name, ` takes the lead after ${from} of ${last} layers, with ${percent(this.lens.odds(from, answer))}, `
      + `and keeps it to the end, where it has ${percent(this.lens.odds(last, answer))}.`];
  }

  #chart() {
    const { lens } = this, width = Math.max(260, Math.min(720, this.chart.body.clientWidth || 440));
    const lines = lens.leading.map((which, place) => ({ dashed: DASHES[place], name: this.studio.label(which), points: lens.states.map((at) => [at, lens.odds(at, which)]) }));
    const high = ceiling(lines.flatMap((line) => line.points.map(([, share]) => share)));
    this.chart.body.replaceChildren(
      chart({ title: "Probability of the leading classes after each layer", x: "layers passed", y: "probability", lines, mark: this.at,
        share: true, low: 0, high, whole: true, width, height: 280,
        onpick: (x) => this.#choose(Math.max(0, Math.min(lens.states.length - 1, Math.round(x)))) }), legend(lines));
  }

  #layer() {
    const { lens, at } = this, { facts } = this.studio.trace;
    const shown = lens.first(at, lens.classes.length === facts.classes ? 8 : FEW);
    if (!shown.includes(facts.target)) shown.push(facts.target);
    this.layer.body.replaceChildren(el("p", { class: "who" }, words(at, lens.states.length - 1)),
      bars(shown.map((which) => ({ label: this.studio.label(which), value: lens.odds(at, which), chosen: which === facts.target }))));
    this.layer.caption(facts.sigmoid ? "This model was trained with the sigmoid loss: each class has a probability of its own, and they do not add up to one."
      : "The most probable classes of this state, and the class that is explained. Click another layer in the chart or in the table.");
  }

  #table() {
    const { target } = this.studio.trace.facts, name = this.studio.label(target), focus = document.activeElement?.closest("table.lens [data-at]")?.dataset.at;
    this.rows.replaceChildren(el("caption", { class: "unseen" }, "What the head says of every state"),
      el("thead", {}, el("tr", {}, ["State", "Most probable", "Probability", `Probability of ${name}`, `Its rank among ${this.lens.facts.classes.toLocaleString("en")}`].map((words_, place) => el("th", { scope: "col", class: place > 1 ? "number" : null }, words_)))),
      el("tbody", {}, this.#rows().map((row) => el("tr", { class: row.at === this.at ? "chosen" : null },
        el("th", { scope: "row" }, button(words(row.at, this.lens.states.length - 1), () => this.#choose(row.at), { "aria-pressed": String(row.at === this.at), data: { at: row.at } })),
        el("td", {}, row.says), el("td", { class: "number" }, percent(row.probability)), el("td", { class: "number" }, percent(row.target)),
        el("td", { class: "number" }, row.rank.toLocaleString("en"))))));
    if (focus) this.rows.querySelector(`[data-at="${focus}"]`)?.focus();
  }

  #rows() {
    const { lens } = this, { target } = this.studio.trace.facts;
    return lens.states.map((at) => {
      const [which] = lens.first(at, 1);
      return { at, class: which, says: this.studio.label(which), probability: lens.odds(at, which), target: lens.odds(at, target), rank: lens.facts.ranks[at] };
    });
  }

  #numbers() {
    const { lens } = this;
    return { classes: lens.leading, labels: lens.leading.map((which) => this.studio.label(which)), probabilities: lens.states.map((at) => lens.leading.map((which) => lens.odds(at, which))) };
  }

  #layerNumbers() {
    return { state: this.at, classes: this.lens.classes.map((which) => ({ class: which, label: this.studio.label(which), probability: this.lens.odds(this.at, which) })) };
  }

  #python(at = null) {
    const how = this.studio.trace.facts.sigmoid ? "sigmoid()" : "softmax(dim=-1)";
    return this.studio.python("logits = vitrail.explain.lens(model, images)[:, 0]  # a row before the first layer, and one after each", `odds = logits.double().${how}`,
      at === null ? `print(odds[:, [${this.lens.leading}]])  # ${this.lens.leading.map((which) => this.studio.label(which)).join(", ").replace(/\s+/g, " ")}` : `print(odds[${at}].topk(${Math.min(FEW, this.lens.facts.classes)}))`,
      ...(at === null ? ["print(odds.max(dim=1))  # the most probable class of each state"] : []));
  }
}

function words(at, last) {
  return at === 0 ? "before the first layer" : at === last ? `after all ${last} layers` : `after ${at} of ${last} layers`;
}
