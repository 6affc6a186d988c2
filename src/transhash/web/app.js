// The search page. Its state is in the address: ?q=, ?item= or ?image=, with &modality= and what is
// not the default of &ranking=, &search=, &folder=, &after=, &before=, &source= and &collapse=.

import * as api from "./api.js";
import * as ui from "./components.js";
import { closeDetail, initDetail, openDetail } from "./detail.js";
import { enableVotes, initFeedback, voteButtons } from "./feedback.js";
import { filterOptions, initFilters, loadFilters, setFilters } from "./filters.js";
import { drawHow } from "./how-it-works.js";
import { onImage } from "./image-input.js";
import { enableSync } from "./sync.js";
import { NAMES, showSummary } from "./summary.js";

const $ = (id) => document.getElementById(id);
const PAGE_SIZE = 24; // results added at a time
const MAX_RESULTS = 200; // of one search
const MAX_TRAIL = 6;
const RANKINGS = ["weighted", "tiebreak", "hamming"]; // the default first
const SLOW_MS = 4000; // until the page explains why a search takes long

let about = null;
let aboutLoaded = null; // promise that settles when `about` is known, or cannot be
let running = null; // AbortController of the current search
let current = null; // the results on the page: {query, modality, parts, ms, shown}
const images = new Map(); // key -> {file, url}; dropped images exist as long as the page
// The modality to find from a text and from an image; the switch changes it.
const resultModality = { texts: "images", images: "texts" };
let onlyModality = null; // the modality of all items, if they have the same one

const modalityFor = (name) => onlyModality ?? resultModality[name];
const queryModality = (query) => (query.key || query.modality === "images" ? "images" : "texts");

function addressOf(query, modality, ranking = $("ranking").value) {
  if (!query) return "/";
  const options = new URLSearchParams();
  if (query.key) options.set("image", query.key);
  else if (query.item !== undefined) options.set("item", query.item);
  else options.set("q", query.q);
  options.set("modality", modality);
  if (query.item === undefined && ranking !== RANKINGS[0]) options.set("ranking", ranking);
  for (const [name, value] of Object.entries(filterOptions())) options.set(name, value);
  return `/?${options}`;
}

function readAddress() {
  const options = new URLSearchParams(location.search);
  const modality = ["texts", "both"].find((name) => name === options.get("modality")) ?? "images";
  const ranking = RANKINGS.find((name) => name === options.get("ranking")) ?? RANKINGS[0];
  if (options.has("image")) {
    const key = options.get("image");
    return { query: { key, image: images.get(key)?.file ?? null }, modality, ranking };
  }
  if (/^\d+$/.test(options.get("item") ?? "")) {
    return { query: { item: options.get("item") }, modality, ranking: $("ranking").value };
  }
  const q = (options.get("q") ?? "").trim();
  return { query: q ? { q } : null, modality, ranking };
}

const itemUrl = (item, modality = modalityFor(item.modality)) => addressOf({ item: item.number }, modality);
const itemStep = (item, modality) => ({
  url: itemUrl(item, modality),
  label: item.text || item.id,
  image: item.thumbnail,
});

// Open an address as a new history entry, with the trail that led there.
function navigate(url, trail) {
  history.pushState({ trail: trail.slice(-MAX_TRAIL) }, "", url);
  return show();
}

