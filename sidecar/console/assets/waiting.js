// Copyright The Conch Authors. SPDX-License-Identifier: Apache-2.0
// Waiting: what waits for a GPU, for how long, and how long it still may.

import { html, Meter, Name, State, Table, Tile, unserved, Verdict } from './parts.js';
import { percent, plural, seconds, short, unknown, whole, words } from './format.js';
import { Unserved } from './gpus.js';

const slack = (w) => w.slack_seconds === undefined ? html`<span class="quiet">${w.candidate_rows ? 'no deadline' : unknown}</span>`
  : w.slack_seconds < 0 ? html`<${State} level="bad">${seconds(-w.slack_seconds)} too late<//>` : html`<${State} level="good">${seconds(w.slack_seconds)}<//>`;

export function Waiting({ stream }) {
  const rows = [...stream.waiting.values()], models = stream.models;
  const sum = (f) => rows.reduce((n, w) => n + f(w), 0);
  const oldest = rows.reduce((a, w) => !a || w.oldest_seconds > a.oldest_seconds ? w : a, null);
  const passed = rows.filter((w) => w.slack_seconds < 0), seen = stream.seen.has('waiting');
  const ofSLO = (w) => { const slo = models.get(w.model)?.slo_seconds; return slo ? w.oldest_seconds / slo : null; };
  const [level, text] = !seen ? ['busy', 'Connecting to conch …']
    : passed.length ? ['bad', `${plural(passed.length, 'model')} can no longer start in time: ${words(passed.map((w) => short(w.model, 30)), 3)}.`]
      : rows.length ? ['good', `${plural(sum((w) => w.requests), 'request waits', 'requests wait')}, and all can still be in time.`] : ['good', 'Nothing waits.'];
  const columns = [
    { id: 'model', head: 'Model', by: (w) => w.model, cell: (w) => html`<${Name} text=${w.model} />` },
    { id: 'requests', head: 'Requests', kind: 'number', by: (w) => w.requests, cell: (w) => whole(w.requests) },
    { id: 'rows', head: 'Rows', kind: 'number', by: (w) => w.rows, cell: (w) => whole(w.rows) },
    { id: 'oldest', head: 'Oldest', kind: 'number', by: (w) => w.oldest_seconds, cell: (w) => seconds(w.oldest_seconds) },
    { id: 'slo', head: 'Of its SLO', kind: 'wide', by: ofSLO, cell: (w) => ofSLO(w) === null ? html`<span class="quiet">no SLO</span>` : html`<span class="spent"><${Meter} share=${ofSLO(w)} level=${ofSLO(w) > 1 ? 'bad' : ''} label=${`the oldest has waited ${percent(ofSLO(w))} of the SLO`} /><span class="figure">${percent(ofSLO(w))}</span></span>` },
    { id: 'slack', head: 'Slack to the latest start', by: (w) => w.slack_seconds, cell: slack, title: 'time until the candidate batch can no longer be in time' },
    { id: 'candidate', head: 'Candidate batch', kind: 'number', by: (w) => w.candidate_rows, cell: (w) => w.candidate_rows ? plural(w.candidate_rows, 'row') : html`<span class="quiet">none</span>` },
    { id: 'discipline', head: 'Discipline', by: (w) => w.discipline, cell: (w) => w.discipline || unknown },
  ];
  return html`
    <${Verdict} level=${level} text=${text}>${oldest && `The oldest has waited for ${seconds(oldest.oldest_seconds)}, for ${short(oldest.model, 40)}.`}<//>
    <dl class="tiles">
      <${Tile} label="Requests" value=${seen ? whole(sum((w) => w.requests)) : unknown} note=${seen ? plural(sum((w) => w.rows), 'row') : ''} />
      <${Tile} label="Models" value=${seen ? whole(rows.length) : unknown} note="with requests that wait" />
      <${Tile} label="Oldest" value=${oldest ? seconds(oldest.oldest_seconds) : seen ? 'none' : unknown} />
      <${Tile} label="Too late to start" value=${seen ? whole(passed.length) : unknown} note="models" level=${passed.length ? 'bad' : ''} />
    </dl>
    <${Table} caption="What waits, by model" columns=${columns} rows=${rows} rowKey=${(w) => w.model} first=${{ id: 'slack', down: false }} empty=${seen ? 'No request waits.' : 'Connecting to conch …'} />
    <${Unserved} title="Models that are not served" models=${unserved(models)} />`;
}
