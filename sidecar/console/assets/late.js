// Copyright The Conch Authors. SPDX-License-Identifier: Apache-2.0
// Late, and why: which models miss their targets, and where their requests spend their time.

import { useState } from './vendor/hooks.js';
import { Drawer, Empty, Fetched, html, Name, path, Stack, State, Table, Tile, unserved, useFetch, Verdict } from './parts.js';
import { clock, percent, plural, rate, seconds, short, span, unknown, whole, words } from './format.js';
import { Bars, Hour, share, target } from './hour.js';

const spans = [
  { id: 'wait', name: 'waits for a GPU', series: 1 },
  { id: 'gather', name: 'gathers a batch', series: 4 },
  { id: 'execute', name: 'executes', series: 0 },
  { id: 'conch', name: 'Conch itself', series: 6 },
];

const total = (spent) => spans.reduce((sum, s) => sum + spent[s.id], 0);

// why is what a model's requests suffer from most, in words.
function why(r) {
  const s = share(r.now);
  if (s === null || s >= target) return '';
  const [worst] = r.now.outcomes ?? [];
  const spent = r.now.spent;
  const longest = spent && spans.reduce((a, b) => spent[b.id] > spent[a.id] ? b : a);
  if (worst && (worst.result === 'failed' || worst.result === 'refused')) return `${worst.result}${worst.reason ? `: ${worst.reason}` : ''}`;
  if (longest?.id === 'execute' && r.slo_seconds && spent.execute > 0.8 * r.slo_seconds) return `execution alone takes ${percent(spent.execute / r.slo_seconds)} of the SLO`;
  if (longest) return `${longest.name} for ${percent(spent[longest.id] / total(spent))} of its time`;
  return worst ? `${worst.result}${worst.reason ? `: ${worst.reason}` : ''}` : '';
}

export function verdict(rows) {
  const asked = rows.filter((r) => r.now.requests > 0);
  const requests = asked.reduce((n, r) => n + r.now.requests, 0), inTime = asked.reduce((n, r) => n + r.now.in_time, 0);
  const perSecond = asked.reduce((n, r) => n + r.now.requests / r.now.seconds, 0);
  const late = asked.filter((r) => share(r.now) < target).sort((a, b) => share(a.now) - share(b.now));
  if (!asked.length) return { level: 'idle', text: 'Nothing is being asked for.', note: 'No request has ended in the last seconds.' };
  const all = `${percent(inTime / requests)} of ${rate(perSecond)} req/s in time`;
  if (!late.length) return { level: 'good', text: `${asked.length === 1 ? 'The model that is asked for meets' : `All ${asked.length} models that are asked for meet`} the target.`, note: `${all}. The target is ${100 * target}% inside the SLO.` };
  return {
    level: 'bad', text: `${late.length} of ${plural(asked.length, 'model')} ${late.length === 1 ? 'misses' : 'miss'} the target: ${words(late.map((r) => `${short(r.model, 30)} (${percent(share(r.now))})`), 3)}.`,
    note: `${all}. ${late.slice(0, 2).map((r) => why(r) && `${short(r.model, 30)}: ${why(r)}`).filter(Boolean).join('; ')}`,
  };
}

const states = { ready: ['good', 'ready'], down: ['bad', 'down'], unplaced: ['bad', 'unplaced'], failed: ['bad', 'failed'], invalid: ['bad', 'invalid'], unloaded: ['idle', 'unloaded'] };
export const ModelState = ({ model }) => {
  const [level, word] = states[model?.state] ?? ['unsure', model?.state ?? unknown];
  return html`<span title=${short(model?.state_reason ?? '', 300) || undefined}><${State} level=${level}>${word}<//></span>`;
};

export const outcome = (o) => `${o.result}${o.reason ? ` (${o.reason.replaceAll('_', ' ')})` : ''}`;

const Outcomes = ({ of }) => of?.length ? html`<span class="chips">${of.slice(0, 3).map((o) => html`<span class="chip plain" key=${o.result + o.reason}>${outcome(o)} <b>${whole(o.count)}</b></span>`)}${of.length > 3 && html`<span class="quiet">+${of.length - 3}</span>`}</span>` : html`<span class="quiet">none</span>`;

