// The model's input image with its patch grid: hover, click, or move over it with the arrow keys.

import { drawHeatmap } from "./colormap.js";
import { el } from "./dom.js";

// Draw an array of pixels on a canvas of the same size.
export function drawPixels(canvas, { shape: [height, width, channels], data }) {
  Object.assign(canvas, { width, height });
  const context = canvas.getContext("2d"), image = context.createImageData(width, height);
  for (let index = 0; index < width * height; index += 1) {
    for (let channel = 0; channel < 3; channel += 1) image.data[4 * index + channel] = data[channels * index + (channels === 1 ? 0 : channel)];
    image.data[4 * index + 3] = 255;
  }
  context.putImageData(image, 0, 0);
}

const SMALLEST_MARK = 9; // CSS pixels of the box around the active patch, which may be a single pixel

// label: for screen readers. onhover(patch | null), onpick(patch): patches are numbered row by row, from 0. `stride`: how far Shift and an arrow move.
export class PatchGrid {
  constructor({ label, unit = "patches", onhover = () => {}, onpick = () => {}, describe = (patch) => `patch ${patch}`, lines = true }) {
    this.canvas = el("canvas", { class: "pixels below", "aria-hidden": "true" });
    this.over = el("canvas", { class: "pixels over", "aria-hidden": "true" });
    this.lines = el("canvas", { class: "lines", "aria-hidden": "true" });
    this.announcement = el("span", { class: "visually-hidden", "aria-live": "polite" });
    this.root = el("div", { class: "patch-grid", tabindex: "0", role: "application", "aria-roledescription": `grid of ${unit}`, "aria-label": `${label}. Arrow keys move over ${unit}, Enter selects.` },
      this.canvas, this.over, this.lines, this.announcement);
    Object.assign(this, { onhover, onpick, describe, hasLines: lines, stride: [1, 1], rows: 1, columns: 1, at: null, marked: new Set(), pixels: null, bounds: null });
    this.root.addEventListener("pointermove", (event) => this.#hover(this.#patch(event)));
    this.root.addEventListener("pointerleave", () => this.#hover(null));
    this.root.addEventListener("click", (event) => this.onpick(this.#patch(event)));
    this.root.addEventListener("keydown", (event) => this.#key(event));
    this.root.addEventListener("blur", () => this.#hover(null));
    new ResizeObserver(() => this.mark()).observe(this.root);
  }

  // Show an image: `pixels` is the trace's array, `grid` its rows and columns; `bounds` of a box that is framed, in pixels.
  show(pixels, [rows, columns], bounds = null) {
    if (this.pixels !== pixels) drawPixels(this.canvas, pixels);
    Object.assign(this, { pixels, rows, columns, bounds });
    this.root.style.aspectRatio = `${pixels.shape[1]} / ${pixels.shape[0]}`;
    if (this.at !== null && this.at >= rows * columns) this.at = null;
    this.mark();
  }

  // Overlay a heatmap of one value per patch; null removes it.
  showHeatmap(values, { from = 0, low, high, opacity = 0.75 } = {}) {
    this.over.hidden = !values;
    if (!values) return;
    drawHeatmap(this.over, values, this.rows, this.columns, { from, low, high });
    this.over.style.opacity = opacity;
  }

  // Draw the grid lines, the active patch, and the marked ones.
  mark({ at = this.at, marked = this.marked } = {}) {
    Object.assign(this, { at, marked });
    const box = this.root.getBoundingClientRect(), ratio = devicePixelRatio || 1;
    const width = Math.round(box.width * ratio), height = Math.round(box.height * ratio);
    if (!width || !height) return;
    Object.assign(this.lines, { width, height });
    const context = this.lines.getContext("2d"), across = width / this.columns, down = height / this.rows;
    context.strokeStyle = "rgb(255 255 255 / .35)";
    context.lineWidth = Math.max(1, ratio / 2);
    context.beginPath();
    for (let column = 1; this.hasLines && column < this.columns; column += 1) context.moveTo(column * across, 0), context.lineTo(column * across, height);
    for (let row = 1; this.hasLines && row < this.rows; row += 1) context.moveTo(0, row * down), context.lineTo(width, row * down);
    context.stroke();
    const edge = (patch, colour, size) => {
      context.strokeStyle = colour;
      context.lineWidth = size * ratio;
      const x = (patch % this.columns) * across, y = Math.floor(patch / this.columns) * down;
      const moreX = Math.max(0, SMALLEST_MARK * ratio - across) / 2, moreY = Math.max(0, SMALLEST_MARK * ratio - down) / 2;
      context.strokeRect(x + size * ratio / 2 - moreX, y + size * ratio / 2 - moreY, across - size * ratio + 2 * moreX, down - size * ratio + 2 * moreY);
    };
    if (this.bounds) {
      const [high, wide] = this.pixels.shape, [left, top, right, bottom] = this.bounds, frame = [(left / wide) * width, (top / high) * height, ((right - left) / wide) * width, ((bottom - top) / high) * height];
      for (const [colour, size, dashes] of [["#000", 3, []], ["#fff", 1.5, [6 * ratio, 3 * ratio]]]) {
        Object.assign(context, { strokeStyle: colour, lineWidth: size * ratio });
        context.setLineDash(dashes);
        context.strokeRect(...frame);
      }
      context.setLineDash([]);
    }
    for (const patch of marked) edge(patch, "#56b4e9", 2);
    if (at !== null) edge(at, "#000", 4), edge(at, "#fff", 2);
  }

  #patch(event) {
    const box = this.root.getBoundingClientRect();
    const column = Math.floor(((event.clientX - box.left) / box.width) * this.columns), row = Math.floor(((event.clientY - box.top) / box.height) * this.rows);
    return Math.max(0, Math.min(this.rows - 1, row)) * this.columns + Math.max(0, Math.min(this.columns - 1, column));
  }

  #hover(patch) {
    if (patch === this.hovered) return;
    this.hovered = patch;
    this.onhover(patch);
  }

  #key(event) {
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    const from = this.hovered ?? this.at ?? 0;
    if (moves[event.key]) {
      const [down, across] = event.shiftKey ? this.stride : [1, 1];
      const row = Math.floor(from / this.columns) + down * moves[event.key][0], column = (from % this.columns) + across * moves[event.key][1];
      const none = (this.hovered ?? this.at) === null;
      const next = none ? 0 : Math.max(0, Math.min(this.rows - 1, row)) * this.columns + Math.max(0, Math.min(this.columns - 1, column));
      this.#hover(next);
      this.announcement.textContent = this.describe(next);
    } else if (event.key === "Enter" || event.key === " ") this.onpick(from);
    else if (event.key === "Escape") this.#hover(null);
    else return;
    event.preventDefault();
  }
}
