// Part 9: the architecture of a Vision Transformer and its cost: a block diagram with the shape of every tensor, for any configuration.
//
// In the URL: `arch_name` a named variant (none: the open model), `arch_image`, `arch_patch` ... fields that differ from it, `arch_cost`
// the cost that the bars show, `arch_stage` the selected stage. b batch, n patches, t tokens, h heads, k width of a head.

import { button, formatBytes, el, formatSI, percent, select, plural, svg } from "./dom.js";
import { copy, figure } from "./figure.js";
import { standalone, fetchJson } from "./api.js";
import { showError } from "./toast.js";
import * as state from "./url_state.js";

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
const FIELD_NAMES = [...Object.keys(FIELDS), "pool"];
const POOLS = [["cls", "class token"], ["gap", "mean of patches"], ["map", "attention (MAP)"], ["cls+gap", "class token and mean"],
  ["cls+register", "class token and register"]];
const COSTS = { macs: "MACs", parameters: "parameters", saved_bytes: "memory while training", peak_bytes: "memory at inference" };
const VARIANTS = ["Ti", "S", "B", "L", "H"].flatMap((size) => [8, 14, 16, 32].map((patch) => `${size}/${patch}`));

export default {
  name: "architecture", title: "Architecture and cost", glyph: "◫",
  lead: "Every tensor from the image to the logits, and the cost of each stage. Change a value: half the patch size means four times the "
    + "tokens and sixteen times the attention scores.",
  build,
};

