// Exports: the form of an exporter, and what the command says.
import { byId, does, el, get, post, say, watch } from "./common.js";
import { documentation, optionRows } from "./form.js";

const [run, exporter] = [byId("run"), byId("exporter")];
let values = {};

async function draw() {
  const told = await get("/export/form", { name: exporter.value }).catch((error) => ({ doc: error.message, options: [] }));
  byId("doc").replaceChildren(documentation(told.doc, told.package));
  const rows = optionRows(told.options, values, [], ([name], value) => {
    const { [name]: before, ...others } = values;
    values = value === null ? others : { ...others, [name]: value };
  });
  byId("form").replaceChildren(...rows);
}

async function look() {
  const state = await get("/export/state", { run: run.value });
  byId("exports").replaceChildren(...state.exports.map((name) => el("li", {}, el("code", {}, name))));
  if (!state.exports.length) byId("exports").append(el("li", { class: "note" }, "none"));
  byId("logs").hidden = !state.log.trim();
  byId("log").textContent = state.log;
  byId("start").textContent = state.running ? "Exporting ..." : "Export";
}

if (run) {
  exporter.addEventListener("change", () => { values = {}; draw(); });
  run.addEventListener("change", look);
  does(byId("start"), async () => {
    say(byId("told"), "");
    await post("/export/start", { run: run.value, exporter: exporter.value, options: values });
    await look();
  }, byId("told"));
  draw();
  watch(look, 2);
}
