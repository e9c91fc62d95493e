// The list of runs, and their curves over each other.
import { byId, duration, el, get, number, watch } from "./common.js";
import { chart, fill } from "./chart.js";

const compared = new Set();
let shown = "";

function row(run) {
  const box = el("input", { type: "checkbox", "aria-label": `Compare ${run.run}`, change: () => { box.checked ? compared.add(run.run) : compared.delete(run.run); draw(); } });
  box.checked = compared.has(run.run);
  const step = run.total ? `${number(run.step ?? 0)} / ${number(run.total)}` : number(run.step);
  return el("tr", {},
    el("td", {}, box),
    el("td", { class: "name" }, el("a", { href: `/runs/?${new URLSearchParams({ run: run.run })}` }, run.run),
      run.problems.length ? el("div", {}, el("small", {}, run.problems[0].split("\n").slice(0, 2).join(" "))) : null),
    el("td", {}, el("span", { class: `status ${run.status}` }, run.status)),
    el("td", {}, step), el("td", {}, number(run.metrics.loss ?? run.metrics.reward)), el("td", { class: "name" }, run.model),
    el("td", {}, [run.algorithm, run.adapter].filter(Boolean).join(" + ")),
    el("td", {}, run.left ? `${run.left} left` : duration(run.seconds)));
}

async function list() {
  const { runs } = await get("/runs/list");
  for (const run of compared) if (!runs.some((each) => each.run === run)) compared.delete(run);
  const now = JSON.stringify(runs);
  byId("none").hidden = runs.length > 0;
  if (now !== shown && !byId("runs").contains(document.activeElement?.closest("a"))) {
    const focus = document.activeElement?.getAttribute("aria-label");
    byId("runs").tBodies[0].replaceChildren(...runs.map(row));
    if (focus) document.querySelector(`[aria-label="${CSS.escape(focus)}"]`)?.focus();
    shown = now;
  }
  await draw();
}

async function draw() {
  byId("compare").hidden = !compared.size;
  if (!compared.size) return;
  const found = await Promise.all([...compared].map(async (run) => ({ run, ...(await get("/runs/curves", { run })) })));
  fill(byId("metric"), [...new Set(found.flatMap((each) => Object.keys(each.curves)))].sort());
  const metric = byId("metric").value;
  chart(byId("chart"), found.map((each) => ({ name: each.run, points: each.curves[metric] ?? [] })), metric);
}

byId("metric").addEventListener("change", draw);
watch(list, 3);
