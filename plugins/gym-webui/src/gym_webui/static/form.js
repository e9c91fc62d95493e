// Forms of components, from what their config classes say. A change is a key path and a text, by the rules of KEY=VALUE.
import { el } from "./common.js";

// Returns a value of a recipe as it is typed: `1e-4`, `[a, b]`, `{name: lora}`.
export const typed = (value) => (value === null || value === undefined ? "" : typeof value === "object" ? flow(value) : String(value));

function flow(value) {
  if (Array.isArray(value)) return `[${value.map(flow).join(", ")}]`;
  if (value !== null && typeof value === "object") return `{${Object.entries(value).map(([key, item]) => `${flow(key)}: ${flow(item)}`).join(", ")}}`;
  const plain = typeof value === "string" && /^[A-Za-z_/][\w./-]*$/.test(value) && !/^(true|false|null)$/i.test(value);
  return plain ? value : JSON.stringify(value);
}

// What a component does: its first paragraph, and the rest on demand.
export function documentation(doc, from = "") {
  const [first, ...rest] = doc.split("\n\n");
  return el("div", { class: "doc" }, el("p", {}, first.replaceAll("\n", " "), from ? el("small", {}, ` ${from}`) : null),
    rest.length ? el("details", {}, el("summary", {}, "more"), el("p", { class: "more" }, rest.join("\n\n"))) : null);
}

export function choice(names, value, empty, attributes) {
  const known = names.includes(value) || value === "" ? names : [value, ...names];
  const options = known.map((name) => el("option", { value: name, selected: name === value }, name));
  if (empty !== null) options.unshift(el("option", { value: "", selected: value === "" }, empty));
  return el("select", attributes, ...options);
}

// One row for each option. `changed(path, text or null)`; `inner(option, path, value)` returns the form of a component in it.
export function optionRows(options, values, path, changed, inner = () => null, disabled = false) {
  return options.map((option) => {
    const [here, value] = [[...path, option.name], typed(values[option.name])];
    const one = option.kind && !option.type.startsWith("list");
    const name = one && values[option.name] && typeof values[option.name] === "object" ? values[option.name].name ?? "" : value;
    const attributes = {
      "data-path": JSON.stringify(here), disabled,
      change: (event) => changed(here, event.target.value.trim() || null),
    };
    const needed = option.default === "required";
    const shown = needed ? "required" : option.default;
    const control = option.choices.length && (one || !option.kind)
      ? choice(option.choices, name, needed ? "choose one" : `default: ${shown}`, attributes)
      : el("input", { ...attributes, value, placeholder: shown, spellcheck: "false", autocomplete: "off" });
    const doc = option.type === "true or false" ? option.doc : `${option.doc} (${option.type})`;
    return el("div", { class: value ? "option set" : "option" },
      el("span", {}, el("label", { for: labelled(control) }, option.name)), control, el("small", {}, doc),
      one && name ? inner(option, here, values[option.name]) : null);
  });
}

let numbers = 0;
function labelled(control) {
  control.id = `option-${numbers += 1}`;
  return control.id;
}
