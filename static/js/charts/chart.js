// One chart.
//
//   const chart = makeChart(element, {
//     series,   [{label, updates, x, values, means?, thinned?, color?, dash?, points?}], columns of
//               equal length; x ascends. Where it is `thinned`, the means are smoothed and not the
//               values (see smooth.js); `color` is a name of theme.js; `points` draws marks only
//     x,        "update" | "step" | "tokens" | "time" (seconds): how the axis is written
//     log,      a logarithmic y axis; values that are not above 0 are left out
//     smooth,   0 to 1, the weight of what came before; the raw curve stays, faint
//     band,     {low, high, after?}: where a healthy value is, shaded; null: no bound
//     markers,  [{x, kind: "evaluation" | "checkpoint" | "resume"}]: lines across
//     onZoom,   called with {min, max, first, last} (x, and updates) after a drag along x, and with
//               null after a double click; without it the chart zooms by itself
//     label,    what the chart shows, for those who do not see it
//     height,   pixels
//   });
//   chart.append(index, {updates, x, values, means?})   rows at the end of a series
//   chart.set({...})                                    any of the options anew
//   chart.destroy()
//
// Null values are gaps. The canvas follows the width of its element and the colours of the page.

/* global uPlot */
import { duration, number, ticks } from "./format.js";
import { smoothed } from "./smooth.js";
import { followTheme, theme } from "./theme.js";

export const DASHES = [[], [7, 4], [2, 3], [10, 3, 2, 3], [14, 5], [5, 2, 2, 2, 2, 2]];

const DEFAULTS = {
  series: [], x: "update", log: false, smooth: 0, band: null, markers: [], onZoom: null, label: "",
  height: 200,
};
const LEAST_DRAG = 6;
const LEAST_WIDTH = 120;
const MARKER_GAP = 4;
const MINUTES = [1, 2, 5, 10, 15, 30].map((count) => count * 60);
const HOURS = [1, 2, 3, 6, 12, 24, 48, 120, 240].map((count) => count * 3600);
const SECONDS = [0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30];
const WHOLE = Array.from({ length: 12 }, (_, power) => [1, 2, 5].map((digit) => digit * 10 ** power)).flat();

export function makeChart(element, options) {
  return new Chart(element, options);
}

class Chart {
  #options;
  #plot = null;
  #shape = "";
  #readout = document.createElement("div");
  #canvas = document.createElement("div");
  #observer;
  #unfollow;

  constructor(element, options) {
    this.element = element;
    this.#options = { ...DEFAULTS, ...options };
    element.classList.add("plot");
    this.#canvas.setAttribute("role", "img");
    this.#readout.className = "readout";
    this.#readout.setAttribute("aria-hidden", "true");
    element.replaceChildren(this.#readout, this.#canvas);
    this.#observer = new ResizeObserver(() => this.#fit());
    this.#observer.observe(element);
    this.#unfollow = followTheme(() => this.#rebuild());
    this.#draw();
  }

  append(index, added) {
    const series = this.#options.series[index];
    for (const column of ["updates", "x", "values", "means"]) {
      if (series[column] && added[column]) series[column] = series[column].concat(added[column]);
    }
    this.#draw();
  }

  set(options) {
    Object.assign(this.#options, options);
    this.#draw();
  }

  destroy() {
    this.#observer.disconnect();
    this.#unfollow();
    this.#plot?.destroy();
    this.#plot = null;
    this.element.replaceChildren();
  }

  #draw() {
    const { series, log, x, smooth, label } = this.#options;
    this.#canvas.setAttribute("aria-label", label);
    const shape = JSON.stringify([log, x, smooth > 0, series.map((one) => [one.label, one.color, one.dash, one.points])]);
    if (!this.#plot || shape !== this.#shape) {
      this.#shape = shape;
      this.#rebuild();
    } else {
      this.#plot.setData(this.#data());
      this.#clearReadout();
    }
  }

  #rebuild() {
    this.#plot?.destroy();
    this.#canvas.replaceChildren();
    this.#plot = new uPlot(this.#plotOptions(), this.#data(), this.#canvas);
    this.#clearReadout();
  }

