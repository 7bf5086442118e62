// Save the view as one standalone HTML file: the page, its modules, and the responses that it would request.

import { download } from "./figure.js";
import * as api from "./api.js";
import { toast, showError } from "./toast.js";
import * as state from "./url_state.js";

export async function saveStandalonePage(store) {
  if (!store.trace) {
    toast("There is nothing to save yet; select an image first.");
    return;
  }
  toast("Saving ...", true);
  const hash = state.hash(), viewParams = store.requestParams({ weights_version: null }), title = store.trace.meta.image.title; // whatever is selected meanwhile
  try {
    const { modules } = store.info, responses = collectResponses(store, viewParams);
    const sources = await Promise.all(modules.map((name) => file(`${name}.js`)));
    const content = page(await file("index.html"), await file("style.css"), modules, sources, await responses, hash);
    download(new Blob([content], { type: "text/html" }), `${title.replace(/[^\w-]+/g, "_")}.html`);
    toast("Saved as one standalone file.");
  } catch (error) {
    showError(error);
  }
}

async function file(name) {
  return (await fetch(name)).text();
}

// Modules import each other by "./name.js"; a single file has no folder, so an import map holds them as data URLs.
function page(html, style, modules, sources, responses, hash) {
  const imports = Object.fromEntries(modules.map((name, index) => [`studio/${name}`, `data:text/javascript;base64,${encodeText(rewriteImports(sources[index]))}`]));
  const policy = "default-src 'none'; script-src 'unsafe-inline' data:; style-src 'unsafe-inline'; img-src data: blob:";
  return html
    .replace('<meta charset="utf-8">', () => `<meta charset="utf-8">\n<meta http-equiv="Content-Security-Policy" content="${policy}">`)
    .replace(/<link rel="icon"[^>]*>\n/, "")
    .replace(/<link rel="stylesheet"[^>]*>/, () => `<style>${style}</style>`)
    .replace(/<script type="module"[^>]*><\/script>/, () => `<script type="importmap">${JSON.stringify({ imports })}</script>
<script type="application/json" id="saved-responses">${JSON.stringify(responses)}</script>
<script>if (!location.hash) location.hash = ${JSON.stringify(hash)};</script>
<script type="module">import "studio/main";</script>`);
}

function rewriteImports(source) {
  return source.replace(/(from\s+|import\s+)"\.\/([\w-]+)\.js"/g, '$1"studio/$2"');
}

async function collectResponses(store, viewParams) {
  const { model, step } = viewParams, responses = {};
  const info = { ...store.info, models: [store.model], datasets: [], first_image: viewParams.image };
  responses["api/studio"] = ["application/json", encodeText(JSON.stringify(info))];
  const requests = [["api/trace", viewParams], ["api/model", { model, step }], ["api/cost", { like: model }], ["api/image", { image: viewParams.image, size: 512 }, "image/png"]];
  if (store.model.segments) requests.push(["api/mask", { model, step, image: viewParams.image }]);
  if (store.model.detects) requests.push(["api/boxes", { model, step, image: viewParams.image }]);
  if (store.model.is_run) requests.push(["api/run", { model }]);
  const methods = store.trace.meta.target === null ? ["attention", "rollout"] : store.info.methods;
  for (const method of methods) requests.push(["api/saliency", { ...viewParams, method }]);
  for (const [path, params, type = "application/octet-stream"] of requests) {
    toast(`Saving: ${path.slice(4)} ${params.method ?? ""} ...`, true);
    responses[api.requestUrl(path, params)] = [type, base64(await api.fetchBytes(path, params))];
  }
  return responses;
}

function encodeText(text) {
  return base64(new TextEncoder().encode(text).buffer);
}

function base64(buffer) {
  const bytes = new Uint8Array(buffer), chunks = [];
  for (let at = 0; at < bytes.length; at += 0x8000) chunks.push(String.fromCharCode(...bytes.subarray(at, at + 0x8000)));
  return btoa(chunks.join(""));
}
