// The methods by name, and which of them to trust: curves of one, a table of all.

import { ceiling, chart, legend } from "./chart.js";
import { LINES } from "./colour.js";
import { button, el, percent } from "./dom.js";

export const ORDER = ["rollout", "gradient_rollout", "relevance", "attention", "gradcam", "integrated", "random", "edges"];
export const BASELINES = ["random", "edges"];
export const CLASSLESS = ["rollout", "attention"];
const TIE = 0.001; // areas are written to three places: what differs by less is equal
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

export function called(method) {
  return WORDS[method]?.[0] ?? method;
}

export function meaning(method) {
  return WORDS[method]?.[1] ?? "";
}

// The curves of the first answer, against the others, which are dashed; `label` is the class.
export function curves(answers, label, width) {
  const [chosen] = answers, every = (what) => answers.flatMap(({ arrays }) => Array.from(arrays[what].data));
  const lines = (what) => answers.map(({ facts: { method }, arrays: { [what]: { data } } }, place) => ({
    name: called(method), dashed: place > 0, colour: place === 0 ? LINES[0] : method === "random" ? LINES[3] : LINES[2],
    points: Array.from(data, (value, step) => [(100 * step) / (data.length - 1), value]),
  }));
  const both = { y: "probability", share: true, low: 0, high: ceiling([...every("deletion"), ...every("insertion")]), width, height: 190 };
  return [legend(lines("deletion")), ...empty(chosen.arrays, label),
    el("p", { class: "what" }, el("strong", {}, `Deletion ${chosen.facts.deleted.toFixed(3)}`), ": patches go, most important first. A good map makes the line fall early."),
    chart({ ...both, title: `Probability of ${label} while patches go`, x: "patches that are gone, %", lines: lines("deletion") }),
    el("p", { class: "what" }, el("strong", {}, `Insertion ${chosen.facts.inserted.toFixed(3)}`), ": they come into a blurred picture. A good map makes the line rise early."),
    chart({ ...both, title: `Probability of ${label} while patches come`, x: "patches that have come, %", lines: lines("insertion") })];
}

// A model that says the same of nothing says little by what it loses: the ends of the curves tell.
function empty({ deletion: { data: gone }, insertion: { data: come } }, label) {
  const whole = gone[0], grey = gone.at(-1), [blurred] = come;
  if (Math.max(grey, blurred) <= whole / 2) return [];
  return [el("p", { class: "what" }, `The model says ${label} of an empty picture, too (all grey: ${percent(grey)}, all blurred: ${percent(blurred)}, `
    + `the whole: ${percent(whole)}), so these areas tell little here.`)];
}

// Areas of all methods, in the order that a click on a heading asks for.
export class Ranking {
  constructor() {
    Object.assign(this, { root: el("table", { class: "trust" }), by: "trust", down: true, rows: [], chosen: null });
  }

  // rows: [{method, facts?, words}]; words say why there are no numbers yet. `whole`: all that will come have come.
  draw(rows, chosen, whole) {
    Object.assign(this, { rows, chosen, whole });
    const sorted = [...rows].sort((one, other) => this.#compared(one, other));
    const [first, second] = rows.filter((row) => row.facts).sort((one, other) => gain(other) - gain(one));
    const best = whole && first && (!second || gain(first) - gain(second) >= TIE) ? first : null;
    this.root.replaceChildren(el("caption", { class: "unseen" }, "Areas under the curves of every method"),
      el("thead", {}, el("tr", {}, this.#head("name", "Method", false), this.#head("deleted", "Deletion, low is good", false),
        this.#head("inserted", "Insertion, high is good", true), this.#head("trust", "Insertion less deletion", true))),
      el("tbody", {}, sorted.map((row) => el("tr", { class: row.method === chosen ? "chosen" : null },
        el("th", { scope: "row" }, called(row.method), BASELINES.includes(row.method) && el("span", { class: "soft" }, " (to beat)"),
          row === best && el("span", { class: "best" }, " best here")),
        row.facts ? [row.facts.deleted, row.facts.inserted, gain(row)].map((area) => el("td", { class: "number" }, signed(area)))
          : el("td", { class: "waiting", colspan: 3 }, row.words)))));
  }

  #head(name, words, first) {
    const { by, down } = this;
    return el("th", { scope: "col", class: name === "name" ? null : "number", "aria-sort": by === name ? (down ? "descending" : "ascending") : null },
      button([words, el("span", { "aria-hidden": "true" }, by === name ? (down ? " ▾" : " ▴") : "")], () => {
        Object.assign(this, { by: name, down: by === name ? !down : first });
        this.draw(this.rows, this.chosen, this.whole);
        this.root.querySelector(`[data-by="${name}"]`).focus();
      }, { data: { by: name } }));
  }

  // What has no numbers yet stands last.
  #compared(one, other) {
    const value = (row) => (this.by === "name" ? called(row.method) : row.facts ? (this.by === "trust" ? gain(row) : row.facts[this.by]) : null);
    const [a, b] = [value(one), value(other)];
    if (a === null || b === null) return (a === null) - (b === null);
    return (a < b ? -1 : a > b ? 1 : 0) * (this.down ? -1 : 1);
  }
}

function gain({ facts }) {
  return facts.inserted - facts.deleted;
}

// To three places, with a minus that is one, and no zero below zero.
function signed(value) {
  const words = Math.abs(value).toFixed(3);
  return value < 0 && Number(words) !== 0 ? `−${words}` : words;
}
