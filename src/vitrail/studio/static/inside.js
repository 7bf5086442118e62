// The model itself, whatever the picture: where its patches think they are, what it looks for in pixels, how far and how widely its
// heads look (Dosovitskiy et al. 2021, figures 7 and 11). Another model or checkpoint can stand beside it, on the same scale.
//
// In the address: `beside` a model, `beside_step` its checkpoint, `reach` how distances are counted.

import { chart, legend } from "./chart.js";
import { heat, paint, range } from "./colour.js";
import { el, figure3, select } from "./dom.js";
import { figure } from "./figure.js";
import { PatchGrid } from "./grid.js";
import { alone, binary } from "./net.js";
import * as state from "./state.js";

const KEPT = 4; // answers, so that going back and forth over checkpoints is quick
const ACROSS = 7; // filters in a row, as in the paper
const POSITIONS = {
  rotary: "Rotary positions are not added: they turn queries and keys. Shown is the mean cosine of the angles between two places.",
  relative: "Relative offsets live in each layer: shown is how alike two places are in the keys that queries meet from them, in the first layer.",
};

export default {
  name: "inside", title: "The model", glyph: "❖",
  lead: "What it has learned before any picture comes, and how its heads behave on many pictures. Move over the checkpoints in the header to see it arise, "
    + "or put a second model beside it.",
  build,
};

