// The page: asks the JSON API after each tick, and writes everything it gets as text (textContent),
// never as markup. What a workload is called is somebody else's choice. Routes are in the fragment:
// `#/` is the fleet, `#/w/NAMESPACE/NAME` one workload, `#/gpus` the map of GPUs, `#/findings` what needs a
// person, `#/doctor` what the doctor finds.

import { drawWorkload, forgetCharts, recolorCharts } from "/static/charts.js";
import { clock, count, el, number, percent, span, sparkline, tiles } from "/static/dom.js";
import { showDoctor } from "/static/doctor.js";
import { showFindings } from "/static/findings.js";
import { showGpus } from "/static/gpus.js";

const POLL_MS = 2000; // without the stream of events; the server answers 304 while nothing is new
const CALM_MS = 20000; // with it: what changes between ticks, such as readiness
const TIMEOUT_MS = 8000;
const DOCTOR_MS = 30000; // a visit asks the whole cluster
const SEARCH_MS = 200;
const PAGE_ROWS = 100;

const STATES = {
  error: ["no answer", "bad"], held: ["held", "warn"], paused: ["paused", "warn"],
  rising: ["scaling up", "up"], falling: ["scaling down", "calm"], steady: ["steady", "good"],
};

const VIEWS = { "#/gpus": ["GPUs", showGpus], "#/findings": ["Findings", showFindings], "#/doctor": ["Doctor", showDoctor] };

const main = document.getElementById("main");
const banners = document.getElementById("banners");
const pulse = document.getElementById("pulse");

const chip = (state) => {
  const [text, tone] = STATES[state] ?? [state, "calm"];
  return el("span", { class: "chip", "data-tone": tone }, text);
};
const pathOf = (row) => `#/w/${encodeURIComponent(row.namespace)}/${encodeURIComponent(row.name)}`;

function pods(row) {
  const stages = ["ready", "starting", "pending"].map((name) => [name, row[name] ?? 0]);
  const total = Math.max(row.desired ?? 0, stages.reduce((sum, [, n]) => sum + n, 0), 1);
  const said = stages.filter(([, n]) => n > 0).map(([name, n]) => `${n} ${name}`).join(", ") || "none ready";
  const text = row.ready === null ? "–" : row.starting === null ? count(row.ready)
    : `${count(row.ready)}${row.starting + row.pending > 0 ? ` +${row.starting + row.pending}` : ""}`;
  return el("span", { class: "pods", title: said },
    el("span", { class: "track", "aria-hidden": "true" }, stages.map(([name, n]) => el("i", { class: name, width: `${(100 * n) / total}%` }))),
    el("span", { class: "num", "aria-label": said }, text));
}

// ---------------------------------------------------------------- asking the API

const tags = new Map(); // path -> [etag, body]
async function ask(path) {
  const [tag, kept] = tags.get(path) ?? [];
  const headers = tag ? { "If-None-Match": tag } : {};
  const response = await fetch(path, { headers, cache: "no-store", signal: AbortSignal.timeout(path === "/api/v1/doctor" ? DOCTOR_MS : TIMEOUT_MS) });
  if (response.status === 304 && kept) return { body: kept, fresh: false };
  const body = await response.json().catch(() => ({ error: `the controller answered ${response.status}` }));
  if (!response.ok) throw Object.assign(new Error(body.error ?? `status ${response.status}`), { answered: true });
  const etag = response.headers.get("ETag");
  if (etag) {
    tags.clear(); // one view at a time: nothing else is worth keeping
    tags.set(path, [etag, body]);
  }
  return { body, fresh: true };
}

// ---------------------------------------------------------------- the fleet

const fleet = { q: "", state: "", offset: 0 };

