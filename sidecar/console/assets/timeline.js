// Copyright The Conch Authors. SPDX-License-Identifier: Apache-2.0
// The last 30 seconds: every execution on its partition, with its deadline, and what happened beside.

import { useEffect, useRef, useState } from './vendor/hooks.js';
import { Empty, html, Name, Pages, State, Verdict } from './parts.js';
import { clock, percent, plural, seconds, short, whole } from './format.js';

const lengths = [30, 10, 3]; // seconds that can be looked at
const kept = 30;
const rowHeight = 26, axisHeight = 22, gap = 6;
const perPage = 40; // partitions
const marks = ['plan_applied', 'plan_held', 'plan_rejected', 'partition_down', 'partition_up', 'model_loaded', 'model_unloaded', 'degraded', 'recovered', 'gpu_drained', 'policy_changed', 'place_ejected', 'place_restored'];

const seriesOf = (model) => { let hash = 0; for (let i = 0; i < model.length; i++) hash = (hash * 31 + model.charCodeAt(i)) | 0; return Math.abs(hash) % 8; };
const isLate = (e) => e.deadline > 0 && e.end > e.deadline;

export function Timeline({ stream }) {
  const canvas = useRef(), box = useRef();
  const [paused, setPaused] = useState(null); // {at, executions, events, complete}
  const [hover, setHover] = useState(null);
  const [at, setAt] = useState(0);
  const [length, setLength] = useState(kept);
  const until = paused?.at ?? stream.now / 1000;
  const { executions, events, complete } = paused ?? stream;
  const all = executions.filter((e) => e.end > until - kept);
  // Of more executions than are kept, the last are there, which are those of a shorter time. So are those of a conch that has just begun.
  const began = events.findLast((e) => e.kind === 'started');
  const covered = Math.max(1, Math.min(kept, complete ? kept : until - executions[0].end, began ? until - Date.parse(began.time) / 1000 : kept)), time = plural(Math.round(covered), 'second');
  const happened = events.filter((e) => marks.includes(e.kind) && Date.parse(e.time) / 1000 > until - kept);
  const names = new Set(stream.partitions.keys());
  for (const e of all) names.add(e.partition);
  const sorted = [...names].sort(), pages = Math.max(1, Math.ceil(sorted.length / perPage)), here = Math.min(at, pages - 1);
  const shown = sorted.slice(here * perPage, (here + 1) * perPage), row = new Map(shown.map((p, i) => [p, i]));
  const models = [...new Set(all.map((e) => e.model))].sort();
  const color = new Map(models.map((m, i) => [m, models.length <= 8 ? i : seriesOf(m)]));
  const late = all.filter(isLate).length, failed = all.filter((e) => e.failed).length;
  const height = axisHeight + shown.length * rowHeight;

  const state = useRef();
  state.current = { length, all, happened, shown, row, color, height, hover, pausedAt: paused?.at };
  useEffect(() => {
    let frame, last = -1000;
    const tick = (t) => {
      frame = requestAnimationFrame(tick);
      if (t - last < 100) return; // 10 a second are smooth enough for 30 s in a screen's width
      last = t;
      if (canvas.current) paint(canvas.current, box.current.clientWidth, state.current, stream.now / 1000);
    };
    frame = requestAnimationFrame(tick);
    return () => cancelAnimationFrame(frame);
  }, []);

  const pause = () => setPaused(paused ? null : { at: stream.now / 1000, executions, events, complete });
  state.current.pause = pause;
  useEffect(() => {
    const key = (e) => {
      if (e.key !== ' ' || e.ctrlKey || e.metaKey || e.altKey || e.target.closest('input,textarea,select,dialog,button,a,canvas')) return;
      e.preventDefault();
      state.current.pause();
      canvas.current?.focus({ preventScroll: true }); // for the arrow keys
    };
    addEventListener('keydown', key);
    return () => removeEventListener('keydown', key);
  }, []);
  const point = (e) => {
    const r = canvas.current.getBoundingClientRect(), p = shown[Math.floor((e.clientY - r.top - axisHeight) / rowHeight)];
    const t = (state.current.pausedAt ?? stream.now / 1000) - length + length * (e.clientX - r.left) / r.width, close = length * 3 / r.width;
    let best = null;
    for (const x of all) if (x.partition === p && t > x.start - close && t < x.end + close && (!best || Math.abs(x.start + x.end - 2 * t) < Math.abs(best.start + best.end - 2 * t))) best = x;
    setHover(best && { e: best, x: e.clientX - r.left, y: e.clientY - r.top });
  };
  // With the keyboard: left and right step through the executions of a partition, up and down change it.
  const step = (e) => {
    if (e.key === ' ') { pause(); e.preventDefault(); return; }
    const by = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[e.key];
    if (!by || !all.length) return;
    e.preventDefault();
    if (!paused) pause();
    const p = shown[Math.max(0, Math.min(shown.length - 1, (row.get(hover?.e.partition) ?? 0) + by[1]))];
    const mine = all.filter((x) => x.partition === p);
    if (!mine.length) return;
    const was = mine.indexOf(hover?.e), next = was < 0 ? mine[mine.length - 1] : mine[Math.max(0, Math.min(mine.length - 1, was + by[0]))];
    const width = box.current.clientWidth;
    setHover({ e: next, x: width * (next.start - until + length) / length, y: axisHeight + row.get(p) * rowHeight });
  };
  const seen = stream.seen.has('executions');
  const perPartition = shown.map((p) => {
    const mine = all.filter((e) => e.partition === p);
    return { p, n: mine.length, rows: mine.reduce((n, e) => n + e.rows, 0), busy: mine.reduce((n, e) => n + e.end - Math.max(e.start, until - covered), 0) / covered, late: mine.filter(isLate).length, failed: mine.filter((e) => e.failed).length };
  });
  return html`
    <${Verdict} level=${!seen ? 'busy' : !all.length ? 'idle' : failed ? 'bad' : late > 0.01 * all.length ? 'bad' : 'good'}
      text=${!seen ? 'Connecting to conch …' : !all.length ? 'Nothing was executed in the last 30 seconds.' : failed || late ? `Of ${whole(all.length)} executions of ${time}, ${whole(late)} ended after a deadline${failed ? ` and ${whole(failed)} failed` : ''}.` : `All ${whole(all.length)} executions of ${time} ended in time.`}>
      ${happened.length ? `${plural(happened.length, 'change')} meanwhile, the last: ${short(happened[happened.length - 1].message, 160)}` : seen && 'No plan, model or server changed meanwhile.'}<//>
    <div class="tools"><button aria-pressed=${!!paused} onClick=${pause}>${paused ? 'Go on' : 'Pause'}</button>
      <span class="quiet">${paused ? `stands at ${clock(paused.at * 1000)}` : 'live'}; the space bar pauses, arrow keys step through executions</span>
      <span class="choice" role="group" aria-label="How long a time is shown">${lengths.map((n) => html`<button key=${n} aria-pressed=${n === length} onClick=${() => setLength(n)}>${n} s</button>`)}</span><${Pages} at=${here} pages=${pages} go=${setAt} /></div>
    <div class="gantt">
      <ul class="rows" aria-hidden="true" style=${{ paddingTop: `${axisHeight}px` }}>${shown.map((p) => html`<li key=${p} style=${{ height: `${rowHeight}px` }}><${Name} text=${p} most=${22} /></li>`)}</ul>
      <div class="chart" ref=${box} style=${{ height: `${height}px` }}>
        <canvas ref=${canvas} tabindex="0" role="img" aria-label=${`executions of the last ${time} on ${plural(shown.length, 'partition')}; the table below has them in figures`} onMouseMove=${point} onMouseLeave=${() => setHover(null)} onKeyDown=${step}></canvas>
        ${hover && html`<div class="tip" role="status" style=${{ left: `${Math.max(0, Math.min(hover.x + 12, (box.current?.clientWidth ?? 800) - 250))}px`, top: `${hover.y + 18}px` }}>
          <b><bdi>${short(hover.e.model, 60)}</bdi></b> on <bdi>${short(hover.e.partition, 40)}</bdi><br />${plural(hover.e.rows, 'row')} of ${plural(hover.e.requests, 'request')}, ${seconds(hover.e.end - hover.e.start)}<br />
          ${hover.e.deadline ? html`<span class=${isLate(hover.e) ? 'bad' : ''}>${isLate(hover.e) ? `${seconds(hover.e.end - hover.e.deadline)} after` : `${seconds(hover.e.deadline - hover.e.end)} before`} its first deadline</span>` : 'no deadline'}${hover.e.failed && html`<br /><span class="bad">it failed</span>`}</div>`}
      </div>
    </div>
    ${models.length > 0 && html`<p class="legend">${models.slice(0, 16).map((m) => html`<span key=${m}><i class=${`fill f${color.get(m)}`}></i><${Name} text=${m} most=${28} /></span>`)}${models.length > 16 && html`<span>and ${models.length - 16} more</span>`}<span><i class="edge"></i>ended after a deadline, or failed</span></p>`}
    ${shown.length ? html`<div class="scroll" tabindex="0" role="region" aria-label="Executions by partition"><table><caption class="hidden">Executions of the last ${time} by partition</caption>
      <thead><tr><th scope="col">Partition</th>${['Executions', 'Rows', 'Mean batch', 'Busy', 'After a deadline', 'Failed'].map((t) => html`<th key=${t} scope="col" class="number">${t}</th>`)}</tr></thead>
      <tbody>${perPartition.map((x) => html`<tr key=${x.p}><th scope="row"><${Name} text=${x.p} /></th><td class="number" data-head="Executions">${whole(x.n)}</td><td class="number" data-head="Rows">${whole(x.rows)}</td>
        <td class="number" data-head="Mean batch">${x.n ? (x.rows / x.n).toFixed(1) : '–'}</td><td class="number" data-head="Busy">${percent(x.busy)}</td><td class="number" data-head="After a deadline">${x.late ? html`<${State} level="bad">${whole(x.late)}<//>` : '0'}</td>
        <td class="number" data-head="Failed">${x.failed ? html`<${State} level="bad">${whole(x.failed)}<//>` : '0'}</td></tr>`)}</tbody></table></div>` : seen && html`<${Empty}>The plan has no partition.<//>`}
    ${happened.length > 0 && html`<section><h2>What happened</h2><ul class="log-list">${happened.slice(-20).reverse().map((e) => html`<li key=${e.id}><span class="quiet">${clock(e.time)}</span> ${e.kind.replaceAll('_', ' ')}: <span class="text">${short(e.message, 300)}</span></li>`)}</ul></section>`}`;
}

// paint draws all bars; the newest are at the right edge.
function paint(canvas, width, { length, all, happened, shown, row, color, height, hover, pausedAt }, now) {
  const css = getComputedStyle(document.documentElement), of = (name) => css.getPropertyValue(name).trim();
  const dense = devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * dense) || canvas.height !== Math.round(height * dense)) {
    canvas.width = Math.round(width * dense);
    canvas.height = Math.round(height * dense);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const c = canvas.getContext('2d');
  c.setTransform(dense, 0, 0, dense, 0, 0);
  c.clearRect(0, 0, width, height);
  const to = pausedAt ?? now, from = to - length, x = (t) => (t - from) / length * width;
  c.font = '11px system-ui, sans-serif';
  c.fillStyle = of('--soft');
  c.strokeStyle = of('--line');
  c.lineWidth = 1;
  const step = length / 6;
  for (let t = to - 5 * step; t < to; t += step) {
    c.beginPath();
    c.moveTo(x(t), axisHeight - 4);
    c.lineTo(x(t), height);
    c.stroke();
    c.fillText(`${Number((t - to).toFixed(1))} s`, x(t) + 3, 12);
  }
  const colors = Array.from({ length: 8 }, (_, i) => of(`--s${i}`)), bad = of('--bad'), ink = of('--page');
  for (let i = 0; i < shown.length; i++) {
    c.fillStyle = of('--line');
    c.fillRect(0, axisHeight + (i + 1) * rowHeight - 1, width, 1);
  }
  for (const e of all) {
    const i = row.get(e.partition);
    if (i === undefined || e.end < from) continue;
    const left = x(e.start), w = Math.max(1, x(e.end) - left), top = axisHeight + i * rowHeight + gap / 2, h = rowHeight - gap;
    c.fillStyle = colors[color.get(e.model) ?? 6];
    c.fillRect(left, top, w, h);
    if (e.failed || isLate(e)) {
      c.fillStyle = bad;
      c.fillRect(left, top + h - 4, w, 4);
    }
    if (w > 18) {
      c.fillStyle = ink;
      c.fillText(String(e.rows), left + 4, top + 14);
    }
  }
  c.fillStyle = c.strokeStyle = of('--ink');
  for (const e of happened) {
    const at = x(Date.parse(e.time) / 1000);
    c.setLineDash([3, 3]);
    c.beginPath();
    c.moveTo(at, 14);
    c.lineTo(at, height);
    c.stroke();
    c.setLineDash([]);
    c.beginPath();
    c.moveTo(at - 4, 14);
    c.lineTo(at + 4, 14);
    c.lineTo(at, 20);
    c.fill();
  }
  if (hover && row.has(hover.e.partition)) {
    const left = x(hover.e.start), top = axisHeight + row.get(hover.e.partition) * rowHeight + gap / 2;
    c.strokeStyle = of('--ink');
    c.lineWidth = 2;
    c.strokeRect(left - 1, top - 1, Math.max(1, x(hover.e.end) - left) + 2, rowHeight - gap + 2);
    if (hover.e.deadline) {
      c.beginPath();
      c.moveTo(x(hover.e.deadline), top - 3);
      c.lineTo(x(hover.e.deadline), top + rowHeight - gap + 3);
      c.stroke();
    }
  }
}
