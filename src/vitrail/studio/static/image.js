// Part 1: select an image, and see how it is preprocessed.

import { button, el, formatNumber, percent, select, plural, svg } from "./dom.js";
import { figure } from "./figure.js";
import { drawPixels } from "./patch_grid.js";
import * as api from "./api.js";
import { toast, showError } from "./toast.js";
import * as state from "./url_state.js";
import { store as sharedStore } from "./store.js";

const PAGE = 24; // thumbnails per page
const BINS = 32; // histogram bins: 8 of the 256 values each
const UPLOADED = { id: "uploads", title: "uploads", splits: [{ name: "all" }] };

export default {
  name: "image", title: "Image", glyph: "◧",
  lead: "Any image works, even one that the model was never trained for. Before it enters the model, it is resized, cropped or padded, and normalised.",
  thumb(canvas, store) {
    drawThumbnail(canvas, store.trace.arrays.pixels);
  },
  build(section, store) {
    const choose = api.standalone ? null : chooser(section, store);
    if (api.standalone) section.append(el("p", { class: "soft" }, "This saved page shows one image; start the studio to select another."));
    const show = pipeline(section, store);
    return { draw(reason) { if (reason !== "point") { show(); return choose?.(); } } };
  },
};

// The names of the channels of an image.
export function channelNames(count) {
  return { 1: ["grey"], 3: ["red", "green", "blue"] }[count] ?? Array.from({ length: count }, (_, channel) => `channel ${channel}`);
}

// A value from 0 to 255 as the model gets it.
export function normalised(value, channel, { mean, std }) {
  return (value / 255 - mean[channel]) / std[channel];
}

// Draw the model's pixels on a small square canvas, letterboxed.
export function drawThumbnail(canvas, pixels, side = 96) {
  const full = el("canvas");
  drawPixels(full, pixels);
  Object.assign(canvas, { width: side, height: side });
  const scale = side / Math.max(full.width, full.height), width = full.width * scale, height = full.height * scale;
  const context = canvas.getContext("2d");
  context.imageSmoothingEnabled = scale < 1;
  context.imageSmoothingQuality = "high";
  context.drawImage(full, (side - width) / 2, (side - height) / 2, width, height);
  return { left: (side - width) / 2, top: (side - height) / 2, width, height, context };
}

// --- selecting an image

function chooser(section, store) {
  const dataset = select("Dataset", [], null, (id) => state.set({ dataset: id, split: null, start: null }));
  const split = select("Split", [], null, (name) => state.set({ split: name, dataset: currentSelection(store).dataset.id, start: null }));
  const start = el("input", { type: "number", min: 1, "aria-label": "Number of the first image shown", onchange: () => goTo(Number(start.value) - 1) });
  const [previousButton, nextButton] = [button("‹ Previous", () => goTo(currentSelection(store).from - PAGE)), button("Next ›", () => goTo(currentSelection(store).from + PAGE))];
  const count = el("span", { class: "soft" }), goToSelected = button("Go to the selected image", () => state.set({ dataset: null, split: null, start: null }));
  const file = el("input", { type: "file", accept: "image/*", hidden: true, onchange: () => { handleFiles([...file.files]); file.value = ""; } });
  const thumbnails = el("div", { class: "thumbnails", role: "group", "aria-label": "Images to select from", onkeydown: walk });
  section.append(el("div", { class: "chooser" },
    el("div", { class: "controls" }, el("h2", {}, "Select an image"), button("Upload a file …", () => file.click()), file,
      el("span", { class: "soft" }, "or drop or paste one anywhere on this page. It is sent to the studio on this machine only.")),
    el("div", { class: "controls" }, dataset, split, el("span", { class: "pager" }, previousButton, start, count, nextButton), goToSelected),
    thumbnails));
  let drawnKey = "", total = 0;

  function goTo(from) {
    const selection = currentSelection(store);
    state.set({ dataset: selection.dataset.id, split: selection.split, start: Math.max(0, Math.min(from, total - 1)) || null });
  }

  function markSelected() {
    const selected = state.get("image");
    for (const one of thumbnails.querySelectorAll("button")) one.setAttribute("aria-pressed", String(one.dataset.image === selected));
    goToSelected.hidden = Boolean(thumbnails.querySelector('[aria-pressed="true"]'));
  }

  // Poll for a dataset that is still loading.
  async function pollDatasets() {
    store.info.datasets = await api.fetchJson("api/datasets").catch(() => store.info.datasets);
    drawnKey = "";
    if (!section.hidden) refresh();
  }

  return refresh;

  async function refresh() {
    const selection = currentSelection(store), requestKey = [selection.dataset.id, selection.split, selection.from, selection.dataset.id === "uploads" ? state.get("image") : "", store.model.detects].join(" ");
    setOptions(dataset, allDatasets(store).map((one) => [one.id, one.title]), selection.dataset.id);
    setOptions(split, selection.dataset.splits.map((one) => [one.name, one.name]), selection.split);
    split.hidden = selection.dataset.splits.length < 2;
    if (requestKey === drawnKey) return markSelected();
    drawnKey = requestKey;
    let page = { total: 0, images: [] }, failure = selection.dataset.error;
    try {
      if (!failure) page = await api.fetchJson("api/images", { dataset: selection.dataset.id, split: selection.split, start: selection.from, count: PAGE });
    } catch (error) {
      failure = error.message;
    }
    if (requestKey !== drawnKey) return; // another page was requested in the meantime
    total = page.total;
    thumbnails.replaceChildren(...(failure ? [el("p", {}, failure)] : page.images.map((one) => thumbnail(one))));
    if (!failure && !page.images.length) thumbnails.append(el("p", { class: "soft" }, "There are no images here yet."));
    start.value = total ? selection.from + 1 : 0;
    start.max = Math.max(1, total);
    count.textContent = `to ${(selection.from + page.images.length).toLocaleString("en")} of ${total.toLocaleString("en")}`;
    Object.assign(previousButton, { disabled: selection.from === 0 });
    Object.assign(nextButton, { disabled: selection.from + PAGE >= total });
    start.parentElement.hidden = total <= PAGE;
    markSelected();
    if (selection.dataset.loading) setTimeout(pollDatasets, 1500);
  }
}