function fleetFrame() {
  const search = el("input", { type: "search", id: "search", placeholder: "Search   /", "aria-label": "Search workloads by name", value: fleet.q, maxlength: 253 });
  let waiting;
  search.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => { fleet.q = search.value; fleet.offset = 0; refresh(); }, SEARCH_MS);
  });
  const states = el("select", { "aria-label": "Show workloads by state" }, el("option", { value: "" }, "all states"),
    Object.entries(STATES).map(([value, [text]]) => el("option", { value }, text)));
  states.value = fleet.state;
  states.addEventListener("change", () => { fleet.state = states.value; fleet.offset = 0; refresh(); });
  const heads = [["Workload", ""], ["State", ""], ["Demand, requests/s", "wide"], ["Now", "num"], ["Peak ahead", "num wide"], ["Waiting", "num wide"], ["Asked", "num"], ["Ready", ""]];
  main.replaceChildren(
    el("dl", { class: "tiles", id: "tiles" }),
    el("div", { class: "tools" }, el("h1", {}, "Workloads"), search, states),
    el("div", { class: "card scroll" }, el("table", { class: "fleet" },
      el("caption", { class: "hidden" }, "Workloads with their demand and replicas"),
      el("thead", {}, el("tr", {}, heads.map(([text, kind]) => el("th", { scope: "col", class: kind || null }, text)))),
      el("tbody", { id: "rows" }))),
    el("div", { id: "pager", class: "tools" }));
}

function fleetRow(row) {
  const levels = Object.keys(row.forecast).map(Number).sort((a, b) => a - b);
  const high = levels.length ? row.forecast[levels[Math.max(0, levels.length - 2)]] : null;
  const quiet = [row.server, row.mode === "shadow" ? "shadow" : null].filter(Boolean).join(" · ");
  return el("tr", {},
    el("td", {}, el("a", { href: pathOf(row) }, row.name), el("small", {}, `${row.namespace} · ${quiet}`)),
    el("td", {}, chip(row.state)),
    el("td", { class: "wide" }, sparkline(row.spark)),
    el("td", { class: "num" }, number(row.demand)),
    el("td", { class: "num wide" }, number(high)),
    el("td", { class: "num wide" }, number(row.backlog)),
    el("td", { class: "num" }, count(row.desired)),
    el("td", {}, pods(row)));
}

async function showFleet(status) {
  if (!document.getElementById("rows")) fleetFrame();
  const attention = (status.states.error ?? 0) + (status.states.held ?? 0);
  const total = status.replicas;
  document.getElementById("tiles").replaceChildren(...tiles([
    ["Workloads", count(status.workloads), status.modes.shadow ? `${count(status.modes.shadow)} in shadow mode` : ""],
    ["Need attention", count(attention), attention ? "held or without answer" : "all answered"],
    ["Short of capacity now", count(status.late), status.late ? "requests wait" : "none"],
    ["Replicas ready", count(total.ready), [["starting", total.starting], ["pending", total.pending]].filter(([, n]) => n).map(([name, n]) => `+${count(n)} ${name}`).join(" ")],
    ["Asked for by gpuscale", count(total.desired)],
  ]));
  const query = new URLSearchParams({ limit: PAGE_ROWS, offset: fleet.offset, q: fleet.q, state: fleet.state });
  const { body, fresh } = await ask(`/api/v1/workloads?${query}`);
  const rows = document.getElementById("rows");
  if (!rows || (!fresh && rows.childElementCount)) return;
  const focused = document.activeElement?.getAttribute?.("href");
  rows.replaceChildren(...body.items.map(fleetRow));
  if (!body.items.length) rows.append(el("tr", {}, el("td", { colspan: 8, class: "empty" }, emptiness(status))));
  if (focused) [...rows.querySelectorAll("a")].find((a) => a.getAttribute("href") === focused)?.focus();
  pager(body);
}

function emptiness(status) {
  if (fleet.q || fleet.state) return "No workload matches.";
  if (status.number === null) return `Nothing is decided yet: ${status.ready ?? "the first tick is on its way"}.`;
  return "No workload is declared: add one under workloads: in the settings file, or a ScaledObject whose trigger names gpuscale.";
}

function pager(body) {
  const last = Math.min(body.total, body.offset + body.items.length);
  const turn = (to, text, possible) => {
    const button = el("button", { type: "button", class: "quiet", on: { click: () => { fleet.offset = to; refresh(); } } }, text);
    button.disabled = !possible;
    return button;
  };
  document.getElementById("pager").replaceChildren(...(body.total > PAGE_ROWS ? [
    turn(Math.max(0, body.offset - PAGE_ROWS), "← previous", body.offset > 0),
    turn(body.offset + PAGE_ROWS, "next →", last < body.total),
    el("span", { class: "soft" }, `${count(body.offset + 1)}–${count(last)} of ${count(body.total)}`),
  ] : []));
}

