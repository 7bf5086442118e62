// The page: the story from left to right, the picture at its side, one part at a time in the middle.

import { bars } from "./chart.js";
import { button, el, select, svg } from "./dom.js";
import { PatchGrid } from "./grid.js";
import { save } from "./leaf.js";
import { alone } from "./net.js";
import { mended, told } from "./say.js";
import * as state from "./state.js";
import { studio } from "./studio.js";
import attention from "./attention.js";
import flow from "./flow.js";
import lens from "./lens.js";
import inside from "./inside.js";
import patches from "./patches.js";
import picture from "./picture.js";
import prediction from "./prediction.js";
import run from "./run.js";
import shapes from "./shapes.js";
import tokens from "./tokens.js";

const PARTS = [picture, patches, tokens, attention, flow, lens, prediction, inside, shapes, run];
const built = new Map(); // what is built is kept, and hidden while another part is seen
const [top, story, side, panel] = ["top", "story", "side", "panel"].map((id) => document.getElementById(id));

start().catch((error) => {
  told(error);
  panel.replaceChildren(el("h1", {}, "Vitrail Studio"), el("p", { class: "lead" }, error.message));
});

async function start() {
  theme(state.get("theme"));
  await studio.open();
  header();
  steps();
  const look = beside();
  studio.on((why) => {
    if (["part", "model", "state"].includes(why)) header(), theme(state.get("theme"));
    if (why === "part" && !studio.stale) mended(); // what failed in another part is not this one's, unless it was the trace
    if (why === "part" || why === "model") show(why);
    else if (why !== "busy") built.get(current())?.draw(why);
    if (["model", "trace", "point", "state"].includes(why)) look(why);
    if (why === "trace") thumbnails();
    if (why === "part") steps();
    document.body.classList.toggle("busy", studio.busy);
    document.body.classList.toggle("stale", studio.stale);
    document.title = `${current().title} · ${studio.model.name} · Vitrail Studio`;
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => studio.tell("theme"));
  addEventListener("resize", () => built.get(current())?.draw("theme"));
  show("part");
  await studio.load();
  document.body.dataset.ready = "true";
}

function current() {
  return PARTS.find((part) => part.name === state.get("part")) ?? PARTS[0];
}

function show(why) {
  const part = current();
  for (const [other, made] of built) made.section.hidden = other !== part;
  if (!built.has(part)) {
    const number = PARTS.indexOf(part) + 1;
    const section = el("section", { class: `part ${part.name}`, "aria-labelledby": `title-${part.name}` },
      el("h1", { id: `title-${part.name}` }, el("span", { class: "number" }, `${number}`), part.title), el("p", { class: "lead" }, part.lead));
    panel.append(section);
    const made = part.build(section, studio);
    built.set(part, { section, draw: (why_) => guarded(() => made.draw(why_)), thumb: made.thumb });
  }
  built.get(part).draw(why === "part" ? "open" : why);
}

function guarded(work) {
  try {
    const promise = work();
    if (promise instanceof Promise) promise.catch(told);
  } catch (error) {
    told(error);
  }
}

function header() {
  const { model, facts } = studio, step = state.get("step"), theme_ = state.get("theme", "");
  if (!top.firstChild) frame();
  slot("model", [model.id], () => (facts.models.length > 1
    ? select("Model", facts.models.map((one) => [one.id, one.name]), model.id, (id) => state.set({ model: id, step: null, class: null, query: null }))
    : el("span", { class: "name" }, model.name)));
  slot("step", [model.id, model.steps, step], () => (model.steps.length ? scrubber(model.steps, step) : el("span", { hidden: true })));
  slot("theme", [theme_], () => select("Colours", [["", "as the system"], ["light", "light"], ["dark", "dark"]], theme_,
    (value) => state.set({ theme: value || null })));
}

// A control that shows what it has shown stays, and so does one that is held: while a run trains, no list closes and no slider slips
// out of a hand. One that is made anew keeps the keyboard's place.
function slot(key, shows, make) {
  const old = top.querySelector(`[data-key="${key}"]`), now = JSON.stringify(shows);
  if (old.dataset.shows === now || old.querySelector("input:active")) return;
  const focus = old.contains(document.activeElement), made = make();
  Object.assign(made.dataset, { key, shows: now });
  old.replaceWith(made);
  if (focus) made.querySelector("select, input")?.focus();
}

function frame() {
  top.append(...[
    el("a", { class: "skip", href: "#panel", onclick: (event) => { event.preventDefault(); panel.focus(); } }, "Skip to the figures"),
    el("strong", { class: "brand" }, svg("svg", { viewBox: "0 0 24 24", width: 22, height: 22, "aria-hidden": "true" },
      ["#e69f00", "#56b4e9", "#009e73", "#d55e00"].map((fill, place) => svg("rect", { x: 2 + 11 * (place % 2), y: 2 + 11 * (place >> 1), width: 9, height: 9, fill }))), "Vitrail"),
    el("span", { data: { key: "model" } }), el("span", { data: { key: "step" } }), el("span", { class: "spring" }), el("span", { data: { key: "theme" } }),
    alone ? null : button("Save this page", () => save(studio), { title: "One HTML file that shows this explanation without the studio" }),
  ].filter(Boolean));
}

// Over the checkpoints of a run; its end is what the run chose as best.
function scrubber(steps_, step) {
  const at = step === null ? -1 : steps_.indexOf(Number(step)), gone = at < 0 && step !== null ? `step ${step}, which is gone` : null;
  const words = el("output", {}, gone ?? (at < 0 ? "best" : `step ${steps_[at].toLocaleString("en")}`));
  const box = el("input", { type: "range", min: 0, max: steps_.length, value: at < 0 ? steps_.length : at, disabled: alone, "aria-label": "Checkpoint",
    "aria-valuetext": words.textContent,
    oninput: () => { words.textContent = Number(box.value) === steps_.length ? "best" : `step ${steps_[box.value].toLocaleString("en")}`; box.setAttribute("aria-valuetext", words.textContent); },
    onchange: () => state.set({ step: Number(box.value) === steps_.length ? null : steps_[box.value] }),
    onpointerup: () => setTimeout(header) }); // what has changed while it was held
  return el("span", { class: "field" }, el("span", {}, "Checkpoint"), box, words);
}

// That of the address, chosen or pasted; what is drawn in its colours is drawn anew.
function theme(value) {
  const { dataset } = document.documentElement, wanted = ["light", "dark"].includes(value) ? value : undefined;
  if (dataset.theme === wanted) return;
  if (wanted) dataset.theme = wanted;
  else delete dataset.theme;
  studio.tell("theme");
}

// The story: one step a part, each with a small live drawing where there is one.
const thumbs = new Map();

function steps() {
  if (!story.firstChild) {
    story.append(el("ol", {}, PARTS.map((part, place) => {
      const canvas = part.thumb ? el("canvas", { class: "pixels", width: 48, height: 48, "aria-hidden": "true" }) : null;
      if (canvas) thumbs.set(part, canvas);
      return el("li", { data: { part: part.name }, class: place === 7 ? "apart" : null },
        el("button", { type: "button", onclick: () => state.set({ part: part.name }), onkeydown: walk },
          canvas ?? el("span", { class: "glyph", "aria-hidden": "true" }, part.glyph), el("span", {}, part.title)));
    })));
  }
  for (const item of story.querySelectorAll("li")) {
    if (item.dataset.part === current().name) {
      item.firstChild.setAttribute("aria-current", "step");
      story.scrollLeft = item.offsetLeft + (item.offsetWidth - story.clientWidth) / 2; // on a phone one sees what comes before and after
    } else item.firstChild.removeAttribute("aria-current");
  }
}

function walk(event) {
  const way = { ArrowLeft: "previousElementSibling", ArrowRight: "nextElementSibling" }[event.key];
  const next = way && event.currentTarget.parentElement[way];
  if (!next) return;
  event.preventDefault();
  next.firstChild.focus();
}

function thumbnails() {
  for (const [part, canvas] of thumbs) guarded(() => part.thumb(canvas, studio));
}

// The picture stays in view: to point at patches from wherever one is, and to see the answer.
function beside() {
  const grid = new PatchGrid({
    label: "The picture as the model sees it",
    onhover: (patch) => studio.hover(patch === null || !studio.trace ? null : patch + studio.trace.facts.prefix),
    onpick: (patch) => studio.trace && studio.pin(patch + studio.trace.facts.prefix),
    describe: (patch) => studio.token(patch + studio.trace.facts.prefix),
  });
  const title = el("p", { class: "title" }), where = el("p", { class: "where" }), answer = el("div", { class: "answer" });
  side.replaceChildren(el("h2", { class: "unseen" }, "The picture"), title, grid.root, where, el("h2", { class: "small" }, "It says"), answer);
  return (why) => {
    if (!studio.trace) return;
    const { facts, arrays } = studio.trace;
    const token = studio.pointed;
    if (why !== "point") {
      grid.show(arrays.pixels, facts.grid);
      title.textContent = facts.picture.title;
      const named = document.activeElement?.closest("#side .answer button")?.firstChild.textContent; // a bar that is made anew keeps the keyboard's place
      answer.replaceChildren(facts.top.length ? bars(facts.top.slice(0, 5).map((one) => ({ ...one, value: one.probability, chosen: one.class === facts.target })),
        { onpick: alone ? null : (row) => state.set({ class: row.class === facts.top[0].class ? null : row.class }) }) : el("p", {}, "This model has no classes."));
      if (facts.top.length && !studio.model.named) answer.append(el("p", { class: "where" }, "These weights do not name their classes; ", el("code", {}, "--labels FILE"), " does."));
      if (named) [...answer.querySelectorAll("button")].find((one) => one.firstChild.textContent === named)?.focus();
    }
    grid.mark({ at: token !== null && token >= facts.prefix ? token - facts.prefix : null });
    where.textContent = token === null ? "Point at a patch." : studio.token(token);
  };
}
