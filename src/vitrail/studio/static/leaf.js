// One file that shows an explanation on its own: the page, its modules, and the answers that it would ask for.

import { download } from "./figure.js";
import * as net from "./net.js";
import { say, told } from "./say.js";
import * as state from "./state.js";

export async function save(studio) {
  if (!studio.trace) {
    say("There is no explanation to save yet; choose a picture first.");
    return;
  }
  say("Saving ...", true);
  const address = state.address(), here = studio.here({ again: null }), title = studio.trace.facts.picture.title; // whatever is chosen meanwhile
  try {
    const { modules } = studio.facts, kept = answers(studio, here);
    const sources = await Promise.all(modules.map((name) => file(`${name}.js`)));
    const made = page(await file("index.html"), await file("style.css"), modules, sources, await kept, address);
    download(new Blob([made], { type: "text/html" }), `${title.replace(/[^\w-]+/g, "_")}.html`);
    say("Saved. The file needs nothing else.");
  } catch (error) {
    told(error);
  }
}

async function file(name) {
  return (await fetch(name)).text();
}

// Modules name each other by "./name.js"; in one file there is no folder, so a map tells where each of them lies.
function page(html, style, modules, sources, kept, address) {
  const imports = Object.fromEntries(modules.map((name, place) => [`studio/${name}`, `data:text/javascript;base64,${coded(renamed(sources[place]))}`]));
  const policy = "default-src 'none'; script-src 'unsafe-inline' data:; style-src 'unsafe-inline'; img-src data: blob:";
  return html
    .replace('<meta charset="utf-8">', () => `<meta charset="utf-8">\n<meta http-equiv="Content-Security-Policy" content="${policy}">`)
    .replace(/<link rel="icon"[^>]*>\n/, "")
    .replace(/<link rel="stylesheet"[^>]*>/, () => `<style>${style}</style>`)
    .replace(/<script type="module"[^>]*><\/script>/, () => `<script type="importmap">${JSON.stringify({ imports })}</script>
<script type="application/json" id="leaf">${JSON.stringify(kept)}</script>
<script>if (!location.hash) location.hash = ${JSON.stringify(address)};</script>
<script type="module">import "studio/main";</script>`);
}

function renamed(source) {
  return source.replace(/(from\s+|import\s+)"\.\/([\w-]+)\.js"/g, '$1"studio/$2"');
}

async function answers(studio, here) {
  const { model, step } = here, kept = {};
  const facts = { ...studio.facts, models: [studio.model], albums: [], first: here.picture };
  kept["api/studio"] = ["application/json", coded(JSON.stringify(facts))];
  const asked = [["api/trace", here], ["api/model", { model, step }], ["api/cost", { like: model }], ["api/picture", { picture: here.picture, size: 512 }, "image/png"]];
  if (studio.model.run) asked.push(["api/run", { model }]);
  const methods = studio.trace.facts.target === null ? ["attention", "rollout"] : studio.facts.methods;
  for (const method of methods) asked.push(["api/flow", { ...here, method }]);
  for (const [path, params, kind = "application/octet-stream"] of asked) {
    say(`Saving: ${path.slice(4)} ${params.method ?? ""} ...`, true);
    kept[net.address(path, params)] = [kind, base64(await net.raw(path, params))];
  }
  return kept;
}

function coded(text) {
  return base64(new TextEncoder().encode(text).buffer);
}

function base64(buffer) {
  const bytes = new Uint8Array(buffer), pieces = [];
  for (let at = 0; at < bytes.length; at += 0x8000) pieces.push(String.fromCharCode(...bytes.subarray(at, at + 0x8000)));
  return btoa(pieces.join(""));
}
