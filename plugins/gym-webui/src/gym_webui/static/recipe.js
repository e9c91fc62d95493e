// The recipe: a text that is the truth, and a form that is drawn from what the text means.
import { byId, does, el, get, post, say, send } from "./common.js";
import { choice, documentation, optionRows, typed } from "./form.js";

const sections = JSON.parse(byId("recipe").dataset.sections);
const [text, form, problems, result] = ["text", "form", "problems", "answer"].map(byId);
const opened = new Set();
const forms = new Map();
let meant = { sections: {}, own: true, converted: "" };
let turn = 0;

const about = (kind, name) => {
  const key = `${kind}/${name}`;
  if (!forms.has(key)) forms.set(key, get("/recipe/form", { kind, name }).catch((error) => ({ doc: error.message, options: [], package: "" })));
  return forms.get(key);
};

// A section's component: its name, and its options by name.
function parts(section, raw) {
  if (raw === null || raw === undefined) return { name: section.implied || section.bare ? section.default : "", values: {} };
  if (typeof raw !== "object" || Array.isArray(raw)) {
    return section.bare ? { name: section.default, values: { [section.bare]: raw } } : { name: String(raw), values: {} };
  }
  const { [section.selector || "name"]: name, ...values } = raw;
  return { name: name ?? section.default ?? "", values };
}

async function changed(path, value) {
  const asked = (turn += 1);
  const answer = await post("/recipe/set", { text: text.value, path, value }).catch((error) => ({ text: null, problems: [{ why: error.message }] }));
  if (answer.text === null) return showProblems(answer.problems);
  if (asked === turn) {
    text.value = answer.text;
    await read();
  }
}

async function read() {
  const asked = (turn += 1);
  const answer = await post("/recipe/read", { text: text.value }).catch((error) => ({ problems: [{ why: error.message }] }));
  if (asked !== turn) return null;
  if (answer.sections && (Object.keys(answer.sections).length || !answer.problems.length)) meant = answer;
  showProblems(answer.problems);
  byId("foreign").hidden = meant.own || !meant.converted;
  await draw();
  return answer;
}

function showProblems(found) {
  problems.replaceChildren(...found.map((problem) => {
    const line = /:(\d+)$/.exec(problem.where ?? "");
    const where = line ? el("button", { type: "button", click: () => goTo(Number(line[1])) }, problem.where) : el("span", { class: "where" }, problem.where ?? "");
    return el("div", { class: "problem" }, where,
      el("p", {}, problem.key ? el("code", {}, problem.key) : "", problem.key ? ": " : "", problem.why),
      problem.fix ? el("p", { class: "fix" }, `→ ${problem.fix}`) : null);
  }));
}

function goTo(line) {
  const lines = text.value.split("\n");
  const start = lines.slice(0, line - 1).join("\n").length + (line > 1 ? 1 : 0);
  text.focus();
  text.setSelectionRange(start, start + (lines[line - 1] ?? "").length);
}

async function draw() {
  const focus = document.activeElement?.dataset?.path;
  const drawn = await Promise.all(sections.map((section) => drawSection(section, meant.sections[section.name])));
  form.replaceChildren(...drawn);
  if (focus) [...form.querySelectorAll("[data-path]")].find((each) => each.dataset.path === focus)?.focus();
}

