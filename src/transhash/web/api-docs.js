// The OpenAPI document as a page: every request with its parameters and its reply.

import { el, message } from "./components.js";

const nameOf = (schema) => (schema?.$ref ?? "").split("/").pop();

// A type in a few words: string, integer, one of ..., list of ..., the name of a schema.
function typeText(schema) {
  if (!schema) return "";
  if (schema.$ref) return nameOf(schema);
  const options = schema.anyOf ?? schema.oneOf;
  if (options) return options.map(typeText).join(" or ");
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.join(", ");
  if (schema.type === "array") return `list of ${typeText(schema.items)}`;
  const min = schema.minimum ?? schema.minLength ?? 0;
  const max = schema.maximum ?? schema.maxLength;
  const range = max === undefined ? "" : `, ${min} to ${max.toLocaleString("en")}`;
  return `${schema.type ?? "any"}${range}`;
}

function table(rows) {
  const line = (cell) => (row) => el("tr", {}, ...row.map((text) => el(cell, {}, text)));
  const head = el("thead", {}, line("th")(["name", "type", "description"]));
  return el("div", { class: "scroll" }, el("table", {}, head, el("tbody", {}, ...rows.map(line("td")))));
}

function describe(schema, description = schema?.description) {
  const fallback = schema?.default ?? null;
  return [description, fallback === null ? null : `default ${fallback}`].filter(Boolean).join("; ");
}

function fields(schema) {
  return Object.entries(schema.properties ?? {}).map(([name, part]) => [name, typeText(part), describe(part)]);
}

function operation(method, path, spec, schemas) {
  const summary = el("summary", {}, el("code", {}, `${method.toUpperCase()} ${path}`));
  summary.append(el("span", {}, spec.description ?? spec.summary ?? ""));
  const box = el("details", {}, summary);
  const parameters = (spec.parameters ?? [])
    .filter((part) => part.in !== "header")
    .map((part) => [part.name, typeText(part.schema), describe(part.schema, part.description ?? part.schema?.description)]);
  for (const [type, body] of Object.entries(spec.requestBody?.content ?? {})) {
    const schema = schemas[nameOf(body.schema)] ?? body.schema;
    parameters.push(...fields(schema).map(([name, ...rest]) => [`${name} (${type})`, ...rest]));
  }
  if (parameters.length) box.append(el("h3", {}, "Parameters"), table(parameters));
  for (const [status, reply] of Object.entries(spec.responses ?? {})) {
    if (!status.startsWith("2")) continue;
    const [type, body] = Object.entries(reply.content ?? {})[0] ?? ["nothing", {}];
    const name = nameOf(body.schema);
    box.append(el("h3", {}, `Reply ${status}: ${name || type}`));
    if (schemas[name]) box.append(table(fields(schemas[name])));
  }
  const errors = Object.keys(spec.responses ?? {}).filter((status) => /^[45]/.test(status));
  if (errors.length) box.append(el("p", { class: "lead" }, `Errors: ${errors.join(", ")}.`));
  return box;
}

async function draw() {
  const container = document.getElementById("routes");
  try {
    const reply = await fetch("/openapi.json");
    const { paths, components } = await reply.json();
    const groups = new Map();
    for (const [path, methods] of Object.entries(paths)) {
      for (const [method, spec] of Object.entries(methods)) {
        const tag = spec.tags?.[0] ?? "other";
        const box = operation(method, path, spec, components?.schemas ?? {});
        groups.set(tag, [...(groups.get(tag) ?? []), box]);
      }
    }
    container.replaceChildren(...[...groups].map(([tag, boxes]) => el("section", {}, el("h2", {}, tag), ...boxes)));
  } catch {
    container.replaceChildren(message("The server is not responding.", "Reload this page once it is running."));
  }
}

draw();
