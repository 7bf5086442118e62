// The page: navigation over the parts, the image in the side panel, one part at a time in the middle.

import { bars, labelsText } from "./chart.js";
import { button, el, formatNumber, select, svg } from "./dom.js";
import { PatchGrid } from "./patch_grid.js";
import { saveStandalonePage } from "./standalone_page.js";
import { standalone } from "./api.js";
import { clearError, showError } from "./toast.js";
import * as state from "./url_state.js";
import { store } from "./store.js";
import attention from "./attention.js";
import saliency from "./saliency.js";
import lens from "./logit_lens.js";
import modelView from "./model_view.js";
import patches from "./patches.js";
import image from "./image.js";
import prediction from "./prediction.js";
import run from "./run.js";
import architecture from "./architecture.js";
import tokens from "./tokens.js";

const PARTS = [image, patches, tokens, attention, saliency, lens, prediction, modelView, architecture, run];
const built = new Map(); // parts stay built, and are hidden while another one is open
const [top, nav, side, panel] = ["top", "parts", "side", "panel"].map((id) => document.getElementById(id));

start().catch((error) => {
  showError(error);
  panel.replaceChildren(el("h1", {}, "Vitrail Studio"), el("p", { class: "lead" }, error.message));
});

async function start() {
  theme(state.get("theme"));
  await store.open();
  header();
  drawNav();
  const updateSide = sidePanel();
  store.subscribe((reason) => {
    if (["part", "model", "state"].includes(reason)) header(), theme(state.get("theme"));
    if (reason === "part" && !store.stale) clearError(); // an error of another part does not concern this one, unless it was the trace
    if (reason === "part" || reason === "model") show(reason);
    else if (reason !== "busy") built.get(currentPart())?.draw(reason);
    if (["model", "trace", "point", "state"].includes(reason)) updateSide(reason);
    if (reason === "trace") thumbnails();
    if (reason === "part") drawNav();
    document.body.classList.toggle("busy", store.busy);
    document.body.classList.toggle("stale", store.stale);
    document.title = `${currentPart().title} · ${store.model.name} · Vitrail Studio`;
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => store.notify("theme"));
  addEventListener("resize", () => built.get(currentPart())?.draw("theme"));
  show("part");
  await store.load();
  document.body.dataset.ready = "true";
}

function currentPart() {
  return PARTS.find((part) => part.name === state.get("part")) ?? PARTS[0];
}

function show(reason) {
  const part = currentPart();
  for (const [other, created] of built) created.section.hidden = other !== part;
  if (!built.has(part)) {
    const number = PARTS.indexOf(part) + 1;
    const section = el("section", { class: `part ${part.name}`, "aria-labelledby": `title-${part.name}` },
      el("h1", { id: `title-${part.name}` }, el("span", { class: "number" }, `${number}`), part.title), el("p", { class: "lead" }, part.lead));
    panel.append(section);
    const created = part.build(section, store);
    built.set(part, { section, draw: (reason_) => catchErrors(() => created.draw(reason_)), thumb: created.thumb });
  }
  built.get(part).draw(reason === "part" ? "open" : reason);
}

function catchErrors(work) {
  try {
    const promise = work();
    if (promise instanceof Promise) promise.catch(showError);
  } catch (error) {
    showError(error);
  }
}

function header() {
  const { model, info } = store, step = state.get("step"), theme_ = state.get("theme", "");
  if (!top.firstChild) frame();
  slot("model", [model.id], () => (info.models.length > 1
    ? select("Model", info.models.map((one) => [one.id, one.name]), model.id, (id) => state.set({ model: id, step: null, class: null, query: null, pixel: null, box: null }))
    : el("span", { class: "name" }, model.name)));
  slot("step", [model.id, model.checkpoint_steps, step], () => (model.checkpoint_steps.length ? checkpointSlider(model.checkpoint_steps, step) : el("span", { hidden: true })));
  slot("theme", [theme_], () => select("Theme", [["", "system"], ["light", "light"], ["dark", "dark"]], theme_,
    (value) => state.set({ theme: value || null })));
}

// An unchanged control stays, and so does a slider while it is dragged: a training run closes no list and moves no slider.
// A rebuilt control keeps the keyboard focus.
function slot(key, content, make) {
  const old = top.querySelector(`[data-key="${key}"]`), now = JSON.stringify(content);
  if (old.dataset.content === now || old.querySelector("input:active")) return;
  const focus = old.contains(document.activeElement), created = make();
  Object.assign(created.dataset, { key, content: now });
  old.replaceWith(created);
  if (focus) created.querySelector("select, input")?.focus();
}

function frame() {
  top.append(...[
    el("a", { class: "skip", href: "#panel", onclick: (event) => { event.preventDefault(); panel.focus(); } }, "Skip to the figures"),
    el("strong", { class: "brand" }, svg("svg", { viewBox: "0 0 24 24", width: 22, height: 22, "aria-hidden": "true" },
      ["#e69f00", "#56b4e9", "#009e73", "#d55e00"].map((fill, index) => svg("rect", { x: 2 + 11 * (index % 2), y: 2 + 11 * (index >> 1), width: 9, height: 9, fill }))), "Vitrail"),
    el("span", { data: { key: "model" } }), el("span", { data: { key: "step" } }), el("span", { class: "spacer" }), el("span", { data: { key: "theme" } }),
    standalone ? null : button("Save this page", () => saveStandalonePage(store), { title: "One HTML file that shows this view without the studio" }),
  ].filter(Boolean));
}

// A slider over the checkpoints of a run; its end is the best checkpoint.
function checkpointSlider(checkpointSteps, step) {
  const at = step === null ? -1 : checkpointSteps.indexOf(Number(step)), deleted = at < 0 && step !== null ? `step ${step} (deleted)` : null;
  const text = el("output", {}, deleted ?? (at < 0 ? "best" : `step ${checkpointSteps[at].toLocaleString("en")}`));
  const box = el("input", { type: "range", min: 0, max: checkpointSteps.length, value: at < 0 ? checkpointSteps.length : at, disabled: standalone, "aria-label": "Checkpoint",
    "aria-valuetext": text.textContent,
    oninput: () => { text.textContent = Number(box.value) === checkpointSteps.length ? "best" : `step ${checkpointSteps[box.value].toLocaleString("en")}`; box.setAttribute("aria-valuetext", text.textContent); },
    onchange: () => state.set({ step: Number(box.value) === checkpointSteps.length ? null : checkpointSteps[box.value] }),
    onpointerup: () => setTimeout(header) }); // apply what changed during the drag
  return el("span", { class: "field" }, el("span", {}, "Checkpoint"), box, text);
}

// Apply the theme of the URL and redraw what uses its colours.
function theme(value) {
  const { dataset } = document.documentElement, wanted = ["light", "dark"].includes(value) ? value : undefined;
  if (dataset.theme === wanted) return;
  if (wanted) dataset.theme = wanted;
  else delete dataset.theme;
  store.notify("theme");
}

// The navigation: one entry per part, with a live thumbnail if the part has one.
const thumbs = new Map();

function drawNav() {
  if (!nav.firstChild) {
    nav.append(el("ol", {}, PARTS.map((part, index) => {
      const canvas = part.thumb ? el("canvas", { class: "pixels", width: 48, height: 48, "aria-hidden": "true" }) : null;
      if (canvas) thumbs.set(part, canvas);
      return el("li", { data: { part: part.name }, class: index === 7 ? "separated" : null },
        el("button", { type: "button", onclick: () => state.set({ part: part.name }), onkeydown: moveFocus },
          canvas ?? el("span", { class: "glyph", "aria-hidden": "true" }, part.glyph), el("span", {}, part.title)));
    })));
  }
  for (const item of nav.querySelectorAll("li")) {
    if (item.dataset.part === currentPart().name) {
      item.firstChild.setAttribute("aria-current", "step");
      nav.scrollLeft = item.offsetLeft + (item.offsetWidth - nav.clientWidth) / 2; // on a phone the neighbouring parts stay visible
    } else item.firstChild.removeAttribute("aria-current");
  }
}

function moveFocus(event) {
  const direction = { ArrowLeft: "previousElementSibling", ArrowRight: "nextElementSibling" }[event.key];
  const next = direction && event.currentTarget.parentElement[direction];
  if (!next) return;
  event.preventDefault();
  next.firstChild.focus();
}

function thumbnails() {
  for (const [part, canvas] of thumbs) catchErrors(() => part.thumb(canvas, store));
}

// The side panel: the image, for pointing at patches from any part, and the prediction.
function sidePanel() {
  const grid = new PatchGrid({
    label: "The model's input image",
    onhover: (patch) => store.hover(patch === null || !store.trace ? null : patch + store.trace.meta.prefix),
    onpick: (patch) => store.trace && store.pin(patch + store.trace.meta.prefix),
    describe: (patch) => store.tokenName(patch + store.trace.meta.prefix),
  });
  const title = el("p", { class: "title" }), tokenInfo = el("p", { class: "token-info" }), predictions = el("div", { class: "predictions" }), heading = el("h2", { class: "small" }, "Prediction");
  side.replaceChildren(el("h2", { class: "visually-hidden" }, "The image"), title, grid.root, tokenInfo, heading, predictions);
  return (reason) => {
    if (!store.trace) return;
    const { meta, arrays } = store.trace;
    const token = store.activeToken;
    if (reason !== "point") {
      grid.show(arrays.pixels, meta.grid, meta.region?.bounds);
      title.textContent = meta.image.title;
      heading.textContent = meta.region ? `Prediction for ${store.regionText}` : "Prediction";
      const focusedName = document.activeElement?.closest("#side .predictions button")?.firstChild.textContent; // a rebuilt bar keeps the keyboard focus
      predictions.replaceChildren(meta.top.length ? bars(meta.top.slice(0, meta.thresholds ? 10 : 5).map((one) => ({ ...one, value: one.probability, selected: one.class === meta.target, threshold: meta.thresholds?.[one.class] })),
        { onpick: standalone ? null : (row) => state.set({ class: row.class === meta.predicted ? null : row.class }) }) : meta.numbers.length ? numberList(meta.numbers) : el("p", {}, "This model has no classification head."));
      if (meta.top.length && !store.model.has_class_names) predictions.append(el("p", { class: "token-info" }, "These weights have no class names; ", el("code", {}, "--labels FILE"), " adds them."));
      if (meta.thresholds) predictions.append(el("p", { class: "token-info" }, labelsText(meta, arrays)));
      if (focusedName) [...predictions.querySelectorAll("button")].find((one) => one.firstChild.textContent === focusedName)?.focus();
    }
    grid.mark({ at: token !== null && token >= meta.prefix ? token - meta.prefix : null });
    tokenInfo.textContent = token === null ? "Point at a patch." : store.tokenName(token);
  };
}

// What a model predicts that has no classes: its numbers by name.
function numberList(numbers) {
  return el("table", { class: "numbers" }, el("tbody", {}, numbers.map((one) => el("tr", {}, el("th", { scope: "row" }, one.name),
    el("td", { class: "number" }, formatNumber(one.value))))));
}
