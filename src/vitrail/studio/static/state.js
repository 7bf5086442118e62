// What is shown, in the address bar: a link reproduces the view. Names and values are words and numbers after the #.

const STEPS = ["part", "model", "picture"]; // to which the browser's Back returns
let now = read();
const listeners = [];
let timer = 0;

function read() {
  return Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
}

export function get(name, otherwise = null) {
  return now[name] ?? otherwise;
}

export function number(name, otherwise = null) {
  const value = Number(now[name]);
  return now[name] !== undefined && now[name] !== "" && Number.isFinite(value) ? value : otherwise;
}

// null forgets a name. Tells whoever listens which names have changed; the address follows a little later.
export function set(changes) {
  const changed = new Set(), step = STEPS.some((name) => name in changes && now[name] !== word(changes[name])) && document.body.dataset.ready;
  if (step) write();
  for (const [name, value] of Object.entries(changes)) {
    const next = word(value);
    if (now[name] === next) continue;
    if (next === undefined) delete now[name];
    else now[name] = next;
    changed.add(name);
  }
  if (!changed.size) return;
  clearTimeout(timer);
  if (step) history.pushState(null, "", address());
  else timer = setTimeout(write, 150);
  for (const listener of listeners) listener(changed);
}

function word(value) {
  return value === null || value === undefined ? undefined : String(value);
}

export function address() {
  return `#${new URLSearchParams(now)}`;
}

export function write() {
  clearTimeout(timer);
  if (location.hash !== address()) history.replaceState(null, "", address());
}

export function watch(listener) {
  listeners.push(listener);
}

addEventListener("hashchange", () => { // somebody has pasted another link
  const next = read(), changed = new Set();
  for (const name of new Set([...Object.keys(now), ...Object.keys(next)])) if (now[name] !== next[name]) changed.add(name);
  now = next;
  if (changed.size) for (const listener of listeners) listener(changed);
});
addEventListener("pagehide", write);
