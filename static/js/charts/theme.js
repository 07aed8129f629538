// The colours of the style sheet, for canvases, which do not follow it by themselves.

const NAMES = ["ink", "soft", "faint", "line", "accent", "good", "warn", "bad", "band", "panel"];

export const theme = {};
const followers = new Set();

function read() {
  const style = getComputedStyle(document.documentElement);
  for (const name of NAMES) theme[name] = style.getPropertyValue(`--${name}`).trim();
  theme.font = `11px ${getComputedStyle(document.body).fontFamily}`;
}

read();
for (const query of ["(prefers-color-scheme: dark)", "(prefers-contrast: more)"]) {
  matchMedia(query).addEventListener("change", () => {
    read();
    followers.forEach((follower) => follower());
  });
}

// Calls `follower` when the colours have changed; returns how to stop that.
export function followTheme(follower) {
  followers.add(follower);
  return () => followers.delete(follower);
}
