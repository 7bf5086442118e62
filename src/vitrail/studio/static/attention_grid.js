// The grid of attention maps: one row per layer, one column per head, on one canvas that is redrawn while the pointer moves.

import { LINE_COLOURS, paintValues, minMax } from "./colormap.js";
import { el } from "./dom.js";

const LEFT = 40, TOP = 34, GAP = 4, BAR = 4; // CSS pixels: space for labels, between maps, and for the bar below each map
const SMALLEST = 14, LARGEST = 84; // side of a map, CSS pixels

// onpick(layer, head), onhover([layer, head]) or onhover(null); describe(layer, head) returns the text for screen readers.
export class AttentionGrid {
  constructor({ label, onpick, onhover, describe }) {
    this.canvas = el("canvas", { "aria-hidden": "true" });
    this.announcement = el("span", { class: "visually-hidden", "aria-live": "polite" });
    this.root = el("div", { class: "attention-grid", tabindex: "0", role: "application", "aria-roledescription": "grid of attention maps",
      "aria-label": `${label} Arrow keys move over heads, Enter opens one.` }, this.canvas, this.announcement);
    Object.assign(this, { onpick, onhover, describe, at: null, selected: null, hovered: null });
    this.small = el("canvas"); // one pixel per patch
    this.root.addEventListener("pointermove", (event) => this.#hover(this.#cell(event)));
    this.root.addEventListener("pointerleave", () => this.#hover(null));
    this.root.addEventListener("click", (event) => {
      const cell = this.#cell(event);
      if (cell) this.onpick(...cell);
    });
    this.root.addEventListener("keydown", (event) => this.#key(event));
    this.root.addEventListener("focus", () => this.#focus(this.at ?? this.selected ?? [0, 0], false));
    this.root.addEventListener("blur", () => this.#focus(null, false));
  }

  // Compute all sizes: the trace gives the number of maps, `width` and `height` the available space.
  layout({ depth, heads, prefix, tokens, grid: [rows, columns] }, pixels, width, height) {
    const ratio = devicePixelRatio || 1, tall = pixels.shape[0] / pixels.shape[1], bar = prefix ? BAR + 1 : 0;
    let side = Math.min((width - LEFT) / heads - GAP, ((height - TOP) / depth - GAP - bar) / tall, LARGEST);
    const snapped = side - (side % (columns / ratio)); // a whole number of screen pixels per patch, if that costs little space
    if (snapped > 0.75 * side) side = snapped;
    side = Math.max(side, SMALLEST);
    const high = side * tall, shape = { depth, heads, prefix, tokens, rows, columns, side, high, bar, ratio };
    const style = getComputedStyle(this.root);
    this.colours = Object.fromEntries(["ink", "soft", "line", "accent"].map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
    Object.assign(this, shape, { across: side + GAP, down: high + GAP + bar });
    const canvasSize = [LEFT + heads * this.across, TOP + depth * this.down];
    Object.assign(this.canvas, { width: Math.round(canvasSize[0] * ratio), height: Math.round(canvasSize[1] * ratio) });
    Object.assign(this.canvas.style, { width: `${canvasSize[0]}px`, height: `${canvasSize[1]}px` });
    Object.assign(this.small, { width: heads * columns, height: depth * rows });
    this.context = this.canvas.getContext("2d");
    this.image = this.small.getContext("2d").createImageData(this.small.width, this.small.height);
    this.points = new Uint32Array(this.image.data.buffer);
    this.prefixWeights = new Float32Array(depth * heads);
    if (this.at && (this.at[0] >= depth || this.at[1] >= heads)) this.at = null;
  }

  // One row of weights per head: that of layer l and head h starts at first + (l * heads + h) * step of `data`.
  draw({ data, first, step }, sharedScale) {
    const start = performance.now();
    this.drawnRows = [data, first, step, sharedScale];
    this.#fill(data, first, step, sharedScale ? this.#bounds(data, first, step) : null);
    this.small.getContext("2d").putImageData(this.image, 0, 0);
    this.#compose();
    document.body.dataset.redrawMs = (performance.now() - start).toFixed(2); // a redraw must fit into a 16 ms frame
  }

  // The lowest and the highest patch weight over all maps.
  #bounds(data, first, step) {
    let [low, high] = [Infinity, -Infinity];
    const patches = this.tokens - this.prefix;
    for (let map = 0; map < this.depth * this.heads; map += 1) {
      const [low_, high_] = minMax(data, first + map * step + this.prefix, patches);
      if (low_ < low) low = low_;
      if (high_ > high) high = high_;
    }
    return [low, high];
  }

  #fill(data, first, step, bounds) {
    const { depth, heads, prefix, rows, columns, points, prefixWeights } = this, wide = heads * columns;
    for (let map = 0; map < depth * heads; map += 1) {
      const begin = first + map * step, [low, high] = bounds ?? minMax(data, begin + prefix, rows * columns);
      const corner = Math.floor(map / heads) * rows * wide + (map % heads) * columns;
      for (let row = 0; row < rows; row += 1) paintValues(points, corner + row * wide, data, begin + prefix + row * columns, columns, low, high);
      let prefixWeight = 0;
      for (let token = 0; token < prefix; token += 1) prefixWeight += data[begin + token];
      prefixWeights[map] = prefixWeight;
    }
    this.bounds = bounds;
  }

  #compose() {
    const { context, ratio, depth, heads, rows, columns, side, high, colours } = this;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    context.imageSmoothingEnabled = false;
    this.#labels();
    for (let map = 0; map < depth * heads; map += 1) {
      const layer = Math.floor(map / heads), head = map % heads, x = LEFT + head * this.across, y = TOP + layer * this.down;
      context.drawImage(this.small, head * columns, layer * rows, columns, rows, x, y, side, high);
      if (!this.prefix) continue;
      context.fillStyle = colours.line;
      context.fillRect(x, y + high + 1, side, BAR - 1);
      context.fillStyle = LINE_COLOURS[1];
      context.fillRect(x, y + high + 1, side * this.prefixWeights[map], BAR - 1);
    }
    if (this.selected) this.#edge(this.selected, colours.accent, 3);
    if (this.at) this.#edge(this.at, colours.ink, 2);
  }

  #labels() {
    const { context, colours, depth, heads, side, high } = this;
    context.fillStyle = colours.soft;
    context.font = "12px system-ui, sans-serif";
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.fillText("head", LEFT + (heads * this.across - GAP) / 2, 8);
    for (let head = 0; head < heads; head += side < 16 ? 2 : 1) context.fillText(String(head), LEFT + head * this.across + side / 2, 24);
    for (let layer = 0; layer < depth; layer += this.down < 14 ? 2 : 1) context.fillText(String(layer), LEFT - 13, TOP + layer * this.down + high / 2);
    context.save();
    context.translate(8, TOP + (depth * this.down - GAP) / 2);
    context.rotate(-Math.PI / 2);
    context.fillText("layer", 0, 0);
    context.restore();
  }

  #edge([layer, head], colour, size) {
    this.context.strokeStyle = colour;
    this.context.lineWidth = size;
    this.context.strokeRect(LEFT + head * this.across - 1, TOP + layer * this.down - 1, this.side + 2, this.high + 2 + this.bar);
  }

  #cell(event) {
    const box = this.canvas.getBoundingClientRect();
    const head = Math.floor((event.clientX - box.left - LEFT) / this.across), layer = Math.floor((event.clientY - box.top - TOP) / this.down);
    return head >= 0 && layer >= 0 && head < this.heads && layer < this.depth ? [layer, head] : null;
  }

  #hover(cell) {
    if (String(cell) === String(this.hovered)) return;
    this.hovered = cell;
    this.root.classList.toggle("hovering", Boolean(cell));
    this.onhover(cell);
  }

  // The head that the keyboard is on; `announce`: announce it to screen readers.
  #focus(cell, announce = true) {
    this.at = cell;
    if (this.drawnRows) this.#compose();
    this.onhover(cell);
    if (announce && cell) this.announcement.textContent = this.describe(...cell);
  }

  #key(event) {
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0], Home: [-Infinity, -Infinity], End: [Infinity, Infinity] };
    const within = (value, count) => Math.max(0, Math.min(count - 1, value));
    const [layer, head] = this.at ?? this.selected ?? [0, 0];
    if (moves[event.key]) this.#focus([within(layer + moves[event.key][0], this.depth), within(head + moves[event.key][1], this.heads)]);
    else if (event.key === "Enter" || event.key === " ") this.onpick(layer, head);
    else return;
    event.preventDefault();
  }
}
