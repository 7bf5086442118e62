// One token looks at another, in numbers: query times key, and the softmax that makes a weight of it.

import { LINES, css, heat } from "./colour.js";
import { el, percent, svg } from "./dom.js";
import { figure } from "./figure.js";
import * as net from "./net.js";
import { told } from "./say.js";

const LEFT = 46, STRIP = 18, HALF = 46, REST = 200; // the last in milliseconds: what is only passed over is not asked for

export class Pair {
  constructor(parent, studio, controls) {
    Object.assign(this, { studio, question: "", shown: null, timer: 0 });
    const { root, body } = figure(parent, { name: "pair", title: "One pair in numbers", level: 2,
      caption: "A head turns every token into a query and a key. Their product says how well they match; the softmax makes shares of the products of a row.",
      python: () => this.#python(), numbers: () => this.shown });
    this.root = root;
    this.words = el("p");
    this.strips = el("div", { class: "strips" });
    this.steps = el("table", { class: "chain" });
    body.before(controls);
    body.append(this.words, this.strips, this.steps);
  }

  // What is asked for, or a sentence that says why nothing can be.
  ask(params, sentence) {
    const question = sentence ?? net.address("api/pair", params);
    if (question === this.question) return;
    Object.assign(this, { question, params });
    clearTimeout(this.timer);
    if (sentence) this.#nothing(sentence);
    else this.timer = setTimeout(() => this.#load(question, params).catch((error) => this.#failed(question, error)), this.shown ? REST : 0);
  }

  async #load(question, params) {
    this.root.setAttribute("aria-busy", "true");
    this.words.append(el("span", { class: "waiting" }, ` ${this.shown ? "The pair that was asked for is" : "It is"} on its way ...`)); // drawn over by what comes
    const found = await net.json("api/pair", params);
    if (question !== this.question) return;
    this.shown = found;
    this.draw();
  }

  #failed(question, error) {
    if (question !== this.question) return;
    this.#nothing(error.message);
    told(error);
  }

  #nothing(sentence) {
    this.shown = null;
    this.words.textContent = sentence;
    this.strips.replaceChildren();
    this.steps.replaceChildren();
    this.root.removeAttribute("aria-busy");
  }

  // Once more, as the room or the theme has changed.
  draw() {
    if (!this.shown) return;
    const found = this.shown, name = (token) => this.studio.token(token);
    this.root.removeAttribute("aria-busy");
    this.words.replaceChildren(`In layer ${found.layer}, head ${found.head}, the query is ${name(found.query)}, the key is ${name(found.key)}: `,
      el("strong", { class: "weight" }, percent(found.weight, 2)), ` of what ${name(found.query)} takes comes from ${found.key === found.query ? "itself" : name(found.key)}.`);
    this.strips.replaceChildren(terms(found, Math.max(260, this.strips.clientWidth)), key(found));
    this.steps.replaceChildren(...chain(found));
  }

  #python() {
    const { layer, head, query, key } = this.shown ?? this.params ?? { layer: 0, head: 0, query: 0, key: 0 };
    return this.studio.python(`with torch.no_grad(), vitrail.recording(model, "blocks.${layer}.attention.queries", "blocks.${layer}.attention.keys") as seen:`,
      "    model(images)",
      `q = seen["blocks.${layer}.attention.queries"][0][0, ${head}, ${query}]`, `k = seen["blocks.${layer}.attention.keys"][0][0, ${head}]`,
      this.shown?.offset ? `scores = (k @ q + model.blocks[${layer}].attention.relative.of(${head}, ${query}) @ q) * q.shape[0] ** -0.5` : "scores = k @ q * q.shape[0] ** -0.5",
      `print(q @ k[${key}], scores[${key}], scores.max(), (scores - scores.max()).exp().sum(), scores.softmax(dim=0)[${key}])`,
      `weight = vitrail.explain.attention(model, images, layers=[${layer}], heads=[${head}], queries=[${query}])[0, 0, 0, 0, ${key}]`, "print(weight)");
  }
}

