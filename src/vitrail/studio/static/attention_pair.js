// One query-key pair in numbers: their dot product, and the softmax that turns it into an attention weight.

import { LINE_COLOURS, cssColour, drawHeatmap } from "./colormap.js";
import { el, percent, svg } from "./dom.js";
import { figure } from "./figure.js";
import * as api from "./api.js";
import { showError } from "./toast.js";

const LEFT = 46, STRIP = 18, HALF = 46, REST = 200; // the last in milliseconds: pairs that are only hovered briefly are not requested

export class AttentionPair {
  constructor(parent, store, controls) {
    Object.assign(this, { store, request: "", pair: null, timer: 0 });
    const { root, body } = figure(parent, { name: "attention-pair", title: "One query-key pair in numbers", level: 2,
      caption: "A head projects every token to a query and a key. Their dot product measures how well they match; the softmax normalises the products of a row to weights that sum to one.",
      python: () => this.#python(), numbers: () => this.pair });
    this.root = root;
    this.text = el("p");
    this.strips = el("div", { class: "strips" });
    this.steps = el("table", { class: "softmax-steps" });
    body.before(controls);
    body.append(this.text, this.strips, this.steps);
  }

  // Show a pair, or a message that says why there is none.
  show(params, message) {
    const request = message ?? api.requestUrl("api/attention-pair", params);
    if (request === this.request) return;
    Object.assign(this, { request, params });
    clearTimeout(this.timer);
    if (message) this.#showMessage(message);
    else this.timer = setTimeout(() => this.#load(request, params).catch((error) => this.#showFailure(request, error)), this.pair ? REST : 0);
  }

  async #load(request, params) {
    this.root.setAttribute("aria-busy", "true");
    this.text.append(el("span", { class: "waiting" }, " Loading ...")); // replaced by the response
    const pair = await api.fetchJson("api/attention-pair", params);
    if (request !== this.request) return;
    this.pair = pair;
    this.draw();
  }

  #showFailure(request, error) {
    if (request !== this.request) return;
    this.#showMessage(error.message);
    showError(error);
  }

  #showMessage(message) {
    this.pair = null;
    this.text.textContent = message;
    this.strips.replaceChildren();
    this.steps.replaceChildren();
    this.root.removeAttribute("aria-busy");
  }

  // Redraw after a change of size or theme.
  draw() {
    if (!this.pair) return;
    const pair = this.pair, name = (token) => this.store.tokenName(token);
    this.root.removeAttribute("aria-busy");
    this.text.replaceChildren(`In layer ${pair.layer}, head ${pair.head}, the query is ${name(pair.query)}, the key is ${name(pair.key)}: `,
      el("strong", { class: "weight" }, percent(pair.weight, 2)), ` of the attention of ${name(pair.query)} goes to ${pair.key === pair.query ? "itself" : name(pair.key)}.`);
    this.strips.replaceChildren(drawTerms(pair, Math.max(260, this.strips.clientWidth)), drawLegend(pair));
    this.steps.replaceChildren(...softmaxSteps(pair));
  }

  #python() {
    const { layer, head, query, key } = this.pair ?? this.params ?? { layer: 0, head: 0, query: 0, key: 0 };
    const { relative_bias, relative_axes, window } = this.store.model.config;
    return this.store.python(`with torch.no_grad(), vitrail.record_activations(model, "blocks.${layer}.attention.queries", "blocks.${layer}.attention.keys") as activations:`,
      "    model(images)",
      `q = activations["blocks.${layer}.attention.queries"][0][0, ${head}, ${query}]`, `k = activations["blocks.${layer}.attention.keys"][0][0, ${head}]`,
      relative_axes || window ? `scores = model.blocks[${layer}].attention.scores(q[None, None, None], k[None, None], model.grid(images), [${query}], [${head}])[0, 0, 0]`
        : this.pair?.position_offset ? `scores = (k @ q + model.blocks[${layer}].attention.relative.row(${head}, ${query}) @ q) * q.shape[0] ** -0.5` : "scores = k @ q * q.shape[0] ** -0.5",
      ...(relative_bias ? [`scores = scores + model.relative_bias[${relative_bias.shared ? 0 : layer}](model.grid(images))[${head}, ${query}].detach()`] : []),
      `print(q @ k[${key}], scores[${key}], scores.max(), (scores - scores.max()).exp().sum(), scores.softmax(dim=0)[${key}])`,
      `weight = vitrail.explain.attention(model, images, layers=[${layer}], heads=[${head}], queries=[${query}])[0, 0, 0, 0, ${key}]`, "print(weight)");
  }
}

