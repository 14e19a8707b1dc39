// Copyright The Conch Authors. SPDX-License-Identifier: Apache-2.0
// Lines over time or over batch sizes, by uPlot, in the page's colours.

import uPlot from './vendor/uplot.js';
import { useEffect, useRef } from './vendor/hooks.js';
import { html } from './parts.js';

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// alone gives the places of a series that have no neighbour.
function alone(plot, series) {
  const ys = plot.data[series];
  return ys.flatMap((y, i) => y !== null && (ys[i - 1] ?? null) === null && (ys[i + 1] ?? null) === null ? [i] : []);
}

// Plot draws data (uPlot's: [xs, ys, ...]). Series: {label, color, dash, points}. Points: at all of them, at
// 'only' them, or at those that stand 'alone', which a line would not show. Label says in words what is to be seen.
export function Plot({ data, series, height = 120, label, x, y, range, xRange, legend = true }) {
  const box = useRef(), plot = useRef(), ranges = useRef(), shown = useRef(); // what is made anew for another theme shows the present data
  ranges.current = xRange;
  shown.current = data;
  useEffect(() => {
    const make = () => {
      plot.current?.destroy();
      const axis = { stroke: color('--soft'), grid: { stroke: color('--line'), width: 1 }, ticks: { show: false }, font: '11px system-ui' };
      plot.current = new uPlot({
        width: box.current.clientWidth, height, legend: { show: legend, live: false }, cursor: { show: false },
        scales: { x: { time: false, range: xRange && ((...a) => ranges.current(...a)) }, y: { range } },
        axes: [{ ...axis, size: 26, ...(x ? { values: (_, all) => all.map(x) } : {}) }, { ...axis, size: 54, space: height < 120 ? 16 : 30, values: (_, all) => all.map(y) }],
        series: [{ label: '' }, ...series.map((s) => ({
          label: s.label, stroke: color(s.color), width: s.width ?? 1.5, dash: s.dash, fill: s.fill ? `${color(s.color)}22` : undefined,
          points: { show: !!s.points, size: 6, fill: color(s.color), filter: s.points === 'alone' ? alone : undefined }, paths: s.points === 'only' ? () => null : undefined, spanGaps: !!s.spanGaps,
        }))],
      }, shown.current, box.current);
    };
    make();
    const resized = new ResizeObserver(() => { if (box.current && plot.current && plot.current.width !== box.current.clientWidth) plot.current.setSize({ width: box.current.clientWidth, height }); });
    resized.observe(box.current);
    const theme = matchMedia('(prefers-color-scheme: dark)');
    theme.addEventListener('change', make);
    return () => { resized.disconnect(); theme.removeEventListener('change', make); plot.current?.destroy(); plot.current = null; };
  }, [series.length]);
  useEffect(() => { plot.current?.setData(data); }, [data]);
  return html`<div class="plot" ref=${box} role="img" aria-label=${label}></div>`;
}
