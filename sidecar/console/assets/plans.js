// Copyright The Conch Authors. SPDX-License-Identifier: Apache-2.0
// Plans: the one in force, what each policy would do now, and those of before.

import { useState } from './vendor/hooks.js';
import { call, Drawer, Empty, Fetched, html, Name, roles, State, useFetch, Verdict } from './parts.js';
import { clock, percent, plural, rate, seconds, short, span, unknown, whole, words } from './format.js';
import { Order } from './gpus.js';

const verdicts = {
  apply: ['good', 'would be applied'], consent: ['unsure', 'waits for your word'], loss: ['bad', 'held back: it would serve less'],
  gain: ['unsure', 'held back: too little gain'], pinned: ['unsure', 'held back: the plan is pinned'],
};

// verdictOf a proposal: level and words.
function verdictOf(d) {
  if (d.violations?.length) return ['bad', 'refused'];
  if (d.empty) return ['good', 'the same plan'];
  return verdicts[d.verdict] ?? ['unsure', d.verdict || 'not weighed'];
}

export function Plans({ stream }) {
  const [tried, setTried] = useState({}); // by policy: {d} or {error} or {asking}
  const [open, setOpen] = useState(null);
  const p = stream.planInForce, plan = p?.plan;
  const policies = useFetch('/v1/policies?describe=false');
  const history = useFetch(`/v1/plan/history?seen=${p?.revision ?? 0}`);
  const held = p?.held;
  const seen = stream.seen.has('plan');
  const ask = async (name) => {
    setTried((t) => ({ ...t, [name]: { asking: true } }));
    try {
      const d = await call('/v1/plan/diff', { policy: name });
      setTried((t) => ({ ...t, [name]: { d, at: stream.now } }));
    } catch (error) { setTried((t) => ({ ...t, [name]: { error: error.message } })); }
  };
  const asks = (name) => (tried[name]?.asking ? 'Asking …' : tried[name] ? 'Ask again' : 'Ask');
  // What is held back is what the policy in use plans, with its parameters; it is asked for again, since rates have changed meanwhile.
  const [looks, setLooks] = useState({}); // {asking} or {error}
  const look = async () => {
    setLooks({ asking: true });
    try {
      const d = await call('/v1/plan/diff', {});
      setOpen({ name: held?.policy ?? p.policy, d, at: stream.now });
      setLooks({});
    } catch (error) { setLooks({ error: error.message }); }
  };
  // One after the other: conch makes one plan at a time.
  const askAll = async () => { for (const q of policies.value ?? []) await ask(q.name); };
  const instances = (plan?.partitions ?? []).reduce((n, q) => n + (q.instances ?? []).length, 0);
  const none = seen && !plan?.partitions?.length;
  const [level, text] = !seen ? ['busy', 'Connecting to conch …'] : none ? ['unsure', 'No plan is in force.']
    : held ? ['unsure', `Plan ${p.revision} serves; another is ${held.kind === 'plan_held' ? 'held back' : held.kind === 'plan_rejected' ? 'refused' : 'missing'}.`]
      : p.pin ? ['unsure', `Plan ${p.revision} is pinned by ${short(p.pin.author, 40)}.`] : ['good', `Plan ${p.revision} of policy ${short(p.policy, 40)} serves.`];
  return html`
    <${Verdict} level=${level} text=${text}>${held ? html`<span class="text">${short(held.message, 500)}</span> <span class="quiet">(since ${clock(held.since)})</span>
        ${held.kind === 'plan_held' && html`<br /><button onClick=${look} disabled=${looks.asking}>${looks.asking ? 'Asking …' : 'What it would change …'}</button> <span class="quiet">${stream.mayChange ? 'It can be applied there.' : html`<code>tritonctl plan apply</code> shows it, asks, and applies it.`}</span>${looks.error && html` <span class="bad text">${short(looks.error, 400)}</span>`}`}`
      : p?.pin ? `Since ${clock(p.pin.since)}: ${short(p.pin.reason || 'no reason given', 200)}. No other plan takes its place by itself.`
        : p && !none && `${plural(plan.partitions.length, 'partition')} with ${plural(instances, 'instance')}, applied ${clock(p.applied_at)} by ${short(p.applied_by || unknown, 40)}: ${short(p.reason || 'no reason given', 200)}`}<//>
    <div class="columns">
      <section><h2>In force</h2>${p ? html`<${InForce} p=${p} stream=${stream} after=${history.again} />` : html`<p class="quiet">${unknown}</p>`}</section>
      <section><h2>What each policy would do now</h2>
        <p class="quiet">Each is asked for a plan for this moment, which conch checks and runs against the recorded traffic. Nothing is applied by asking.</p>
        <${Fetched} of=${policies}>${(all) => html`
          <button onClick=${askAll}>Ask all ${all.length}</button>
          <ul class="policies">${all.map((q) => html`<li key=${q.name}><div class="line"><b><${Name} text=${q.name} /></b>${q.in_use && html` <span class="tag">in use</span>`}
            <span class="push"></span><button onClick=${() => ask(q.name)} disabled=${tried[q.name]?.asking} aria-label=${`${asks(q.name)}: ${q.name}`}>${asks(q.name)}</button></div>
            <${Tried} t=${tried[q.name]} onOpen=${() => setOpen({ name: q.name, ...tried[q.name] })} /></li>`)}</ul>`}<//>
      </section>
    </div>
    <section><h2>Plans of before</h2><${Fetched} of=${history}>${(all) => html`<${History} all=${all} stream=${stream} onOpen=${(r) => setOpen({ record: r })} />`}<//></section>
    ${open?.d && html`<${Proposal} name=${open.name} d=${open.d} at=${open.at} stream=${stream} onClose=${() => setOpen(null)} />`}
    ${open?.record && html`<${Record} r=${open.record} stream=${stream} onClose=${() => setOpen(null)} />`}`;
}