// Query and key as strips, and below them what each dimension adds to the product.
function terms({ q, k }, width) {
  const step = (width - LEFT - 2) / q.length, high = 2 * STRIP + 14 + 2 * HALF;
  const drawing = svg("svg", { viewBox: `0 0 ${width} ${high}`, class: "terms", role: "img",
    "aria-label": `Query, key and their product in ${q.length} dimensions; the largest term is ${exact(Math.max(...q.map((value, place) => value * k[place])))}` });
  const most = Math.max(...q.map(Math.abs), ...k.map(Math.abs)), products = q.map((value, place) => value * k[place]);
  const highest = Math.max(...products.map(Math.abs)) || 1, zero = high - HALF;
  const label = (words, y) => drawing.append(svg("text", { x: LEFT - 8, y: y + 4, "text-anchor": "end" }, words));
  label("q", STRIP / 2);
  label("k", 1.5 * STRIP + 4);
  label("q × k", zero);
  drawing.append(svg("line", { class: "rule", x1: LEFT, x2: width - 2, y1: zero, y2: zero }));
  products.forEach((product, place) => {
    const x = LEFT + place * step, long = (Math.abs(product) / highest) * (HALF - 2);
    const told_ = svg("title", {}, `dimension ${place}: ${exact(q[place])} × ${exact(k[place])} = ${exact(product)}`);
    drawing.append(svg("g", {}, told_,
      svg("rect", { x, y: 0, width: step + 0.2, height: STRIP, fill: css(q[place], -most, most) }),
      svg("rect", { x, y: STRIP + 4, width: step + 0.2, height: STRIP, fill: css(k[place], -most, most) }),
      svg("rect", { x: x + step * 0.1, y: product > 0 ? zero - long : zero, width: step * 0.8, height: long, fill: product > 0 ? LINES[0] : LINES[1] })));
  });
  return drawing;
}

// What the shades and the bars mean, in numbers: both have zero in the middle.
function key({ q, k }) {
  const most = Math.max(...q.map(Math.abs), ...k.map(Math.abs)), longest = Math.max(...q.map((value, place) => Math.abs(value * k[place])));
  const ramp = el("canvas", { class: "ramp", "aria-hidden": "true" });
  heat(ramp, Float32Array.from({ length: 255 }, (_, place) => place), 1, 255);
  return el("div", { class: "soft pairkey" }, el("p", { class: "scale" }, el("span", {}, "q and k"), el("span", {}, short(-most)), ramp, el("span", {}, short(most))),
    el("p", {}, `q × k: up is above zero, down is below; the longest bar is ${short(longest)}.`));
}

function short(value) {
  return String(Number(value.toPrecision(3))).replace("-", "−");
}

// Each line is the one above it and one more step, so that it can be checked by hand.
function chain({ q, product, offset, scale, score, largest, total, weight }) {
  const lines = [["q · k", `the sum of the ${q.length} terms above`, exact(product)]];
  if (offset) lines.push([signed(offset), "what relative positions add", exact(product + offset)]);
  lines.push([`× ${exact(scale)}`, `which is 1/√${q.length}, so that wide heads are not too sure: the score`, exact(score)],
    [signed(-largest), "less the largest score of the row, so that nothing overflows", exact(score - largest)],
    ["exp", "makes it positive", exact(Math.exp(score - largest))],
    [`÷ ${exact(total)}`, "the sum of these over the row, so that shares add up to one: the weight", exact(weight)]);
  return [el("caption", { class: "unseen" }, "From the product to the weight"),
    el("thead", {}, el("tr", {}, ["Step", "What it is", "Result"].map((words, place) => el("th", { scope: "col", class: place === 2 ? "number" : null }, words)))),
    el("tbody", {}, lines.map(([step, words, result]) => el("tr", {}, el("th", { scope: "row" }, step), el("td", {}, words), el("td", { class: "number" }, result))))];
}

function signed(value) {
  return `${value < 0 ? "−" : "+"} ${exact(Math.abs(value))}`;
}

function exact(value) {
  return String(Number(value.toPrecision(5))).replace("-", "−");
}
