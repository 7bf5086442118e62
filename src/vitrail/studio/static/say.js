// One sentence for the person, seen and read aloud.

let timer = 0;
addEventListener("keydown", (event) => event.key === "Escape" && say(""));
document.getElementById("said")?.addEventListener("click", () => say(""));
let failure = false; // that is what is being told

export function say(words, lasting = false) {
  failure = false;
  const place = document.getElementById("said");
  place.textContent = words;
  place.classList.toggle("shown", Boolean(words));
  clearTimeout(timer);
  if (words && !lasting) timer = setTimeout(() => say(""), 6000);
}

// A failure is told in the server's own sentence; what was given up is no failure.
export function told(error) {
  if (error.name === "AbortError") return;
  say(error.message, true);
  failure = true;
  if (error.constructor.name !== "Refused") console.error(error);
}

// What failed is no longer so.
export function mended() {
  if (failure) say("");
}