// InForce is the plan by partition.
function InForce({ p, stream, after }) {
  const plan = p.plan ?? {};
  return html`
    <div class="scroll" tabindex="0" role="region" aria-label="Partitions of the plan"><table><caption class="hidden">Partitions of the plan in force</caption><thead><tr><th scope="col">Partition</th><th scope="col">GPU</th><th scope="col" class="number">Share</th><th scope="col">Models</th></tr></thead>
      <tbody>${(plan.partitions ?? []).slice(0, 200).map((q) => html`<tr key=${q.id}><th scope="row"><${Name} text=${q.id} most=${24} /></th><td data-head="GPU">${words((q.gpus ?? []).map((g) => short(g, 24))) || 'CPU'}</td><td class="number" data-head="Share">${q.thread_percentage ? `${q.thread_percentage}%` : '–'}</td>
        <td data-head="Models"><span class="chips">${(q.instances ?? []).map((i) => html`<span key=${i.model} class="chip plain"><bdi>${short(i.model, 36)}</bdi>${i.max_batch ? html` <small>≤${i.max_batch}</small>` : ''}${i.rate ? html` <small>${rate(i.rate)}/s</small>` : ''}${roles[i.role] ? html` <small>${roles[i.role]}</small>` : ''}</span>`)}</span></td></tr>`)}</tbody></table></div>
    ${(plan.partitions ?? []).length > 200 && html`<p class="quiet">and ${whole(plan.partitions.length - 200)} partitions more</p>`}
    ${(plan.predictions ?? []).length > 0 && html`<h3>What its policy predicts</h3><ul class="quiet">${plan.predictions.slice(0, 40).map((q) => html`<li key=${q.model}><${Name} text=${q.model} />: ${rate(q.goodput ?? NaN)} req/s in time, p99 ${seconds(q.latency_p99_us / 1e6)}, bad ${percent(q.bad_rate ?? 0)}</li>`)}</ul>`}
    ${(plan.unplaced ?? []).length > 0 && html`<h3>Without a place</h3><ul>${plan.unplaced.slice(0, 40).map((u) => html`<li key=${u.model}><${Name} text=${u.model} /> <span class="quiet">${short(u.text || `0/${u.tried ?? 0}: ${(u.refusals ?? []).map((f) => `${f.count} ${f.cause}`).join(', ') || unknown}`, 300)}</span></li>`)}</ul>`}
    <${Order} stream=${stream} after=${after} of=${[
      ...p.pin ? [{ word: 'Unpin', path: '/v1/plan/pin', body: { unpin: true }, ask: 'Let other plans take its place by themselves again?' }] : [
        { word: 'Pin', path: '/v1/plan/pin', body: { reason: 'from the console' }, ask: 'Keep this plan until it is unpinned?' },
        // Pinned as by tritonctl plan rollback: the policy would put back what is undone.
        { word: 'Undo', path: '/v1/plan/apply', body: { if_revision: p.revision, rollback_last: true, pin: true, reason: 'undone from the console' }, ask: `Go back to the last plan that differs from plan ${p.revision}, and keep it until it is unpinned? Its line below says what it was.` },
      ],
    ]} />`;
}

function Tried({ t, onOpen }) {
  if (!t || t.asking) return null;
  if (t.error) return html`<p class="problem small">${short(t.error, 400)}</p>`;
  const [level, word] = verdictOf(t.d), e = t.d.expected;
  return html`<div class="tried"><${State} level=${level}>${word}<//>
    <span>${e ? html`goodput <b>${rate(e.goodput_now)}</b> → <b>${rate(e.goodput_then)}</b> req/s` : t.d.empty ? '' : html`goodput <span class="quiet">${unknown}</span>`}</span>
    ${!t.d.empty && html`<span>disturbs ${t.d.disturbed_requests === undefined ? '0' : whole(t.d.disturbed_requests)} requests</span> <button class="link" onClick=${onOpen}>${plural(t.d.changes.length, 'change')} …</button>`}</div>`;
}

// Diff in full, with colours.
const Diff = ({ text }) => html`<pre class="text" tabindex="0">${text.trimEnd().split('\n').map((l, i) => html`<span key=${i} class=${/^\s*\+/.test(l) ? 'good' : /^\s*-/.test(l) ? 'bad' : ''}>${`${l}\n`}</span>`)}</pre>`;

