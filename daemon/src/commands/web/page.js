// SPDX-License-Identifier: Apache-2.0 OR MIT
// Asks for the state once a second while the page is seen, and draws it. What processes choose (names, arguments, paths)
// becomes text nodes and nothing else: the page's policy has the browser refuse markup that is made of strings.
"use strict";

const EVERY_MS = 1000;
const PATIENCE_MS = 6000;
// A longer time without a sample is drawn as a gap: nobody looked.
const GAP_MS = 20000;
const RECENT_MS = 600000;
const LEAST_MS = 60000;
const CLASSES = ["realtime", "stream", "standard", "bulk", "background"];
const SVG = "http://www.w3.org/2000/svg";
const HEIGHT = 150, LEFT = 44, RIGHT = 6, BOTTOM = 18, TOP = 8;
// Caps let more poll than any link carries where round trips are short: a chart goes so far beyond its link.
const LINKS_HIGH = 3;

const byId = (id) => document.getElementById(id);
const mbit = (bytes) => (bytes * 8) / 1e6;
const digits = (value) => (Number.isInteger(value) ? String(value) : value < 10 ? value.toFixed(value < 0.1 ? 3 : 2) : value < 100 ? value.toFixed(1) : String(Math.round(value)));
const shown = (value) => (value === null || value === undefined ? "–" : typeof value === "number" ? digits(value) : value);

