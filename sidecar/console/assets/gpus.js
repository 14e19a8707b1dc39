// Copyright The Conch Authors. SPDX-License-Identifier: Apache-2.0
// GPUs: what is on which, as bars of partitions with their models.

import { useMemo, useState } from './vendor/hooks.js';
import { call, conditionOf, Drawer, Empty, Fetched, html, Meter, Name, Pages, path, roles, State, text, useFetch, Verdict } from './parts.js';
import { bytes, clock, percent, plural, seconds, short, span, unknown, words } from './format.js';
import { Explain, ModelState } from './late.js';

// perPage GPUs fit on a screen.
const perPage = 64;

const signs = { good: '', bad: '✕ ', busy: '◌ ', idle: '– ' };

// stateOf a model in a partition: level and words.
function stateOf(model, partition, models) {
  if (partition.serving.includes(model)) return ['good', 'ready'];
  const m = models.get(model);
  if (m?.state === 'failed' || m?.state === 'invalid') return ['bad', `${m.state}: ${m.state_reason}`];
  const degraded = conditionOf(m?.conditions, 'degraded');
  if (degraded?.holds) return ['bad', degraded.message || degraded.reason];
  if (!partition.up) return ['bad', `its partition is down: ${partition.reason || unknown}`];
  return ['busy', 'not loaded yet'];
}

function Chip({ model, partition, models, role, now, onOpen }) {
  const [level, words_] = stateOf(model, partition, models);
  const since = conditionOf(models.get(model)?.conditions, 'ready')?.since;
  const ago = since ? `, for ${span((now - Date.parse(since)) / 1000)}` : '';
  return html`<button class=${`chip ${level}`} title=${`${short(model, 200)}: ${words_}${role ? `, ${role}` : ''}${ago}`} onClick=${(e) => { e.stopPropagation(); onOpen({ model }); }}>
    ${signs[level] && html`<span aria-hidden="true">${signs[level]}</span>`}<${Name} text=${model} most=${40} />${role && html`<small>${role}</small>`}<span class="hidden">: ${words_}</span></button>`;
}

function Partition({ p, models, roleOf, now, onOpen }) {
  const level = levelOf(p);
  return html`<div class=${`partition ${level}`} style=${{ flexGrow: p.thread_percentage || 1 }}>
    <button class="part-head" onClick=${() => onOpen({ partition: p.id })} title=${`${short(p.id, 200)}: ${p.thread_percentage}%${p.up ? '' : `, down: ${short(p.reason ?? '', 200)}`}`}>
      <span aria-hidden="true">${level === 'bad' ? '✕ ' : ''}</span>${p.thread_percentage ? `${p.thread_percentage}%` : 'CPU'}<span class="quiet"> busy ${p.up ? percent(p.busy_share) : unknown}</span>
      <span class="busy" style=${{ width: `${Math.min(100, 100 * (p.busy_share || 0))}%` }}></span></button>
    <div class="chips">${p.models.map((m) => html`<${Chip} key=${m} model=${m} partition=${p} models=${models} role=${roleOf(p.id, m)} now=${now} onOpen=${onOpen} />`)}
      ${p.models.length === 0 && html`<span class="quiet">no model</span>`}</div>
  </div>`;
}

const levelOf = (p) => p.up ? conditionOf(p.conditions, 'degraded')?.holds ? 'unsure' : 'good' : 'bad';

// GPU is drawn again only when it, or the state of a model on it, has changed.
function GPU({ g, models, roleOf, now, onOpen, dense }) {
  const states = g.partitions.map((p) => p.models.map((m) => `${stateOf(m, p, models)}${roleOf(p.id, m)}`).join()).join();
  return useMemo(() => (dense ? denseGPU : roomyGPU)({ g, models, roleOf, now, onOpen }), [g, states, dense]);
}

const tag = (g) => !g.cordon ? g.unavailable && html`<span class="tag" title=${short(g.unavailable, 200)}>unavailable</span>` : html`<span class="tag" title=${short(`${g.cordon.author}: ${g.cordon.reason ?? ''}`, 200)}>${g.cordon.drain ? 'drained' : 'cordoned'}</span>`;
const busyOf = (g) => g.partitions.reduce((n, p) => n + p.busy_share * (p.thread_percentage || 100), 0) / 100;
const busyText = (g) => g.partitions.some((p) => p.up) ? percent(busyOf(g)) : g.partitions.length ? unknown : '0%';

