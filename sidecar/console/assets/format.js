// Copyright The Conch Authors. SPDX-License-Identifier: Apache-2.0
// Numbers and times as text for people. What is not known is "unknown", never 0.

export const unknown = 'unknown';
const known = (v) => typeof v === 'number' && isFinite(v);

// seconds as 340 µs, 12.3 ms, 1.52 s, 3 min 20 s. The unit is that of the rounded figure: 1.00 s, not 1000 ms.
export function seconds(v) {
  if (!known(v)) return unknown;
  const a = Math.abs(v);
  if (a === 0) return '0 ms';
  if (a < 0.9995e-3) return `${trim(v * 1e6, 0)} µs`;
  if (a < 0.9995) return `${trim(v * 1e3, a < 0.009995 ? 2 : a < 0.09995 ? 1 : 0)} ms`;
  if (a < 59.95) return `${trim(v, a < 9.995 ? 2 : 1)} s`;
  const all = Math.round(a), sign = v < 0 ? '-' : '';
  return all < 3600 ? `${sign}${Math.floor(all / 60)} min${all % 60 ? ` ${all % 60} s` : ''}` : `${sign}${span(all)}`;
}

// span of time that passed: 12 s, 4 min, 3 h, 2 d.
export function span(v) {
  if (!known(v)) return unknown;
  const a = Math.max(0, v);
  if (a < 60) return `${Math.floor(a)} s`;
  if (a < 3600) return `${Math.floor(a / 60)} min`;
  if (a < 86400) return `${Math.floor(a / 3600)} h ${Math.floor(a % 3600 / 60)} min`;
  return `${Math.floor(a / 86400)} d ${Math.floor(a % 86400 / 3600)} h`;
}

const trim = (v, digits) => v.toFixed(digits);

// percent of a share. It rounds down, so that only all is 100%.
export function percent(v) {
  if (!known(v)) return unknown;
  const p = v * 100, digits = p >= 99 && p < 100 ? 2 : p >= 10 ? 1 : 2;
  const down = Math.floor(p * 10 ** digits + 1e-9) / 10 ** digits;
  return `${p >= 100 || p === 0 ? Math.round(p) : down.toFixed(digits)}%`;
}

export function whole(v) { return known(v) ? Math.round(v).toLocaleString('en') : unknown; }

// rate per second: three figures.
export function rate(v) {
  if (!known(v)) return unknown;
  return v === 0 ? '0' : v < 10 ? trim(v, 1) : whole(v);
}

export function bytes(v) {
  if (!known(v)) return unknown;
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let i = 0;
  while (v >= 1024 && i < units.length - 1) { v /= 1024; i++; }
  return `${v < 10 && i > 0 ? v.toFixed(1) : Math.round(v)} ${units[i]}`;
}

// clock of a time: 14:03:12, with the day where it is another.
export function clock(t) {
  const d = new Date(t);
  if (!t || isNaN(d) || d.getFullYear() < 1971) return unknown;
  const time = d.toLocaleTimeString('en-GB');
  return d.toDateString() === new Date().toDateString() ? time : `${d.toLocaleDateString('en-CA')} ${time}`;
}

// words joins a list: "a, b and 3 more".
export function words(list, most = 4) {
  if (list.length <= most) return list.length < 2 ? list.join('') : `${list.slice(0, -1).join(', ')} and ${list[list.length - 1]}`;
  return `${list.slice(0, most - 1).join(', ')} and ${list.length - most + 1} more`;
}

export const plural = (n, one, many = `${one}s`) => `${whole(n)} ${n === 1 ? one : many}`;

// short cuts a text that would not fit, with what is left out. It cuts between characters: half of a surrogate pair is no character.
export const short = (text, most = 60) => text.length > most ? `${text.slice(0, most - 1).replace(/[\uD800-\uDBFF]$/, '')}…` : text;