function build(section, store) {
  let cost = null, loadedKey = "", pending = null, timer = 0, lastEdited = null, drawnKey = "";
  const fields = {}, form = el("div", { class: "controls fields", role: "group", "aria-label": "Configuration" });
  const variant = select("Start from", [["", "the open model"], ...VARIANTS.map((name) => [name, name])], "", (name) => {
    lastEdited = null;
    state.set({ arch_name: name || null, ...Object.fromEntries(FIELD_NAMES.map((field) => [`arch_${field}`, null])) });
  });
  section.append(form);
  form.append(variant);
  for (const [name, [label, attributes]] of Object.entries(FIELDS)) form.append(field(name, label,
    el("input", { type: "number", autocomplete: "off", ...attributes, oninput: () => edit(name) })));
  form.append(field("pool", "Pool", el("select", { onchange: () => edit("pool") }, POOLS.map(([value, label]) => el("option", { value }, label)))));
  const reset = button("Reset", () => { lastEdited = null; state.set(Object.fromEntries(FIELD_NAMES.map((name) => [`arch_${name}`, null]))); });
  form.append(reset);
  if (standalone) {
    for (const one of form.querySelectorAll("input, select, button")) one.disabled = true;
    section.append(el("p", { class: "soft" }, "This is a saved page: start the studio to change the configuration."));
  }
  const totals = el("dl", { class: "totals" });
  section.append(totals);
  const diagram = figure(section, { name: "architecture", title: "Tensor shapes", level: 2, python, numbers: () => cost });
  diagram.root.querySelector(".tools").prepend(button("Copy as Python", () => cost && copy(python())));
  const costSelect = select("Cost", Object.entries(COSTS), state.get("arch_cost", "macs"), (value) => state.set({ arch_cost: value }));
  const costFigure = figure(section, { name: "cost", title: "Cost by stage", level: 2, python,
    numbers: () => ({ stages: cost?.stages, memory: cost?.memory }) });
  costFigure.root.insertBefore(costSelect, costFigure.body);

  return { draw };

  function field(name, label, input) {
    const errorText = el("span", { class: "error", id: `error-${name}`, hidden: true });
    fields[name] = { input, errorText };
    input.setAttribute("aria-describedby", errorText.id);
    return el("label", { class: "field" }, el("span", {}, label), input, errorText);
  }

  function edit(name) {
    lastEdited = name;
    state.set({ [`arch_${name}`]: fields[name].input.value.trim() || null });
  }

  function draw(reason) {
    if (reason === "point" || reason === "trace") return undefined;
    variant.querySelector("select").value = VARIANTS.includes(state.get("arch_name")) ? state.get("arch_name") : "";
    costSelect.querySelector("select").value = state.get("arch_cost") in COSTS ? state.get("arch_cost") : "macs";
    if (cost) redraw();
    return ask();
  }

  // A field in the URL; a saved page has the model's own configuration.
  function override(name) {
    return standalone ? null : state.get(`arch_${name}`);
  }

  // The request for the configuration in the URL; without changes it is the one that a saved page holds.
  function costParams() {
    const name = state.get("arch_name"), result = VARIANTS.includes(name) && !standalone ? { name } : { like: store.model.id };
    for (const one of FIELD_NAMES) if (override(one) !== null) result[one] = override(one);
    return result;
  }

  // Position of the norms; named variants are pre-norm.
  function norm() {
    return costParams().name ? "pre" : store.model.config.norm;
  }

  async function ask() {
    const wanted = costParams(), now = JSON.stringify(wanted);
    if (now === loadedKey) return;
    const first = loadedKey === "";
    loadedKey = now;
    pending?.abort();
    clearTimeout(timer);
    const controller = (pending = new AbortController());
    await new Promise((done) => { timer = setTimeout(done, first ? 0 : 200); });
    if (pending !== controller) return;
    try {
      const result = await fetchJson("api/cost", wanted, { signal: controller.signal });
      if (pending !== controller) return;
      cost = { ...result, batch: Number(wanted.batch ?? 1), norm: norm() };
      showFieldError(null);
      redraw();
    } catch (error) {
      if (pending !== controller || error.name === "AbortError") return;
      if (error.status !== 422) throw error;
      showFieldError(error.message);
      if (!cost) await drawUnchanged(controller);
    }
  }

  // A link with an invalid configuration: draw the model itself, with the error message next to the field.
  async function drawUnchanged(controller) {
    const { name, like } = costParams();
    const result = await fetchJson("api/cost", name ? { name } : { like }).catch(showError);
    if (!result || pending !== controller) return;
    cost = { ...result, batch: 1, norm: norm() };
    redraw();
  }

  function showFieldError(sentence) {
    const mentioned = FIELD_NAMES.find((name) => new RegExp(`\\b${name}\\b`).test(sentence ?? ""));
    for (const [name, { input, errorText }] of Object.entries(fields)) {
      const affected = sentence !== null && name === (lastEdited ?? mentioned ?? "image");
      errorText.hidden = !affected;
      errorText.textContent = affected ? sentence : "";
      if (affected) input.setAttribute("aria-invalid", "true");
      else input.removeAttribute("aria-invalid");
    }
  }

  function redraw() {
    const { config } = cost;
    for (const [name, { input }] of Object.entries(fields)) {
      const value = override(name) ?? (name === "batch" ? 1 : formatSize(config[name]));
      const typing = document.activeElement === input && input.value.trim() === state.get(`arch_${name}`, ""); // do not overwrite what is being typed
      if (!typing) input.value = value;
    }
    reset.hidden = !FIELD_NAMES.some((name) => override(name) !== null);
    const now = JSON.stringify([cost, state.get("arch_stage"), state.get("arch_cost")]);
    if (now === drawnKey) return;
    drawnKey = now;
    drawTotals();
    const stages = groupStages(cost), selected = stages.find((stage) => stage.key === state.get("arch_stage"))?.key ?? null;
    keepFocus(diagram.body, () => diagram.body.replaceChildren(drawDiagram(cost, config, selected, selectStage)));
    diagram.caption(captionText(cost));
    keepFocus(costFigure.body, () => costFigure.body.replaceChildren(costBars(stages, selected)));
    costFigure.caption(`Select a stage here or in the diagram. ${{ macs: "MACs are multiply-accumulates of matrix products for one image.", parameters: "The blocks hold "
      + "nearly all; the number of tokens hardly matters, since all tokens share the weights.",
      saved_bytes: "Float32 activations of the whole batch that are saved for the backward pass, without activation checkpointing.",
        peak_bytes: "Peak memory while a stage is computed; the maximum over stages counts, not the sum." }[costKey()]}`);
  }

  function costKey() {
    return state.get("arch_cost") in COSTS ? state.get("arch_cost") : "macs";
  }

  function selectStage(key) {
    state.set({ arch_stage: state.get("arch_stage") === key ? null : key });
  }

  function drawTotals() {
    const { parameters, macs, memory, tokens, batch } = cost, of = batch > 1 ? `, batch of ${batch.toLocaleString("en")}` : "";
    const shownTotals = [["Parameters", formatSI(parameters), `exactly ${parameters.toLocaleString("en")}`], ["MACs", formatSI(macs), "multiply-accumulates per image"],
      ["Tokens", tokens.toLocaleString("en"), `${cost.grid.join(" x ")} patches${cost.config.prefix ? ` and ${plural(cost.config.prefix, "prefix token")}` : ""}`],
      ["Weights", formatBytes(memory.weights), "float32"], ["Inference", formatBytes(memory.inference), `activations${of}`],
        ["Training", formatBytes(memory.training), `activations${of}`], ["Adam", formatBytes(memory.grads_and_moments), "gradients and two moments"]];
    totals.replaceChildren(...shownTotals.map(([name, value, note]) => el("div", {}, el("dt", {}, name), el("dd", {}, value), el("dd", { class: "soft" }, note))));
  }

  function costBars(stages, selected) {
    const of = costKey(), maximum = Math.max(...stages.map((stage) => stage[of])), all = stages.reduce((sum, stage) => sum + stage[of], 0),
      large = of === "macs" || of === "parameters" ? formatSI : formatBytes;
    return el("ol", { class: "bars stages" }, stages.map((stage) => el("li", { class: stage.key === selected ? "selected" : null },
      el("button", { type: "button", "aria-pressed": String(stage.key === selected), onclick: () => selectStage(stage.key), data: { stage: stage.key } },
        el("span", { class: "name" }, stage.label), el("span", { class: "track", "aria-hidden": "true" },
          el("span", { class: "fill", style: { width: `${maximum ? (100 * stage[of]) / maximum : 0}%` } })),
        el("span", { class: "value" }, of === "peak_bytes" ? large(stage[of]) : `${large(stage[of])} · ${percent(all ? stage[of] / all : 0, 1)}`)))));
  }

  function python() {
    return cost ? cost.python.replace("vitrail.cost(config)", cost.batch > 1 ? `vitrail.cost(config, batch=${cost.batch})`
      : "vitrail.cost(config)") : "";
  }
}

