// The charts of one workload, drawn by plotly (served from the package, loaded when first needed).

let library = null;
function plotly() {
  library ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = "/static/plotly.min.js";
    script.onload = () => resolve(window.Plotly);
    script.onerror = () => { library = null; reject(new Error("no plotly")); };
    document.head.append(script);
  });
  return library;
}

let drawn = null; // [body, demand node, replica node] of the charts on the page

export function forgetCharts() {
  if (drawn && window.Plotly) for (const node of drawn.slice(1)) window.Plotly.purge(node);
  drawn = null;
}

export function recolorCharts() {
  if (drawn) drawWorkload(...drawn);
}

export async function drawWorkload(body, demandNode, replicaNode) {
  let Plotly;
  try { Plotly = await plotly(); } catch {
    for (const node of [demandNode, replicaNode]) node.textContent = "Charts need plotly: pip install 'gpuscale[controller]'.";
    return;
  }
  if (!demandNode.isConnected) return; // the view changed while the library loaded
  drawn = [body, demandNode, replicaNode];
  const style = getComputedStyle(document.documentElement);
  const color = (name) => style.getPropertyValue(`--${name}`).trim();
  const series = body.series, ahead = aheadOf(series);
  const at = series.at.map(stamp);
  const range = rangeOf(series, ahead);
  const now = series.at.length ? at[at.length - 1] : null;
  const options = { displayModeBar: false, responsive: true, doubleClick: "reset" };
  demandNode.setAttribute("aria-label", `Chart: demand ${said(series.demand)} requests/s, forecast to peak at up to ${said(series.forecast["0.95"])}, ready replicas carry ${said(series.capacity)}`);
  replicaNode.setAttribute("aria-label", `Chart: ${said(series.ready)} replicas ready, ${said(series.desired)} asked for`);
  const band = { x: ahead.at, hoverlabel: { namelength: -1 }, connectgaps: false };
  await Plotly.react(demandNode, [
    { ...band, y: ahead.low, name: "forecast 50 %", mode: "lines", line: { width: 0 }, hovertemplate: "%{y:.3~g}" },
    { ...band, y: ahead.high, name: "forecast 95 %", mode: "lines", fill: "tonexty", fillcolor: color("band"), line: { width: 1, color: color("band-line") }, hovertemplate: "%{y:.3~g}" },
    { x: at, y: series.capacity, name: "ready replicas carry", mode: "lines", line: { width: 1.6, dash: "dash", shape: "hv", color: color("capacity") }, hovertemplate: "%{y:.3~g}" },
    { x: at, y: series.demand, name: "demand", mode: "lines", line: { width: 2, color: color("demand") }, hovertemplate: "%{y:.3~g}" },
  ], layout(color, range, now, topOf(series.demand, ahead.high, series.capacity)), options);
  const coming = series.starting.map((n, i) => (n === null ? null : n + (series.pending[i] ?? 0)));
  await Plotly.react(replicaNode, [
    { x: at, y: series.ready, name: "ready", mode: "lines", stackgroup: "pods", line: { width: 1, shape: "hv", color: color("ready") }, fillcolor: faint(color("ready")), hovertemplate: "%{y}" },
    { x: at, y: coming, name: "starting or pending", mode: "lines", stackgroup: "pods", line: { width: 1, shape: "hv", color: color("starting") }, fillcolor: faint(color("starting")), hovertemplate: "%{y}" },
    { x: at, y: series.desired, name: "asked for", mode: "lines", line: { width: 2, shape: "hv", color: color("asked") }, hovertemplate: "%{y}" },
  ], layout(color, range, now, topOf(series.desired, series.ready.map((n, i) => (n === null ? null : n + (coming[i] ?? 0))))), options);
}

// A forecast made at t says how high demand peaks until t + lead: it is drawn where it comes due.
function aheadOf(series) {
  const points = series.at.map((t, i) => [t + (series.lead_s[i] ?? 0), series.forecast["0.5"][i], series.forecast["0.95"][i]]).sort((a, b) => a[0] - b[0]);
  return { last: points.length ? points[points.length - 1][0] : null, at: points.map((p) => stamp(p[0])), low: points.map((p) => p[1]), high: points.map((p) => p[2]) };
}

function rangeOf(series, ahead) {
  if (!series.at.length) return undefined;
  const first = series.at[0], last = Math.max(ahead.last ?? 0, series.at[series.at.length - 1]);
  return [stamp(first), stamp(Math.max(last, first + 60))];
}

// One spike of a forecast must not flatten everything else: the axis goes to 1.6 times what was real.
function topOf(...columns) {
  const real = Math.max(0, ...[columns[0], columns[columns.length - 1]].flat().filter((v) => v !== null));
  const all = Math.max(0, ...columns.flat().filter((v) => v !== null));
  return Math.max(1e-6, Math.min(all, real * 1.6 || all)) * 1.08;
}

const stamp = (seconds) => new Date(seconds * 1000).toISOString();
const said = (values) => { const v = values[values.length - 1]; return v === null || v === undefined ? "unknown" : v.toPrecision(3); };

function faint(hex) {
  const n = parseInt(hex.slice(1), 16);
  return `rgba(${n >> 16}, ${(n >> 8) & 255}, ${n & 255}, 0.38)`;
}

function layout(color, range, now, top) {
  const axis = { gridcolor: color("line"), zerolinecolor: color("line"), linecolor: color("line"), tickfont: { size: 12 }, automargin: true };
  return {
    autosize: true, showlegend: false, uirevision: "kept", hovermode: "x unified",
    margin: { l: 44, r: 10, t: 8, b: 30 },
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: color("soft"), family: "system-ui, sans-serif", size: 12 },
    hoverlabel: { bgcolor: color("card"), bordercolor: color("line"), font: { color: color("text") } },
    xaxis: { ...axis, type: "date", range, hoverformat: "%H:%M:%S UTC", showgrid: false },
    yaxis: { ...axis, range: [0, top], fixedrange: true },
    shapes: now ? [{ type: "line", x0: now, x1: now, yref: "paper", y0: 0, y1: 1, line: { color: color("soft"), width: 1, dash: "dot" } }] : [],
  };
}