function build(section, studio) {
  const kept = new Map(); // a promise by model and step
  let views = null, question = "";

  const beside = el("div", { class: "controls" });
  section.append(beside);
  const first = el("div", { class: "columns" }), waiting = el("p", { class: "waiting", role: "status", hidden: true });
  section.append(waiting);
  const shown = {};
  const add = (parent, name, title, caption, python, numbers) => { shown[name] = figure(parent,
    { name, title, caption, level: 2, python, numbers: () => views?.map((view) => ({ model: view.name, ...numbers(view) })) }); };
  add(section, "positions", "Where patches think they are", "", () => snippets("similarity = vitrail.explain.position_similarity(model)  # (y x v u)"),
    ({ arrays }) => ({ similarity: arrays.similarity }));
  add(section, "filters", "What patches look for", "", () => snippets("components = vitrail.explain.filters(model)  # (n c p q)"),
    ({ arrays }) => ({ filters: arrays.filters }));
  section.append(first);
  add(first, "distance", "How far heads look", "", () => snippets(`distance = ${measured(state.get("reach") === "whole" ? "renormalised" : "distance")}`,
    true), ({ arrays }) => ({ distance: arrays.distance, renormalised: arrays.renormalised }));
  add(first, "entropy", "How widely heads look", "", () => snippets(`entropy = ${measured("entropy")}  # nats`, true),
    ({ arrays }) => ({ entropy: arrays.entropy }));
  add(section, "alike", "How alike heads are", "", () => snippets(`alike = ${measured("similarity")}  # (l h h)`, true),
    ({ arrays }) => ({ alike: arrays.alike }));
  const reach = select("Counted", [["", "as the authors do"], ["whole", "with rows brought back to one"]], state.get("reach", ""),
    (value) => state.set({ reach: value || null }));
  shown.distance.root.insertBefore(reach, shown.distance.body);
  const places = [];

  return { draw };

  async function draw(why) {
    if (why === "point") return point();
    chooser();
    reach.querySelector("select").value = state.get("reach") === "whole" ? "whole" : "";
    const wanted = [{ model: studio.model, step: state.get("step") }, other()].filter(Boolean);
    const now = JSON.stringify(wanted.map(stamp));
    if (now !== question) {
      question = now;
      section.classList.add("stale");
      waiting.textContent = `Looking into ${wanted.map(named).join(" and ")} ...`;
      waiting.hidden = false;
      let found;
      try {
        found = await Promise.all(wanted.map(ask));
      } catch (error) {
        if (question === now) question = "";
        if (question === "") waiting.hidden = true;
        throw error;
      }
      if (question !== now) return;
      waiting.hidden = true;
      section.classList.remove("stale");
      section.classList.add("drawn"); // figures show once there is something in them
      views = found.map((one, place) => ({ ...one, ...wanted[place], name: named(wanted[place]) }));
      all();
    } else if (views && why !== "trace") heads();
    point();
  }

  // While a run trains, its best weights change: with an evaluation, and before the first one with every checkpoint.
  function stamp({ model, step }) {
    return `${model.id} ${step ?? `best of ${model.steps.at(-1)} ${model === studio.model ? studio.here().again : ""}`}`;
  }

  function ask(one) {
    const key = stamp(one), held = kept.get(key) ?? binary("api/model", { model: one.model.id, step: one.step });
    kept.delete(key); // and put in again, as the youngest
    kept.set(key, held);
    held.catch(() => kept.delete(key));
    while (kept.size > KEPT) kept.delete(kept.keys().next().value);
    return held;
  }

  // The model beside, if the address names one that there is.
  function other() {
    const model = studio.facts.models.find((one) => one.id === state.get("beside"));
    const step = state.number("beside_step");
    return model && !alone ? { model, step: step !== null && model.steps.includes(step) ? step : null } : null;
  }

  function named({ model, step }) {
    return `${model.name}${step === null ? (model.steps.length ? ", best" : "") : `, step ${Number(step).toLocaleString("en")}`}`;
  }

  function chooser() {
    const options = [["", "nothing"]];
    for (const model of studio.facts.models) {
      options.push([model.id, named({ model, step: null })]);
      for (const step of model.steps) options.push([`${model.id} ${step}`, named({ model, step })]);
    }
    const chosen = other(), value = chosen ? `${chosen.model.id}${chosen.step === null ? "" : ` ${chosen.step}`}` : "";
    const made = JSON.stringify(options);
    if (beside.dataset.made !== made) {
      beside.dataset.made = made;
      beside.replaceChildren(alone ? "" : select("Beside it", options, value, (picked) => {
        const [id, step = null] = picked.split(" ");
        state.set({ beside: id || null, beside_step: step });
      }));
    }
    if (!alone) beside.querySelector("select").value = value;
  }

  function all() {
    first.className = views.length > 1 ? "apart" : "columns"; // two models stand side by side in one figure
    tiles();
    filters();
    heads();
    alikeness();
  }

  // One column a model: its name where there are two, then what is made of it.
  function pair(name, make) {
    shown[name].body.replaceChildren(el("div", { class: `pair of${views.length}` },
      views.map((view, place) => el("div", {}, views.length > 1 ? el("p", { class: "of" }, view.name) : null, make(view, place)))));
  }

  function tiles() {
    const there = views.filter((view) => view.arrays.similarity);
    const low = Math.min(0, ...there.map((view) => range(view.arrays.similarity.data)[0]));
    places.length = 0;
    pair("positions", (view, place) => {
      if (!view.arrays.similarity) return el("p", { class: "soft" }, "This model has no positions: to it, a picture is a bag of patches.");
      const made = new Places(view, low, (patch, grid) => studio.hover(patch === null ? null : token(patch, grid)),
        (patch, grid) => studio.pin(token(patch, grid)));
      places[place] = made;
      return made.root;
    });
    const kind = (there[0] ?? views[0]).facts.position;
    shown.positions.caption(`${POSITIONS[kind] ?? "Positions are learned or made as one vector a place and added to the patches. "}`
      + ` A tile is a place, and shows the cosine of its position with every other: lighter is more alike. Near places alike, and whole rows and columns: `
        + `that is how a picture's plane shows in a list of tokens. Scale from ${figure3(low)} to 1.`);
  }

  // A patch of these tiles as a token of the picture; grids of two models may differ, then what lies at the same spot.
  function token(patch, grid) {
    const { facts } = studio.trace;
    return moved(patch, grid, facts.grid) + facts.prefix;
  }

  function point() {
    if (!studio.trace || !views) return;
    const { facts } = studio.trace, pointed = studio.pointed;
    const patch = pointed !== null && pointed >= facts.prefix ? pointed - facts.prefix : null;
    for (const one of places) one?.point(patch === null ? null : moved(patch, facts.grid, one.grid));
  }

  function filters() {
    pair("filters", (view) => filterSheet(view));
    const { facts, arrays } = views[0], [count] = arrays.filters.shape;
    shown.filters.caption(`The first ${count} principal components of the ${facts.filters_of === "stem" ? "stem's first convolution" : "patch embedding's "
      + "kernels"}, the strongest first; grey is zero. `
      + "Trained on enough pictures they look like a basis for the fine structure of a patch: plain colours, then waves of growing frequency. Noise says: "
        + "too few pictures, or too short a training.");
  }

  function heads() {
    const key = state.get("reach") === "whole" ? "renormalised" : "distance";
    spots("distance", (view) => view.arrays[key], "distance in pixels", (value) => `${figure3(value)} pixels`);
    spots("entropy", (view) => view.arrays.entropy, "entropy in nats", (value) => `${figure3(value)} nats, as if it looked at ${figure3(Math.exp(value))} `
      + `tokens alike`,
      (view) => Math.log(view.model.tokens), (view) => `all ${view.model.tokens} tokens alike: ${figure3(Math.log(view.model.tokens))} nats`);
    const { facts } = views[0], on = facts.pictures ? `Mean over ${facts.measured?.words ?? `${facts.pictures} pictures`}. ` : "";
    shown.distance.caption(`${on}A dot is a head: the distance in pixels between the centres of two patches, weighed by attention, averaged over queries `
      + `and pictures (Dosovitskiy et al. 2021, figures 7 right and 11). `
      + `${key === "distance" ? "As in the authors' code, class token and registers are left out and what is left of a row is not brought back to one, so a "
        + "head that looks at the class token counts as near."
        : "What a row gives to patches is brought back to one first: how far a head looks where it looks at patches at "
          + "all."} Heads that look far in the first layers are what a convolution cannot have.`);
    shown.entropy.caption(`${on}A dot is a head: 0 looks at one token, the dashed line at all alike. Wide heads in the first layers take a mean over the `
      + `picture; narrow ones later have found something.`);
  }

  function spots(name, values, y, words, most = null, line = null) {
    const there = views.filter((view) => values(view));
    const highest = Math.max(...there.map((view) => Math.max(range(values(view).data)[1], most ? most(view) : 0)));
    pair(name, (view, place) => (values(view) ? dotted(values(view), { onpick: place ? null
      : (layer, head) => state.set({ layer, head, part: "attention" }), title: shown[name].root.querySelector("h2").textContent, y, high: 1.04 * highest,
      words, line: most && { at: most(view), name: line(view) } })
      : el("p", { class: "soft" }, "There were no pictures to measure this on.")));
  }

  function alikeness() {
    pair("alike", (view) => (view.arrays.alike ? strip(view.arrays.alike) : el("p", { class: "soft" }, "There were no pictures to measure this on.")));
    shown.alike.caption("One square a layer, a row and a column a head: the cosine between two heads' attention, from 0 (dark) to 1 (light). A light square "
      + "off the diagonal is two heads that look at the same places; what they take from there, their values, may still differ.");
  }

  // Python for one model or both; `pictures`: it needs those that heads were measured on.
  function snippets(line, pictures = false) {
    const imports = new Set(["import vitrail"]), lines = [];
    for (const { model, step, facts } of views ?? []) {
      lines.push("", `model = ${step === null ? model.python : model.past.replace("STEP", step)}`);
      if (pictures) {
        for (const one of facts.measured?.imports ?? studio.trace?.facts.picture.imports ?? []) imports.add(one);
        if (!facts.measured) lines.push(`# the figure was measured on ${facts.pictures} pictures; here on one`);
        lines.push(`images = vitrail.prepare(model, ${facts.measured?.python ?? `[${studio.trace?.facts.picture.python ?? '"picture.jpg"'}]`})`);
      }
      lines.push(line);
    }
    return [...imports, ...lines].join("\n");
  }

  function measured(field) {
    return `vitrail.explain.heads(model, [images]).${field}`;
  }
}

