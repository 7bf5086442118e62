// Part 4: attention. The grid of all heads, one head enlarged, one query-key pair in numbers.

import { drawHeatmap, minMax } from "./colormap.js";
import { el, percent, select, plural } from "./dom.js";
import { figure } from "./figure.js";
import { PatchGrid } from "./patch_grid.js";
import * as api from "./api.js";
import { AttentionPair } from "./attention_pair.js";
import { AttentionRows, isCurrent, entropy, topTokens, meanDistance, sum } from "./attention_rows.js";
import * as state from "./url_state.js";
import { tokenPicker } from "./token_picker.js";
import { AttentionGrid } from "./attention_grid.js";

const QUERY_PHRASES = {
  cls: "the class token attends to",
  gap: "all patches attend to, on average",
  "cls+gap": "the class token and all patches attend to, on average",
  "cls+register": "the class token and the first register attend to, on average",
  map: "all patches attend to, weighted as they are pooled",
};

export default {
  name: "attention", title: "Attention", glyph: "◎",
  lead: "In every layer, every head lets each token attend to all tokens. Point at a patch of the image, and every head shows what that patch attends to.",

  // The grid in small: up to three layers and three heads, each map on a scale of its own.
  thumb(canvas, store) {
    const { meta: { depth, heads, prefix, tokens, grid }, arrays: { pooled_attention } } = store.trace;
    const layers = Math.min(3, depth), headCount = Math.min(3, heads), small = el("canvas");
    Object.assign(canvas, { width: headCount * 16, height: layers * 16 });
    const context = canvas.getContext("2d");
    context.imageSmoothingEnabled = false;
    for (let row = 0; row < layers; row += 1) {
      for (let head = 0; head < headCount; head += 1) {
        const layer = layers === 1 ? 0 : Math.round((row * (depth - 1)) / (layers - 1));
        drawHeatmap(small, pooled_attention.data, ...grid, { from: (layer * heads + head) * tokens + prefix });
        context.drawImage(small, head * 16, row * 16, 15, 15);
      }
    }
  },

  build(section, store) {
    return new Attention(section, store);
  },
};

class Attention {
  constructor(section, store) {
    Object.assign(this, { section, store, rows: new AttentionRows(store), frame: 0, drawnTrace: null });
    this.query = tokenPicker("Query token", (token) => state.set({ query: token }));
    this.key = tokenPicker("Key token", (token) => state.set({ key: token }));
    this.scale = select("Colour scale", [["own", "one per map"], ["all", "one for all maps"]], state.get("scale", "own"),
      (value) => state.set({ scale: value === "own" ? null : value }));
    this.clickSelects = select("A click selects", [["key", "the key"], ["query", "the query"]], state.get("click_selects", "key"),
      (value) => state.set({ click_selects: value === "key" ? null : value }));
    this.note = el("p", { class: "soft", role: "status" });
    this.board = el("div", { class: "board" });
    section.append(el("div", { class: "controls" }, this.query.root, this.scale, this.note), this.board);
    this.#buildGrid();
    this.#buildHead();
    this.pair = new AttentionPair(this.right, store, el("div", { class: "controls" }, this.key.root));
  }

