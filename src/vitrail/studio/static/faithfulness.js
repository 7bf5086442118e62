// Names of the saliency methods, and their faithfulness: curves of one, a table of all.

import { axisLimit, chart, legend } from "./chart.js";
import { LINE_COLOURS } from "./colormap.js";
import { button, el, percent } from "./dom.js";

export const METHOD_ORDER = ["rollout", "gradient_rollout", "relevance", "attention", "gradcam", "integrated_gradients", "random", "edges"];
export const BASELINES = ["random", "edges"];
export const CLASSLESS = ["rollout", "attention"];
const TIE_MARGIN = 0.001; // areas are shown with three decimals: smaller differences are ties
const METHOD_TEXTS = {
  rollout: ["Rollout", "The attention matrices of all layers, with the residual connection, multiplied: how much of each patch reaches the output. The same for every class. Abnar and Zuidema 2020."],
  gradient_rollout: ["Gradient rollout", "Rollout of attention weighted by the gradient of the class: what reaches the output and supports the class."],
  relevance: ["Relevance", "Gradient times attention, accumulated over the layers. Chefer, Gur and Wolf 2021."],
  attention: ["Last-layer attention", "Attention of the pooled output in the last layer, mean over heads. The same for every class."],
  gradcam: ["Grad-CAM", "Channels of the tokens that enter the last layer, weighted by the gradient of the class. Selvaraju et al. 2017."],
  integrated_gradients: ["Integrated gradients", "The contribution of each patch to the class along a path from a grey image to this one. Sundararajan, Taly and Yan 2017."],
  random: ["Random", "A random map: the baseline that every explanation should beat. It does not use the model."],
  edges: ["Edges", "Edge strength of each patch. It does not use the model: a method that is no better may only detect edges."],
};

export function methodName(method) {
  return METHOD_TEXTS[method]?.[0] ?? method;
}

export function methodDescription(method) {
  return METHOD_TEXTS[method]?.[1] ?? "";
}

// The curves of the first response, against the others, which are dashed; `label` is the class.
export function faithfulnessCurves(responses, label, width) {
  const [selected] = responses, allValues = (kind) => responses.flatMap(({ arrays }) => Array.from(arrays[kind].data));
  const lines = (kind) => responses.map(({ meta: { method }, arrays: { [kind]: { data } } }, index) => ({
    name: methodName(method), dashed: index > 0, colour: index === 0 ? LINE_COLOURS[0] : method === "random" ? LINE_COLOURS[3] : LINE_COLOURS[2],
    points: Array.from(data, (value, step) => [(100 * step) / (data.length - 1), value]),
  }));
  const shared = { y: "probability", fraction: true, low: 0, high: axisLimit([...allValues("deletion"), ...allValues("insertion")]), width, height: 190 };
  return [legend(lines("deletion")), ...emptyImageWarning(selected.arrays, label),
    el("p", { class: "label" }, el("strong", {}, `Deletion ${selected.meta.deletion_auc.toFixed(3)}`), ": patches are removed, most important first. A faithful map makes the curve fall early."),
    chart({ ...shared, title: `Probability of ${label} while patches are removed`, x: "patches removed, %", lines: lines("deletion") }),
    el("p", { class: "label" }, el("strong", {}, `Insertion ${selected.meta.insertion_auc.toFixed(3)}`), ": patches are added to a blurred image. A faithful map makes the curve rise early."),
    chart({ ...shared, title: `Probability of ${label} while patches are added`, x: "patches added, %", lines: lines("insertion") })];
}

// A warning if the class stays probable for an empty image: then the areas mean little.
function emptyImageWarning({ deletion: { data: deletion_ }, insertion: { data: insertion_ } }, label) {
  const full = deletion_[0], grey = deletion_.at(-1), [blurred] = insertion_;
  if (Math.max(grey, blurred) <= full / 2) return [];
  return [el("p", { class: "label" }, `The probability of ${label} stays high for an empty image (grey: ${percent(grey)}, blurred: ${percent(blurred)}, `
    + `full image: ${percent(full)}), so these areas mean little here.`)];
}

// Areas of all methods, sorted by a click on a column heading.
export class FaithfulnessTable {
  constructor() {
    Object.assign(this, { root: el("table", { class: "faithfulness" }), by: "faithfulness", descending: true, rows: [], selected: null });
  }

  // rows: [{method, meta?, text}]; text says why there are no values yet. `full`: all rows are loaded.
  draw(rows, selected, full) {
    Object.assign(this, { rows, selected, full });
    const sorted = [...rows].sort((one, other) => this.#compare(one, other));
    const [first, second] = rows.filter((row) => row.meta).sort((one, other) => gap(other) - gap(one));
    const best = full && first && (!second || gap(first) - gap(second) >= TIE_MARGIN) ? first : null;
    this.root.replaceChildren(el("caption", { class: "visually-hidden" }, "Areas under the curves of every method"),
      el("thead", {}, el("tr", {}, this.#heading("name", "Method", false), this.#heading("deletion_auc", "Deletion AUC ↓", false),
        this.#heading("insertion_auc", "Insertion AUC ↑", true), this.#heading("faithfulness", "Insertion − deletion ↑", true))),
      el("tbody", {}, sorted.map((row) => el("tr", { class: row.method === selected ? "selected" : null },
        el("th", { scope: "row" }, methodName(row.method), BASELINES.includes(row.method) && el("span", { class: "soft" }, " (baseline)"),
          row === best && el("span", { class: "best" }, " best here")),
        row.meta ? [row.meta.deletion_auc, row.meta.insertion_auc, gap(row)].map((area) => el("td", { class: "number" }, signed(area)))
          : el("td", { class: "waiting", colspan: 3 }, row.text)))));
  }

  #heading(name, text, first) {
    const { by, descending } = this;
    return el("th", { scope: "col", class: name === "name" ? null : "number", "aria-sort": by === name ? (descending ? "descending" : "ascending") : null },
      button([text, el("span", { "aria-hidden": "true" }, by === name ? (descending ? " ▾" : " ▴") : "")], () => {
        Object.assign(this, { by: name, descending: by === name ? !descending : first });
        this.draw(this.rows, this.selected, this.full);
        this.root.querySelector(`[data-by="${name}"]`).focus();
      }, { data: { by: name } }));
  }

  // Rows without numbers are last.
  #compare(one, other) {
    const value = (row) => (this.by === "name" ? methodName(row.method) : row.meta ? (this.by === "faithfulness" ? gap(row) : row.meta[this.by]) : null);
    const [a, b] = [value(one), value(other)];
    if (a === null || b === null) return (a === null) - (b === null);
    return (a < b ? -1 : a > b ? 1 : 0) * (this.descending ? -1 : 1);
  }
}

function gap({ meta }) {
  return meta.insertion_auc - meta.deletion_auc;
}

// Three decimals, with a typographic minus, and no negative zero.
function signed(value) {
  const text = Math.abs(value).toFixed(3);
  return value < 0 && Number(text) !== 0 ? `−${text}` : text;
}
