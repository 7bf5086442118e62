// Create elements in one call. Text is always text, never markup.

const SVG = "http://www.w3.org/2000/svg";

export function el(tag, attributes = {}, ...children) {
  return withAttributes(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return withAttributes(document.createElementNS(SVG, tag), attributes, children);
}

// Set attributes by name; functions are listeners (onclick), `style` and `data` are objects; false, null and undefined are skipped.
function withAttributes(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, one] of Object.entries(value)) element.style.setProperty(key, one);
    else if (name === "data") Object.assign(element.dataset, value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

// A labelled select of [value, text] pairs; onchange gets the selected value.
export function select(label, options, selected, onchange) {
  const box = el("select", { onchange: () => onchange(box.value) },
    options.map(([value, text]) => el("option", { value, selected: String(value) === String(selected) }, text)));
  return el("label", { class: "field" }, el("span", {}, label), box);
}

export function button(text, onclick, attributes = {}) {
  return el("button", { type: "button", onclick, ...attributes }, text);
}

// A value above 0 is never written as 0: with a thousand classes most would be.
export function percent(fraction, digits = 1) {
  const text = (100 * fraction).toFixed(digits);
  return fraction > 0 && Number(text) === 0 ? `< ${(10 ** -digits).toFixed(digits)} %` : `${text} %`;
}

export function plural(count, one, more = `${one}s`) {
  return `${count} ${count === 1 ? one : more}`;
}

// A number with 3 significant digits and thousands separators.
export function formatNumber(value) {
  if (!Number.isFinite(value)) return String(value);
  if (Number.isInteger(value)) return value.toLocaleString("en");
  const size = Math.abs(value);
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  return size !== 0 && size < 1e-3 ? value.toExponential(2) : String(Number(value.toPrecision(3)));
}

export function formatSI(value, units = ["", "k", "M", "G", "T", "P"]) {
  let unit = 0;
  while (Math.abs(value) >= 1000 && unit < units.length - 1) [value, unit] = [value / 1000, unit + 1];
  return `${Number(value.toPrecision(3))}${units[unit] ? ` ${units[unit]}` : ""}`;
}

export function formatBytes(value) {
  let unit = 0;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  while (value >= 1024 && unit < units.length - 1) [value, unit] = [value / 1024, unit + 1];
  return `${Number(value.toPrecision(3))} ${units[unit]}`;
}
