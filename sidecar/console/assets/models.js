// Copyright The Conch Authors. SPDX-License-Identifier: Apache-2.0
// Models and repository: what is there, in which revision, what it takes, and what is wrong with it.

import { useMemo, useState } from './vendor/hooks.js';
import { Drawer, Empty, Fetched, html, Name, path, State, Table, useFetch, Verdict } from './parts.js';
import { bytes, clock, percent, plural, rate, seconds, short, unknown, whole, words } from './format.js';
import { ModelState } from './late.js';
import { Conditions, Order } from './gpus.js';
import { Plot } from './plot.js';

export function Models({ stream }) {
  const [open, setOpen] = useState(null);
  const imports = stream.events.filter((e) => e.kind === 'repository_imported').length; // another one brings another list
  const revisions = useFetch(`/v1/repository/revisions?seen=${imports}`);
  const rows = [...stream.models.values()], seen = stream.seen.has('models');
  const current = (revisions.value ?? []).find((r) => r.current);
  const refused = (current?.problems ?? []).filter((p) => p.refused), remarks = (current?.problems ?? []).filter((p) => !p.refused);
  const broken = rows.filter((m) => m.state === 'failed' || m.state === 'invalid');
  const [level, text] = !seen ? ['busy', 'Connecting to conch …'] : broken.length
    ? ['bad', `${plural(broken.length, 'model')} of ${whole(rows.length)} cannot be loaded: ${words(broken.map((m) => short(m.name, 30)), 3)}.`]
    : rows.length ? ['good', `${rows.length === 1 ? 'The model of the repository' : `All ${whole(rows.length)} models of the repository`} can be loaded.`] : ['idle', 'The repository has no model.'];
  const columns = [
    { id: 'name', head: 'Model', by: (m) => m.name, cell: (m) => html`<${Name} text=${m.name} />` },
    { id: 'state', head: 'State', by: (m) => m.state, cell: (m) => html`<${ModelState} model=${m} />` },
    { id: 'versions', head: 'Versions', cell: (m) => (m.versions ?? []).join(', ') || unknown },
    { id: 'backend', head: 'Backend', by: (m) => m.backend, cell: (m) => m.backend || unknown },
    { id: 'slo', head: 'SLO', kind: 'number', by: (m) => m.slo_seconds, cell: (m) => m.slo_seconds ? seconds(m.slo_seconds) : html`<span class="quiet">none</span>` },
    { id: 'batch', head: 'Max batch', kind: 'number', by: (m) => m.max_batch_size, cell: (m) => m.max_batch_size || '–' },
    { id: 'batched', head: 'Batched by Conch', by: (m) => m.batchable, cell: (m) => m.batchable ? 'yes' : m.ensemble_steps ? 'its steps' : html`<span class="quiet" title=${short(m.pass_through_reason ?? '', 300)}>no: ${short(m.pass_through_reason || unknown, 60)}</span>` },
    { id: 'mean', head: 'Mean batch', kind: 'number', by: (m) => m.mean_batch, cell: (m) => m.mean_batch ? m.mean_batch.toFixed(1) : '–' },
    { id: 'rate', head: 'Requests/s', kind: 'number', by: (m) => m.rate, cell: (m) => rate(m.rate) },
    { id: 'revision', head: 'Revision', cell: (m) => html`<code>${(m.revision || unknown).slice(0, 10)}</code>` },
  ];
  return html`
    <${Verdict} level=${level} text=${text}>${current && html`Repository revision <code>${current.id.slice(0, 12)}</code> by ${short(current.author, 40)}, ${clock(current.time)}: ${short(current.reason || 'no reason given', 120)}`}<//>
    ${refused.length > 0 && html`<section class="without"><h2>What Triton would refuse</h2><ul>${refused.map((p, i) => html`<li key=${i}><${State} level="bad">refused<//> <${Name} text=${p.model} /> <span class="text">${short(p.text, 600)}</span></li>`)}</ul></section>`}
    ${remarks.length > 0 && html`<details class="without"><summary>${plural(remarks.length, 'remark')} on configurations</summary><ul>${remarks.slice(0, 100).map((p, i) => html`<li key=${i}><${Name} text=${p.model} /> <span class="text">${short(p.text, 600)}</span></li>`)}</ul></details>`}
    <${Table} caption="Models of the repository" columns=${columns} rows=${rows} rowKey=${(m) => m.name} first=${{ id: 'name', down: false }} onOpen=${(m) => setOpen({ model: m.name })} empty=${seen ? 'The repository has no model.' : 'Connecting to conch …'} />
    <h2>Revisions of the repository</h2>
    <${Fetched} of=${revisions}>${(all) => all.length === 0 ? html`<${Empty}>None is known: this conch keeps no repository.<//>` : html`<ol class="history">${all.slice(0, 50).map((r) => html`<li key=${r.id} class=${r.current ? 'current' : ''}>
      <button class="link" onClick=${() => setOpen({ revision: r.id })}><code>${r.id.slice(0, 12)}</code></button>${r.current && html` <span class="tag">serves</span>`}${r.held && html` <span class="tag">held</span>`}
      <span class="quiet"> ${clock(r.time)} · ${short(r.author, 40)}</span><div>${short(r.reason || 'no reason given', 200)}</div>
      <div class="quiet small">${[['added', r.added], ['removed', r.removed], ['changed', r.changed], ['loaded again', r.loaded], ['unloaded', r.unloaded]].filter(([, l]) => l?.length).map(([w, l]) => `${w}: ${words(l.map((n) => short(n, 30)), 5)}`).join(' · ') || plural(r.models.length, 'model')}</div></li>`)}</ol>`}<//>
    ${open?.model !== undefined && html`<${Model} name=${open.model} stream=${stream} onClose=${() => setOpen(null)} />`}
    ${open?.revision !== undefined && html`<${Revision} id=${open.revision} stream=${stream} current=${current} after=${revisions.again} onClose=${() => setOpen(null)} />`}`;
}

function Model({ name, stream, onClose }) {
  const got = useFetch(path('models', name));
  return html`<${Drawer} title=${html`<${Name} text=${name} />`} onClose=${onClose}><${Fetched} of=${got}>${(m) => html`
    <p><${ModelState} model=${m} /> ${m.state_reason && html`<span class="text">${short(m.state_reason, 1000)}</span>`}</p>
    <dl class="facts">
      <dt>SLO</dt><dd>${m.slo_seconds ? seconds(m.slo_seconds) : 'none'}, late ones are ${m.late === 'drop' ? 'dropped' : m.late === 'serve' ? 'served' : unknown}</dd>
      <dt>Discipline</dt><dd>${m.discipline || unknown}</dd>
      <dt>Places</dt><dd>${m.partitions?.length ? words(m.partitions.map((p) => short(p, 40)), 6) : 'none'}</dd>
      <dt>Latency</dt><dd>p50 ${seconds(m.latency_p50_seconds || NaN)}, p99 ${seconds(m.latency_p99_seconds || NaN)}</dd>
      <dt>Goodput</dt><dd>${rate(m.goodput)} req/s of ${rate(m.rate)}, burstiness ${m.burstiness ? m.burstiness.toFixed(2) : unknown}</dd>
    </dl>
    <h3>Conditions</h3><${Conditions} all=${m.conditions} now=${stream.now} />
    <h3>How long a batch takes</h3><${Latency} m=${m} />
    <h3>What its graph says</h3>${(m.estimates ?? []).length === 0 ? html`<p class="quiet">Nothing: it has no graph that Conch reads, or was not estimated yet.</p>` : m.estimates.map((e) => html`<${Estimate} key=${e.gpu_type} e=${e} />`)}`}<//><//>`;
}