// ---------------------------------------------------------------- one workload

function legend(items) {
  return el("ul", { class: "legend" }, items.map(([text, kind]) => el("li", { class: kind }, text)));
}

function workloadFrame(namespace, name) {
  forgetCharts();
  const part = (title, id, tag = "div", kind = "") => el("section", { class: "card", "aria-label": title }, el("h2", {}, title), el(tag, { id, class: kind || null }));
  main.replaceChildren(
    el("div", { class: "head" }, el("a", { class: "back", href: "#/" }, "← All workloads"),
      el("h1", {}, el("span", { class: "soft" }, `${namespace} / `), name), el("span", { id: "chips" })),
    el("div", { id: "problem" }),
    el("dl", { class: "tiles", id: "tiles" }),
    el("div", { class: "grid" },
      el("div", { class: "stack" },
        el("section", { class: "card", "aria-label": "Why" }, el("ul", { class: "says", id: "says" })),
        el("section", { class: "card", "aria-label": "Demand and what the replicas carry" },
          el("h2", {}, "Demand, requests/s"),
          legend([["demand", "demand"], ["forecast of its peak, 50–95 %, made one lead time before", "band fill"], ["what the ready replicas carry", "capacity dash"]]),
          el("div", { class: "chart tall", id: "demand-chart", role: "img" })),
        el("section", { class: "card", "aria-label": "Replicas" },
          el("h2", {}, "Replicas"),
          legend([["ready", "ready fill"], ["starting or pending", "starting fill"], ["asked for by gpuscale", "asked"]]),
          el("div", { class: "chart low", id: "replica-chart", role: "img" }))),
      el("div", { class: "stack" },
        part("What was known", "facts", "dl", "facts"),
        part("Guardrails", "guards"),
        part("Candidate plans, relative cost on recent demand", "costs", "div", "bars"),
        part("How it is scaled", "how", "dl", "facts"))));
  main.dataset.workload = `${namespace}/${name}`;
}

const facts = (id, pairs) => document.getElementById(id).replaceChildren(...pairs.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value ?? "–")]));

async function showWorkload(namespace, name) {
  const path = `/api/v1/workloads/${encodeURIComponent(namespace)}/${encodeURIComponent(name)}`;
  const { body, fresh } = await ask(path);
  if (main.dataset.workload !== `${namespace}/${name}` || !document.getElementById("says")) workloadFrame(namespace, name);
  else if (!fresh) return;
  const decision = body.decision, inputs = decision.inputs;
  document.title = `${name} · gpuscale`;
  document.getElementById("chips").replaceChildren(chip(body.state), " ", el("span", { class: "chip" }, body.mode === "shadow" ? "shadow: moves nothing" : "acts"));
  document.getElementById("problem").replaceChildren(...[body.problem, body.pending_reason, body.paused ? `Paused by ${body.paused}.` : null].filter(Boolean).map((text) => el("p", { class: "card says" }, text)));
  document.getElementById("tiles").replaceChildren(...tiles([
    ["Demand", number(body.demand), "requests/s"],
    ["Peak ahead, 95 %", number(body.forecast["0.95"]), "requests/s"],
    ["Asked for by gpuscale", count(body.desired), body.held ? "held" : "replicas"],
    ["Ready", count(body.ready), body.starting || body.pending ? `+${count((body.starting ?? 0) + (body.pending ?? 0))} on their way` : "replicas"],
    ["A replica takes", span(body.lead_s), sourced(decision.lead_source, decision.lead?.declared_s, span)],
  ]));
  document.getElementById("says").replaceChildren(...decision.sentences.map((s) => el("li", {}, s)));
  facts("facts", [
    ["Arriving", `${number(inputs.demand)} requests/s`], ["Waiting", number(inputs.backlog)],
    ["Age of the signal", span(inputs.age_s)], ["Pods that answered", coverage(body, inputs)],
    ["One replica carries", inputs.capacity === null ? "not known" : `${number(inputs.capacity)} ${decision.capacity?.unit ?? "requests"}/s (${sourced(decision.capacity_source, decision.capacity?.declared, number)})`],
    ["A start, in the median", stages(decision.lead?.stages ?? {})],
    ["Present replicas asked", count(inputs.asked)], ["Answered to KEDA", body.answer === null ? "an error" : count(body.answer)],
    ["Decided", clock(decision.now)],
  ]);
  guards(decision.verdicts ?? []);
  costs(decision.candidate_costs ?? {}, decision.candidate);
  facts("how", [
    ["Server", body.server], ["Policy", body.policy], ["Through", { keda: "KEDA", scale: "the scale subresource", none: "gRPC answers only" }[body.actuator]],
    ["Target", body.target], ["Replicas allowed", `${count(inputs.min_replicas)}–${count(inputs.max_replicas)}`],
    ["Risk", number(inputs.risk)], ["Headroom", percent(inputs.headroom)],
  ]);
  await drawWorkload(body, document.getElementById("demand-chart"), document.getElementById("replica-chart"));
}