// inUse says why it is not known how much of a GPU's memory is: Conch plans with what models need, and asks no GPU.
const inUse = (emulated) => `${unknown}, ${emulated ? 'the GPU is emulated' : 'Conch does not measure it'}`;

function roomyGPU({ g, ...rest }) {
  const used = g.partitions.reduce((n, p) => n + p.thread_percentage, 0);
  const limited = g.partitions.length > 0 && g.partitions.every((p) => p.memory_limit_bytes);
  const memory = limited ? `${bytes(g.partitions.reduce((n, p) => n + p.memory_limit_bytes, 0))} of ${bytes(g.memory_bytes)} given out` : `${bytes(g.memory_bytes || NaN)}, in use: ${inUse(g.emulated)}`;
  return html`<article class="gpu" aria-label=${`GPU ${short(g.id, 60)}`}>
    <header><h3><${Name} text=${g.id} most=${24} /></h3><span class="quiet">${short(g.type || unknown, 30)}${g.emulated ? ' · emulated' : ''}</span>${tag(g)}
      <span class="push"></span><${Meter} share=${busyOf(g)} label=${`busy ${busyText(g)}`} /><span class="quiet">busy ${busyText(g)}</span></header>
    <div class="bar">${g.partitions.map((p) => html`<${Partition} key=${p.id} p=${p} ...${rest} />`)}
      ${used < 100 && g.id !== 'cpu' && html`<div class="free" style=${{ flexGrow: 100 - used }}>${used === 0 && !g.unavailable ? 'free' : ''}<span class="hidden">${100 - used}% free</span></div>`}</div>
    <footer class="quiet">${memory}</footer>
  </article>`;
}

// denseGPU fits 64 on a screen: partitions by width, their models below.
function denseGPU({ g, models, roleOf, now, onOpen }) {
  const placed = g.partitions.flatMap((p) => p.models.map((m) => [p, m])), fits = 4;
  const used = g.partitions.reduce((n, p) => n + p.thread_percentage, 0);
  return html`<article class="gpu" aria-label=${`GPU ${short(g.id, 60)}`}>
    <header><h3><${Name} text=${g.id} most=${18} /></h3>${tag(g)}<span class="push"></span><span class="quiet">${busyText(g)}</span></header>
    <div class="thin">${g.partitions.map((p) => html`<button key=${p.id} class=${`slice ${levelOf(p)}`} style=${{ flexGrow: p.thread_percentage || 100 }} onClick=${() => onOpen({ partition: p.id })}
      aria-label=${`partition ${short(p.id, 60)}, ${p.thread_percentage}%, ${p.up ? `busy ${percent(p.busy_share)}` : 'down'}`} title=${`${short(p.id, 100)}: ${p.thread_percentage}%, ${p.up ? `busy ${percent(p.busy_share)}` : `down: ${short(p.reason ?? '', 200)}`}`}>
      <span class="busy" style=${{ width: `${Math.min(100, 100 * (p.busy_share || 0))}%` }}></span>${!p.up && html`<span aria-hidden="true">✕</span>`}</button>`)}${used < 100 && html`<i style=${{ flexGrow: 100 - used }}></i>`}</div>
    <div class="chips">${placed.slice(0, fits).map(([p, m]) => html`<${Chip} key=${p.id + m} model=${m} partition=${p} models=${models} role=${roleOf(p.id, m)} now=${now} onOpen=${onOpen} />`)}
      ${placed.length > fits && html`<span class="quiet">+${placed.length - fits}</span>`}</div>
  </article>`;
}