function allDatasets(store) {
  const { datasets } = store.info;
  const uploaded = store.uploads.size || (state.get("image") ?? "").startsWith("upload-");
  return !uploaded || datasets.some((one) => one.id === "uploads") ? datasets : [...datasets, UPLOADED];
}

// The dataset, split and page in view: those of the URL, else those of the selected image.
function currentSelection(store) {
  const datasets = allDatasets(store), id = state.get("image", "");
  const [, kind, part = "all", at = 0] = /^(sample|upload|d\d+)-(?:(train|validation|test)-)?(\d+)?/.exec(id) ?? [];
  const own = datasets.find((one) => one.id === ({ sample: "samples", upload: "uploads" }[kind] ?? kind));
  const dataset = datasets.find((one) => one.id === state.get("dataset")) ?? own ?? datasets[0];
  const names = dataset.splits.map((one) => one.name);
  const split = [state.get("split"), dataset === own ? part : null, "test", "validation", names[0]].find((name) => names.includes(name)) ?? "all";
  const ownPage = dataset === own && split === part && kind !== "upload" ? Math.floor(at / PAGE) * PAGE : 0;
  return { dataset, split, from: Math.max(0, Math.floor(state.number("start", state.get("dataset") ? 0 : ownPage))) };
}

function setOptions(field, options, selected) {
  const box = field.querySelector("select"), wanted = JSON.stringify(options);
  if (box.dataset.options !== wanted) box.replaceChildren(...options.map(([value, text]) => el("option", { value }, text)));
  box.dataset.options = wanted;
  box.value = selected;
}

function thumbnail({ id, title, label }) {
  const img = el("img", { src: api.imageUrl(id, 128, sharedStore.model.detects), alt: "", loading: "lazy", draggable: "false",
    onload: () => img.classList.toggle("pixels", Math.max(img.naturalWidth, img.naturalHeight) < 64) });
  const choose = () => { toast(""); state.set({ image: id, class: null, query: null, pixel: null, box: null }); };
  return el("button", { type: "button", class: "thumb", title, data: { image: id }, onclick: choose },
    img, el("span", { class: "text" }, label ?? title), label && label !== title ? el("span", { class: "visually-hidden" }, title) : null);
}

function walk(event) {
  const next = { ArrowLeft: "previousElementSibling", ArrowRight: "nextElementSibling" }[event.key];
  if (!next || !document.activeElement[next]) return;
  event.preventDefault();
  document.activeElement[next].focus();
}

