// What a Vision Transformer is made of and what that costs: the block diagram with the shape of every tensor, for any sizes.
//
// In the address: `s_name` a named variant (none: the model that is open), `s_image`, `s_patch` ... what differs from it, `s_by` what
// the bars count, `s_stage` the stage that is looked at. b batch, n patches, t tokens, h heads, k width of a head.

import { button, bytes, el, many, percent, select, several, svg } from "./dom.js";
import { copy, figure } from "./figure.js";
import { alone, json } from "./net.js";
import { told } from "./say.js";
import * as state from "./state.js";

const FIELDS = {
  image: ["Image", { type: "text", inputmode: "numeric", size: 8, title: "Pixels: 224, or height x width as 224x160" }],
  patch: ["Patch", { type: "text", inputmode: "numeric", size: 6, title: "Pixels: 16, or height x width as 16x8" }],
  width: ["Width", { min: 1, max: 65536, step: 1 }],
  depth: ["Depth", { min: 1, max: 400, step: 1 }],
  heads: ["Heads", { min: 1, max: 256, step: 1 }],
  mlp: ["MLP", { min: 1, max: 262144, step: 1 }],
  registers: ["Registers", { min: 0, max: 4096, step: 1 }],
  classes: ["Classes", { min: 0, max: 16777216, step: 1 }],
  batch: ["Batch", { min: 1, max: 65536, step: 1 }],
};
const ALL = [...Object.keys(FIELDS), "pool"];
const POOLS = [["cls", "class token"], ["gap", "mean of patches"], ["map", "attention (MAP)"]];
const BY = { macs: "MACs", parameters: "parameters", training: "memory while training", inference: "memory at inference" };
const NAMES = ["Ti", "S", "B", "L", "H"].flatMap((size) => [8, 14, 16, 32].map((patch) => `${size}/${patch}`));

export default {
  name: "shapes", title: "Shapes and cost", glyph: "◫",
  lead: "Every tensor on the way from the picture to the answer, and what each stage costs. Change a number: halve the patch, and there are four times the "
    + "tokens and sixteen times the scores.",
  build,
};

