// What all parts share: the models, the picture, its trace, and what is pointed at. Everything shown follows from the address.
//
// A part is drawn by `draw(why)`; why is "open" (it has just come into view), "model", "trace", "point", "state" or "theme".

import { setRamp } from "./colour.js";
import { follow, live } from "./live.js";
import * as net from "./net.js";
import { mended, told } from "./say.js";
import * as state from "./state.js";

class Studio {
  facts = null; // api/studio
  trace = null; // of the picture by the model: {facts, arrays}
  hovered = null; // the token under the mouse or the keyboard's focus
  busy = false;
  stale = false; // what is shown is of an older question, since the last one was refused
  #listeners = [];
  #asking = null;
  #asked = "";
  #loading = null;
  #again = 0; // how often the same address came to mean other weights, so that no older answer is taken for a new one

  async open() {
    this.facts = await net.json("api/studio");
    setRamp(this.facts.ramp);
    this.#complete();
    state.watch((changed) => this.#changed(changed));
    live((kind, news) => this.#heard(kind, news));
    follow(this.model);
  }

  // A link may leave out the model and the picture, or name a model that is not there.
  #complete() {
    if (!this.facts.models.some((model) => model.id === state.get("model"))) state.set({ model: this.facts.models[0].id, step: null }, false);
    if (!state.get("picture")) state.set({ picture: this.facts.first }, false);
  }

  get model() {
    return this.facts.models.find((model) => model.id === state.get("model")) ?? this.facts.models[0];
  }

  // The question that every address of the server begins with.
  here(more = {}) {
    return { model: this.model.id, step: state.get("step"), picture: state.get("picture"), class: state.get("class"), again: this.#again || null, ...more };
  }

  label(number) {
    return this.model.labels[number] ?? String(number);
  }

  // The token that is pointed at: hovered, else pinned, else none, which means what the answer is read from.
  get pointed() {
    const pinned = state.number("query");
    const token = this.hovered ?? pinned;
    return Number.isInteger(token) && this.trace && token >= 0 && token < this.trace.facts.tokens ? token : null;
  }

  hover(token) {
    if (token === this.hovered) return;
    this.hovered = token;
    this.tell("point");
  }

  pin(token) {
    state.set({ query: state.number("query") === token ? null : token });
  }

  // Class token, register 2, patch 17 (row 1, column 3).
  token(number) {
    const { prefix, class_token, grid: [, columns] } = this.trace.facts;
    if (number === null) return this.reader;
    if (number >= prefix) return `patch ${number - prefix} (row ${Math.floor((number - prefix) / columns)}, column ${(number - prefix) % columns})`;
    return class_token && number === 0 ? "the class token" : `register ${number - (class_token ? 1 : 0)}`;
  }

  // What the answer is read from.
  get reader() {
    return { cls: "the class token", gap: "all patches, which are averaged", map: "the pooling's own query" }[this.model.config.pool];
  }

  on(listener) {
    this.#listeners.push(listener);
  }

  tell(why) {
    for (const listener of this.#listeners) listener(why);
  }

  // The trace of what the address names; a newer question gives up the older one. `again`: even if it was asked before.
  load(again = false) {
    const here = this.here(), { picture } = here;
    const question = net.address("api/trace", here);
    if (!picture || (question === this.#asked && !again)) return this.#loading;
    this.#asked = question;
    this.#loading = this.#load(here);
    return this.#loading;
  }

  async #load(question) {
    this.#asking?.abort();
    const asking = (this.#asking = new AbortController());
    this.busy = true;
    this.tell("busy");
    try {
      const trace = await net.binary("api/trace", question, { signal: asking.signal });
      if (this.#asking !== asking) return;
      this.trace = trace;
      this.stale = false;
      this.hovered = null;
      mended();
      this.tell("trace");
    } catch (error) {
      if (this.#asking !== asking) return; // whatever it was, it is of an older question
      [this.#asked, this.stale] = ["", true];
      if (!(await this.#mended(error, question.picture))) told(error);
    } finally {
      if (this.#asking === asking) {
        this.busy = false;
        this.tell("busy");
      }
    }
  }

  // A picture that this page uploaded is uploaded once more to a studio that does not know it.
  uploads = new Map();

  async upload(file) {
    const { bytes, pixels } = this.facts.limits;
    if (file.size > bytes) throw new net.Refused(`A picture may have ${Math.round(bytes / 2 ** 20)} MiB and ${Math.round(pixels / 1e6)} million pixels; this one has ${(file.size / 2 ** 20).toFixed(1)} MiB.`);
    const before = state.get("picture"), made = await net.post("api/upload", { name: file.name || "pasted" }, file);
    this.uploads.set(made.id, file);
    if (this.uploads.size > 8) this.uploads.delete(this.uploads.keys().next().value);
    if (state.get("picture") === before) state.set({ picture: made.id, class: null, query: null }); // else something else was chosen meanwhile
    return made;
  }

  async #mended(error, picture) {
    if (error.status !== 410 || !this.uploads.has(picture)) return false;
    await net.post("api/upload", { name: this.uploads.get(picture).name || "pasted" }, this.uploads.get(picture)).catch(told);
    this.load(true);
    return true;
  }

  #changed(changed) {
    this.#complete();
    if (changed.has("model")) follow(this.model);
    if (changed.has("model") || changed.has("step")) this.tell("model");
    if (["model", "step", "picture", "class"].some((name) => changed.has(name))) this.load();
    if (changed.has("query")) this.tell("point");
    if (changed.has("part")) this.tell("part");
    else this.tell("state");
  }

  // A run that trains: its checkpoints grow, and after an evaluation its best weights may be others.
  #heard(kind, news) {
    if (kind === "line") {
      this.model.at = Math.max(this.model.at, news.step); // who comes back to this model goes on from there
      if (news.validation && state.get("step") === null) {
        this.#again += 1;
        this.load(true);
      }
      return;
    }
    if (kind === "training") {
      this.model.training = news;
      return;
    }
    if (kind === "steps" && String(news) === String(this.model.steps)) return;
    if (kind === "steps") this.model.steps = news;
    else Object.assign(this.model, { finished: true, training: false });
    this.tell("model");
  }

  // The lines that every snippet begins with, so that it runs as it stands.
  python(...lines) {
    const { python } = this.model, picture = this.trace?.facts.picture;
    const step = state.get("step");
    return ["import torch", "import vitrail", ...(picture?.imports ?? []), "", `model = ${step === null ? python : this.model.past.replace("STEP", step)}`,
      `images = vitrail.prepare(model, [${picture?.python ?? '"picture.jpg"'}])`, "", ...lines].join("\n");
  }
}

export const studio = new Studio();
