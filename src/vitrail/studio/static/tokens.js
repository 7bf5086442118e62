// The sequence that the model works on, and how long its tokens are: before positions, with them, and after every block.

import { chart, legend } from "./chart.js";
import { css, heat, range } from "./colour.js";
import { el, figure3, select, several } from "./dom.js";
import { figure } from "./figure.js";
import { PatchGrid, picture as painted } from "./grid.js";
import { patchPainter, pointedPatch, pointing, Sequence, traced } from "./patches.js";
import * as state from "./state.js";

const KINDS = { class: ["#d55e00", "#000"], register: ["#56b4e9", "#000"] }; // of a tile and of the letter on it
const LONG = 2; // times the median: a patch to be told of
const COLOURS = { class: "#d55e00", median: "#0072b2", longest: "#cc79a7", registers: "#56b4e9", pointed: "#009e73" };

export default {
  name: "tokens", title: "Tokens", glyph: "≡",
  lead: "Each patch is now a vector, a token. Others may join it that belong to no patch, and to each is added where it is. "
    + "From here on all tokens are treated alike.",
  thumb(canvas, studio) {
    const { facts: { grid: [rows, columns], prefix, depth, tokens }, arrays } = studio.trace;
    heat(canvas, arrays.norms.data.slice(depth * tokens).map(Math.log), rows, columns, { from: prefix }); // one may be far longer than all others
    canvas.style.objectFit = "contain";
  },
  build(section, studio) {
    const first = [sequence(section, studio), positions(section, studio)];
    const columns = el("div", { class: "columns" });
    section.append(columns);
    const views = [...first, layers(columns, studio), depth(columns, studio)];
    return { draw(why) {
      section.classList.toggle("empty", !studio.trace);
      if (studio.trace) for (const view of views) view(why);
    } };
  },
};

// The tokens before the patches: what each is called, in full and on a small tile.
function prefixed({ facts: { prefix, class_token } }) {
  return Array.from({ length: prefix }, (_, token) => (class_token && token === 0 ? ["class", "class token", "C"]
    : ["register", `register ${token - (class_token ? 1 : 0)}`, "R"]));
}

// Which state is looked at: 0 before the first block, then after each.
function layer(studio) {
  return Math.max(0, Math.min(studio.trace.facts.depth, Math.round(state.number("tokens_layer", studio.trace.facts.depth))));
}

// As the address says; else by the logarithm where the longest token leaves all others in the dark.
function logarithmic(studio) {
  const { norms } = studio.trace.arrays, [least, most] = range(norms.data);
  const asked = state.get("tokens_scale");
  return least > 0 && (asked ? asked === "log" : most > 10 * median(norms.data));
}

function short(length) {
  return Math.log(length);
}

function passed(count, depth) {
  return count === 0 ? "before the first block" : `after ${count} of ${depth} blocks`;
}

