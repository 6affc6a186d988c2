// The lines above the results: how many, how good, and the technical details.

import { count, el, plural, strip } from "./components.js";

const $ = (id) => document.getElementById(id);

export const NAMES = { images: ["image", "images"], texts: ["text", "texts"] };

const milliseconds = (ms) => `${ms < 10 ? ms.toFixed(1) : Math.round(ms)} ms`;

// replies: one search reply per modality; ms: time from request to reply.
export function showSummary(replies, ms, about) {
  const shown = replies.map(({ hits, total, modality }) =>
    hits.length < total
      ? `${count(hits.length)} of ${plural(total, ...NAMES[modality])}`
      : plural(total, ...NAMES[modality]),
  );
  $("status").replaceChildren(el("b", {}, shown.join(" and ")), ", best match first");
  const hits = replies.flatMap((reply) => reply.hits);
  const rated = hits.filter((hit) => hit.relevance);
  const hasWords = hits.some((hit) => !hit.relevance && hit.coverage >= 0.5);
  const noMatch = rated.length
    ? !hasWords && rated.every((hit) => hit.relevance === "unlikely")
    : replies.every((reply) => reply.is_chance);
  $("notice").hidden = !noMatch;
  $("notice").textContent = noMatch ? "No good match. Showing the closest items." : "";
  const best = replies.find((reply) => reply.max_relevance)?.max_relevance;
  if (rated.length && !noMatch && !hasWords && best === "possible") {
    $("status").append(". This model rates no result higher than “possible”.");
  }
  $("search-facts").replaceChildren(...facts(replies, ms, about));
  $("search-details").hidden = false;
}

function facts(replies, ms, about) {
  const { query, bits } = replies[0];
  const took = Math.max(...replies.map((reply) => reply.took_ms));
  const pool = replies.find((reply) => reply.rerank_pool && reply.rerank_pool < reply.total)?.rerank_pool;
  const parts = [
    about ? `${about.method}, ${bits} bits` : `${bits} bits`,
    `${milliseconds(took)} to search, ${milliseconds(Math.max(ms, took))} in total`,
    pool ? `top ${count(pool)} by Hamming distance reranked` : null,
    query.known_words?.length ? `words used: ${query.known_words.join(", ")}` : null,
  ];
  return [
    el("p", { class: "note" }, parts.filter(Boolean).join(" · ")),
    el("div", { class: "query-code" }, el("span", { class: "note" }, "Code of the query"), strip(query.code)),
  ];
}