// Where a number comes from, and what was declared instead where it is not that.
function sourced(source, declared, shown) {
  const differs = declared !== null && declared !== undefined && (source === "learned" || source === "observed");
  return differs ? `${source}; declared ${shown(declared)}` : source ?? "";
}

function stages(of) {
  const parts = Object.entries(of).filter(([, [median]]) => median >= 1).map(([name, [median]]) => `${name} ${span(median)}`);
  return parts.join(", ") || "not seen yet";
}

function coverage(body, inputs) {
  if (body.pods_answered === null) return "–";
  if (body.pods_expected === null) return `${count(body.pods_answered)} of an unknown number`;
  return `${count(body.pods_answered)} of ${count(body.pods_expected)}`;
}

function guards(verdicts) {
  const place = document.getElementById("guards");
  if (!verdicts.length) return place.replaceChildren(el("p", { class: "soft says" }, "None changed the plan."));
  place.replaceChildren(el("table", { class: "compact" },
    el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Guard"), el("th", { scope: "col", class: "num" }, "Change"), el("th", { scope: "col" }, "Why"))),
    el("tbody", {}, verdicts.map((v) => el("tr", {}, el("td", {}, v.guard), el("td", { class: "num" }, `${v.before} → ${v.after}`), el("td", {}, v.reason))))));
}

function costs(byName, used) {
  const place = document.getElementById("costs");
  const rows = Object.entries(byName).sort((a, b) => a[1] - b[1]);
  if (!rows.length) return place.replaceChildren(el("p", { class: "soft says" }, used ? `In use: ${used}. No costs to compare yet.` : "None yet."));
  const most = Math.max(...rows.map(([, cost]) => cost));
  place.replaceChildren(...rows.flatMap(([name, cost]) => {
    const kind = name === used ? "used" : null;
    return [el("span", { class: kind }, name), el("span", { class: "track", "aria-hidden": "true" }, el("i", { class: kind, width: `${(100 * cost) / most}%` })), el("span", { class: `num ${kind ?? ""}` }, cost.toFixed(2))];
  }));
}

// ---------------------------------------------------------------- what is wrong

function banner(lost, status) {
  const notices = [];
  if (lost) notices.push(el("p", { class: "notice bad" }, lost));
  if (status?.ready) notices.push(el("p", { class: "notice" }, `Not ready: ${status.ready}.`));
  if (status?.faults?.length) notices.push(el("div", { class: "notice" }, status.faults.length > 1 ? `${status.faults.length} things are wrong:` : null, el("ul", {}, status.faults.slice(0, 5).map((f) => el("li", {}, f)))));
  const said = notices.map((n) => n.textContent).join("\n");
  if (banners.dataset.said === said) return; // a screen reader hears it once
  banners.dataset.said = said;
  banners.replaceChildren(...notices);
}

// ---------------------------------------------------------------- the loop

