// Curves as SVG: one path for each run, with a line that follows the pointer.
import { el, number } from "./common.js";

const [WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [800, 270, 62, 28, 12, 28];

function node(tag, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function ticks(low, high, count) {
  const rough = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((part) => part * power).find((part) => part >= rough);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-9; at += step) found.push(Math.abs(at) < step * 1e-9 ? 0 : at);
  return found;
}

// `lines`: [{name, points: [[step, value], ...]}]
export function chart(place, lines, metric) {
  const drawn = lines.filter((line) => line.points.length);
  if (!drawn.length) {
    place.replaceChildren(el("p", { class: "note" }, "Nothing was logged yet."));
    return;
  }
  const all = drawn.flatMap((line) => line.points);
  const range = (at) => all.reduce(([low, high], point) => [Math.min(low, point[at]), Math.max(high, point[at])], [Infinity, -Infinity]);
  let [[first, last], [low, high]] = [range(0), range(1)];
  if (first === last) [first, last] = [first - 1, last + 1];
  const room = (high - low) * 0.05 || Math.abs(high) * 0.1 || 1;
  [low, high] = [low - room, high + room];
  const x = (step) => LEFT + ((step - first) / (last - first)) * (WIDTH - LEFT - RIGHT);
  const y = (value) => TOP + ((high - value) / (high - low)) * (HEIGHT - TOP - BOTTOM);

  const label = `${metric} by step: ${drawn.map((line) => `${line.name} ends at ${number(line.points.at(-1)[1])}`).join("; ")}`;
  const svg = node("svg", { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label });
  for (const value of ticks(low, high, 5)) {
    svg.append(node("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value) }));
    svg.append(node("text", { x: LEFT - 8, y: y(value) + 4, "text-anchor": "end" }, number(value)));
  }
  for (const step of ticks(first, last, 8).filter(Number.isInteger)) {
    svg.append(node("text", { x: x(step), y: HEIGHT - 8, "text-anchor": "middle" }, number(step)));
  }
  drawn.forEach((line, which) => {
    const path = line.points.map(([step, value], at) => `${at ? "L" : "M"}${x(step).toFixed(1)} ${y(value).toFixed(1)}`).join("");
    if (line.points.length > 1) svg.append(node("path", { class: `c${which % 6}`, d: path }));
    else svg.append(node("circle", { class: `c${which % 6} dot`, cx: x(line.points[0][0]), cy: y(line.points[0][1]), r: 3 }));
  });
  const rule = node("line", { class: "at", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
  svg.append(rule);

  const values = drawn.map(() => document.createTextNode(""));
  const legend = el("div", { class: "legend" });
  drawn.forEach((line, which) => legend.append(el("span", {}, el("i", { class: `c${which % 6}` }), line.name, values[which])));
  const show = (step) => drawn.forEach((line, which) => {
    const nearest = line.points.reduce((best, point) => (Math.abs(point[0] - step) <= Math.abs(best[0] - step) ? point : best));
    values[which].data = `  ${number(nearest[1])} at ${number(nearest[0])}`;
  });
  show(last);
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * WIDTH;
    const step = first + ((at - LEFT) / (WIDTH - LEFT - RIGHT)) * (last - first);
    if (step < first || step > last) return;
    rule.setAttribute("x1", at);
    rule.setAttribute("x2", at);
    rule.setAttribute("visibility", "visible");
    show(step);
  });
  svg.addEventListener("pointerleave", () => {
    rule.setAttribute("visibility", "hidden");
    show(last);
  });
  place.replaceChildren(svg, legend);
}

// Puts the names of metrics into a <select>, and keeps what was chosen. The loss is chosen first.
export function fill(select, names) {
  const before = [...select.options].map((option) => option.value);
  if (before.join("\n") === names.join("\n")) return;
  const chosen = names.includes(select.value) ? select.value : names.includes("loss") ? "loss" : names[0];
  select.replaceChildren(...names.map((name) => el("option", { selected: name === chosen }, name)));
}
