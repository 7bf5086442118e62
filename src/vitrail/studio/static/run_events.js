// Server-sent events of an unfinished run: one connection per page, for all parts.
//
// Listeners get ("log_row", {...}), ("checkpoint_steps", [...]), ("training", boolean) and in the end ("finished", {...}).

import { requestUrl, standalone } from "./api.js";

const RETRY_MS = 2000; // milliseconds until a lost connection is retried
const listeners = [];
let source = null, followedRun = null, lastStep = -1, timer = 0;

export function onRunEvent(listener) {
  listeners.push(listener);
}

// Called whenever the model may have changed.
export function followRun(model) {
  const wanted = !standalone && model.is_run && !model.finished ? model.id : null;
  if (wanted === followedRun) return;
  stop();
  if (!wanted) return;
  [followedRun, lastStep] = [wanted, model.last_step];
  connect();
}

function connect() {
  const connection = (source = new EventSource(requestUrl("api/events", { model: followedRun, after: lastStep })));
  for (const kind of ["log_row", "checkpoint_steps", "training", "finished"]) {
    connection.addEventListener(kind, (event) => {
      const data = JSON.parse(event.data);
      if (kind === "log_row") lastStep = Math.max(lastStep, data.step);
      if (kind === "finished") stop();
      for (const listener of listeners) listener(kind, data);
    });
  }
  connection.addEventListener("error", () => { // resume after the last received step
    if (source !== connection) return;
    connection.close();
    timer = setTimeout(connect, RETRY_MS);
  });
}

// A hidden tab holds no connection: a browser has six per server for all tabs.
document.addEventListener("visibilitychange", () => {
  if (!followedRun) return;
  clearTimeout(timer);
  source?.close();
  if (!document.hidden) connect();
});

function stop() {
  source?.close();
  clearTimeout(timer);
  [source, followedRun] = [null, null];
}
