// What is said above the results.

import * as view from "./view.js";

const $ = (id) => document.getElementById(id);

export const NAMES = { images: ["picture", "pictures"], texts: ["text", "texts"] };

const milliseconds = (ms) => `${ms < 10 ? ms.toFixed(1) : Math.round(ms)} ms`;

// How many of how many, how long it took, and whether anything is near at all.
export function say(query, parts, ms, about) {
  const few = parts.find((part) => part.reranked && part.reranked < part.total)?.reranked;
  const order = few ? ` · ordered among the ${view.count(few)} with fewest differing bits` : "";
  const model = `${order}${about ? ` · ${about.method}, ${parts[0].bits} bits` : ""}`;
  const took = Math.max(...parts.map((part) => part.took_ms));
  const counts = parts.map((part) => view.plural(part.hits.length, ...NAMES[part.among]));
  const totals = parts.map((part) => view.count(part.total));
  $("status").replaceChildren(
    view.el("b", {}, counts.join(" and ")),
    ` nearest of ${totals.join(" and ")} · ${milliseconds(took)} to search`,
    `, ${milliseconds(Math.max(ms, took))} in all${model}`,
  );
  const judged = parts.flatMap((part) => part.hits).filter((hit) => hit.relevance);
  $("bits-choice").hidden = !judged.length;
  document.body.classList.toggle("in-words", judged.length > 0 && !$("bits").checked);
  const nothing = judged.length > 0 && judged.every((hit) => hit.relevance === "far");
  $("notice").hidden = !nothing;
  const what = query.key ? "Your picture is far from everything here." : "Nothing here is near what you asked for.";
  $("notice").textContent = nothing ? `${what} These are the least far.` : "";
  const most = judged[0] && !nothing && parts.find((part) => part.surest)?.surest;
  if (most === "maybe") $("status").append(" · “maybe” is the most that this run can say");
}
