// One EventSource a page: it resumes by its cursor, and the page shows how old it is without it.
import { exact, relative } from "./format.js";

const RETRY_MS = [1000, 2000, 5000, 10000];
const AGES_MS = 60_000;
let followed = false;

function show(state, at) {
  const place = document.getElementById("live");
  if (!place) return;
  const text = state === "on" ? "● live"
    : state === "ended" ? "■ complete"
    : state === "signed-out" ? "Your session has ended: sign in again"
    : state === "read" ? `as of ${relative(at)}`
    : `◌ as of ${relative(at)}`;
  place.hidden = false;
  place.className = `live ${state}`;
  place.setAttribute("aria-live", state === "read" ? "off" : "polite");
  if (place.textContent !== text) place.textContent = text;
  place.title = `The page is as of ${exact(at)}`;
}

/**
 * The age of a page that follows no stream: after a minute, and at once without a network or when
 * a part of it could not be read again. `timeless`: its age says nothing while there is a network.
 */
export function keepAge(timeless) {
  let at = Date.now(), away = !navigator.onLine;
  function tell() {
    if (followed) return;
    const old = !timeless && Date.now() - at >= AGES_MS;
    if (away || old) show(away ? "away" : "read", at);
    else document.getElementById("live").hidden = true;
  }
  function became(gone) {
    away = gone;
    tell();
  }
  addEventListener("offline", () => became(true));
  addEventListener("online", () => became(false));
  for (const name of ["htmx:afterRequest", "again"]) {
    document.addEventListener(name, ({ detail }) => {
      if (detail.successful) at = Date.now();
      became(!detail.successful);
    });
  }
  setInterval(tell, 1000);
  tell();
}

/**
 * Follow a stream of the gateway.
 *
 * handlers: {event name: function(data, event)}. `onAgain`: called when a stream begins again
 * without its cursor, so that the page must read what it missed. Returns a function that ends it.
 */
export function follow(url, handlers, { onAgain = () => {} } = {}) {
  let source = null, tries = 0, fresh = Date.now(), state = "on", timer = 0, over = false;
  followed = true;

  function open(again) {
    source = new EventSource(url);
    source.onopen = () => {
      tries = 0;
      fresh = Date.now();
      show(state = "on", fresh);
      if (again) onAgain();
    };
    source.onerror = async () => {
      if (over) return;
      if (state === "on") fresh = Date.now();
      show(state = "away", fresh);
      if (source.readyState !== EventSource.CLOSED) return; // it tries again, with its cursor
      timer = setTimeout(reopen, RETRY_MS[Math.min(tries++, RETRY_MS.length - 1)]);
    };
    for (const [name, handler] of Object.entries(handlers)) {
      source.addEventListener(name, (event) => {
        fresh = Date.now();
        handler(event.data ? JSON.parse(event.data) : null, event);
      });
    }
    source.addEventListener("end", () => stop("ended"));
    source.addEventListener("dropped", () => {
      source.close();
      timer = setTimeout(reopen, RETRY_MS[0]);
    });
  }

  async function reopen() {
    source.close();
    const answer = await fetch("/v1/whoami").catch(() => null);
    if (answer?.status === 401) return stop("signed-out");
    if (!over) open(true);
  }

  function stop(why) {
    over = true;
    clearTimeout(timer);
    clearInterval(ages);
    source.close();
    if (why) show(why, fresh);
  }

  const ages = setInterval(() => { if (state !== "on") show(state, fresh); }, 1000);
  addEventListener("offline", () => { if (!over) show(state = "away", fresh); });
  addEventListener("online", () => {
    if (!over && source.readyState === EventSource.OPEN) show(state = "on", fresh = Date.now());
  });
  addEventListener("pagehide", () => stop());
  addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });
  open(false);
  return () => stop();
}

/** JSON of the gateway's REST, unless `signal` aborts it. Throws an Error with the problem's text. */
export async function get(path, signal) {
  const ask = () => fetch(path, { signal, headers: { accept: "application/json" } });
  let answer = await ask();
  for (let tries = 0; answer.status === 429 && tries < 3; tries += 1) {
    await new Promise((done) => setTimeout(done, 500 * 2 ** tries)); // other parts end soon
    answer = await ask();
  }
  const body = await answer.json().catch(() => null);
  if (answer.status === 401) throw new Error("your session has ended; load the page again to sign in");
  if (!answer.ok) throw new Error(body?.detail ?? `the gateway answered ${answer.status}`);
  return body;
}

const REST = 10, LEAST_REST_MS = 500, MOST_REST_MS = 15_000;

/**
 * Read what changed, one call at a time: the first change at once, further ones after a rest of
 * 10 times what the last call took. So a long table or a busy server is asked less often. The last
 * change of a burst is not lost.
 */
export function paced(read) {
  let timer = 0, rested = -Infinity, busy = false, changed = false;
  async function run() {
    timer = 0;
    busy = true;
    const began = performance.now();
    try {
      await read();
    } finally {
      const now = performance.now();
      rested = now + Math.min(MOST_REST_MS, Math.max(LEAST_REST_MS, REST * (now - began)));
      busy = false;
      if (changed) ask();
    }
  }
  function ask() {
    changed = busy;
    if (!busy) timer ||= setTimeout(run, Math.max(0, rested - performance.now()));
  }
  return ask;
}

/** Calls at most once in `ms`; the last call of a burst is not lost. */
export function atMost(ms, call) {
  let last = -Infinity, timer = 0, values = [];
  return (...given) => {
    values = given;
    timer ||= setTimeout(() => {
      timer = 0;
      last = performance.now();
      call(...values);
    }, Math.max(0, last + ms - performance.now()));
  };
}
