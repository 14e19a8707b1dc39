// Copyright The Conch Authors. SPDX-License-Identifier: Apache-2.0
// The page: which screen, which topics, the state of the connection.

import { render } from './vendor/preact.js';
import { useEffect, useState } from './vendor/hooks.js';
import { html, State } from './parts.js';
import { clock } from './format.js';
import { Stream } from './stream.js';
import { Late } from './late.js';
import { GPUs } from './gpus.js';
import { Waiting } from './waiting.js';
import { Plans } from './plans.js';
import { Timeline } from './timeline.js';
import { Models } from './models.js';

const always = ['conch', 'events'];
const screens = [
  { id: 'late', name: 'Late', view: Late, topics: ['requests', 'minutes', 'models'] },
  { id: 'gpus', name: 'GPUs', view: GPUs, topics: ['gpus', 'models', 'plan'] },
  { id: 'waiting', name: 'Waiting', view: Waiting, topics: ['waiting', 'models'] },
  { id: 'plans', name: 'Plans', view: Plans, topics: ['plan'] },
  { id: 'timeline', name: 'Timeline', view: Timeline, topics: ['executions', 'partitions'] },
  { id: 'models', name: 'Models', view: Models, topics: ['models'] },
];

let changed = () => {};
const stream = new Stream(() => changed());

const here = () => screens.find((s) => location.hash.slice(1).split('/')[0] === s.id) ?? screens[0];

function App() {
  const [, draw] = useState(0);
  const [screen, go] = useState(here());
  useEffect(() => {
    changed = () => draw((n) => n + 1);
    const moved = () => go(here());
    const key = (e) => {
      if (e.ctrlKey || e.metaKey || e.altKey || e.target.closest('input,textarea,select,dialog')) return;
      const n = Number(e.key);
      if (n >= 1 && n <= screens.length) location.hash = screens[n - 1].id;
      else if (e.key === '/') {
        document.querySelector('.filter')?.focus();
        e.preventDefault();
      }
    };
    addEventListener('hashchange', moved);
    addEventListener('keydown', key);
    return () => { removeEventListener('hashchange', moved); removeEventListener('keydown', key); };
  }, []);
  useEffect(() => {
    stream.watch([...always, ...screen.topics]);
    document.title = `${screen.name} · Conch`;
  }, [screen]);
  const version = stream.version;
  return html`
    <a class="skip" href="#main" onClick=${(e) => { e.preventDefault(); document.getElementById('main').focus(); }}>Skip to the screen</a>
    <header class="top">
      <span class="brand">Conch</span>
      <nav aria-label="Screens">${screens.map((s, i) => html`<a key=${s.id} href=${`#${s.id}`} aria-current=${s === screen ? 'page' : undefined} title=${`key ${i + 1}`}>${s.name}</a>`)}</nav>
      <span class="about quiet">${version && html`${version.mode} · ${version.driver}`}</span>
      <${Link} />
    </header>
    <main id="main" tabindex="-1">
      ${stream.link === 'out' && html`<p class="problem" role="alert">${stream.why}</p>`}
      ${stream.link === 'lost' && html`<p class="problem" role="alert">No connection${stream.since ? ` since ${clock(stream.since)}; what is shown is of then` : ''}: ${stream.why}</p>`}
      <${screen.view} stream=${stream} />
    </main>`;
}

const Link = () => html`<span class="link-state" role="status">
  ${stream.link === 'live' && !stream.mayChange && html`<span class="tag" title="started without --allow-changes">read-only</span>`}
  ${stream.link === 'live' ? html`<${State} level="good">live<//>`
    : stream.link === 'connecting' ? html`<${State} level="busy">connecting<//>`
      : html`<span title=${stream.why}><${State} level="bad">${stream.link === 'out' ? 'not let in' : 'no connection'}<//></span>`}</span>`;

const root = document.getElementById('app');
root.replaceChildren();
render(html`<${App} />`, root);