// Stages grouped by the boxes of the diagram; all blocks are one.
function groupStages({ stages }) {
  const result = new Map();
  for (const stage of stages) {
    const key = stage.name.startsWith("block") ? "blocks" : /^(image|patches|tokens|norm|pool|pre-logits|head)/.exec(stage.name)?.[0] ?? "stem";
    const one = result.get(key) ?? { key, stages: 0, parameters: 0, macs: 0, peak_bytes: 0, saved_bytes: 0 };
    for (const name of ["parameters", "macs", "saved_bytes"]) one[name] += stage[name];
    one.peak_bytes = Math.max(one.peak_bytes, stage.peak_bytes);
    one.stages += 1;
    one.label = key === "blocks" ? `${one.stages} block${one.stages > 1 ? "s" : ""}` : key === "stem" ? "stem (ResNet)" : stage.name;
    result.set(key, one);
  }
  return [...result.values()];
}

function captionText({ config, tokens, grid, batch, norm }) {
  const scores = batch * config.heads * tokens ** 2;
  return `${plural(grid[0] * grid[1], "patch", "patches")} of size ${formatSize(config.patch)}${config.prefix ? ` and ${plural(config.prefix, "prefix token")} give` : " give"} ${tokens} tokens. The attention scores `
    + `of one layer are ${formatSI(scores)} values and grow quadratically with the number of tokens; `
    + `everything else grows linearly. The matrix products of attention are ${percent((2 * tokens) / (2 * tokens + 4 * config.width + config.mlp_outputs + config.mlp), 0)} of a `
      + `block's MACs here. The dashed lines are the residual stream: each branch only adds to it${norm === "post" ? ", and a norm is applied to the sum" : norm === "branch" ? ", after its norm" : ""}.${attentionPositions(config)}${windowText(config)}`;
}

