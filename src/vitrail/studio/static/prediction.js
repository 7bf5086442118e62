// What the model says, and what it says without some patches (Naseer et al. 2021): they become grey, change places, or never enter.
//
// In the address: `patches` as ranges (3-7,12), `how`, and `seed` for what is drawn by chance.

import { bars } from "./chart.js";
import { button, el, percent, select, several } from "./dom.js";
import { figure } from "./figure.js";
import { PatchGrid } from "./grid.js";
import { alone, binary, post } from "./net.js";
import { say, told } from "./say.js";
import * as state from "./state.js";

const HOW = { mask: "grey", shuffle: "shuffled", drop: "dropped" };
const TEACH = {
  mask: "A grey patch has the mean colour that preprocessing takes off (that of the training pictures, or 0.5 by convention), so it is zero when the model "
    + "gets it. It still is a token: it has a place, others look at it, "
    + "and the edge of the grey is something to see. What changes is therefore partly the hole, and partly the grey.",
  shuffle: "What the chosen patches show changes places among them: every colour and texture is still there, the shape is not. An answer that stays did "
    + "not need the arrangement of these patches; one that goes did.",
  drop: "The tokens of these patches never enter. Nothing stands in for them: attention shares itself out among the rest, which know their places as "
    + "before, and there is less to compute. "
    + "A convolution could not do that; it has to be given something at every place.",
};

export default {
  name: "prediction", title: "Prediction", glyph: "▤",
  lead: "What the model says, and what it says when some of the picture is taken away. A transformer reads a set of tokens, so it answers with any number "
    + "of them.",
  thumb(canvas, { trace }) {
    const context = canvas.getContext("2d"), { width, height } = canvas;
    context.clearRect(0, 0, width, height);
    context.fillStyle = getComputedStyle(document.body).getPropertyValue("--fill");
    trace.facts.top.slice(0, 6).forEach((one, place) => context.fillRect(2, 2 + (place * (height - 2)) / 6, Math.max(1, one.probability * (width - 4)),
      height / 6 - 3));
  },
  build,
};

