// What is shown, in the address bar: a link reproduces the view. Names and values are words and numbers after the #.

const STEPS = ["part", "model", "picture"]; // to which the browser's Back returns
let now = read();
let written = location.hash; // by this page; any other is a link that somebody has pasted and no event has told of yet
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

// null forgets a name. Tells whoever listens which names have changed; the address follows a little later. `back`: whether Back
// undoes it; what completes a link it must not undo, since it would be done at once again.
export function set(changes, back = true) {
  const changed = new Set(), step = back && STEPS.some((name) => name in changes && now[name] !== word(changes[name])) && document.body.dataset.ready;
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
  if (step) put("pushState");
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
  if (location.hash !== written) take();
  else if (written !== address()) put("replaceState");
}

function put(how) {
  history[how](null, "", address());
  written = location.hash;
}

function take() {
  const before = now, changed = new Set();
  [now, written] = [read(), location.hash];
  for (const name of new Set([...Object.keys(before), ...Object.keys(now)])) if (before[name] !== now[name]) changed.add(name);
  if (changed.size) for (const listener of listeners) listener(changed);
}

export function watch(listener) {
  listeners.push(listener);
}

addEventListener("hashchange", take); // somebody has pasted another link, or gone back
addEventListener("pagehide", write);
