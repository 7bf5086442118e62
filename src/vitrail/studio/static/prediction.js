// Part 7: the prediction, and how it changes when patches are masked, shuffled or dropped (Naseer et al. 2021).
//
// In the URL: `patches` as ranges (3-7,12), `mode`, and `seed` for random choices.

import { bars, labelsText } from "./chart.js";
import { BoxFigure } from "./boxes.js";
import { button, el, formatNumber, percent, select, plural } from "./dom.js";
import { figure } from "./figure.js";
import { MaskFigure } from "./mask.js";
import { PatchGrid } from "./patch_grid.js";
import { standalone, fetchArrays, post } from "./api.js";
import { toast, showError } from "./toast.js";
import * as state from "./url_state.js";

const MODE_NAMES = { mask: "masked", shuffle: "shuffled", drop: "dropped" };
const MODE_TEXTS = {
  mask: "A masked patch is filled with the mean colour that preprocessing subtracts (that of the training images, or 0.5 by convention), so its normalised values "
    + "are zero. It is still a token: it has a position, other tokens attend to it, "
    + "and the grey area has visible edges. The change is therefore partly due to the missing content, and partly to the grey itself.",
  shuffle: "The contents of the selected patches are permuted: all colours and textures remain, the shape does not. If the prediction stays, it did "
    + "not depend on the arrangement of these patches; if it changes, it did.",
  drop: "The tokens of these patches are removed, and nothing replaces them: attention is distributed over the remaining tokens, which keep their position "
    + "embeddings, and there is less to compute. "
    + "A convolution could not do that; it needs an input at every position.",
};

export default {
  name: "prediction", title: "Prediction", glyph: "▤",
  lead: "The prediction, and how it changes when parts of the image are removed. A transformer processes a set of tokens, so it works with any number "
    + "of them.",
  thumb(canvas, { trace }) {
    const context = canvas.getContext("2d"), { width, height } = canvas;
    context.clearRect(0, 0, width, height);
    context.fillStyle = getComputedStyle(document.body).getPropertyValue("--fill");
    trace.meta.top.slice(0, 6).forEach((one, index) => context.fillRect(2, 2 + (index * (height - 2)) / 6, Math.max(1, one.probability * (width - 4)),
      height / 6 - 3));
  },
  build,
};