async function show({ keepFocus = false } = {}) {
  const { query, modality, ranking } = readAddress();
  if (query) setFilters(new URLSearchParams(location.search));
  running?.abort();
  const controller = (running = new AbortController());
  closeDetail();
  document.body.classList.toggle("has-query", Boolean(query));
  showSwitch(query, modality);
  $("ranking").value = ranking;
  $("ranking-option").hidden = query?.item !== undefined;
  $("search-mode-option").hidden = query?.q === undefined;
  $("examples").hidden = Boolean(query);
  for (const id of ["more", "notice"]) $(id).hidden = true;
  if (!query) {
    current = null;
    document.title = "transhash";
    for (const id of ["trail", "query", "search-details"]) $(id).hidden = true;
    $("status").textContent = "";
    $("results").replaceChildren();
    return showExamples();
  }
  if (query.q !== undefined) $("q").value = query.q;
  if (query.key && !query.image) return showMissingImage();
  const stopWaiting = showWaiting(query, modality, controller.signal);
  $("results").setAttribute("aria-busy", "true");
  try {
    const start = performance.now();
    const modalities = modality === "both" ? ["images", "texts"] : [modality];
    const requests = modalities.map((name) =>
      api.search(
        query, name, MAX_RESULTS, { ranking, ...filterOptions() }, about?.max_upload, controller.signal,
      ),
    );
    const replies = await Promise.all(requests);
    if (controller !== running) return;
    showOnline();
    render(query, modality, replies, performance.now() - start);
    if (!keepFocus) window.scrollTo({ top: 0 });
  } catch (error) {
    if (error.name === "AbortError" || controller !== running) return;
    controller.abort(); // the other request, if there are two
    current = null;
    showError(error, query);
  } finally {
    stopWaiting();
    if (controller === running) $("results").removeAttribute("aria-busy");
  }
}

// Show nothing at first, so that fast replies do not flicker; then placeholders; then the reason.
function showWaiting(query, modality, signal) {
  const placeholders = setTimeout(() => {
    $("results").replaceChildren(ui.skeleton(modality));
    $("status").textContent = "Searching…";
  }, 160);
  let done = false;
  const explain = setTimeout(async () => {
    const unresponsive = setTimeout(() => {
      if (!done) $("status").textContent = "Still searching. The server is slow to respond.";
    }, 1000);
    try {
      const { image_model_loaded: loaded } = await api.health(signal);
      if (done) return;
      $("status").textContent =
        query.image && !loaded
          ? "Loading the model; the first image search takes a few seconds."
          : "Still searching. This takes longer than usual.";
    } catch {
      // The search itself will report it.
    } finally {
      clearTimeout(unresponsive);
    }
  }, SLOW_MS);
  return () => {
    done = true;
    for (const timer of [placeholders, explain]) clearTimeout(timer);
  };
}

// replies: one per modality.
function render(query, modality, replies, ms) {
  const item = replies[0].query.item;
  if (item) {
    query.modality = item.modality;
    query.canVote = Boolean(item.modality === "images" ? item.thumbnail : item.text);
  }
  resultModality[queryModality(query)] = modality;
  const parts = replies.map((reply) => ({ ...reply, list: ui.grid(reply.modality) }));
  current = { query, modality, parts, ms, shown: 0 };
  const imageUrl = query.key ? images.get(query.key).url : null;
  const here = item ? itemStep(item) : { label: query.q ?? "your image", image: imageUrl };
  here.url = addressOf(query, modality);
  const steps = [...(history.state?.trail ?? []).slice(0, -1), here];
  history.replaceState({ trail: steps }, "");
  document.title = `${ui.shorten(here.label, 50)} – transhash`;
  $("trail").hidden = steps.length < 2;
  $("trail").replaceChildren(
    ...ui.trail(steps, (event, i) => {
      event.preventDefault();
      navigate(steps[i].url, steps.slice(0, i + 1));
    }),
  );
  $("query").replaceChildren(...ui.queryPanel(replies[0], imageUrl));
  $("query").hidden = !$("query").childElementCount;
  if (!parts.some((part) => part.hits.length)) {
    $("status").textContent = "";
    $("search-details").hidden = true;
    const name = modality === "both" ? "items" : NAMES[modality][1];
    if (replies.some((reply) => reply.total)) {
      $("search-details").hidden = false; // to choose another search mode
      showMessage(`No ${name} match.`, "Change the filters or the query.");
      return;
    }
    showMessage(`No ${name} are indexed yet.`, "Add some with `transhash open` or `transhash index`, then reload.");
    return;
  }
  showSummary(replies, ms, about);
  const titled = parts.map((part) => [part.modality === "images" ? "Images" : "Texts", part.list]);
  $("results").replaceChildren(modality === "both" ? ui.columns(titled) : parts[0].list);
  showMore();
}