// Query and key as colour strips, and below them the contribution of each dimension to the dot product.
function drawTerms({ q, k }, width) {
  const step = (width - LEFT - 2) / q.length, high = 2 * STRIP + 14 + 2 * HALF;
  const drawing = svg("svg", { viewBox: `0 0 ${width} ${high}`, class: "terms", role: "img",
    "aria-label": `Query, key and their product in ${q.length} dimensions; the largest term is ${exact(Math.max(...q.map((value, index) => value * k[index])))}` });
  const maximum = Math.max(...q.map(Math.abs), ...k.map(Math.abs)), products = q.map((value, index) => value * k[index]);
  const highest = Math.max(...products.map(Math.abs)) || 1, zero = high - HALF;
  const label = (text, y) => drawing.append(svg("text", { x: LEFT - 8, y: y + 4, "text-anchor": "end" }, text));
  label("q", STRIP / 2);
  label("k", 1.5 * STRIP + 4);
  label("q × k", zero);
  drawing.append(svg("line", { class: "rule", x1: LEFT, x2: width - 2, y1: zero, y2: zero }));
  products.forEach((product, index) => {
    const x = LEFT + index * step, barLength = (Math.abs(product) / highest) * (HALF - 2);
    const tooltip = svg("title", {}, `dimension ${index}: ${exact(q[index])} × ${exact(k[index])} = ${exact(product)}`);
    drawing.append(svg("g", {}, tooltip,
      svg("rect", { x, y: 0, width: step + 0.2, height: STRIP, fill: cssColour(q[index], -maximum, maximum) }),
      svg("rect", { x, y: STRIP + 4, width: step + 0.2, height: STRIP, fill: cssColour(k[index], -maximum, maximum) }),
      svg("rect", { x: x + step * 0.1, y: product > 0 ? zero - barLength : zero, width: step * 0.8, height: barLength, fill: product > 0 ? LINE_COLOURS[0] : LINE_COLOURS[1] })));
  });
  return drawing;
}

// The legend of colours and bars: both have zero in the middle.
function drawLegend({ q, k }) {
  const maximum = Math.max(...q.map(Math.abs), ...k.map(Math.abs)), longest = Math.max(...q.map((value, index) => Math.abs(value * k[index])));
  const colorbar = el("canvas", { class: "colorbar", "aria-hidden": "true" });
  drawHeatmap(colorbar, Float32Array.from({ length: 255 }, (_, index) => index), 1, 255);
  return el("div", { class: "soft pair-legend" }, el("p", { class: "scale" }, el("span", {}, "q and k"), el("span", {}, short(-maximum)), colorbar, el("span", {}, short(maximum))),
    el("p", {}, `q × k: bars up are positive, bars down negative; the longest is ${short(longest)}.`));
}

function short(value) {
  return String(Number(value.toPrecision(3))).replace("-", "−");
}

// Each line adds one step to the one above, so that it can be checked by hand.
function softmaxSteps({ q, product, position_offset, scale, bias, score, max_score, exp_sum, weight }) {
  const lines = [["q · k", `the sum of the ${q.length} terms above`, exact(product)]];
  if (position_offset) lines.push([signed(position_offset), "added by relative positions", exact(product + position_offset)]);
  lines.push([`× ${exact(scale)}`, `scaled by 1/√${q.length}, to keep the softmax from saturating${bias ? "" : ": the score"}`, exact(score - bias)]);
  if (bias) lines.push([signed(bias), "added by the relative bias, for the offset of query and key: the score", exact(score)]);
  lines.push([signed(-max_score), "minus the largest score of the row, for numerical stability", exact(score - max_score)],
    ["exp", "exponential", exact(Math.exp(score - max_score))],
    [`÷ ${exact(exp_sum)}`, "divided by the sum over the row, so that weights sum to one: the attention weight", exact(weight)]);
  return [el("caption", { class: "visually-hidden" }, "From the dot product to the attention weight"),
    el("thead", {}, el("tr", {}, ["Step", "What it is", "Result"].map((text, index) => el("th", { scope: "col", class: index === 2 ? "number" : null }, text)))),
    el("tbody", {}, lines.map(([step, text, result]) => el("tr", {}, el("th", { scope: "row" }, step), el("td", {}, text), el("td", { class: "number" }, result))))];
}

function signed(value) {
  return `${value < 0 ? "−" : "+"} ${exact(Math.abs(value))}`;
}

function exact(value) {
  return String(Number(value.toPrecision(5))).replace("-", "−");
}