// All tiles in one picture, and the tile that is pointed at beside it, large.
class Places {
  constructor(view, low, onhover, onpick) {
    const { shape: [rows, columns], data } = view.arrays.similarity;
    Object.assign(this, { grid: [rows, columns], data, low });
    this.sheet = new PatchGrid({ label: `Position similarity of ${view.name}, one tile a place`, onhover: (patch) => onhover(patch, this.grid),
      onpick: (patch) => onpick(patch, this.grid), describe: (patch) => this.words(patch) });
    this.sheet.show(tiled(data, rows, columns, low), this.grid);
    this.large = el("canvas", { class: "pixels", "aria-hidden": "true" });
    this.said = el("p", { class: "soft" });
    this.root = el("div", { class: "places" }, el("div", { class: "sheet" }, this.sheet.root),
      el("div", { class: "large" }, this.large, scale(low, 1), this.said));
    this.point(null);
  }

  // None: the middle, so that there is something to see.
  point(patch) {
    const [rows, columns] = this.grid, count = rows * columns, at = patch ?? Math.floor(rows / 2) * columns + Math.floor(columns / 2);
    this.sheet.mark({ at: patch });
    heat(this.large, this.data, rows, columns, { from: at * count, low: this.low, high: 1 });
    this.large.style.aspectRatio = `${columns} / ${rows}`;
    this.said.textContent = count === 1 ? "" : `${this.words(at)}${patch === null ? " (the middle; point at a tile for another)" : ""}`;
  }

