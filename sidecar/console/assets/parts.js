// Copyright The Conch Authors. SPDX-License-Identifier: Apache-2.0
// What screens are made of.

import { h } from './vendor/preact.js';
import { useEffect, useRef, useState } from './vendor/hooks.js';
import htm from './vendor/htm.js';
import { short, whole } from './format.js';

export const html = htm.bind(h);

// Name of a model, a GPU or a partition: it may be long, and written from right to left.
export const Name = ({ text, most = 48 }) => html`<bdi class="name" title=${text.length > most ? short(text, 500) : undefined}>${text.trim() ? short(text, most) : JSON.stringify(text)}</bdi>`;

const signs = { good: '✓', bad: '✕', unsure: '!', busy: '◌', idle: '–' };
// State in a word, with a sign, so that colour is not needed.
export const State = ({ level, children }) => html`<span class=${`state ${level}`}><span aria-hidden="true">${signs[level]}</span> ${children}</span>`;

// Verdict is the sentence that a screen begins with.
export const Verdict = ({ level, text, children }) => html`
  <section class=${`verdict ${level}`} aria-label="Verdict">
    <span class="sign" aria-hidden="true">${signs[level]}</span>
    <div><h1>${text}</h1>${children && html`<p>${children}</p>`}</div>
  </section>`;

export const Tile = ({ label, value, note, level }) => html`
  <div class=${`tile ${level ?? ''}`}><dt>${label}</dt><dd>${value}${note && html`<small>${note}</small>`}</dd></div>`;

export const Empty = ({ children }) => html`<p class="empty">${children}</p>`;

const perPage = 50; // rows of a table

// Table of rows that can be sorted, filtered, paged and opened. Columns: {id, head, cell(row), by(row), kind: 'number'|'wide', title}.
export function Table({ caption, columns, rows, rowKey, first, onOpen, empty }) {
  const [order, setOrder] = useState(first);
  const [at, setAt] = useState(0);
  const [text, setText] = useState('');
  const wanted = text.toLowerCase();
  const found = wanted ? rows.filter((r) => rowKey(r).toLowerCase().includes(wanted)) : rows;
  const column = columns.find((c) => c.id === order.id);
  const sorted = column ? [...found].sort((a, b) => compare(column.by(a), column.by(b)) * (order.down ? -1 : 1) || compare(rowKey(a), rowKey(b))) : found;
  const pages = Math.max(1, Math.ceil(sorted.length / perPage)), here = Math.min(at, pages - 1);
  const shown = sorted.slice(here * perPage, (here + 1) * perPage);
  const toggle = (c) => setOrder(order.id === c.id ? { id: c.id, down: !order.down } : { id: c.id, down: c.kind === 'number' });
  const sort = (c) => order.id !== c.id ? 'none' : order.down ? 'descending' : 'ascending';
  return html`
    ${(rows.length > 8 || text) && html`<div class="tools">
      <label>Filter <input type="search" class="filter" value=${text} placeholder="name" onInput=${(e) => { setText(e.target.value); setAt(0); }} /></label>
      <span class="quiet" role="status">${wanted ? `${whole(found.length)} of ${whole(rows.length)}` : whole(rows.length)}</span>
      <${Pages} at=${here} pages=${pages} go=${setAt} />
    </div>`}
    <div class="scroll" tabindex="0" role="region" aria-label=${caption}>
    <table>
      <caption class="hidden">${caption}</caption>
      <thead><tr>${columns.map((c) => html`<th key=${c.id} scope="col" class=${c.kind ?? ''} aria-sort=${c.by ? sort(c) : undefined} title=${c.title}>
        ${c.by ? html`<button class="sort" onClick=${() => toggle(c)}>${c.head}<span aria-hidden="true">${order.id === c.id ? order.down ? ' ↓' : ' ↑' : ''}</span></button>` : c.head}</th>`)}</tr></thead>
      <tbody>${shown.map((r) => html`<tr key=${rowKey(r)} class=${onOpen ? 'opens' : ''} onClick=${onOpen && ((e) => { if (!e.target.closest('button,a')) onOpen(r); })}>
        ${columns.map((c, i) => i === 0
          ? html`<th key=${c.id} scope="row" class=${c.kind ?? ''}>${onOpen ? html`<button class="link" onClick=${() => onOpen(r)}>${c.cell(r)}</button>` : c.cell(r)}</th>`
          : html`<td key=${c.id} class=${c.kind ?? ''} data-head=${c.head}>${c.cell(r)}</td>`)}
      </tr>`)}</tbody>
    </table></div>
    ${shown.length === 0 && html`<${Empty}>${wanted ? 'Nothing has that name.' : empty}<//>`}`;
}