// Which blocks the figures of attention are of, if others attend in windows.
function windowText({ windows }) {
  const side = windows.find((window) => window !== null), globalBlocks = windows.flatMap((window, index) => (window === null ? [index + 1] : []));
  if (side === undefined) return "";
  return ` In ${globalBlocks.length ? `all blocks but ${globalBlocks.join(", ")}` : "all blocks"}, patches attend in windows of ${side} x ${side}, so that their scores grow linearly; shown is a block without.`;
}

// What attention knows of positions beside what is added to the tokens.
function attentionPositions({ position, rotary, relative_bias, relative_axes }) {
  const parts = [rotary || position === "rotary" ? "queries and keys are rotated by their position" : null,
    relative_bias ? "a bias by the offset of two patches is added to the scores" : null,
    relative_axes ? "the products of the query with embeddings of how many rows and columns two patches are apart are added to the scores" : null].filter(Boolean);
  return parts.length ? ` In attention, ${parts.join(", and ")}.` : "";
}

function formatSize(value) {
  return Array.isArray(value) ? (value[0] === value[1] ? String(value[0]) : value.join("x")) : String(value);
}

// Rebuilt boxes keep the keyboard focus.
function keepFocus(container, rebuild) {
  const key = container.contains(document.activeElement) ? document.activeElement.dataset.stage : null;
  rebuild();
  if (key) container.querySelector(`[data-stage="${key}"]`)?.focus();
}