async function drawSection(section, raw) {
  const path = [section.name];
  const id = `section-${section.name}`;
  const attributes = { id, "data-path": JSON.stringify(path), disabled: !meant.own };
  if (!section.kind || section.many) {
    const body = section.name === "train"
      ? el("span", {}, summary(raw))
      : el("input", { ...attributes, value: typed(raw), placeholder: hint(section), spellcheck: "false", autocomplete: "off",
        change: (event) => changed(path, event.target.value.trim() || null) });
    return box(section, path, id, body, section.name === "train" ? ["train", "train", raw ?? {}, []] : null);
  }
  const { name, values } = parts(section, raw);
  if (section.bare) {
    const inner = [...path, section.bare];
    const body = el("input", { ...attributes, "data-path": JSON.stringify(inner), value: typed(values[section.bare]), placeholder: hint(section), list: `known-${section.name}`, spellcheck: "false", autocomplete: "off",
      change: (event) => changed(inner, event.target.value.trim() || null) });
    return box(section, path, id, body, [section.kind, name, values, [section.bare]]);
  }
  const body = choice(section.choices, name, section.implied ? null : section.name === "algorithm" ? "choose one" : "none",
    { ...attributes, change: (event) => changed(path, event.target.value || null) });
  return box(section, path, id, body, name ? [section.kind, name, values, []] : null);
}

const summary = (raw) => Object.entries(raw ?? {}).map(([key, value]) => `${key} ${typed(value)}`).join(", ") || "defaults";

function hint(section) {
  const hints = { model: "a family, a folder or an id on the Hub", data: "a file, a name, an id on the Hub, or [a, b]", output: "runs/ALGORITHM", hooks: "[NAME]" };
  return hints[section.name] ?? (section.choices ? `[${section.choices.slice(0, 4).join(", ")}, ...]` : "");
}

// A section, or a component inside one, with its options where they are opened: `[kind, name, values, left out]`.
async function box(section, path, id, body, component) {
  const key = JSON.stringify(path);
  const more = component && el("button", { type: "button", class: "more", "aria-expanded": String(opened.has(key)), "data-path": `${key}+`,
    "aria-label": `Options of ${section.title}`,
    click: () => { opened.has(key) ? opened.delete(key) : opened.add(key); draw(); } }, opened.has(key) ? "close" : "options");
  const head = el("div", { class: "head" }, el("label", { for: id }, section.title), body, more);
  const made = el("div", { class: "section" }, head);
  if (component && opened.has(key)) made.append(await drawOptions(path, ...component));
  return made;
}

async function drawOptions(path, kind, name, values, without) {
  const told = await about(kind, name);
  const inner = [];
  const rows = optionRows(told.options.filter((option) => !without.includes(option.name)), values, path, changed, (option, here, value) => {
    const place = el("div", {});
    const { name: chosen, values: given } = parts({ selector: "name" }, value);
    inner.push(box({ title: chosen }, here, "", el("span", {}, ""), [option.kind, chosen, given, []]).then((made) => place.replaceWith(made)));
    return place;
  }, !meant.own);
  await Promise.all(inner);
  return el("div", { class: "options" }, documentation(told.doc, told.package), ...rows);
}

async function fragment(path, waiting) {
  result.replaceChildren(el("p", { class: "note" }, waiting));
  const answer = await (await send(path, { text: text.value })).text();
  result.innerHTML = answer; // written by a template of the server, in which every value is escaped
  result.focus();
}

let typing = 0;
text.addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(read, 700);
});
byId("convert").addEventListener("click", () => {
  text.value = meant.converted;
  read();
});
does(byId("check"), async () => {
  const answer = await read();
  if (answer && !answer.problems.length) say(problems, "valid", true);
}, problems);
does(byId("preview"), () => fragment("/recipe/preview", "Reading and tokenizing the data ..."), result);
does(byId("plan"), () => fragment("/recipe/plan", "Planning ..."), result);
does(byId("open"), async () => { location.href = `/recipe/?${new URLSearchParams({ file: byId("name").value.trim() })}`; }, problems);
does(byId("save"), async () => {
  const { file } = await post("/recipe/save", { name: byId("name").value.trim(), text: text.value });
  say(result, `saved as ${file}`, true);
}, result);
does(byId("start"), async () => {
  const answer = await read();
  if (answer && answer.problems.length) return;
  const { run } = await post("/recipe/start", { name: byId("name").value.trim(), text: text.value });
  location.href = `/runs/?${new URLSearchParams({ run })}`;
  await new Promise(() => undefined); // the page is left
}, result);
read();
