// Debiased exponential smoothing: smoothed({updates, values, means, thinned}, weight) → values.
//
// s ← w^Δ·s + (1 − w^Δ)·v, divided by the sum of the weights so far, as Adam's moments are; Δ is how
// many updates have passed since the last value, so that a thinned curve is smoothed as the whole
// one is. Null stays null (a gap), and what was known before it lives on.
//
// A thinned curve has the mean of each bucket in the bucket's last row. Those are smoothed, and its
// other rows are undefined, which is no gap; two rows in a row without a number are one.

export function smoothed({ updates, values, means, thinned }, weight) {
  let sum = 0;
  let norm = 0;
  let last = null;
  return (thinned ? means : values).map((value, index) => {
    if (value === null || value === undefined) {
      const isGap = !thinned || (values[index] === null && values[index - 1] === null);
      return isGap ? null : undefined;
    }
    const passed = last === null ? 1 : Math.max(1, updates[index] - last);
    const kept = weight ** passed;
    sum = kept * sum + (1 - kept) * value;
    norm = kept * norm + (1 - kept);
    last = updates[index];
    return sum / norm;
  });
}
