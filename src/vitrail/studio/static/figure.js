// A figure that can be taken away: as PNG, as SVG, as its numbers, and as the Python that makes them once more.

import { button, el } from "./dom.js";
import { say } from "./say.js";

// `python` and `numbers` are functions, called when somebody asks. Returns {root, body, caption}: fill the body.
export function figure(parent, { name, title, caption = "", python = null, numbers = null, level = 3 }) {
  const body = el("div", { class: "drawing" });
  const words = el("figcaption", {}, el("p", {}, caption));
  const code = el("pre", { class: "python", hidden: true, tabindex: "0", "aria-label": `Python for ${title}` });
  const tools = el("div", { class: "tools", role: "group", "aria-label": `Take away: ${title}` },
    button("PNG", () => taken(body, `${name}.png`, png)),
    button("SVG", () => taken(body, `${name}.svg`, async (place) => new Blob([composed(place)], { type: "image/svg+xml" }))),
    numbers && button("JSON", () => download(new Blob([JSON.stringify(numbers(), plain)], { type: "application/json" }), `${name}.json`)),
    python && button("Python", () => {
      code.hidden = !code.hidden;
      code.textContent = python();
      if (!code.hidden) copy(code.textContent);
    }, { title: "Python for this figure" }));
  const head = el("div", { class: "head" }, el(`h${level}`, {}, title), tools);
  const root = el("figure", { data: { figure: name } }, head, body, words, code);
  parent.append(root);
  return { root, body, caption: (text) => words.firstChild.replaceChildren(text) };
}

export function download(blob, name) {
  const link = el("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    say("Copied.");
  } catch {
    say("Select the text to copy it: the browser does not let the page do so.");
  }
}

async function taken(body, name, make) {
  try {
    download(await make(body), name);
  } catch (error) {
    say(error.message);
  }
}

function plain(_, value) {
  return ArrayBuffer.isView(value) ? Array.from(value) : value;
}

// Everything in the element as one SVG: canvases as pictures, drawings as they are, words where they stand.
export function composed(place) {
  const whole = place.getBoundingClientRect();
  const width = Math.max(Math.ceil(place.scrollWidth), 1), height = Math.max(Math.ceil(place.scrollHeight), 1);
  const sheet = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  for (const [key, value] of Object.entries({ width, height, viewBox: `0 0 ${width} ${height}` })) sheet.setAttribute(key, value);
  const paper = getComputedStyle(document.body);
  add(sheet, "rect", { width, height, fill: paper.backgroundColor });
  const at = (box) => ({ x: box.left - whole.left + place.scrollLeft, y: box.top - whole.top + place.scrollTop });
  const controls = ".field, select, .unseen, button:not(.bars button, .thumbs button, table button)"; // rows of bars are buttons, too, and belong to the figure
  for (const one of place.querySelectorAll("*:not(svg, svg *, canvas, img)")) { // bars and cells are boxes of a colour
    const box = one.getBoundingClientRect(), { backgroundColor: fill, borderRadius } = getComputedStyle(one);
    if (!box.width || one.closest(controls) || /^transparent$|, 0\)$|\/ 0\)$/.test(fill)) continue;
    add(sheet, "rect", { ...at(box), width: box.width, height: box.height, rx: parseFloat(borderRadius) || 0, fill });
  }
  for (const one of place.querySelectorAll("canvas, svg, img")) {
    const box = one.getBoundingClientRect();
    if (!box.width || one.parentElement.closest("svg")) continue;
    if (one.localName === "svg") sheet.append(dressed(one, { ...at(box), width: box.width, height: box.height }));
    else {
      const look = getComputedStyle(one).imageRendering;
      add(sheet, "image", { ...at(box), width: box.width, height: box.height, href: still(one), "image-rendering": look,
        preserveAspectRatio: "none", opacity: getComputedStyle(one).opacity });
    }
  }
  const walk = document.createTreeWalker(place, NodeFilter.SHOW_TEXT);
  for (let text = walk.nextNode(); text; text = walk.nextNode()) {
    if (!text.data.trim() || text.parentElement.closest(`svg, ${controls}`)) continue;
    const look = getComputedStyle(text.parentElement), up = look.writingMode.startsWith("vertical");
    for (const { words, box } of up ? [{ words: [text.data.trim()], box: text.parentElement.getBoundingClientRect() }] : broken(text)) {
      const { x, y } = at(box), where = up ? { transform: `translate(${x + box.width * 0.7} ${y + box.height}) rotate(-90)` } : { x, y: y + box.height * 0.78 };
      add(sheet, "text", { ...where, fill: look.color, "font-family": look.fontFamily, "font-size": look.fontSize,
        "font-weight": look.fontWeight }).textContent = words.join(" ");
    }
  }
  return new XMLSerializer().serializeToString(sheet);
}

// A text in the lines that it is broken into, since SVG breaks none.
function broken(text) {
  const lines = [], span = document.createRange();
  for (const { 0: word, index } of text.data.matchAll(/\S+/g)) {
    span.setStart(text, index);
    span.setEnd(text, index + word.length);
    const box = span.getBoundingClientRect();
    if (lines.length && Math.abs(lines.at(-1).box.top - box.top) < 2) lines.at(-1).words.push(word);
    else if (box.width) lines.push({ words: [word], box });
  }
  return lines;
}

function add(sheet, tag, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  sheet.append(made);
  return made;
}

function still(one) {
  if (one.localName === "canvas") return one.toDataURL("image/png");
  const canvas = el("canvas", { width: one.naturalWidth, height: one.naturalHeight });
  canvas.getContext("2d").drawImage(one, 0, 0);
  return canvas.toDataURL("image/png");
}

// A drawing with its style sheet's looks written into it, since a file has no style sheet.
function dressed(drawing, attributes) {
  const copy_ = drawing.cloneNode(true);
  const kept = ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "font-family", "font-size", "font-weight", "text-anchor", "visibility"];
  const from = [drawing, ...drawing.querySelectorAll("*")], to = [copy_, ...copy_.querySelectorAll("*")];
  from.forEach((one, place) => {
    const look = getComputedStyle(one);
    for (const name of kept) to[place].setAttribute(name, look.getPropertyValue(name));
  });
  for (const [key, value] of Object.entries(attributes)) copy_.setAttribute(key, value);
  return copy_;
}

async function png(place) {
  const source = composed(place);
  const image = new Image();
  const link = URL.createObjectURL(new Blob([source], { type: "image/svg+xml" }));
  try {
    await new Promise((done, failed) => {
      image.onload = done;
      image.onerror = () => failed(new Error("The browser could not draw this figure once more."));
      image.src = link;
    });
    const scale = 2, canvas = el("canvas", { width: image.width * scale, height: image.height * scale });
    const context = canvas.getContext("2d");
    context.scale(scale, scale);
    context.drawImage(image, 0, 0);
    return await new Promise((done) => canvas.toBlob(done, "image/png"));
  } finally {
    URL.revokeObjectURL(link);
  }
}