// --- uploads: by file, clipboard, or drag and drop

async function handleFiles(files, verb = "") {
  if (!files.length) return;
  toast(`Reading ${files[0].name} …`, true);
  try {
    const { id, title } = await sharedStore.upload(files[0]);
    if (state.get("image") !== id) {
      toast(`${title} was added to the uploads.`);
      return;
    }
    state.set({ dataset: "uploads", split: null, start: null });
    toast(files.length > 1 ? `${files.length} files were ${verb || "selected"}, but only one image is shown at a time: the first, ${files[0].name}.` : "");
  } catch (error) {
    showError(error);
  }
}

// Works in every part, hence registered at once and not when this part is built.
if (!api.standalone) {
  let own = false; // the dragged element is part of this page
  const target = el("div", { id: "drop", hidden: true }, el("p", {}, "Drop the image here"));
  document.body.append(target);
  const hasFiles = (event) => !own && sharedStore.info && [...event.dataTransfer.types].includes("Files");
  document.addEventListener("paste", (event) => {
    const images = [...(event.clipboardData?.files ?? [])].filter((file) => file.type.startsWith("image/"));
    if (!images.length || !sharedStore.info) return; // pasted text is not handled here
    event.preventDefault();
    handleFiles(images, "pasted");
  });
  addEventListener("dragstart", () => { own = true; });
  addEventListener("dragend", () => { own = false; });
  addEventListener("dragenter", (event) => { if (hasFiles(event)) target.hidden = false; });
  addEventListener("dragleave", (event) => { if (!event.relatedTarget) target.hidden = true; });
  addEventListener("dragover", (event) => { if (hasFiles(event)) event.preventDefault(); });
  addEventListener("drop", (event) => {
    target.hidden = true;
    if (!hasFiles(event)) return;
    event.preventDefault();
    const folder = [...event.dataTransfer.items].some((item, at) => at === 0 && item.webkitGetAsEntry?.()?.isDirectory);
    if (folder) toast("That is a folder; drop an image, or start the studio with the folder: vitrail studio MODEL --data FOLDER.", true);
    else handleFiles([...event.dataTransfer.files], "dropped");
  });
}

// --- preprocessing

function pipeline(section, store) {
  let drawn = null, channelStats = [];
  const fig = figure(section, {
    name: "preprocessing", title: "Preprocessing", level: 2,
    python: () => store.python("values = images[0].flatten(1)  # one row per channel",
      "print(values.amin(1), values.amax(1), values.mean(1), values.std(1, correction=0))"),
    numbers: () => ({ image: drawn.meta.image, preprocess: drawn.meta.preprocess, channels: channelStats }),
  });
  return () => {
    fig.root.hidden = !store.trace;
    if (!store.trace || drawn === store.trace) return;
    drawn = store.trace;
    const { meta, arrays } = drawn;
    channelStats = statistics(arrays.pixels, meta.preprocess);
    const img = new Image(), steps = [original(img, meta), resized(img, meta), cropped(meta, arrays.pixels), numbers(channelStats, meta, arrays.pixels)];
    img.src = api.imageUrl(meta.image.id, 512);
    fig.body.replaceChildren(el("ol", { class: "steps" }, steps));
    fig.caption("The model expects images of one size with values around zero: the mean that is subtracted and the standard deviation that is divided by "
      + "belong to the model (those of its training images, or 0.5 by convention) and are the same for every image. " + (meta.preprocess.fit === "pad" ? "The padding has the mean colour, so it is about zero after that; its patches are tokens like any other."
        : "Everything outside the box is discarded before the first layer, so no map in the studio can show it."));
  };
}

function step(title, drawing, ...text) {
  return el("li", {}, el("div", { class: "frame" }, drawing), el("div", {}, el("strong", {}, title), text.map((line) => el("p", {}, line))),
    el("span", { class: "arrow", "aria-hidden": "true" }, "→"));
}

// An image with a box on it; sizes in pixels of the image itself. `text` describes the box.
function boxed(drawing, [width, height], [left, top, right, bottom], text) {
  const rect = { x: left, y: top, width: right - left, height: bottom - top, fill: "none", "vector-effect": "non-scaling-stroke" };
  const outside = `M0 0H${width}V${height}H0ZM${left} ${top}V${bottom}H${right}V${top}Z`;
  return el("div", { class: "boxed", style: { "aspect-ratio": `${width} / ${height}`, width: `${Math.min(100, (100 * width) / height)}%` } }, drawing,
    svg("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": text },
      svg("path", { d: outside, fill: "#000", opacity: 0.5 }), svg("rect", { ...rect, stroke: "#000", "stroke-width": 4 }),
      svg("rect", { ...rect, stroke: "#fff", "stroke-width": 2 })));
}