function build(section, studio) {
  let answer = null, asked = "", asking = null, timer = 0, changed = null, plan = "";
  const fields = {}, form = el("div", { class: "controls fields", role: "group", "aria-label": "Sizes" });
  const variant = select("Like", [["", "the model that is open"], ...NAMES.map((name) => [name, name])], "", (name) => {
    changed = null;
    state.set({ s_name: name || null, ...Object.fromEntries(ALL.map((field) => [`s_${field}`, null])) });
  });
  section.append(form);
  form.append(variant);
  for (const [name, [words, attributes]] of Object.entries(FIELDS)) form.append(field(name, words,
    el("input", { type: "number", autocomplete: "off", ...attributes, oninput: () => enter(name) })));
  form.append(field("pool", "Pool", el("select", { onchange: () => enter("pool") }, POOLS.map(([value, words]) => el("option", { value }, words)))));
  const back = button("Back to its own sizes", () => { changed = null; state.set(Object.fromEntries(ALL.map((name) => [`s_${name}`, null]))); });
  form.append(back);
  if (alone) {
    for (const one of form.querySelectorAll("input, select, button")) one.disabled = true;
    section.append(el("p", { class: "soft" }, "This page is a copy on its own: start the studio to change sizes."));
  }
  const totals = el("dl", { class: "totals" });
  section.append(totals);
  const diagram = figure(section, { name: "shapes", title: "Every tensor", level: 2, python, numbers: () => answer });
  diagram.root.querySelector(".tools").prepend(button("Copy as Python", () => answer && copy(python())));
  const by = select("Count", Object.entries(BY), state.get("s_by", "macs"), (value) => state.set({ s_by: value }));
  const costs = figure(section, { name: "cost", title: "Which stage costs what", level: 2, python,
    numbers: () => ({ stages: answer?.stages, memory: answer?.memory }) });
  costs.root.insertBefore(by, costs.body);

  return { draw };

  function field(name, words, input) {
    const wrong = el("span", { class: "wrong", id: `wrong-${name}`, hidden: true });
    fields[name] = { input, wrong };
    input.setAttribute("aria-describedby", wrong.id);
    return el("label", { class: "field" }, el("span", {}, words), input, wrong);
  }

  function enter(name) {
    changed = name;
    state.set({ [`s_${name}`]: fields[name].input.value.trim() || null });
  }

  function draw(why) {
    if (why === "point" || why === "trace") return undefined;
    variant.querySelector("select").value = NAMES.includes(state.get("s_name")) ? state.get("s_name") : "";
    by.querySelector("select").value = state.get("s_by") in BY ? state.get("s_by") : "macs";
    if (answer) drawn();
    return ask();
  }

  // What the address says of a field; a saved copy has the model's own sizes.
  function size(name) {
    return alone ? null : state.get(`s_${name}`);
  }

  // A question of the sizes in the address; with none there it is the one that a saved copy holds.
  function question() {
    const name = state.get("s_name"), found = NAMES.includes(name) && !alone ? { name } : { like: studio.model.id };
    for (const one of ALL) if (size(one) !== null) found[one] = size(one);
    return found;
  }

  // Where norms stand; named variants have them before their branches.
  function norm() {
    return question().name ? "pre" : studio.model.config.norm;
  }

  async function ask() {
    const wanted = question(), now = JSON.stringify(wanted);
    if (now === asked) return;
    const first = asked === "";
    asked = now;
    asking?.abort();
    clearTimeout(timer);
    const mine = (asking = new AbortController());
    await new Promise((done) => { timer = setTimeout(done, first ? 0 : 200); });
    if (asking !== mine) return;
    try {
      const found = await json("api/cost", wanted, { signal: mine.signal });
      if (asking !== mine) return;
      answer = { ...found, batch: Number(wanted.batch ?? 1), norm: norm() };
      complain(null);
      drawn();
    } catch (error) {
      if (asking !== mine || error.name === "AbortError") return;
      if (error.status !== 422) throw error;
      complain(error.message);
      if (!answer) await fallBack(mine);
    }
  }

  // A link with sizes that cannot be: the model itself is drawn, and the sentence stands beside the field.
  async function fallBack(mine) {
    const { name, like } = question();
    const found = await json("api/cost", name ? { name } : { like }).catch(told);
    if (!found || asking !== mine) return;
    answer = { ...found, batch: 1, norm: norm() };
    drawn();
  }

  function complain(sentence) {
    const named = ALL.find((name) => new RegExp(`\\b${name}\\b`).test(sentence ?? ""));
    for (const [name, { input, wrong }] of Object.entries(fields)) {
      const here = sentence !== null && name === (changed ?? named ?? "image");
      wrong.hidden = !here;
      wrong.textContent = here ? sentence : "";
      if (here) input.setAttribute("aria-invalid", "true");
      else input.removeAttribute("aria-invalid");
    }
  }

  function drawn() {
    const { config } = answer;
    for (const [name, { input }] of Object.entries(fields)) {
      const value = size(name) ?? (name === "batch" ? 1 : sides(config[name]));
      const typing = document.activeElement === input && input.value.trim() === state.get(`s_${name}`, ""); // what is being typed stays as it is
      if (!typing) input.value = value;
    }
    back.hidden = !ALL.some((name) => size(name) !== null);
    const now = JSON.stringify([answer, state.get("s_stage"), state.get("s_by")]);
    if (now === plan) return;
    plan = now;
    sums();
    const stages = grouped(answer), chosen = stages.find((stage) => stage.key === state.get("s_stage"))?.key ?? null;
    refocused(diagram.body, () => diagram.body.replaceChildren(picture(answer, config, chosen, pick)));
    diagram.caption(teach(answer));
    refocused(costs.body, () => costs.body.replaceChildren(rows(stages, chosen)));
    costs.caption(`Choose a stage here or in the drawing. ${{ macs: "MACs are multiply-adds of matrix products for one picture.", parameters: "Blocks weigh "
      + "nearly all; the number of tokens hardly matters, since every token meets the same weights.",
      training: "Float32 activations of the whole batch that the backward pass needs, without checkpointing.",
        inference: "The most that is alive at one moment while a stage is computed; of all stages the largest counts, not the sum." }[count()]}`);
  }

  function count() {
    return state.get("s_by") in BY ? state.get("s_by") : "macs";
  }

  function pick(key) {
    state.set({ s_stage: state.get("s_stage") === key ? null : key });
  }

  function sums() {
    const { parameters, macs, memory, tokens, batch } = answer, of = batch > 1 ? `, batch of ${batch.toLocaleString("en")}` : "";
    const shown = [["Parameters", many(parameters), `exactly ${parameters.toLocaleString("en")}`], ["MACs", many(macs), "multiply-adds a picture"],
      ["Tokens", tokens.toLocaleString("en"), `a grid of ${answer.grid.join(" x ")}${answer.config.prefix ? ` and ${answer.config.prefix}` : ""}`],
      ["Weights", bytes(memory.weights), "float32"], ["Inference", bytes(memory.inference), `activations${of}`],
        ["Training", bytes(memory.training), `activations${of}`], ["Adam", bytes(memory.adam), "gradients and two moments"]];
    totals.replaceChildren(...shown.map(([name, value, note]) => el("div", {}, el("dt", {}, name), el("dd", {}, value), el("dd", { class: "soft" }, note))));
  }

  function rows(stages, chosen) {
    const of = count(), most = Math.max(...stages.map((stage) => stage[of])), all = stages.reduce((sum, stage) => sum + stage[of], 0),
      large = of === "macs" || of === "parameters" ? many : bytes;
    return el("ol", { class: "bars stages" }, stages.map((stage) => el("li", { class: stage.key === chosen ? "chosen" : null },
      el("button", { type: "button", "aria-pressed": String(stage.key === chosen), onclick: () => pick(stage.key), data: { stage: stage.key } },
        el("span", { class: "name" }, stage.words), el("span", { class: "track", "aria-hidden": "true" },
          el("span", { class: "fill", style: { width: `${most ? (100 * stage[of]) / most : 0}%` } })),
        el("span", { class: "value" }, of === "inference" ? large(stage[of]) : `${large(stage[of])} · ${percent(all ? stage[of] / all : 0, 1)}`)))));
  }

  function python() {
    return answer ? answer.python.replace("vitrail.cost(config)", answer.batch > 1 ? `vitrail.cost(config, batch=${answer.batch})`
      : "vitrail.cost(config)") : "";
  }
}

