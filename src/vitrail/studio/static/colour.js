// Numbers as shades: the one ramp of the project, which lightness alone tells apart, and lines that colour-blind eyes can tell.

export const LINES = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5195", "#8c6d31"]; // Okabe and Ito 2008
const ramp = new Uint32Array(256); // 0xAABBGGRR, as ImageData holds it on every machine that runs a browser today

export function setRamp(shades) {
  for (let place = 0; place < 256; place += 1) {
    const [r, g, b] = shades[Math.min(place, shades.length - 1)];
    ramp[place] = (255 << 24) | (b << 16) | (g << 8) | r;
  }
}

// Values into pixels of an ImageData seen as 32-bit words; from `low` dark to `high` light. Where all are the same there is no dark: the middle.
export function paint(words, at, values, from, count, low, high) {
  const times = high > low ? 254 / (high - low) : 0, first = high > low ? 0 : 127;
  for (let place = 0; place < count; place += 1) {
    const shade = first + Math.round((values[from + place] - low) * times);
    words[at + place] = ramp[shade < 0 ? 0 : shade > 254 ? 254 : shade];
  }
}

// A grid of values on a canvas of exactly that many pixels; CSS enlarges it (class "pixels").
export function heat(canvas, values, rows, columns, { low, high, from = 0 } = {}) {
  const count = rows * columns;
  if (low === undefined || high === undefined) [low, high] = range(values, from, count);
  if (canvas.width !== columns || canvas.height !== rows) Object.assign(canvas, { width: columns, height: rows });
  const context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows);
  paint(new Uint32Array(image.data.buffer), 0, values, from, count, low, high);
  context.putImageData(image, 0, 0);
  return [low, high];
}

export function range(values, from = 0, count = values.length) {
  let low = Infinity, high = -Infinity;
  for (let place = from; place < from + count; place += 1) {
    if (values[place] < low) low = values[place];
    if (values[place] > high) high = values[place];
  }
  return [low, high];
}

export function css(value, low, high) {
  const share = high > low ? (value - low) / (high - low) : 0.5;
  const word = ramp[Math.max(0, Math.min(254, Math.round(share * 254)))];
  return `rgb(${word & 255} ${(word >> 8) & 255} ${(word >> 16) & 255})`;
}
