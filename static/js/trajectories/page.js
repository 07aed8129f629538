// The Trajectories page with scripts: links and forms inside #reading change it in place. Its address
// holds all of its state, so that each way of getting there shows the same.

import { listen as listenToKeys } from "./keys.js";
import { go, pin } from "./navigation.js";
import { listen as listenToNews } from "./news.js";

function isOurs(address) {
  return address.origin === location.origin && address.pathname === location.pathname;
}

document.addEventListener("click", (event) => {
  const menu = event.target.closest?.("details.menu");
  document.querySelectorAll("details.menu[open]").forEach((open) => { if (open !== menu) open.open = false; });
  const link = event.target.closest?.("#reading a[href]");
  if (!link || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  const address = new URL(link.href.baseVal ?? link.href, location.href);
  if (!isOurs(address) || link.hasAttribute("download")) return;
  event.preventDefault();
  go(address);
});

document.addEventListener("submit", (event) => {
  const form = event.target;
  if (!form.closest("#reading") || form.method !== "get") return;
  const address = new URL(form.action);
  for (const [name, value] of new FormData(form)) {
    if (value !== "") address.searchParams.append(name, value);
  }
  if (!isOurs(address)) return;
  event.preventDefault();
  go(address);
});

// The columns of a strip are one stop for Tab; the arrow keys go from one to the next. Without
// scripts each is a stop of its own.
function oneStop() {
  for (const strip of document.querySelectorAll(".heat")) {
    const stop = strip.querySelector("a[aria-current]") ?? strip.querySelector("a");
    for (const column of strip.querySelectorAll("a")) {
      column.setAttribute("tabindex", column === stop ? "0" : "-1");
    }
  }
}

document.addEventListener("keydown", (event) => {
  const column = document.activeElement?.closest?.(".heat a");
  if (column && (event.key === "ArrowRight" || event.key === "ArrowLeft")) {
    const next = event.key === "ArrowRight" ? column.nextElementSibling : column.previousElementSibling;
    if (next) { next.focus(); event.preventDefault(); }
  } else if (event.key === "Escape") {
    const menu = document.activeElement?.closest?.("details.menu[open]");
    if (menu) { menu.open = false; menu.querySelector("summary").focus(); }
  }
});

document.body.classList.add("scripts");
pin();
oneStop();
document.addEventListener("reading:changed", oneStop);
document.addEventListener("htmx:after:swap", oneStop);
listenToKeys();
listenToNews();