  #buildGrid() {
    const { store } = this;
    const { body, caption } = figure(this.board, { name: "attention-grid", title: "All heads", level: 2,
      python: () => this.store.python(...this.#pythonRows(), "print(weights.shape)  # layers, heads, tokens"),
      numbers: () => ({ query: store.activeToken, ...this.#gridNumbers() }) });
    this.attentionGrid = new AttentionGrid({
      label: "Attention of every layer and head.",
      onpick: (layer, head) => state.set({ layer, head }),
      onhover: (cell) => this.#showHover(cell),
      describe: (layer, head) => this.#headText(layer, head),
    });
    this.hoverInfo = el("p", { class: "hover-info soft" });
    this.gridCaption = caption;
    body.append(this.attentionGrid.root);
    body.after(this.hoverInfo);
  }

  #buildHead() {
    const { store } = this;
    this.right = el("div", { class: "right" });
    this.board.append(this.right);
    const { body } = figure(this.right, { name: "attention-head", title: "One head", level: 2, python: () => this.#pythonHead(), numbers: () => this.#headNumbers() });
    this.map = new PatchGrid({
      label: "What the head attends to",
      onhover: (patch) => this.#hoverPatch(patch),
      onpick: (patch) => this.#selectPatch(patch),
      describe: (patch) => this.#weightText(patch + store.trace.meta.prefix),
    });
    this.title = el("p", { class: "head-title" });
    this.patchInfo = el("p", { class: "soft patch-info" });
    this.colorbar = el("canvas", { class: "pixels colorbar", width: 255, height: 1, "aria-hidden": "true" });
    this.ends = [el("span"), el("span")];
    this.stats = el("dl", { class: "stats" });
    this.topTable = el("table", { class: "top-tokens" });
    body.append(this.title, el("div", { class: "head-view" },
      el("div", { class: "map-column" }, this.map.root, el("div", { class: "colorbar-line" }, this.ends[0], this.colorbar, this.ends[1]), this.patchInfo, this.clickSelects),
      el("div", { class: "stats-column" }, this.stats, this.topTable)));
  }

  draw(reason) {
    const upToDate = isCurrent(this.store);
    if (!upToDate && (reason !== "theme" || !this.drawnTrace)) return; // the window may be resized while the next trace is loading
    if (reason !== "point" || this.drawnTrace !== this.store.trace) this.#update(reason);
    if (upToDate) this.#updatePair();
    if (!this.frame) this.frame = requestAnimationFrame(() => this.redraw()); // many events, one redraw
  }

  // Everything that does not follow the mouse.
  #update(reason) {
    const { meta, arrays } = this.store.trace, { pool } = meta;
    if (reason !== "state" || this.drawnTrace !== this.store.trace) {
      const width = this.board.clientWidth, sideBySide = width > 820;
      this.attentionGrid.layout(meta, arrays.pixels, (sideBySide ? Math.min(0.54 * width, width - 420) : width) - 28, Math.max(660, innerHeight - 240));
      this.board.style.gridTemplateColumns = sideBySide ? `${Math.max(270, this.attentionGrid.canvas.clientWidth + 28)}px minmax(0, 1fr)` : "";
      this.map.show(arrays.pixels, meta.grid, meta.region?.bounds);
      this.pair.draw();
      this.drawnTrace = this.store.trace;
    }
    const poolingSource = meta.region ? this.store.poolingSource : { cls: "the class token (pooled)", gap: "the mean of all patches", map: "the attention pooling", "cls+gap": "the class token and the mean",
      "cls+register": "the class token and the first register" }[pool];
    this.query.sync(this.store, poolingSource, state.number("query"), pool === "cls" ? 0 : null);
    this.key.sync(this.store, "the token with the largest weight", state.number("key"), null);
    this.scale.querySelector("select").value = state.get("scale", "own");
    this.clickSelects.querySelector("select").value = state.get("click_selects", "key");
    if (!this.store.hovered) this.gridCaption(this.#caption());
  }

  #caption() {
    const { prefix, class_token: cls, registers, depth, heads } = this.store.trace.meta;
    const prefixNames = [cls ? "the class token" : "", registers ? "the registers" : ""].filter(Boolean).join(" and ");
    const scale = state.get("scale", "own") === "own" ? "Each map has its own colour scale: compare patches within a map, not brightness between maps."
      : "All maps share one colour scale: a dark map spreads its attention, or gives it to the prefix tokens.";
    return `${plural(depth, "layer")} of ${plural(heads, "head")}, the first layer at the top. Light patches get more attention. ${scale}${prefix ? ` The bar below a map is the attention that goes to ${prefixNames}.` : ""} Click a head to enlarge it.`;
  }

  // Everything that follows the pointer: the grid, the enlarged map and its numbers.
  redraw() {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    if (this.section.hidden || this.drawnTrace !== this.store.trace) return;
    const query = this.store.activeToken, rows_ = this.rows.get(query);
    this.currentRows = rows_;
    const [layer, head] = this.#selectedHead();
    this.attentionGrid.selected = [layer, head];
    this.attentionGrid.draw(rows_, state.get("scale", "own") === "all");
    this.note.textContent = this.rows.status(query);
    this.#showHead(rows_, layer, head);
  }

  #selectedHead() {
    const { depth, heads } = this.store.trace.meta;
    const within = (value, count, fallback) => (Number.isInteger(value) && value >= 0 && value < count ? value : fallback);
    return [within(state.number("layer"), depth, depth - 1), within(state.number("head"), heads, 0)];
  }

  // The attention weights of one head for the current query.
  row(layer, head, rows_ = this.currentRows) {
    const { heads, tokens } = this.store.trace.meta, start = rows_.first + (layer * heads + head) * rows_.step;
    return rows_.data.subarray(start, start + tokens);
  }

  #showHead(rows_, layer, head) {
    const { meta } = this.store.trace, row = this.row(layer, head, rows_), query = rows_.query;
    const [low, high] = this.attentionGrid.bounds ?? minMax(row, meta.prefix, row.length - meta.prefix);
    this.map.showHeatmap(row, { from: meta.prefix, low, high });
    const key = this.#key(row), patch = (token) => (token !== null && token >= meta.prefix ? token - meta.prefix : null);
    this.map.mark({ at: patch(query), marked: new Set(patch(key) === null ? [] : [patch(key)]) });
    this.title.textContent = `Layer ${layer}, head ${head}: what ${query === null ? this.#pooledPhrase(meta) : `${this.store.tokenName(query)} attends to`}`;
    if (!this.colorbarDrawn) drawHeatmap(this.colorbar, Float32Array.from({ length: 255 }, (_, index) => index), 1, 255), this.colorbarDrawn = true;
    this.ends[0].textContent = percent(low, 2);
    this.ends[1].textContent = percent(high, 2);
    this.#showStatistics(row, query);
  }

  #pooledPhrase({ pool, region }) {
    if (!region) return QUERY_PHRASES[pool];
    return `${this.store.poolingSource} ${region.bounds ? "attends to" : "attend to, on average"}`;
  }

  #showStatistics(row, query) {
    const { meta } = this.store.trace, entropy_ = entropy(row), distance_ = meanDistance(row, query, meta, this.store.model.stride);
    const lines = [];
    for (let token = 0; token < Math.min(meta.prefix, 5); token += 1) lines.push([`To ${this.store.tokenName(token)}`, percent(row[token])]);
    if (meta.prefix > 5) lines.push([`To the other ${meta.prefix - 5} registers`, percent(sum(row, 5, meta.prefix))]);
    lines.push([meta.prefix ? "To patches" : "To all patches", percent(sum(row, meta.prefix, row.length))],
      ["Entropy", `${entropy_.toFixed(3)} nats`, `of at most ${Math.log(row.length).toFixed(2)}: equal to uniform attention over ${Math.exp(entropy_).toFixed(1)} of ${row.length} tokens`],
      ["Distance", distance_ === null ? "none" : `${distance_.toFixed(1)} px`, distance_ === null ? "only a patch has a position in the image" : "mean distance to the patches, weighted by attention"]);
    this.stats.replaceChildren(...lines.flatMap(([name, value, text]) => [el("dt", {}, name), el("dd", {}, el("strong", {}, value), text ? el("span", { class: "soft" }, ` ${text}`) : null)]));
    const top = topTokens(row, 5);
    this.topTable.replaceChildren(el("caption", {}, "Largest weights"), el("tbody", {}, top.map((token) => el("tr", {},
      el("td", {}, this.store.tokenName(token)), el("td", { class: "number" }, percent(row[token], 2))))),
      el("tfoot", {}, el("tr", {}, el("td", {}, `sum of these, of ${row.length} tokens`), el("td", { class: "number" }, percent(top.reduce((all, token) => all + row[token], 0), 2)))));
  }