function build(section, studio) {
  let chosen = new Set(); // patches that are taken away
  let answer = null; // what the server says of them, with the question that it answers
  let asking = null, ranking = null, timer = 0, shown = "";

  const controls = el("div", { class: "controls" }), more = el("div", { class: "controls" });
  const columns = el("div", { class: "columns" });
  section.append(controls, more, columns);
  const sees = figure(columns, { name: "ablated", title: "What it sees", level: 2, python: () => python(studio, chosen),
    numbers: () => ({ patches: [...chosen], how: how(), seed: seed(), order: fresh()?.order ?? null }) });
  const says = figure(columns, { name: "prediction", title: "What it says", level: 2, python: () => python(studio, chosen),
    numbers: () => fresh() ?? { top: studio.trace?.facts.top } });
  const teach = el("p", { class: "soft" });
  section.append(teach, el("p", { class: "soft" }, "Vision Transformers keep as much as 60 % accuracy on ImageNet when 80 % of a picture is hidden at "
    + "random (Naseer et al. 2021). "
    + "Try it: a random third by seed, then the same number by importance. Where the first hardly matters and the second does, the map of importance told "
      + "something true."));

  const verdict = el("p", { class: "verdict", role: "status" });
  const hatch = el("canvas", { class: "hatch", "aria-hidden": "true" });
  const grid = new PatchGrid({
    label: "Patches to take away. Shift and arrow keys go on as with the last one",
    onhover: (patch) => studio.hover(patch === null || !studio.trace ? null : patch + studio.trace.facts.prefix),
    onpick: (patch) => !brush.busy && toggle(patch),
    describe: (patch) => `${studio.token(patch + studio.trace.facts.prefix)}, ${chosen.has(patch) ? HOW[how()] : "as it is"}`,
  });
  grid.root.insertBefore(hatch, grid.lines);
  const count = el("p", { class: "soft" });
  sees.body.append(el("div", { class: "stage" }, grid.root), count);
  says.body.append(verdict);
  const rows = el("div");
  const sign = el("p", { class: "soft key" }, el("span", { class: "bar", "aria-hidden": "true" }), "now",
    el("span", { class: "tick", "aria-hidden": "true" }), "with the whole picture");
  says.body.append(rows, sign);
  const brush = painting(grid, (patch) => !chosen.has(patch), (patch, on) => put(patch, on), () => chosen.has(grid.hovered));
  new ResizeObserver(() => hatched()).observe(grid.root);
  const parts = tools();

  return { draw };

  function how() {
    return state.get("how") in HOW ? state.get("how") : "mask";
  }

  function seed() {
    return Math.max(0, Math.round(state.number("seed", 0)));
  }

  function method() {
    const { methods } = studio.facts, wanted = state.get("method");
    return methods.includes(wanted) ? wanted : methods.includes("relevance") ? "relevance" : methods[0];
  }

  function draw(why) {
    const trace = studio.trace;
    if (!trace) return;
    if (why === "point") return mark();
    const patches = trace.facts.grid[0] * trace.facts.grid[1];
    chosen = new Set(spread(state.get("patches", ""), patches));
    for (const one of parts.ways.children) one.setAttribute("aria-pressed", String(one.dataset.how === how()));
    parts.seed.value = document.activeElement === parts.seed ? parts.seed.value : seed();
    parts.by.value = method();
    parts.count.max = patches;
    if (!parts.count.value) parts.count.value = Math.max(1, Math.round(patches / 4));
    const silent = !trace.facts.top.length;
    for (const one of section.querySelectorAll(".controls button, .controls input, .controls select")) one.disabled = silent || alone;
    for (const one of [rows, sign]) one.hidden = silent;
    if (silent) verdict.textContent = "This model has no classes, so there is no answer that could change.";
    teach.textContent = TEACH[how()];
    ask();
    picture();
    answered();
  }

  function mark() {
    const token = studio.pointed, { prefix } = studio.trace.facts;
    grid.mark({ at: token !== null && token >= prefix ? token - prefix : null, marked: chosen });
  }

  // The answer that is held, if it is one to what is asked now.
  function fresh() {
    return answer && answer.key === key() ? answer : null;
  }

  function key() {
    return JSON.stringify([studio.here(), ranges(chosen), how(), how() === "shuffle" ? seed() : 0]);
  }

  function ask() {
    if (key() === asking?.key || fresh()) return;
    clearTimeout(timer);
    asking?.abort.abort();
    asking = null;
    if (!chosen.size || alone || !studio.trace.facts.top.length || current() !== studio.trace) return;
    const mine = (asking = { key: key(), abort: new AbortController() }), { model, step, picture } = studio.here();
    const body = { model, step: step === null ? null : Number(step), picture, patches: [...chosen], how: how(), seed: seed(), class: studio.trace.facts.target };
    timer = setTimeout(async () => {
      try {
        const said = await post("api/ablate", {}, body, { signal: mine.abort.signal });
        if (asking !== mine) return;
        answer = { ...said, key: mine.key };
        picture_();
        answered();
      } catch (error) {
        if (asking === mine && error.name !== "AbortError") verdict.textContent = error.message, verdict.classList.remove("stale");
      }
    }, 120);
  }

  function picture_() {
    shown = "";
    picture();
  }

  // The trace, if it is that of the address: a new one may be on its way, and its grid another.
  function current() {
    const { picture: { id }, model, step } = studio.trace.facts, here = studio.here();
    return id === here.picture && model === here.model && String(step) === String(here.step) ? studio.trace : null;
  }

  // What the model gets: grey and shuffled patches are drawn as they are, dropped ones are hatched.
  function picture() {
    const { arrays, facts } = studio.trace, now = [studio.trace.facts.picture.id, studio.model.id, ranges(chosen), how(), fresh()?.order?.join()].join(" ");
    if (now !== shown || grid.trace !== studio.trace) grid.show(seen(arrays.pixels, facts, chosen, how(), fresh()?.order), facts.grid);
    [shown, grid.trace] = [now, studio.trace];
    mark();
    hatched();
    const patches = facts.grid[0] * facts.grid[1];
    count.textContent = chosen.size ? `${chosen.size} of ${several(patches, "patch", "patches")} ${HOW[how()]} `
      + `(${percent(chosen.size / patches, 0)})${how() === "drop" ? `: ${facts.tokens - chosen.size} of ${facts.tokens} tokens enter` : ""}.`
      : `${several(patches, "patch", "patches")}. Click one, draw over several, or walk with the arrow keys and press Enter.`;
  }

  function hatched() {
    if (!studio.trace) return;
    hatching(hatch, grid, how() === "drop" ? chosen : new Set());
  }

  function answered() {
    const { facts } = studio.trace;
    if (!facts.top.length) return;
    const said = chosen.size ? fresh() : null;
    for (const one of [rows, verdict]) one.classList.toggle("stale", Boolean(chosen.size) && !said && !alone);
    if (chosen.size && !said && !alone) return; // the last answer stays until the next one is there
    const list = said ? said.top.map((one) => ({ ...one, value: one.after }))
      : facts.top.map((one) => ({ ...one, value: one.probability, before: one.probability }));
    keepingFocus(rows, () => rows.replaceChildren(bars(list.map((one) => ({ ...one, chosen: one.class === facts.target })),
      { onpick: alone ? null : (row) => state.set({ class: row.class === facts.top[0].class ? null : row.class }) })));
    verdict.replaceChildren(...(said ? words(said, facts, studio) : [alone && chosen.size ? "This page is a copy on its own: start the studio to ask what "
      + "changes." : `It says ${facts.top[0].label}, ${percent(facts.top[0].probability)}.`]));
    says.caption(`${facts.sigmoid ? "Each class is asked for alone, so the bars need not add up to 100 %. " : ""}Click a class to explain it everywhere.`);
  }

  function toggle(patch) {
    put(patch, !chosen.has(patch));
    grid.words.textContent = grid.describe(patch);
  }

  function put(patch, on) {
    const next = new Set(chosen);
    if (on) next.add(patch);
    else next.delete(patch);
    choose(next);
  }

  function choose(next) {
    ranking?.abort(); // a choice by hand is the newer one
    state.set({ patches: next.size ? ranges(next) : null });
  }

  function tools() {
    const all = () => Array.from({ length: studio.trace.facts.grid[0] * studio.trace.facts.grid[1] }, (_, patch) => patch);
    const ways = el("div", { class: "choice", role: "group", "aria-label": "How patches are taken away" },
      Object.entries({ mask: "Grey", shuffle: "Shuffle", drop: "Drop" }).map(([name, words_]) => button(words_, () => state.set({ how: name }),
        { data: { how: name } })));
    const seed_ = el("input", { type: "number", min: 0, max: 9999, value: seed(), onchange: () => state.set({ seed: seed_.value || null }) });
    const count_ = el("input", { type: "number", min: 1, "aria-label": "How many patches" });
    const { methods } = studio.facts;
    const by = select("by", methods.map((name) => [name, name.replace(/_/g, " ")]), method(), (name) => state.set({ method: name })); // the flow's own choice
    controls.append(ways, button("All", () => choose(new Set(all()))), button("None", () => choose(new Set())),
      button("Invert", () => choose(new Set(all().filter((patch) => !chosen.has(patch))))),
      el("label", { class: "field" }, el("span", {}, "Seed"), seed_),
      button("A random third", () => choose(third(all(), seed()))));
    more.append(count_, by, ...[["The most important", 1], ["The least important", -1]].map(([words_, sign]) => button(words_,
      () => important(sign, Number(count_.value)))));
    return { ways, seed: seed_, count: count_, by: by.querySelector("select") };
  }

  // By the map of the flow part; of equal patches the first comes first.
  async function important(sign, wanted) {
    ranking?.abort();
    const mine = (ranking = new AbortController());
    const by = method(), words_ = by.replace(/_/g, " ");
    say(`Asking ${words_} which patches matter ...`, true);
    try {
      const trace = studio.trace, { arrays } = await binary("api/flow", studio.here({ method: by }), { signal: mine.signal });
      if (trace !== studio.trace || ranking !== mine) return say("");
      ranking = null;
      const values = Array.from(arrays.map.data), most = Math.max(1, Math.min(values.length, Math.round(wanted) || 1));
      choose(new Set(values.map((_, patch) => patch).sort((one, other) => sign * (values[other] - values[one]) || one - other).slice(0, most)));
      say(`${sign > 0 ? "The most" : "The least"} important ${most} by ${words_}.`);
    } catch (error) {
      if (error.name === "AbortError") say("");
      told(error);
    }
    return undefined;
  }
}

