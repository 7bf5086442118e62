// One status message, visible and announced to screen readers.

let timer = 0;
addEventListener("keydown", (event) => event.key === "Escape" && toast(""));
document.getElementById("toast")?.addEventListener("click", () => toast(""));
let isError = false; // whether the message is an error

export function toast(text, sticky = false) {
  isError = false;
  const element = document.getElementById("toast");
  element.textContent = text;
  element.classList.toggle("shown", Boolean(text));
  clearTimeout(timer);
  if (text && !sticky) timer = setTimeout(() => toast(""), 6000);
}

// Show the server's own error message; an aborted request is no error.
export function showError(error) {
  if (error.name === "AbortError") return;
  toast(error.message, true);
  isError = true;
  if (error.constructor.name !== "ApiError") console.error(error);
}

// Hide an error that no longer holds.
export function clearError() {
  if (isError) toast("");
}
