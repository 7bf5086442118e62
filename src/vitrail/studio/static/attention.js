// Part 4: who looks at whom. The wall of all heads, one of them large, one pair in numbers.

import { heat, range } from "./colour.js";
import { el, percent, select, several } from "./dom.js";
import { figure } from "./figure.js";
import { PatchGrid } from "./grid.js";
import * as net from "./net.js";
import { Pair } from "./pair.js";
import { Rows, current, entropy, most, reach, sum } from "./rows.js";
import * as state from "./state.js";
import { tokenField } from "./tokenfield.js";
import { Wall } from "./wall.js";

const READERS = {
  cls: "the class token looks at",
  gap: "all patches look at, in the mean",
  map: "all patches look at, in the shares in which they are pooled",
};

export default {
  name: "attention", title: "Attention", glyph: "◎",
  lead: "In every layer every head lets each token look at all tokens. Point at a patch of the picture, and all heads show at once what it looks at.",

  // The wall in small: the mean of the heads a layer would lose them, so every head gives its darkest-to-lightest map.
  thumb(canvas, studio) {
    const { facts: { depth, heads, prefix, tokens, grid }, arrays: { pooled } } = studio.trace;
    const layers = Math.min(3, depth), some = Math.min(3, heads), small = el("canvas");
    Object.assign(canvas, { width: some * 16, height: layers * 16 });
    const pen = canvas.getContext("2d");
    pen.imageSmoothingEnabled = false;
    for (let row = 0; row < layers; row += 1) {
      for (let head = 0; head < some; head += 1) {
        const layer = layers === 1 ? 0 : Math.round((row * (depth - 1)) / (layers - 1));
        heat(small, pooled.data, ...grid, { from: (layer * heads + head) * tokens + prefix });
        pen.drawImage(small, head * 16, row * 16, 15, 15);
      }
    }
  },

  build(section, studio) {
    return new Attention(section, studio);
  },
};

class Attention {
  constructor(section, studio) {
    Object.assign(this, { section, studio, rows: new Rows(studio), frame_: 0, laid: null });
    this.query = tokenField("Who looks", (token) => state.set({ query: token }));
    this.key = tokenField("Key", (token) => state.set({ key: token }));
    this.scale = select("Shades", [["own", "each map on a scale of its own"], ["all", "all maps on one scale"]], state.get("scale", "own"),
      (value) => state.set({ scale: value === "own" ? null : value }));
    this.aim = select("A click here chooses", [["key", "whom it looks at"], ["query", "who looks"]], state.get("aim", "key"),
      (value) => state.set({ aim: value === "key" ? null : value }));
    this.note = el("p", { class: "soft", role: "status" });
    this.board = el("div", { class: "board" });
    section.append(el("div", { class: "controls" }, this.query.root, this.scale, this.note), this.board);
    this.#wall();
    this.#large();
    this.pair = new Pair(this.right, studio, el("div", { class: "controls" }, this.key.root));
  }

