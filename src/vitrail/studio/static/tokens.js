// Part 3: the token sequence, and the norms of its tokens: before and after position embeddings, and after every block.

import { chart, legend } from "./chart.js";
import { cssColour, drawHeatmap, minMax } from "./colormap.js";
import { el, formatNumber, select, plural } from "./dom.js";
import { figure } from "./figure.js";
import { PatchGrid, drawPixels } from "./patch_grid.js";
import { patchPainter, activePatch, gridHandlers, TokenSequence, tracedModel } from "./patches.js";
import * as state from "./url_state.js";

const TOKEN_COLOURS = { class: ["#d55e00", "#000"], register: ["#56b4e9", "#000"] }; // colours of a tile and of its letter
const OUTLIER_FACTOR = 2; // times the median: an outlier norm
const CURVE_COLOURS = { class: "#d55e00", median: "#0072b2", largest: "#cc79a7", registers: "#56b4e9", active: "#009e73" };

export default {
  name: "tokens", title: "Tokens", glyph: "≡",
  lead: "Each patch is now a vector, a token. A class token and registers may be added, and each token gets a position embedding. "
    + "From here on all tokens are processed in the same way.",
  thumb(canvas, store) {
    const { meta: { grid: [rows, columns], prefix, depth, tokens }, arrays } = store.trace;
    drawHeatmap(canvas, arrays.token_norms.data.slice(depth * tokens).map(Math.log), rows, columns, { from: prefix }); // one norm may be far larger than all others
    canvas.style.objectFit = "contain";
  },
  build(section, store) {
    const first = [sequenceFigure(section, store), positionFigure(section, store)];
    const columns = el("div", { class: "columns" });
    section.append(columns);
    const views = [...first, layerFigure(columns, store), depthFigure(columns, store)];
    return { draw(reason) {
      section.classList.toggle("empty", !store.trace);
      if (store.trace) for (const view of views) view(reason);
    } };
  },
};

// The prefix tokens: kind, name, and letter on a small tile.
function prefixTokens({ meta: { prefix, class_token } }) {
  return Array.from({ length: prefix }, (_, token) => (class_token && token === 0 ? ["class", "class token", "C"]
    : ["register", `register ${token - (class_token ? 1 : 0)}`, "R"]));
}

// The selected state: 0 before the first block, then after each.
function selectedState(store) {
  return Math.max(0, Math.min(store.trace.meta.depth, Math.round(state.number("tokens_layer", store.trace.meta.depth))));
}

// As set in the URL; else logarithmic if one token dwarfs all others.
function logarithmic(store) {
  const { token_norms } = store.trace.arrays, [minimum, maximum] = minMax(token_norms.data);
  const wanted = state.get("tokens_scale");
  return minimum > 0 && (wanted ? wanted === "log" : maximum > 10 * median(token_norms.data));
}

function logNorm(length) {
  return Math.log(length);
}

function stateName(count, depth) {
  return count === 0 ? "before the first block" : `after ${count} of ${depth} blocks`;
}

