// The page of baton-monitor. It draws what /history and /live send; live.rs says what that is.
"use strict";

const $ = (id) => document.getElementById(id);

// -- numbers as text ----------------------------------------------------------

const count = (n) => (n == null ? "–" : Math.round(n).toLocaleString("en"));
const rate = (n) => (n == null ? "–" : n >= 10 || n === 0 ? count(n) : n.toFixed(1));
function duration(s) {
  if (s == null) return "–";
  if (s < 0.001) return `${Math.round(s * 1e6)} µs`;
  if (s < 1) return `${(s * 1000).toFixed(s < 0.01 ? 1 : 0)} ms`;
  if (s < 60) return `${s.toFixed(1)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${Math.floor(s % 60)} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}
function bytes(n) {
  if (n == null) return "–";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  for (; n >= 1024 && unit < units.length - 1; unit++) n /= 1024;
  return `${n.toFixed(unit > 0 && n < 10 ? 1 : 0)} ${units[unit]}`;
}
const share = (n) => `${(100 * n).toFixed(n < 0.1 ? 1 : 0)} %`;
const clock = (t, seconds = true) =>
  new Date(t * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: seconds ? "2-digit" : undefined, hourCycle: "h23" });

// -- what the server has sent -------------------------------------------------

const HOUR = 3600;
const DAY = 86400;
const rows = []; // by time; one a second for the last hour, one a minute before that
let columns = [];
let range = 600;
let held = false;

const value = (row, name) => row[1 + columns.indexOf(name)];

function add(row) {
  rows.push(row);
  const hour_ago = row[0] - HOUR;
  const first = rows.findIndex((r) => r[0] >= hour_ago);
  for (let i = first - 1; i > 0 && rows[i][0] - rows[i - 1][0] < 55; i--) rows.splice(i, 1);
  while (rows[0][0] < row[0] - DAY) rows.shift();
}

// -- charts -------------------------------------------------------------------

const CHARTS = [
  { id: "c-transactions", text: rate, lines: [["transactions", "Transactions", "--a"]] },
  { id: "c-wait", text: duration, lines: [["wait_p50", "p50", "--a"], ["wait_p99", "p99", "--b"]] },
  {
    id: "c-backends", text: count, stacked: true,
    lines: [["busy", "At work", "--a"], ["dedicated", "Dedicated", "--b"], ["starting", "Starting", "--c"], ["free", "Free", "--idle"]],
  },
  {
    id: "c-sessions", text: count, stacked: true,
    lines: [["active", "Active", "--a"], ["in_transaction", "Idle in transaction", "--c"], ["waiting", "Waiting", "--b"]],
  },
];
const HEIGHT = 170; // as in page.css
const LEFT = 58;
const BOTTOM = 22;
let cursor = null; // the time that the pointer or the arrow keys show

function element(name, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, text] of Object.entries(attributes)) node.setAttribute(key, text);
  node.append(...children);
  return node;
}

// A round number at or above n, for the top of an axis.
function ceiling(n) {
  if (!(n > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(n));
  return [1, 2, 2.5, 5, 10].map((step) => step * power).find((top) => top >= n);
}

function draw(chart) {
  const now = rows.length ? rows[rows.length - 1][0] : Date.now() / 1000;
  const from = now - range;
  const width = chart.svg.clientWidth;
  const shown = rows.filter((row) => row[0] >= from);
  const x = (t) => LEFT + ((t - from) / range) * (width - LEFT);
  const tops = shown.map((row) => {
    const values = chart.lines.map(([name]) => value(row, name) ?? 0);
    return chart.stacked ? values.reduce((a, b) => a + b, 0) : Math.max(...values);
  });
  // Half of a count is a count, too.
  const highest = ceiling(Math.max(0, ...tops));
  const top = chart.text === count ? 2 * Math.ceil(highest / 2) : highest;
  const y = (n) => (HEIGHT - BOTTOM) * (1 - n / top) + 4;

  const parts = [];
  for (const part of [0, 0.5, 1]) {
    parts.push(element("line", { class: "grid", x1: LEFT, x2: width, y1: y(top * part), y2: y(top * part) }));
    parts.push(element("text", { x: LEFT - 6, y: y(top * part) + 4, "text-anchor": "end" }, chart.text(top * part)));
  }
  for (const part of [0, 0.5, 1])
    parts.push(element("text", { x: x(from + range * part), y: HEIGHT - 4, "text-anchor": ["start", "middle", "end"][part * 2] },
      clock(from + range * part, range <= 600)));

  // A gap in time is a gap in the line.
  const gap = (i) => shown[i][0] - shown[i - 1][0] > (shown[i][0] < now - HOUR ? 130 : 25);
  const below = shown.map(() => 0);
  for (const [name, , color] of chart.lines) {
    let path = "";
    let area = "";
    let start = 0;
    const close = (end) => {
      for (let i = end; i >= start; i--) area += `L${x(shown[i][0])} ${y(below[i])}`;
      area += "Z";
    };
    const values = shown.map((row) => value(row, name));
    shown.forEach((row, i) => {
      const at = `${x(row[0]).toFixed(1)} ${y((values[i] ?? 0) + below[i]).toFixed(1)}`;
      const begins = i === 0 || gap(i) || (!chart.stacked && (values[i] == null || values[i - 1] == null));
      if (chart.stacked && begins && i > 0) close(i - 1);
      if (begins) start = i;
      path += (begins ? "M" : "L") + at;
      area += (begins ? "M" : "L") + at;
    });
    if (chart.stacked && shown.length) {
      close(shown.length - 1);
      parts.push(element("path", { d: area, fill: `var(${color})` }));
      shown.forEach((_, i) => (below[i] += values[i] ?? 0));
    } else parts.push(element("path", { d: path, fill: "none", stroke: `var(${color})`, "stroke-width": 2, "stroke-linejoin": "round" }));
  }

  const at = cursor == null ? shown[shown.length - 1] : nearest(shown, cursor);
  if (cursor != null && at) parts.push(element("line", { class: "cursor", x1: x(at[0]), x2: x(at[0]), y1: 4, y2: HEIGHT - BOTTOM + 4 }));
  chart.svg.replaceChildren(...parts);
  chart.legend.replaceChildren(
    ...chart.lines.map(([name, label, color]) => {
      const item = document.createElement("li");
      const box = document.createElement("i");
      box.style.background = `var(${color})`;
      item.append(box, `${label} ${at ? chart.text(value(at, name)) : "–"}`);
      return item;
    }),
    ...(cursor != null && at ? [Object.assign(document.createElement("li"), { textContent: `at ${clock(at[0])}` })] : []),
  );
  chart.svg.setAttribute("aria-label", `${chart.title}: ${chart.legend.innerText.replaceAll("\n", ", ")}`);
}

const nearest = (shown, t) => shown.reduce((best, row) => (best && Math.abs(best[0] - t) <= Math.abs(row[0] - t) ? best : row), null);

function prepare(chart) {
  const section = $(chart.id);
  chart.title = section.querySelector("h2").textContent;
  chart.svg = element("svg", { role: "img", tabindex: 0 });
  chart.legend = Object.assign(document.createElement("ul"), { className: "legend" });
  section.append(chart.svg, chart.legend);
  const show = (t) => {
    cursor = t;
    CHARTS.forEach(draw);
  };
  chart.svg.addEventListener("pointermove", (event) => {
    const box = chart.svg.getBoundingClientRect();
    const part = (event.clientX - box.left - LEFT) / (box.width - LEFT);
    if (rows.length) show(rows[rows.length - 1][0] - range * (1 - Math.min(1, Math.max(0, part))));
  });
  chart.svg.addEventListener("pointerleave", () => show(null));
  chart.svg.addEventListener("blur", () => show(null));
  chart.svg.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -range / 100, ArrowRight: range / 100 }[event.key];
    if (step === undefined || !rows.length) return;
    event.preventDefault();
    const now = rows[rows.length - 1][0];
    show(Math.min(now, Math.max(now - range, (cursor ?? now) + step)));
  });
}

// -- tables -------------------------------------------------------------------

function cell(tag, content, is_number) {
  const node = document.createElement(tag);
  node.textContent = content ?? "–";
  if (is_number) node.className = "number";
  return node;
}

// heads: [title, is it a number]
function table(id, heads, lines) {
  const node = $(id);
  if (lines.length === 0) {
    const none = node.insertRow ? document.createElement("tbody") : node;
    const line = none.insertRow();
    line.append(Object.assign(document.createElement("td"), { className: "none", textContent: node.dataset.none }));
    node.replaceChildren(none);
    return;
  }
  const head = document.createElement("thead");
  head.insertRow().append(...heads.map(([title, is_number]) => Object.assign(cell("th", title, is_number), { scope: "col" })));
  const body = document.createElement("tbody");
  for (const line of lines) body.insertRow().append(...line.map((text, i) => cell("td", text, heads[i][1])));
  node.replaceChildren(head, body);
}

function details(d) {
  $("server").textContent = d.server;
  document.title = d.problem ? `${d.problem} – pg_baton` : "pg_baton";
  $("state").textContent = d.problem ?? d.state;
  $("state").className = d.problem ? "bad" : "";
  table("waits", [["PID"], ["User"], ["Database"], ["Application"], ["Waits for", true]],
    d.waits.map((s) => [s.pid, s.user, s.database, s.application, duration(s.seconds)]));
  $("holders").textContent = d.holders;
  table("transactions", [["PID"], ["User"], ["Database"], ["Application"], ["State"], ["Kept by"], ["Since", true]],
    d.transactions.map((s) => [s.pid, s.user, s.database, s.application, s.state, s.cause, duration(s.seconds)]));
  table("users", [["User"], ["Per second", true], ["Time", true], ["Sessions", true]],
    d.users.map((u) => [u.user == null ? "others" : `${u.user} in ${u.database}`, rate(u.transactions), share(u.share), count(u.sessions)]));
  table("causes", [["Cause"], ["Sessions", true]], d.causes.map(([cause, n]) => [cause, count(n)]));
  const own = d.dispatcher;
  table("dispatcher", [["Now"], ["", true]], own.memory == null ? [] : [
    ["Memory of contexts", `${bytes(own.memory)} of ${bytes(own.memory_limit)}`],
    ["Open files", `${count(own.descriptors)} of ${count(own.descriptors_limit)}`],
    ["Longest turn since its start", duration(own.longest_turn)],
    ["Mean hand-over", duration(own.hand_over)],
  ]);
  table("restart", [["Loss"], ["Number", true]], d.restart.map(([what, n]) => [what, count(n)]));
}

function tiles() {
  const row = rows[rows.length - 1];
  const of = (name) => value(row, name);
  const backends = of("busy") + of("dedicated") + of("free") + of("starting");
  $("t-transactions").textContent = rate(of("transactions"));
  $("t-wait").textContent = duration(of("wait_p99"));
  $("t-wait-unit").textContent = `p99 of a minute, p50 ${duration(of("wait_p50"))}`;
  $("t-backends").textContent = `${count(of("busy") + of("dedicated"))} of ${count(backends)}`;
  $("t-backends-unit").textContent = `${count(of("dedicated"))} dedicated`;
  $("t-sessions").textContent = count(of("idle") + of("active") + of("in_transaction") + of("waiting"));
  $("t-sessions-unit").textContent = `${count(of("idle"))} idle`;
  $("t-waiting").textContent = count(of("waiting"));
  $("t-waiting-unit").textContent = of("waiting") > 0 ? `the longest for ${duration(of("longest_wait"))}` : "no session waits";
  $("t-logins").textContent = rate(of("logins"));
  $("t-logins-unit").textContent = `a second, ${rate(of("refused"))} refused`;
  $("t-logins-unit").className = of("refused") > 0 ? "unit bad" : "unit";
}

function event_line(e) {
  const line = document.createElement("li");
  const time = Object.assign(document.createElement("time"), { textContent: clock(e.t), dateTime: new Date(e.t * 1000).toISOString() });
  line.append(time, e.text);
  return line;
}

function show_events(list) {
  const node = $("events");
  node.querySelector(".none")?.remove();
  node.prepend(...list.map(event_line).reverse());
  while (node.children.length > 200) node.lastChild.remove();
  if (node.children.length === 0) node.append(Object.assign(document.createElement("li"), { className: "none", textContent: node.dataset.none }));
}

// -- the connection -----------------------------------------------------------

function show() {
  if (held || !rows.length) return;
  tiles();
  CHARTS.forEach(draw);
}

function lost() {
  $("state").textContent = "No connection to the monitor: what is shown is old";
  $("state").className = "bad";
}

async function begin() {
  try {
    const history = await (await fetch("history")).json();
    columns = history.columns;
    rows.splice(0, rows.length, ...history.rows);
    $("events").replaceChildren();
    show_events(history.events);
  } catch {
    lost();
    setTimeout(begin, 2000);
    return;
  }
  const live = new EventSource("live");
  live.addEventListener("row", (event) => {
    add(JSON.parse(event.data));
    show();
  });
  live.addEventListener("details", (event) => {
    if (!held) details(JSON.parse(event.data));
  });
  live.addEventListener("events", (event) => show_events(JSON.parse(event.data)));
  live.onerror = () => {
    live.close();
    lost();
    setTimeout(begin, 2000);
  };
}

CHARTS.forEach(prepare);
$("range").addEventListener("change", (event) => {
  range = Number(event.target.value);
  CHARTS.forEach(draw);
});
$("hold").addEventListener("click", () => {
  held = !held;
  $("hold").setAttribute("aria-pressed", held);
  show();
});
begin();
