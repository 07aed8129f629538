// The charts of a page: each <figure class="chart" data-names='["reward/mean", "eval/mean_reward"]'>
// gets one when it comes near the window, and gives it back when it is far away. The first name is the
// curve, the others are marks on it.
//
// <form id="chart-view"> holds how they are looked at; all of it is in the address. Without the form
// the charts are plain.

import { Source, again, axisOf } from "./data.js";
import { number } from "./format.js";
import { makeChart } from "./chart.js";

const NEAR = "600px";
const POINTS = 600;
const MARKERS_MILLISECONDS = 1000;
const NAMES_MILLISECONDS = 10000;

const run = document.body.dataset.run;
const form = document.getElementById("chart-view");
const origin = Number(form?.dataset.origin) || null;
const figures = new Map();
const view = readView();
const source = new Source(run, { points: POINTS, from: view.from, to: view.to });
let markers = [];

function readView() {
  if (!form) return { x: "update", smooth: 0.6, log: false, from: null, to: null, filter: "", marks: ["resume"] };
  const fields = new FormData(form);
  const whole = (name) => (fields.get(name) ? Number(fields.get(name)) : null);
  return {
    x: fields.get("x"), smooth: Number(fields.get("smooth")), log: fields.has("log"),
    from: whole("from"), to: whole("to"), filter: fields.get("filter").trim(),
    marks: fields.getAll("marks").filter(Boolean),
  };
}

// Figures.

class Figure {
  constructor(element) {
    this.element = element;
    this.names = JSON.parse(element.dataset.names);
    this.chart = null;
    this.wanted = false;
  }

  get band() {
    const { low, high, after } = this.element.dataset;
    if (low === undefined && high === undefined) return null;
    const edge = (value) => (value === undefined ? null : Number(value));
    return { low: edge(low), high: edge(high), after: edge(after) };
  }

  async show() {
    if (this.wanted) return;
    this.wanted = true;
    try {
      await Promise.all(this.names.map((name) => source.load(name)));
    } catch (error) {
      this.wanted = false;
      this.note(`The numbers could not be fetched: ${error.message}.`);
      return;
    }
    if (this.wanted) this.draw();
    else this.hide();
  }

  hide() {
    this.wanted = false;
    this.names.forEach((name) => source.forget(name));
    this.chart?.destroy();
    this.chart = null;
  }

  draw() {
    const curves = this.names.map((name) => source.curves.get(name)).filter(Boolean);
    if (!curves.length) return;
    const [main] = curves;
    if (curves.every((curve) => !curve.values.length)) { this.blank(); return; }
    const settings = {
      series: curves.map((curve, index) => ({
        label: curve.name, updates: curve.updates, x: axisOf(curve, view.x, origin), values: curve.values,
        means: curve.means, thinned: curve.thinned, points: index > 0, color: index > 0 ? "ink" : "accent",
      })).filter((series, index) => index === 0 || series.values.length),
      x: view.x, log: view.log, smooth: view.smooth, band: this.band,
      markers: markers.filter((marker) => view.marks.includes(marker.kind)),
      label: describe(main), onZoom: form ? zoom : null,
    };
    if (this.chart) this.chart.set(settings);
    else this.chart = makeChart(this.element.querySelector(".canvas"), settings);
    this.note(remarks(main));
    const latest = this.element.querySelector(".latest");
    if (latest && view.to === null && main.values.length) latest.textContent = number(main.values.at(-1));
  }

  // No axes around nothing.
  blank() {
    this.chart?.destroy();
    this.chart = null;
    const words = document.createElement("p");
    words.className = "empty";
    const yet = "over" in this.element.dataset ? "No numbers." : "No numbers yet.";
    words.textContent = view.from !== null || view.to !== null ? "No numbers in this range." : yet;
    this.element.querySelector(".canvas").replaceChildren(words);
    this.note("");
  }

  note(words) {
    const place = this.element.querySelector(".notice");
    if (place && place.textContent !== words) place.textContent = words;
  }
}

function describe(curve) {
  const known = curve.values.filter((value) => value !== null);
  if (!known.length) return `${curve.name}: no numbers yet.`;
  const least = known.reduce((a, b) => Math.min(a, b));
  const most = known.reduce((a, b) => Math.max(a, b));
  return `${curve.name}: ${curve.total} updates, from ${number(least)} to ${number(most)}, last ${number(known.at(-1))}.`;
}

function remarks(curve) {
  const words = [];
  if (!curve.total) words.push("No numbers of the curve itself.");
  if (curve.nonfinite) words.push(`${curve.nonfinite === 1 ? "1 update has" : `${curve.nonfinite} updates have`} no finite number (a gap).`);
  if (view.log) {
    const below = curve.values.filter((value) => value !== null && value <= 0).length;
    if (below) words.push("Values that are not above 0 have no place on a logarithmic axis.");
  }
  return words.join(" ");
}