export function GPUs({ stream }) {
  const [open, setOpen] = useState(null);
  const [at, setAt] = useState(0);
  const [typed, setTyped] = useState('');
  const gpus = [...stream.gpus.values()], models = stream.models;
  const plan = stream.planInForce?.plan;
  const role = new Map();
  for (const p of plan?.partitions ?? []) for (const i of p.instances ?? []) if (roles[i.role]) role.set(`${p.id}\n${i.model}`, roles[i.role]);
  const wanted = typed.toLowerCase();
  const found = wanted ? gpus.filter((g) => [g.id, g.node, g.type, ...g.partitions.flatMap((p) => p.models)].some((t) => t.toLowerCase().includes(wanted))) : gpus;
  const pages = Math.max(1, Math.ceil(found.length / perPage)), here = Math.min(at, pages - 1);
  const nodes = new Map();
  for (const g of found.slice(here * perPage, (here + 1) * perPage)) nodes.set(g.node, [...(nodes.get(g.node) ?? []), g]);
  const partitions = gpus.flatMap((g) => g.partitions), down = partitions.filter((p) => !p.up);
  const unplaced = [...models.values()].filter((m) => m.state === 'unplaced'), failed = [...models.values()].filter((m) => m.state === 'failed' || m.state === 'invalid');
  const parts = [];
  if (down.length) parts.push(`${plural(down.length, 'partition is', 'partitions are')} down`);
  if (failed.length) parts.push(`${plural(failed.length, 'model does', 'models do')} not load`);
  if (unplaced.length) parts.push(`${plural(unplaced.length, 'model has', 'models have')} no place`);
  const seen = stream.seen.has('gpus') && stream.seen.has('models');
  const note = down.length ? words(down.map((p) => `${short(p.id, 30)}: ${short(p.reason || unknown, 120)}`), 3) : `${plural(gpus.length, 'GPU')}, ${plural(partitions.length, 'partition')}.`;
  const roomy = found.length <= 4 ? 'few' : found.length <= 12 ? 'some' : 'many';
  return html`
    <${Verdict} level=${!seen ? 'busy' : parts.length ? 'bad' : 'good'} text=${!seen ? 'Connecting to conch …' : parts.length ? `${words(parts)}.` : 'Everything that is placed is up.'}>${seen && note}<//>
    <${Unserved} title="Not served" models=${[...failed, ...unplaced]} onOpen=${(m) => setOpen({ model: m.name })} />
    ${gpus.length > 8 && html`<div class="tools"><label>Filter <input type="search" class="filter" value=${typed} placeholder="GPU, node, type or model" onInput=${(e) => { setTyped(e.target.value); setAt(0); }} /></label>
      <span class="quiet" role="status">${plural(found.length, 'GPU')}</span><${Pages} at=${here} pages=${pages} go=${setAt} /></div>`}
    ${[...nodes].map(([node, all]) => html`<section key=${node} class="node"><h2><${Name} text=${node || 'this machine'} /> <span class="quiet">${plural(all.length, 'GPU')}</span></h2>
      <div class=${`gpus ${roomy}`}>${all.map((g) => html`<${GPU} key=${g.id} g=${g} models=${models} roleOf=${(p, m) => role.get(`${p}\n${m}`)} now=${stream.now} onOpen=${setOpen} dense=${roomy === 'many'} />`)}</div></section>`)}
    ${seen && gpus.length === 0 && html`<${Empty}>There is no GPU: conch.yaml names none, and none was found.<//>`}
    ${open?.model !== undefined && html`<${OfModel} model=${open.model} stream=${stream} onClose=${() => setOpen(null)} />`}
    ${open?.partition !== undefined && html`<${OfPartition} p=${partitions.find((p) => p.id === open.partition)} emulated=${gpus.find((g) => g.partitions.some((p) => p.id === open.partition))?.emulated} stream=${stream} onClose=${() => setOpen(null)} />`}`;
}

// Unserved models with the reason: the first few, and the others once they are asked for.
export function Unserved({ title, models, onOpen }) {
  const [all, show] = useState(false);
  if (!models.length) return null;
  return html`<section class="without"><h2>${title}</h2><ul>${models.slice(0, all ? 200 : 4).map((m) => html`<li key=${m.name}>
    ${onOpen ? html`<button class="link" onClick=${() => onOpen(m)}><${Name} text=${m.name} /></button>` : html`<${Name} text=${m.name} />`} <${ModelState} model=${m} /> <span class="quiet">${short(m.state_reason || unknown, 600)}</span></li>`)}</ul>
    ${!all && models.length > 4 && html`<p><button class="link" onClick=${() => show(true)}>Show ${models.length > 200 ? 'the first 200' : `all ${models.length}`}</button></p>`}</section>`;
}

export const Conditions = ({ all, now }) => html`<table class="plain"><caption class="hidden">Conditions</caption><tbody>${(all ?? []).map((c) => html`<tr key=${c.type}><th scope="row">${c.type}</th>
  <td><${State} level=${c.type === 'degraded' ? c.holds ? 'bad' : 'good' : c.type === 'ready' ? c.holds ? 'good' : 'bad' : c.holds ? 'busy' : 'idle'}>${c.holds ? 'yes' : 'no'}<//></td>
  <td class="nowrap">${c.since ? `for ${span((now - Date.parse(c.since)) / 1000)}` : ''}</td><td class="text">${short(c.message || c.reason || '', 400)}${c.attempts ? ` (${plural(c.attempts, 'attempt')} failed)` : ''}</td></tr>`)}</tbody></table>`;

function OfModel({ model, stream, onClose }) {
  const m = stream.models.get(model);
  return html`<${Drawer} title=${html`<${Name} text=${model} />`} onClose=${onClose}>
    ${m ? html`<p><${ModelState} model=${m} /> ${m.state_reason && html`<span class="text">${short(m.state_reason, 1000)}</span>`}</p>
      <p class="quiet">SLO ${m.slo_seconds ? seconds(m.slo_seconds) : 'none'} · ${m.discipline || 'no discipline'} · revision ${(m.revision || unknown).slice(0, 12)}</p>
      <${Conditions} all=${m.conditions} now=${stream.now} />` : html`<p class="quiet">It is no model of the repository.</p>`}
    <${Explain} model=${model} />
    <${Order} stream=${stream} of=${[
      { word: 'Load again', path: '/v1/models/order', body: { model }, ask: `Load ${short(model, 60)} again?` },
      { word: 'Unload', path: '/v1/models/order', body: { model, unload: true }, ask: `Take ${short(model, 60)} out of service? Requests for it fail from then on.` },
    ]} />
  <//>`;
}

