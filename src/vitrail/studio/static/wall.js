// The wall of attention maps: a row a layer, a column a head, all on one canvas that is drawn anew while the mouse moves.

import { LINES, paint, range } from "./colour.js";
import { el } from "./dom.js";

const LEFT = 40, TOP = 34, GAP = 4, BAR = 4; // CSS pixels: room for labels, between maps, and for the bar below each map
const SMALLEST = 14, LARGEST = 84; // of a map's side

// onpick(layer, head), onlook(layer, head) or onlook(null); describe(layer, head) gives the words for who does not see it.
export class Wall {
  constructor({ label, onpick, onlook, describe }) {
    this.canvas = el("canvas", { "aria-hidden": "true" });
    this.words = el("span", { class: "unseen", "aria-live": "polite" });
    this.root = el("div", { class: "wall", tabindex: "0", role: "application", "aria-roledescription": "wall of attention maps",
      "aria-label": `${label} Arrow keys move over heads, Enter opens one.` }, this.canvas, this.words);
    Object.assign(this, { onpick, onlook, describe, at: null, chosen: null, seen: null });
    this.small = el("canvas"); // a pixel a patch
    this.root.addEventListener("pointermove", (event) => this.#look(this.#cell(event)));
    this.root.addEventListener("pointerleave", () => this.#look(null));
    this.root.addEventListener("click", (event) => {
      const cell = this.#cell(event);
      if (cell) this.onpick(...cell);
    });
    this.root.addEventListener("keydown", (event) => this.#key(event));
    this.root.addEventListener("focus", () => this.#focus(this.at ?? this.chosen ?? [0, 0], false));
    this.root.addEventListener("blur", () => this.#focus(null, false));
  }

  // The sizes of everything: the trace says how many maps there are, `width` and `height` how much room they may take.
  layout({ depth, heads, prefix, tokens, grid: [rows, columns] }, pixels, width, height) {
    const ratio = devicePixelRatio || 1, tall = pixels.shape[0] / pixels.shape[1], bar = prefix ? BAR + 1 : 0;
    let side = Math.min((width - LEFT) / heads - GAP, ((height - TOP) / depth - GAP - bar) / tall, LARGEST);
    const whole = side - (side % (columns / ratio)); // of the screen's pixels a patch, where that costs little room
    if (whole > 0.75 * side) side = whole;
    side = Math.max(side, SMALLEST);
    const high = side * tall, shape = { depth, heads, prefix, tokens, rows, columns, side, high, bar, ratio };
    const style = getComputedStyle(this.root);
    this.colours = Object.fromEntries(["ink", "soft", "line", "accent"].map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
    Object.assign(this, shape, { across: side + GAP, down: high + GAP + bar });
    const full = [LEFT + heads * this.across, TOP + depth * this.down];
    Object.assign(this.canvas, { width: Math.round(full[0] * ratio), height: Math.round(full[1] * ratio) });
    Object.assign(this.canvas.style, { width: `${full[0]}px`, height: `${full[1]}px` });
    Object.assign(this.small, { width: heads * columns, height: depth * rows });
    this.pen = this.canvas.getContext("2d");
    this.image = this.small.getContext("2d").createImageData(this.small.width, this.small.height);
    this.points = new Uint32Array(this.image.data.buffer);
    this.shares = new Float32Array(depth * heads);
    if (this.at && (this.at[0] >= depth || this.at[1] >= heads)) this.at = null;
  }

  // A row of weights a head: that of layer l and head h begins at first + (l * heads + h) * step of `data`.
  draw({ data, first, step }, together) {
    const start = performance.now();
    this.shown = [data, first, step, together];
    this.#fill(data, first, step, together ? this.#bounds(data, first, step) : null);
    this.small.getContext("2d").putImageData(this.image, 0, 0);
    this.#compose();
    document.body.dataset.wall = (performance.now() - start).toFixed(2); // a redraw must fit into a frame of 16 ms
  }

  // The lowest and the highest weight of a patch in all maps.
  #bounds(data, first, step) {
    let [low, high] = [Infinity, -Infinity];
    const patches = this.tokens - this.prefix;
    for (let map = 0; map < this.depth * this.heads; map += 1) {
      const [least, most] = range(data, first + map * step + this.prefix, patches);
      if (least < low) low = least;
      if (most > high) high = most;
    }
    return [low, high];
  }

  #fill(data, first, step, bounds) {
    const { depth, heads, prefix, rows, columns, points, shares } = this, wide = heads * columns;
    for (let map = 0; map < depth * heads; map += 1) {
      const begin = first + map * step, [low, high] = bounds ?? range(data, begin + prefix, rows * columns);
      const corner = Math.floor(map / heads) * rows * wide + (map % heads) * columns;
      for (let row = 0; row < rows; row += 1) paint(points, corner + row * wide, data, begin + prefix + row * columns, columns, low, high);
      let share = 0;
      for (let token = 0; token < prefix; token += 1) share += data[begin + token];
      shares[map] = share;
    }
    this.bounds = bounds;
  }

  #compose() {
    const { pen, ratio, depth, heads, rows, columns, side, high, colours } = this;
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, this.canvas.width, this.canvas.height);
    pen.imageSmoothingEnabled = false;
    this.#labels();
    for (let map = 0; map < depth * heads; map += 1) {
      const layer = Math.floor(map / heads), head = map % heads, x = LEFT + head * this.across, y = TOP + layer * this.down;
      pen.drawImage(this.small, head * columns, layer * rows, columns, rows, x, y, side, high);
      if (!this.prefix) continue;
      pen.fillStyle = colours.line;
      pen.fillRect(x, y + high + 1, side, BAR - 1);
      pen.fillStyle = LINES[1];
      pen.fillRect(x, y + high + 1, side * this.shares[map], BAR - 1);
    }
    if (this.chosen) this.#edge(this.chosen, colours.accent, 3);
    if (this.at) this.#edge(this.at, colours.ink, 2);
  }

  #labels() {
    const { pen, colours, depth, heads, side, high } = this;
    pen.fillStyle = colours.soft;
    pen.font = "12px system-ui, sans-serif";
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    pen.fillText("head", LEFT + (heads * this.across - GAP) / 2, 8);
    for (let head = 0; head < heads; head += side < 16 ? 2 : 1) pen.fillText(String(head), LEFT + head * this.across + side / 2, 24);
    for (let layer = 0; layer < depth; layer += this.down < 14 ? 2 : 1) pen.fillText(String(layer), LEFT - 13, TOP + layer * this.down + high / 2);
    pen.save();
    pen.translate(8, TOP + (depth * this.down - GAP) / 2);
    pen.rotate(-Math.PI / 2);
    pen.fillText("layer", 0, 0);
    pen.restore();
  }

  #edge([layer, head], colour, size) {
    this.pen.strokeStyle = colour;
    this.pen.lineWidth = size;
    this.pen.strokeRect(LEFT + head * this.across - 1, TOP + layer * this.down - 1, this.side + 2, this.high + 2 + this.bar);
  }