// How far the explained class moved, and whether the answer did.
function words(said, facts, studio) {
  const moved = said.top.find((one) => one.class === facts.target), before = facts.top[0];
  const strong = el("strong", {}, said.changed ? `Now it says ${said.answer.label}, ${percent(said.answer.probability)}`
    : `It still says ${said.answer.label}, ${percent(said.answer.probability)}`);
  const points = moved ? 100 * (moved.after - moved.before) : null;
  return [strong, said.changed ? ` instead of ${before.label}. ` : ". ",
    moved ? `The probability of ${studio.label(facts.target)} went from ${percent(moved.before)} to ${percent(moved.after)}: `
      + `${Math.abs(points) < 0.05 ? "less than 0.1" : `${points < 0 ? "−" : "+"}${Math.abs(points).toFixed(1)}`} points.`
      : `${studio.label(facts.target)} is not among its ten most probable classes.`];
}

// The pixels with patches grey (the mean, which is zero once normalised) or in each other's places.
function seen(pixels, { grid: [rows, columns], preprocess: { mean } }, chosen, how, order) {
  const { shape: [height, width, channels], data } = pixels, high = height / rows, wide = width / columns;
  if (!chosen.size || how === "drop" || (how === "shuffle" && !order)) return pixels;
  const made = data.slice();
  for (const patch of chosen) {
    const from = order ? order[patch] : patch;
    for (let y = 0; y < high; y += 1) {
      const to = ((Math.floor(patch / columns) * high + y) * width + (patch % columns) * wide) * channels;
      const start = ((Math.floor(from / columns) * high + y) * width + (from % columns) * wide) * channels;
      if (how === "shuffle") made.set(data.subarray(start, start + wide * channels), to);
      else for (let place = 0; place < wide * channels; place += 1) made[to + place] = Math.round(255 * mean[place % channels % mean.length]);
    }
  }
  return { shape: pixels.shape, data: made };
}

