// The list of runs follows what is typed in its filter; the address does too.

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