function OfPartition({ p, emulated, stream, onClose }) {
  const log = useFetch(p?.log ? `${path('partitions', p.id)}/log?tail=40` : '', text);
  if (!p) return html`<${Drawer} title="Partition" onClose=${onClose}><p>It is no part of the plan any more.</p><//>`;
  return html`<${Drawer} title=${html`Partition <${Name} text=${p.id} />`} onClose=${onClose}>
    <p><${State} level=${p.up ? 'good' : 'bad'}>${p.up ? 'up' : 'down'}<//> ${!p.up && html`<span class="text">${short(p.reason ?? '', 1000)}</span>`}</p>
    <dl class="facts">
      <dt>Share</dt><dd>${p.thread_percentage ? `${p.thread_percentage}% of ${p.gpu}` : 'CPUs'}, ${p.shares_enforced ? 'enforced by MPS' : `not enforced${p.share_reason ? `: ${short(p.share_reason, 200)}` : ''}`}</dd>
      ${p.executions > 1 && html`<dt>Executions</dt><dd>${plural(p.executions, 'batch', 'batches')} at once</dd>`}
      <dt>Memory</dt><dd>${p.memory_limit_bytes ? `limit ${bytes(p.memory_limit_bytes)}` : 'no limit'}, in use: ${inUse(emulated)}</dd>
      <dt>Busy</dt><dd>${p.up ? percent(p.busy_share) : unknown} of the last seconds</dd>
      <dt>Server</dt><dd>started ${clock(p.started)}, ${plural(p.restarts, 'restart')} that nobody ordered</dd>
      <dt>Models</dt><dd>${p.models.length ? p.models.map((m) => html`<${Name} key=${m} text=${m} /> `) : 'none'}</dd>
    </dl>
    <h3>Conditions</h3><${Conditions} all=${p.conditions} now=${stream.now} />
    ${p.log && html`<h3>Log, last lines</h3><${Fetched} of=${log}>${(lines) => html`<pre class="text log" tabindex="0">${lines || 'It is empty.'}</pre>`}<//>`}
    <${Order} stream=${stream} of=${[{ word: 'Restart its server', path: '/v1/partitions/restart', body: { partition: p.id }, ask: 'Start its server anew? Requests wait or go elsewhere meanwhile.' }]} />
  <//>`;
}

// Order offers orders where this door takes them: each is asked about once more, and its outcome is shown.
export function Order({ stream, of, after }) {
  const [asked, ask] = useState(null);
  const [outcome, set] = useState(null);
  if (!stream.mayChange) return null;
  const give = async (o) => {
    ask(null);
    set({ text: `${o.word}: under way …` });
    try {
      await call(o.path, o.body);
      set({ text: `${o.word}: done.` });
      after?.();
    } catch (error) { set({ text: `${o.word}: ${error.message}`, bad: true }); }
  };
  return html`<div class="orders">${asked
    ? html`<p role="alert">${asked.ask}</p><button class="do" onClick=${() => give(asked)}>${asked.word}</button> <button onClick=${() => ask(null)}>No</button>`
    : of.map((o) => html`<button key=${o.word} onClick=${() => ask(o)}>${o.word}</button> `)}
    ${outcome && html`<p class=${outcome.bad ? 'problem' : 'quiet'} role="status">${outcome.text}</p>`}</div>`;
}