const counted = (count, of) => `${count} ${of}${count === 1 ? "" : "s"}`;

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function drawn(name, attributes, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

const keyed = (name) => element("span", {}, element("span", { class: `key ${name}` }), name);

// A row of cells: text left, numbers right, { wide } only where there is room.
function row(cells, attributes = {}) {
  const made = element("tr", attributes);
  for (const cell of cells) {
    const { value, wide, title } = cell !== null && typeof cell === "object" && !(cell instanceof Node) ? cell : { value: cell };
    const isNumber = typeof value === "number" || value === null;
    const of = { class: [isNumber && "n", wide && "wide"].filter(Boolean).join(" ") };
    if (title) of.title = title;
    made.append(element("td", of, value instanceof Node ? value : shown(value)));
  }
  return made;
}

const fill = (table, rows) => byId(table).tBodies[0].replaceChildren(...rows);

/* ---- over time ---- */

// Rows of the history: [ms, [values]].
let columns = [];
let history = { recent: [], whole: [], step_ms: 1000 };

const CHARTS = {
  goodput: { unit: "Mbit/s", scale: mbit, stacked: CLASSES, lines: [["link_rate", "mark dashed", "link's rate"]] },
  received: { unit: "Mbit/s", scale: mbit, stacked: CLASSES, prefix: "received_", lines: [] },
  caps: { unit: "Mbit/s", scale: mbit, lines: [["link_rate", "mark dashed", "link's rate"], ["allowed", "first", "what the caps let pass"]] },
  delay: { unit: "ms", scale: (s) => s * 1e3, lines: [["queue_s", "first", "in giveway's queue"], ["path_s", "second", "on the paths"]] },
  sharing: { unit: "", scale: (x) => x, lines: [["devices", "first", "devices that send"], ["peers", "second", "peers"], ["realtime_share", "realtime", "real time's budget used (0 to 1)"]] },
};

function draw() {
  const whole = byId("span").value === "whole";
  const rows = whole ? history.whole : history.recent;
  const to = rows.length ? rows[rows.length - 1][0] : Date.now();
  const first = Math.min(rows.length ? rows[0][0] : to, to - LEAST_MS);
  const from = whole ? first : Math.max(first, to - RECENT_MS);
  const gap = whole ? Math.max(GAP_MS, 3 * history.step_ms) : GAP_MS;
  const seen = rows.filter((r) => r[0] >= from);
  // Asked for before anything is drawn, so that the page is laid out once.
  const width = Math.max(240, byId("goodput").clientWidth - 20);
  for (const [id, chart] of Object.entries(CHARTS)) drawChart(byId(id), chart, seen, { from, to, gap, width });
}

function drawChart(figure, chart, rows, { from, to, gap, width }) {
  const at = (name) => columns.indexOf(name);
  const value = (r, name) => { const v = r[1][at(name)]; return v === null || v === undefined ? null : chart.scale(v); };
  const stacked = chart.stacked || [];
  const prefix = chart.prefix || "";
  const total = (r) => stacked.reduce((sum, name) => sum + (value(r, prefix + name) || 0), 0);
  const tops = rows.map((r) => Math.max(total(r), ...chart.lines.map(([name]) => value(r, name) || 0)));
  const link = Math.max(0, ...rows.map((r) => value(r, "link_rate") || 0));
  const inRates = chart.scale === mbit && link > 0;
  const most = niceTop(Math.min(Math.max(0, ...tops), inRates ? LINKS_HIGH * link : Infinity));
  const x = (t) => LEFT + ((t - from) / (to - from || 1)) * (width - LEFT - RIGHT);
  const y = (v) => TOP + (1 - Math.min(v / most, 1)) * (HEIGHT - TOP - BOTTOM);
  const parts = runs(rows, gap);
  const svg = drawn("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": figure.querySelector("figcaption").textContent });
  svg.append(...axes(most, chart.unit, from, to, x, y, width));
  const base = new Map();
  for (const name of stacked) {
    let path = "";
    for (const part of parts) {
      const floor = part.map((r) => base.get(r) || 0);
      const roof = part.map((r, i) => floor[i] + (value(r, prefix + name) || 0));
      part.forEach((r, i) => base.set(r, roof[i]));
      const there = part.map((r, i) => `${x(r[0]).toFixed(1)} ${y(roof[i]).toFixed(1)}`);
      const back = part.map((r, i) => `${x(r[0]).toFixed(1)} ${y(floor[i]).toFixed(1)}`).reverse();
      path += `M${there.join("L")}L${back.join("L")}Z`;
    }
    svg.append(drawn("path", { class: `area ${name}`, d: path }));
  }
  for (const [name, style] of chart.lines) {
    let path = "";
    for (const part of runs(rows.filter((r) => value(r, name) !== null), gap)) {
      const points = part.map((r) => `${x(r[0]).toFixed(1)} ${y(value(r, name)).toFixed(1)}`);
      path += points.length === 1 ? `M${points[0]}h1` : `M${points.join("L")}`;
    }
    svg.append(drawn("path", { class: `curve ${style}`, d: path }));
  }
  const latest = rows[rows.length - 1];
  const entry = (name, style, text) => {
    const now = latest ? value(latest, name) : null;
    const unit = now === null || !chart.unit ? "" : ` ${chart.unit}`;
    return element("li", {}, element("span", { class: `key ${style}` }), `${text} `, element("b", {}, shown(now) + unit));
  };
  const legend = element("ul", { class: "legend" });
  legend.append(...stacked.map((name) => entry(prefix + name, name, name)), ...chart.lines.map(([name, style, text]) => entry(name, `${style} thin`, text)));
  figure.replaceChildren(figure.querySelector("figcaption"), svg, legend);
}

// Splits where nobody looked for a while.
function runs(rows, gap) {
  const parts = [];
  let before = -Infinity;
  for (const r of rows) {
    if (r[0] - before > gap) parts.push([]);
    parts[parts.length - 1].push(r);
    before = r[0];
  }
  return parts;
}