// Proposal is what a policy would do; applying it applies exactly this.
function Proposal({ name, d, at, stream, onClose }) {
  const [level, word] = verdictOf(d), e = d.expected, now = stream.planInForce?.revision;
  return html`<${Drawer} title=${html`What <${Name} text=${name} /> would do`} onClose=${onClose}>
    <p><${State} level=${level}>${word}<//> <span class="text">${short(d.judgement ?? '', 600)}</span></p>
    ${e && html`<dl class="facts"><dt>Goodput</dt><dd>${rate(e.goodput_now)} → ${rate(e.goodput_then)} req/s</dd><dt>Bad</dt><dd>${percent(e.bad_now)} → ${percent(e.bad_then)}</dd><dt>Disturbs</dt><dd>${whole(d.disturbed_requests ?? 0)} requests, once</dd></dl>
      <p class="quiet">By conch's own evaluation on the traffic of late, as of ${clock(at)}; the batches' times are those of the profiles.</p>`}
    ${(d.violations ?? []).length > 0 && html`<ul>${d.violations.slice(0, 50).map((v, i) => html`<li key=${i}><b>${v.code}</b> <${Name} text=${v.subject} /> <span class="text">${short(v.text, 300)}</span></li>`)}</ul>`}
    ${(d.break_first ?? []).length > 0 && html`<p class="problem">Requests wait while ${words(d.break_first.map((b) => short(b, 30)))} ${d.break_first.length === 1 ? 'is' : 'are'} replaced: their GPU has no room for old and new at once.</p>`}
    <${Diff} text=${d.text} />
    ${now !== d.from_revision ? html`<p class="quiet">Plan ${now} serves by now; this was made against plan ${d.from_revision}. Ask again.</p>`
      : d.proposed && !d.violations?.length && !d.empty && html`<${Order} stream=${stream} of=${[{ word: 'Apply exactly this', path: '/v1/plan/apply', body: { if_revision: d.from_revision, file: d.proposed, reason: `plan of policy ${name}, from the console` }, ask: `Apply this plan in place of plan ${d.from_revision}? It disturbs ${whole(d.disturbed_requests ?? 0)} requests.` }]} />`}
  <//>`;
}

// History is a line in time, and a list.
function History({ all, stream, onOpen }) {
  if (!all.length) return html`<${Empty}>No plan has served yet.<//>`;
  const times = all.map((r) => Date.parse(r.applied_at)), from = Math.min(...times), to = Math.max(stream.now, from + 1000);
  return html`<div class="line-in-time" aria-hidden="true"><i class="axis"></i>${all.map((r, i) => html`<i key=${r.revision} class=${`dot ${r.current ? 'current' : ''}`} style=${{ left: `${1 + 98 * (times[i] - from) / (to - from)}%` }} title=${`plan ${r.revision}, ${clock(r.applied_at)}`}></i>`)}
      <small class="quiet from">${clock(from)}</small><small class="quiet to">now</small></div>
    <ol class="history">${all.slice(0, 50).map((r) => html`<li key=${r.revision} class=${r.current ? 'current' : ''}><button class="link" onClick=${() => onOpen(r)}>Plan ${r.revision}</button>${r.current && html` <span class="tag">serves</span>`}
      <span class="quiet"> ${clock(r.applied_at)} (${span((stream.now - Date.parse(r.applied_at)) / 1000)} ago) · ${short(r.policy, 40)} · ${short(r.applied_by || unknown, 40)}</span>
      <div>${short(r.summary || 'no change of places', 240)}</div><div class="quiet small">${short(r.reason || '', 240)}</div></li>`)}</ol>`;
}

function Record({ r, stream, onClose }) {
  const now = stream.planInForce?.revision;
  return html`<${Drawer} title=${`Plan ${r.revision}`} onClose=${onClose}>
    <p>${short(r.policy, 60)}, applied ${clock(r.applied_at)} by ${short(r.applied_by || unknown, 60)}<br /><span class="quiet text">${short(r.reason || 'no reason given', 500)}</span></p>
    <h3>What it changed</h3><${Diff} text=${r.diff || r.summary || 'nothing'} />
    ${!r.current && html`<${Back} r=${r} now=${now} stream=${stream} />`}<//>`;
}

// Back says what going back to a plan would change, before it is offered.
function Back({ r, now, stream }) {
  const got = useFetch(`rollback ${r.revision}`, () => call('/v1/plan/diff', { rollback: r.revision }));
  return html`<h3>Going back to it now</h3><${Fetched} of=${got}>${(d) => html`<${Diff} text=${d.empty ? 'would change nothing' : d.text} />
    ${!d.empty && !d.violations?.length && html`<${Order} stream=${stream} of=${[{ word: `Go back to plan ${r.revision}`, path: '/v1/plan/apply', body: { if_revision: now, rollback: r.revision, pin: true, reason: 'gone back to from the console' }, ask: `Serve plan ${r.revision} in place of plan ${now}, and keep it until it is unpinned?` }]} />`}`}<//>`;
}
