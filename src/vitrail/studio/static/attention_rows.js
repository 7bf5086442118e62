// Rows of attention weights, and their statistics.

import * as api from "./api.js";
import { showError } from "./toast.js";
import * as state from "./url_state.js";

const MAX_CACHED = 24; // rows of large models in memory

// Attention rows by query. Small models send all of them with the trace; rows of large ones are requested and cached.
export class AttentionRows {
  constructor(store) {
    Object.assign(this, { store, cache: new Map(), trace: null, last: null, wanted: null, pending: false });
  }

  // {data, first, step, query} of the query or, while it is loading, of the last one.
  get(query) {
    const { trace } = this.store, { meta: { tokens, full_attention }, arrays } = trace;
    if (this.trace !== trace) Object.assign(this, { trace, cache: new Map(), last: null });
    let rows = null;
    if (query === null) rows = { data: arrays.pooled_attention.data, first: 0, step: tokens, query };
    else if (full_attention) rows = { data: arrays.attention.data, first: query * tokens, step: tokens * tokens, query };
    else rows = this.cache.get(query) ?? null;
    if (!rows && !api.standalone) {
      this.wanted = query;
      if (!this.pending) this.#fetch().catch(showError);
    }
    this.last = rows ?? this.last ?? { data: arrays.pooled_attention.data, first: 0, step: tokens, query: null };
    return this.last;
  }

  status(query) {
    if (this.last.query === query) return "";
    return api.standalone ? "This saved page holds only the pooled attention; start the studio for the rows of other tokens." : `Loading the attention of ${this.store.tokenName(query)} ...`;
  }

  async #fetch() {
    this.pending = true;
    try {
      while (this.wanted !== null) { // only the newest request: queries that were hovered meanwhile are skipped
        const { trace } = this, query = this.wanted, { model, step, image: { id: image } } = trace.meta; // the URL may already name another one
        this.wanted = null;
        const { arrays } = await api.fetchArrays("api/attention-rows", { model, step, image, query });
        if (trace !== this.store.trace) continue;
        this.cache.set(query, { data: arrays.rows.data, first: 0, step: trace.meta.tokens, query });
        if (this.cache.size > MAX_CACHED) this.cache.delete(this.cache.keys().next().value);
        this.store.notify("point");
      }
    } finally {
      this.pending = false;
    }
  }
}

// Whether the trace belongs to the URL; else the right one is loading.
export function isCurrent({ trace, model }) {
  const { meta } = trace ?? {}, step = state.get("step", ""), target = state.get("class");
  return Boolean(meta) && meta.model === model.id && String(meta.step ?? "") === step && meta.image.id === state.get("image") && (target === null || Number(target) === meta.target)
    && String(meta.region?.pixel ?? "") === String(model.segments ? state.get("pixel", "") : "")
    && String(meta.region?.box ?? "") === String(model.detects ? state.get("box", "") : "");
}

export function sum(row, from, to) {
  let total = 0;
  for (let index = from; index < to; index += 1) total += row[index];
  return total;
}

// In nats: 0 if all attention goes to one token, the logarithm of their number if it is uniform.
export function entropy(row) {
  let total = 0;
  for (const weight of row) if (weight > 0) total -= weight * Math.log(weight);
  return total;
}

// The mean distance in pixels from a patch to all patches, weighted by attention renormalised over patches.
export function meanDistance(row, query, { prefix, grid: [, columns] }, [down, across]) {
  if (query === null || query < prefix) return null;
  const y = Math.floor((query - prefix) / columns), x = (query - prefix) % columns;
  let distance = 0, total = 0;
  for (let token = prefix; token < row.length; token += 1) {
    const patch = token - prefix;
    distance += row[token] * Math.hypot((Math.floor(patch / columns) - y) * down, ((patch % columns) - x) * across);
    total += row[token];
  }
  return total > 0 ? distance / total : null;
}

// The tokens with the largest weights; ties keep token order.
export function topTokens(row, count) {
  const tokens = [];
  for (let token = 0; token < row.length; token += 1) {
    if (tokens.length === count && row[token] <= row[tokens[count - 1]]) continue;
    const index = tokens.findIndex((other) => row[token] > row[other]);
    tokens.splice(index < 0 ? tokens.length : index, 0, token);
    if (tokens.length > count) tokens.pop();
  }
  return tokens;
}