// Latency plots l(b, p) of each GPU type: learnt, declared, and what the graph says.
function Latency({ m }) {
  if (!m.profiles?.length) return html`<p class="quiet">Nothing is known: no batch of it was executed, and nothing is declared.</p>`;
  return m.profiles.map((p) => html`<${OneLatency} key=${p.gpu_type} m=${m} p=${p} />`);
}

function OneLatency({ m, p }) {
  const { data, series, share } = useMemo(() => {
    const full = Math.max(...p.points.map((q) => q.thread_percentage)), points = p.points.filter((q) => q.thread_percentage === full);
    const estimate = (m.estimates ?? []).find((e) => e.gpu_type === p.gpu_type)?.points?.filter((q) => q.thread_percentage === full) ?? [];
    const xs = [...new Set([...points, ...estimate].map((q) => q.batch))].sort((a, b) => a - b);
    const of = (list, f) => xs.map((b) => { const q = list.find((r) => r.batch === b); return q ? f(q) : null; });
    const lines = [[of(points, (q) => q.latency_seconds), { label: p.source, color: '--s0', points: true, spanGaps: true, width: 2 }], [of(points, (q) => q.latency_upper_seconds || null), { label: 'its upper quantile', color: '--s0', dash: [4, 4], spanGaps: true }]];
    if (m.declared_beta_seconds || m.declared_alpha_seconds) lines.push([xs.map((b) => (m.declared_alpha_seconds ?? 0) * b + (m.declared_beta_seconds ?? 0)), { label: 'declared', color: '--s1', dash: [8, 4] }]);
    if (estimate.length) lines.push([of(estimate, (q) => q.latency_seconds), { label: 'estimated from the graph', color: '--s3', dash: [2, 3], spanGaps: true }]);
    return { data: [xs, ...lines.map((l) => l[0])], series: lines.map((l) => l[1]), share: full };
  }, [m, p]);
  const seen = p.points.reduce((n, q) => n + q.observations, 0);
  return html`<figure><figcaption>${short(p.gpu_type || unknown, 40)} at ${share}%: ${p.source}${p.usable ? '' : ', not usable'}, ${seen ? `${whole(seen)} executions seen` : 'nothing executed yet'}${p.interfered ? html` <${State} level="bad">interfered<//>` : ''}</figcaption>
    <${Plot} data=${data} series=${series} height=${180} label=${`latency over batch size, ${seconds(p.points[0]?.latency_seconds)} for ${p.points[0]?.batch} and ${seconds(p.points.at(-1)?.latency_seconds)} for ${p.points.at(-1)?.batch}`} x=${(n) => n} y=${seconds} range=${(u, min, max) => [0, (max || 1) * 1.1]} /></figure>`;
}

const Estimate = ({ e }) => e.reason ? html`<p><b>${short(e.gpu_type, 40)}</b>: <span class="text">${short(e.reason, 500)}</span></p>` : html`
  <p><b>${short(e.gpu_type, 40)}</b>: ±${percent(e.relative_error_bound)} for nine of ten models <span class="quiet">(${short(e.basis || unknown, 200)})</span></p>
  <dl class="facts"><dt>Memory</dt><dd>${bytes((e.parameter_bytes || 0) + (e.activation_bytes || 0) + (e.workspace_bytes || 0) + (e.arena_bytes || 0) + (e.context_bytes || 0))} of ${bytes(e.gpu_memory_bytes)}; weights ${bytes(e.parameter_bytes)}${e.fits ? '' : ' – it does not fit'}</dd>
  ${e.points?.length && html`<dt>Needs</dt><dd>compute ${percent(e.points[0].creq)}, memory ${percent(e.points[0].mreq)}, bandwidth ${percent(e.points[0].bandwidth_utilization)} of the GPU at batch ${e.points[0].batch}</dd>`}</dl>
  ${(e.warnings ?? []).map((w, i) => html`<p class="quiet" key=${i}>${short(w, 300)}</p>`)}`;

function Revision({ id, stream, current, after, onClose }) {
  const got = useFetch(`/v1/repository/diff?to=${encodeURIComponent(id)}`);
  return html`<${Drawer} title=${html`Revision <code>${id.slice(0, 12)}</code>`} onClose=${onClose}>
    <${Fetched} of=${got}>${(d) => html`<p class="quiet">${d.from ? html`against the one before, <code>${d.from.slice(0, 12)}</code>` : 'the first one'}${d.partial && '; that one is kept no more, so sizes and fields before are unknown'}</p>
      ${d.models.length === 0 && html`<${Empty}>It changed no model.<//>`}
      ${d.models.slice(0, 100).map((m) => html`<section key=${m.model} class="diff"><h3><${Name} text=${m.model} /> <span class="tag">${m.change || 'noted'}</span></h3>
        ${(m.notes ?? []).map((n, i) => html`<p key=${i} class="quiet">${short(n, 300)}</p>`)}
        ${(m.fields ?? []).map((f, i) => html`<div key=${i} class="field"><code>${short(f.field, 80)}</code> <span class="quiet">config.pbtxt line ${f.line}, ${f.change}</span>
          <pre class="text">${f.before ? html`<del>- ${f.before}\n</del>` : ''}${f.after ? html`<ins>+ ${f.after}</ins>` : ''}</pre></div>`)}
        ${m.text && html`<p class="quiet">${short(m.text, 300)}</p>`}
        ${(m.files ?? []).length > 0 && html`<ul class="files">${m.files.slice(0, 50).map((f) => html`<li key=${f.path}><code>${short(f.path, 80)}</code> <span class="quiet">${f.change} ${f.before_bytes > 0 ? `${bytes(f.before_bytes)} → ` : ''}${bytes(f.after_bytes ?? NaN)}</span></li>`)}</ul>`}</section>`)}`}<//>
    ${current && current.id !== id && html`<${Order} stream=${stream} after=${after} of=${[{ word: 'Go back to this revision', path: '/v1/repository/rollback', body: { revision: id }, ask: 'Serve the models of this revision again? Conch holds to it until the next import.' }]} />`}
  <//>`;
}