const Share = ({ of }) => {
  const s = share(of);
  return s === null ? html`<span class="quiet">no requests</span>` : html`<${State} level=${s >= target ? 'good' : 'bad'}>${percent(s)}<//>`;
};

const Spent = ({ of, most }) => of ? html`<span class="spent"><${Stack} whole=${most} parts=${spans.map((s) => ({ name: s.id, value: of[s.id], series: s.series }))}
  label=${spans.map((s) => `${s.name} ${seconds(of[s.id])}`).join(', ')} /><span class="figure">${seconds(total(of))}</span></span>` : html`<span class="quiet">${unknown}</span>`;

const Legend = () => html`<p class="legend">${spans.map((s) => html`<span key=${s.id}><i class=${`fill f${s.series}`}></i>${s.name}</span>`)}</p>`;

export function Late({ stream }) {
  const [open, setOpen] = useState(null);
  const none = { seconds: 0, requests: 0, in_time: 0 };
  const rows = [...stream.requests.values()];
  for (const m of stream.models.values()) if (!stream.requests.has(m.name)) rows.push({ model: m.name, slo_seconds: m.slo_seconds, now: none, hour: none });
  const v = stream.seen.has('requests') ? verdict(rows) : { level: 'busy', text: 'Connecting to conch …' };
  const most = rows.reduce((n, r) => Math.max(n, r.now.spent ? total(r.now.spent) : 0), 1e-9);
  const sum = (window) => rows.reduce((a, r) => ({ requests: a.requests + r[window].requests, in_time: a.in_time + r[window].in_time, seconds: Math.max(a.seconds, r[window].seconds) }), none);
  const now = sum('now'), hour = sum('hour');
  const bad = {};
  for (const r of rows) for (const o of r.hour.outcomes ?? []) bad[outcome(o)] = (bad[outcome(o)] ?? 0) + o.count;
  const worst = Object.entries(bad).sort((a, b) => b[1] - a[1]);
  const down = unserved(stream.models);
  const columns = [
    { id: 'model', head: 'Model', by: (r) => r.model, cell: (r) => html`<${Name} text=${r.model} />` },
    { id: 'now', head: 'In time now', by: (r) => share(r.now), cell: (r) => html`<${Share} of=${r.now} />`, title: 'share of requests answered inside their SLO, over the last seconds' },
    { id: 'hour', head: 'Last hour', by: (r) => share(r.hour), title: 'minute by minute: bars from 90% to 100% of requests in time, red below 99%, none where nothing was measured',
      cell: (r) => html`<span class="over-hour"><${Share} of=${r.hour} /><${Bars} stream=${stream} model=${r.model} /></span>` },
    { id: 'rate', head: 'Requests/s', kind: 'number', by: (r) => r.now.seconds ? r.now.requests / r.now.seconds : 0, cell: (r) => rate(r.now.seconds ? r.now.requests / r.now.seconds : 0) },
    { id: 'slo', head: 'SLO', kind: 'number', by: (r) => r.slo_seconds, cell: (r) => r.slo_seconds ? seconds(r.slo_seconds) : html`<span class="quiet">none</span>` },
    { id: 'p99', head: 'p99', kind: 'number', by: (r) => stream.models.get(r.model)?.latency_p99_seconds ?? 0, cell: (r) => {
      const p99 = stream.models.get(r.model)?.latency_p99_seconds;
      return !p99 ? html`<span class="quiet">${unknown}</span>` : html`<span class=${r.slo_seconds && p99 > r.slo_seconds ? 'bad' : ''}>${seconds(p99)}</span>`;
    } },
    { id: 'spent', head: 'Where its time goes', kind: 'wide', by: (r) => r.now.spent ? total(r.now.spent) : 0, cell: (r) => html`<${Spent} of=${r.now.spent} most=${most} />` },
    { id: 'bad', head: 'Bad now', by: (r) => r.now.requests - r.now.in_time, cell: (r) => html`<${Outcomes} of=${r.now.outcomes} />` },
    { id: 'state', head: 'State', by: (r) => stream.models.get(r.model)?.state, cell: (r) => html`<${ModelState} model=${stream.models.get(r.model)} />` },
  ];
  return html`
    <${Verdict} level=${v.level} text=${v.text}>${v.note}<//>
    ${down.length > 0 && html`<p class="problem">${plural(down.length, 'model')} cannot be served: ${words(down.map((m) => `${short(m.name, 30)} (${m.state}${m.state_reason ? `: ${short(m.state_reason, 600)}` : ''})`), 2)}</p>`}
    <div class="summary">
      <dl class="tiles">
        <${Tile} label="In time, now" value=${percent(share(now))} note=${now.requests ? `of ${whole(now.requests)} in ${span(now.seconds)}` : 'no requests'} level=${share(now) === null ? '' : share(now) >= target ? 'good' : 'bad'} />
        <${Tile} label="In time, last hour" value=${percent(share(hour))} note=${hour.requests ? `of ${whole(hour.requests)} in ${span(hour.seconds)}` : 'no requests'} level=${share(hour) === null ? '' : share(hour) >= target ? 'good' : 'bad'} />
        <${Tile} label="Bad, last hour" value=${whole(hour.requests - hour.in_time)} note=${worst.length ? worst.slice(0, 2).map(([k, n]) => `${k} ${whole(n)}`).join(', ') : 'none'} />
      </dl>
      <${Hour} stream=${stream} now=${now} caption="In time over the last hour, all requests" />
    </div>
    <${Legend} />
    <${Table} caption="Models, those that miss their target most first" columns=${columns} rows=${rows} rowKey=${(r) => r.model} first=${{ id: 'now', down: false }} onOpen=${(r) => setOpen(r.model)} empty="There is no model in the repository." />
    ${open !== null && html`<${Slowest} stream=${stream} model=${open} onClose=${() => setOpen(null)} />`}`;
}