export function Pages({ at, pages, go }) {
  if (pages < 2) return null;
  return html`<nav class="pages" aria-label="Pages">
    <button disabled=${at === 0} onClick=${() => go(at - 1)} aria-label="Previous page">‹</button>
    <span>${at + 1} / ${pages}</span>
    <button disabled=${at >= pages - 1} onClick=${() => go(at + 1)} aria-label="Next page">›</button></nav>`;
}

function compare(a, b) {
  if (a === b) return 0;
  if (a === undefined || a === null) return 1;
  if (b === undefined || b === null) return -1;
  return a < b ? -1 : 1;
}

// Stack is a bar of parts that make up a whole: [{name, value, series}].
export const Stack = ({ parts, whole: all, label }) => html`<span class="stack" role="img" aria-label=${label}>
  ${parts.map((p) => p.value > 0 && html`<span key=${p.name} class=${`fill f${p.series}`} style=${{ width: `${100 * p.value / all}%` }}></span>`)}</span>`;

// Meter is a share of a whole, marked when it is over.
export const Meter = ({ share, label, level = '' }) => html`<span class=${`meter ${level}`} role="img" aria-label=${label}>
  <span style=${{ width: `${Math.min(100, Math.max(0, 100 * share))}%` }}></span></span>`;

// Drawer is a dialog at the side; Escape closes it.
export function Drawer({ title, onClose, children }) {
  const ref = useRef();
  useEffect(() => { if (!ref.current.open) ref.current.showModal(); }, []);
  return html`<dialog ref=${ref} class="drawer" aria-labelledby="drawer-title" onClose=${onClose} onClick=${(e) => { if (e.target === ref.current) ref.current.close(); }}>
    <header><h2 id="drawer-title">${title}</h2><button class="close" aria-label="Close" onClick=${() => ref.current.close()}>✕</button></header>
    <div class="body">${children}</div></dialog>`;
}

// call of the admin API. It fails with conch's own words.
export async function call(path, body, method = 'POST') {
  const answer = await fetch(path, body === undefined ? {} : { method, headers: { 'Content-Type': 'application/json' }, body: JSON.stringify(body) });
  const text = await answer.text();
  let value;
  try { value = JSON.parse(text); } catch (_) { throw new Error(`${answer.status}: ${short(text, 300)}`); }
  if (!answer.ok) {
    const violations = (value.error?.violations ?? []).map((v) => `${v.code} ${v.subject}: ${v.text}`);
    throw new Error([value.error?.message ?? answer.statusText, ...violations].join('\n'));
  }
  return value;
}

// text of the admin API.
export async function text(path) {
  const answer = await fetch(path);
  if (!answer.ok) throw new Error((await answer.json()).error?.message ?? answer.statusText);
  return answer.text();
}

// useFetch asks once, and again when path changes or again is called. Path '' asks nothing.
export function useFetch(path, ask = call) {
  const [got, set] = useState({});
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    if (!path) return undefined;
    let over = false;
    set({ loading: true });
    ask(path).then((value) => over || set({ value }), (error) => over || set({ error: error.message }));
    return () => { over = true; };
  }, [path, turn]);
  return { ...got, again: () => setTurn(turn + 1) };
}

// Fetched shows what a fetch brought, or why not.
export const Fetched = ({ of, children }) => of.error ? html`<p class="problem" role="alert">${of.error}</p>`
  : of.value === undefined ? html`<p class="quiet" role="status">Asking conch …</p>` : children(of.value);

// conditionOf a type, of a model or a partition.
export const conditionOf = (all, type) => (all ?? []).find((c) => c.type === type);

// unserved are the models that ought to be served and are not.
export const unserved = (models) => [...models.values()].filter((m) => m.state && m.state !== 'ready' && m.state !== 'unloaded');

// roles of instances that are not plain ones.
export const roles = { ROLE_STANDBY: 'standby', ROLE_CANARY: 'canary', ROLE_SHADOW: 'shadow' };

export const path = (...parts) => `/v1/${parts.map(encodeURIComponent).join('/')}`;