  #cell(event) {
    const box = this.canvas.getBoundingClientRect();
    const head = Math.floor((event.clientX - box.left - LEFT) / this.across), layer = Math.floor((event.clientY - box.top - TOP) / this.down);
    return head >= 0 && layer >= 0 && head < this.heads && layer < this.depth ? [layer, head] : null;
  }

  #look(cell) {
    if (String(cell) === String(this.seen)) return;
    this.seen = cell;
    this.root.classList.toggle("hit", Boolean(cell));
    this.onlook(cell);
  }

  // The head that the arrow keys are at; `spoken` when it has moved there.
  #focus(cell, spoken = true) {
    this.at = cell;
    if (this.shown) this.#compose();
    this.onlook(cell);
    if (spoken && cell) this.words.textContent = this.describe(...cell);
  }

  #key(event) {
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0], Home: [-Infinity, -Infinity], End: [Infinity, Infinity] };
    const within = (value, count) => Math.max(0, Math.min(count - 1, value));
    const [layer, head] = this.at ?? this.chosen ?? [0, 0];
    if (moves[event.key]) this.#focus([within(layer + moves[event.key][0], this.depth), within(head + moves[event.key][1], this.heads)]);
    else if (event.key === "Enter" || event.key === " ") this.onpick(layer, head);
    else return;
    event.preventDefault();
  }
}
