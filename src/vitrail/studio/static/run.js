// The run: its curves, live while it trains, what it takes for what, and the pictures behind that.
//
// In the address: `cell` the cell of the confusion matrix that is open, as true-said in numbers of classes.

import { chart, legend } from "./chart.js";
import { LINES } from "./colour.js";
import { el, figure3, percent } from "./dom.js";
import { figure } from "./figure.js";
import { live } from "./live.js";
import { alone, json, picture } from "./net.js";
import { told } from "./say.js";
import * as state from "./state.js";

const MOST = 4000; // lines that are held of a run that goes on and on
const SPELLED = 30; // classes up to which counts are written into the cells

export default {
  name: "run", title: "The run", glyph: "∿",
  lead: "How this model came to be: its curves, also while it trains, what it takes for what, and the pictures that it finds hardest.",
  build,
};

function build(section, studio) {
  let run = null, lines = new Map(), asked = "", timer = 0;
  let matrix = null, worst = null, opened = "";

  const none = el("p", { class: "soft", hidden: true }), top = el("div", { class: "progress" });
  const all = el("div", { class: "columns" });
  section.append(none, top, all);
  const log = (words) => () => [`import json`, `from pathlib import Path`, "",
    `log = Path(${JSON.stringify(studio.model.source)}) / "log.jsonl"`, "lines = [json.loads(line) for line in log.read_text().splitlines()]", ...words].join("\n");
  const shown = Object.fromEntries([
    ["loss", "Loss", ['training = [(line["step"], line["loss"]) for line in lines if "loss" in line]',
      'validation = [(line["step"], line["validation"]["loss"]) for line in lines if "validation" in line]']],
    ["accuracy", "Accuracy", ['training = [(line["step"], line["accuracy"]) for line in lines if "accuracy" in line]',
      'validation = [(line["step"], line["validation"]) for line in lines if "validation" in line]']],
    ["lr", "Learning rate", ['rate = [(line["step"], line["lr"]) for line in lines if "lr" in line]']],
    ["gradient", "Gradient norm", ['gradient = [(line["step"], line["gradient"]) for line in lines if "gradient" in line]']],
    ["reach", "How far heads look, by layer", ['distance = [(line["step"], line["heads"]["distance"]) for line in lines if "heads" in line]']],
  ].map(([name, title, words]) => [name, figure(all, { name: `run-${name}`, title, level: 2, python: log(words), numbers: () => curves()[name]?.lines })]));
  const cells = figure(section, { name: "confusion", title: "What it takes for what", level: 2, numbers: () => matrix,
    python: () => answers(studio, "matrix = np.zeros((logits.shape[1],) * 2, int)  # true, said", "np.add.at(matrix, (labels, logits.argmax(1)), 1)") });
  const behind = el("div", { class: "behind" });
  const hard = figure(section, { name: "worst", title: "The highest losses", level: 2, numbers: () => worst, python: () => answers(studio,
    "scores = torch.from_numpy(logits).float()", 'losses = torch.nn.functional.cross_entropy(scores, torch.from_numpy(labels), reduction="none")',
      "worst = losses.argsort(descending=True, stable=True)[:24]", "print(losses[worst], indices[worst])") });
  live(heard);

  return { draw };

  async function draw(why) {
    if (why === "point" || why === "trace") return mark();
    if (asked !== studio.model.id) await begin();
    else if (why === "open" && run?.result && !matrix) said(asked);
    if (!run) return undefined;
    curve();
    mark();
    return cell();
  }

  async function begin() {
    const { id } = studio.model;
    asked = id;
    run = matrix = worst = null;
    lines = new Map();
    opened = "";
    for (const one of [all, cells.root, hard.root, top]) one.hidden = true;
    none.hidden = studio.model.run;
    none.replaceChildren("These are weights alone, so there are no curves to show. ", el("code", {}, "vitrail train PICTURES --out runs/NAME"),
      " makes a run with a log and checkpoints, and ",
      el("code", {}, "vitrail studio runs/NAME"), " shows it here, also while it trains.");
    if (!studio.model.run) return;
    let found;
    try {
      found = await json("api/run", { model: id });
    } catch (error) {
      if (asked === id) asked = "";
      throw error;
    }
    if (asked !== id) return;
    run = found;
    lines = new Map([...found.lines, ...lines.values()].map((line) => [key(line), line])); // some may have come meanwhile
    all.hidden = top.hidden = false;
    said(id);
  }

  // Evaluations have a line of their own for the same step.
  function key(line) {
    return `${line.step}${line.validation ? " evaluated" : ""}`;
  }

  function last() {
    return Math.max(-1, ...[...lines.values()].slice(-50).map((line) => line.step));
  }

  // What comes while it trains.
  function heard(kind, news) {
    if (asked !== studio.model.id) return;
    if (kind === "line") {
      lines.delete(key(news));
      lines.set(key(news), news);
      if (lines.size > MOST) thin();
    } else if (!run) return;
    else if (kind === "done") {
      [run.result, run.training] = [news, false];
      if (state.get("part") === "run") said(asked);
    } else if (kind === "training") run.training = news;
    else return;
    soon();
  }

  // Every second line of the training goes, the evaluations stay.
  function thin() {
    let place = 0;
    for (const [name, line] of lines) if (!line.validation && (place += 1) % 2) lines.delete(name);
  }

  function soon() {
    if (!timer) timer = setTimeout(() => { timer = 0; if (run && state.get("part") === "run") curve(); }, 400);
  }

  function curves() {
    const sorted = [...lines.values()].sort((one, other) => one.step - other.step);
    const of = (take) => sorted.map((line) => [line.step, take(line)]).filter(([, value]) => Number.isFinite(value));
    const named = (list) => list.filter((line) => line.points.length);
    const layers = sorted.find((line) => line.heads)?.heads.distance.length ?? 0;
    return {
      loss: { y: "loss", lines: named([{ name: "training", points: of((line) => line.loss) },
        { name: "validation", points: of((line) => line.validation?.loss) }]) },
      accuracy: { y: "share right", share: true, lines: named([{ name: "training", points: of((line) => line.accuracy) },
        { name: "validation, first", points: of((line) => line.validation?.top1) },
        { name: "validation, among five", points: of((line) => line.validation?.top5), dashed: true },
          { name: "nearest neighbours (kNN)", points: of((line) => line.validation?.knn) }]) },
      lr: { y: "", low: 0, lines: named([{ name: "learning rate", points: of((line) => line.lr) }]) },
      gradient: { y: "norm", low: 0, lines: named([{ name: "gradient norm", points: of((line) => line.gradient) }]) },
      reach: { y: "pixels", lines: Array.from({ length: layers }, (_, layer) => ({ name: `layer ${layer}`,
        points: of((line) => line.heads?.distance[layer]), colour: LINES[layer % LINES.length], dashed: layer >= LINES.length })) },
    };
  }

  function curve() {
    progress();
    const mark_ = state.number("step") ?? run.result?.best?.step ?? null;
    for (const [name, { y, lines: made, share, low }] of Object.entries(curves())) {
      shown[name].root.hidden = !made.length;
      if (!made.length) continue;
      const title = shown[name].root.querySelector("h2").textContent;
      shown[name].body.replaceChildren(chart({ title, x: "step", y, lines: made, share, low: share ? 0 : low, high: share ? 1 : undefined, whole: true,
        mark: mark_, onpick: studio.model.steps.length && !alone ? nearest : null }),
        made.length > 1 || name === "accuracy" ? legend(made) : "");
    }
    shown.loss.caption(`Training: the loss of each step's own batch${run.recipe?.augment ? ", with what augmentation makes of it" : ""}; validation: of `
      + `pictures that it does not learn from. Where training falls and validation rises, it learns by heart.`);
    shown.accuracy.caption(run.recipe?.masking ? "A run without labels is watched by its neighbours: how often the nearest training pictures, by its own "
      + "representation, have the right class." : "Training is measured on augmented pictures, so validation can lie above it.");
    shown.lr.caption("It rises first, so that early, wild gradients do little harm, then falls.");
    shown.gradient.caption("The length of the gradient before it is clipped. A spike is a batch that surprised it.");
    shown.reach.caption("Mean over a layer's heads, as the log has it. Some layers learn to look near, which nothing told them.");
  }

  // The checkpoint nearest to where a curve was clicked; the keyboard has the range in the header.
  function nearest(step) {
    const { steps } = studio.model;
    state.set({ step: steps.reduce((best, one) => (Math.abs(one - step) < Math.abs(best - step) ? one : best), steps[0]) });
  }

  function progress() {
    const now = Math.max(0, last()), words = `step ${now.toLocaleString("en")} of ${run.total.toLocaleString("en")}`, best = run.result?.best;
    const facts = [run.name, run.data && `on ${run.data}`, run.result ? `finished in ${lasting(run.result.seconds)}` : run.training ? `training: ${words}`
      : `stopped at ${words}; the same command goes on from there`].filter(Boolean);
    const scores = Object.entries(best ?? {}).filter(([name]) => name !== "step")
      .map(([name, value]) => (name === "top1" ? `accuracy ${percent(value)}` : `${name} ${figure3(value)}`));
    const score = best && `best at step ${best.step.toLocaleString("en")}: ${scores.join(", ")}`;
    const told_ = run.result?.[run.result.reported_on]?.top1;
    const reported = told_ !== undefined && `accuracy ${percent(told_)} on ${run.result.reported_on} pictures`;
    top.replaceChildren(el("p", {}, [...facts, score, reported].filter(Boolean).join(" · ")),
      alone ? el("p", { class: "soft" }, "What it takes for what, and its highest losses, are left out of a saved copy.") : "",
      run.result ? "" : el("progress", { max: run.total, value: now, "aria-label": `Training: ${words}` }));
  }

  // Confusion and losses are known when a run is finished; of one without labels they never are.
  async function said(id) {
    if (alone || run.recipe?.masking) return;
    if (!run.result) {
      cells.root.hidden = hard.root.hidden = true;
      return;
    }
    for (const [path, place, show] of [["api/confusion", cells, table],
      ["api/worst", hard, (found) => { worst = found.pictures; thumbs(hard.body, worst, (one) => `loss ${one.loss.toFixed(2)}`); }]]) {
      let found = null, why = "";
      try {
        found = await json(path, { model: id });
      } catch (error) {
        why = error.message;
      }
      if (asked !== id) return;
      place.root.hidden = false;
      if (found) show(found);
      else place.body.replaceChildren(el("p", { class: "soft" }, why));
      place.root.querySelector(".tools").hidden = !found;
    }
    mark();
    cell().catch(told);
  }

  function table(found) {
    matrix = found;
    const { names, classes = names.map((_, place) => place), matrix: counts, split, total } = found, dense = names.length > SPELLED;
    const sums = counts.map((row) => row.reduce((sum, one) => sum + one, 0));
    const body = el("tbody", {}, counts.map((row, y) => el("tr", {}, el("th", { scope: "row", title: names[y] }, names[y]), row.map((count, x) => {
      const words = `${names[y]} said to be ${names[x]}: ${count}`;
      return el("td", { role: "gridcell", tabindex: y || x ? "-1" : "0", title: words, "aria-label": words,
        class: `${x === y ? "right" : count ? "wrong" : "none"}`, data: { at: `${classes[y]}-${classes[x]}`, y, x },
        style: x === y || !count ? {} : { "--share": Math.min(1, count / Math.max(1, sums[y]) * 3 + 0.12).toFixed(3) } },
          dense ? "" : count ? String(count) : "·");
    }))));
    const head = el("thead", {}, el("tr", {}, el("th", { class: "corner" }, "shown ↓ said →"),
      names.map((name) => el("th", { scope: "col", title: name }, el("span", { class: dense ? "unseen" : null }, name)))));
    const made = el("table", { class: `confusion${dense ? " dense" : ""}`, role: "grid", "aria-label": "What is shown, in rows, and what was said, in columns",
      onclick: (event) => open(event.target.closest("td")),
      onkeydown: (event) => walk(event, body, names.length) }, head, body);
    cells.body.replaceChildren(el("div", { class: "matrix" }, el("div", { class: "wide" }, made), behind));
    const right = counts.reduce((sum, row, place) => sum + row[place], 0);
    cells.caption(`${total.toLocaleString("en")} ${split} pictures${names.length < studio.model.labels.length
      ? `; the ${names.length} classes that are confused most` : `, ${right.toLocaleString("en")} on the diagonal`}. Rows are what is shown, columns what was said. `
      + "Choose a cell to see its pictures, and a picture to explain it on the whole page. Arrow keys move, Enter opens.");
  }

  function walk(event, body, count) {
    const cell_ = event.target.closest("td"), move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0], Home: [0, -count],
      End: [0, count] }[event.key];
    if (!cell_) return;
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      open(cell_);
    }
    if (!move) return;
    event.preventDefault();
    const within = (value) => Math.max(0, Math.min(count - 1, value)),
      next = body.rows[within(Number(cell_.dataset.y) + move[0])].cells[within(Number(cell_.dataset.x) + move[1]) + 1];
    cell_.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  }

  function open(cell_) {
    if (cell_) state.set({ cell: state.get("cell") === cell_.dataset.at ? null : cell_.dataset.at });
  }

  // The pictures of the cell that the address names.
  async function cell() {
    const at = state.get("cell", ""), { id } = studio.model;
    if (!matrix || opened === `${id} ${at}`) return;
    opened = `${id} ${at}`;
    for (const one of cells.body.querySelectorAll("td[aria-selected]")) one.removeAttribute("aria-selected");
    behind.replaceChildren();
    const [true_, said_] = (/^(\d+)-(\d+)$/.exec(at) ?? []).slice(1);
    if (true_ === undefined) return;
    cells.body.querySelector(`td[data-at="${at}"]`)?.setAttribute("aria-selected", "true");
    const found = await json("api/confused", { model: id, true: true_, said: said_ });
    if (opened !== `${id} ${at}`) return;
    const words = `${studio.label(Number(true_))}, said to be ${studio.label(Number(said_))}: `
      + `${found.total.toLocaleString("en")}${found.total > found.pictures.length ? `, the ${found.pictures.length} surest` : ""}`;
    const place = el("div");
    behind.replaceChildren(el("p", { role: "status" }, words), place);
    thumbs(place, found.pictures, () => null);
    mark();
  }

  function thumbs(place, pictures, more) {
    place.replaceChildren(el("ul", { class: "thumbs" }, pictures.map((one) => {
      const words = [`shown ${one.label}, said ${one.said}, ${percent(one.probability, 0)}`, more(one)].filter(Boolean).join(", ");
      return el("li", {}, el("button", { type: "button", title: `${one.title}: ${words}`, "aria-label": `Explain ${one.title}: ${words}`,
        data: { picture: one.id }, onclick: () => state.set({ picture: one.id, class: null, query: null }) },
        el("img", { src: picture(one.id, 96), alt: "", loading: "lazy", width: 84, height: 84 }),
          el("span", { class: "said" }, `is ${one.label}`), el("span", { class: "said" }, `said ${one.said}, ${percent(one.probability, 0).replaceAll(" ", "\u00a0")}`), more(one) && el("span", { class: "soft" }, more(one))));
    })));
    mark();
  }

  function mark() {
    for (const one of section.querySelectorAll("button[data-picture]")) one.setAttribute("aria-pressed", String(one.dataset.picture === state.get("picture")));
  }
}

function lasting(seconds) {
  return seconds < 120 ? `${figure3(seconds)} s` : seconds < 7200 ? `${figure3(seconds / 60)} minutes` : `${figure3(seconds / 3600)} hours`;
}

function answers(studio, ...words) {
  return ["import numpy as np", "import torch", "", `file = np.load(${JSON.stringify(`${studio.model.source.replace(/\/$/, "")}/predictions.npz`)})`,
    'logits, labels, indices = file["logits"], file["labels"], file["indices"]', ...words].join("\n");
}
