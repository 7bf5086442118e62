// A run that is not finished, as it goes on: one connection a page, whichever part is in view.
//
// Whoever listens is told ("line", {...}), ("steps", [...]), ("training", whether) and in the end ("done", {...}).

import { address, alone } from "./net.js";

const AGAIN = 2000; // milliseconds until a lost connection is tried again
const listeners = [];
let source = null, followed = null, last = -1, timer = 0;

export function live(listener) {
  listeners.push(listener);
}

// Called whenever the model may have changed.
export function follow(model) {
  const wanted = !alone && model.run && !model.finished ? model.id : null;
  if (wanted === followed) return;
  stop();
  if (!wanted) return;
  [followed, last] = [wanted, model.at];
  connect();
}

function connect() {
  const mine = (source = new EventSource(address("api/events", { model: followed, after: last })));
  for (const kind of ["line", "steps", "training", "done"]) {
    mine.addEventListener(kind, (event) => {
      const told = JSON.parse(event.data);
      if (kind === "line") last = Math.max(last, told.step);
      if (kind === "done") stop();
      for (const listener of listeners) listener(kind, told);
    });
  }
  mine.addEventListener("error", () => { // begins again behind the last step that arrived
    if (source !== mine) return;
    mine.close();
    timer = setTimeout(connect, AGAIN);
  });
}

// A tab that nobody looks at holds no connection: a browser has six for all tabs.
document.addEventListener("visibilitychange", () => {
  if (!followed) return;
  clearTimeout(timer);
  source?.close();
  if (!document.hidden) connect();
});

function stop() {
  source?.close();
  clearTimeout(timer);
  [source, followed] = [null, null];
}
