// The state that all parts share: the models, the image, its trace, and the active token. Everything shown follows from the URL.
//
// A part is drawn by `draw(reason)`; reason is "open" (it was just opened), "model", "trace", "point", "state" or "theme".

import { setColormap } from "./colormap.js";
import { followRun, onRunEvent } from "./run_events.js";
import * as api from "./api.js";
import { clearError, showError } from "./toast.js";
import * as state from "./url_state.js";

class Store {
  info = null; // api/studio
  trace = null; // of the image by the model: {meta, arrays}
  hovered = null; // the token under the pointer or the keyboard focus
  busy = false;
  stale = false; // what is shown belongs to an older request, since the last one failed
  #listeners = [];
  #controller = null;
  #requestedUrl = "";
  #loading = null;
  #weightsVersion = 0; // counts changes of the best weights, so that no cached response of older weights is used

  async open() {
    this.info = await api.fetchJson("api/studio");
    setColormap(this.info.colormap);
    this.#fillDefaults();
    state.onChange((changed) => this.#onUrlChange(changed));
    onRunEvent((kind, data) => this.#onRunEvent(kind, data));
    followRun(this.model);
  }

  // A link may leave out the model and the image, or name a model that does not exist.
  #fillDefaults() {
    if (!this.info.models.some((model) => model.id === state.get("model"))) state.set({ model: this.info.models[0].id, step: null }, false);
    if (!state.get("image")) state.set({ image: this.info.first_image }, false);
  }

  get model() {
    return this.info.models.find((model) => model.id === state.get("model")) ?? this.info.models[0];
  }

  // The parameters that most requests share.
  requestParams(more = {}) {
    return { model: this.model.id, step: state.get("step"), image: state.get("image"), class: state.get("class"), pixel: this.model.segments ? state.get("pixel") : null, box: this.model.detects ? state.get("box") : null, weights_version: this.#weightsVersion || null, ...more };
  }

  label(number) {
    return this.model.class_names[number] ?? String(number);
  }

  // The active token: hovered, else pinned, else null, which stands for the pooled output.
  get activeToken() {
    const pinned = state.number("query");
    const token = this.hovered ?? pinned;
    return Number.isInteger(token) && this.trace && token >= 0 && token < this.trace.meta.tokens ? token : null;
  }

  hover(token) {
    if (token === this.hovered) return;
    this.hovered = token;
    this.notify("point");
  }

  pin(token) {
    state.set({ query: state.number("query") === token ? null : token });
  }

  // Class token, register 2, patch 17 (row 1, column 3).
  tokenName(number) {
    const { prefix, class_token, grid: [, columns] } = this.trace.meta;
    if (number === null) return this.poolingSource;
    if (number >= prefix) return `patch ${number - prefix} (row ${Math.floor((number - prefix) / columns)}, column ${(number - prefix) % columns})`;
    return class_token && number === 0 ? "the class token" : `register ${number - (class_token ? 1 : 0)}`;
  }

  // What the prediction is read from.
  get poolingSource() {
    if (this.trace?.meta.region) return this.trace.meta.region.bounds ? "the patch at the centre of the box" : "the patches of the region";
    return { cls: "the class token", gap: "the mean of all patches", map: "the attention pooling", "cls+gap": "the class token and the mean",
      "cls+register": "the class token and the first register" }[this.model.config.pool];
  }

  subscribe(listener) {
    this.#listeners.push(listener);
  }

  notify(reason) {
    for (const listener of this.#listeners) listener(reason);
  }

  // Load the trace of the URL; a newer request aborts the older one. `force`: even if it was requested before.
  load(force = false) {
    const requestParams = this.requestParams(), { image } = requestParams;
    const url = api.requestUrl("api/trace", requestParams);
    if (!image || (url === this.#requestedUrl && !force)) return this.#loading;
    this.#requestedUrl = url;
    this.#loading = this.#load(requestParams);
    return this.#loading;
  }

  async #load(params) {
    this.#controller?.abort();
    const controller = (this.#controller = new AbortController());
    this.busy = true;
    this.notify("busy");
    try {
      const trace = await api.fetchArrays("api/trace", params, { signal: controller.signal });
      if (this.#controller !== controller) return;
      this.trace = trace;
      this.stale = false;
      this.hovered = null;
      clearError();
      this.notify("trace");
    } catch (error) {
      if (this.#controller !== controller) return; // it belongs to an older request
      [this.#requestedUrl, this.stale] = ["", true];
      if (!(await this.#reupload(error, params.image))) showError(error);
    } finally {
      if (this.#controller === controller) {
        this.busy = false;
        this.notify("busy");
      }
    }
  }

  // Files uploaded by this page, to upload them again to a restarted studio.
  uploads = new Map();

  async upload(file) {
    const { bytes, pixels } = this.info.limits;
    if (file.size > bytes) throw new api.ApiError(`An image may have at most ${Math.round(bytes / 2 ** 20)} MiB and ${Math.round(pixels / 1e6)} million pixels; this one has ${(file.size / 2 ** 20).toFixed(1)} MiB.`);
    const before = state.get("image"), uploaded = await api.post("api/upload", { name: file.name || "pasted" }, file);
    this.uploads.set(uploaded.id, file);
    if (this.uploads.size > 8) this.uploads.delete(this.uploads.keys().next().value);
    if (state.get("image") === before) state.set({ image: uploaded.id, class: null, query: null, pixel: null, box: null }); // else another image was selected meanwhile
    return uploaded;
  }

  async #reupload(error, image) {
    if (error.status !== 410 || !this.uploads.has(image)) return false;
    await api.post("api/upload", { name: this.uploads.get(image).name || "pasted" }, this.uploads.get(image)).catch(showError);
    this.load(true);
    return true;
  }

  #onUrlChange(changed) {
    this.#fillDefaults();
    if (changed.has("model")) followRun(this.model);
    if (changed.has("model") || changed.has("step")) this.notify("model");
    if (["model", "step", "image", "class", "pixel", "box"].some((name) => changed.has(name))) this.load();
    if (changed.has("query")) this.notify("point");
    if (changed.has("part")) this.notify("part");
    else this.notify("state");
  }

  // A run in training: it adds checkpoints, and an evaluation may change its best weights.
  #onRunEvent(kind, data) {
    if (kind === "log_row") {
      this.model.last_step = Math.max(this.model.last_step, data.step); // events resume from there if this model is selected again
      if (data.validation && state.get("step") === null) {
        this.#weightsVersion += 1;
        this.load(true);
      }
      return;
    }
    if (kind === "training") {
      this.model.training = data;
      return;
    }
    if (kind === "checkpoint_steps" && String(data) === String(this.model.checkpoint_steps)) return;
    if (kind === "checkpoint_steps") this.model.checkpoint_steps = data;
    else Object.assign(this.model, { finished: true, training: false });
    this.notify("model");
  }

  // Python code with the imports, model and image that it needs to run.
  python(...lines) {
    const { python } = this.model, image = this.trace?.meta.image;
    const step = state.get("step"), { region, grid } = this.trace?.meta ?? {}, size = region ? `${grid[0] * this.model.stride[0]}, ${grid[1] * this.model.stride[1]}` : "";
    return ["import torch", "import vitrail", ...(image?.imports ?? []), ...(region && !region.bounds ? ["from vitrail.explain.region import RegionClassifier"] : []), "", `model = ${step === null ? python : this.model.python_at_step.replace("STEP", step)}`,
      `images = vitrail.preprocess(model, [${image?.python ?? '"image.jpg"'}])`,
      ...(!region ? [] : region.bounds ? [`model = vitrail.explain.box_classifier(model, images, ${region.index === null ? `label=${region.class}` : region.index})  # classifies this box`] : region.pixel ? [`weights = torch.zeros(1, ${size})`, `weights[0, ${region.pixel[1]}, ${region.pixel[0]}] = 1  # row, column`]
        : [`weights = (model(images).argmax(1) == ${region.class}).float()`, "weights /= weights.sum()"]),
      ...(region && !region.bounds ? ["model = RegionClassifier(model, weights)  # classifies these pixels"] : []), "", ...lines].join("\n");
  }

  // The pixels or the box whose class is explained; null for a classifier of images.
  get regionText() {
    const { region } = this.trace?.meta ?? {};
    if (!region) return null;
    if (region.bounds) return `${region.index === null ? "the best box" : `box ${region.index}`} (${this.label(region.class)})`;
    return region.pixel ? `the pixel at column ${region.pixel[0]}, row ${region.pixel[1]}` : `the ${region.pixels.toLocaleString("en")} pixels that are predicted as ${this.label(region.class)}`;
  }
}

export const store = new Store();
