// Numbers, times and sizes as people read them.

const WHOLE = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const SHORT = new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 1 });
const SIZES = [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]];
const NONE = "–";

export const count = (value) => (value === null || value === undefined ? NONE : WHOLE.format(value));

/** A count in few letters, as 1.2M. */
export const short = (value) => (value < 10_000 ? count(value) : SHORT.format(value));

/** A share of one. */
export const percent = (share) => (share === null || share === undefined ? NONE : `${(100 * share).toFixed(1)}%`);

export const decimal = (value, digits = 3) => (value === null || value === undefined ? NONE : value.toFixed(digits));

/** Milliseconds: three figures that count. */
export function ms(value) {
  if (value === null || value === undefined) return NONE;
  if (value >= 1_000) return `${(value / 1000).toFixed(value >= 10_000 ? 1 : 2)} s`;
  if (value >= 100) return `${WHOLE.format(value)} ms`;
  return `${value.toFixed(value >= 10 ? 1 : 2)} ms`;
}

/** A length of time, given in seconds, in the largest unit that fits. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return NONE;
  for (const [unit, size] of [["d", 86_400], ["h", 3_600], ["min", 60]]) {
    if (seconds >= 2 * size) return `${(seconds / size).toFixed(seconds < 10 * size ? 1 : 0)} ${unit}`;
  }
  return `${Math.max(0, seconds).toFixed(seconds < 10 ? 1 : 0)} s`;
}

/** A duration that may be negative, such as of hits that took longer than the original responses. */
export function signedDuration(seconds) {
  return seconds <= -0.05 ? `-${duration(-seconds)}` : duration(seconds);
}

export function bytes(value) {
  if (value === null || value === undefined) return NONE;
  const [unit, size] = SIZES.find(([, each]) => value >= each) ?? ["B", 1];
  return `${(value / size).toFixed(unit === "B" ? 0 : 1)} ${unit}`;
}

/** Money with four decimals, or with two digits that count if it is small. */
export function money(value) {
  if (value === null || value === undefined) return NONE;
  const size = Math.abs(value);
  if (size < 1e-9) return "0";
  // Two sums of the same prices, in another order, round alike.
  return Number(value.toPrecision(12)).toFixed(size >= 10 ? 2 : size >= 0.001 ? 4 : 1 - Math.floor(Math.log10(size)));
}

/** An amount that somebody has set, such as a budget. */
export const amount = (value) => value.toLocaleString("en-US", { maximumFractionDigits: 9 });

const two = (value) => String(value).padStart(2, "0");

/** The time of day of a moment, given in seconds since the epoch; with the day where it is another one. */
export function clock(seconds, exact = true) {
  const date = new Date(1000 * seconds);
  const time = `${two(date.getHours())}:${two(date.getMinutes())}${exact ? `:${two(date.getSeconds())}` : ""}`;
  const today = new Date().setHours(0, 0, 0, 0);
  if (date >= today && date < today + 86_400_000) return time;
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${time}`;
}

/** The name of a client, or another tenant unchanged. */
export const tenantName = (tenant) => tenant.replace(/^client:/, "");

/** The first digits of a digest or an id. */
export const digest = (text, length = 12) => (text ? text.slice(0, length) : NONE);

/** A text on one line. */
export const line = (text) => (text ?? "").replaceAll(/\s+/g, " ");
