// Keys that press the links of the page, so that both do the same.

const LINKS = { j: "later-update", k: "earlier-update", n: "later-group", p: "earlier-group", f: "follow" };

function isTyping(element) {
  return element?.matches?.("input, textarea, select, [contenteditable]") ?? false;
}

function compare() {
  const close = document.getElementById("close-comparison");
  const focused = document.activeElement?.closest?.(".answer");
  const inView = [...document.querySelectorAll("#detail .answer")]
    .find((answer) => answer.getBoundingClientRect().bottom > 60);
  (close ?? (focused ?? inView)?.querySelector(".compare"))?.click();
}

function press(key) {
  if (key in LINKS) {
    const link = document.getElementById(LINKS[key]);
    if (link?.hasAttribute("href")) link.click();
  } else if (key === "c") {
    compare();
  } else if (key === "/") {
    document.getElementById("search")?.focus();
    document.getElementById("search")?.select();
  } else if (key === "?") {
    document.getElementById("keys").showModal();
  } else {
    return false;
  }
  return true;
}

export function listen() {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    if (event.key === "Escape" && event.target.id === "search") { event.target.blur(); return; }
    if (isTyping(event.target) || document.querySelector("dialog[open]")) return;
    if (press(event.key)) event.preventDefault();
  });
  document.addEventListener("click", (event) => {
    if (event.target.closest?.("[data-keys]")) document.getElementById("keys").showModal();
  });
}
