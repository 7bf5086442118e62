// The picture: choose one, and see what is made of it before the model takes it.

import { button, el, figure3, percent, select, several, svg } from "./dom.js";
import { figure } from "./figure.js";
import { picture as painted } from "./grid.js";
import * as net from "./net.js";
import { say, told } from "./say.js";
import * as state from "./state.js";
import { studio as shared } from "./studio.js";

const PAGE = 24; // thumbnails at a time
const BINS = 32; // of a histogram: 8 of the 256 values each
const UPLOADED = { id: "uploads", title: "uploaded", splits: [{ name: "all" }] };

export default {
  name: "picture", title: "Picture", glyph: "◧",
  lead: "Any picture will do, also one that the model was never meant for. Before the model sees it, it is brought to one size and turned into numbers.",
  thumb(canvas, studio) {
    small(canvas, studio.trace.arrays.pixels);
  },
  build(section, studio) {
    const choose = net.alone ? null : chooser(section, studio);
    if (net.alone) section.append(el("p", { class: "soft" }, "This page is a saved copy and shows one picture; start the studio to choose another."));
    const show = pipeline(section, studio);
    return { draw(why) { if (why !== "point") { show(); return choose?.(); } } };
  },
};

// What the channels of a picture are called.
export function channelNames(count) {
  return { 1: ["grey"], 3: ["red", "green", "blue"] }[count] ?? Array.from({ length: count }, (_, channel) => `channel ${channel}`);
}

// What the model takes for a value from 0 to 255.
export function normalised(value, channel, { mean, std }) {
  return (value / 255 - mean[channel]) / std[channel];
}

// The model's pixels on a small square canvas, the rest of it left empty.
export function small(canvas, pixels, side = 96) {
  const whole = el("canvas");
  painted(whole, pixels);
  Object.assign(canvas, { width: side, height: side });
  const scale = side / Math.max(whole.width, whole.height), width = whole.width * scale, height = whole.height * scale;
  const context = canvas.getContext("2d");
  context.imageSmoothingEnabled = scale < 1;
  context.imageSmoothingQuality = "high";
  context.drawImage(whole, (side - width) / 2, (side - height) / 2, width, height);
  return { left: (side - width) / 2, top: (side - height) / 2, width, height, context };
}

// --- choosing

function chooser(section, studio) {
  const album = select("From", [], null, (id) => state.set({ album: id, split: null, from: null }));
  const split = select("Split", [], null, (name) => state.set({ split: name, album: place(studio).album.id, from: null }));
  const start = el("input", { type: "number", min: 1, "aria-label": "Number of the first picture shown", onchange: () => turn(Number(start.value) - 1) });
  const [earlier, later] = [button("‹ Earlier", () => turn(place(studio).from - PAGE)), button("Later ›", () => turn(place(studio).from + PAGE))];
  const count = el("span", { class: "soft" }), find = button("Show the chosen one", () => state.set({ album: null, split: null, from: null }));
  const file = el("input", { type: "file", accept: "image/*", hidden: true, onchange: () => { take([...file.files]); file.value = ""; } });
  const shelf = el("div", { class: "shelf", role: "group", "aria-label": "Pictures to choose from", onkeydown: walk });
  section.append(el("div", { class: "chooser" },
    el("div", { class: "controls" }, el("h2", {}, "Choose a picture"), button("Upload a file …", () => file.click()), file,
      el("span", { class: "soft" }, "or drop one anywhere on this page, or paste one. It goes to the studio on this machine and nowhere else.")),
    el("div", { class: "controls" }, album, split, el("span", { class: "pager" }, earlier, start, count, later), find),
    shelf));
  let shown = "", total = 0;

  function turn(from) {
    const here = place(studio);
    state.set({ album: here.album.id, split: here.split, from: Math.max(0, Math.min(from, total - 1)) || null });
  }

  function marked() {
    const chosen = state.get("picture");
    for (const one of shelf.querySelectorAll("button")) one.setAttribute("aria-pressed", String(one.dataset.picture === chosen));
    find.hidden = Boolean(shelf.querySelector('[aria-pressed="true"]'));
  }

  // A data set that is being opened is looked for again until it is there.
  async function awaited() {
    studio.facts.albums = await net.json("api/albums").catch(() => studio.facts.albums);
    shown = "";
    if (!section.hidden) fill();
  }

  return fill;

  async function fill() {
    const here = place(studio), question = [here.album.id, here.split, here.from, here.album.id === "uploads" ? state.get("picture") : ""].join(" ");
    filled(album, known(studio).map((one) => [one.id, one.title]), here.album.id);
    filled(split, here.album.splits.map((one) => [one.name, one.name]), here.split);
    split.hidden = here.album.splits.length < 2;
    if (question === shown) return marked();
    shown = question;
    let page = { total: 0, pictures: [] }, problem = here.album.problem;
    try {
      if (!problem) page = await net.json("api/pictures", { album: here.album.id, split: here.split, from: here.from, count: PAGE });
    } catch (error) {
      problem = error.message;
    }
    if (question !== shown) return; // another page was asked for in the meantime
    total = page.total;
    shelf.replaceChildren(...(problem ? [el("p", {}, problem)] : page.pictures.map((one) => thumbnail(one))));
    if (!problem && !page.pictures.length) shelf.append(el("p", { class: "soft" }, "There is no picture here yet."));
    start.value = total ? here.from + 1 : 0;
    start.max = Math.max(1, total);
    count.textContent = `to ${(here.from + page.pictures.length).toLocaleString("en")} of ${total.toLocaleString("en")}`;
    Object.assign(earlier, { disabled: here.from === 0 });
    Object.assign(later, { disabled: here.from + PAGE >= total });
    start.parentElement.hidden = total <= PAGE;
    marked();
    if (here.album.opening) setTimeout(awaited, 1500);
  }
}