function build(section, store) {
  let selected = new Set(); // removed patches
  let response = null; // the response for them, with the key of its request
  let pending = null, ranking = null, timer = 0, drawnKey = "";

  const controls = el("div", { class: "controls" }), more = el("div", { class: "controls" });
  const columns = el("div", { class: "columns" });
  section.append(controls, more);
  const boxes = new BoxFigure(section, store);
  section.append(columns);
  const inputFigure = figure(columns, { name: "ablated-image", title: "Input", level: 2, python: () => python(store, selected),
    numbers: () => ({ patches: [...selected], mode: mode(), seed: seed(), permutation: currentResponse()?.permutation ?? null }) });
  const mask = new MaskFigure(columns, store);
  const outputFigure = figure(columns, { name: "prediction", title: "Prediction", level: 2, python: () => python(store, selected),
    numbers: () => currentResponse() ?? { top: store.trace?.meta.top } });
  const modeText = el("p", { class: "soft" });
  section.append(modeText, el("p", { class: "soft" }, "Vision Transformers keep up to 60 % accuracy on ImageNet when 80 % of an image is removed at "
    + "random (Naseer et al. 2021). "
    + "Try it: remove a random third, then the same number of the most important patches. If the first hardly matters and the second does, the saliency map is "
      + "faithful."));

  const summary = el("p", { class: "summary", role: "status" });
  const hatch = el("canvas", { class: "hatch", "aria-hidden": "true" });
  const grid = new PatchGrid({
    label: "Patches to remove. Shift and arrow keys repeat the last action",
    onhover: (patch) => store.hover(patch === null || !store.trace ? null : patch + store.trace.meta.prefix),
    onpick: (patch) => !brush.busy && toggle(patch),
    describe: (patch) => `${store.tokenName(patch + store.trace.meta.prefix)}, ${selected.has(patch) ? MODE_NAMES[mode()] : "unchanged"}`,
  });
  grid.root.insertBefore(hatch, grid.lines);
  const count = el("p", { class: "soft" });
  inputFigure.body.append(el("div", { class: "stage" }, grid.root), count);
  outputFigure.body.append(summary);
  const rows = el("div");
  const barLegend = el("p", { class: "soft key" }, el("span", { class: "bar", "aria-hidden": "true" }), "now",
    el("span", { class: "tick", "aria-hidden": "true" }), "with the full image");
  outputFigure.body.append(rows, barLegend);
  const brush = attachBrush(grid, (patch) => !selected.has(patch), (patch, on) => setPatch(patch, on), () => selected.has(grid.hovered));
  new ResizeObserver(() => updateHatching()).observe(grid.root);
  const widgets = tools();

  return { draw };

  function mode() {
    const wanted = state.get("mode");
    return wanted in MODE_NAMES && !(needsEveryPatch() && wanted === "drop") ? wanted : "mask";
  }

  // Whether the outputs of the head belong to places of the image.
  function needsEveryPatch() {
    return store.model.segments || store.model.detects;
  }

  function seed() {
    return Math.max(0, Math.round(state.number("seed", 0)));
  }

  function method() {
    const { methods } = store.info, wanted = state.get("method");
    return methods.includes(wanted) ? wanted : methods.includes("relevance") ? "relevance" : methods[0];
  }

  function draw(reason) {
    const trace = store.trace;
    if (!trace) return;
    if (reason === "point") return mark();
    if (reason === "theme") mask.grid.mark();
    const patches = trace.meta.grid[0] * trace.meta.grid[1];
    selected = new Set(parseRanges(state.get("patches", ""), patches));
    for (const one of widgets.modes.children) one.setAttribute("aria-pressed", String(one.dataset.mode === mode()));
    widgets.seed.value = document.activeElement === widgets.seed ? widgets.seed.value : seed();
    widgets.by.value = method();
    widgets.count.max = patches;
    if (!widgets.count.value) widgets.count.value = Math.max(1, Math.round(patches / 4));
    const headless = !trace.meta.top.length;
    for (const one of section.querySelectorAll(".controls button, .controls input, .controls select")) {
      if (one.closest("figure[data-figure=boxes]")) continue;  // their threshold needs no server
      one.disabled = headless || standalone || (needsEveryPatch() && one.dataset.mode === "drop");
    }
    for (const one of [rows, barLegend]) one.hidden = headless;
    if (headless) summary.textContent = trace.meta.numbers.length ? `Prediction: ${trace.meta.numbers.map((one) => `${one.name} ${formatNumber(one.value)}`).join(", ")}. `
      + "How it changes is shown for classes only." : "This model has no classification head, so there is no prediction.";
    modeText.textContent = MODE_TEXTS[mode()];
    requestAblation();
    const view = { patches: formatRanges(selected), mode: mode(), seed: seed(), pixels: (arrays, meta) => ablatedPixels(arrays.pixels, meta, selected, mode(), currentResponse()?.permutation) };
    for (const one of [mask, boxes]) one.draw(view);
    drawInput();
    drawPrediction();
  }

  function mark() {
    const token = store.activeToken, { prefix } = store.trace.meta;
    grid.mark({ at: token !== null && token >= prefix ? token - prefix : null, marked: selected });
  }

  // The response, if it belongs to the current request.
  function currentResponse() {
    return response && response.key === requestKey() ? response : null;
  }

  function requestKey() {
    return JSON.stringify([store.requestParams(), formatRanges(selected), mode(), mode() === "shuffle" ? seed() : 0]);
  }

  function requestAblation() {
    if (requestKey() === pending?.key || currentResponse()) return;
    clearTimeout(timer);
    pending?.abort.abort();
    pending = null;
    if (!selected.size || standalone || !store.trace.meta.top.length || currentTrace() !== store.trace) return;
    const mine = (pending = { key: requestKey(), abort: new AbortController() }), { model, step, image, pixel, box } = store.requestParams();
    const body = { model, step: step === null ? null : Number(step), image, patches: [...selected], mode: mode(), seed: seed(), class: state.get("class") === null ? null : store.trace.meta.target,
      pixel: pixel ? pixel.split(",").map(Number) : null, box: box === null ? null : Number(box) };
    timer = setTimeout(async () => {
      try {
        const ablation = await post("api/ablate", {}, body, { signal: mine.abort.signal });
        if (pending !== mine) return;
        response = { ...ablation, key: mine.key };
        redrawInput();
        for (const one of [mask, boxes]) one.redraw();
        drawPrediction();
      } catch (error) {
        if (pending === mine && error.name !== "AbortError") summary.textContent = error.message, summary.classList.remove("stale");
      }
    }, 120);
  }

  function redrawInput() {
    drawnKey = "";
    drawInput();
  }

  // The trace, if it is that of the URL: a new one, maybe with another grid, may still be loading.
  function currentTrace() {
    const { image: { id }, model, step } = store.trace.meta, requestParams = store.requestParams();
    return id === requestParams.image && model === requestParams.model && String(step) === String(requestParams.step) ? store.trace : null;
  }

  // The model's input: masked and shuffled patches are drawn as they are, dropped ones are hatched.
  function drawInput() {
    const { arrays, meta } = store.trace, now = [store.trace.meta.image.id, store.model.id, formatRanges(selected), mode(), currentResponse()?.permutation?.join()].join(" ");
    if (now !== drawnKey || grid.trace !== store.trace) grid.show(ablatedPixels(arrays.pixels, meta, selected, mode(), currentResponse()?.permutation), meta.grid, meta.region?.bounds);
    [drawnKey, grid.trace] = [now, store.trace];
    mark();
    updateHatching();
    const patches = meta.grid[0] * meta.grid[1];
    count.textContent = selected.size ? `${selected.size} of ${plural(patches, "patch", "patches")} ${MODE_NAMES[mode()]} `
      + `(${percent(selected.size / patches, 0)})${mode() === "drop" ? `: ${meta.tokens - selected.size} of ${meta.tokens} tokens remain` : ""}.`
      : `${plural(patches, "patch", "patches")}. Click one, drag over several, or use the arrow keys and Enter.`;
  }

  function updateHatching() {
    if (!store.trace) return;
    drawHatching(hatch, grid, mode() === "drop" ? selected : new Set());
  }

  function drawPrediction() {
    const { meta } = store.trace;
    if (!meta.top.length) return;
    const ablation = selected.size ? currentResponse() : null;
    for (const one of [rows, summary]) one.classList.toggle("stale", Boolean(selected.size) && !ablation && !standalone);
    if (selected.size && !ablation && !standalone) return; // the last prediction stays until the next one is loaded
    const list = ablation ? ablation.top.map((one) => ({ ...one, value: one.after }))
      : meta.top.map((one) => ({ ...one, value: one.probability, before: one.probability }));
    keepFocus(rows, () => rows.replaceChildren(bars(list.map((one) => ({ ...one, selected: one.class === meta.target, threshold: meta.thresholds?.[one.class] })),
      { onpick: standalone ? null : (row) => state.set({ class: row.class === meta.predicted ? null : row.class }) })));
    summary.replaceChildren(...(ablation ? changeText(ablation, meta, store) : [standalone && selected.size ? "This is a saved page: start the studio to see the "
      + "change." : meta.thresholds ? labelsText(meta, store.trace.arrays) : `Prediction${meta.region ? ` for ${store.regionText}` : ""}: ${meta.top[0].label}, ${percent(meta.top[0].probability)}.`]));
    outputFigure.caption(`${meta.sigmoid ? "Each class has its own sigmoid, so the bars need not sum to 100 %. " : ""}Click a class to explain it everywhere.`);
  }

  function toggle(patch) {
    setPatch(patch, !selected.has(patch));
    grid.announcement.textContent = grid.describe(patch);
  }

  function setPatch(patch, on) {
    const next = new Set(selected);
    if (on) next.add(patch);
    else next.delete(patch);
    setSelection(next);
  }

  function setSelection(next) {
    ranking?.abort(); // a manual selection is newer
    state.set({ patches: next.size ? formatRanges(next) : null });
  }

  function tools() {
    const all = () => Array.from({ length: store.trace.meta.grid[0] * store.trace.meta.grid[1] }, (_, patch) => patch);
    const modes = el("div", { class: "choice", role: "group", "aria-label": "How patches are removed" },
      Object.entries({ mask: "Mask", shuffle: "Shuffle", drop: "Drop" }).map(([name, text_]) => button(text_, () => state.set({ mode: name }),
        { data: { mode: name } })));
    const seed_ = el("input", { type: "number", min: 0, max: 9999, value: seed(), onchange: () => state.set({ seed: seed_.value || null }) });
    const count_ = el("input", { type: "number", min: 1, "aria-label": "Number of patches" });
    const { methods } = store.info;
    const by = select("by", methods.map((name) => [name, name.replace(/_/g, " ")]), method(), (name) => state.set({ method: name })); // shared with the saliency part
    controls.append(modes, button("All", () => setSelection(new Set(all()))), button("None", () => setSelection(new Set())),
      button("Invert", () => setSelection(new Set(all().filter((patch) => !selected.has(patch))))),
      el("label", { class: "field" }, el("span", {}, "Seed"), seed_),
      button("Random third", () => setSelection(randomThird(all(), seed()))));
    more.append(count_, by, ...[["Most important", 1], ["Least important", -1]].map(([text_, sign]) => button(text_,
      () => selectByImportance(sign, Number(count_.value)))));
    return { modes, seed: seed_, count: count_, by: by.querySelector("select") };
  }

  // Select patches by saliency; ties keep patch order.
  async function selectByImportance(sign, wanted) {
    ranking?.abort();
    const mine = (ranking = new AbortController());
    const by = method(), text_ = by.replace(/_/g, " ");
    toast(`Computing ${text_} ...`, true);
    try {
      const trace = store.trace, { arrays } = await fetchArrays("api/saliency", store.requestParams({ method: by }), { signal: mine.signal });
      if (trace !== store.trace || ranking !== mine) return toast("");
      ranking = null;
      const values = Array.from(arrays.map.data), limit = Math.max(1, Math.min(values.length, Math.round(wanted) || 1));
      setSelection(new Set(values.map((_, patch) => patch).sort((one, other) => sign * (values[other] - values[one]) || one - other).slice(0, limit)));
      toast(`The ${limit} ${sign > 0 ? "most" : "least"} important patches by ${text_}.`);
    } catch (error) {
      if (error.name === "AbortError") toast("");
      showError(error);
    }
    return undefined;
  }
}

