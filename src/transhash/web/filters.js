// What a search looks in and where: search mode, folder, dates, source, and whether copies are one
// result. Their values are in the address, next to the query.

import * as api from "./api.js";
import { el } from "./components.js";

const $ = (id) => document.getElementById(id);
const FIELDS = ["folder", "after", "before", "source"];
const DEFAULT_SEARCH = "hybrid";

let available = null; // promise of what the server can filter by

// The options that differ from their defaults, as they are sent and stored in the address.
export function filterOptions() {
  const options = {};
  if ($("search-mode").value !== DEFAULT_SEARCH) options.search = $("search-mode").value;
  for (const name of FIELDS) if ($(name).value) options[name] = $(name).value;
  if (!$("collapse").checked) options.collapse = "false";
  return options;
}

// Show the options of an address.
export function setFilters(options) {
  const mode = options.get("search");
  $("search-mode").value = ["codes", "keywords"].includes(mode) ? mode : DEFAULT_SEARCH;
  for (const name of FIELDS) {
    const value = options.get(name) ?? "";
    const list = $(name);
    // An address may come before the list of folders, or name one that is gone.
    if (value && list.options && ![...list.options].some((option) => option.value === value)) {
      list.append(el("option", { value }, value));
    }
    list.value = value;
  }
  $("collapse").checked = options.get("collapse") !== "false";
  showState();
}

// What the filters say, in words, if there are any.
function showState() {
  const { folder, after, before, source } = filterOptions();
  const dates = [after ? `from ${after}` : null, before ? `to ${before}` : null];
  const parts = [folder, source, ...dates].filter(Boolean);
  $("filters-state").textContent = parts.length ? `: ${parts.join(", ")}` : "";
  $("filters-clear").hidden = !parts.length;
}

export function initFilters(onChange) {
  const changed = () => {
    showState();
    onChange();
  };
  for (const name of [...FIELDS, "search-mode", "collapse"]) $(name).addEventListener("change", changed);
  $("filters-clear").addEventListener("click", () => {
    for (const name of FIELDS) $(name).value = "";
    changed();
    $("filters").querySelector("summary").focus();
  });
}

// Fill the lists. The filters are hidden if there is nothing to choose from.
export function loadFilters() {
  available ??= api.filters().catch(() => null);
  return available.then((choices) => {
    if (!choices) {
      available = null; // try again after the server is back
      return;
    }
    fill("folder", choices.folders);
    fill("source", choices.sources.length > 1 ? choices.sources : []);
    const hasDates = Boolean(choices.first_date);
    for (const name of ["after", "before"]) {
      $(name).min = choices.first_date ?? "";
      $(name).max = choices.last_date ?? "";
      $(`${name}-option`).hidden = !hasDates;
    }
    $("filters").hidden = !hasDates && !choices.folders.length && choices.sources.length < 2;
  });
}

function fill(name, values) {
  const list = $(name);
  const known = new Set([...list.options].map((option) => option.value));
  list.append(...values.filter((value) => !known.has(value)).map((value) => el("option", { value }, value)));
  $(`${name}-option`).hidden = !values.length && !list.value;
}