function known(studio) {
  const { albums } = studio.facts;
  const uploaded = studio.uploads.size || (state.get("picture") ?? "").startsWith("upload-");
  return !uploaded || albums.some((one) => one.id === "uploads") ? albums : [...albums, UPLOADED];
}

// Which pictures are offered: those that the address names, else those among which the chosen one is.
function place(studio) {
  const albums = known(studio), id = state.get("picture", "");
  const [, kind, part = "all", at = 0] = /^(sample|upload|d\d+)-(?:(train|validation|test)-)?(\d+)?/.exec(id) ?? [];
  const own = albums.find((one) => one.id === ({ sample: "samples", upload: "uploads" }[kind] ?? kind));
  const album = albums.find((one) => one.id === state.get("album")) ?? own ?? albums[0];
  const names = album.splits.map((one) => one.name);
  const split = [state.get("split"), album === own ? part : null, "test", "validation", names[0]].find((name) => names.includes(name)) ?? "all";
  const otherwise = album === own && split === part && kind !== "upload" ? Math.floor(at / PAGE) * PAGE : 0;
  return { album, split, from: Math.max(0, Math.floor(state.number("from", state.get("album") ? 0 : otherwise))) };
}

function filled(field, options, chosen) {
  const box = field.querySelector("select"), wanted = JSON.stringify(options);
  if (box.dataset.options !== wanted) box.replaceChildren(...options.map(([value, words]) => el("option", { value }, words)));
  box.dataset.options = wanted;
  box.value = chosen;
}

function thumbnail({ id, title, label }) {
  const image = el("img", { src: net.picture(id, 128), alt: "", loading: "lazy", draggable: "false",
    onload: () => image.classList.toggle("pixels", Math.max(image.naturalWidth, image.naturalHeight) < 64) });
  const choose = () => { say(""); state.set({ picture: id, class: null, query: null }); };
  return el("button", { type: "button", class: "thumb", title, data: { picture: id }, onclick: choose },
    image, el("span", { class: "words" }, label ?? title), label && label !== title ? el("span", { class: "unseen" }, title) : null);
}

function walk(event) {
  const next = { ArrowLeft: "previousElementSibling", ArrowRight: "nextElementSibling" }[event.key];
  if (!next || !document.activeElement[next]) return;
  event.preventDefault();
  document.activeElement[next].focus();
}

