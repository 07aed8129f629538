// What every page needs: times in the reader's own zone.

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

localTimes();
document.addEventListener("htmx:after:swap", () => localTimes());
