// New updates: live.js refreshes the strip, and nothing else moves. What has come is counted on a
// button; only a reader who follows the run is taken along.

import { go, reading } from "./navigation.js";

let counted = null;

const strip = () => document.getElementById("strip");
const count = () => Number(strip()?.dataset.count ?? 0);
const latest = () => (strip()?.dataset.latest ? Number(strip().dataset.latest) : null);

function look() {
  const page = reading();
  const newest = latest();
  if (!page || newest === null) return;
  if ("empty" in page.dataset) { go(location.href, { push: false }); return; }
  const opened = Number(page.dataset.update);
  if ("follow" in page.dataset) {
    if (newest > opened) go(location.href, { push: false });
    return;
  }
  if (opened >= newest) counted = count();
  const fresh = count() - (counted ?? count());
  const button = document.getElementById("news");
  if (!button) return;
  button.classList.toggle("unseen", opened >= newest);
  button.href = strip().dataset.latestAddress;
  const words = fresh > 0 ? `${fresh} new update${fresh === 1 ? "" : "s"}` : `latest: ${newest}`;
  const place = button.querySelector("[data-words]");
  if (place.textContent !== words) place.textContent = words;  // or else it would be seen as a change
}

export function listen() {
  counted = count();
  // Attributes of the strip change, or the strip is another one.
  new MutationObserver(look).observe(document.getElementById("main"), {
    subtree: true, childList: true, attributes: true, attributeFilter: ["data-latest", "data-count"],
  });
  look();
}