function niceTop(most) {
  if (!(most > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(most));
  return [1, 1.5, 2, 3, 4, 6, 8, 10].map((step) => step * power).find((top) => top >= most * 1.02) || 20 * power;
}

function axes(most, unit, from, to, x, y, width) {
  const parts = [];
  for (const share of [0, 0.5, 1]) {
    const level = y(most * share).toFixed(1);
    parts.push(drawn("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: level, y2: level }));
    parts.push(drawn("text", { x: LEFT - 4, y: Number(level) + 3, "text-anchor": "end" }, shown(most * share)));
  }
  parts.push(drawn("text", { x: LEFT + 2, y: TOP + 8 }, unit));
  const days = to - from > 86400000;
  const time = (t) => new Date(t).toLocaleString([], days ? { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit" } : { hour: "2-digit", minute: "2-digit", second: "2-digit" });
  parts.push(drawn("text", { x: LEFT, y: HEIGHT - 4 }, time(from)));
  parts.push(drawn("text", { x: width - RIGHT, y: HEIGHT - 4, "text-anchor": "end" }, time(to)));
  return parts;
}

/* ---- now ---- */

function show(state) {
  byId("summary").textContent = `${state.version}, up ${duration(state.uptime_s)}; policy ${state.policy}` + (state.dry_run ? "; dry run: nothing is changed" : "");
  const warnings = state.warnings.map((line) => element("li", {}, line)).concat(state.focus.map((line) => element("li", {}, `focus: ${line}`))).concat(state.by_hand.map((line) => element("li", {}, `by hand: ${line}`)));
  byId("warnings").hidden = warnings.length === 0;
  byId("warnings").replaceChildren(...warnings);
  fill("classes", state.classes.map((c) => row([keyed(c.class), c.senders, c.sockets, mbit(c.sent_bytes_per_s), mbit(c.received_bytes_per_s), { value: c.capped, wide: true }, { value: c.send_queue_bytes / 1e3, wide: true }, c.path_queue_s === null ? null : c.path_queue_s * 1e3], c.senders || c.received_bytes_per_s ? {} : { class: "quiet" })));
  byId("limits-shown").hidden = state.limits.length === 0;
  fill("limits", state.limits.map((l) => row([l.of, l.direction, l.limit_mbit, l.queue ? l.queue.throughput_mbit : null, l.flows, ...[["passed_bytes", 1e6], ["backlog_bytes", 1e3], ["dropped_packets", 1]].map(([name, unit]) => ({ value: l.queue ? l.queue[name] / unit : null, wide: true }))])));
  showLinks(state.links);
  showFlows(state);
  showPeers(state);
  showRealtime(state.priority);
  const changes = state.changes.map((c) => element("li", {}, element("time", {}, `${duration(c.age_s)} ago`), c.what + (c.times > 1 ? ` (latest of ${c.times})` : "")));
  byId("changes").replaceChildren(...(changes.length ? changes : [element("li", {}, "giveway has changed nothing")]));
  byId("changes-shown").textContent = state.changes_total > changes.length ? `${changes.length} of ${state.changes_total}` : "";
}

function showFlows(state) {
  const rows = [];
  for (const f of state.flows) {
    const name = f.pid === null ? f.command : `${f.command} ${f.pid}`;
    const process = element("span", {}, name, element("small", { class: "narrow" }, f.remote));
    rows.push(row([{ value: process, title: f.exe }, { value: f.remote, wide: true }, keyed(f.class), mbit(f.sent_bytes_per_s), mbit(f.received_bytes_per_s), { value: f.cwnd, wide: true }, f.cap, f.rtt_ms, { value: f.path_queue_ms, wide: true }, { value: f.send_queue_bytes / 1e3, wide: true }], f.moves ? {} : { class: "quiet" }));
    if (!f.moves && f.class === "standard") continue;
    const gives = f.yields_by ? `; yields by ${f.yields_by}` : "";
    const back = f.conflict ? "; conflict: another tool has changed a setting, which giveway does not override" : "";
    rows.push(element("tr", { class: "why" }, element("td", { colspan: 10 }, `${f.rule}: ${f.reason}${gives}${back}`)));
  }
  fill("flows", rows);
  byId("flows-shown").textContent = state.flows_total > state.flows.length ? `the first ${state.flows.length} of ${state.flows_total}` : `${state.flows_total}`;
}

function showLinks(links) {
  const shown = links.map((link) => {
    const parts = [`${link.queue}: ${link.reason}`];
    if (link.estimate) parts.push(link.estimate);
    if (link.delay_s !== null) parts.push(`queueing delay ${digits(link.delay_s * 1e3)} ms`);
    if (link.admitted || link.refused) parts.push(`${link.admitted} deadlines admitted, ${link.refused} refused`);
    const part = element("div", {}, element("strong", {}, link.interface), ` ${parts.join("; ")}`);
    if (link.bands.length) {
      const head = element("thead", {}, element("tr", {}, element("th", {}, "Band"), ...["Backlog", "Sent", "Dropped", "p50 ms", "p99 ms"].map((name) => element("th", { class: name === "p50 ms" ? "n wide" : "n" }, name))));
      const ms = (s) => (s === null ? null : s * 1e3);
      const body = element("tbody", {}, ...link.bands.map((b) => row([b.band, b.backlog_packets, b.sent_packets, b.dropped, { value: ms(b.p50_s), wide: true }, ms(b.p99_s)])));
      part.append(element("div", { class: "scroll" }, element("table", {}, head, body)));
    }
    return part;
  });
  byId("links").replaceChildren(...(shown.length ? shown : [element("p", {}, "no interface is managed")]));
}

function showPeers(state) {
  const some = state.peers.length > 0;
  byId("alone").hidden = some;
  byId("alone").textContent = state.cooperates ? "no peer reports" : "none: no group key";
  byId("peers").hidden = !some;
  fill("peers", state.peers.map((n) => row([n.address, n.senders, mbit(n.bytes_per_s), element("span", {}, `${digits(n.age_ms / 1e3)} s ago`), n.authenticated ? "yes" : "not yet"])));
}

function showRealtime(realtime) {
  byId("processes").hidden = !realtime || realtime.processes.length === 0;
  if (!realtime) {
    byId("realtime").textContent = "the real-time thread is not running";
    return;
  }
  const parts = [`${counted(realtime.rules, "rule")}, ${counted(realtime.chains, "chain")} with ${counted(realtime.raised_threads, "thread")} raised`];
  if (realtime.window_ms) parts.push(`${realtime.used_ms} of ${realtime.budget_ms} ms used in ${realtime.window_ms} ms`);
  if (realtime.demoted) parts.push(`revoked ${counted(realtime.demoted, "time")}`);
  if (realtime.processes_total > realtime.processes.length) parts.push(`the first ${realtime.processes.length} of ${realtime.processes_total} processes`);
  byId("realtime").textContent = parts.concat(realtime.warnings).join("; ");
  fill("processes", realtime.processes.map((p) => row([{ value: `${p.exe} ${p.pid}` }, p.rule, p.granted ? p.schedule : `${p.schedule}, not granted`, p.threads, p.cpu_percent])));
}

function duration(s) {
  if (s < 90) return `${s < 10 ? s.toFixed(1) : Math.round(s)} s`;
  if (s < 5400) return `${Math.round(s / 60)} min`;
  return s < 172800 ? `${Math.round(s / 3600)} h` : `${Math.round(s / 86400)} days`;
}

/* ---- the loop ---- */

let lastSeen = 0;

async function get(path) {
  const answer = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS) });
  if (!answer.ok) throw new Error(`${answer.status}: ${(await answer.text()).slice(0, 300)}`);
  return answer.json();
}

async function readHistory() {
  const series = await get("history");
  columns = series.columns;
  history = series;
}

async function refresh() {
  const state = await get("state");
  if (state.problem) {
    if (columns.length === 0) await readHistory();
    draw();
    return fail(state.problem);
  }
  const [at] = state.sample;
  // Nobody was asked anew meanwhile.
  if (at === lastSeen && byId("problem").hidden) return;
  const isNew = columns.length === 0 || at - lastSeen > 30000;
  if (isNew) await readHistory();
  performance.mark("answered");
  if (!isNew && at > lastSeen) history.recent.push(state.sample);
  while (history.recent.length && history.recent[0][0] < at - RECENT_MS) history.recent.shift();
  lastSeen = at;
  fail(null);
  draw();
  show(state);
  performance.measure("refresh", "answered");
}

function fail(problem) {
  document.body.classList.toggle("stale", problem !== null);
  byId("problem").hidden = problem === null;
  const text = problem === null ? "" : `Nothing new to show: ${problem}`;
  // An alert is read aloud whenever it is written.
  if (byId("problem").textContent !== text) byId("problem").textContent = text;
  if (problem !== null) byId("summary").textContent = "no answer";
  document.title = problem === null ? "giveway" : "giveway (no answer)";
}

async function loop() {
  const began = performance.now();
  if (!document.hidden) {
    await refresh().catch((error) => fail(`giveway web does not answer (${error.message})`));
  }
  setTimeout(loop, Math.max(100, EVERY_MS - (performance.now() - began)));
}

byId("span").addEventListener("change", () => readHistory().then(draw, () => {}));
document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh().catch(() => {}); });
loop();