// The whole model in the upper row, one block in the lower; every box has the shape of its output.
function drawDiagram(cost, config, selected, selectStage) {
  const { tokens, grid: [rows, columns], batch, stages } = cost, { width: d, heads: h, mlp, depth, registers, class_token: cls, classes } = config;
  const shape = (...sizes) => `(${sizes.join(", ")})`;
  const has = (name) => stages.find((stage) => stage.name.startsWith(name));
  const last = stages.findLastIndex((stage) => stage.name === "norm"), poolStage = stages.findIndex((stage) => stage.name.startsWith("pool"));
  const extra = [cls ? "class token" : null, registers ? `${registers} register${registers > 1 ? "s" : ""}` : null,
    config.position === "none" || config.position === "rotary" || config.position === "relative" ? null : "positions"].filter(Boolean);
  const path = [["image", "Image", shape(batch, config.channels, ...config.image), "(b, c, h, w)"]];
  if (stages.some((stage) => !/^(image|patches|tokens|block|norm|pool|pre-logits|head)/.test(stage.name))) path.push(["stem", "ResNet stem",
    shape(...stages.slice(0, stages.findIndex((stage) => stage.name === "patches")).at(-1).shape), "(b, c, y, x)"]);
  path.push(["patches", `Patches ${formatSize(config.patch)}`, shape(batch, rows * columns, d), "(b, n, d)"],
    ["tokens", extra.length ? `+ ${extra[0]}` : "Tokens", shape(batch, tokens, d), "(b, t, d)", extra.slice(1).map((one) => `+ ${one}`)],
    ["blocks", `${depth} × block`, shape(batch, tokens, d), "(b, t, d)"]);
  if (last >= 0 && last < poolStage) path.push(["norm", "Norm", shape(batch, tokens, d), "(b, t, d)"]);
  path.push(["pool", { cls: "Class token", gap: "Mean", map: "MAP", "cls+gap": "Class token and mean", "cls+register": "Class token and register" }[config.pool],
    shape(batch, config.feature_width), config.pool.includes("+") ? "(b, 2 d)" : "(b, d)"]);
  if (last > poolStage) path.push(["norm", "Norm", shape(batch, d), "(b, d)"]);
  if (has("pre-logits")) path.push(["pre-logits", "Pre-logits", shape(...has("pre-logits").shape), "(b, d)"]);
  if (classes) path.push(["head", "Head", shape(batch, classes), "(b, classes)"]);

  const wide = boxWidth(path.flatMap(([, label, sizes]) => [label, sizes]), 108), gap = 20, high = 62;
  const words = blockWords(config);
  const cell = boxWidth([shape(batch, tokens, mlp), `3 × ${shape(batch, h, tokens, d / h)}`, shape(batch, h, tokens, tokens), ...Object.values(words)], 120);
  const total = Math.max(path.length * (wide + gap) - gap + 16, 5 * (cell + 22) + 190);
  const drawing = svg("svg", { viewBox: `0 0 ${total} 372`, class: "diagram", role: "group", "aria-label": "The model from image to logits, with "
    + "the shape of every tensor", style: { "min-width": `${Math.round(0.8 * total)}px` } });
  drawing.append(svg("defs", {}, svg("marker", { id: "tip", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" },
    svg("path", { d: "M0 0L8 4L0 8z", class: "tip" }))));
  let block = 0;
  path.forEach(([key, label, sizes, letters, below = []], index) => {
    const x = 8 + index * (wide + gap);
    if (key === "blocks") block = x;
    if (index) drawing.append(arrow(x - gap, 48, x - 2, 48));
    drawing.append(drawBox({ key, x, y: 48 - high / 2, wide, high: high + 15 * below.length, label: [label, ...below], sizes, letters, selected, selectStage }));
  });
  drawing.append(drawBlock(total, block + wide / 2, { t: tokens, d, h, mlp, batch, shape, cell, words, norm: cost.norm, selected }));
  return drawing;
}

function drawBox({ key, x, y, wide, high, label, sizes, letters, selected, selectStage }) {
  const lines = [...label.map((word) => ["label", word]), ["shape", sizes], ["letters", letters]];
  const click = () => selectStage(key);
  return svg("g", { class: `box${key === selected ? " selected" : ""}`, role: "button", tabindex: "0", "aria-pressed": String(key === selected),
    "aria-label": `${label.join(" ")}: ${sizes}, ${letters}`, data: { stage: key }, onclick: click,
    onkeydown: (event) => { if (event.key === "Enter" || event.key === " ") event.preventDefault(), click(); } },
    svg("rect", { x, y, width: wide, height: high, rx: 7 }), lines.map(([kind, text], index) => svg("text",
      { class: kind, x: x + wide / 2, y: y + 18 + 15 * index + (kind === "letters" ? 2 : 0), "text-anchor": "middle" }, text)));
}

// The width of a box for its longest line.
function boxWidth(lines, minimum) {
  return Math.max(minimum, Math.ceil(6.7 * Math.max(...lines.map((line) => line.length)) + 14));
}

function arrow(x1, y1, x2, y2, kind = "arrow") {
  return svg("line", { class: kind, x1, y1, x2, y2, "marker-end": "url(#tip)" });
}

// The labels of a block's boxes: a norm of the heads' output or of the hidden layer has no box of its own.
function blockWords({ position, rotary, relative_bias, relative_axes, mlp_kind, attention_norm, mlp_norm }) {
  return {
    qkv: rotary || position === "rotary" ? "q, k, v, rotate" : "q, k, v",
    scores: relative_bias || relative_axes ? "Scores, bias, softmax" : "Scores, softmax",
    project: attention_norm ? "Norm, project" : "Project",
    up: `Linear, ${mlp_kind === "swiglu" ? "SwiGLU" : "GELU"}`,
    down: mlp_norm ? "Norm, linear" : "Linear",
  };
}

// One block: two branches that add to the residual stream above them.
function drawBlock(total, from, { t, d, h, mlp, batch: b, shape, cell, words, norm: place, selected }) {
  const norm = ["Norm", shape(b, t, d), ""], attentionBoxes = [[words.qkv, `3 × ${shape(b, h, t, d / h)}`, "(b, h, t, k)"],
    [words.scores, shape(b, h, t, t), "(b, h, t, t)"], ["Weighted values", shape(b, h, t, d / h), "(b, h, t, k)"], [words.project, shape(b, t, d), "(b, t, d)"]];
  const mlpBoxes = [[words.up, shape(b, t, mlp), "(b, t, mlp)"], [words.down, shape(b, t, d), "(b, t, d)"]];
  const post = place === "post", withNorm = (boxes) => (post ? boxes : place === "branch" ? [...boxes, norm] : [norm, ...boxes]);
  const group = svg("g", { class: `block${selected === "blocks" ? " selected" : ""}` });
  const top = 132, left = 8, right = total - 8;
  group.append(svg("path", { class: "lens", d: `M${from - 54} 80L${left} ${top}H${right}L${from + 54} 80` }),
    svg("rect", { class: "frame", x: left, y: top, width: right - left, height: 232, rx: 8 }),
    svg("text", { class: "label", x: left + 12, y: top + 20 }, post ? "One block (post-norm)" : place === "branch" ? "One block (norm at the end of a branch)" : "One block (pre-norm)"));
  drawBranch(group, top + 40, withNorm(attentionBoxes), post, left, right, cell, shape(b, t, d));
  drawBranch(group, top + 136, withNorm(mlpBoxes), post, left, right, cell, shape(b, t, d));
  return group;
}

function drawBranch(group, y, boxes, post, left, right, wide, stream) {
  const line = y + 12, begin = left + 34, plus = right - (post ? 150 : 62),
    gap = Math.min(22, (plus - 36 - begin - 28 - boxes.length * wide) / Math.max(1, boxes.length - 1));
  group.append(svg("path", { class: "stream", d: `M${left + 8} ${line}H${plus - 11}`, "marker-end": "url(#tip)" }),
    svg("text", { class: "shape", x: begin + 34, y: line - 5 }, `residual stream ${stream}`));
  let x = begin + 28;
  group.append(svg("path", { class: "arrow", d: `M${begin} ${line}V${y + 52}H${x - 2}`, "marker-end": "url(#tip)" }));
  boxes.forEach(([label, sizes, letters], index) => {
    if (index) group.append(arrow(x - gap, y + 52, x - 2, y + 52));
    group.append(svg("rect", { class: "cell", x, y: y + 28, width: wide, height: 50, rx: 6 }),
      ...[["label", label], ["shape", sizes], ["letters", letters]].map(([kind, text], row) => svg("text",
      { class: kind, x: x + wide / 2, y: y + 44 + 14 * row, "text-anchor": "middle" }, text)));
    x += wide + gap;
  });
  group.append(svg("path", { class: "arrow", d: `M${x - gap} ${y + 52}H${plus}V${line + 11}`, "marker-end": "url(#tip)" }),
    svg("circle", { class: "plus", cx: plus, cy: line, r: 9 }), svg("text", { class: "label", x: plus, y: line + 4, "text-anchor": "middle" }, "+"));
  if (post) group.append(arrow(plus + 9, line, plus + 26, line), svg("rect", { class: "cell", x: plus + 28, y: line - 14, width: 60, height: 28, rx: 6 }),
    svg("text", { class: "label", x: plus + 58, y: line + 4, "text-anchor": "middle" }, "Norm"), arrow(plus + 88, line, right - 4, line));
  else group.append(arrow(plus + 9, line, right - 4, line));
}