  #wall() {
    const { studio } = this;
    const { body, caption } = figure(this.board, { name: "attention-wall", title: "All heads", level: 2,
      python: () => this.studio.python(...this.#pythonRows(), "print(weights.shape)  # layers, heads, tokens"),
      numbers: () => ({ query: studio.pointed, ...this.#wallNumbers() }) });
    this.wall = new Wall({
      label: "Attention of every layer and head.",
      onpick: (layer, head) => state.set({ layer, head }),
      onlook: (cell) => this.#look(cell),
      describe: (layer, head) => this.#words(layer, head),
    });
    this.look = el("p", { class: "look soft" });
    this.wallCaption = caption;
    body.append(this.wall.root);
    body.after(this.look);
  }

  #large() {
    const { studio } = this;
    this.right = el("div", { class: "right" });
    this.board.append(this.right);
    const { body } = figure(this.right, { name: "attention-head", title: "One head", level: 2, python: () => this.#pythonHead(), numbers: () => this.#headNumbers() });
    this.map = new PatchGrid({
      label: "What the head looks at",
      onhover: (patch) => this.#point(patch),
      onpick: (patch) => this.#pick(patch),
      describe: (patch) => this.#weightWords(patch + studio.trace.facts.prefix),
    });
    this.title = el("p", { class: "who" });
    this.under = el("p", { class: "soft under" });
    this.bar = el("canvas", { class: "pixels ramp", width: 255, height: 1, "aria-hidden": "true" });
    this.ends = [el("span"), el("span")];
    this.stats = el("dl", { class: "stats" });
    this.most = el("table", { class: "most" });
    body.append(this.title, el("div", { class: "headview" },
      el("div", { class: "mapside" }, this.map.root, el("div", { class: "rampline" }, this.ends[0], this.bar, this.ends[1]), this.under, this.aim),
      el("div", { class: "statside" }, this.stats, this.most)));
  }

  draw(why) {
    const settled = current(this.studio);
    if (!settled && (why !== "theme" || !this.laid)) return; // the room may change while the next trace is on its way
    if (why !== "point" || this.laid !== this.studio.trace) this.#settle(why);
    if (settled) this.#pairs();
    if (!this.frame_) this.frame_ = requestAnimationFrame(() => this.frame()); // many events, one drawing
  }

  // Everything that does not follow the mouse.
  #settle(why) {
    const { facts, arrays } = this.studio.trace, { pool } = facts;
    if (why !== "state" || this.laid !== this.studio.trace) {
      const width = this.board.clientWidth, beside = width > 820;
      this.wall.layout(facts, arrays.pixels, (beside ? Math.min(0.54 * width, width - 420) : width) - 28, Math.max(660, innerHeight - 240));
      this.board.style.gridTemplateColumns = beside ? `${Math.max(270, this.wall.canvas.clientWidth + 28)}px minmax(0, 1fr)` : "";
      this.map.show(arrays.pixels, facts.grid);
      this.pair.draw();
      this.laid = this.studio.trace;
    }
    const reader = { cls: "the class token, which is read", gap: "the mean of all patches", map: "what the pooling reads" }[pool];
    this.query.sync(this.studio, reader, state.number("query"), pool === "cls" ? 0 : null);
    this.key.sync(this.studio, "the token with the largest weight", state.number("key"), null);
    this.scale.querySelector("select").value = state.get("scale", "own");
    this.aim.querySelector("select").value = state.get("aim", "key");
    if (!this.studio.hovered) this.wallCaption(this.#caption());
  }

  #caption() {
    const { prefix, class_token: cls, registers, depth, heads } = this.studio.trace.facts;
    const before = [cls ? "the class token" : "", registers ? "the registers" : ""].filter(Boolean).join(" and ");
    const scale = state.get("scale", "own") === "own" ? "Each map has its own scale: compare places within a map, not brightness between maps."
      : "All maps have one scale: a dark map spreads its attention, or gives it to tokens that are no patches.";
    return `${several(depth, "layer")} of ${several(heads, "head")}, the first at the top. Light patches are looked at more. ${scale}${prefix ? ` The bar below a map is the share that goes to ${before}.` : ""} Click a head to see it large.`;
  }

  // All that is done when somebody points somewhere: the wall, the large map and its numbers.
  frame() {
    cancelAnimationFrame(this.frame_);
    this.frame_ = 0;
    if (this.section.hidden || this.laid !== this.studio.trace) return;
    const query = this.studio.pointed, found = this.rows.of(query);
    this.shown = found;
    const [layer, head] = this.#chosen();
    this.wall.chosen = [layer, head];
    this.wall.draw(found, state.get("scale", "own") === "all");
    this.note.textContent = this.rows.words(query);
    this.#head(found, layer, head);
  }

  #chosen() {
    const { depth, heads } = this.studio.trace.facts;
    const within = (value, count, otherwise) => (Number.isInteger(value) && value >= 0 && value < count ? value : otherwise);
    return [within(state.number("layer"), depth, depth - 1), within(state.number("head"), heads, 0)];
  }

  // The weights of one head in what is shown.
  row(layer, head, found = this.shown) {
    const { heads, tokens } = this.studio.trace.facts, start = found.first + (layer * heads + head) * found.step;
    return found.data.subarray(start, start + tokens);
  }

  #head(found, layer, head) {
    const { facts } = this.studio.trace, row = this.row(layer, head, found), query = found.query;
    const [low, high] = this.wall.bounds ?? range(row, facts.prefix, row.length - facts.prefix);
    this.map.heat(row, { from: facts.prefix, low, high });
    const key = this.#key(row), patch = (token) => (token !== null && token >= facts.prefix ? token - facts.prefix : null);
    this.map.mark({ at: patch(query), marked: new Set(patch(key) === null ? [] : [patch(key)]) });
    this.title.textContent = `Layer ${layer}, head ${head}: what ${query === null ? READERS[facts.pool] : `${this.studio.token(query)} looks at`}`;
    if (!this.ramped) heat(this.bar, Float32Array.from({ length: 255 }, (_, place) => place), 1, 255), this.ramped = true;
    this.ends[0].textContent = percent(low, 2);
    this.ends[1].textContent = percent(high, 2);
    this.#numbers(row, query);
  }

  #numbers(row, query) {
    const { facts } = this.studio.trace, wide = entropy(row), far = reach(row, query, facts, this.studio.model.stride);
    const lines = [];
    for (let token = 0; token < Math.min(facts.prefix, 5); token += 1) lines.push([`To ${this.studio.token(token)}`, percent(row[token])]);
    if (facts.prefix > 5) lines.push([`To the other ${facts.prefix - 5} registers`, percent(sum(row, 5, facts.prefix))]);
    lines.push([facts.prefix ? "To patches" : "To all patches", percent(sum(row, facts.prefix, row.length))],
      ["Entropy", `${wide.toFixed(3)} nats`, `of at most ${Math.log(row.length).toFixed(2)}: as wide as ${Math.exp(wide).toFixed(1)} of ${row.length} tokens alike`],
      ["Distance", far === null ? "none" : `${far.toFixed(1)} px`, far === null ? "only a patch has a place in the picture" : "mean way to the patches looked at, by weight"]);
    this.stats.replaceChildren(...lines.flatMap(([name, value, words]) => [el("dt", {}, name), el("dd", {}, el("strong", {}, value), words ? el("span", { class: "soft" }, ` ${words}`) : null)]));
    const top = most(row, 5);
    this.most.replaceChildren(el("caption", {}, "Where most of it goes"), el("tbody", {}, top.map((token) => el("tr", {},
      el("td", {}, this.studio.token(token)), el("td", { class: "number" }, percent(row[token], 2))))),
      el("tfoot", {}, el("tr", {}, el("td", {}, `together, of ${row.length} tokens`), el("td", { class: "number" }, percent(top.reduce((all, token) => all + row[token], 0), 2)))));
  }

  // The key of the pair: the one that was clicked, else the one with the largest weight.
  #key(row) {
    const key = state.number("key");
    return Number.isInteger(key) && key >= 0 && key < row.length ? key : most(row, 1)[0];
  }