let last = null, lostSince = null, running = 0;
async function refresh() {
  const mine = ++running;
  const route = location.hash.match(/^#\/w\/([^/]+)\/([^/]+)$/);
  try {
    const response = await fetch("/api/v1/status", { cache: "no-store", signal: AbortSignal.timeout(TIMEOUT_MS) });
    const status = await response.json();
    if (mine !== running) return; // a newer refresh took over
    if (last && last.instance !== status.instance) tags.clear(); // restarted: nothing kept holds
    last = status;
    lostSince = null;
    document.getElementById("version").textContent = `gpuscale ${status.version}`;
    pulse.dataset.state = "live";
    pulse.replaceChildren(status.number === null ? "no decision yet" : `tick ${count(status.number)}`, el("span", { class: "long" }, status.at === null ? "" : ` · ${clock(status.at)}`));
    banner(null, status);
    for (const link of document.querySelectorAll("#views a")) {
      if (link.hash === (location.hash || "#/")) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    if (route) await showWorkload(decodeURIComponent(route[1]), decodeURIComponent(route[2]));
    else if (VIEWS[location.hash]) {
      const [title, show] = VIEWS[location.hash];
      document.title = `${title} · gpuscale`;
      delete main.dataset.workload;
      await show(main, ask);
    }
    else { document.title = "gpuscale"; delete main.dataset.workload; await showFleet(status); }
  } catch (error) {
    if (mine !== running) return;
    if (error.answered) return lack(error.message);
    lostSince ??= new Date();
    pulse.dataset.state = "lost";
    pulse.textContent = "no connection";
    banner(`The controller does not answer since ${lostSince.toLocaleTimeString()}. What is shown is the last that it said.`, last);
  }
}

function lack(sentence) {
  forgetCharts();
  delete main.dataset.workload;
  main.replaceChildren(el("div", { class: "empty" }, el("h1", {}, "Nothing to show"), el("p", {}, `${sentence}.`), el("a", { href: "#/" }, "All workloads")));
}

let waiting;
async function poll() {
  clearTimeout(waiting);
  if (!document.hidden) await refresh();
  clearTimeout(waiting); // an event may have begun another round meanwhile
  waiting = setTimeout(poll, stream?.readyState === EventSource.OPEN && !lostSince ? CALM_MS : POLL_MS);
}

// Each tick is told as it ends. A stream that breaks is taken up again by the browser; one that is
// refused (too many pages, a proxy that knows no streams) leaves the polling.
let stream = null;
function listen() {
  stream?.close();
  stream = new EventSource("/api/v1/events");
  stream.addEventListener("tick", poll);
  stream.addEventListener("error", poll);
}

// ---------------------------------------------------------------- theme and keys

const dark = matchMedia("(prefers-color-scheme: dark)");
function theme() {
  let chosen = null;
  try { chosen = localStorage.getItem("theme"); } catch { /* storage is off: follow the system */ }
  document.documentElement.dataset.theme = chosen ?? (dark.matches ? "dark" : "light");
  recolorCharts();
}
document.getElementById("theme").addEventListener("click", () => {
  const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  try { localStorage.setItem("theme", next); } catch { /* kept for this visit only */ }
  document.documentElement.dataset.theme = next;
  recolorCharts();
});
dark.addEventListener("change", theme);
theme();

document.addEventListener("keydown", (event) => {
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement?.tagName ?? "");
  if (event.key === "/" && !typing) {
    const search = document.getElementById("search");
    if (search) { event.preventDefault(); search.focus(); }
  } else if (event.key === "Escape") {
    if (typing) document.activeElement.blur();
    else if (location.hash && location.hash !== "#/") location.hash = "#/";
  } else if (!typing && (event.key === "ArrowDown" || event.key === "ArrowUp")) {
    const links = [...document.querySelectorAll("#rows a")], at = links.indexOf(document.activeElement);
    const next = links[at + (event.key === "ArrowDown" ? 1 : -1)];
    if (at >= 0 && next) { event.preventDefault(); next.focus(); }
  }
});
window.addEventListener("hashchange", () => { main.replaceChildren(); delete main.dataset.workload; forgetCharts(); main.focus({ preventScroll: true }); window.scrollTo(0, 0); refresh(); });
document.addEventListener("visibilitychange", () => {
  if (document.hidden) { stream?.close(); return; } // nobody looks: nothing is to be told
  listen();
  poll();
});
listen();
poll();