// The part of the original that the model sees; with padding the box of the preprocessing is larger than the image.
function seenBox({ image: { width, height }, preprocess: { box: [left, top, right, bottom] } }) {
  return [Math.max(left, 0), Math.max(top, 0), Math.min(right, width), Math.min(bottom, height)];
}

function original(img, meta) {
  const { width, height } = meta.image, [left, top, right, bottom] = seenBox(meta);
  const fraction = Math.min(1, ((right - left) * (bottom - top)) / (width * height));
  const text = fraction > 0.9995 ? "The model sees the whole image."
    : `The model sees ${percent(fraction, 0)} of it: the box, ${formatNumber(right - left)} × ${formatNumber(bottom - top)} pixels.`;
  img.alt = "";
  img.addEventListener("load", () => img.classList.toggle("pixels", Math.max(width, height) < 128));
  return step("Original", boxed(img, [width, height], [left, top, right, bottom], `Original image. ${text}`),
    `${width} × ${height} pixels (width × height).`, text);
}

function resized(img, meta) {
  const { image, preprocess: { resized: [width, height], interpolation, fit, mean } } = meta, box = seenBox(meta);
  const canvas = el("canvas", { "aria-hidden": "true" }), across = width / image.width, down = height / image.height;
  img.addEventListener("load", () => drawResized(canvas, img, width, height, mean.length === 1));
  const same = width === image.width && height === image.height;
  const howText = fit === "stretch" ? `the aspect ratio is not kept, factors ${formatNumber(across)} (width) and ${formatNumber(down)} (height)`
    : `by a factor of ${formatNumber(Math.max(across, down))}, aspect ratio kept`;
  const scaledBox = [box[0] * across, box[1] * down, box[2] * across, box[3] * down];
  return step("Resized", boxed(canvas, [width, height], scaledBox, fit === "pad" ? "Resized" : "Resized; the box is the crop"),
    `${mean.length === 1 ? "Converted to greyscale, then to " : "To "}${width} × ${height} pixels.`,
    same ? "It already has this size, so nothing changes." : `By ${interpolation} interpolation: ${howText}.`);
}

// An approximation with the browser's interpolation, at display size.
function drawResized(canvas, img, width, height, grey) {
  const scale = Math.min(1, 512 / Math.max(width, height));
  Object.assign(canvas, { width: Math.max(1, Math.round(width * scale)), height: Math.max(1, Math.round(height * scale)) });
  const context = canvas.getContext("2d");
  context.imageSmoothingQuality = "high";
  context.drawImage(img, 0, 0, canvas.width, canvas.height);
  canvas.classList.toggle("pixels", Math.max(width, height) < 128);
  if (!grey) return;
  const full = context.getImageData(0, 0, canvas.width, canvas.height), { data } = full;
  for (let at = 0; at < data.length; at += 4) data.fill((299 * data[at] + 587 * data[at + 1] + 114 * data[at + 2]) / 1000, at, at + 3);
  context.putImageData(full, 0, 0);
}

function cropped({ preprocess: { resized: [wide, high], fit, mean } }, pixels) {
  const [height, width] = pixels.shape, canvas = el("canvas", { class: "pixels", role: "img", "aria-label": "The model's input" });
  drawPixels(canvas, pixels);
  const frame = el("div", { class: "boxed", style: { "aspect-ratio": `${width} / ${height}`, width: `${Math.min(100, (100 * width) / height)}%` } }, canvas);
  const cropText = wide === width && high === height ? fit === "pad" ? "Nothing is added." : "Nothing is cropped."
    : fit === "pad" ? `${plural(width - wide, "column")} and ${plural(height - high, "row")} of the mean ${mean.length === 1 ? "grey" : "colour"} are added.`
    : `Centre crop; ${plural(wide - width, "column")} and ${plural(high - height, "row")} are dropped.`;
  return step(fit === "pad" ? "Padded" : "Cropped", frame, `To ${width} × ${height} pixels.`, `${cropText} These are the pixels of the model's input.`);
}