  words(patch) {
    const [rows, columns] = this.grid, row = Math.floor(patch / columns), column = patch % columns, of = (y, x) => this.data[(patch * rows + y) * columns + x];
    const near = [[row - 1, column, "above"], [row + 1, column, "below"], [row, column - 1, "left"], [row, column + 1, "right"]].filter(([y, x]) => y >= 0
      && y < rows && x >= 0 && x < columns);
    if (!near.length) return `Row ${row}, column ${column}: the only place`;
    return `Row ${row}, column ${column}: cosine ${near.map(([y, x, where]) => `${of(y, x).toFixed(2)} ${where}`).join(", ")}`;
  }
}

// A tile a patch, with a line of nothing at its right and lower edge, so that tiles divide the picture evenly; small ones are enlarged.
function tiled(data, rows, columns, low) {
  const times = Math.max(1, Math.ceil(28 / columns)), wide = times * columns, high = times * rows, width = columns * (wide + 1), height = rows * (high + 1);
  const words = new Uint32Array(width * height).fill(0xff808080), line = new Float32Array(wide);
  for (let patch = 0; patch < rows * columns; patch += 1) {
    const top = Math.floor(patch / columns) * (high + 1), left = (patch % columns) * (wide + 1);
    for (let y = 0; y < high; y += 1) {
      const from = (patch * rows + Math.floor(y / times)) * columns;
      for (let x = 0; x < wide; x += 1) line[x] = data[from + Math.floor(x / times)];
      paint(words, (top + y) * width + left, line, 0, wide, low, 1);
    }
  }
  return { shape: [height, width, 4], data: new Uint8Array(words.buffer) };
}

function moved(patch, [rows, columns], [toRows, toColumns]) {
  const down = Math.floor(((Math.floor(patch / columns) + 0.5) / rows) * toRows), across = Math.floor((((patch % columns) + 0.5) / columns) * toColumns);
  return down * toColumns + across;
}

function scale(low, high) {
  const canvas = el("canvas", { class: "ramp", "aria-hidden": "true" });
  heat(canvas, Float32Array.from({ length: 128 }, (_, place) => place), 1, 128);
  return el("p", { class: "scale" }, el("span", {}, figure3(low)), canvas, el("span", {}, figure3(high)));
}