  #width() {
    return Math.max(LEAST_WIDTH, Math.floor(this.element.clientWidth));
  }

  #fit() {
    const width = this.#width();
    if (this.#plot && width !== this.#plot.width) this.#plot.setSize({ width, height: this.#options.height });
  }

  // The raw curves, and after each its smoothed one.
  #data() {
    const { series, log, smooth } = this.#options;
    const drawable = (value) => (log && value !== null && value !== undefined && value <= 0 ? null : value);
    const tables = series.map((one) => {
      const columns = [one.x, one.values.map(drawable)];
      if (smooth > 0 && !one.points) {
        columns.push(smoothed(one, smooth).map(drawable));
      }
      return known(columns);
    });
    if (tables.length === 1) return tables[0];
    return tables.length ? uPlot.join(tables) : [[], []];
  }

  #plotOptions() {
    const { x, log, height } = this.#options;
    const axis = { stroke: () => theme.faint, font: theme.font, ticks: { show: false } };
    const time = x === "time";
    return {
      width: this.#width(),
      height,
      padding: [10, 22, 0, 0],
      legend: { show: false },
      series: [{}, ...this.#options.series.flatMap((one) => this.#lines(one))],
      scales: {
        x: { time: false },
        y: log ? { distr: 3 } : { range: (_, low, high) => this.#range(low, high) },
      },
      axes: [
        { ...axis, grid: { show: false }, size: 26, gap: 4, space: 60, incrs: time ? [...SECONDS, ...MINUTES, ...HOURS] : WHOLE,
          values: (_, splits, __, ___, increment) => (time ? splits.map(duration) : ticks(splits, increment, 1e6)) },
        { ...axis, grid: { stroke: () => theme.line, width: 1 }, size: 48, gap: 6, space: 34,
          values: (_, splits, __, ___, increment) => (log ? splits.map((split) => (split === null ? "" : number(split))) : ticks(splits, increment)) },
      ],
      cursor: {
        y: false,
        points: { size: 6 },
        drag: { x: true, y: false, setScale: false },
        bind: { dblclick: (_, __, reset) => (event) => this.#reset(event, reset) },
      },
      hooks: {
        drawClear: [(plot) => this.#shade(plot)],
        draw: [(plot) => this.#mark(plot)],
        setCursor: [(plot) => this.#read(plot)],
        setSelect: [(plot) => this.#select(plot)],
      },
    };
  }

  #lines(one) {
    const color = () => theme[one.color ?? "accent"] ?? one.color;
    const line = { label: one.label, stroke: color, dash: one.dash, spanGaps: false };
    if (one.points) {
      const points = { show: true, size: 7, width: 1.5, stroke: color, fill: () => theme.panel };
      return [{ ...line, width: 1, dash: [3, 3], spanGaps: true, points }];
    }
    if (!(this.#options.smooth > 0)) return [{ ...line, width: 1.75, points: { size: 4 } }];
    return [
      { ...line, width: 1, alpha: 0.3, points: { size: 4 } },
      { ...line, width: 2, points: { show: false } },
    ];
  }

  // All of the data, and an edge of the healthy band where it is near.
  #range(low, high) {
    if (low === null || high === null) return [0, 1];
    const size = Math.max(Math.abs(low), Math.abs(high));
    // What differs by rounding alone is a level line.
    const span = high - low > 1e-9 * size ? high - low : size || 1;
    for (const edge of [this.#options.band?.low, this.#options.band?.high]) {
      if (edge === null || edge === undefined) continue;
      if (edge < low && low - edge <= span) low = edge;
      if (edge > high && edge - high <= span) high = edge;
    }
    const pad = Math.max(high - low, span) * 0.06;
    return [low >= 0 && low - pad < 0 ? 0 : low - pad, high + pad];
  }

  #shade(plot) {
    const { band, x } = this.#options;
    if (!band) return;
    const { left, top, width, height } = plot.bbox;
    const at = (value, other) => (value === null || value === undefined || plot.scales.y.min === null
      ? other : Math.min(top + height, Math.max(top, plot.valToPos(value, "y", true))));
    const upper = at(band.high, top);
    const lower = this.#options.log && band.low <= 0 ? top + height : at(band.low, top + height);
    const from = band.after && x === "update" ? Math.min(left + width, Math.max(left, plot.valToPos(band.after, "x", true))) : left;
    plot.ctx.save();
    plot.ctx.fillStyle = theme.band;
    plot.ctx.fillRect(from, upper, left + width - from, lower - upper);
    plot.ctx.restore();
  }

  #mark(plot) {
    const { left, top, width, height } = plot.bbox;
    const { ctx } = plot;
    const scale = uPlot.pxRatio;
    const before = {};
    ctx.save();
    ctx.lineWidth = scale;
    for (const marker of this.#options.markers) {
      if (marker.x === null || marker.x === undefined) continue;
      const place = Math.round(plot.valToPos(marker.x, "x", true));
      if (place < left || place > left + width || place - (before[marker.kind] ?? -Infinity) < MARKER_GAP * scale) continue;
      before[marker.kind] = place;
      ctx.strokeStyle = ctx.fillStyle = marker.kind === "resume" ? theme.warn : theme.faint;
      ctx.globalAlpha = marker.kind === "resume" ? 0.9 : 0.55;
      ctx.beginPath();
      if (marker.kind === "checkpoint") {
        ctx.moveTo(place - 4 * scale, top + height);
        ctx.lineTo(place + 4 * scale, top + height);
        ctx.lineTo(place, top + height - 7 * scale);
        ctx.fill();
      } else {
        ctx.setLineDash(marker.kind === "evaluation" ? [3 * scale, 3 * scale] : []);
        ctx.moveTo(place, top);
        ctx.lineTo(place, top + height);
        ctx.stroke();
      }
    }
    ctx.restore();
  }

  #select(plot) {
    const { left, width } = plot.select;
    if (width < LEAST_DRAG) return;
    const min = plot.posToVal(left, "x");
    const max = plot.posToVal(left + width, "x");
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    const inside = this.#options.series.flatMap((one) => one.updates.filter((_, index) => one.x[index] >= min && one.x[index] <= max));
    if (!inside.length) return;
    if (!this.#options.onZoom) plot.setScale("x", { min, max });
    else this.#options.onZoom({ min, max, first: inside.reduce((a, b) => Math.min(a, b)), last: inside.reduce((a, b) => Math.max(a, b)) });
  }

  #reset(event, reset) {
    if (this.#options.onZoom) this.#options.onZoom(null);
    else reset(event);
    return null;
  }

  #clearReadout() {
    this.#readout.textContent = "";
  }

  #read(plot) {
    const { idx } = plot.cursor;
    if (idx === null || idx === undefined) { this.#clearReadout(); return; }
    const { series, smooth, x } = this.#options;
    const at = plot.data[0][idx];
    const words = [x === "time" ? duration(at) : `${x} ${Math.round(at).toLocaleString("en")}`];
    let row = 1;
    for (const one of series) {
      const value = plot.data[row][idx];
      const curve = smooth > 0 && !one.points ? plot.data[row + 1][idx] : undefined;
      row += smooth > 0 && !one.points ? 2 : 1;
      if (value === undefined || (value === null && series.length > 1)) continue;
      const name = series.length > 1 ? `${one.label} ` : "";
      words.push(`${name}${value === null ? "no number" : number(value)}${typeof curve === "number" ? ` (smoothed ${number(curve)})` : ""}`);
    }
    this.#readout.textContent = words.join(" · ");
  }
}

// Rows whose place on the x axis is known; of several at one place, the last.
function known(columns) {
  const [x] = columns;
  const kept = x.map((value, index) => value !== null && value !== undefined && value !== x[index + 1]);
  return kept.every(Boolean) ? columns : columns.map((column) => column.filter((_, index) => kept[index]));
}