  #pairs() {
    const { facts } = this.studio.trace, pinned = state.number("query"), known = Number.isInteger(pinned) && pinned >= 0 && pinned < facts.tokens;
    const query = known ? pinned : facts.pool === "cls" ? 0 : null;
    if (net.alone) return this.pair.ask(null, "Queries and keys are not part of a saved copy; start the studio to see them.");
    if (query === null) return this.pair.ask(null, `The answer is read from ${this.studio.reader}: choose who looks above, or click a patch of the picture, to see one query and one key.`);
    const [layer, head] = this.#chosen(), found = this.rows.of(known ? query : null);
    const { model, step, picture } = this.studio.here();
    if (found.query !== (known ? query : null)) return null; // its row is on its way
    return this.pair.ask({ model, step, picture, layer, head, query, key: this.#key(this.row(layer, head, found)) });
  }

  #point(patch) {
    if (!this.studio.trace) return;
    const token = patch === null ? null : patch + this.studio.trace.facts.prefix;
    if (state.get("aim", "key") === "query") this.studio.hover(token);
    this.under.textContent = token === null ? "" : this.#weightWords(token);
  }

  #pick(patch) {
    const token = patch + this.studio.trace.facts.prefix;
    if (state.get("aim", "key") === "query") this.studio.pin(token);
    else state.set({ key: state.number("key") === token ? null : token });
  }

  #weightWords(token) {
    return `${percent(this.row(...this.#chosen())[token], 2)} to ${this.studio.token(token)}`;
  }

  #look(cell) {
    this.look.textContent = cell && this.shown ? this.#words(...cell) : "";
  }

  #words(layer, head) {
    const { prefix } = this.studio.trace.facts, row = this.row(layer, head), [top] = most(row, 1);
    const away = prefix ? `, ${percent(sum(row, 0, prefix), 0)} to tokens that are no patches` : "";
    return `Layer ${layer}, head ${head}: most to ${this.studio.token(top)} with ${percent(row[top])}${away}, entropy ${entropy(row).toFixed(2)} nats`;
  }

  #pythonRows(more = "") {
    const query = this.studio.pointed;
    return [query === null ? `weights = vitrail.explain.pooled_attention(model, images${more})[:, 0]` : `weights = vitrail.explain.attention(model, images${more}, queries=[${query}])[:, 0, :, 0]`];
  }

  #pythonHead() {
    const [layer, head] = this.#chosen(), { prefix, grid: [rows, columns] } = this.studio.trace.facts;
    return this.studio.python(...this.#pythonRows(`, layers=[${layer}], heads=[${head}]`), "row = weights[0, 0]",
      `grid = row[${prefix}:].reshape(${rows}, ${columns})`, `before = row[:${prefix}]  # what goes to tokens that are no patches`,
      "entropy = torch.special.entr(row).sum()  # nats", "print(entropy, before, row.topk(5))");
  }

  #wallNumbers() {
    const { depth, heads, prefix, grid } = this.studio.trace.facts;
    return { prefix, grid, weights: Array.from({ length: depth }, (_, layer) => Array.from({ length: heads }, (_head, head) => this.row(layer, head))) };
  }

  #headNumbers() {
    const [layer, head] = this.#chosen(), { prefix, grid } = this.studio.trace.facts, row = this.row(layer, head), query = this.shown.query;
    return { layer, head, query, prefix, grid, weights: row, entropy: entropy(row), distance: reach(row, query, this.studio.trace.facts, this.studio.model.stride) };
  }
}