function filterSheet({ arrays: { filters: { shape: [count, channels, high, wide], data } }, name }) {
  const across = Math.min(ACROSS, count), down = Math.ceil(count / across), width = across * (wide + 1) - 1, height = down * (high + 1) - 1;
  const canvas = el("canvas", { class: "pixels filters", width, height, role: "img", "aria-label": `${count} filters of ${name}, ${high} by ${wide} pixels `
    + `each` });
  const context = canvas.getContext("2d"), image = context.createImageData(width, height);
  for (let one = 0; one < count; one += 1) {
    const top = Math.floor(one / across) * (high + 1), left = (one % across) * (wide + 1);
    for (let y = 0; y < high; y += 1) for (let x = 0; x < wide; x += 1) {
      const to = 4 * ((top + y) * width + left + x);
      for (let colour = 0; colour < 3; colour += 1) image.data[to + colour] = 255 * data[((one * channels + (channels === 3 ? colour : 0)) * high
        + y) * wide + x];
      image.data[to + 3] = 255;
    }
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

// A dot a head, the layers side by side; arrow keys go from dot to dot, and the words of the one that is looked at stand below.
function dotted({ shape: [layers, heads], data }, { title, y, high, words, line, onpick }) {
  const dots = [];
  for (let layer = 0; layer < layers; layer += 1) for (let head = 0; head < heads; head += 1) {
    const value = data[layer * heads + head];
    dots.push({ layer, head, x: layer + (heads > 1 ? 0.5 * (head / (heads - 1) - 0.5) : 0), y: value, words: `layer ${layer}, head ${head}: ${words(value)}` });
  }
  const lines = line ? [{ name: line.name, dashed: true, colour: "var(--soft)", points: [[-0.4, line.at], [layers - 0.6, line.at]] }] : [];
  const drawing = chart({ title, x: "layer", y, lines, dots, low: 0, high, whole: true });
  const circles = [...drawing.querySelectorAll("circle.dot")], said = el("p", { class: "soft words", "aria-live": "polite" },
    `Point at a dot, or walk over them with the arrow keys${onpick ? "; a click or Enter shows its attention" : ""}.`);
  let at = null;
  const look = (place) => {
    if (at !== null) circles[at].classList.remove("large"), circles[at].setAttribute("r", 3.5);
    at = place;
    if (at === null) return;
    circles[at].classList.add("large");
    circles[at].setAttribute("r", 6);
    said.textContent = dots[at].words;
  };
  const root = el("div", { class: "dots", tabindex: "0", role: "application", "aria-label": `${title}: a dot a head. Left and right go over layers, up and `
    + `down over heads.`,
    onpointermove: (event) => { const place = circles.indexOf(event.target.closest("circle")); if (place >= 0) look(place); },
    onclick: (event) => onpick && at !== null && event.target.closest("circle") && onpick(dots[at].layer, dots[at].head),
    onkeydown: (event) => {
      if (event.key === "Enter" && onpick && at !== null) onpick(dots[at].layer, dots[at].head);
      const step = { ArrowLeft: -heads, ArrowRight: heads, ArrowUp: 1, ArrowDown: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      const next = at === null ? 0 : at + step;
      if (next >= 0 && next < dots.length && (Math.abs(step) === heads || Math.floor(next / heads) === Math.floor(at / heads) || at === null)) look(next);
    } }, drawing);
  return el("div", {}, root, lines.length ? legend(lines) : null, said);
}

// A square a layer.
function strip({ shape: [layers, heads], data }) {
  const said = el("p", { class: "soft words", "aria-live": "polite" }, "Point at a cell, or walk over them with the arrow keys; Page up and Page down "
    + "change the layer.");
  let at = [0, 0, 0];
  const squares = Array.from({ length: layers }, (_, layer) => {
    const canvas = el("canvas", { class: "pixels", "aria-hidden": "true" });
    heat(canvas, data, heads, heads, { from: layer * heads * heads, low: 0, high: 1 });
    return el("div", { data: { layer } }, canvas, el("span", { class: "soft" }, `${layer}`));
  });
  const look = (layer, one, other) => {
    at = [layer, one, other];
    squares.forEach((square, place) => square.classList.toggle("at", place === layer));
    said.textContent = `layer ${layer}, heads ${one} and ${other}: cosine ${data[(layer * heads + one) * heads + other].toFixed(3)}`;
  };
  const within = (value, most) => Math.max(0, Math.min(most - 1, value));
  return el("div", {}, el("div", { class: "squares", tabindex: "0", role: "application", "aria-label": "How alike heads are, a square a layer. Arrow keys "
    + "go over heads, Page up and Page down over layers.",
    onpointermove: (event) => {
      if (event.target.localName !== "canvas") return;
      const box = event.target.getBoundingClientRect(), place = (share) => within(Math.floor(share * heads), heads);
      look(Number(event.target.parentElement.dataset.layer), place((event.clientY - box.top) / box.height), place((event.clientX - box.left) / box.width));
    },
    onkeydown: (event) => {
      const move = { ArrowLeft: [0, 0, -1], ArrowRight: [0, 0, 1], ArrowUp: [0, -1, 0], ArrowDown: [0, 1, 0], PageUp: [-1, 0, 0],
        PageDown: [1, 0, 0] }[event.key];
      if (!move) return;
      event.preventDefault();
      look(within(at[0] + move[0], layers), within(at[1] + move[1], heads), within(at[2] + move[2], heads));
    } }, squares), said);
}
