// Keeps an open page up to date. <body data-live="/runs/5/live" data-pulse="41"> names the stream of
// hints and the state that the page was made of.
//
// Each hint becomes CustomEvent("hint:<kind>", {detail: {kind, last_id}}) on document.body. Elements
// with an id and data-refresh="kind kind" are replaced by what the page's own address has by then,
// in place: focus, open <details> and scroll positions stay. An element in which the reader has
// selected text waits until that is undone. One with data-until stands for what is not there yet:
// the page is loaded anew when it has gone.
//
// CustomEvent("live:open") tells that the server answers, for the first time or again. Nothing is
// fetched while the page is hidden. Where a stream cannot be kept open, the server is asked every
// few seconds for what was missed. What could not be fetched is asked for again after a pause. A
// server that no longer knows the reader (after a restart, say) is not asked again: the page says so,
// with the way to the login.

const REFRESH_MILLISECONDS = 600;
const POLL_MILLISECONDS = 1500;
const AGAIN_MILLISECONDS = 3000;
const FAILURES_BEFORE_POLLING = 4;
const STREAMS = 3;
const QUIET_MILLISECONDS = 1500;

const address = document.body.dataset.live;
const connection = document.getElementById("connection");

let seen = document.body.dataset.pulse ?? null;
let stream = null;
let failures = 0;
let pollTimer = 0;
let sayTimer = 0;
let saying = "";
let isOver = false;

function say(words) {
  if (words === saying || isOver) return;
  saying = words;
  clearTimeout(sayTimer);
  const write = () => { if (connection) connection.textContent = words; };
  // A reconnection that succeeds at once is no news.
  if (words) sayTimer = setTimeout(write, QUIET_MILLISECONDS); else write();
}

function withSeen(path) {
  return seen === null ? path : `${path}?seen=${encodeURIComponent(seen)}`;
}

function tell(hint) {
  document.body.dispatchEvent(new CustomEvent(`hint:${hint.kind}`, { detail: hint }));
  wanted.add(hint.kind);
  refreshSoon();
}

// The stream.
//
// A browser keeps few connections to one server (six, with HTTP/1.1), and streams must leave some for
// everything else. So the pages of a browser share a few places for streams; the others poll.

async function takePlace() {
  if (!navigator.locks) return () => {};  // not over plain HTTP from another machine
  for (let place = 0; place < STREAMS; place += 1) {
    const release = await new Promise((resolve) => {
      navigator.locks.request(`retrograd-stream-${place}`, { ifAvailable: true }, (lock) => {
        if (!lock) { resolve(null); return undefined; }
        return new Promise((free) => resolve(free));
      });
    });
    if (release) return release;
  }
  return null;
}

let opening = false;
let leave = null;

async function open() {
  if (stream || opening || isOver || document.hidden) return;
  opening = true;
  const release = await takePlace();
  opening = false;
  if (!release) { startPolling(); return; }
  if (isOver || document.hidden) { release(); return; }
  leave = release;
  connect();
}

// The server answers, for the first time or again: what could not be fetched is.
function back() {
  document.body.dispatchEvent(new CustomEvent("live:open"));
  if (wanted.size) refreshSoon();
}

function connect() {
  stream = new EventSource(withSeen(address));
  stream.addEventListener("open", () => {
    failures = 0;
    stopPolling();
    say("");
    back();
  });
  stream.addEventListener("hint", (event) => {
    if (event.lastEventId) seen = event.lastEventId;
    tell(JSON.parse(event.data));
  });
  stream.addEventListener("error", () => {
    failures += 1;
    say("Not connected. Trying again…");
    if (stream.readyState === EventSource.CLOSED) {  // refused: the browser does not try again
      close();
      startPolling();
    } else if (failures >= FAILURES_BEFORE_POLLING) {
      startPolling();
    }
  });
}

function gone() {
  say("This run has been deleted.");
  stop();
}

function loggedOut() {
  if (isOver) return;
  stop();
  clearTimeout(sayTimer);
  const link = document.createElement("a");
  link.href = `/login?next=${encodeURIComponent(location.pathname + location.search)}`;
  link.textContent = "Log in again";
  connection?.replaceChildren(link);
}

// For good.
function stop() {
  isOver = true;
  stopPolling();
  close();
  wanted.clear();
}