// Add the next results of each modality; return the first new card.
function showMore() {
  const { parts, shown } = current;
  current.shown = shown + PAGE_SIZE;
  for (const part of parts) {
    const next = part.hits.slice(shown, current.shown);
    part.list.append(
      ...next.map((hit) => ui.card(hit, part.bits, itemUrl(hit), voteButtons(current.query, hit))),
    );
  }
  const first = parts.find((part) => part.hits.length > shown)?.list.children[shown];
  $("more").hidden = !parts.some((part) => part.hits.length > current.shown);
  scrollObserver.disconnect(); // observe again: the button may still be in view
  if (!$("more").hidden) scrollObserver.observe($("more"));
  return first?.querySelector(".card");
}

const scrollObserver = new IntersectionObserver(
  (entries) => current && entries.some((entry) => entry.isIntersecting) && showMore(),
  { rootMargin: "200px" },
);

const showMessage = (...parts) => $("results").replaceChildren(ui.message(...parts));

function showError(error, query) {
  const offline = error.kind === "offline";
  const titles = { offline: "The server is not responding.", busy: "The server is busy." };
  const refusal = query.image ? "This image cannot be used." : "The search failed.";
  for (const id of ["query", "search-details"]) $(id).hidden = true;
  $("status").textContent = "";
  const text = offline ? "Restart it with `transhash serve`. This page reconnects by itself." : error.message;
  // The same image would fail again, so offer to choose another one.
  const [action, run] =
    query.image && error.kind === "refused"
      ? ["Choose another image", () => $("file").click()]
      : ["Try again", () => show()];
  showMessage(titles[error.kind] ?? refusal, text, action, run);
  $("results").focus({ preventScroll: true });
  if (offline) waitForServer();
}

function showMissingImage() {
  for (const id of ["query", "search-details"]) $(id).hidden = true;
  $("status").textContent = "";
  const text = "Dropped images are not stored. Choose it again.";
  showMessage("The dropped image is no longer available.", text, "Choose an image", () => $("file").click());
}

let reconnecting = null;
function waitForServer() {
  $("banner").hidden = false;
  $("banner").textContent = "No connection to the server. Reconnecting…";
  reconnecting ??= setInterval(async () => {
    try {
      await api.health();
      showOnline();
      await start();
    } catch {
      // Still offline.
    }
  }, 2500);
}

function showOnline() {
  clearInterval(reconnecting);
  reconnecting = null;
  $("banner").hidden = true;
}

let examplesLoaded = false;
async function showExamples() {
  $("examples").hidden = false;
  if (examplesLoaded) return;
  try {
    const [examples] = await Promise.all([api.examples(), aboutLoaded]);
    examplesLoaded = true;
    if (!examples.texts.length && !examples.images.length) {
      const hint = "Run `transhash index`, then reload.";
      $("examples").replaceChildren(ui.message("Nothing is indexed yet.", hint));
      return;
    }
    $("examples").replaceChildren(...ui.exampleLists(examples, itemUrl));
    const items = examples.texts.concat(examples.images);
    onItemClick($("examples"), (number) => searchByItem(items.find((item) => String(item.number) === number)));
  } catch (error) {
    if (error.kind === "offline") waitForServer();
  }
}

// A plain click is handled by the page; with a modifier or another button, links work as usual.
function onItemClick(root, open) {
  root.onclick = (event) => {
    const link = event.target.closest("a[data-number]");
    if (!link || !ui.isPlainClick(event)) return;
    event.preventDefault();
    open(link.dataset.number, link);
  };
}

async function searchByItem(item, modality) {
  const step = itemStep(item, modality);
  $("q").value = "";
  await navigate(step.url, [...(current ? (history.state?.trail ?? []) : []), step]);
  $("results").focus({ preventScroll: true });
}

function openResult(number, card) {
  for (const part of current?.parts ?? []) {
    const position = part.hits.findIndex((hit) => String(hit.number) === number);
    if (position < 0 || card.closest(".grid") !== part.list) continue;
    const open = () => openDetail(part.hits, position, part.bits, about, card, current.query);
    if (about) open();
    else aboutLoaded.then(open); // it says whether original files may be shown
  }
}