// The change of the prediction and of the target class, as text.
function changeText(ablation, meta, store) {
  const targetRow = ablation.top.find((one) => one.class === meta.target), before = meta.top[0];
  const subject = meta.thresholds ? "most probable label" : "prediction";
  const headline = el("strong", {}, ablation.changed ? `The ${subject} is now ${ablation.prediction.label}, ${percent(ablation.prediction.probability)}`
    : `The ${subject} is still ${ablation.prediction.label}, ${percent(ablation.prediction.probability)}`);
  const points = targetRow ? 100 * (targetRow.after - targetRow.before) : null;
  return [headline, ablation.changed ? ` instead of ${before.label}. ` : ". ",
    targetRow ? `The probability of ${store.label(meta.target)} went from ${percent(targetRow.before)} to ${percent(targetRow.after)}: `
      + `${Math.abs(points) < 0.05 ? "less than 0.1" : `${points < 0 ? "−" : "+"}${Math.abs(points).toFixed(1)}`} percentage points.`
      : `${store.label(meta.target)} is not among the top 10 classes.`];
}

// The pixels with patches masked (filled with the mean, which is zero once normalised) or permuted.
function ablatedPixels(pixels, { grid: [rows, columns], preprocess: { mean } }, selected, mode, permutation) {
  const { shape: [height, width, channels], data } = pixels, high = height / rows, wide = width / columns;
  if (!selected.size || mode === "drop" || (mode === "shuffle" && !permutation)) return pixels;
  const ablated = data.slice();
  for (const patch of selected) {
    const from = permutation ? permutation[patch] : patch;
    for (let y = 0; y < high; y += 1) {
      const to = ((Math.floor(patch / columns) * high + y) * width + (patch % columns) * wide) * channels;
      const start = ((Math.floor(from / columns) * high + y) * width + (from % columns) * wide) * channels;
      if (mode === "shuffle") ablated.set(data.subarray(start, start + wide * channels), to);
      else for (let index = 0; index < wide * channels; index += 1) ablated[to + index] = Math.round(255 * mean[index % channels % mean.length]);
    }
  }
  return { shape: pixels.shape, data: ablated };
}

