// A figure with downloads: PNG, SVG, its numbers as JSON, and the Python code that reproduces them.

import { button, el } from "./dom.js";
import { toast } from "./toast.js";

// `python` and `numbers` are functions, called on demand. Returns {root, body, caption}: the caller fills the body.
export function figure(parent, { name, title, caption = "", python = null, numbers = null, level = 3 }) {
  const body = el("div", { class: "drawing" });
  const figcaption = el("figcaption", {}, el("p", {}, caption));
  const code = el("pre", { class: "python", hidden: true, tabindex: "0", "aria-label": `Python for ${title}` });
  const tools = el("div", { class: "tools", role: "group", "aria-label": `Download: ${title}` },
    button("PNG", () => saveFigure(body, `${name}.png`, png)),
    button("SVG", () => saveFigure(body, `${name}.svg`, async (root) => new Blob([composeSvg(root)], { type: "image/svg+xml" }))),
    numbers && button("JSON", () => download(new Blob([JSON.stringify(numbers(), jsonReplacer)], { type: "application/json" }), `${name}.json`)),
    python && button("Python", () => {
      code.hidden = !code.hidden;
      code.textContent = python();
      if (!code.hidden) copy(code.textContent);
    }, { title: "Python for this figure" }));
  const head = el("div", { class: "head" }, el(`h${level}`, {}, title), tools);
  const root = el("figure", { data: { figure: name } }, head, body, figcaption, code);
  parent.append(root);
  return { root, body, caption: (text) => figcaption.firstChild.replaceChildren(text) };
}

export function download(blob, name) {
  const link = el("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    toast("Copied.");
  } catch {
    toast("The browser does not allow copying; select the text to copy it.");
  }
}

async function saveFigure(body, name, make) {
  try {
    download(await make(body), name);
  } catch (error) {
    toast(error.message);
  }
}

function jsonReplacer(_, value) {
  return ArrayBuffer.isView(value) ? Array.from(value) : value;
}

// Everything in the element as one SVG: canvases as images, drawings as they are, text at its position.
function composeSvg(root) {
  const bounds = root.getBoundingClientRect();
  const width = Math.max(Math.ceil(root.scrollWidth), 1), height = Math.max(Math.ceil(root.scrollHeight), 1);
  const sheet = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  for (const [key, value] of Object.entries({ width, height, viewBox: `0 0 ${width} ${height}` })) sheet.setAttribute(key, value);
  const paper = getComputedStyle(document.body);
  add(sheet, "rect", { width, height, fill: paper.backgroundColor });
  const at = (box) => ({ x: box.left - bounds.left + root.scrollLeft, y: box.top - bounds.top + root.scrollTop });
  const controls = ".field, select, .visually-hidden, button:not(.bars button, .thumbs button, table button)"; // rows of bars are buttons that belong to the figure
  for (const one of root.querySelectorAll("*:not(svg, svg *, canvas, img)")) { // bars and cells are coloured boxes
    const box = one.getBoundingClientRect(), { backgroundColor: fill, borderRadius } = getComputedStyle(one);
    if (!box.width || one.closest(controls) || /^transparent$|, 0\)$|\/ 0\)$/.test(fill)) continue;
    add(sheet, "rect", { ...at(box), width: box.width, height: box.height, rx: parseFloat(borderRadius) || 0, fill });
  }
  for (const one of root.querySelectorAll("canvas, svg, img")) {
    const box = one.getBoundingClientRect();
    if (!box.width || one.parentElement.closest("svg")) continue;
    if (one.localName === "svg") sheet.append(withInlineStyles(one, { ...at(box), width: box.width, height: box.height }));
    else {
      const style = getComputedStyle(one).imageRendering;
      add(sheet, "image", { ...at(box), width: box.width, height: box.height, href: toDataUrl(one), "image-rendering": style,
        preserveAspectRatio: "none", opacity: getComputedStyle(one).opacity });
    }
  }
  const walk = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  for (let text = walk.nextNode(); text; text = walk.nextNode()) {
    if (!text.data.trim() || text.parentElement.closest(`svg, ${controls}`)) continue;
    const style = getComputedStyle(text.parentElement), vertical = style.writingMode.startsWith("vertical");
    for (const { words, box } of vertical ? [{ words: [text.data.trim()], box: text.parentElement.getBoundingClientRect() }] : textLines(text)) {
      const { x, y } = at(box), position = vertical ? { transform: `translate(${x + box.width * 0.7} ${y + box.height}) rotate(-90)` } : { x, y: y + box.height * 0.78 };
      add(sheet, "text", { ...position, fill: style.color, "font-family": style.fontFamily, "font-size": style.fontSize,
        "font-weight": style.fontWeight }).textContent = words.join(" ");
    }
  }
  return new XMLSerializer().serializeToString(sheet);
}

// A text node split into its rendered lines, since SVG does not wrap text.
function textLines(text) {
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
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  sheet.append(node);
  return node;
}

function toDataUrl(one) {
  if (one.localName === "canvas") return one.toDataURL("image/png");
  const canvas = el("canvas", { width: one.naturalWidth, height: one.naturalHeight });
  canvas.getContext("2d").drawImage(one, 0, 0);
  return canvas.toDataURL("image/png");
}

// A copy of a drawing with its computed styles inlined, since a file has no style sheet.
function withInlineStyles(drawing, attributes) {
  const clone = drawing.cloneNode(true);
  const properties = ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "font-family", "font-size", "font-weight", "text-anchor", "visibility"];
  const from = [drawing, ...drawing.querySelectorAll("*")], to = [clone, ...clone.querySelectorAll("*")];
  from.forEach((one, index) => {
    const style = getComputedStyle(one);
    for (const name of properties) to[index].setAttribute(name, style.getPropertyValue(name));
  });
  for (const [key, value] of Object.entries(attributes)) clone.setAttribute(key, value);
  return clone;
}

async function png(root) {
  const source = composeSvg(root);
  const image = new Image();
  const link = URL.createObjectURL(new Blob([source], { type: "image/svg+xml" }));
  try {
    await new Promise((done, failed) => {
      image.onload = done;
      image.onerror = () => failed(new Error("The browser could not render this figure."));
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
