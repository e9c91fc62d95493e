// One run: what it says of itself on the disk, again and again.
import { byId, does, duration, el, get, number, post, say, watch } from "./common.js";
import { chart, fill } from "./chart.js";

const run = byId("run").dataset.run;
let stopping = false;
let told = "";

function facts(state) {
  const shown = [
    ["model", state.model], ["method", [state.algorithm, state.adapter].filter(Boolean).join(" + ")], ["time", duration(state.seconds)],
    ...Object.entries(state.metrics).filter(([key]) => key !== "step").map(([key, value]) => [key.replaceAll("_", " "), number(value)]),
  ];
  byId("facts").replaceChildren(...shown.filter(([, value]) => value).map(([key, value]) => el("div", {}, el("dt", {}, key), el("dd", {}, value))));
}

async function look() {
  const state = await get("/runs/state", { run });
  stopping = stopping && state.running;
  byId("status").textContent = stopping ? "stopping" : state.status;
  byId("status").className = `status ${state.status}`;
  byId("stop").hidden = state.status !== "running";
  byId("continue").hidden = !["stopped", "failed", "killed"].includes(state.status);
  byId("chat").hidden = byId("export").hidden = state.running;
  byId("progress").hidden = !state.total;
  if (state.total) {
    byId("bar").value = (100 * (state.step ?? 0)) / state.total;
    byId("steps").textContent = `step ${number(state.step ?? 0)} of ${number(state.total)}${state.left ? `, ${state.left} left` : ""}`;
  }
  const problems = state.problems.join("\n");
  if (problems !== told) say(byId("told"), problems);
  told = problems;
  facts(state);
  byId("logs").hidden = !state.log.trim();
  const log = byId("log");
  const below = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
  if (log.textContent !== state.log) log.textContent = state.log;
  if (below) log.scrollTop = log.scrollHeight;
  await draw();
}

async function draw() {
  const { curves } = await get("/runs/curves", { run });
  fill(byId("metric"), Object.keys(curves));
  const metric = byId("metric").value;
  const beside = curves[`eval_${metric}`] ? [{ name: `eval_${metric}`, points: curves[`eval_${metric}`] }] : [];
  chart(byId("chart"), [{ name: metric, points: curves[metric] ?? [] }, ...beside], metric);
}

does(byId("stop"), async () => {
  await post("/runs/stop", { run });
  stopping = true;
  await look();
}, byId("told"));
does(byId("continue"), async () => {
  await post("/runs/continue", { run });
  await look();
}, byId("told"));
byId("metric").addEventListener("change", draw);
watch(look, 2);