// Dropped patches are hatched, since any colour could be image content.
function drawHatching(canvas, grid, selected) {
  const box = grid.root.getBoundingClientRect(), ratio = devicePixelRatio || 1;
  if (!box.width) return;
  Object.assign(canvas, { width: Math.round(box.width * ratio), height: Math.round(box.height * ratio) });
  if (!selected.size) return;
  const context = canvas.getContext("2d"), style = getComputedStyle(document.body), wide = canvas.width / grid.columns, high = canvas.height / grid.rows;
  context.beginPath();
  for (const patch of selected) context.rect((patch % grid.columns) * wide, Math.floor(patch / grid.columns) * high, wide, high);
  context.clip();
  context.fillStyle = style.getPropertyValue("--paper");
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.strokeStyle = style.getPropertyValue("--soft");
  context.lineWidth = ratio;
  context.beginPath();
  for (let at = -canvas.height; at < canvas.width; at += 7 * ratio) context.moveTo(at, canvas.height), context.lineTo(at + canvas.height, 0);
  context.stroke();
}

// Drag over patches with the mouse, or shift and arrow keys: all get the state of the first one.
function attachBrush(grid, togglesTo, setPatch, on) {
  const brush = { busy: false };
  let value = null, last = null;
  grid.root.addEventListener("pointerdown", (event) => {
    if (event.pointerType === "touch" || event.button !== 0) return; // a finger scrolls; its click toggles
    brush.busy = true;
    last = patchAt(event);
    value = togglesTo(last);
    setPatch(last, value);
  });
  grid.root.addEventListener("pointermove", (event) => {
    const patch = patchAt(event);
    if (value === null || patch === last) return;
    last = patch;
    setPatch(patch, value);
  });
  addEventListener("pointerup", () => {
    value = null;
    setTimeout(() => { brush.busy = false; }); // after the click that ends it
  });
  grid.root.addEventListener("keydown", (event) => {
    if (event.shiftKey && event.key.startsWith("Arrow") && grid.hovered !== null) setPatch(grid.hovered, brush.keys ?? true);
    else if (event.key === "Enter" || event.key === " ") brush.keys = on();
  });
  return brush;

  function patchAt(event) {
    const box = grid.root.getBoundingClientRect(), within = (value_, limit) => Math.max(0, Math.min(limit - 1, Math.floor(value_ * limit)));
    return within((event.clientY - box.top) / box.height, grid.rows) * grid.columns + within((event.clientX - box.left) / box.width, grid.columns);
  }
}

