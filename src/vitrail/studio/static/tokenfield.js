import { el } from "./dom.js";

// A token by keyboard: those before the patches by name, patches by number. none: what no choice means; same: the token that is that, too.
export function tokenField(label, onchange) {
  const box = el("select", { onchange: () => onchange(box.value === "" ? null : box.value === "patch" ? field.prefix + Number(number.value || 0) : Number(box.value)) });
  const number = el("input", { type: "number", min: 0, class: "patchnumber", "aria-label": `${label}: number of the patch`, placeholder: "patch",
    onchange: () => onchange(number.value === "" ? null : field.prefix + Math.max(0, Math.min(Number(number.max), Math.round(Number(number.value))))) });
  const field = {
    prefix: 0,
    made: "",
    root: el("span", { class: "field" }, el("label", { class: "field" }, el("span", {}, label), box), number),
    sync(studio, none, token, same) {
      const { prefix, tokens } = studio.trace.facts, before = Array.from({ length: prefix }, (_, place) => place).filter((place) => place !== same);
      const options = [["", none], ...before.map((place) => [place, studio.token(place)]), ["patch", "the patch with the number"]];
      if (String(options) !== field.made) box.replaceChildren(...options.map(([value, words]) => el("option", { value }, words)));
      Object.assign(field, { prefix, made: String(options) });
      number.max = tokens - prefix - 1;
      const patch = token !== null && token >= prefix && token < tokens;
      box.value = token === null || token === same || token >= tokens ? "" : patch ? "patch" : String(token);
      number.value = patch ? token - prefix : "";
    },
  };
  return field;
}
