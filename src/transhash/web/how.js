// "How it works": the alignment map and the results table of this very run.

import { diagnostics } from "./api.js";
import { count, el, svg } from "./view.js";

const GROUPS = [
  ["auxiliary_images", "paired pictures (learned from)"],
  ["auxiliary_texts", "paired texts (learned from)"],
  ["target_images", "your pictures"],
  ["target_texts", "your texts"],
];
const WIDTH = 460;
const HEIGHT = 400;
const MARGIN = 18;

export async function drawHow(body, about) {
  body.replaceChildren(el("p", { class: "lead" }, "Loading…"));
  let found;
  try {
    found = await diagnostics();
  } catch (error) {
    body.replaceChildren(el("p", { class: "lead" }, error.message));
    return;
  }
  const parts = [];
  if (found.map) parts.push(...mapParts(found.map, found.report));
  if (found.results.length) parts.push(...tableParts(found.results, about));
  if (found.report) parts.push(...reportParts(found.report));
  if (!parts.length) {
    const none = "This run kept no diagnostics; `transhash fit` writes them beside the model.";
    parts.push(el("p", { class: "lead" }, none));
  }
  body.replaceChildren(...parts);
}

function mapParts(map, report) {
  const bounds = boundsOf(map);
  const moves = JSON.stringify(map.before) !== JSON.stringify(map.after);
  const lead =
    "Each mark is an item, placed by its code before rounding to bits and flattened to two " +
    "dimensions. " +
    (moves
      ? `Alignment moves your items to where the paired ones lie.${alignment(report)}`
      : "This method does not align: your items stay where they fall.");
  const titles = moves ? { before: "Before alignment", after: "After alignment" } : { after: "Codes" };
  const figures = Object.entries(titles).map(([state, title]) =>
    el("figure", {}, el("figcaption", {}, title), plot(map[state], bounds, state)),
  );
  const legend = GROUPS.map(([name, meaning]) =>
    el("li", {}, svg("svg", { viewBox: "0 0 14 14", "aria-hidden": "true" }, mark(name, 7, 7, 4.6)), meaning),
  );
  return [
    el("h3", {}, "The map of this run"),
    el("p", { class: "lead" }, lead),
    el("div", { class: "maps" }, ...figures),
    el("ul", { class: "legend" }, ...legend),
  ];
}

// Distances between the groups as training measured them, where the report has them.
function alignment(report) {
  const found = report && report.alignment;
  if (!found || typeof found !== "object") return "";
  const words = [];
  for (const [key, name] of [["images", "pictures"], ["texts", "texts"]]) {
    const part = found[key] ?? {};
    const [before, after] = Array.isArray(part) ? part : [part.before, part.after];
    if (typeof before === "number" && typeof after === "number") {
      words.push(`${name} ${before.toFixed(3)} → ${after.toFixed(3)}`);
    }
  }
  return words.length ? ` Distance between the two worlds (MMD): ${words.join(", ")}.` : "";
}

function boundsOf(map) {
  const points = Object.values(map).flatMap((groups) => Object.values(groups).flat());
  const [xs, ys] = [points.map((p) => p[0]), points.map((p) => p[1])];
  return [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
}

function plot(groups, [left, right, low, high], state) {
  const x = (v) => MARGIN + ((v - left) / (right - left || 1)) * (WIDTH - 2 * MARGIN);
  const y = (v) => HEIGHT - MARGIN - ((v - low) / (high - low || 1)) * (HEIGHT - 2 * MARGIN);
  const totals = GROUPS.map(([name, meaning]) => `${(groups[name] || []).length} ${meaning}`);
  const label = `Map ${state} alignment: ${totals.join(", ")}`;
  const drawing = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label });
  for (const [name] of GROUPS) {
    for (const [px, py] of groups[name] || []) drawing.append(mark(name, x(px), y(py), 3.1));
  }
  return drawing;
}

// Filled circles are pictures, open diamonds are texts: colour alone carries nothing.
function mark(name, x, y, r) {
  const attributes = { class: `map-${name}`, opacity: name.startsWith("auxiliary") ? 0.55 : 0.8 };
  const [cx, cy] = [x.toFixed(1), y.toFixed(1)];
  if (name.endsWith("images")) return svg("circle", { ...attributes, cx, cy, r });
  const d = `M${cx} ${(y - r - 0.6).toFixed(1)}l${r + 0.6} ${r + 0.6}l${-r - 0.6} ${r + 0.6}l${-r - 0.6} ${-r - 0.6}z`;
  return svg("path", { ...attributes, d });
}

function tableParts(rows, about) {
  const score = (value) => (typeof value === "number" ? value.toFixed(3) : "–");
  const head = ["Method", "Bits", "Picture → text", "Text → picture", "Chance"];
  const body = rows.map((row) => {
    const ours = about && row.method === about.method && row.bits === about.bits;
    return el(
      "tr",
      { class: ours ? "ours" : null },
      el("th", { scope: "row" }, String(row.method)),
      el("td", {}, String(row.bits ?? "–")),
      ...[row.image_to_text_map, row.text_to_image_map, row.chance].map((v) => el("td", {}, score(v))),
    );
  });
  const lead = "Mean average precision on held-out queries: 1 would be a perfect order.";
  return [
    el("h3", {}, "How good it is"),
    el("p", { class: "lead" }, lead),
    el(
      "div",
      { class: "scroll", tabindex: "0", role: "region", "aria-label": "Results table" },
      el(
        "table",
        {},
        el("thead", {}, el("tr", {}, ...head.map((name) => el("th", { scope: "col" }, name)))),
        el("tbody", {}, ...body),
      ),
    ),
  ];
}

function reportParts(report) {
  const facts = [];
  const [from, onto] = [report.auxiliary || {}, report.target || {}];
  if (from.images) facts.push(`Learned from ${count(from.images)} pictures and ${count(from.texts)} texts`);
  if (onto.images) facts.push(`aligned with ${count(onto.images)} and ${count(onto.texts)} of yours`);
  if (report.training_seconds) facts.push(`in ${report.training_seconds} s`);
  const { said = [], warnings = [] } = report.verdict || {};
  const lines = [...(facts.length ? [`${facts.join(", ")}.`] : []), ...said];
  if (!lines.length && !warnings.length) return [];
  return [
    el("h3", {}, "This model"),
    ...lines.map((line) => el("p", { class: "lead" }, line)),
    ...warnings.map((line) => el("p", { class: "note warn" }, `Warning: ${line}.`)),
  ];
}