function python(store, selected) {
  const mode = state.get("mode") in MODE_NAMES ? state.get("mode") : "mask", activation = store.trace?.meta.sigmoid ? "sigmoid()" : "softmax(-1)";
  return store.python(`patches = [${pythonList(selected)}]`,
    `before = vitrail.explain.ablate(model, images, []).${activation}`,
    `after = vitrail.explain.ablate(model, images, patches, mode="${mode}", seed=${Math.max(0, Math.round(state.number("seed", 0)))}).${activation}`,
    `print(100 * (after - before)[0, ${store.trace?.meta.target ?? 0}])  # percentage points`);
}

// Patches as a Python list, long runs as ranges.
function pythonList(selected) {
  return formatRanges(selected).split(",").filter(Boolean).map((one) => {
    const [from, to = from] = one.split("-").map(Number);
    return to - from < 2 ? [from, to].slice(0, to - from + 1).join(", ") : `*range(${from}, ${to + 1})`;
  }).join(", ");
}

function formatRanges(selected) {
  const sorted = [...selected].sort((one, other) => one - other), ranges = [];
  for (const patch of sorted) {
    if (ranges.length && ranges.at(-1)[1] === patch - 1) ranges.at(-1)[1] = patch;
    else ranges.push([patch, patch]);
  }
  return ranges.map(([from, to]) => (from === to ? `${from}` : `${from}-${to}`)).join(",");
}

// Parse the patches of a URL; invalid ones are skipped.
function parseRanges(text, patches) {
  const numbers = [];
  for (const one of text.split(",")) {
    const [, from, to] = /^(\d+)(?:-(\d+))?$/.exec(one) ?? [];
    for (let patch = Number(from); patch <= Math.min(Number(to ?? from), patches - 1); patch += 1) numbers.push(patch);
  }
  return numbers;
}

// A random third by seed, the same on every machine (mulberry32).
function randomThird(patches, seed) {
  let now = seed + 0x6d2b79f5;
  const random = () => {
    now = (now + 0x6d2b79f5) | 0;
    let mixed = Math.imul(now ^ (now >>> 15), 1 | now);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
  for (let last = patches.length - 1; last > 0; last -= 1) {
    const other = Math.floor(random() * (last + 1));
    [patches[last], patches[other]] = [patches[other], patches[last]];
  }
  return new Set(patches.slice(0, Math.round(patches.length / 3)));
}

// Rebuilt buttons keep the keyboard focus.
function keepFocus(container, rebuild) {
  const at = [...container.querySelectorAll("button")].indexOf(document.activeElement);
  rebuild();
  if (at >= 0) container.querySelectorAll("button")[at]?.focus();
}