function median(values) {
  const sorted = Float32Array.from(values).sort(), half = sorted.length >> 1;
  return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

// The norms of all tokens in one state.
function normsAt({ meta: { tokens }, arrays }, count) {
  return arrays.token_norms.data.subarray(count * tokens, (count + 1) * tokens);
}

// --- the sequence

function sequenceFigure(section, store) {
  const fig = figure(section, {
    name: "tokens", title: "Token sequence", level: 2,
    python: () => store.python("with torch.no_grad():", "    tokens = model.add_prefix_tokens(model.embed_patches(images))[0]",
      "print(tokens.shape)  # tokens × width, before position embeddings"),
    numbers: () => ({ tokens: Array.from({ length: store.trace.meta.tokens }, (_, token) => store.tokenName(token)) }),
  });
  const source = el("canvas"), key = el("ul", { class: "legend" });
  const row = new TokenSequence({
    label: "All tokens in order", drawItem: () => {}, separated: (token) => token > 0 && token === store.trace.meta.prefix,
    onhover: (token) => store.hover(token), onpick: (token) => store.pin(token), describe: (token) => store.tokenName(token),
  });
  fig.body.append(key, row.root);
  let drawn = null;
  return (reason) => {
    if (drawn !== store.trace || reason === "theme") {
      drawn = store.trace;
      drawPixels(source, drawn.arrays.pixels);
      row.drawItem = tile(drawn, patchPainter(source, drawn.meta.grid));
      const { pixels: { shape: [height, width] } } = drawn.arrays, [rows, columns] = drawn.meta.grid;
      row.show(drawn.meta.tokens, (width / columns) / (height / rows), columns);
      key.replaceChildren(...legendItems(store));
      fig.caption(captionText(store));
    }
    row.mark(store.activeToken);
  };
}

function tile(trace, patch) {
  const before = prefixTokens(trace);
  return (context, token, x, y, wide, high) => {
    if (token >= before.length) return patch(context, token - before.length, x, y, wide, high);
    const [kind, , letter] = before[token], [fill, ink] = TOKEN_COLOURS[kind];
    context.fillStyle = fill;
    context.fillRect(x, y, wide, high);
    const font = `600 ${Math.round(Math.min(wide, high) * 0.62)}px system-ui, sans-serif`;
    Object.assign(context, { fillStyle: ink, font, textAlign: "center", textBaseline: "middle" });
    context.fillText(letter, x + wide / 2, y + high / 2 + 0.5);
  };
}

function legendItems(store) {
  const { meta: { class_token, registers, pool, pool_prefix } } = store.trace, unused = "not used for the prediction";
  const pooled = pool_prefix ? "read by the attention pooling like a patch" : null;
  const read = pooled ?? { cls: "the prediction is read from it alone", "cls+gap": "the prediction is read from it and the mean of all patches",
    "cls+register": "the prediction is read from it and the first register" }[pool] ?? unused;
  const registersRead = pooled ?? (pool === "cls+register" ? "the first is read for the prediction, as a distillation token" : unused);
  return [
    class_token && ["class", "C", `class token: learned, the same for every image; ${read}`],
    registers && ["register", "R", `${plural(registers, "register")}: learned scratch space; ${registersRead}`],
  ].filter(Boolean).map(([kind, letter, text]) => el("li", {}, el("span", { class: `swatch ${kind}`, "aria-hidden": "true" }, letter), text));
}

function captionText(store) {
  const { meta: { class_token, registers, grid: [rows, columns], tokens, pool_prefix } } = store.trace, { width, pool } = tracedModel(store).config;
  const parts = [class_token && "1 class token", registers && plural(registers, "register"), plural(rows * columns, "patch", "patches")].filter(Boolean);
  const read = { gap: " The prediction is read from the mean of all patches.", map: ` The prediction is read from all ${pool_prefix ? "tokens" : "patches"} by attention pooling.` }[pool] ?? "";
  return `${parts.join(" + ")}${parts.length > 1 ? ` = ${tokens} tokens` : ""}, each a vector of ${width} values: `
    + `a ${tokens} × ${width} matrix that keeps its shape through every block.${class_token ? "" : " There is no class token."}${read}`;
}

// --- maps of norms

// A heatmap over the grid, with its own colour scale, and buttons for the prefix tokens.
function normMap(store, title) {
  const grid = new PatchGrid({ label: title, ...gridHandlers(store) });
  const colorbar = el("canvas", { class: "pixels colorbar", "aria-hidden": "true" }), [low, high] = [el("span"), el("span")];
  const buttons = el("div", { class: "cells" }), value = el("p", { class: "readout" }), name = el("strong", {}, title);
  const root = el("div", { class: "map" }, name, grid.root, el("div", { class: "scale" }, low, colorbar, high), buttons, value);
  let all = null, from = 0;
  return {
    root,
    title: (text) => name.replaceChildren(text),
    // Values of all tokens, or (`before` 0) of the patches only.
    show(values, before, bounds = colourLimits(values, before), size = Number) {
      const { meta, arrays } = store.trace;
      [all, from] = [values, before];
      if (!colorbar.dataset.drawn) drawHeatmap(colorbar, Float32Array.from({ length: 64 }, (_, at) => at), 1, 64);
      colorbar.dataset.drawn = "yes";
      grid.show(arrays.pixels, meta.grid);
      grid.showHeatmap(size === Number ? values : values.map(size), { from: before, low: size(bounds[0]), high: size(bounds[1]), opacity: 1 });
      [low.textContent, high.textContent] = bounds.map(formatNumber);
      buttons.replaceChildren(...(before ? prefixTokens(store.trace).map(([, text], token) => tokenButton(store, token, text, values[token], bounds, size)) : []));
    },
    point() {
      const { prefix } = store.trace.meta, token = store.activeToken, patch = activePatch(store);
      grid.mark({ at: patch });
      for (const one of buttons.children) one.classList.toggle("active", Number(one.dataset.token) === token);
      const index = token === null ? null : token - (from ? 0 : prefix);
      value.textContent = index === null ? "" : index < 0 ? "Not a patch." : `${capitalise(store.tokenName(token))}: ${formatNumber(all[index])}`;
    },
  };
}

// The colour scale covers the patches only, so that no prefix token dominates it; rounding differences get one colour.
function colourLimits(values, prefix) {
  const [low, high] = minMax(values, prefix, values.length - prefix);
  return high - low > 1e-4 * high ? [low, high] : [low * 0.99, high * 1.01];
}

function tokenButton(store, token, text, value, bounds, size) {
  const [enter, leave] = [() => store.hover(token), () => store.hover(null)];
  const on = { onpointerenter: enter, onfocus: enter, onpointerleave: leave, onblur: leave, onclick: () => store.pin(token) };
  return el("button", { type: "button", data: { token }, ...on },
    el("span", { class: "shade", "aria-hidden": "true", style: { background: cssColour(size(value), ...bounds.map(size)) } }), `${text} `,
    el("span", { class: "number" }, formatNumber(value)));
}

function capitalise(text) {
  return text[0].toUpperCase() + text.slice(1);
}

function positionFigure(section, store) {
  const fig = figure(section, {
    name: "position-norms", title: "Adding position embeddings", level: 2,
    python: () => store.python("with torch.no_grad():", "    embedded = model.embed_patches(images)[0].norm(dim=-1)",
      ...(store.trace.arrays.position_norms ? [`    zeros = torch.zeros(1, ${store.trace.meta.tokens}, ${tracedModel(store).config.width})`,
        "    positions = model.positions[0](zeros, model.grid(images))[0].norm(dim=-1)"] : []),
      "tokens = vitrail.explain.token_norms(model, images)[0, 0]"),
    numbers: () => ({ patch_norms: store.trace.arrays.patch_norms.data, position_norms: store.trace.arrays.position_norms?.data ?? null, tokens: normsAt(store.trace, 0) }),
  });
  const [before, added, after] = ["Norm of the patch embeddings", "Norm of the position embeddings", "Norm of the tokens"].map((title) => normMap(store, title));
  const plus = el("span", { class: "sign" }, "+"), arrow = el("span", { class: "sign" }, "→");
  fig.body.append(el("div", { class: "maps" }, before.root, plus, added.root, arrow, after.root));
  let drawn = null;
  return () => {
    const { meta, arrays } = store.trace;
    if (drawn !== store.trace) {
      drawn = store.trace;
      before.show(arrays.patch_norms.data, 0);
      added.root.hidden = plus.hidden = !arrays.position_norms;
      after.root.hidden = arrow.hidden = !arrays.position_norms && !meta.prefix; // identical to the first map
      if (arrays.position_norms) added.show(arrays.position_norms.data, meta.prefix);
      after.show(normsAt(drawn, 0), meta.prefix);
      fig.caption(positionCaption(tracedModel(store).config, arrays));
    }
    for (const one of [before, after]) one.point();
    if (arrays.position_norms) added.point();
  };
}

function positionCaption({ position, rotary, relative_bias }, arrays) {
  const colours = "Light is a large norm; each map has its own colour scale. "
    + "The L2 norm is the length of a vector: it says how strong it is, not what it encodes.";
  const inAttention = [rotary || position === "rotary" ? "this model rotates queries and keys by their position inside each attention (rotary positions)" : null,
    relative_bias ? "a bias by the offset of two patches is added to the attention scores (relative bias)" : null].filter(Boolean).join("; ");
  if (inAttention && !arrays.position_norms) return `Nothing is added: ${inAttention}. ${colours}`;
  if (position === "relative") return `Nothing is added: each offset between two tokens has its own key inside attention (relative positions). ${colours}`;
  if (!arrays.position_norms) return `This model has no position embeddings: it sees the image as a bag of patches. ${colours}`;
  const table = position.startsWith("sincos") ? "a fixed vector of sines and cosines of the position, with the same norm everywhere"
    : "a learned vector per position, the same for every image";
  return `The position embedding is ${table}. ${inAttention ? `Besides, ${inAttention}. ` : ""}${colours} A sum can have a smaller norm than its parts: vectors also cancel.`;
}

// --- over the layers

function layerFigure(parent, store) {
  const fig = figure(parent, {
    name: "token-norms", title: "Token norms", level: 2,
    python: () => store.python("norms = vitrail.explain.token_norms(model, images)[:, 0]  # states × tokens",
      `print(norms[${selectedState(store)}])  # ${stateName(selectedState(store), store.trace.meta.depth)}`),
    numbers: () => ({ state: selectedState(store), depth: store.trace.meta.depth, norms: normsAt(store.trace, selectedState(store)) }),
  });
  const text = el("output", {});
  const box = el("input", { type: "range", min: 0, "aria-label": "Number of blocks", oninput: () => state.set({ tokens_layer: box.value }) });
  const scale = select("Colour scale", [["state", "of this state"], ["all", "of all states"]], "state",
    (value) => state.set({ tokens_colours: value === "state" ? null : value }));
  const steps = select("Norms", [["linear", "linear"], ["log", "logarithmic"]], "linear", (value) => state.set({ tokens_scale: value }));
  const shown = normMap(store, ""), largest = el("div", { class: "largest" });
  fig.body.before(el("div", { class: "controls" }, el("label", { class: "field" }, el("span", {}, "State"), box, text), scale, steps));
  fig.body.append(shown.root, largest);
  return (reason) => {
    const { meta, arrays } = store.trace, count = selectedState(store), colours = state.get("tokens_colours", "state"), values = normsAt(store.trace, count);
    if (reason !== "point") {
      Object.assign(box, { max: meta.depth, value: count });
      text.textContent = stateName(count, meta.depth);
      shown.title(`Norm ${text.textContent}`);
      box.setAttribute("aria-valuetext", text.textContent);
      scale.querySelector("select").value = colours;
      steps.querySelector("select").value = logarithmic(store) ? "log" : "linear";
      shown.show(values, meta.prefix, colours === "all" ? minMax(arrays.token_norms.data) : undefined, logarithmic(store) ? logNorm : Number);
      largest.replaceChildren(...largestNorms(store, values));
      fig.caption("A few patches with a much larger norm than the rest, often in the background or in corners, are a known artefact: "
        + "they no longer describe their own patch but store information about the whole image. "
        + "Registers take over that role, and the maps become clean (Darcet et al. 2023, "
        + "who found it in large models after long training). The norm alone does not say what a token is used for.");
    }
    shown.point();
  };
}

// Buttons for the patches with the largest norms, which are hard to find in a large grid.
function largestNorms(store, values) {
  const { prefix } = store.trace.meta, patches = Array.from(values.subarray(prefix)), median_ = median(patches);
  const count_ = patches.filter((value) => value > OUTLIER_FACTOR * median_).length;
  const first = patches.map((value, patch) => [value, patch + prefix]).sort(([one], [other]) => other - one).slice(0, 5);
  const outlierText = count_ === 0 ? `no patch norm is more than ${OUTLIER_FACTOR} times as large`
    : `${count_} of ${patches.length} ${count_ === 1 ? "is" : "are"} more than ${OUTLIER_FACTOR} times as large`;
  const bounds = colourLimits(values, prefix), size = logarithmic(store) ? logNorm : Number;
  return [el("p", {}, `The median patch norm is ${formatNumber(median_)}; ${outlierText}. The largest:`),
    el("div", { class: "cells" }, first.map(([value, token]) => tokenButton(store, token, `patch ${token - prefix}`, value, bounds, size)))];
}

function depthFigure(parent, store) {
  const fig = figure(parent, {
    name: "token-norms-over-depth", title: "Token norms over depth", level: 2,
    python: () => store.python("norms = vitrail.explain.token_norms(model, images)[:, 0]  # states × tokens", `patches = norms[:, ${store.trace.meta.prefix}:]`,
      "print(patches.quantile(0.5, dim=1), patches.amax(1))",
      ...(store.activeToken === null ? [] : [`print(norms[:, ${store.activeToken}])  # ${store.tokenName(store.activeToken)}`])),
    numbers: () => Object.fromEntries(lines(store).map((line) => [line.name, line.points.map(([, length]) => length)])),
  });
  fig.caption("Before the first block, then after each. In a pre-norm model each block adds to the residual stream, "
    + "so most norms grow with depth; a post-norm model keeps them bounded. Click a state to see its map; point at a token to follow it.");
  return () => {
    const drawn = lines(store), log = logarithmic(store);
    fig.body.replaceChildren(chart({
      title: "Token norms over depth", x: "blocks", y: log ? "norm (logarithmic)" : "norm",
      lines: drawn, low: log ? undefined : 0, log, integer: true, mark: selectedState(store), height: 300,
      onpick: (x) => state.set({ tokens_layer: Math.max(0, Math.min(store.trace.meta.depth, Math.round(x))) }),
    }), legend(drawn));
  };
}

function lines(store) {
  const { meta: { depth: count, prefix, class_token, registers } } = store.trace, token = store.activeToken;
  const states = Array.from({ length: count + 1 }, (_, at) => normsAt(store.trace, at));
  const line = (name, colour, of, dashed = false) => ({ name, colour, dashed, points: states.map((values, at) => [at, of(values)]) });
  return [
    class_token && line("class token", CURVE_COLOURS.class, (values) => values[0]),
    line("median patch", CURVE_COLOURS.median, (values) => median(values.subarray(prefix))),
    line("largest patch norm", CURVE_COLOURS.largest, (values) => minMax(values, prefix, values.length - prefix)[1], true),
    registers && line("registers, mean", CURVE_COLOURS.registers,
      (values) => values.subarray(prefix - registers, prefix).reduce((sum, value) => sum + value, 0) / registers),
    token !== null && line(store.tokenName(token), CURVE_COLOURS.active, (values) => values[token]),
  ].filter(Boolean);
}
