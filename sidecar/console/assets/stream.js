// Copyright The Conch Authors. SPDX-License-Identifier: Apache-2.0
// The state of conch as GET /v1/watch streams it. Nothing polls: a screen names its topics, and is drawn again when they change.

// gpuKey tells GPUs of all nodes apart, as conch does.
const gpuKey = (g) => g.node ? `${g.node}/${g.id}` : g.id;

const keys = {
  conch: () => '', plan: () => '', models: (m) => m.name, gpus: gpuKey, partitions: (p) => p.retiring ? `${p.id} retiring` : p.id, requests: (r) => r.model, waiting: (w) => w.model,
};
// Topics that are logs, with how many entries are kept.
const logs = { events: 500, executions: 8192, minutes: 60 }; // conch itself keeps no more executions and minutes

// silence is after how many ms a stream is taken for dead: conch sends an event every 15 s.
const silence = 45000;
// patience is how many ms an answer to why may take.
const patience = 10000;

export class Stream {
  constructor(changed) {
    this.changed = changed;
    this.link = 'connecting'; // connecting, live, lost, out
    this.why = '';
    this.skew = 0; // of conch's clock, in ms
    this.seen = new Set(); // topics whose whole state has come
    for (const topic in keys) this[topic] = new Map();
    for (const topic in logs) this[topic] = [];
    this.topics = '';
    this.pause = 1000;
    this.due = false;
    this.at = 0; // on conch's clock, when the last event came
    this.heard = performance.now(); // when something came last, or was asked for
    setInterval(() => this.listen(), 1000);
  }

  // watch these topics from now on.
  watch(topics) {
    const query = [...topics].sort().map((t) => `topic=${t}`).join('&');
    if (query === this.topics) return;
    this.topics = query;
    this.connect();
  }

  connect() {
    clearTimeout(this.again);
    this.source?.close();
    this.heard = performance.now();
    const source = this.source = new EventSource(`/v1/watch?${this.topics}`);
    source.onopen = () => { this.pause = 1000; };
    for (const topic of [...Object.keys(keys), ...Object.keys(logs)]) source.addEventListener(topic, (e) => this.take(topic, JSON.parse(e.data)));
    source.addEventListener('end', (e) => {
      source.close();
      this.lost(JSON.parse(e.data).message);
    });
    source.onerror = () => {
      if (source !== this.source) return;
      if (source.readyState === EventSource.CLOSED) this.lost('');
      else this.say('lost', 'the connection broke; it is tried again');
    };
  }

  // listen notices a connection that is gone and was not closed, as to a process that hangs: what it brought last would be shown as live.
  listen() {
    if (this.link === 'out' || performance.now() - this.heard < silence) return;
    this.source?.close();
    this.heard = performance.now();
    this.lost(`nothing was heard for ${silence / 1000} s; it is tried again`);
  }

  // lost: ask once why, and try again later.
  async lost(message) {
    this.say('lost', message || 'no answer');
    clearTimeout(this.again);
    this.again = setTimeout(() => this.connect(), this.pause);
    this.pause = Math.min(2 * this.pause, 15000);
    try {
      const answer = await fetch('/v1/version', { signal: AbortSignal.timeout(patience) });
      if (this.link !== 'lost') return; // it is back meanwhile
      if (answer.status === 401) {
        clearTimeout(this.again);
        this.say('out', 'this browser is no longer let in; open a new link (tritonctl ui), or sign in again');
      } else if (!answer.ok) this.say('lost', (await answer.json()).error?.message ?? answer.statusText);
    } catch (error) {
      if (this.link === 'lost') this.say('lost', error.name === 'TimeoutError' ? 'conch does not answer; it is tried again' : 'tritonctl ui, or conch, has ended');
    }
  }

  say(link, why) {
    if (this.link === 'live') this.since = this.at;
    this.link = link;
    this.why = why;
    this.draw();
  }

  take(topic, update) {
    this.link = 'live';
    this.heard = performance.now();
    this.at = Date.parse(update.time);
    this.skew = this.at - Date.now();
    this.seen.add(topic);
    if (logs[topic]) {
      const kept = update.all ? [] : this[topic];
      for (const entry of update.changed ?? []) kept.push(entry);
      this[topic] = kept.length > logs[topic] ? kept.slice(-logs[topic]) : kept;
    } else {
      const state = update.all ? new Map() : new Map(this[topic]);
      for (const gone of update.gone ?? []) state.delete(gone);
      for (const object of update.changed ?? []) state.set(keys[topic](object), object);
      this[topic] = state;
    }
    this.draw();
  }

  // draw at most once a frame.
  draw() {
    if (this.due) return;
    this.due = true;
    const run = () => { this.due = false; this.changed(); };
    if (document.hidden) setTimeout(run, 1000);
    else requestAnimationFrame(run);
  }

  // complete: no executions were left out because there are too many.
  get complete() { return this.executions.length < logs.executions; }
  get now() { return Date.now() + this.skew; }
  get version() { return this.conch.get('')?.version; }
  get mayChange() { return this.conch.get('')?.may_change === true; }
  get planInForce() { return this.plan.get(''); }
}
