// Copyright The Conch Authors. SPDX-License-Identifier: Apache-2.0
// The last hour, minute by minute: which share of requests was in time. Where nothing was measured nothing is drawn.

import { html } from './parts.js';
import { percent, plural, unknown } from './format.js';
import { Plot } from './plot.js';

// target is the share of requests in time below which a model is late: a system holds a rate while at most 1% are bad.
export const target = 0.99;

export const share = (a) => a?.requests ? a.in_time / a.requests : null;

const minutes = 60;

// sums of all models, by minute: a minute that has come does not change.
const sums = new WeakMap();

// counted are the requests of a minute and those of them in time, of a model or of all (undefined).
function counted(minute, model) {
  if (model !== undefined) return Object.hasOwn(minute.models, model) ? minute.models[model] : [0, 0];
  if (!sums.has(minute)) sums.set(minute, Object.values(minute.models).reduce(([n, ok], [more, also]) => [n + more, ok + also], [0, 0]));
  return sums.get(minute);
}

// measured is the hour as places, one a minute, oldest first: [start in seconds, share in time or null].
function measured(stream, model) {
  const at = new Map(stream.minutes.map((m) => [m.start, m]));
  // The minute before the present one has ended, but may not have come yet.
  const last = Math.max(stream.minutes.at(-1)?.start ?? 0, (Math.floor(stream.now / 60000) - 2) * 60);
  return Array.from({ length: minutes }, (_, i) => {
    const start = last - (minutes - 1 - i) * 60, m = at.get(start);
    const [requests, inTime] = m ? counted(m, model) : [0, 0];
    return [start, requests ? inTime / requests : null];
  });
}

// inWords is what the minutes say, for who does not see them.
function inWords(shares) {
  const known = shares.filter((s) => s !== null), late = known.filter((s) => s < target);
  if (!known.length) return unknown;
  return `${plural(known.length, 'minute')} measured, ${late.length ? `${late.length} below ${100 * target}%, the worst ${percent(Math.min(...late))}` : `none below ${100 * target}%`}`;
}

// Bars of a model's hour: from 90% to all of its requests in time, those below the target in another colour.
export function Bars({ stream, model }) {
  const shares = measured(stream, model).map(([, s]) => s);
  if (shares.every((s) => s === null)) return null;
  const bars = (wanted) => shares.map((s, i) => s !== null && wanted(s) ? `M${2 * i + 1} 18V${(16 - 16 * Math.max(0, (s - 0.9) / 0.1)).toFixed(1)}` : '').join('');
  return html`<svg class="hour" viewBox="0 0 120 18" role="img" aria-label=${`last hour: ${inWords(shares)}`}><path class="kept" d=${bars((s) => s >= target)} /><path class="missed" d=${bars((s) => s < target)} /></svg>`;
}

const ago = (n) => n === 0 ? 'now' : `${Math.round(n)} min`;

// Hour as a chart, of a model or of all, that ends with the share in time now.
export function Hour({ stream, model, now, caption }) {
  const at = measured(stream, model), shares = at.map(([, s]) => s);
  const data = [[...at.map(([start]) => (start + 30 - stream.now / 1000) / 60), 0], [...shares, share(now)]];
  const said = inWords(shares);
  return html`<figure><figcaption>${caption}: ${said === unknown ? 'unknown, no whole minute was measured yet' : said}</figcaption>
    <${Plot} data=${data} height=${96} x=${ago} xRange=${() => [-minutes - 1, 0]} legend=${false} label=${`share of requests in time over the last hour: ${said}; now ${percent(share(now))}`}
      y=${(n) => `${Math.round(1000 * n) / 10}%`} range=${(u, min) => [Math.min(min ?? 0.98, 0.98) - 0.005, 1.002]} series=${[{ label: 'in time', color: '--s0', fill: true, width: 2, points: 'alone' }]} /></figure>`;
}
