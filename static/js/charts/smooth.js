// Debiased exponential smoothing.
//
//   smoothed(updates, values, weight)            → values
//   smoothedMeans(updates, means, weight)        → values, one for each bucket of a thinned curve
//                                                  (rows with the same mean), else undefined
//
// s ← w^Δ·s + (1 − w^Δ)·v, divided by the sum of the weights so far, as Adam's moments are; Δ is how
// many updates have passed since the last value, so that a thinned curve is smoothed as the whole
// one is. Null stays null, and what was known before it lives on.

export function smoothed(updates, values, weight) {
  if (!(weight > 0)) return values;
  let sum = 0;
  let norm = 0;
  let last = null;
  return values.map((value, index) => {
    if (value === null || value === undefined) return value;
    const passed = last === null ? 1 : Math.max(1, updates[index] - last);
    const kept = weight ** passed;
    sum = kept * sum + (1 - kept) * value;
    norm = kept * norm + (1 - kept);
    last = updates[index];
    return sum / norm;
  });
}

export function smoothedMeans(updates, means, weight) {
  const isLast = (index) => index + 1 === means.length || means[index + 1] !== means[index];
  const kept = means.map((mean, index) => (mean !== null && isLast(index) ? index : -1)).filter((index) => index >= 0);
  const curve = smoothed(kept.map((index) => updates[index]), kept.map((index) => means[index]), weight);
  const values = new Array(means.length).fill(undefined);
  kept.forEach((index, place) => { values[index] = curve[place]; });
  return values;
}
