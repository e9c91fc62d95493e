// What the pages share. Texts of runs, plugins and models become text nodes, never HTML.

export function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(name, value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

export const byId = (id) => document.getElementById(id);

async function answer(response) {
  if (response.ok) return response;
  let why = `the server answered ${response.status}`;
  try {
    why = (await response.json()).error.message;
  } catch { /* no JSON: the status is all there is */ }
  throw new Error(why);
}

async function ask(path, options) {
  let response;
  try {
    response = await fetch(path, { ...options, headers: { accept: "application/json", ...options.headers } });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("the server does not answer; runs go on without it");
  }
  return answer(response);
}

export const get = async (path, words = {}) => (await ask(`${path}?${new URLSearchParams(words)}`, {})).json();

export const send = (path, body, signal) =>
  ask(path, { method: "POST", signal, headers: { "content-type": "application/json" }, body: JSON.stringify(body) });

export const post = async (path, body) => (await send(path, body)).json();

export function say(place, text, good = false) {
  place.replaceChildren(text ? el("div", { class: good ? "good" : "problem" }, text) : "");
}

// A button that waits for what it began: a second click does nothing.
export function does(button, work, place) {
  button.addEventListener("click", async () => {
    if (button.disabled) return;
    button.disabled = true;
    try {
      await work();
    } catch (error) {
      say(place, error.message);
    } finally {
      button.disabled = false;
    }
  });
}

// Calls again and again while the page is seen, and says why what is shown is no longer followed.
export function watch(work, seconds) {
  const turn = async () => {
    if (!document.hidden) {
      const why = await work().then(() => "", (error) => error.message);
      if (byId("lost").textContent !== why) say(byId("lost"), why);
    }
    setTimeout(turn, seconds * 1000);
  };
  turn();
}

export function number(value) {
  if (value === null || value === undefined) return "";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e9) return value.toLocaleString("en");
  return size !== 0 && (size < 1e-3 || size >= 1e6) ? value.toExponential(2) : Number(value.toPrecision(5)).toString();
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "";
  const [hours, minutes] = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60];
  if (hours) return `${hours} h ${minutes} min`;
  return minutes ? `${minutes} min ${Math.floor(seconds % 60)} s` : `${Math.round(seconds)} s`;
}