  // The key of the pair: the selected one, else the one with the largest weight.
  #key(row) {
    const key = state.number("key");
    return Number.isInteger(key) && key >= 0 && key < row.length ? key : topTokens(row, 1)[0];
  }

  #updatePair() {
    const { meta } = this.store.trace, pinned = state.number("query"), isPinned = Number.isInteger(pinned) && pinned >= 0 && pinned < meta.tokens;
    const query = isPinned ? pinned : meta.pool === "cls" ? 0 : null;
    if (api.standalone) return this.pair.show(null, "A saved page holds no queries and keys; start the studio to see them.");
    if (query === null) return this.pair.show(null, `The prediction is read from ${this.store.poolingSource}: select a query token above, or click a patch of the image, to see one query and one key.`);
    const [layer, head] = this.#selectedHead(), rows_ = this.rows.get(isPinned ? query : null);
    const { model, step, image } = this.store.requestParams();
    if (rows_.query !== (isPinned ? query : null)) return null; // its row is still loading
    return this.pair.show({ model, step, image, layer, head, query, key: this.#key(this.row(layer, head, rows_)) });
  }

  #hoverPatch(patch) {
    if (!this.store.trace) return;
    const token = patch === null ? null : patch + this.store.trace.meta.prefix;
    if (state.get("click_selects", "key") === "query") this.store.hover(token);
    this.patchInfo.textContent = token === null ? "" : this.#weightText(token);
  }

  #selectPatch(patch) {
    const token = patch + this.store.trace.meta.prefix;
    if (state.get("click_selects", "key") === "query") this.store.pin(token);
    else state.set({ key: state.number("key") === token ? null : token });
  }

  #weightText(token) {
    return `${percent(this.row(...this.#selectedHead())[token], 2)} to ${this.store.tokenName(token)}`;
  }

  #showHover(cell) {
    this.hoverInfo.textContent = cell && this.currentRows ? this.#headText(...cell) : "";
  }

  #headText(layer, head) {
    const { prefix } = this.store.trace.meta, row = this.row(layer, head), [top] = topTokens(row, 1);
    const prefixText = prefix ? `, ${percent(sum(row, 0, prefix), 0)} on prefix tokens` : "";
    return `Layer ${layer}, head ${head}: largest weight ${percent(row[top])} on ${this.store.tokenName(top)}${prefixText}, entropy ${entropy(row).toFixed(2)} nats`;
  }

  #pythonRows(more = "") {
    const query = this.store.activeToken;
    return [query === null ? `weights = vitrail.explain.pooled_attention(model, images${more})[:, 0]` : `weights = vitrail.explain.attention(model, images${more}, queries=[${query}])[:, 0, :, 0]`];
  }

  #pythonHead() {
    const [layer, head] = this.#selectedHead(), { prefix, grid: [rows, columns] } = this.store.trace.meta;
    return this.store.python(...this.#pythonRows(`, layers=[${layer}], heads=[${head}]`), "row = weights[0, 0]",
      `grid = row[${prefix}:].reshape(${rows}, ${columns})`, `prefix = row[:${prefix}]  # attention to the prefix tokens`,
      "entropy = torch.special.entr(row).sum()  # nats", "print(entropy, prefix, row.topk(5))");
  }

  #gridNumbers() {
    const { depth, heads, prefix, grid } = this.store.trace.meta;
    return { prefix, grid, weights: Array.from({ length: depth }, (_, layer) => Array.from({ length: heads }, (_head, head) => this.row(layer, head))) };
  }

  #headNumbers() {
    const [layer, head] = this.#selectedHead(), { prefix, grid } = this.store.trace.meta, row = this.row(layer, head), query = this.currentRows.query;
    return { layer, head, query, prefix, grid, weights: row, entropy: entropy(row), distance: meanDistance(row, query, this.store.trace.meta, this.store.model.stride) };
  }
}
