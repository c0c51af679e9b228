// The map of GPUs: a card per node, a cell per GPU, colored and lettered by what it does. A cell is a
// button: pressed, it says below its node who holds the GPU and what it measures.

import { bytes, clock, count, el, number, percent, tiles } from "/static/dom.js";

const NODES = 100;

// state -> [what it is called, what it means, the mark in its cell beside the color]
export const GPU_STATES = {
  sick: ["sick", "lost, not answering, or to be replaced", "!"],
  bypassed: ["bypassed", "worked on by somebody whom no allocation explains", "×"],
  busy: ["busy", "allocated and working", ""],
  idle: ["idle", "allocated, and does nothing", "z"],
  held: ["held", "allocated; its use is not measured", "·"],
  fragmented: ["fragmented", "partly allocated and idle: the rest is free in slices only", "÷"],
  free: ["free", "allocated to nobody", ""],
  unknown: ["unknown", "who holds it is not known", "?"],
};

let offset = 0, chosen = null; // the uuid of the GPU whose details are open

function frame(main) {
  main.replaceChildren(
    el("dl", { class: "tiles", id: "gpu-tiles" }),
    el("div", { class: "tools" }, el("h1", {}, "GPUs by node"), el("ul", { class: "states", id: "gpu-legend", "aria-label": "States" })),
    el("div", { id: "gpu-problems" }),
    el("div", { class: "nodes", id: "nodes" }),
    el("div", { class: "tools", id: "gpu-pager" }));
}

export async function showGpus(main, ask) {
  if (!document.getElementById("nodes")) { offset = 0; frame(main); }
  const { body } = await ask(`/api/v1/gpus?${new URLSearchParams({ limit: NODES, offset })}`);
  const nodes = document.getElementById("nodes");
  if (!nodes) return; // the view changed meanwhile
  const states = body.states, of = (name) => states[name] ?? 0;
  document.getElementById("gpu-tiles").replaceChildren(...tiles([
    ["GPUs", count(body.gpus), `on ${count(body.total)} nodes`],
    ["Busy", count(of("busy")), body.gpus ? percent(of("busy") / body.gpus) : ""],
    ["Allocated and idle", count(of("idle") + of("fragmented"))],
    ["Free", count(of("free")), of("free") ? `at most ${count(body.largest_free_block)} on one node` : ""],
    ["Need attention", count(of("sick") + of("bypassed")), of("sick") || of("bypassed") ? `${count(of("sick"))} sick, ${count(of("bypassed"))} bypassed` : "none"],
  ]));
  document.getElementById("gpu-legend").replaceChildren(...Object.entries(GPU_STATES).filter(([name]) => states[name]).map(([name, [text, meaning, mark]]) =>
    el("li", { title: meaning }, el("span", { class: "cell small", "data-state": name, "aria-hidden": "true" }, mark), `${text} ${count(states[name])}`)));
  document.getElementById("gpu-problems").replaceChildren(...body.problems.map((text) => el("p", { class: "card says" }, text)));
  const focused = document.activeElement?.dataset?.uuid;
  nodes.replaceChildren(...body.items.map((node) => card(node)));
  if (!body.items.length && !body.problems.length) nodes.append(el("p", { class: "empty" }, body.configured
    ? "No exporter was found."
    : "No exporter is named: set exporters.urls in the controller's settings to the address of the exporters' headless Service (the chart does)."));
  if (focused) nodes.querySelector(`[data-uuid="${CSS.escape(focused)}"]`)?.focus();
  pager(body, main, ask);
}

