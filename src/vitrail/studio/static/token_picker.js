import { el } from "./dom.js";

// Select a token by keyboard: prefix tokens by name, patches by index. noneText: label of no selection; equivalent: the token that it stands for.
export function tokenPicker(label, onchange) {
  const box = el("select", { onchange: () => onchange(box.value === "" ? null : box.value === "patch" ? field.prefix + Number(number.value || 0) : Number(box.value)) });
  const number = el("input", { type: "number", min: 0, class: "patch-index", "aria-label": `${label}: patch index`, placeholder: "patch",
    onchange: () => onchange(number.value === "" ? null : field.prefix + Math.max(0, Math.min(Number(number.max), Math.round(Number(number.value))))) });
  const field = {
    prefix: 0,
    drawnOptions: "",
    root: el("span", { class: "field" }, el("label", { class: "field" }, el("span", {}, label), box), number),
    sync(store, noneText, token, equivalent) {
      const { prefix, tokens } = store.trace.meta, prefixTokens = Array.from({ length: prefix }, (_, index) => index).filter((index) => index !== equivalent);
      const options = [["", noneText], ...prefixTokens.map((index) => [index, store.tokenName(index)]), ["patch", "patch with index"]];
      if (String(options) !== field.drawnOptions) box.replaceChildren(...options.map(([value, text]) => el("option", { value }, text)));
      Object.assign(field, { prefix, drawnOptions: String(options) });
      number.max = tokens - prefix - 1;
      const patch = token !== null && token >= prefix && token < tokens;
      box.value = token === null || token === equivalent || token >= tokens ? "" : patch ? "patch" : String(token);
      number.value = patch ? token - prefix : "";
    },
  };
  return field;
}
