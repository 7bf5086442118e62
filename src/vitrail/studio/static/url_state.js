// The view as key-value pairs in the URL hash: a link reproduces the view.

const HISTORY_KEYS = ["part", "model", "image"]; // changes of these are history entries
let values = read();
let written = location.hash; // by this page; any other is a pasted link whose event has not fired yet
const listeners = [];
let timer = 0;

function read() {
  return Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
}

export function get(name, fallback = null) {
  return values[name] ?? fallback;
}

export function number(name, fallback = null) {
  const value = Number(values[name]);
  return values[name] !== undefined && values[name] !== "" && Number.isFinite(value) ? value : fallback;
}

// null removes a key. Notifies listeners of the changed keys; the URL follows a little later. `back`: whether Back undoes it;
// defaults added to a link are not undone, since they would be added again at once.
export function set(changes, back = true) {
  const changed = new Set(), isHistoryStep = back && HISTORY_KEYS.some((name) => name in changes && values[name] !== asText(changes[name])) && document.body.dataset.ready;
  if (isHistoryStep) write();
  for (const [name, value] of Object.entries(changes)) {
    const next = asText(value);
    if (values[name] === next) continue;
    if (next === undefined) delete values[name];
    else values[name] = next;
    changed.add(name);
  }
  if (!changed.size) return;
  clearTimeout(timer);
  if (isHistoryStep) writeHistory("pushState");
  else timer = setTimeout(write, 150);
  for (const listener of listeners) listener(changed);
}

function asText(value) {
  return value === null || value === undefined ? undefined : String(value);
}

export function hash() {
  return `#${new URLSearchParams(values)}`;
}

function write() {
  clearTimeout(timer);
  if (location.hash !== written) readHash();
  else if (written !== hash()) writeHistory("replaceState");
}

function writeHistory(how) {
  history[how](null, "", hash());
  written = location.hash;
}

function readHash() {
  const before = values, changed = new Set();
  [values, written] = [read(), location.hash];
  for (const name of new Set([...Object.keys(before), ...Object.keys(values)])) if (before[name] !== values[name]) changed.add(name);
  if (changed.size) for (const listener of listeners) listener(changed);
}

export function onChange(listener) {
  listeners.push(listener);
}

addEventListener("hashchange", readHash); // another link was pasted, or Back was pressed
addEventListener("pagehide", write);
