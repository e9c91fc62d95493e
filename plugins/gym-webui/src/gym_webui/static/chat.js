// Conversations with one model, or with two that are asked the same.
import { byId, el, get, post, say, send, watch } from "./common.js";

let talks = []; // {model, messages, place}
let asking = null;

const named = () => [...new Set(["first", "second"].map((id) => byId(id).value.trim()).filter(Boolean))];

function show(models) {
  byId("states").replaceChildren(...Object.entries(models).map(([name, { state, said }]) =>
    el("p", {}, el("span", { class: `status ${state === "ready" ? "finished" : state === "failed" ? "failed" : "running"}` }, state), ` ${name}`, said ? el("pre", {}, said) : null)));
}

function begin() {
  talks = named().map((model) => ({ model, messages: [], place: el("section", { "aria-label": model, "aria-live": "polite" }) }));
  byId("talks").replaceChildren(...talks.map((talk) => el("div", {}, el("h2", {}, talk.model), talk.place)));
}

function sampling() {
  const given = [...document.querySelectorAll("[data-sampling]")].filter((input) => input.value !== "");
  return Object.fromEntries(given.map((input) => [input.dataset.sampling, Number(input.value)]));
}

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    const parts = rest.split(/\r?\n\r?\n/);
    rest = parts.pop();
    for (const part of parts) {
      const line = part.split("\n").filter((each) => each.startsWith("data:")).map((each) => each.slice(5).trim()).join("\n");
      if (line && line !== "[DONE]") yield JSON.parse(line);
    }
  }
}

async function ask(talk, words, signal) {
  talk.messages.push({ role: "user", content: words });
  talk.place.append(el("div", { class: "message user" }, words));
  const [thought, reply, foot] = [el("span", { class: "thought" }), el("span", {}), el("footer", {})];
  talk.place.append(el("div", { class: "message" }, thought, reply, foot));
  const began = performance.now();
  let pieces = 0;
  try {
    const system = byId("system").value.trim();
    const messages = system ? [{ role: "system", content: system }, ...talk.messages] : talk.messages;
    const answer = await send("/chat/ask", { model: talk.model, messages, sampling: sampling() }, signal);
    for await (const event of events(answer.body)) {
      if (event.error) throw new Error(event.error.message);
      const delta = event.choices?.[0]?.delta ?? {};
      thought.textContent += delta.reasoning_content ?? "";
      reply.textContent += delta.content ?? "";
      pieces += 1;
      const reason = event.choices?.[0]?.finish_reason;
      if (reason) foot.textContent = `${reason === "length" ? "cut at max_tokens, " : ""}${((performance.now() - began) / 1000).toFixed(1)} s`;
    }
  } catch (error) {
    foot.textContent = error.name === "AbortError" ? "stopped" : error.message;
    if (!pieces) talk.messages.pop();
  }
  if (pieces) talk.messages.push({ role: "assistant", content: reply.textContent });
}

async function look() {
  show((await get("/chat/state")).models);
}

byId("open").addEventListener("click", async () => {
  begin();
  for (const model of named()) await post("/chat/open", { model }).then((answer) => show(answer.models), (error) => say(byId("states"), error.message));
});
byId("close").addEventListener("click", async () => {
  for (const model of named()) await post("/chat/close", { model }).then((answer) => show(answer.models), (error) => say(byId("states"), error.message));
});
byId("again").addEventListener("click", begin);
byId("halt").addEventListener("click", () => asking?.abort());
byId("say").addEventListener("submit", async (event) => {
  event.preventDefault();
  const words = byId("message").value;
  if (!words.trim() || asking) return;
  if (talks.map((talk) => talk.model).join("\n") !== named().join("\n")) begin();
  byId("message").value = "";
  asking = new AbortController();
  [byId("send").hidden, byId("halt").hidden] = [true, false];
  await Promise.all(talks.map((talk) => ask(talk, words, asking.signal)));
  asking = null;
  [byId("send").hidden, byId("halt").hidden] = [false, true];
});
byId("message").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    byId("say").requestSubmit();
  }
});
watch(look, 2);
