// Numbers formatted for people.

export const whole = (n) => Math.round(n).toLocaleString("en");

export const texts = (n) => (n === 1 ? "1 text" : `${whole(n)} texts`);

/** .013, -.002, 1.000: three decimals without the leading zero, for cells. */
export function cell(value) {
  const text = value.toFixed(3);
  return (text === "-0.000" ? "0.000" : text).replace(/^(-?)0\./, "$1.");
}

export const score = (value) => value.toFixed(3);

/** At most three significant digits; large numbers without decimals. */
export function short(value) {
  if (!Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size >= 100 || Number.isInteger(value)) return whole(value);
  if (size >= 2) return value.toFixed(1);
  if (size >= 0.01 || size === 0) return value.toFixed(2);
  return value > 0 && value < 0.001 ? "< 0.001" : value.toPrecision(1);
}

export function percentile(value) {
  // 99.996 is not 100: as many nines as it has, up to four decimals.
  for (const digits of [0, 1, 2, 3, 4]) {
    const text = value.toFixed(digits);
    if (Number(text) < 100) return `${text} %`;
  }
  return "99.9999 %";
}

export function seconds(value) {
  if (value < 0.9995) return `${Math.max(1, Math.round(value * 1000))} ms`;
  return value < 100 ? `${value.toFixed(1)} s` : `${whole(value)} s`;
}

export function bytes(value) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let at = 0;
  while (value >= 999.5 && at < units.length - 1) [value, at] = [value / 1000, at + 1];
  return `${at && value < 10 ? value.toFixed(1) : Math.round(value)} ${units[at]}`;
}

export function since(value) {
  const all = Math.floor(value);
  const [days, hours, minutes] = [Math.floor(all / 86400), Math.floor(all / 3600) % 24, Math.floor(all / 60) % 60];
  if (days) return `${days} d ${hours} h`;
  if (hours) return `${hours} h ${minutes} min`;
  return minutes ? `${minutes} min ${all % 60} s` : `${all} s`;
}