// Whether the server wants to know who asks: it sends pages to its login.
function asksForLogin(response) {
  return response.status === 401
    || (response.redirected && new URL(response.url).pathname === "/login");
}

function close() {
  stream?.close();
  stream = null;
  leave?.();
  leave = null;
}

// Polling.

function startPolling() {
  if (pollTimer || isOver || document.hidden) return;
  pollTimer = setInterval(poll, POLL_MILLISECONDS);
}

function stopPolling() {
  clearInterval(pollTimer);
  pollTimer = 0;
}

async function poll() {
  try {
    const response = await fetch(withSeen(`${address}.json`));
    if (response.status === 404) { gone(); return; }
    if (asksForLogin(response)) { loggedOut(); return; }
    if (!response.ok) throw new Error(response.statusText);
    const missed = await response.json();
    seen = missed.mark;
    missed.hints.forEach(tell);
    if (saying) back();
    say("");
    // The server answers: a stream may be had again, or a place for one.
    if (stream?.readyState !== EventSource.OPEN) {
      close();
      open();
    }
  } catch {
    say("Not connected. Trying again…");
  }
}

// Refreshing what the hints are about, or what a script of the page asks for:
// CustomEvent("live:refresh", {detail: {kind}}) on document.body.

const wanted = new Set();
let refreshTimer = 0;
let lastRefresh = 0;
let refreshing = false;

document.body.addEventListener("live:refresh", ({ detail }) => {
  wanted.add(detail.kind);
  refreshSoon();
});

function refreshSoon() {
  if (refreshTimer || refreshing || isOver) return;
  const wait = Math.max(30, lastRefresh + REFRESH_MILLISECONDS - performance.now());
  refreshTimer = setTimeout(refresh, wait);
}

function elementsFor(kinds) {
  return [...document.querySelectorAll("[id][data-refresh]")]
    .filter((element) => element.dataset.refresh.split(/\s+/).some((kind) => kinds.has(kind)));
}

async function refresh() {
  refreshTimer = 0;
  if (document.hidden) return;
  const kinds = new Set(wanted);
  wanted.clear();
  const elements = elementsFor(kinds);
  if (!elements.length) return;
  refreshing = true;
  lastRefresh = performance.now();
  try {
    const response = await fetch(location.href, { headers: { "HX-Request": "true" } });
    if (response.status === 404) { gone(); return; }
    if (asksForLogin(response)) { loggedOut(); return; }
    if (!response.ok) throw new Error(response.statusText);
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    for (const element of elements) await replace(element, page.getElementById(element.id), kinds);
  } catch {  // the server is away, or busy
    kinds.forEach((kind) => wanted.add(kind));
    refreshTimer = setTimeout(refresh, AGAIN_MILLISECONDS);
  } finally {
    refreshing = false;
    if (wanted.size) refreshSoon();
  }
}

async function replace(element, fresh, kinds) {
  if (!element.isConnected) return;
  if (!fresh) {
    if ("until" in element.dataset) location.reload();
    return;
  }
  if (isRead(element)) {
    kinds.forEach((kind) => putOff.add(kind));
    return;
  }
  for (const details of element.querySelectorAll("details[id]")) {
    const twin = fresh.querySelector(`#${CSS.escape(details.id)}`);
    if (twin) twin.open = details.open;
  }
  const before = fresh.outerHTML;
  if (shown.get(element) === before) return;
  await htmx.swap({ sourceElement: element, target: element, swap: "outerMorph", text: before });
  shown.set(element, before);
}

const shown = new WeakMap();

function isRead(element) {
  const selection = document.getSelection();
  if (selection && !selection.isCollapsed && selection.containsNode(element, true)) return true;
  const focused = document.activeElement;
  return element.contains(focused) && focused.matches("input:not([type=checkbox]), textarea, select");
}

const putOff = new Set();

function takeUp() {
  if (!putOff.size || !document.getSelection()?.isCollapsed) return;
  putOff.forEach((kind) => wanted.add(kind));
  putOff.clear();
  refreshSoon();
}

document.addEventListener("selectionchange", takeUp);
document.addEventListener("focusout", () => setTimeout(takeUp));

document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    close();
    stopPolling();
    say("");
  } else {
    open();
    if (wanted.size) refreshSoon();
  }
});

addEventListener("pagehide", close);
addEventListener("pageshow", (event) => { if (event.persisted) open(); });

if (address) open();