// Stages of the answer by what the diagram has boxes for; blocks are one.
function grouped({ stages }) {
  const found = new Map();
  for (const stage of stages) {
    const key = stage.name.startsWith("block") ? "blocks" : /^(image|patches|tokens|norm|pool|pre-logits|head)/.exec(stage.name)?.[0] ?? "stem";
    const one = found.get(key) ?? { key, stages: 0, parameters: 0, macs: 0, inference: 0, training: 0 };
    for (const name of ["parameters", "macs", "training"]) one[name] += stage[name];
    one.inference = Math.max(one.inference, stage.inference);
    one.stages += 1;
    one.words = key === "blocks" ? `${one.stages} block${one.stages > 1 ? "s" : ""}` : key === "stem" ? "stem (ResNet)" : stage.name;
    found.set(key, one);
  }
  return [...found.values()];
}

function teach({ config, tokens, grid, batch, norm }) {
  const scores = batch * config.heads * tokens ** 2;
  return `${several(grid[0] * grid[1], "patch", "patches")} of ${sides(config.patch)}${config.prefix ? ` and ${config.prefix} more make` : " make"} ${tokens} tokens. The scores `
    + `of one layer are ${many(scores)} numbers and grow with the square of the tokens; `
    + `all else grows with the tokens alone. Attention's products are ${percent((2 * tokens) / (2 * tokens + 4 * config.width + 2 * config.mlp), 0)} of a `
      + `block's MACs here. The dashed lines are the residual stream: each branch only adds to it${norm === "post" ? ", and a norm then scales the sum" : ""}.`;
}

function sides(value) {
  return Array.isArray(value) ? (value[0] === value[1] ? String(value[0]) : value.join("x")) : String(value);
}

// Boxes that are made anew keep the keyboard's place.
function refocused(place, remake) {
  const key = place.contains(document.activeElement) ? document.activeElement.dataset.stage : null;
  remake();
  if (key) place.querySelector(`[data-stage="${key}"]`)?.focus();
}

