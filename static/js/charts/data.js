// Columns of a run's metrics, fetched whole (thinned by the server) and then followed by a cursor.
//
//   const source = new Source(runId, { points, from, to });
//   await source.load(name)        → the curve: {name, updates, steps, tokens, times, values, means,
//                                     total, nonfinite, thinned}
//   await source.follow()          → names of the curves that have changed
//   source.curves.get(name)        the curves that are loaded
//   source.forget(name)
//
// A curve never holds more than a few thousand rows: one that has grown beyond that is fetched anew,
// as all are when a later segment of the run has superseded some of them.

const COLUMNS = ["updates", "steps", "tokens", "times", "values", "means"];
const GROWTH = 3;
const NAMES_AT_ONCE = 40;
const AGAIN_MILLISECONDS = 3000;

export class Source {
  constructor(run, { points = 600, from = null, to = null } = {}) {
    this.run = run;
    this.points = points;
    this.from = from;
    this.to = to;
    this.curves = new Map();
    this.cursors = new Map();
    this.segment = null;
  }

  async load(name) {
    const found = await this.#ask([name], {});
    const curve = found.curves[0];
    this.curves.set(name, curve);
    this.cursors.set(name, found.last_id);
    this.segment ??= found.segment;
    return curve;
  }

  forget(name) {
    this.curves.delete(name);
    this.cursors.delete(name);
  }

  // A part that is looked at in detail; null and null is the whole run.
  async zoom(from, to) {
    this.from = from;
    this.to = to;
    await this.reload([...this.curves.keys()]);
  }

  async reload(names) {
    await Promise.all(names.map((name) => this.load(name)));
  }

  async follow() {
    const names = [...this.curves.keys()];
    if (!names.length) return [];
    const changed = [];
    for (let start = 0; start < names.length; start += NAMES_AT_ONCE) {
      const some = names.slice(start, start + NAMES_AT_ONCE);
      const after = Math.min(...some.map((name) => this.cursors.get(name)));
      const found = await this.#ask(some, { after });
      if (found.segment !== this.segment) {
        this.segment = found.segment;
        await this.reload(names);
        return names;
      }
      for (const added of found.curves) {
        if (this.#append(added, found.last_id)) changed.push(added.name);
      }
    }
    const long = changed.filter((name) => this.curves.get(name).updates.length > GROWTH * this.points);
    await this.reload(long);
    return changed;
  }

  #append(added, lastId) {
    const curve = this.curves.get(added.name);
    if (!curve) return false;
    this.cursors.set(added.name, lastId);
    const last = curve.updates.length ? curve.updates.at(-1) : -1;
    let grown = false;
    added.updates.forEach((update, index) => {
      if (update <= last || (this.to !== null && update > this.to)) return;
      for (const column of COLUMNS) curve[column].push(added[column][index]);
      curve.total += 1;
      if (added.values[index] === null) curve.nonfinite += 1;
      grown = true;
    });
    return grown;
  }

  async #ask(names, { after }) {
    const query = new URLSearchParams(names.map((name) => ["name", name]));
    query.set("points", this.points);
    if (after !== undefined) query.set("after", after);
    else {
      if (this.from !== null) query.set("from", this.from);
      if (this.to !== null) query.set("to", this.to);
    }
    const response = await fetch(`/runs/${this.run}/metrics/data?${query}`);
    if (!response.ok) {
      throw Object.assign(new Error(`${response.status} ${response.statusText}`), { status: response.status });
    }
    return response.json();
  }
}

// Asks again after a pause, where what could not be fetched may be had then: there may come no other
// hint. A server that refuses is not asked again.
export function again(ask, { status = 503 }) {
  if (status >= 500) setTimeout(ask, AGAIN_MILLISECONDS);
}

// The values of an x axis for a curve: update, step, tokens, or time (seconds since `start`).
export function axisOf(curve, axis, start = null) {
  if (axis === "step") return curve.steps;
  if (axis === "tokens") return curve.tokens;
  if (axis !== "time") return curve.updates;
  const from = start ?? curve.times.find((time) => time !== null) ?? 0;
  return curve.times.map((time) => (time === null ? null : time - from));
}
