// How numbers and times are written on charts; the same as the server writes them.

const MINUS = "−";

export function number(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "—";
  const size = Math.abs(value);
  let words;
  if (size !== 0 && (size < 1e-3 || size >= 1e5)) words = value.toExponential(2);
  else words = value.toFixed(Math.min(4, size ? Math.max(0, 2 - Math.floor(Math.log10(size))) : 2));
  return words.replace("-", MINUS);
}

const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 2 });

// The numbers beside an axis, whose steps are `increment` apart; from `large` on they are shortened.
export function ticks(splits, increment, large = 1e4) {
  let decimals = 0;
  while (decimals < 8 && Math.abs(increment * 10 ** decimals - Math.round(increment * 10 ** decimals)) > 1e-6) decimals += 1;
  const largest = Math.max(...splits.map((split) => Math.abs(split ?? 0)));
  return splits.map((split) => {
    if (split === null || split === undefined) return "";
    let words;
    if (split === 0) words = "0";
    else if (largest >= large) words = compact.format(split);
    else if (largest >= 1e4) words = split.toLocaleString("en");
    else if (largest < 1e-2) words = Number(split.toPrecision(3)).toExponential();
    else words = split.toFixed(decimals);
    return words.replace("-", MINUS);
  });
}

const UNITS = [["d", 86400], ["h", 3600], ["min", 60]];

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "—";
  if (seconds < 60) return `${Number(seconds.toPrecision(2))} s`;
  const place = UNITS.findIndex(([, length]) => seconds >= length);
  const [unit, length] = UNITS[place];
  const whole = Math.floor(seconds / length);
  const rest = place + 1 < UNITS.length
    ? Math.round((seconds - whole * length) / UNITS[place + 1][1])
    : Math.round(seconds - whole * length);
  const smaller = place + 1 < UNITS.length ? UNITS[place + 1][0] : "s";
  return rest ? `${whole} ${unit} ${rest} ${smaller}` : `${whole} ${unit}`;
}