// --- handed in: by a file, by the clipboard, by the mouse

async function take(files, said = "") {
  if (!files.length) return;
  say(`Reading ${files[0].name} …`, true);
  try {
    const { id, title } = await shared.upload(files[0]);
    if (state.get("picture") !== id) {
      say(`${title} is now among the uploaded pictures.`);
      return;
    }
    state.set({ album: "uploads", split: null, from: null });
    say(files.length > 1 ? `${files.length} files were ${said || "given"}, and one picture is shown at a time: this is the first, ${files[0].name}.` : "");
  } catch (error) {
    told(error);
  }
}

// Anywhere on the page and in every part, hence at once and not when the part is first seen.
if (!net.alone) {
  let own = false; // what is dragged was on this page already
  const target = el("div", { id: "drop", hidden: true }, el("p", {}, "Drop the picture here"));
  document.body.append(target);
  const holds = (event) => !own && shared.facts && [...event.dataTransfer.types].includes("Files");
  document.addEventListener("paste", (event) => {
    const pictures = [...(event.clipboardData?.files ?? [])].filter((file) => file.type.startsWith("image/"));
    if (!pictures.length || !shared.facts) return; // words go where words go
    event.preventDefault();
    take(pictures, "pasted");
  });
  addEventListener("dragstart", () => { own = true; });
  addEventListener("dragend", () => { own = false; });
  addEventListener("dragenter", (event) => { if (holds(event)) target.hidden = false; });
  addEventListener("dragleave", (event) => { if (!event.relatedTarget) target.hidden = true; });
  addEventListener("dragover", (event) => { if (holds(event)) event.preventDefault(); });
  addEventListener("drop", (event) => {
    target.hidden = true;
    if (!holds(event)) return;
    event.preventDefault();
    const folder = [...event.dataTransfer.items].some((item, at) => at === 0 && item.webkitGetAsEntry?.()?.isDirectory);
    if (folder) say("That is a folder; drop a picture, or open the folder with the studio: vitrail studio MODEL --data FOLDER.", true);
    else take([...event.dataTransfer.files], "dropped");
  });
}

// --- what is made of it

function pipeline(section, studio) {
  let drawn = null, found = [];
  const made = figure(section, {
    name: "preprocessing", title: "From the picture to the model's input", level: 2,
    python: () => studio.python("values = images[0].flatten(1)  # a row for each channel",
      "print(values.amin(1), values.amax(1), values.mean(1), values.std(1, correction=0))"),
    numbers: () => ({ picture: drawn.facts.picture, preprocess: drawn.facts.preprocess, channels: found }),
  });
  return () => {
    made.root.hidden = !studio.trace;
    if (!studio.trace || drawn === studio.trace) return;
    drawn = studio.trace;
    const { facts, arrays } = drawn;
    found = statistics(arrays.pixels, facts.preprocess);
    const image = new Image(), steps = [original(image, facts), resized(image, facts), cropped(facts, arrays.pixels), numbers(found, facts, arrays.pixels)];
    image.src = net.picture(facts.picture.id, 512);
    made.body.replaceChildren(el("ol", { class: "steps" }, steps));
    made.caption("The model is made for pictures of one size, and for values around zero: the mean that is taken off and the deviation that is divided by "
      + "belong to the model (those of its training pictures, or 0.5 by convention), the same for every picture. What lies outside the box is lost before the first layer; no map in this studio can show anything of it.");
  };
}

function step(title, drawing, ...words) {
  return el("li", {}, el("div", { class: "frame" }, drawing), el("div", {}, el("strong", {}, title), words.map((line) => el("p", {}, line))),
    el("span", { class: "arrow", "aria-hidden": "true" }, "→"));
}

