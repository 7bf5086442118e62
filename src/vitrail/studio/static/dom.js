// Elements in one call each. Text is always text, never markup.

const SVG = "http://www.w3.org/2000/svg";

export function el(tag, attributes = {}, ...children) {
  return dressed(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return dressed(document.createElementNS(SVG, tag), attributes, children);
}

// Attributes by name; functions are listeners (onclick), `style` is an object, `data` too; false, null and undefined are left out.
function dressed(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (typeof value === "function") made.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, one] of Object.entries(value)) made.style.setProperty(key, one);
    else if (name === "data") Object.assign(made.dataset, value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

// The same select for everybody: [value, words] pairs, and what to do with the chosen value.
export function select(label, options, chosen, onchange) {
  const box = el("select", { onchange: () => onchange(box.value) },
    options.map(([value, words]) => el("option", { value, selected: String(value) === String(chosen) }, words)));
  return el("label", { class: "field" }, el("span", {}, label), box);
}

export function button(words, onclick, attributes = {}) {
  return el("button", { type: "button", onclick, ...attributes }, words);
}

// What is above 0 is never written as 0: of a thousand classes most would be.
export function percent(share, digits = 1) {
  const words = (100 * share).toFixed(digits);
  return share > 0 && Number(words) === 0 ? `< ${(10 ** -digits).toFixed(digits)} %` : `${words} %`;
}

export function several(count, one, more = `${one}s`) {
  return `${count} ${count === 1 ? one : more}`;
}

// A number as people read it: 3 significant digits, thousands apart.
export function figure3(value) {
  if (!Number.isFinite(value)) return String(value);
  if (Number.isInteger(value)) return value.toLocaleString("en");
  const size = Math.abs(value);
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  return size !== 0 && size < 1e-3 ? value.toExponential(2) : String(Number(value.toPrecision(3)));
}

export function many(value, units = ["", "k", "M", "G", "T", "P"]) {
  let place = 0;
  while (Math.abs(value) >= 1000 && place < units.length - 1) [value, place] = [value / 1000, place + 1];
  return `${Number(value.toPrecision(3))}${units[place] ? ` ${units[place]}` : ""}`;
}

export function bytes(value) {
  let place = 0;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  while (value >= 1024 && place < units.length - 1) [value, place] = [value / 1024, place + 1];
  return `${Number(value.toPrecision(3))} ${units[place]}`;
}