// What is not there: slanted lines on paper, since no colour would say so.
function hatching(canvas, grid, chosen) {
  const box = grid.root.getBoundingClientRect(), ratio = devicePixelRatio || 1;
  if (!box.width) return;
  Object.assign(canvas, { width: Math.round(box.width * ratio), height: Math.round(box.height * ratio) });
  if (!chosen.size) return;
  const context = canvas.getContext("2d"), look = getComputedStyle(document.body), wide = canvas.width / grid.columns, high = canvas.height / grid.rows;
  context.beginPath();
  for (const patch of chosen) context.rect((patch % grid.columns) * wide, Math.floor(patch / grid.columns) * high, wide, high);
  context.clip();
  context.fillStyle = look.getPropertyValue("--paper");
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.strokeStyle = look.getPropertyValue("--soft");
  context.lineWidth = ratio;
  context.beginPath();
  for (let at = -canvas.height; at < canvas.width; at += 7 * ratio) context.moveTo(at, canvas.height), context.lineTo(at + canvas.height, 0);
  context.stroke();
}

// Drawing over patches with the mouse, or with shift and the arrow keys: all become what the first one became.
function painting(grid, turns, put, on) {
  const brush = { busy: false };
  let value = null, last = null;
  grid.root.addEventListener("pointerdown", (event) => {
    if (event.pointerType === "touch" || event.button !== 0) return; // a finger scrolls; its click toggles
    brush.busy = true;
    last = under(event);
    value = turns(last);
    put(last, value);
  });
  grid.root.addEventListener("pointermove", (event) => {
    const patch = under(event);
    if (value === null || patch === last) return;
    last = patch;
    put(patch, value);
  });
  addEventListener("pointerup", () => {
    value = null;
    setTimeout(() => { brush.busy = false; }); // after the click that ends it
  });
  grid.root.addEventListener("keydown", (event) => {
    if (event.shiftKey && event.key.startsWith("Arrow") && grid.hovered !== null) put(grid.hovered, brush.keys ?? true);
    else if (event.key === "Enter" || event.key === " ") brush.keys = on();
  });
  return brush;

  function under(event) {
    const box = grid.root.getBoundingClientRect(), within = (value_, most) => Math.max(0, Math.min(most - 1, Math.floor(value_ * most)));
    return within((event.clientY - box.top) / box.height, grid.rows) * grid.columns + within((event.clientX - box.left) / box.width, grid.columns);
  }
}