function drawAll() {
  for (const figure of figures.values()) if (figure.wanted) figure.draw();
}

const observer = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    const figure = figures.get(target);
    if (isIntersecting) figure.show();
    else if (figure.wanted) figure.hide();
  }
}, { rootMargin: NEAR });

for (const element of document.querySelectorAll("figure.chart[data-names]")) {
  figures.set(element, new Figure(element));
  observer.observe(element);
}

// The run goes on.

let following = false;
let behind = false;

async function follow() {
  if (following) { behind = true; return; }
  following = true;
  try {
    do {
      behind = false;
      const changed = new Set(await source.follow());
      for (const figure of figures.values()) {
        if (figure.wanted && figure.names.some((name) => changed.has(name))) figure.draw();
      }
    } while (behind);
  } catch (error) {
    again(follow, error);  // from the same cursor
  } finally {
    following = false;
  }
}

document.body.addEventListener("hint:metrics", follow);
document.body.addEventListener("live:open", follow);

// Metrics that a run did not have when the page was made, such as those of its first evaluation.

let namesTimer = 0;

async function lookForNames() {
  namesTimer = 0;
  try {
    const response = await fetch(`/runs/${run}/metrics.json`);
    if (!response.ok) return;
    const known = new Set([...figures.values()].map((figure) => figure.names[0]));
    const { families } = await response.json();
    const fresh = families.flatMap((family) => family.cards).filter((card) => !known.has(card.name));
    const place = document.getElementById("new-metrics");
    place.hidden = !fresh.length;
    place.textContent = `${fresh.length} new: ${fresh.slice(0, 3).map((card) => card.name).join(", ")}${fresh.length > 3 ? " …" : ""}`;
    place.href = location.href;
  } catch {
    // The next hint asks again.
  }
}

if (form) {
  document.body.addEventListener("hint:metrics", () => {
    namesTimer ||= setTimeout(lookForNames, NAMES_MILLISECONDS);
  });
}

let markersTimer = 0;

async function loadMarkers() {
  markersTimer = 0;
  try {
    const response = await fetch(`/runs/${run}/metrics/markers`);
    if (!response.ok) return;
    const x = { update: "update", step: "steps", tokens: "tokens", time: "time" };
    markers = (await response.json()).map((marker) => ({
      kind: marker.kind,
      get x() { return view.x === "time" && marker.time !== null ? marker.time - (origin ?? 0) : marker[x[view.x]]; },
    }));
    drawAll();
  } catch {
    // They come with the next event.
  }
}

for (const kind of ["events", "artifacts"]) {
  document.body.addEventListener(`hint:${kind}`, () => {
    markersTimer ||= setTimeout(loadMarkers, MARKERS_MILLISECONDS);
  });
}

if (figures.size) loadMarkers();

// How it is looked at.

function writeAddress() {
  const query = new URLSearchParams();
  if (view.x !== "update") query.set("x", view.x);
  if (view.smooth !== Number(form.elements.smooth.dataset.usual)) query.set("smooth", view.smooth);
  if (view.log) query.set("log", "true");
  if (view.from !== null) query.set("from", view.from);
  if (view.to !== null) query.set("to", view.to);
  if (view.filter) query.set("filter", view.filter);
  const kinds = form.querySelectorAll("input[type=checkbox][name=marks]").length;
  if (view.marks.length !== kinds) ["", ...view.marks].forEach((kind) => query.append("marks", kind));
  history.replaceState(null, "", query.size ? `?${query}` : location.pathname);
}

async function zoom(range) {
  const first = range ? range.first : null;
  const last = range ? Math.max(range.last, range.first + 1) : null;
  form.elements.from.value = first ?? "";
  form.elements.to.value = last ?? "";
  await look();
}

async function look() {
  const { from, to } = view;
  Object.assign(view, readView());
  form.elements.shown.value = view.smooth.toFixed(2);
  document.getElementById("whole-run").hidden = view.from === null && view.to === null;
  writeAddress();
  filter();
  if (view.from !== from || view.to !== to) await source.zoom(view.from, view.to).catch(() => {});
  drawAll();
}

function filter() {
  const words = view.filter.toLowerCase().split(/\s+/).filter(Boolean);
  for (const family of document.querySelectorAll(".family")) {
    const cards = [...family.querySelectorAll("figure.chart")];
    for (const card of cards) card.hidden = words.length > 0 && !words.some((word) => figures.get(card).names[0].toLowerCase().includes(word));
    family.hidden = cards.every((card) => card.hidden);
  }
  const none = document.getElementById("no-match");
  if (none) none.hidden = [...figures.keys()].some((card) => !card.hidden);
}

if (form) {
  form.addEventListener("input", look);
  form.addEventListener("change", look);
  form.addEventListener("submit", (event) => { event.preventDefault(); look(); });
  document.getElementById("whole-run").addEventListener("click", (event) => { event.preventDefault(); zoom(null); });
  filter();
}
