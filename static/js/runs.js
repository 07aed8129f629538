// The list of runs follows what is typed in its filter; the address does too. The button that
// compares says how many runs are ticked.

const TYPING_MILLISECONDS = 200;

const form = document.getElementById("filter");
let timer = 0;

function follow() {
  const query = new URLSearchParams([...new FormData(form)].filter(([, value]) => value.trim()));
  history.replaceState(null, "", query.size ? `/?${query}` : "/");
  document.body.dispatchEvent(new CustomEvent("live:refresh", { detail: { kind: "runs" } }));
}

form?.addEventListener("input", () => {
  clearTimeout(timer);
  timer = setTimeout(follow, TYPING_MILLISECONDS);
});

function count() {
  const button = document.getElementById("compare-chosen");
  if (!button) return;
  const ticked = document.querySelectorAll("#chosen input[name=run]:checked").length;
  button.textContent = ticked ? `Compare ${ticked}` : "Compare";
  button.disabled = ticked < 2;
  button.title = ticked < 2 ? "Tick two runs or more below" : "The runs that are ticked below";
}

document.addEventListener("change", count);
document.addEventListener("htmx:after:swap", count);
addEventListener("pageshow", count);  // also on the way back, when the browser has ticked them again
count();