function numbers(channelStats, { preprocess: { mean, std } }, pixels) {
  const [height, width, channels] = pixels.shape, uniform = new Set(mean).size === 1 && new Set(std).size === 1;
  const rows = channelStats.map((one, channel) => el("tr", { class: one.name },
    el("th", { scope: "row" }, plane(pixels, channel), one.name), el("td", {}, histogram(one)),
    ["low", "high", "mean", "std"].map((key) => el("td", { class: "number" }, one[key].toFixed(2)))));
  const headings = ["Channel", "Histogram", "min", "max", "mean", "std"];
  const table = el("table", { class: "channels" },
    el("thead", {}, el("tr", {}, headings.map((text, at) => el("th", { scope: "col", class: at > 1 ? "number" : null }, text)))), el("tbody", {}, rows));
  const each = channelStats.map((one, at) => `${formatNumber(mean[at])} and ${formatNumber(std[at])} for ${one.name}`).join(", ");
  const rule = uniform ? `(x / 255 − ${formatNumber(mean[0])}) / ${formatNumber(std[0])}` : `(x / 255 − mean) / std, with ${each}`;
  return el("li", { class: "numbers" }, el("div", { class: "wide" }, table), el("div", {}, el("strong", {}, "Normalised"),
    el("p", {}, `${channels} × ${height} × ${width} values (channels × height × width). A pixel x from 0 to 255 becomes ${rule}.`)));
}

// One channel as a greyscale image.
function plane({ shape: [height, width, channels], data }, channel) {
  const canvas = el("canvas", { "aria-hidden": "true" });
  const channelPixels = { shape: [height, width, 1], data: Uint8Array.from({ length: height * width }, (_, at) => data[at * channels + channel]) };
  drawPixels(canvas, channelPixels);
  return canvas;
}

// Statistics of each channel, from the counts of its 256 values.
function statistics({ shape: [height, width, channels], data }, preprocess) {
  return channelNames(channels).map((name, channel) => {
    const counts = new Array(256).fill(0), total = height * width;
    for (let at = channel; at < data.length; at += channels) counts[data[at]] += 1;
    const value = (x) => normalised(x, channel, preprocess);
    const mean = counts.reduce((sum, count, x) => sum + count * value(x), 0) / total;
    const std = Math.sqrt(counts.reduce((sum, count, x) => sum + count * (value(x) - mean) ** 2, 0) / total);
    const bins = Array.from({ length: BINS }, (_, bin) => counts.slice((bin * 256) / BINS, ((bin + 1) * 256) / BINS).reduce((sum, count) => sum + count, 0));
    const low = value(counts.findIndex(Boolean)), high = value(counts.findLastIndex(Boolean));
    return { name, low, high, mean, std, from: value(0), to: value(255), counts: bins };
  });
}

function histogram({ name, from, to, counts, mean }) {
  const [largest, next] = [...counts].sort((one, other) => other - one), truncated = largest > 4 * next && next > 0; // a black background would flatten all other bars
  const top = truncated ? 1.4 * next : largest, tall = (count) => Math.min(1, count / top) * high, high = 30, wide = 4 * BINS, zero = ((0 - from) / (to - from)) * wide;
  const text = `${name}: values from ${from.toFixed(2)} to ${to.toFixed(2)}, mean ${mean.toFixed(2)}`;
  return svg("svg", { viewBox: `0 0 ${wide} ${high + 14}`, class: "histogram", role: "img", "aria-label": text },
    counts.map((count, bin) => [svg("rect", { class: "bar", x: 4 * bin, width: 3.2, y: high - tall(count), height: tall(count) }),
      count > top ? svg("line", { class: "break", x1: 4 * bin - 1, x2: 4 * bin + 4, y1: 8, y2: 5 }, svg("title", {}, "Truncated bar")) : null]),
    svg("line", { class: "base", x1: 0, x2: wide, y1: high + 0.5, y2: high + 0.5 }),
    zero > 0 && zero < wide ? svg("line", { class: "base", x1: zero, x2: zero, y1: high, y2: high + 4 }) : null,
    svg("text", { x: 0, y: high + 13 }, from.toFixed(1)),
    zero > 24 && zero < wide - 24 ? svg("text", { x: zero, y: high + 13, "text-anchor": "middle" }, "0") : null,
    svg("text", { x: wide, y: high + 13, "text-anchor": "end" }, to.toFixed(1)));
}
