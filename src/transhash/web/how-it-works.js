// "How it works": the map of codes, the results table and the report of this run.

import { diagnostics } from "./api.js";
import { count, el, svg } from "./components.js";

const GROUPS = [
  ["auxiliary_images", "auxiliary images"],
  ["auxiliary_texts", "auxiliary texts"],
  ["target_images", "your images"],
  ["target_texts", "your texts"],
];
const WIDTH = 460;
const HEIGHT = 400;
const MARGIN = 18;

export async function drawHow(body, about) {
  body.replaceChildren(el("p", { class: "lead" }, "Loading…"));
  let data;
  try {
    data = await diagnostics();
  } catch (error) {
    body.replaceChildren(el("p", { class: "lead" }, error.message));
    return;
  }
  const parts = [];
  if (data.map) parts.push(...mapParts(data.map, data.report));
  if (data.results.length) parts.push(...tableParts(data.results, about));
  if (data.report) parts.push(...reportParts(data.report, isAdapted(data.map)));
  if (!parts.length) parts.push(el("p", { class: "lead" }, "This run has no diagnostics. `transhash fit` writes them."));
  body.replaceChildren(...parts);
}

function mapParts(map, report) {
  const bounds = boundsOf(map);
  const adapts = isAdapted(map);
  const lead =
    "Each mark is an item. Its place is its code before rounding to bits, reduced to two dimensions; " +
    "related items should be near each other. " +
    (adapts
      ? "The first map encodes your items like auxiliary ones, the second as the trained model does."
      : "This method encodes your items like auxiliary ones.");
  const titles = adapts ? { before: "Without adaptation", after: "After training" } : { after: "Codes" };
  const figures = Object.entries(titles).map(([state, title]) =>
    el("figure", {}, el("figcaption", {}, title), plot(map[state], bounds, title)),
  );
  const legend = GROUPS.map(([name, label]) =>
    el("li", {}, svg("svg", { viewBox: "0 0 14 14", "aria-hidden": "true" }, mark(name, 7, 7, 4.6)), label),
  );
  return [
    el("h3", {}, "Map of this run"),
    el("p", { class: "lead" }, lead),
    el("div", { class: "maps" }, ...figures),
    el("ul", { class: "legend" }, ...legend),
    ...alignmentParts(report?.alignment),
  ];
}

// The distances that training measured. They may grow, and then the text says so.
function alignmentParts(alignment) {
  const changes = [];
  const larger = [];
  for (const modality of ["images", "texts"]) {
    const { before, after } = alignment?.[modality] ?? {};
    if (typeof before !== "number" || typeof after !== "number") continue;
    changes.push(`${modality} ${before.toFixed(3)} → ${after.toFixed(3)}`);
    if (after > before) larger.push(modality);
  }
  if (!changes.length) return [];
  const distances = `Distance between your items and auxiliary items (MMD), from features to codes: ${changes.join(", ")}.`;
  const reason =
    ` It grew for ${larger.join(" and ")}: codes separate topics more clearly than features do, and ` +
    "closing this distance is only one of several training goals.";
  return [el("p", { class: "lead distances" }, distances + (larger.length ? reason : ""))];
}

const isAdapted = (map) => map && JSON.stringify(map.before) !== JSON.stringify(map.after);

function boundsOf(map) {
  const points = Object.values(map).flatMap((groups) => Object.values(groups).flat());
  const [xs, ys] = [points.map((p) => p[0]), points.map((p) => p[1])];
  return [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
}

function plot(groups, [left, right, low, high], title) {
  const x = (v) => MARGIN + ((v - left) / (right - left || 1)) * (WIDTH - 2 * MARGIN);
  const y = (v) => HEIGHT - MARGIN - ((v - low) / (high - low || 1)) * (HEIGHT - 2 * MARGIN);
  const totals = GROUPS.map(([name, label]) => `${(groups[name] || []).length} ${label}`);
  const label = `${title}: ${totals.join(", ")}`;
  const drawing = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label });
  for (const [name] of GROUPS) {
    for (const [px, py] of groups[name] || []) drawing.append(mark(name, x(px), y(py), 3.1));
  }
  return drawing;
}

// Filled circles are images, open diamonds are texts: nothing depends on color alone.
function mark(name, x, y, r) {
  const attributes = { class: `map-${name}`, opacity: name.startsWith("auxiliary") ? 0.55 : 0.8 };
  const [cx, cy] = [x.toFixed(1), y.toFixed(1)];
  if (name.endsWith("images")) return svg("circle", { ...attributes, cx, cy, r });
  const d = `M${cx} ${(y - r - 0.6).toFixed(1)}l${r + 0.6} ${r + 0.6}l${-r - 0.6} ${r + 0.6}l${-r - 0.6} ${-r - 0.6}z`;
  return svg("path", { ...attributes, d });
}

function tableParts(rows, about) {
  const score = (value) => (typeof value === "number" ? value.toFixed(3) : "–");
  const head = ["Method", "Bits", "Image → text", "Text → image", "Chance"];
  const body = rows.map((row) => {
    const isCurrent = about && row.method === about.method && row.bits === about.bits;
    return el(
      "tr",
      { class: isCurrent ? "current" : null },
      el("th", { scope: "row" }, String(row.method)),
      el("td", {}, String(row.bits ?? "–")),
      ...[row.image_to_text_map, row.text_to_image_map, row.chance].map((v) => el("td", {}, score(v))),
    );
  });
  return [
    el("h3", {}, "Search quality"),
    el("p", { class: "lead" }, "Mean average precision on test queries; 1 is a perfect ranking."),
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

function reportParts(report, adapted) {
  const { auxiliary = {}, target = {} } = report;
  const facts = [];
  if (auxiliary.images) facts.push(`Trained on ${count(auxiliary.images)} auxiliary images and ${count(auxiliary.texts)} texts`);
  if (adapted && target.images) facts.push(`adapted to ${count(target.images)} of your images and ${count(target.texts)} of your texts`);
  if (report.training_seconds) facts.push(`in ${report.training_seconds} s`);
  const { summary = [], warnings = [] } = report.validation || {};
  const lines = [...(facts.length ? [`${facts.join(", ")}.`] : []), ...summary];
  if (!lines.length && !warnings.length) return [];
  return [
    el("h3", {}, "This model"),
    ...lines.map((line) => el("p", { class: "lead" }, line)),
    ...warnings.map((line) => el("p", { class: "note warn" }, `Warning: ${line}`)),
  ];
}
