// Changing what is read: the part of the page that belongs to another address is fetched and put in
// the place of the present one.

export const reading = () => document.getElementById("reading");

let shown = location.pathname + location.search;
let asking = null;

export async function go(address, { push = true } = {}) {
  const target = new URL(address, location.href);
  asking?.abort();
  asking = new AbortController();
  const old = reading();
  old.setAttribute("aria-busy", "true");
  let page;
  try {
    const response = await fetch(target, { signal: asking.signal });
    if (!response.ok || response.redirected) throw new Error(response.statusText);
    page = new DOMParser().parseFromString(await response.text(), "text/html");
  } catch (error) {
    if (error.name !== "AbortError") location.assign(target);
    return;
  }
  const fresh = page.getElementById("reading");
  if (!fresh) { location.assign(target); return; }
  const place = remember(old);
  reading().replaceWith(document.adoptNode(fresh));
  document.title = page.title;
  if (push && target.href !== location.href) history.pushState(null, "", target);
  shown = target.pathname + target.search;
  restore(place, fresh, target.hash);
  pin();
  document.dispatchEvent(new CustomEvent("reading:changed"));
}

// Where the reader was: what had the focus, which menus were open, how far lists were scrolled.

function remember(old) {
  const focused = document.activeElement;
  return {
    focus: old.contains(focused) ? focused.id || focused.closest("[id]")?.id : null,
    within: old.contains(focused),
    open: [...old.querySelectorAll("details[id][open]:not(.menu)")].map((element) => element.id),
    list: old.querySelector("#groups-list")?.scrollTop ?? 0,
    what: describe(old),
  };
}

function restore(place, fresh, hash) {
  for (const id of place.open) {
    const element = fresh.querySelector(`#${CSS.escape(id)}`);
    if (element) element.open = true;
  }
  const list = fresh.querySelector("#groups-list");
  if (list) {
    list.scrollTop = place.list;
    list.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest" });
  }
  if (place.within) {
    const same = place.focus && place.focus !== "reading" ? document.getElementById(place.focus) : null;
    const usable = same?.matches("[href], button, input, summary, [tabindex]") && same.checkVisibility();
    (usable ? same : document.getElementById("detail") ?? document.getElementById("main"))
      .focus({ preventScroll: true });
  }
  const anchor = hash.length > 1 ? document.getElementById(decodeURIComponent(hash.slice(1))) : null;
  if (anchor) {
    anchor.classList.add("pointed-at");  // :target knows nothing of addresses that a script has set
    if (!isInView(anchor)) anchor.scrollIntoView({ block: "start" });
  } else if (describe(fresh) !== place.what) {
    // Another text: begin at its top.
    const top = document.getElementById("detail")?.checkVisibility() ? document.getElementById("detail") : fresh;
    if (top.getBoundingClientRect().top < 0) top.scrollIntoView({ block: "start" });
  }
}

const describe = (element) => `${element.dataset.update} ${element.querySelector(".group[aria-current]")?.id}`
  + ` ${element.querySelector("#detail h2")?.textContent}`;

function isInView(element) {
  const { top, bottom } = element.getBoundingClientRect();
  return top >= 0 && bottom <= innerHeight;
}

// While the reader does not follow the run, the address names the update: it stays the one that is
// open whatever comes.

export function pin() {
  const { update, follow } = reading().dataset;
  const address = new URL(location.href);
  if (update === "" || follow !== undefined || address.searchParams.has("update")) return;
  address.searchParams.set("update", update);
  history.replaceState(history.state, "", address);
  shown = address.pathname + address.search;
}

addEventListener("popstate", () => {
  if (location.pathname + location.search !== shown) go(location.href, { push: false });
});