// The way of a picture in the upper row, one block in the lower; every box says the shape of what leaves it.
function picture(answer, config, chosen, pick) {
  const { tokens, grid: [rows, columns], batch, stages } = answer, { width: d, heads: h, mlp, depth, registers, class_token: cls, classes } = config;
  const shape = (...sizes) => `(${sizes.join(", ")})`;
  const has = (name) => stages.find((stage) => stage.name.startsWith(name));
  const last = stages.findLastIndex((stage) => stage.name === "norm"), pooled = stages.findIndex((stage) => stage.name.startsWith("pool"));
  const extra = [cls ? "class token" : null, registers ? `${registers} register${registers > 1 ? "s" : ""}` : null,
    config.position === "none" || config.position === "rotary" || config.position === "relative" ? null : "positions"].filter(Boolean);
  const way = [["image", "Image", shape(batch, config.channels, ...config.image), "(b, c, h, w)"]];
  if (stages.some((stage) => !/^(image|patches|tokens|block|norm|pool|pre-logits|head)/.test(stage.name))) way.push(["stem", "ResNet stem",
    shape(...stages.slice(0, stages.findIndex((stage) => stage.name === "patches")).at(-1).shape), "(b, c, y, x)"]);
  way.push(["patches", `Patches ${sides(config.patch)}`, shape(batch, rows * columns, d), "(b, n, d)"],
    ["tokens", extra.length ? `+ ${extra[0]}` : "Tokens", shape(batch, tokens, d), "(b, t, d)", extra.slice(1).map((one) => `+ ${one}`)],
    ["blocks", `${depth} × block`, shape(batch, tokens, d), "(b, t, d)"]);
  if (last >= 0 && last < pooled) way.push(["norm", "Norm", shape(batch, tokens, d), "(b, t, d)"]);
  way.push(["pool", { cls: "Read class", gap: "Mean", map: "MAP" }[config.pool], shape(batch, d), "(b, d)"]);
  if (last > pooled) way.push(["norm", "Norm", shape(batch, d), "(b, d)"]);
  if (has("pre-logits")) way.push(["pre-logits", "Pre-logits", shape(...has("pre-logits").shape), "(b, d)"]);
  if (classes) way.push(["head", "Head", shape(batch, classes), "(b, classes)"]);

  const wide = room(way.flatMap(([, words, sizes]) => [words, sizes]), 108), gap = 20, high = 62;
  const cell = room([shape(batch, tokens, mlp), `3 × ${shape(batch, h, tokens, d / h)}`, shape(batch, h, tokens, tokens), "Scores, softmax"], 120);
  const whole = Math.max(way.length * (wide + gap) - gap + 16, 5 * (cell + 22) + 190);
  const drawing = svg("svg", { viewBox: `0 0 ${whole} 372`, class: "diagram", role: "group", "aria-label": "The way of a picture through the model, with "
    + "the shape of every tensor", style: { "min-width": `${Math.round(0.8 * whole)}px` } });
  drawing.append(svg("defs", {}, svg("marker", { id: "tip", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" },
    svg("path", { d: "M0 0L8 4L0 8z", class: "tip" }))));
  let block = 0;
  way.forEach(([key, words, sizes, letters, below = []], place) => {
    const x = 8 + place * (wide + gap);
    if (key === "blocks") block = x;
    if (place) drawing.append(arrow(x - gap, 48, x - 2, 48));
    drawing.append(box({ key, x, y: 48 - high / 2, wide, high: high + 15 * below.length, words: [words, ...below], sizes, letters, chosen, pick }));
  });
  drawing.append(inside(whole, block + wide / 2, { t: tokens, d, h, mlp, batch, shape, cell, post: answer.norm === "post", chosen }));
  return drawing;
}

function box({ key, x, y, wide, high, words, sizes, letters, chosen, pick }) {
  const lines = [...words.map((word) => ["what", word]), ["shape", sizes], ["letters", letters]];
  const click = () => pick(key);
  return svg("g", { class: `box${key === chosen ? " chosen" : ""}`, role: "button", tabindex: "0", "aria-pressed": String(key === chosen),
    "aria-label": `${words.join(" ")}: ${sizes}, ${letters}`, data: { stage: key }, onclick: click,
    onkeydown: (event) => { if (event.key === "Enter" || event.key === " ") event.preventDefault(), click(); } },
    svg("rect", { x, y, width: wide, height: high, rx: 7 }), lines.map(([kind, text], place) => svg("text",
      { class: kind, x: x + wide / 2, y: y + 18 + 15 * place + (kind === "letters" ? 2 : 0), "text-anchor": "middle" }, text)));
}

// A box that its longest line fits into.
function room(lines, least) {
  return Math.max(least, Math.ceil(6.7 * Math.max(...lines.map((line) => line.length)) + 14));
}

function arrow(x1, y1, x2, y2, kind = "arrow") {
  return svg("line", { class: kind, x1, y1, x2, y2, "marker-end": "url(#tip)" });
}

// One block: two branches that add to the stream, drawn as a line above them.
function inside(whole, from, { t, d, h, mlp, batch: b, shape, cell, post, chosen }) {
  const norm = ["Norm", shape(b, t, d), ""], attend = [["q, k, v", `3 × ${shape(b, h, t, d / h)}`, "(b, h, t, k)"],
    ["Scores, softmax", shape(b, h, t, t), "(b, h, t, t)"], ["Mix values", shape(b, h, t, d / h), "(b, h, t, k)"], ["Project", shape(b, t, d), "(b, t, d)"]];
  const think = [["MLP, GELU", shape(b, t, mlp), "(b, t, mlp)"], ["Back to width", shape(b, t, d), "(b, t, d)"]];
  const made = svg("g", { class: `inside${chosen === "blocks" ? " chosen" : ""}` });
  const top = 132, left = 8, right = whole - 8;
  made.append(svg("path", { class: "lens", d: `M${from - 54} 80L${left} ${top}H${right}L${from + 54} 80` }),
    svg("rect", { class: "frame", x: left, y: top, width: right - left, height: 232, rx: 8 }),
    svg("text", { class: "what", x: left + 12, y: top + 20 }, post ? "One block, norms after each sum" : "One block, norms before each branch"));
  half(made, top + 40, post ? attend : [norm, ...attend], post, left, right, cell, shape(b, t, d));
  half(made, top + 136, post ? think : [norm, ...think], post, left, right, cell, shape(b, t, d));
  return made;
}

function half(made, y, boxes, post, left, right, wide, stream) {
  const line = y + 12, begin = left + 34, plus = right - (post ? 150 : 62),
    gap = Math.min(22, (plus - 36 - begin - 28 - boxes.length * wide) / Math.max(1, boxes.length - 1));
  made.append(svg("path", { class: "stream", d: `M${left + 8} ${line}H${plus - 11}`, "marker-end": "url(#tip)" }),
    svg("text", { class: "shape", x: begin + 34, y: line - 5 }, `residual stream ${stream}`));
  let x = begin + 28;
  made.append(svg("path", { class: "arrow", d: `M${begin} ${line}V${y + 52}H${x - 2}`, "marker-end": "url(#tip)" }));
  boxes.forEach(([words, sizes, letters], place) => {
    if (place) made.append(arrow(x - gap, y + 52, x - 2, y + 52));
    made.append(svg("rect", { class: "cell", x, y: y + 28, width: wide, height: 50, rx: 6 }),
      ...[["what", words], ["shape", sizes], ["letters", letters]].map(([kind, text], row) => svg("text",
      { class: kind, x: x + wide / 2, y: y + 44 + 14 * row, "text-anchor": "middle" }, text)));
    x += wide + gap;
  });
  made.append(svg("path", { class: "arrow", d: `M${x - gap} ${y + 52}H${plus}V${line + 11}`, "marker-end": "url(#tip)" }),
    svg("circle", { class: "plus", cx: plus, cy: line, r: 9 }), svg("text", { class: "what", x: plus, y: line + 4, "text-anchor": "middle" }, "+"));
  if (post) made.append(arrow(plus + 9, line, plus + 26, line), svg("rect", { class: "cell", x: plus + 28, y: line - 14, width: 60, height: 28, rx: 6 }),
    svg("text", { class: "what", x: plus + 58, y: line + 4, "text-anchor": "middle" }, "Norm"), arrow(plus + 88, line, right - 4, line));
  else made.append(arrow(plus + 9, line, right - 4, line));
}