async function searchByImage(file) {
  if (!file) return;
  await aboutLoaded; // it says what can be found
  if (about && !about.accepts_images) {
    showMessage("This model cannot read images.", "It was trained on precomputed features.");
    return;
  }
  const key = String(images.size + 1);
  images.set(key, { file, url: URL.createObjectURL(file) });
  $("q").value = "";
  const url = addressOf({ key }, modalityFor("images"));
  navigate(url, [{ url, label: "your image", image: images.get(key).url }]);
}

function init() {
  if (matchMedia("(max-width: 640px)").matches) $("q").placeholder = "Type a query";
  $("search").addEventListener("submit", async (event) => {
    event.preventDefault();
    const q = $("q").value.trim();
    if (!q) return $("q").focus();
    await aboutLoaded; // it says what can be found
    const url = addressOf({ q }, modalityFor("texts"));
    navigate(url, [{ url, label: q }]);
  });
  for (const input of document.querySelectorAll("input[name=modality]")) {
    input.addEventListener("change", () => {
      const { query } = readAddress();
      resultModality[query ? queryModality(current?.query ?? query) : "texts"] = input.value;
      if (!query) return;
      history.replaceState(history.state, "", addressOf(query, input.value));
      show({ keepFocus: true });
    });
  }
  $("ranking").addEventListener("change", () => {
    const { query, modality } = readAddress();
    if (!query) return;
    history.replaceState(history.state, "", addressOf(query, modality));
    show({ keepFocus: true });
  });
  initFilters(() => {
    const { query, modality } = readAddress();
    if (!query) return;
    history.replaceState(history.state, "", addressOf(query, modality));
    show({ keepFocus: true });
  });
  $("more").addEventListener("click", () => showMore()?.focus());
  $("show-codes").addEventListener("change", () => {
    document.body.classList.toggle("show-codes", $("show-codes").checked);
  });
  $("home").addEventListener("click", (event) => {
    if (!ui.isPlainClick(event)) return;
    event.preventDefault();
    $("q").value = "";
    navigate("/", []);
    $("q").focus();
  });
  $("how-open").addEventListener("click", () => {
    $("how").showModal();
    drawHow($("how-body"), about);
  });
  $("how-close").addEventListener("click", () => $("how").close());
  $("how").addEventListener("click", (event) => {
    if (event.target === $("how")) $("how").close();
  });
  onItemClick($("results"), openResult);
  initDetail(itemUrl, searchByItem);
  initFeedback();
  window.addEventListener("popstate", () => show());
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && !$("detail").open && !/^(INPUT|TEXTAREA)$/.test(document.activeElement.tagName)) {
      event.preventDefault();
      $("q").focus();
    }
  });
  onImage(searchByImage);
}

async function loadAbout() {
  try {
    about = await api.about();
    showModalities();
    $("run").hidden = false;
    $("choose-image").hidden = !about.accepts_images;
    enableVotes(about.writable);
    enableSync(about.sync, loadAbout);
    if (!$("search-details").hidden) showSummary(current.parts, current.ms, about);
    if (about.writable) {
      $("privacy").textContent = "Votes are stored with their query. Other queries and dropped images are not.";
    }
  } catch (error) {
    if (error.kind === "offline") waitForServer();
  }
}

// With items of one modality there is nothing to choose: every query finds these.
function showModalities() {
  const present = Object.keys(NAMES).filter((name) => about[name]);
  onlyModality = present.length === 1 ? present[0] : null;
  const counts = (present.length ? present : Object.keys(NAMES)).map((name) => ui.plural(about[name], ...NAMES[name]));
  $("run").textContent = counts.join(" · ");
  $("headline").textContent = onlyModality
    ? `Search your ${onlyModality} by text or by image.`
    : "Search images by text, and texts by image.";
  const { query, modality } = readAddress();
  showSwitch(query, modality);
}

function showSwitch(query, modality) {
  const chosen = query ? modality : modalityFor("texts");
  $(`modality-${chosen}`).checked = true;
  $("switch").hidden = chosen === onlyModality;
}

async function start() {
  aboutLoaded = loadAbout();
  await Promise.all([show(), aboutLoaded, loadFilters()]);
}

init();
start();