function python(studio, chosen) {
  const how = state.get("how") in HOW ? state.get("how") : "mask", turned = studio.trace?.facts.sigmoid ? "sigmoid()" : "softmax(-1)";
  return studio.python(`patches = [${listed(chosen)}]`,
    `before = vitrail.explain.ablate(model, images, []).${turned}`,
    `after = vitrail.explain.ablate(model, images, patches, how="${how}", seed=${Math.max(0, Math.round(state.number("seed", 0)))}).${turned}`,
    `print(100 * (after - before)[0, ${studio.trace?.facts.target ?? 0}])  # points`);
}

// Patches as Python writes them, long runs as ranges.
function listed(chosen) {
  return ranges(chosen).split(",").filter(Boolean).map((one) => {
    const [from, to = from] = one.split("-").map(Number);
    return to - from < 2 ? [from, to].slice(0, to - from + 1).join(", ") : `*range(${from}, ${to + 1})`;
  }).join(", ");
}

export function ranges(chosen) {
  const sorted = [...chosen].sort((one, other) => one - other), found = [];
  for (const patch of sorted) {
    if (found.length && found.at(-1)[1] === patch - 1) found.at(-1)[1] = patch;
    else found.push([patch, patch]);
  }
  return found.map(([from, to]) => (from === to ? `${from}` : `${from}-${to}`)).join(",");
}

// What an address says, whoever wrote it: numbers of patches that there are.
export function spread(text, patches) {
  const found = [];
  for (const one of text.split(",")) {
    const [, from, to] = /^(\d+)(?:-(\d+))?$/.exec(one) ?? [];
    for (let patch = Number(from); patch <= Math.min(Number(to ?? from), patches - 1); patch += 1) found.push(patch);
  }
  return found;
}

// A third of them by a seed: the same on every machine (mulberry32).
function third(patches, seed) {
  let now = seed + 0x6d2b79f5;
  const chance = () => {
    now = (now + 0x6d2b79f5) | 0;
    let mixed = Math.imul(now ^ (now >>> 15), 1 | now);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
  for (let last = patches.length - 1; last > 0; last -= 1) {
    const other = Math.floor(chance() * (last + 1));
    [patches[last], patches[other]] = [patches[other], patches[last]];
  }
  return new Set(patches.slice(0, Math.round(patches.length / 3)));
}

// Buttons that are made anew keep the keyboard's place.
function keepingFocus(place, remake) {
  const at = [...place.querySelectorAll("button")].indexOf(document.activeElement);
  remake();
  if (at >= 0) place.querySelectorAll("button")[at]?.focus();
}
