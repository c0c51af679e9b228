// What needs a person: pods that may use GPUs which nobody gave them (the audit), and declarations
// that cannot be used. What a pod or a manifest says is written as text.

import { clock, count, el, span, tiles } from "/static/dom.js";

const TONES = { error: "bad", warning: "warn", info: "calm" };

function frame(main) {
  main.replaceChildren(
    el("dl", { class: "tiles", id: "finding-tiles" }),
    el("div", { class: "tools" }, el("h1", {}, "Pods beside the GPU requests")),
    el("div", { id: "audit", class: "stack" }),
    el("div", { class: "tools section" }, el("h1", {}, "Declarations that cannot be used")),
    el("div", { id: "refusals", class: "stack" }));
}

export async function showFindings(main, ask) {
  if (!document.getElementById("audit")) frame(main);
  const [audit, refusals] = await Promise.all([ask("/api/v1/audit"), ask("/api/v1/refusals")]);
  const place = document.getElementById("audit");
  if (!place) return; // the view changed meanwhile
  const { body } = audit, refused = refusals.body;
  const severe = body.findings.filter((f) => TONES[f.severity] === "bad").length;
  document.getElementById("finding-tiles").replaceChildren(...tiles([
    ["Pods looked at", count(body.pods), body.at === null ? "" : clock(body.at)],
    ["Findings", count(body.at === null ? null : body.findings.length), severe ? `${count(severe)} of them errors` : ""],
    ["Refused declarations", count(refused.total)],
  ]));
  keep(place, body.findings.map(finding), body.reason ? `No audit: ${body.reason}.` : body.at === null ? "The first look is on its way." : "No pod reaches a GPU beside its requests.");
  keep(document.getElementById("refusals"), refused.items.map((r) => el("article", { class: "card" }, el("h2", {}, r.workload), el("p", {}, r.reason))), "None: every ScaledObject that names gpuscale, and every workload of the settings, can be used.");
}

// What has not changed stays, so that a selection or an opened detail is not torn away.
function keep(place, nodes, none) {
  const fresh = nodes.length ? nodes : [el("p", { class: "card soft says" }, none)];
  const text = fresh.map((node) => node.textContent).join("\n");
  if (place.dataset.text === text) return;
  place.dataset.text = text;
  place.replaceChildren(...fresh);
}

function finding(f) {
  const facts = [
    ["Pods", f.pods === 1 ? f.pod : `${count(f.pods)}, such as ${f.pod}`], ["Node", f.node || "not scheduled"],
    ["Container", f.container || "–"], ["Where", f.path || "–"],
    ["Seen for", span(f.last_seen - f.first_seen)],
  ];
  return el("article", { class: "card" },
    el("h2", {}, el("span", { class: "chip", "data-tone": TONES[f.severity] ?? "calm" }, f.severity), ` ${f.rule} · ${f.namespace}/${f.owner} (${f.owner_kind})`),
    el("p", {}, f.evidence),
    el("p", { class: "soft" }, f.why),
    el("p", {}, el("b", {}, "Cure: "), f.cure),
    el("details", {}, el("summary", {}, "Details"), el("dl", { class: "facts" }, facts.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]))));
}