// Slowest requests of a model in the last minute, each with where its time went, and how the model did over the last hour.
function Slowest({ stream, model, onClose }) {
  const got = useFetch(`${path('models', model)}/slowest`);
  return html`<${Drawer} title=${html`Slowest of <${Name} text=${model} />`} onClose=${onClose}>
    <${Hour} stream=${stream} model=${model} now=${stream.requests.get(model)?.now} caption="In time over the last hour" />
    <p class="quiet">The slowest requests of the last minute, as they were when this was opened. <button class="link" onClick=${got.again}>Ask again</button></p>
    <${Legend} />
    <${Fetched} of=${got}>${(all) => {
      if (!all.length) return html`<${Empty}>No request of it has ended in the last minute.<//>`;
      const most = Math.max(...all.map((r) => Math.max(r.latency_seconds, r.deadline_seconds)));
      return html`<ol class="slowest">${all.map((r, i) => html`<li key=${i}>
        <div class="line"><b class=${r.deadline_seconds && r.latency_seconds > r.deadline_seconds ? 'bad' : ''}>${seconds(r.latency_seconds)}</b>
          <span class="quiet">of ${r.deadline_seconds ? seconds(r.deadline_seconds) : 'no deadline'} · ${outcome(r)} · ${clock(r.ended)}</span></div>
        <div class="against"><${Stack} whole=${most} parts=${spans.map((s) => ({ name: s.id, value: r.spent[s.id], series: s.series }))} label=${spans.map((s) => `${s.name} ${seconds(r.spent[s.id])}`).join(', ')} />
          ${r.deadline_seconds > 0 && html`<i class="deadline" style=${{ left: `${100 * r.deadline_seconds / most}%` }}></i>`}</div>
        <div class="quiet small">${spans.filter((s) => r.spent[s.id] > 0).map((s) => `${s.name} ${seconds(r.spent[s.id])}`).join(' · ')}</div>
        <div class="quiet small">${r.partition ? html`on <${Name} text=${r.partition} />, ${plural(r.rows, 'row')} in a batch of ${r.batch_rows}` : 'not executed'}${r.retried ? ', tried again' : ''}
          ${r.id && html` · id <code>${short(r.id, 60)}</code>`}${r.trace_id && html` · trace <code>${r.trace_id}</code>`}</div></li>`)}</ol>`;
    }}<//>
    <${Explain} model=${model} />
  <//>`;
}

// Explain is why a model is where it is, in the plan's words.
export function Explain({ model }) {
  const got = useFetch(path('plan', 'explain', model));
  return html`<h3>Why it is where it is</h3><${Fetched} of=${got}>${(e) => html`<pre class="text">${e.text}</pre>`}<//>`;
}
