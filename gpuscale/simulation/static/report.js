// The report of a backtest: everything is in the page; it asks nobody for anything.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const $ = (id) => document.getElementById(id);
  const root = document.documentElement;
  const narrow = () => window.innerWidth < 640;
  let run = 0, shaded = null, decision = 0;
  const hidden = new Set();

  const node = (tag, text, kind) => { const n = document.createElement(tag); if (text !== undefined) n.textContent = text; if (kind) n.className = kind; return n; };
  const color = (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim();
  const family = (policy) => policy.split("@")[0];
  const ours = (policy) => family(policy) === "gpuscale";
  const families = [...new Set(data.runs.flatMap((r) => [...r.policies, ...r.curve]).map((p) => family(p.policy)))];
  const paint = (policy) => color(`p${Math.max(0, ["gpuscale", "keda-rate", "hpa-util", "knative", "static-peak", "oracle"].indexOf(family(policy)))}`);
  const fixed = (value, digits) => value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  const percent = (ratio) => `${fixed(100 * ratio, 2)} %`;
  const money = (hours) => fixed(hours * data.gpus * data.price, hours * data.gpus * data.price < 100 ? 2 : 0);
  const span = (s) => (s < 120 ? `${s} s` : s < 7200 ? `${+(s / 60).toFixed(1)} minutes` : s < 172800 ? `${+(s / 3600).toFixed(1)} hours` : `${+(s / 86400).toFixed(1)} days`);

  // A trace that begins in 1970 has seconds of its own: they are told as days from its beginning.
  const dated = (r) => r.start_s > 1e8;
  const when = (s) => new Date(s * 1000).toISOString();
  const said = (r, s) => { const iso = when(s); return dated(r) ? `${iso.slice(0, 10)} ${iso.slice(11, 19)} UTC` : `day ${Math.floor(s / 86400) + 1}, ${iso.slice(11, 19)}`; };

  // Explanations are stored as sentences with their numbers taken out: "3 12.4 0.95|5 6".
  const sentences = (packed) => packed.split("|").map((part) => {
    const [which, ...numbers] = part.split(" ");
    return data.sentences[which].map((piece, i) => piece + (numbers[i] ?? "")).join("");
  });

  function title(r) { return `${r.trace}, cold start ${span(r.cold_start_s)}`; }

  function verdict(r) {
    const own = r.policies.find((p) => ours(p.policy));
    const peers = r.policies.filter((p) => !ours(p.policy) && family(p.policy) !== "oracle");
    const best = peers.reduce((a, b) => (a === null || b.cost_j < a.cost_j ? b : a), null);
    if (!own || !best) { $("verdict").textContent = title(r); return; }
    const share = own.replica_hours / best.replica_hours - 1;
    const less = `${fixed(Math.abs(100 * share), 1)} % ${share <= 0 ? "fewer" : "more"} GPU-hours`;
    const cash = data.price === null ? "" : ` (${money(Math.abs(own.replica_hours - best.replica_hours))} ${share <= 0 ? "saved" : "more"} in ${span(r.to_s - r.from_s)})`;
    $("verdict").textContent = `${title(r)}: gpuscale takes ${less}${cash} than ${best.policy}, the best of the others, with ${percent(own.late_ratio)} of the requests late instead of ${percent(best.late_ratio)}.`;
  }

  function fill(table, heads, rows) {
    const head = table.tHead, body = table.tBodies[0];
    head.replaceChildren(node("tr")); body.replaceChildren();
    heads.forEach(([text, num]) => head.rows[0].append(node("th", text, num ? "num" : "")));
    for (const { cells, kind, dot, index } of rows) {
      const tr = node("tr", undefined, kind);
      cells.forEach((text, i) => {
        const cell = node("td", Array.isArray(text) ? text[0] : text, `${heads[i][1] ? "num" : ""} ${Array.isArray(text) ? text[1] : ""}`.trim());
        if (i === 0 && dot) { const d = node("span", undefined, "dot"); d.style.background = dot; cell.prepend(d); }
        tr.append(cell);
      });
      if (index !== undefined) { tr.dataset.run = index; tr.onclick = () => show(index); }
      body.append(tr);
    }
  }

  function overview() {
    if (data.runs.length < 2) return;
    $("overview").hidden = false;
    const names = [...new Set(data.runs.flatMap((r) => r.policies.map((p) => p.policy)))];
    fill($("overview").querySelector("table"), [["run"], ...names.map((n) => [n, true])], data.runs.map((r, index) => {
      const by = new Map(r.policies.map((p) => [p.policy, p.cost_j]));
      const least = Math.min(...r.policies.filter((p) => family(p.policy) !== "oracle").map((p) => p.cost_j));
      return { index, kind: index === run ? "here" : "", cells: [title(r), ...names.map((n) => { const j = by.get(n); return j === undefined ? "" : [fixed(j, 3), j === least ? "best" : ""]; })] };
    }));
  }

  function costs(r) {
    const ranked = [...r.policies].sort((a, b) => a.cost_j - b.cost_j);
    const best = ranked.find((p) => family(p.policy) !== "oracle");
    const heads = [["policy"], ["GPU-hours", true], ...(data.price === null ? [] : [["money", true]]), ["vs. oracle", true], ["late", true], ["J", true], ["events/day", true], ["peak replicas", true]];
    fill($("costs"), heads, ranked.map((p) => ({
      kind: p === best ? "best" : family(p.policy) === "oracle" ? "yardstick" : "", dot: paint(p.policy),
      cells: [p.policy, fixed(p.replica_hours * data.gpus, 1), ...(data.price === null ? [] : [money(p.replica_hours)]), fixed(p.relative_to_oracle, 3), percent(p.late_ratio), fixed(p.cost_j, 3), fixed(p.scale_events_per_day, 0), String(p.peak_replicas)],
    })));
    $("costs-note").textContent = `${span(r.to_s - r.from_s)} from ${said(r, r.from_s)}; a replica serves ${+r.capacity_per_replica.toPrecision(4)} units/s${data.gpus === 1 ? "" : ` on ${data.gpus} GPUs`}. J = replica-hours / oracle's + 10 × late share; oracle knows all demand beforehand and has the same cold start.`;
  }

  const x = (r) => { const c = cache(r); return c.x; };
  const cached = new WeakMap();
  function cache(r) {
    if (!cached.has(r)) cached.set(r, { x: r.demand.map((_, i) => when(r.start_s + i * r.bin_s)), at: r.explained.map((e) => e[0]) });
    return cached.get(r);
  }

  function axis() {
    return { gridcolor: color("line"), zerolinecolor: color("line"), linecolor: color("line"), tickfont: { size: 12 }, automargin: true };
  }
  function base() {
    return {
      autosize: true, showlegend: false, margin: { l: narrow() ? 40 : 56, r: 12, t: 8, b: 36 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: color("soft"), family: "system-ui, sans-serif", size: 12 },
      hoverlabel: { bgcolor: color("card"), bordercolor: color("line"), font: { color: color("text") }, namelength: -1 },
    };
  }
  const options = { displayModeBar: false, responsive: true };

  function legend(r) {
    const fixedParts = [["demand", "demand"], ...(r.forecast ? [["band-line", "forecast of the peak within the cold start"]] : [])].map(([name, text]) => {
      const part = node("span", text, "part"), dot = node("span", undefined, "dot");
      dot.style.background = color(name);
      part.prepend(dot);
      return part;
    });
    $("legend").replaceChildren(...fixedParts, ...Object.keys(r.lines).map((policy) => {
      const button = node("button", policy), dot = node("span", undefined, "dot");
      dot.style.background = paint(policy);
      button.type = "button"; button.prepend(dot);
      button.setAttribute("aria-pressed", String(!hidden.has(policy)));
      button.onclick = () => { hidden.has(policy) ? hidden.delete(policy) : hidden.add(policy); legend(r); time(r); };
      return button;
    }));
  }

  function time(r) {
    const at = x(r), line = { x: at, mode: "lines", connectgaps: false };
    const traces = [];
    if (r.forecast) {
      traces.push(
        { ...line, y: r.forecast.low, name: `peak ahead, ${r.forecast.levels[0]}`, line: { width: 0 }, hoverinfo: "skip" },
        { ...line, y: r.forecast.high, name: `peak within the cold start, ${percent(+r.forecast.levels[1]).replace(".00", "")} sure`, fill: "tonexty", fillcolor: color("band"), line: { width: 1, color: color("band-line") }, hovertemplate: "%{y:.4~g}" });
    }
    traces.push({ ...line, y: r.demand, name: "demand", line: { width: 1.8, color: color("demand") }, hovertemplate: "%{y:.4~g}" });
    const own = r.lines[shaded];
    if (own) {
      traces.push({ ...line, y: own.late.map((v) => (v > 0.001 ? 1 : null)), yaxis: "y3", name: "late", mode: "lines", line: { width: 0, shape: "hv" }, fill: "tozeroy", fillcolor: color("late"), hoverinfo: "skip", type: "bar", width: r.bin_s * 1000, offset: 0, marker: { color: color("late"), line: { width: 0 } } });
      traces.push({ ...line, y: own.busy, yaxis: "y2", name: "work", line: { width: 0, shape: "hv" }, hoverinfo: "skip" });
      traces.push({ ...line, y: own.ready, yaxis: "y2", name: `${shaded} ready`, line: { width: 1, shape: "hv", dash: "dot", color: paint(shaded) }, fill: "tonexty", fillcolor: color("idle"), hovertemplate: "%{y:.1f}" });
    }
    for (const [policy, lines] of Object.entries(r.lines)) {
      if (hidden.has(policy)) continue;
      traces.push({ ...line, y: lines.asked, yaxis: "y2", name: policy, line: { width: policy === shaded ? 2.2 : 1.3, shape: "hv", color: paint(policy) }, hovertemplate: "%{y:.0f}" });
    }
    const top = Math.max(1, ...Object.entries(r.lines).filter(([p]) => !hidden.has(p) || p === shaded).flatMap(([, l]) => [Math.max(...l.asked)]));
    const real = Math.max(...r.demand.filter((v) => v !== null), 0);
    const ahead = r.forecast ? Math.max(...r.forecast.high.filter((v) => v !== null), 0) : 0;
    const layout = {
      ...base(), hovermode: "x unified", hoversubplots: "axis", bargap: 0,
      grid: { rows: 2, columns: 1, subplots: [["xy"], ["xy2"]], roworder: "top to bottom" },
      xaxis: { ...axis(), type: "date", anchor: "y2", domain: [0, 1], showgrid: false, spikecolor: color("soft"), spikethickness: 1, spikedash: "dot", tickformat: dated(r) ? undefined : "day %-j\n%H:%M", hoverformat: dated(r) ? "%Y-%m-%d %H:%M:%S UTC" : "day %-j, %H:%M:%S" },
      yaxis: { ...axis(), domain: [0.53, 1], fixedrange: true, rangemode: "tozero", range: [0, Math.max(1e-9, Math.min(Math.max(real, ahead), 1.6 * real)) * 1.05], title: narrow() ? undefined : { text: "units/s" } },
      yaxis2: { ...axis(), domain: [0, 0.47], fixedrange: true, range: [0, top * 1.08], title: narrow() ? undefined : { text: "replicas asked for" } },
      yaxis3: { overlaying: "y2", range: [0, 1], visible: false, fixedrange: true },
      uirevision: `run ${run}`, shapes: [cursor(r)].filter(Boolean),
    };
    const chart = $("time");
    chart.setAttribute("aria-label", `Chart of ${title(r)}: demand, forecast, and replicas asked for by ${Object.keys(r.lines).join(", ")}`);
    Plotly.react(chart, traces, layout, options);
    if (!chart.dataset.hears) {
      chart.dataset.hears = "yes";
      chart.on("plotly_hover", (event) => {
        const seconds = Date.parse(`${event.points[0].x}`.replace(" ", "T").replace(/Z?$/, "Z")) / 1000;
        explainAt(data.runs[run], seconds + data.runs[run].bin_s / 2, false);
      });
      chart.on("plotly_unhover", () => mark(data.runs[run]));
    }
  }

  function cursor(r) {
    const found = r.explained[decision];
    return found && { type: "line", xref: "x", yref: "paper", x0: when(found[0]), x1: when(found[0]), y0: 0, y1: 1, line: { color: color("soft"), width: 1, dash: "dot" } };
  }
  const mark = (r) => { const line = cursor(r); if (line) Plotly.relayout($("time"), { shapes: [line] }); };

  // The last decision at or before a time.
  function explainAt(r, seconds, moved) {
    const at = cache(r).at;
    let low = 0, high = at.length;
    while (low < high) { const middle = (low + high) >> 1; at[middle] <= seconds ? (low = middle + 1) : (high = middle); }
    explain(r, Math.max(0, low - 1), moved);
  }

  function explain(r, index, moved) {
    decision = index;
    const found = r.explained[index];
    $("at").max = Math.max(0, r.explained.length - 1);
    $("at").value = index;
    if (!found) { $("why-at").textContent = "gpuscale was not among the policies, so there is no decision to explain."; $("why").replaceChildren(); $("at").disabled = true; return; }
    $("at").disabled = false;
    $("why-at").textContent = said(r, found[0]);
    $("at").setAttribute("aria-valuetext", said(r, found[0]));
    $("why").replaceChildren(...sentences(found[1]).map((s) => node("li", s)));
    if (moved) mark(r);
  }

  function curve(r) {
    const all = [...r.policies, ...r.curve].filter((p, i, list) => list.findIndex((q) => q.policy === p.policy) === i);
    if (!r.curve.length) { $("risks").hidden = true; return; }
    const label = (p) => { const target = p.policy.split("@")[1] ?? data.targets[p.policy]; return target === undefined || family(p.policy) === "oracle" ? "" : String(+(+target).toFixed(2)); };
    const target = (p) => +(p.policy.split("@")[1] ?? data.targets[p.policy] ?? 0);
    const traces = families.filter((f) => f !== "static-peak").map((f) => {
      const points = all.filter((p) => family(p.policy) === f).sort((a, b) => target(a) - target(b));
      return {
        x: points.map((p) => 100 * p.late_ratio), y: points.map((p) => p.replica_hours * data.gpus), text: points.map(label), name: f,
        mode: narrow() ? "lines+markers" : "lines+markers+text", textposition: f === "gpuscale" ? "bottom center" : "top center", textfont: { size: 11, color: paint(f) },
        line: { color: paint(f), width: f === "gpuscale" ? 2.4 : 1.3 }, marker: { size: f === "gpuscale" ? 9 : 6, symbol: f === "oracle" ? "diamond" : "circle", color: paint(f) },
        customdata: points.map((p) => [p.policy, fixed(p.cost_j, 3), data.price === null ? "" : `<br>money ${money(p.replica_hours)}`]),
        hovertemplate: "<b>%{customdata[0]}</b><br>%{y:,.1f} GPU-hours<br>%{x:.2f} % late<br>J %{customdata[1]}%{customdata[2]}<extra></extra>",
      };
    });
    // The first view holds all of gpuscale and the best of each peer; what is far off is reached by zooming out.
    const near = families.filter((f) => f !== "static-peak").flatMap((f) => { const own = all.filter((p) => family(p.policy) === f); return f === "gpuscale" ? own : [own.reduce((a, b) => (b.cost_j < a.cost_j ? b : a))]; });
    const late = Math.max(...near.map((p) => 100 * p.late_ratio)), hours = near.map((p) => p.replica_hours * data.gpus);
    const low = Math.min(...hours), high = Math.max(...hours), room = (high - low) * 0.18 || high * 0.05;
    $("curve").setAttribute("aria-label", `Chart of ${title(r)}: GPU-hours against the share of late requests, by policy and target`);
    Plotly.react($("curve"), traces, {
      ...base(), hovermode: "closest", showlegend: true, legend: { orientation: "h", y: -0.22, x: 0, font: { size: 12, color: color("text") } }, margin: { l: narrow() ? 44 : 64, r: 16, t: 8, b: 44 },
      xaxis: { ...axis(), title: { text: "late requests, %" }, range: [-0.07 * late - 0.01, late * 1.3 + 0.05], zeroline: false },
      yaxis: { ...axis(), title: narrow() ? undefined : { text: "GPU-hours" }, range: [low - room, high + 1.5 * room], tickformat: ",.4~g" },
      uirevision: `run ${run}`,
    }, options);
  }

  function show(index) {
    run = index;
    const r = data.runs[run], names = Object.keys(r.lines);
    $("run").value = String(run);
    if (!names.includes(shaded)) shaded = names.find(ours) ?? names[0];
    $("shade").replaceChildren(...names.map((n) => { const o = node("option", n); o.value = n; o.selected = n === shaded; return o; }));
    decision = Math.min(decision, Math.max(0, r.explained.length - 1));
    verdict(r); overview(); costs(r); legend(r); explain(r, decision, false); time(r); curve(r);
  }

  function theme(name) {
    root.dataset.theme = name;
    $("theme").textContent = name === "dark" ? "light" : "dark";
    $("theme").setAttribute("aria-label", `Switch to the ${$("theme").textContent} theme`);
  }

  data.runs.forEach((r, i) => { const o = node("option", title(r)); o.value = i; $("run").append(o); });
  $("run").closest("label").hidden = data.runs.length < 2;
  $("run").onchange = (event) => show(+event.target.value);
  $("shade").onchange = (event) => { shaded = event.target.value; time(data.runs[run]); };
  $("at").oninput = (event) => explain(data.runs[run], +event.target.value, true);
  $("theme").onclick = () => { theme(root.dataset.theme === "dark" ? "light" : "dark"); show(run); };
  $("made").textContent = data.source;
  $("foot").textContent = `gpuscale ${data.version}. Simulated on recorded demand: replicas start after one cold start and are billed from the ask; a request that waits more than 5 s is late.`;
  // What matters first: gpuscale beside its closest peer; the others are one click away.
  const first = data.runs[0];
  const rivals = first.policies.filter((p) => !ours(p.policy) && family(p.policy) !== "oracle").sort((a, b) => a.cost_j - b.cost_j);
  Object.keys(first.lines).filter((p) => !ours(p) && p !== rivals[0]?.policy).forEach((p) => hidden.add(p));
  theme(window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  show(0);
})();