// The picture with a box on it; sizes in pixels of the picture itself. `words` says what the box is.
function boxed(drawing, [width, height], [left, top, right, bottom], words) {
  const rect = { x: left, y: top, width: right - left, height: bottom - top, fill: "none", "vector-effect": "non-scaling-stroke" };
  const outside = `M0 0H${width}V${height}H0ZM${left} ${top}V${bottom}H${right}V${top}Z`;
  return el("div", { class: "boxed", style: { "aspect-ratio": `${width} / ${height}`, width: `${Math.min(100, (100 * width) / height)}%` } }, drawing,
    svg("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": words },
      svg("path", { d: outside, fill: "#000", opacity: 0.5 }), svg("rect", { ...rect, stroke: "#000", "stroke-width": 4 }),
      svg("rect", { ...rect, stroke: "#fff", "stroke-width": 2 })));
}

function original(image, { picture: { width, height }, preprocess: { box: [left, top, right, bottom] } }) {
  const share = Math.min(1, ((right - left) * (bottom - top)) / (width * height));
  const words = share > 0.9995 ? "The model sees all of it."
    : `The model sees ${percent(share, 0)} of it: what is in the box, ${figure3(right - left)} × ${figure3(bottom - top)} pixels.`;
  image.alt = "";
  image.addEventListener("load", () => image.classList.toggle("pixels", Math.max(width, height) < 128));
  return step("The original", boxed(image, [width, height], [left, top, right, bottom], `The original. ${words}`),
    `${width} × ${height} pixels (width × height).`, words);
}

function resized(image, { picture, preprocess: { resized: [width, height], box, interpolation, squash, mean } }) {
  const canvas = el("canvas", { "aria-hidden": "true" }), across = width / picture.width, down = height / picture.height;
  image.addEventListener("load", () => shrunk(canvas, image, width, height, mean.length === 1));
  const same = width === picture.width && height === picture.height;
  const how = squash ? `the whole of it is squeezed in, across by ${figure3(across)} and down by ${figure3(down)}`
    : `by a factor of ${figure3(Math.max(across, down))}, proportions kept`;
  const seen = [box[0] * across, box[1] * down, box[2] * across, box[3] * down];
  return step("Resized", boxed(canvas, [width, height], seen, "Resized; the box is what is cut out"),
    `${mean.length === 1 ? "Made grey, then to " : "To "}${width} × ${height} pixels.`,
    same ? "It has this size already, so nothing changes." : `By ${interpolation} interpolation: ${how}.`);
}

// As the model's own, but for the browser's interpolation; no larger than it is looked at.
function shrunk(canvas, image, width, height, grey) {
  const scale = Math.min(1, 512 / Math.max(width, height));
  Object.assign(canvas, { width: Math.max(1, Math.round(width * scale)), height: Math.max(1, Math.round(height * scale)) });
  const context = canvas.getContext("2d");
  context.imageSmoothingQuality = "high";
  context.drawImage(image, 0, 0, canvas.width, canvas.height);
  canvas.classList.toggle("pixels", Math.max(width, height) < 128);
  if (!grey) return;
  const whole = context.getImageData(0, 0, canvas.width, canvas.height), { data } = whole;
  for (let at = 0; at < data.length; at += 4) data.fill((299 * data[at] + 587 * data[at + 1] + 114 * data[at + 2]) / 1000, at, at + 3);
  context.putImageData(whole, 0, 0);
}

function cropped({ preprocess: { resized: [wide, high] } }, pixels) {
  const [height, width] = pixels.shape, canvas = el("canvas", { class: "pixels", role: "img", "aria-label": "What the model sees" });
  painted(canvas, pixels);
  const frame = el("div", { class: "boxed", style: { "aspect-ratio": `${width} / ${height}`, width: `${Math.min(100, (100 * width) / height)}%` } }, canvas);
  const cut = wide === width && high === height ? "Nothing is left to cut off."
    : `Cut out of the middle; ${several(wide - width, "column")} and ${several(high - height, "row")} are dropped.`;
  return step("Cropped", frame, `To ${width} × ${height} pixels.`, `${cut} These are the pixels that the model sees.`);
}

