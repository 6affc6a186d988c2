// Detail view of one result: its image or full text, its relevance, and similar items.

import * as api from "./api.js";
import * as ui from "./components.js";
import { voteButtons } from "./feedback.js";

const $ = (id) => document.getElementById(id);
const SIMILAR_ITEMS = { images: 8, texts: 4 };

let items = []; // the results that the arrow keys go through
let position = 0;
let bits = 0;
let origin = null; // the card that gets the focus back
let pending = null; // AbortController of the request for similar items
let about = null;
let query = null; // what the results were searched by
let itemUrl = null;
let searchByItem = null; // (item, modality)

export function initDetail(urlOf, search) {
  itemUrl = urlOf;
  searchByItem = search;
  $("detail-close").addEventListener("click", () => $("detail").close());
  $("detail-previous").addEventListener("click", () => step(-1));
  $("detail-next").addEventListener("click", () => step(1));
  $("detail").addEventListener("click", (event) => {
    if (event.target === $("detail")) $("detail").close();
  });
  $("detail").addEventListener("keydown", (event) => {
    const direction = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!direction || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    step(direction);
  });
  $("detail").addEventListener("close", () => {
    if ($("detail").open) return; // the event is late: it was opened again since
    pending?.abort();
    $("detail-body").replaceChildren(); // stops an image that is still loading
    const card = items[position] && document.querySelector(`.card[data-number="${items[position].number}"]`);
    (card ?? origin)?.focus();
  });
}

export function openDetail(hits, start, bitCount, serverInfo, card, searchQuery) {
  [items, position, bits, about, origin, query] = [hits, start, bitCount, serverInfo, card, searchQuery];
  draw();
  $("detail").showModal();
  $("detail-close").focus();
}

export const closeDetail = () => $("detail").open && $("detail").close();

function step(direction) {
  const next = position + direction;
  if (next < 0 || next >= items.length) return;
  position = next;
  draw();
}

function draw() {
  const item = items[position];
  $("detail-title").textContent = item.modality === "images" ? item.file || item.id : item.id;
  $("detail-position").textContent = `${position + 1} of ${items.length}`;
  $("detail-previous").disabled = position === 0;
  $("detail-next").disabled = position === items.length - 1;
  const similar = ui.el("div", { class: "similar", "aria-live": "polite" });
  const votes = about?.writable ? voteButtons(query, item) : null;
  const side = ui.el("div", { class: "side" }, ...facts(item), votes, actions(item), codeDetails(item), similar);
  $("detail").classList.toggle("of-text", item.modality === "texts");
  $("detail-body").replaceChildren(content(item), side);
  $("detail").scrollTop = 0;
  showSimilar(item, similar);
}

function content(item) {
  if (item.modality === "texts") return ui.el("blockquote", { class: "full-text" }, item.text || item.id);
  const frame = ui.el("figure", { class: "frame" });
  if (!item.thumbnail) {
    frame.append(ui.el("div", { class: "no-image" }, item.id));
    return frame;
  }
  const thumbnail = ui.el("img", { src: item.thumbnail, alt: `Image ${item.id}` });
  frame.append(thumbnail);
  if (!about?.originals) return frame;
  // The thumbnail stays until the large image is loaded.
  const large = ui.el("img", { alt: `Image ${item.id}` });
  large.addEventListener("load", () => thumbnail.replaceWith(large));
  large.addEventListener("error", () =>
    frame.append(ui.el("figcaption", {}, "Original file missing or changed; showing the thumbnail.")),
  );
  large.src = `/api/items/${item.number}/preview`;
  return frame;
}

function facts(item) {
  const parts = [];
  const caption = [item.title, item.caption].filter(Boolean).join(". ");
  if (caption) parts.push(ui.el("p", { class: "caption" }, caption));
  if (item.keywords?.length) parts.push(ui.el("p", { class: "note" }, `Keywords: ${item.keywords.join(", ")}`));
  if (item.taken) parts.push(ui.el("p", { class: "note" }, `Taken: ${item.taken.replace("T", " ")}`));
  const reasons = ui.reasonText(item);
  if (reasons) parts.push(ui.el("p", { class: "note" }, reasons));
  if (item.relevance) {
    const chance = ` about ${Math.round(100 * item.probability)}% chance of a match`;
    parts.push(ui.el("p", {}, ui.badge(item.relevance), chance));
  }
  if (item.file && item.file !== item.id) parts.push(ui.el("p", { class: "note" }, `Id: ${item.id}`));
  return parts;
}

function codeDetails(item) {
  return ui.el(
    "details",
    {},
    ui.el("summary", {}, "Details"),
    ui.el("p", { class: "note" }, ui.distanceText(item.distance, bits)),
    ui.strip(item.code, item.differing_bits),
  );
}

function actions(item) {
  const row = ui.el("p", { class: "actions" });
  for (const modality of ["images", "texts"]) {
    if (about && !about[modality]) continue; // there is none to find
    row.append(link(`Find similar ${modality}`, item, modality));
  }
  if (item.modality === "images" && item.file && about?.originals) {
    const file = `/api/items/${item.number}/original`;
    row.append(ui.el("a", { class: "quiet", href: file, target: "_blank", rel: "noopener" }, "Open file"));
    row.append(ui.el("a", { class: "quiet", href: `${file}?download=true`, download: item.file }, "Download"));
  }
  return row;
}

function link(content, item, modality, kind = "quiet") {
  const node = ui.el("a", { class: kind, href: itemUrl(item, modality) }, content);
  node.addEventListener("click", (event) => {
    if (!ui.isPlainClick(event)) return;
    event.preventDefault();
    $("detail").close();
    searchByItem(item, modality);
  });
  return node;
}

async function showSimilar(item, container) {
  pending?.abort();
  const controller = (pending = new AbortController());
  for (const modality of ["images", "texts"]) {
    try {
      const { hits } = await api.search(
        { item: item.number }, modality, SIMILAR_ITEMS[modality], {}, null, controller.signal,
      );
      if (controller !== pending || !hits.length) continue;
      const list = ui.el("ul", { class: `similar-${modality}` });
      for (const hit of hits) {
        const preview = hit.thumbnail
          ? ui.el("img", { src: hit.thumbnail, alt: `Image ${hit.id}`, loading: "lazy" })
          : ui.shorten(hit.text || hit.id, 160);
        list.append(ui.el("li", {}, link(preview, hit, undefined, null)));
      }
      container.append(ui.el("h3", {}, `Similar ${modality}`), list);
    } catch (error) {
      if (error.name === "AbortError") return;
      container.append(ui.el("p", { class: "note" }, "Similar items are not available."));
      return;
    }
  }
}
