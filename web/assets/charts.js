/* Charts that can be zoomed: uPlot in place of the drawing that came with the page, which stays where scripts do not run. */
(() => {
  "use strict";
  const root = document.documentElement;
  const HEIGHT_PX = 200;
  const HOUR_S = 3600;
  const DAY_S = 86400;
  const DASHES = [[], [6, 3], [2, 2], [1, 0]];
  /** What was zoomed into, by chart; nothing: all of it. */
  const zoomed = new Map();
  let loading;

  /* A canvas knows no variables and no colours that depend on the theme: an element is asked what comes of them. */
  const colour = (name) => {
    const probe = document.createElement("i");
    probe.style.color = `var(${name})`;
    document.body.append(probe);
    const { color } = getComputedStyle(probe);
    probe.remove();
    return color;
  };

  /** uPlot and its styles come when the first chart needs them. */
  const library = ({ dataset }) => {
    loading ??= new Promise((done, failed) => {
      const style = document.createElement("link");
      Object.assign(style, { rel: "stylesheet", href: dataset.style });
      const script = document.createElement("script");
      Object.assign(script, { src: dataset.library, onload: done, onerror: failed });
      document.head.append(style, script);
    });
    return loading;
  };

  const two = { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
  const moment = (seconds, withDay) => {
    const at = new Date(seconds * 1000);
    const day = withDay ? `${at.toLocaleDateString(root.lang === "en" ? "en-GB" : root.lang, { day: "numeric", month: "short" })} ` : "";
    return day + at.toLocaleTimeString(root.lang, two);
  };
  const share = (value) => value === null || value === undefined ? "–" : `${value.toFixed(1)} %`;

  const options = (host, names, width) => ({
    width,
    height: HEIGHT_PX,
    // A drag chooses a part of the time, and a double click gives back all of it.
    cursor: { drag: { x: true, y: false } },
    // One sample alone has no span of its own: it stands at the end of an hour.
    scales: { x: { time: true, range: (_, min, max) => min < max ? [min, max] : [max - HOUR_S, max] }, y: { range: [0, 100] } },
    axes: [
      { stroke: colour("--ink-3"), font: `12px ${getComputedStyle(host).fontFamily}`, grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false },
        values: (plot, splits) => {
          const long = plot.scales.x.max - plot.scales.x.min > DAY_S;
          return splits.map((at) => moment(at, long));
        } },
      { stroke: colour("--ink-3"), font: `12px ${getComputedStyle(host).fontFamily}`, grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, size: 46,
        values: (_, splits) => splits.map((value) => `${value}%`) },
    ],
    series: [
      { label: host.dataset.at, value: (_, at) => at === null ? "–" : moment(at, true) },
      ...names.map((label, number) => ({
        label, scale: "y", stroke: colour(`--c${number + 1}`), width: 1.75, dash: DASHES[number], spanGaps: false,
        value: (_, value) => share(value),
      })),
    ],
    hooks: { setScale: [(plot, key) => {
      if (key !== "x" || !plot.data[0].length) return;
      const all = [plot.data[0][0], plot.data[0].at(-1)];
      const { min, max } = plot.scales.x;
      if (min > all[0] || max < all[1]) zoomed.set(host.id, [min, max]); else zoomed.delete(host.id);
    }] },
  });

  const draw = (host) => {
    const source = document.getElementById(host.dataset.plot);
    if (!source) return;
    const [at, ...lines] = JSON.parse(source.dataset.points);
    const data = [at, ...lines.map((line) => line.map((value) => value === null ? null : value / 10))];
    const names = JSON.parse(source.dataset.names);
    const old = host.plot;
    const width = host.clientWidth;
    if (old && old.names === source.dataset.names && old.theme === colour("--ink")) {
      const kept = zoomed.get(host.id);
      old.setData(data, !kept);
      if (kept) old.setScale("x", { min: kept[0], max: kept[1] });
      if (old.width !== width) old.setSize({ width, height: HEIGHT_PX });
      return;
    }
    old?.destroy();
    host.plot = new window.uPlot(options(host, names, width), data, host);
    host.plot.names = source.dataset.names;
    host.plot.theme = colour("--ink");
    const kept = zoomed.get(host.id);
    if (kept) host.plot.setScale("x", { min: kept[0], max: kept[1] });
  };

  const show = async (host) => {
    try {
      await library(host);
    } catch {
      return; // The drawing stays.
    }
    host.hidden = false;
    host.nextElementSibling.hidden = true;
    draw(host);
  };
  const all = () => document.querySelectorAll("[data-plot]").forEach(show);

  document.addEventListener("DOMContentLoaded", () => {
    if (window.Idiomorph) {
      // What was drawn is not the page's own: a refresh leaves it, and then brings its figures.
      const { callbacks } = window.Idiomorph.defaults;
      callbacks.beforeNodeMorphed = (node) => !node.matches?.("[data-plot]");
      const others = callbacks.beforeAttributeUpdated;
      callbacks.beforeAttributeUpdated = (name, node, kind) =>
        !(name === "hidden" && node.matches(".chart[data-points]")) && (others?.(name, node, kind) ?? true);
    }
    all();
  });
  document.addEventListener("htmx:afterSettle", all);
  window.addEventListener("resize", all);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", all);
})();