function median(values) {
  const sorted = Float32Array.from(values).sort(), half = sorted.length >> 1;
  return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

// The lengths of all tokens in one state.
function lengths({ facts: { tokens }, arrays }, count) {
  return arrays.norms.data.subarray(count * tokens, (count + 1) * tokens);
}

// --- the sequence

function sequence(section, studio) {
  const made = figure(section, {
    name: "tokens", title: "The sequence of tokens", level: 2,
    python: () => studio.python("with torch.no_grad():", "    tokens = model.prepended(model.patches(images))[0]",
      "print(tokens.shape)  # tokens × width, before positions are added"),
    numbers: () => ({ tokens: Array.from({ length: studio.trace.facts.tokens }, (_, token) => studio.token(token)) }),
  });
  const source = el("canvas"), key = el("ul", { class: "legend" });
  const row = new Sequence({
    label: "All tokens in their order", paint: () => {}, begins: (token) => token > 0 && token === studio.trace.facts.prefix,
    onhover: (token) => studio.hover(token), onpick: (token) => studio.pin(token), describe: (token) => studio.token(token),
  });
  made.body.append(key, row.root);
  let drawn = null;
  return (why) => {
    if (drawn !== studio.trace || why === "theme") {
      drawn = studio.trace;
      painted(source, drawn.arrays.pixels);
      row.paint = tile(drawn, patchPainter(source, drawn.facts.grid));
      const { pixels: { shape: [height, width] } } = drawn.arrays, [rows, columns] = drawn.facts.grid;
      row.show(drawn.facts.tokens, (width / columns) / (height / rows), columns);
      key.replaceChildren(...explained(studio));
      made.caption(counted(studio));
    }
    row.mark(studio.pointed);
  };
}

function tile(trace, patch) {
  const before = prefixed(trace);
  return (context, token, x, y, wide, high) => {
    if (token >= before.length) return patch(context, token - before.length, x, y, wide, high);
    const [kind, , letter] = before[token], [fill, ink] = KINDS[kind];
    context.fillStyle = fill;
    context.fillRect(x, y, wide, high);
    const font = `600 ${Math.round(Math.min(wide, high) * 0.62)}px system-ui, sans-serif`;
    Object.assign(context, { fillStyle: ink, font, textAlign: "center", textBaseline: "middle" });
    context.fillText(letter, x + wide / 2, y + high / 2 + 0.5);
  };
}

function explained(studio) {
  const { facts: { class_token, registers } } = studio.trace, { pool } = traced(studio).config;
  const read = pool === "cls" ? "the answer is read from it alone" : "nothing is read from it";
  return [
    class_token && ["class", "C", `class token: learned, the same for every picture; ${read}`],
    registers && ["register", "R", `${several(registers, "register")}: learned, room to work in; nothing is read from them`],
  ].filter(Boolean).map(([kind, letter, words]) => el("li", {}, el("span", { class: `swatch ${kind}`, "aria-hidden": "true" }, letter), words));
}

function counted(studio) {
  const { facts: { class_token, registers, grid: [rows, columns], tokens } } = studio.trace, { width, pool } = traced(studio).config;
  const parts = [class_token && "1 class token", registers && several(registers, "register"), several(rows * columns, "patch", "patches")].filter(Boolean);
  const read = { gap: " The answer is read from the mean of all patches.", map: " The answer is read from all patches by one more attention." }[pool] ?? "";
  return `${parts.join(" + ")}${parts.length > 1 ? ` = ${tokens} tokens` : ""}, each a vector of ${width} numbers: `
    + `a table of ${tokens} × ${width} that keeps its shape through every block.${class_token ? "" : " There is no class token."}${read}`;
}

// --- maps of lengths

// A map over the grid, with its own shades, and cells for the tokens that lie nowhere. `words`: what it shows.
function map(studio, title) {
  const grid = new PatchGrid({ label: title, ...pointing(studio) });
  const ramp = el("canvas", { class: "pixels ramp", "aria-hidden": "true" }), [low, high] = [el("span"), el("span")];
  const cells = el("div", { class: "cells" }), value = el("p", { class: "reading" }), name = el("strong", {}, title);
  const root = el("div", { class: "map" }, name, grid.root, el("div", { class: "scale" }, low, ramp, high), cells, value);
  let all = null, from = 0;
  return {
    root,
    title: (words) => name.replaceChildren(words),
    // All tokens' values, or (`before` 0) those of the patches alone.
    show(values, before, bounds = spread(values, before), size = Number) {
      const { facts, arrays } = studio.trace;
      [all, from] = [values, before];
      if (!ramp.dataset.drawn) heat(ramp, Float32Array.from({ length: 64 }, (_, at) => at), 1, 64);
      ramp.dataset.drawn = "yes";
      grid.show(arrays.pixels, facts.grid);
      grid.heat(size === Number ? values : values.map(size), { from: before, low: size(bounds[0]), high: size(bounds[1]), opacity: 1 });
      [low.textContent, high.textContent] = bounds.map(figure3);
      cells.replaceChildren(...(before ? prefixed(studio.trace).map(([, words], token) => cell(studio, token, words, values[token], bounds, size)) : []));
    },
    point() {
      const { prefix } = studio.trace.facts, token = studio.pointed, patch = pointedPatch(studio);
      grid.mark({ at: patch });
      for (const one of cells.children) one.classList.toggle("pointed", Number(one.dataset.token) === token);
      const place = token === null ? null : token - (from ? 0 : prefix);
      value.textContent = place === null ? "" : place < 0 ? "Not a patch." : `${capital(studio.token(token))}: ${figure3(all[place])}`;
    },
  };
}

// The shades are of the patches alone, so that no other token takes them all; what differs by rounding alone is one shade.
function spread(values, prefix) {
  const [low, high] = range(values, prefix, values.length - prefix);
  return high - low > 1e-4 * high ? [low, high] : [low * 0.99, high * 1.01];
}

function cell(studio, token, words, value, bounds, size) {
  const [come, go] = [() => studio.hover(token), () => studio.hover(null)];
  const on = { onpointerenter: come, onfocus: come, onpointerleave: go, onblur: go, onclick: () => studio.pin(token) };
  return el("button", { type: "button", data: { token }, ...on },
    el("span", { class: "shade", "aria-hidden": "true", style: { background: css(size(value), ...bounds.map(size)) } }), `${words} `,
    el("span", { class: "number" }, figure3(value)));
}

function capital(words) {
  return words[0].toUpperCase() + words.slice(1);
}

function positions(section, studio) {
  const made = figure(section, {
    name: "positions", title: "Where it is, added to what it is", level: 2,
    python: () => studio.python("with torch.no_grad():", "    embedded = model.patches(images)[0].norm(dim=-1)",
      ...(studio.trace.arrays.positions ? [`    nothing = torch.zeros(1, ${studio.trace.facts.tokens}, ${traced(studio).config.width})`,
        "    positions = model.positions[0](nothing, model.grid(images))[0].norm(dim=-1)"] : []),
      "together = vitrail.explain.norms(model, images)[0, 0]"),
    numbers: () => ({ embedded: studio.trace.arrays.embedded.data, positions: studio.trace.arrays.positions?.data ?? null, together: lengths(studio.trace, 0) }),
  });
  const [before, added, after] = ["Length of the patches", "Length of what is added", "Length of the tokens"].map((title) => map(studio, title));
  const plus = el("span", { class: "sign" }, "+"), gives = el("span", { class: "sign" }, "→");
  made.body.append(el("div", { class: "maps" }, before.root, plus, added.root, gives, after.root));
  let drawn = null;
  return () => {
    const { facts, arrays } = studio.trace;
    if (drawn !== studio.trace) {
      drawn = studio.trace;
      before.show(arrays.embedded.data, 0);
      added.root.hidden = plus.hidden = !arrays.positions;
      after.root.hidden = gives.hidden = !arrays.positions && !facts.prefix; // the same once more
      if (arrays.positions) added.show(arrays.positions.data, facts.prefix);
      after.show(lengths(drawn, 0), facts.prefix);
      made.caption(where(traced(studio).config.position, arrays));
    }
    for (const one of [before, after]) one.point();
    if (arrays.positions) added.point();
  };
}

function where(position, arrays) {
  const shades = "Light is long; each map has its own shades, so read their scales. "
    + "A length is that of the vector (the root of its sum of squares): it says how much, not what.";
  if (position === "rotary") return `Nothing is added: this model turns queries and keys by their place inside each attention (rotary positions). ${shades}`;
  if (position === "relative") return `Nothing is added: each offset between two tokens has a key of its own inside attention (relative positions). ${shades}`;
  if (!arrays.positions) return `This model is told nothing of positions: to it the picture is a bag of patches. ${shades}`;
  const table = position.startsWith("sincos") ? "sines and cosines of the place, computed and never learned, so they are equally long everywhere"
    : "a learned vector for each place, the same for every picture";
  return `What is added is ${table}. ${shades} A sum can be shorter than its parts: vectors also cancel.`;
}

// --- over the layers

function layers(parent, studio) {
  const made = figure(parent, {
    name: "lengths", title: "Token lengths", level: 2,
    python: () => studio.python("lengths = vitrail.explain.norms(model, images)[:, 0]  # states × tokens",
      `print(lengths[${layer(studio)}])  # ${passed(layer(studio), studio.trace.facts.depth)}`),
    numbers: () => ({ state: layer(studio), depth: studio.trace.facts.depth, lengths: lengths(studio.trace, layer(studio)) }),
  });
  const words = el("output", {});
  const box = el("input", { type: "range", min: 0, "aria-label": "Blocks passed", oninput: () => state.set({ tokens_layer: box.value }) });
  const scale = select("Shades", [["state", "of this state"], ["all", "of all states"]], "state",
    (value) => state.set({ tokens_shades: value === "state" ? null : value }));
  const steps = select("Scale", [["linear", "linear"], ["log", "logarithmic"]], "linear", (value) => state.set({ tokens_scale: value }));
  const shown = map(studio, ""), long = el("div", { class: "long" });
  made.body.before(el("div", { class: "controls" }, el("label", { class: "field" }, el("span", {}, "State"), box, words), scale, steps));
  made.body.append(shown.root, long);
  return (why) => {
    const { facts, arrays } = studio.trace, count = layer(studio), shades = state.get("tokens_shades", "state"), values = lengths(studio.trace, count);
    if (why !== "point") {
      Object.assign(box, { max: facts.depth, value: count });
      words.textContent = passed(count, facts.depth);
      shown.title(`Length ${words.textContent}`);
      box.setAttribute("aria-valuetext", words.textContent);
      scale.querySelector("select").value = shades;
      steps.querySelector("select").value = logarithmic(studio) ? "log" : "linear";
      shown.show(values, facts.prefix, shades === "all" ? range(arrays.norms.data) : undefined, logarithmic(studio) ? short : Number);
      long.replaceChildren(...longest(studio, values));
      made.caption("A few patches that become many times as long as the rest, often in plain background or in corners, are a known artefact: "
        + "they no longer tell what is at their place and hold something about the whole picture instead. "
        + "Registers take over that job, and the maps become clean (Darcet et al. 2023, "
        + "who found it in large models that were trained for long). Length alone does not say what a token is used for.");
    }
    shown.point();
  };
}

// The longest patches by name, to point at: light cells are hard to find in a large grid.
function longest(studio, values) {
  const { prefix } = studio.trace.facts, patches = Array.from(values.subarray(prefix)), middle = median(patches);
  const many = patches.filter((value) => value > LONG * middle).length;
  const first = patches.map((value, patch) => [value, patch + prefix]).sort(([one], [other]) => other - one).slice(0, 5);
  const most = many === 0 ? `no patch is more than ${LONG} times as long`
    : `${many} of ${patches.length} ${many === 1 ? "is" : "are"} more than ${LONG} times as long`;
  const bounds = spread(values, prefix), size = logarithmic(studio) ? short : Number;
  return [el("p", {}, `The median patch is ${figure3(middle)} long; ${most}. The longest:`),
    el("div", { class: "cells" }, first.map(([value, token]) => cell(studio, token, `patch ${token - prefix}`, value, bounds, size)))];
}

function depth(parent, studio) {
  const made = figure(parent, {
    name: "lengths-over-depth", title: "How tokens grow", level: 2,
    python: () => studio.python("lengths = vitrail.explain.norms(model, images)[:, 0]  # states × tokens", `patches = lengths[:, ${studio.trace.facts.prefix}:]`,
      "print(patches.quantile(0.5, dim=1), patches.amax(1))",
      ...(studio.pointed === null ? [] : [`print(lengths[:, ${studio.pointed}])  # ${studio.token(studio.pointed)}`])),
    numbers: () => Object.fromEntries(lines(studio).map((line) => [line.name, line.points.map(([, length]) => length)])),
  });
  made.caption("Before the first block, then after each. In a model that normalises before each layer a block only ever adds to its tokens, "
    + "and in the end most are longer; one that normalises after each layer keeps them in bounds. Click at a state to see its map; point at a token to follow it.");
  return () => {
    const drawn = lines(studio), log = logarithmic(studio);
    made.body.replaceChildren(chart({
      title: "Length of tokens over depth", x: "blocks passed", y: log ? "length (logarithmic)" : "length",
      lines: drawn, low: log ? undefined : 0, log, whole: true, mark: layer(studio), height: 300,
      onpick: (x) => state.set({ tokens_layer: Math.max(0, Math.min(studio.trace.facts.depth, Math.round(x))) }),
    }), legend(drawn));
  };
}

function lines(studio) {
  const { facts: { depth: count, prefix, class_token, registers } } = studio.trace, token = studio.pointed;
  const states = Array.from({ length: count + 1 }, (_, at) => lengths(studio.trace, at));
  const line = (name, colour, of, dashed = false) => ({ name, colour, dashed, points: states.map((values, at) => [at, of(values)]) });
  return [
    class_token && line("class token", COLOURS.class, (values) => values[0]),
    line("median patch", COLOURS.median, (values) => median(values.subarray(prefix))),
    line("longest patch", COLOURS.longest, (values) => range(values, prefix, values.length - prefix)[1], true),
    registers && line("registers, mean", COLOURS.registers,
      (values) => values.subarray(prefix - registers, prefix).reduce((sum, value) => sum + value, 0) / registers),
    token !== null && line(studio.token(token), COLOURS.pointed, (values) => values[token]),
  ].filter(Boolean);
}
