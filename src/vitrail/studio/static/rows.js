// Rows of attention weights, and what can be said of one.

import * as net from "./net.js";
import { told } from "./say.js";
import * as state from "./state.js";

const KEPT = 24; // rows of large models that are held

// Rows of weights for a query. Small models have sent all of them; of large ones they are asked for and kept for a while.
export class Rows {
  constructor(studio) {
    Object.assign(this, { studio, kept: new Map(), trace: null, last: null, wanted: null, asking: false });
  }

  // {data, first, step, query}: those of the query or, until they are there, the last ones.
  of(query) {
    const { trace } = this.studio, { facts: { tokens, whole }, arrays } = trace;
    if (this.trace !== trace) Object.assign(this, { trace, kept: new Map(), last: null });
    let found = null;
    if (query === null) found = { data: arrays.pooled.data, first: 0, step: tokens, query };
    else if (whole) found = { data: arrays.attention.data, first: query * tokens, step: tokens * tokens, query };
    else found = this.kept.get(query) ?? null;
    if (!found && !net.alone) {
      this.wanted = query;
      if (!this.asking) this.#ask().catch(told);
    }
    this.last = found ?? this.last ?? { data: arrays.pooled.data, first: 0, step: tokens, query: null };
    return this.last;
  }

  words(query) {
    if (this.last.query === query) return "";
    return net.alone ? "This saved copy holds only what is read; start the studio for the rows of other tokens." : `What ${this.studio.token(query)} looks at is on its way ...`;
  }

  async #ask() {
    this.asking = true;
    try {
      while (this.wanted !== null) { // the newest question only: what was passed over meanwhile is left out
        const { trace } = this, query = this.wanted, { model, step, picture: { id: picture } } = trace.facts; // the address may be ahead of it
        this.wanted = null;
        const { arrays } = await net.binary("api/rows", { model, step, picture, query });
        if (trace !== this.studio.trace) continue;
        this.kept.set(query, { data: arrays.rows.data, first: 0, step: trace.facts.tokens, query });
        if (this.kept.size > KEPT) this.kept.delete(this.kept.keys().next().value);
        this.studio.tell("point");
      }
    } finally {
      this.asking = false;
    }
  }
}

// Whether the trace is that of what the address names; else the right one is on its way.
export function current({ trace, model }) {
  const { facts } = trace ?? {}, step = state.get("step", ""), target = state.get("class");
  return Boolean(facts) && facts.model === model.id && String(facts.step ?? "") === step && facts.picture.id === state.get("picture") && (target === null || Number(target) === facts.target);
}

export function sum(row, from, to) {
  let total = 0;
  for (let place = from; place < to; place += 1) total += row[place];
  return total;
}

// In nats: 0 where all goes to one token, the logarithm of their number where all are alike.
export function entropy(row) {
  let total = 0;
  for (const weight of row) if (weight > 0) total -= weight * Math.log(weight);
  return total;
}

// The mean distance in pixels from a patch to the patches that it looks at, by the weights that they have among themselves.
export function reach(row, query, { prefix, grid: [, columns] }, [down, across]) {
  if (query === null || query < prefix) return null;
  const y = Math.floor((query - prefix) / columns), x = (query - prefix) % columns;
  let far = 0, total = 0;
  for (let token = prefix; token < row.length; token += 1) {
    const patch = token - prefix;
    far += row[token] * Math.hypot((Math.floor(patch / columns) - y) * down, ((patch % columns) - x) * across);
    total += row[token];
  }
  return total > 0 ? far / total : null;
}

// The tokens with the largest weights; of equal ones the first comes first.
export function most(row, count) {
  const found = [];
  for (let token = 0; token < row.length; token += 1) {
    if (found.length === count && row[token] <= row[found[count - 1]]) continue;
    const place = found.findIndex((other) => row[token] > row[other]);
    found.splice(place < 0 ? found.length : place, 0, token);
    if (found.length > count) found.pop();
  }
  return found;
}