function card(node) {
  const details = el("div", { class: "details", "aria-live": "polite" });
  const cells = node.gpus.map((gpu) => {
    const cell = el("button", { type: "button", class: "cell", "data-state": gpu.state, "data-uuid": gpu.uuid, "aria-label": said(gpu), "aria-pressed": String(chosen === gpu.uuid), title: said(gpu) },
      el("span", { class: "index", "aria-hidden": "true" }, String(gpu.gpu)),
      el("b", { "aria-hidden": "true" }, GPU_STATES[gpu.state]?.[2] || (gpu.utilization === null || gpu.state === "free" ? "" : `${Math.round(gpu.utilization * 100)}`)));
    cell.addEventListener("click", () => {
      chosen = chosen === gpu.uuid ? null : gpu.uuid;
      for (const other of document.querySelectorAll("#nodes .cell")) other.setAttribute("aria-pressed", String(other.dataset.uuid === chosen));
      for (const other of document.querySelectorAll("#nodes .details")) other.replaceChildren();
      if (chosen) details.replaceChildren(...about(gpu));
    });
    if (chosen === gpu.uuid) details.replaceChildren(...about(gpu));
    return cell;
  });
  const product = [...new Set(node.gpus.map((gpu) => gpu.product))].join(", ");
  return el("section", { class: "card node", "aria-label": node.node },
    el("h2", {}, node.node, el("small", { class: "soft" }, product ? ` ${product}` : "")),
    node.problem ? el("p", { class: "problem says" }, node.problem) : null,
    node.gpus.length ? el("div", { class: "cells" }, cells) : node.problem ? null : el("p", { class: "soft" }, "It has no NVIDIA GPU."),
    details);
}

function said(gpu) {
  const holders = gpu.holders.map((h) => `${h.namespace}/${h.pod}`).join(", ");
  const use = gpu.utilization === null ? null : `kernels run ${percent(gpu.utilization)} of the time`;
  return [`GPU ${gpu.gpu}: ${GPU_STATES[gpu.state]?.[0] ?? gpu.state}`, use, holders ? `held by ${holders}` : null].filter(Boolean).join(", ");
}

function about(gpu) {
  const memory = gpu.memory_used_bytes === null ? "–" : `${bytes(gpu.memory_used_bytes)} of ${bytes(gpu.memory_total_bytes)}`;
  const facts = [
    ["State", `${GPU_STATES[gpu.state]?.[0] ?? gpu.state}: ${gpu.why ?? GPU_STATES[gpu.state]?.[1] ?? ""}`],
    ["Utilization", percent(gpu.utilization)], ["Memory used", memory],
    ["Power", gpu.power_watts === null ? "–" : `${number(gpu.power_watts)} W`],
    ["Temperature", gpu.temperature_celsius === null ? "–" : `${number(gpu.temperature_celsius)} °C`],
    ["Allocated", percent(gpu.allocated)],
    ...(gpu.instances.length ? [["MIG instances", gpu.instances.join(", ")]] : []),
    ["Held by", gpu.holders.length ? gpu.holders.map((h) => `${h.namespace}/${h.pod} (${[h.container, h.instance].filter(Boolean).join(", ")})`).join(", ") : gpu.allocated === null ? "not known" : "nobody"],
    ["UUID", gpu.uuid],
  ];
  return [el("h3", {}, `GPU ${gpu.gpu}`), el("dl", { class: "facts" }, facts.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]))];
}

function pager(body, main, ask) {
  const turn = (to, text, possible) => {
    const button = el("button", { type: "button", class: "quiet" }, text);
    button.disabled = !possible;
    button.addEventListener("click", () => { offset = to; showGpus(main, ask); });
    return button;
  };
  const last = Math.min(body.total, body.offset + body.items.length);
  document.getElementById("gpu-pager").replaceChildren(...(body.total > NODES ? [
    turn(Math.max(0, offset - NODES), "← previous", offset > 0), turn(offset + NODES, "next →", last < body.total),
    el("span", { class: "soft" }, `nodes ${count(body.offset + 1)}–${count(last)} of ${count(body.total)}`),
  ] : []), el("span", { class: "soft" }, oldest(body)));
}

function oldest(body) {
  const times = body.items.map((node) => node.at).filter((at) => at !== null);
  return times.length ? `read ${clock(Math.min(...times))}` : "";
}