function numbers(found, { preprocess: { mean, std } }, pixels) {
  const [height, width, channels] = pixels.shape, alike = new Set(mean).size === 1 && new Set(std).size === 1;
  const rows = found.map((one, channel) => el("tr", { class: one.name },
    el("th", { scope: "row" }, plane(pixels, channel), one.name), el("td", {}, histogram(one)),
    ["low", "high", "mean", "deviation"].map((key) => el("td", { class: "number" }, one[key].toFixed(2)))));
  const heads = ["Channel", "How often which value", "lowest", "highest", "mean", "deviation"];
  const table = el("table", { class: "channels" },
    el("thead", {}, el("tr", {}, heads.map((words, at) => el("th", { scope: "col", class: at > 1 ? "number" : null }, words)))), el("tbody", {}, rows));
  const each = found.map((one, at) => `${figure3(mean[at])} and ${figure3(std[at])} for ${one.name}`).join(", ");
  const rule = alike ? `(x / 255 − ${figure3(mean[0])}) / ${figure3(std[0])}` : `(x / 255 − mean) / deviation, with ${each}`;
  return el("li", { class: "numbers" }, el("div", { class: "wide" }, table), el("div", {}, el("strong", {}, "As numbers"),
    el("p", {}, `${channels} × ${height} × ${width} values (channels × height × width). A pixel x from 0 to 255 becomes ${rule}.`)));
}

// One channel as a grey picture.
function plane({ shape: [height, width, channels], data }, channel) {
  const canvas = el("canvas", { "aria-hidden": "true" });
  const only = { shape: [height, width, 1], data: Uint8Array.from({ length: height * width }, (_, at) => data[at * channels + channel]) };
  painted(canvas, only);
  return canvas;
}

// All that a table tells of each channel follows from how often each of the 256 values occurs.
function statistics({ shape: [height, width, channels], data }, preprocess) {
  return channelNames(channels).map((name, channel) => {
    const counts = new Array(256).fill(0), total = height * width;
    for (let at = channel; at < data.length; at += channels) counts[data[at]] += 1;
    const value = (x) => normalised(x, channel, preprocess);
    const mean = counts.reduce((sum, count, x) => sum + count * value(x), 0) / total;
    const deviation = Math.sqrt(counts.reduce((sum, count, x) => sum + count * (value(x) - mean) ** 2, 0) / total);
    const bins = Array.from({ length: BINS }, (_, bin) => counts.slice((bin * 256) / BINS, ((bin + 1) * 256) / BINS).reduce((sum, count) => sum + count, 0));
    const low = value(counts.findIndex(Boolean)), high = value(counts.findLastIndex(Boolean));
    return { name, low, high, mean, deviation, from: value(0), to: value(255), counts: bins };
  });
}

function histogram({ name, from, to, counts, mean }) {
  const [most, next] = [...counts].sort((one, other) => other - one), broken = most > 4 * next && next > 0; // a black background would flatten all else
  const top = broken ? 1.4 * next : most, tall = (count) => Math.min(1, count / top) * high, high = 30, wide = 4 * BINS, zero = ((0 - from) / (to - from)) * wide;
  const words = `${name}: values from ${from.toFixed(2)} to ${to.toFixed(2)}, mean ${mean.toFixed(2)}`;
  return svg("svg", { viewBox: `0 0 ${wide} ${high + 14}`, class: "histogram", role: "img", "aria-label": words },
    counts.map((count, bin) => [svg("rect", { class: "bar", x: 4 * bin, width: 3.2, y: high - tall(count), height: tall(count) }),
      count > top ? svg("line", { class: "break", x1: 4 * bin - 1, x2: 4 * bin + 4, y1: 8, y2: 5 }, svg("title", {}, "Cut off: it is higher.")) : null]),
    svg("line", { class: "base", x1: 0, x2: wide, y1: high + 0.5, y2: high + 0.5 }),
    zero > 0 && zero < wide ? svg("line", { class: "base", x1: zero, x2: zero, y1: high, y2: high + 4 }) : null,
    svg("text", { x: 0, y: high + 13 }, from.toFixed(1)),
    zero > 24 && zero < wide - 24 ? svg("text", { x: zero, y: high + 13, "text-anchor": "middle" }, "0") : null,
    svg("text", { x: wide, y: high + 13, "text-anchor": "end" }, to.toFixed(1)));
}
