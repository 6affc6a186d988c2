// One result, large: its picture or whole text, what it is called, and what lies near it.

import * as api from "./api.js";
import * as view from "./view.js";
import { thumbs } from "./votes.js";

const $ = (id) => document.getElementById(id);
const KINDS = { images: "pictures", texts: "texts" };
const NEIGHBOURS = { images: 8, texts: 4 };

let items = []; // the results it steps through
let at = 0;
let bits = 0;
let from = null; // the card that gets the focus back
let asking = null; // AbortController of the neighbours on their way
let about = null;
let query = null; // what found the results
let hrefOf = null;
let search = null; // go on from an item: (item, among)

export function wireLarge(itemHref, goOn) {
  hrefOf = itemHref;
  search = goOn;
  $("large-close").addEventListener("click", () => $("large").close());
  $("large-previous").addEventListener("click", () => step(-1));
  $("large-next").addEventListener("click", () => step(1));
  $("large").addEventListener("click", (event) => {
    if (event.target === $("large")) $("large").close();
  });
  $("large").addEventListener("keydown", (event) => {
    const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!way || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    step(way);
  });
  $("large").addEventListener("close", () => {
    if ($("large").open) return; // told late: opened again since, and drawn anew
    asking?.abort();
    $("large-body").replaceChildren(); // a picture on its way is not needed any more
    const card = items[at] && document.querySelector(`.card[data-number="${items[at].number}"]`);
    (card ?? from)?.focus();
  });
}

export function openLarge(hits, position, bitCount, told, card, asked) {
  [items, at, bits, about, from, query] = [hits, position, bitCount, told, card, asked];
  draw();
  $("large").showModal();
  $("large-close").focus();
}

export const closeLarge = () => $("large").open && $("large").close();

function step(way) {
  const next = at + way;
  if (next < 0 || next >= items.length) return;
  at = next;
  draw();
}

function draw() {
  const item = items[at];
  const title = item.modality === "images" ? item.file || item.id : item.id;
  $("large-title").textContent = title;
  $("large-place").textContent = `${at + 1} of ${items.length}`;
  $("large-previous").disabled = at === 0;
  $("large-next").disabled = at === items.length - 1;
  const near = view.el("div", { class: "near", "aria-live": "polite" });
  const vote = about?.writable ? thumbs(query, item) : null;
  const side = view.el("div", { class: "side" }, ...facts(item), vote, actions(item), near);
  $("large").classList.toggle("of-texts", item.modality === "texts");
  $("large-body").replaceChildren(main(item), side);
  $("large").scrollTop = 0;
  neighbours(item, near);
}

function main(item) {
  if (item.modality === "texts") return view.el("blockquote", { class: "whole" }, item.text || item.id);
  const frame = view.el("figure", { class: "frame" });
  if (!item.thumbnail) {
    frame.append(view.el("div", { class: "no-picture" }, item.id));
    return frame;
  }
  const image = view.el("img", { src: item.thumbnail, alt: `Picture ${item.id}` });
  frame.append(image);
  const note = (text) => frame.append(view.el("figcaption", {}, text));
  if (!about?.originals) return frame;
  // The small one stays until the large one is there.
  const large = view.el("img", { alt: `Picture ${item.id}` });
  large.addEventListener("load", () => image.replaceWith(large));
  large.addEventListener("error", () => note("Only this small picture is left: the file is gone, or is another one now."));
  large.src = `/api/items/${item.number}/picture`;
  return frame;
}

function facts(item) {
  const parts = [];
  if (item.text && item.modality === "images") parts.push(view.el("p", { class: "said" }, item.text));
  if (item.relevance) parts.push(view.el("p", {}, view.badge(item.relevance), ` ${chance(item.probability)}`));
  if (item.distance !== undefined) parts.push(view.strip(item.code, item.differing));
  if (item.distance !== undefined) parts.push(view.el("p", { class: "note" }, view.far(item.distance, bits)));
  if (item.file && item.file !== item.id) parts.push(view.el("p", { class: "note" }, `Called ${item.id} here`));
  return parts;
}

const chance = (probability) => `about ${Math.round(100 * probability)} in 100 as near as this belong together`;

function actions(item) {
  const row = view.el("p", { class: "actions" });
  for (const among of ["images", "texts"]) {
    row.append(link(`Find ${KINDS[among]} like this`, item, among));
  }
  if (item.modality === "images" && item.file && about?.originals) {
    const file = `/api/items/${item.number}/original`;
    row.append(view.el("a", { class: "quiet", href: file, target: "_blank", rel: "noopener" }, "Open the file"));
    row.append(view.el("a", { class: "quiet", href: `${file}?download=true`, download: item.file }, "Download"));
  }
  return row;
}

function link(text, item, among, kind = "quiet") {
  const node = view.el("a", { class: kind, href: hrefOf(item, among) }, text);
  node.addEventListener("click", (event) => {
    if (!view.plainClick(event)) return;
    event.preventDefault();
    $("large").close();
    search(item, among);
  });
  return node;
}

async function neighbours(item, near) {
  asking?.abort();
  const mine = (asking = new AbortController());
  for (const among of ["images", "texts"]) {
    try {
      const found = await api.search({ item: item.number }, among, NEIGHBOURS[among], null, null, mine.signal);
      if (mine !== asking || !found.hits.length) continue;
      const title = among === "images" ? "Pictures near it" : "Texts near it";
      const list = view.el("ul", { class: `near-${among}` });
      for (const hit of found.hits) {
        const shown = hit.thumbnail
          ? view.el("img", { src: hit.thumbnail, alt: `Picture ${hit.id}`, loading: "lazy" })
          : view.short(hit.text || hit.id, 160);
        list.append(view.el("li", {}, link(shown, hit, undefined, null)));
      }
      near.append(view.el("h3", {}, title), list);
    } catch (error) {
      if (error.name === "AbortError") return;
      near.append(view.el("p", { class: "note" }, "What lies near it cannot be told now."));
      return;
    }
  }
}
