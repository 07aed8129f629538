// What every page needs: times in the reader's own zone, and the open tab in view.

export function localTimes(root = document) {
  for (const element of root.querySelectorAll("time[datetime]:not([data-local])")) {
    const moment = new Date(element.dateTime);
    if (Number.isNaN(moment.getTime())) continue;
    const today = moment.toDateString() === new Date().toDateString();
    element.textContent = moment.toLocaleString(undefined, today
      ? { hour: "2-digit", minute: "2-digit" }
      : { dateStyle: "medium", timeStyle: "short" });
    element.title = moment.toLocaleString();
    element.dataset.local = "";
  }
}

// On a narrow screen the tabs scroll; the page that is open is one of those in view.
function showTab() {
  const tabs = document.querySelector(".tabs");
  const open = tabs?.querySelector("[aria-current]");
  if (open) tabs.scrollLeft = open.offsetLeft - tabs.offsetLeft - (tabs.clientWidth - open.offsetWidth) / 2;
}

localTimes();
showTab();
document.addEventListener("htmx:after:swap", () => localTimes());
