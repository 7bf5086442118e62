// The colormap of the project, monotonic in lightness, and line colours that are safe for colour-blind readers.

export const LINE_COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5195", "#8c6d31"]; // Okabe and Ito 2008
const colormap = new Uint32Array(256); // 0xAABBGGRR, the byte order of ImageData on little-endian machines

export function setColormap(colours) {
  for (let index = 0; index < 256; index += 1) {
    const [r, g, b] = colours[Math.min(index, colours.length - 1)];
    colormap[index] = (255 << 24) | (b << 16) | (g << 8) | r;
  }
}

// Write values as pixels of an ImageData viewed as 32-bit integers, from `low` (dark) to `high` (light); constant values get the middle colour.
export function paintValues(pixels, at, values, from, count, low, high) {
  const scale = high > low ? 254 / (high - low) : 0, base = high > low ? 0 : 127;
  for (let index = 0; index < count; index += 1) {
    const level = base + Math.round((values[from + index] - low) * scale);
    pixels[at + index] = colormap[level < 0 ? 0 : level > 254 ? 254 : level];
  }
}

// Draw a grid of values on a canvas of exactly that many pixels; CSS enlarges it (class "pixels").
export function drawHeatmap(canvas, values, rows, columns, { low, high, from = 0 } = {}) {
  const count = rows * columns;
  if (low === undefined || high === undefined) [low, high] = minMax(values, from, count);
  if (canvas.width !== columns || canvas.height !== rows) Object.assign(canvas, { width: columns, height: rows });
  const context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows);
  paintValues(new Uint32Array(image.data.buffer), 0, values, from, count, low, high);
  context.putImageData(image, 0, 0);
  return [low, high];
}

export function minMax(values, from = 0, count = values.length) {
  let low = Infinity, high = -Infinity;
  for (let index = from; index < from + count; index += 1) {
    if (values[index] < low) low = values[index];
    if (values[index] > high) high = values[index];
  }
  return [low, high];
}

export function cssColour(value, low, high) {
  const fraction = high > low ? (value - low) / (high - low) : 0.5;
  const colour = colormap[Math.max(0, Math.min(254, Math.round(fraction * 254)))];
  return `rgb(${colour & 255} ${(colour >> 8) & 255} ${(colour >> 16) & 255})`;
}
