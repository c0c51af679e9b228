// What the doctor finds: what is installed and misconfigured, each with its cure. The doctor visits
// when somebody asks, which can take seconds: what it said before stays until it says more.

import { clock, count, el, tiles } from "/static/dom.js";

const STATES = { error: ["wrong", "bad"], warning: ["warning", "warn"], info: ["note", "calm"], unknown: ["could not look", "calm"], ok: ["as it should be", "good"] };

function frame(main) {
  main.replaceChildren(
    el("dl", { class: "tiles", id: "doctor-tiles" }),
    el("div", { class: "tools" }, el("h1", {}, "Doctor")),
    el("div", { class: "stack", id: "doctor" }, el("p", { class: "card soft" }, "The doctor is looking…")));
}

let visit = null; // one at a time, however often the page is refreshed meanwhile
export async function showDoctor(main, ask) {
  if (!document.getElementById("doctor")) frame(main);
  visit ??= ask("/api/v1/doctor").finally(() => { visit = null; });
  const { body } = await visit;
  const place = document.getElementById("doctor");
  if (!place) return; // the view changed meanwhile
  const of = (status) => body.results.filter((r) => r.status === status).length;
  document.getElementById("doctor-tiles").replaceChildren(...tiles([
    ["Wrong", count(of("error"))], ["Warnings", count(of("warning"))], ["Could not look", count(of("unknown"))],
    ["As it should be", count(of("ok")), body.at ? `seen ${clock(body.at)}` : ""],
  ]));
  const text = JSON.stringify(body.results);
  if (place.dataset.text === text) return;
  place.dataset.text = text;
  const sound = body.results.filter((r) => r.status === "ok"), rest = body.results.filter((r) => r.status !== "ok");
  place.replaceChildren(
    ...rest.map((r) => {
      const [word, tone] = STATES[r.status] ?? [r.status, "calm"];
      return el("article", { class: "card" },
        el("h2", {}, el("span", { class: "chip", "data-tone": tone }, word), ` ${r.check}`),
        el("p", {}, r.sentence), r.cure ? el("p", {}, el("b", {}, "Cure: "), r.cure) : null);
    }),
    sound.length ? el("details", { class: "card" }, el("summary", {}, `${count(sound.length)} as they should be`), el("ul", {}, sound.map((r) => el("li", {}, `${r.check}: ${r.sentence}`)))) : "");
}
