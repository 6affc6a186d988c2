// The OpenAPI document for people: every request with its parts and what comes back.

import { el, message } from "./view.js";

const nameOf = (schema) => (schema?.$ref ?? "").split("/").pop();

// A type in a few words: string, integer, one of ..., list of ..., a model's name.
function kind(schema) {
  if (!schema) return "";
  if (schema.$ref) return nameOf(schema);
  const options = schema.anyOf ?? schema.oneOf;
  if (options) return options.map(kind).join(" or ");
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.join(", ");
  if (schema.type === "array") return `list of ${kind(schema.items)}`;
  const least = schema.minimum ?? schema.minLength;
  const most = schema.maximum ?? schema.maxLength;
  const range = most === undefined ? "" : `, ${least ?? 0} to ${most.toLocaleString("en")}`;
  return `${schema.type ?? "anything"}${range}`;
}

function table(head, rows) {
  const line = (cell) => (row) => el("tr", {}, ...row.map((text) => el(cell, {}, text)));
  const body = el("table", {}, el("thead", {}, line("th")(head)), el("tbody", {}, ...rows.map(line("td"))));
  return el("div", { class: "scroll" }, body);
}

function meaning(part, description = part?.description) {
  const usual = part?.default ?? null;
  return [description, usual === null ? null : `${usual} if left out`].filter(Boolean).join("; ");
}

function fields(schema) {
  return Object.entries(schema.properties ?? {}).map(([name, part]) => [name, kind(part), meaning(part)]);
}

function operation(method, path, told, models) {
  const box = el("details", {});
  const summary = el("summary", {}, el("code", {}, `${method.toUpperCase()} ${path}`));
  summary.append(el("span", {}, told.description ?? told.summary ?? ""));
  box.append(summary);
  const asked = (told.parameters ?? [])
    .filter((one) => one.in !== "header")
    .map((one) => [one.name, kind(one.schema), meaning(one.schema, one.description ?? one.schema?.description)]);
  for (const [type, body] of Object.entries(told.requestBody?.content ?? {})) {
    const model = models[nameOf(body.schema)] ?? body.schema;
    asked.push(...fields(model).map(([name, what, text]) => [`${name} (${type})`, what, text]));
  }
  if (asked.length) box.append(el("h3", {}, "Asked"), table(["part", "kind", "meaning"], asked));
  for (const [status, reply] of Object.entries(told.responses ?? {})) {
    if (!status.startsWith("2")) continue;
    const [type, body] = Object.entries(reply.content ?? {})[0] ?? ["nothing", {}];
    const name = nameOf(body.schema);
    box.append(el("h3", {}, `Reply ${status}: ${name || type}`));
    if (name && models[name]) box.append(table(["part", "kind", "meaning"], fields(models[name])));
  }
  const refused = Object.keys(told.responses ?? {}).filter((status) => /^[45]/.test(status));
  if (refused.length) box.append(el("p", { class: "lead" }, `Refused with ${refused.join(", ")}.`));
  return box;
}

async function draw() {
  try {
    const reply = await fetch("/openapi.json");
    const { paths, components } = await reply.json();
    const models = components?.schemas ?? {};
    const groups = new Map();
    for (const [path, methods] of Object.entries(paths)) {
      for (const [method, told] of Object.entries(methods)) {
        const tag = told.tags?.[0] ?? "more";
        groups.set(tag, [...(groups.get(tag) ?? []), operation(method, path, told, models)]);
      }
    }
    const parts = [...groups].map(([tag, boxes]) => el("section", {}, el("h2", {}, tag), ...boxes));
    document.getElementById("routes").replaceChildren(...parts);
  } catch {
    const again = message("The service does not answer.", "Reload this page once it is back.");
    document.getElementById("routes").replaceChildren(again);
  }
}

draw();
