// The curves of one metric of several runs. The runs, their colours and patterns are those of the
// table below the chart; the choice of metric and axis is in the address.

import { makeChart } from "./charts/chart.js";
import { Source, again, axisOf } from "./charts/data.js";
import { followTheme, theme } from "./charts/theme.js";

const POINTS = 800;
const HEIGHT = 360;
const element = document.getElementById("compare-chart");
const { metric, x } = element.dataset;
const axis = document.getElementById("x").selectedOptions[0].textContent;
const runs = [...document.querySelectorAll("#compare-runs tr[data-run]")].map((row, index) => ({
  id: Number(row.dataset.run),
  label: row.dataset.name,
  color: `run-${index + 1}`,
  dash: row.dataset.dash.split(" ").filter(Boolean).map(Number),
  source: new Source(Number(row.dataset.run), { points: POINTS }),
}));

function readColours() {
  const style = getComputedStyle(document.documentElement);
  for (const { color } of runs) theme[color] = style.getPropertyValue(`--${color}`).trim();
}

readColours();
followTheme(readColours);  // before the chart follows it too

function series() {
  const names = runs.map(({ label }) => label);
  return runs.map(({ id, label, color, dash, source }) => {
    const curve = source.curves.get(metric);
    const doubled = names.filter((name) => name === label).length > 1;
    return {
      label: doubled ? `${label} (${id})` : label,
      updates: curve.updates, x: axisOf(curve, x), values: curve.values, means: curve.means,
      thinned: curve.thinned, color, dash,
    };
  });
}

let chart = null;

function draw() {
  if (!runs.some(({ source }) => source.curves.get(metric).updates.length)) return;
  if (chart) {
    chart.set({ series: series() });
    return;
  }
  element.removeAttribute("role");
  element.removeAttribute("aria-label");
  chart = makeChart(element, {
    series: series(), x, height: HEIGHT,
    label: `${metric} of ${runs.length} runs over ${axis}; the table below has the numbers`,
  });
}

let following = false;

async function follow() {
  if (following || document.hidden) return;
  following = true;
  try {
    const changed = await Promise.all(runs.map(({ source }) => source.follow()));
    if (changed.flat().length) draw();
  } catch (error) {
    again(follow, error);
  } finally {
    following = false;
  }
}

try {
  await Promise.all(runs.map(({ source }) => source.load(metric)));
  draw();
  document.body.addEventListener("hint:runs", follow);
} catch (error) {
  element.querySelector(".empty").textContent = `The curves could not be fetched (${error.message}). The table has their numbers.`;
}

for (const select of document.querySelectorAll("#metric, #x")) {
  select.addEventListener("change", () => select.form.requestSubmit());
}
document.getElementById("compare-show").hidden = true;
