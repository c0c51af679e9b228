// Elements and numbers, as every view of the page builds and writes them. Strings become text nodes, never markup.

/** An element; strings among `inside` become text nodes. Attributes of null are left out. */
export function el(tag, attributes = {}, ...inside) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined) continue;
    if (name === "on") for (const [event, then] of Object.entries(value)) node.addEventListener(event, then);
    else if (name === "width") node.style.width = value;
    else node.setAttribute(name, value);
  }
  node.append(...inside.flat().filter((x) => x !== null && x !== undefined));
  return node;
}

const SVG = "http://www.w3.org/2000/svg";
export function sparkline(values) {
  const known = values.filter((v) => v !== null);
  if (known.length < 2) return el("span", { class: "soft" }, "–");
  const top = Math.max(...known, 1e-9), step = 100 / Math.max(1, values.length - 1);
  const pieces = []; // runs of known values: a hole in the data is a hole in the line
  values.forEach((v, i) => {
    if (v === null) return;
    if (i === 0 || values[i - 1] === null) pieces.push([]);
    pieces[pieces.length - 1].push(`${(i * step).toFixed(1)} ${(26 - (24 * v) / top).toFixed(1)}`);
  });
  const svg = document.createElementNS(SVG, "svg");
  for (const [k, v] of Object.entries({ class: "spark", viewBox: "0 0 100 28", preserveAspectRatio: "none", "aria-hidden": "true" })) svg.setAttribute(k, v);
  for (const kind of ["area", "line"]) {
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("class", kind);
    path.setAttribute("d", pieces.map((p) => `M${p.join("L")}${kind === "area" ? `V28H${p[0].split(" ")[0]}Z` : ""}`).join(""));
    svg.append(path);
  }
  return svg;
}

// ---------------------------------------------------------------- numbers as people read them

export function number(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  if (value !== 0 && Math.abs(value) < 0.01) return value.toExponential(1);
  return new Intl.NumberFormat("en", { maximumSignificantDigits: Math.abs(value) >= 1000 ? 4 : digits }).format(value);
}
export const count = (value) => (value === null || value === undefined ? "–" : new Intl.NumberFormat("en").format(value));
export const percent = (value) => (value === null || value === undefined ? "–" : `${Math.round(value * 100)} %`);
export function span(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 120) return `${number(seconds)} s`;
  return seconds < 7200 ? `${number(seconds / 60)} min` : `${number(seconds / 3600)} h`;
}
export const clock = (at) => (at === null || at === undefined ? "–" : `${new Date(at * 1000).toISOString().slice(11, 19)} UTC`);

/** Bytes in binary units, as GPU memory is sold. */
export function bytes(value) {
  return value === null || value === undefined ? "–" : `${number(value / 2 ** 30)} GiB`;
}

export function tiles(list) {
  return list.map(([name, value, beside]) => el("div", { class: "card tile" }, el("dt", {}, name), el("dd", {}, value, beside ? el("small", {}, ` ${beside}`) : null)));
}
