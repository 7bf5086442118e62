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
    if (why === "part") mended(); // what failed in another part is not this one's
    if (why === "part" || why === "model") show(why);
    else if (why !== "busy") built.get(current())?.draw(why);
    if (["model", "trace", "point", "state"].includes(why)) look(why);
    if (why === "trace") thumbnails();
    if (why === "part" || why === "model") header(), steps();
    if (why === "state") theme(state.get("theme")); // of a link that was pasted
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
  const focus = document.activeElement?.closest("#top [data-key]")?.dataset.key; // a header that is made anew keeps it
  const { model, facts } = studio;
  const at = state.get("step") === null ? -1 : model.steps.indexOf(Number(state.get("step")));
  top.replaceChildren(...[
    el("a", { class: "skip", href: "#panel", onclick: (event) => { event.preventDefault(); panel.focus(); } }, "Skip to the figures"),
    el("strong", { class: "brand" }, svg("svg", { viewBox: "0 0 24 24", width: 22, height: 22, "aria-hidden": "true" },
      ["#e69f00", "#56b4e9", "#009e73", "#d55e00"].map((fill, place) => svg("rect", { x: 2 + 11 * (place % 2), y: 2 + 11 * (place >> 1), width: 9, height: 9, fill }))), "Vitrail"),
    facts.models.length > 1 ? keyed("model", select("Model", facts.models.map((one) => [one.id, one.name]), model.id, (id) => state.set({ model: id, step: null, class: null, query: null })))
      : el("span", { class: "name" }, model.name),
    model.steps.length ? keyed("step", scrubber(model, at)) : null,
    el("span", { class: "spring" }),
    keyed("theme", select("Colours", [["", "as the system"], ["light", "light"], ["dark", "dark"]], state.get("theme", ""), (value) => { state.set({ theme: value || null }); theme(value); studio.tell("theme"); })),
    alone ? null : keyed("save", button("Save this page", () => save(studio), { title: "One HTML file that shows this explanation without the studio" })),
  ].filter(Boolean));
  if (focus) top.querySelector(`[data-key="${focus}"] select, [data-key="${focus}"] input, button[data-key="${focus}"]`)?.focus();
}

function keyed(key, made) {
  made.dataset.key = key;
  return made;
}

// Over the checkpoints of a run; its end is what the run chose as best.
function scrubber(model, at) {
  const gone = at < 0 && state.get("step") !== null ? `step ${state.get("step")}, which is gone` : null;
  const words = el("output", {}, gone ?? (at < 0 ? "best" : `step ${model.steps[at].toLocaleString("en")}`));
  const box = el("input", { type: "range", min: 0, max: model.steps.length, value: at < 0 ? model.steps.length : at, disabled: alone, "aria-label": "Checkpoint",
    "aria-valuetext": words.textContent,
    oninput: () => { words.textContent = Number(box.value) === model.steps.length ? "best" : `step ${model.steps[box.value].toLocaleString("en")}`; box.setAttribute("aria-valuetext", words.textContent); },
    onchange: () => state.set({ step: Number(box.value) === model.steps.length ? null : model.steps[box.value] }) });
  return el("span", { class: "field" }, el("span", {}, "Checkpoint"), box, words);
}

function theme(value) {
  if (value === "light" || value === "dark") document.documentElement.dataset.theme = value;
  else delete document.documentElement.dataset.theme;
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
      item.scrollIntoView({ block: "nearest", inline: "nearest" });
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
      if (named) [...answer.querySelectorAll("button")].find((one) => one.firstChild.textContent === named)?.focus();
    }
    grid.mark({ at: token !== null && token >= facts.prefix ? token - facts.prefix : null });
    where.textContent = token === null ? "Point at a patch." : studio.token(token);
  };
}
