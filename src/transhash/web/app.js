// The page's one state lives in the address: ?q=... or ?item=... or ?picture=..., and &among=,
// &ranking= unless it is the usual one.

import * as api from "./api.js";
import { drawHow } from "./how.js";
import { closeLarge, openLarge, wireLarge } from "./large.js";
import { onPicture } from "./pictures.js";
import { NAMES, say } from "./said.js";
import * as view from "./view.js";
import { allowVotes, thumbs, wireVotes } from "./votes.js";

const $ = (id) => document.getElementById(id);
const STEP = 24; // results shown at first, and more on scrolling
const MOST = 200; // what the service gives
const LONGEST_TRAIL = 6;
const RANKINGS = ["weighted", "tiebreak", "hamming"]; // the usual one first

let about = null;
let told = null; // settles when `about` is known, or cannot be
let running = null; // AbortController of the search on its way
let current = null; // what is shown: {query, among, parts, shown}
const pictures = new Map(); // key -> {file, url}; dropped pictures live as long as the page
// Which way to search from words and from pictures; the switch changes it.
const way = { texts: "images", images: "texts" };

const kindOf = (query) => (query.key || query.modality === "images" ? "images" : "texts");

function address(query, among, ranking = $("ranking").value) {
  if (!query) return "/";
  const options = new URLSearchParams();
  if (query.key) options.set("picture", query.key);
  else if (query.item !== undefined) options.set("item", query.item);
  else options.set("q", query.q);
  options.set("among", among);
  if (query.item === undefined && ranking !== RANKINGS[0]) options.set("ranking", ranking);
  return `/?${options}`;
}

function readAddress() {
  const options = new URLSearchParams(location.search);
  const asked = options.get("among");
  const among = ["texts", "both"].includes(asked) ? asked : "images";
  const order = options.get("ranking");
  const ranking = RANKINGS.includes(order) ? order : RANKINGS[0];
  if (options.has("picture")) {
    const key = options.get("picture");
    return { query: { key, picture: pictures.get(key)?.file ?? null }, among, ranking };
  }
  if (/^\d+$/.test(options.get("item") ?? "")) {
    return { query: { item: options.get("item") }, among, ranking: $("ranking").value };
  }
  const q = (options.get("q") ?? "").trim();
  return { query: q ? { q } : null, among, ranking };
}

const itemAddress = (item, among = way[item.modality]) => address({ item: item.number }, among);
const itemStep = (item, among) => ({
  url: itemAddress(item, among),
  label: item.text || item.id,
  image: item.thumbnail,
});

// Going somewhere: a new entry of the history, which keeps the trail that led there.
function go(url, trail) {
  history.pushState({ trail: trail.slice(-LONGEST_TRAIL) }, "", url);
  return show();
}

async function show({ keepFocus = false } = {}) {
  const { query, among, ranking } = readAddress();
  running?.abort();
  const mine = (running = new AbortController());
  const trail = history.state?.trail ?? [];
  closeLarge();
  document.body.classList.toggle("busy-with-results", Boolean(query));
  $(`among-${query ? among : way.texts}`).checked = true;
  $("ranking").value = ranking;
  $("order").hidden = !query || query.item !== undefined;
  $("examples").hidden = Boolean(query);
  for (const id of ["more", "notice", "bits-choice"]) $(id).hidden = true;
  if (!query) {
    current = null;
    document.title = "transhash";
    for (const id of ["trail", "query"]) $(id).hidden = true;
    $("status").textContent = "";
    $("results").replaceChildren();
    return showExamples();
  }
  if (query.q !== undefined) $("q").value = query.q;
  if (query.key && !query.picture) return showLostPicture();
  // Fast answers come without a flicker, slow ones with something to look at.
  const slow = setTimeout(() => {
    $("results").replaceChildren(view.skeleton(among));
    $("status").textContent = "Searching…";
  }, 160);
  const slower = setTimeout(() => {
    $("status").textContent = "Still searching. The first picture after a start takes a few seconds.";
  }, 4000);
  $("results").setAttribute("aria-busy", "true");
  try {
    const start = performance.now();
    const kinds = among === "both" ? ["images", "texts"] : [among];
    const asked = kinds.map((kind) => api.search(query, kind, MOST, ranking, about?.max_upload, mine.signal));
    const found = await Promise.all(asked);
    if (mine !== running) return;
    online();
    render(query, among, found, performance.now() - start, trail);
    if (!keepFocus) window.scrollTo({ top: 0 });
  } catch (error) {
    if (error.name === "AbortError" || mine !== running) return;
    mine.abort(); // of two questions the other one
    current = null;
    renderTrouble(error, query);
  } finally {
    clearTimeout(slow);
    clearTimeout(slower);
    if (mine === running) $("results").removeAttribute("aria-busy");
  }
}

// found: the reply for one kind, or one for each.
function render(query, among, found, ms, trail) {
  const item = found[0].query.item;
  if (item) {
    query.modality = item.modality;
    query.usable = Boolean(item.modality === "images" ? item.thumbnail : item.text);
  }
  way[kindOf(query)] = among;
  const parts = found.map((reply) => ({ ...reply, list: view.grid(reply.among) }));
  current = { query, among, parts, shown: 0 };
  const own = query.key ? pictures.get(query.key) : null;
  const here = item
    ? itemStep(item)
    : { label: query.q ?? "your picture", image: own?.url };
  here.url = address(query, among);
  const steps = [...trail.slice(0, -1), here];
  history.replaceState({ trail: steps }, "");
  document.title = `${view.short(here.label, 50)} – transhash`;
  $("trail").hidden = steps.length < 2;
  $("trail").replaceChildren(
    ...view.trail(steps, (event, i) => {
      event.preventDefault();
      go(steps[i].url, steps.slice(0, i + 1));
    }),
  );
  $("query").hidden = false;
  $("query").replaceChildren(...view.queryPanel(found[0], own?.url));
  if (!parts.some((part) => part.hits.length)) {
    $("status").textContent = "";
    const what = among === "both" ? "items" : NAMES[among][1];
    const hint = "Add some with `transhash index`, then reload this page.";
    $("results").replaceChildren(view.message(`There are no ${what} in this run yet.`, hint));
    return;
  }
  say(query, parts, ms, about);
  const titled = parts.map((part) => [part.among === "images" ? "Pictures" : "Texts", part.list]);
  $("results").replaceChildren(among === "both" ? view.columns(titled) : parts[0].list);
  reveal();
}

// The next results of each kind, in the order of the one ranking that was asked for.
function reveal() {
  const { parts, shown } = current;
  current.shown = shown + STEP;
  for (const part of parts) {
    const next = part.hits.slice(shown, current.shown);
    const made = next.map((hit) => view.card(hit, part.bits, itemAddress(hit), thumbs(current.query, hit)));
    part.list.append(...made);
  }
  const first = parts.find((part) => part.hits.length > shown)?.list.children[shown];
  $("more").hidden = !parts.some((part) => part.hits.length > current.shown);
  end.disconnect(); // looked at anew: the end may still be in view
  if (!$("more").hidden) end.observe($("more"));
  return first?.querySelector(".card");
}

const end = new IntersectionObserver(
  (seen) => current && seen.some((one) => one.isIntersecting) && reveal(),
  { rootMargin: "200px" },
);

function renderTrouble(error, query) {
  const titles = {
    offline: "The service does not answer.",
    busy: "The service is busy.",
    refused: query.picture ? "This picture cannot be searched with." : "That did not work.",
  };
  const offline = error.kind === "offline";
  const text = offline
    ? "Is it still running? Start it again with `transhash serve`; this page goes on by itself."
    : sentence(error.message);
  $("status").textContent = "";
  $("query").hidden = true;
  const title = titles[error.kind] ?? titles.refused;
  // A bad picture stays bad: another one is the way on.
  const [action, run] =
    query.picture && error.kind === "refused"
      ? ["Choose another picture", () => $("file").click()]
      : ["Try again", () => show()];
  $("results").replaceChildren(view.message(title, text, action, run));
  $("results").focus({ preventScroll: true });
  if (offline) waitForService();
}

const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");

function showLostPicture() {
  $("query").hidden = true;
  $("status").textContent = "";
  const text = "Pictures you drop are not kept once the page is left or loaded again.";
  const box = view.message("That picture is gone.", text, "Choose a picture", () => $("file").click());
  $("results").replaceChildren(box);
}

let waiting = null;
function waitForService() {
  $("banner").hidden = false;
  $("banner").textContent = "No connection to the service. Trying again every few seconds…";
  waiting ??= setInterval(async () => {
    try {
      await api.alive();
      online();
      await start();
    } catch {
      // still away
    }
  }, 2500);
}

function online() {
  if (waiting) clearInterval(waiting);
  waiting = null;
  $("banner").hidden = true;
}

let shownExamples = false;
async function showExamples() {
  $("examples").hidden = false;
  if (shownExamples) return;
  try {
    const found = await api.examples();
    shownExamples = true;
    if (!found.texts.length && !found.images.length) {
      const hint = "Add pictures and texts with `transhash index`, then reload this page.";
      $("examples").replaceChildren(view.message("This run is still empty.", hint));
      return;
    }
    $("examples").replaceChildren(...view.exampleLists(found, itemAddress));
    const items = found.texts.concat(found.images);
    follow($("examples"), (number) => goOn(items.find((one) => String(one.number) === number)));
  } catch (error) {
    if (error.kind === "offline") waitForService();
  }
}

// A plain click stays within the page; other buttons keep the link's own meaning.
function follow(root, take) {
  root.onclick = (event) => {
    const link = event.target.closest("a[data-number]");
    if (!link || !view.plainClick(event)) return;
    event.preventDefault();
    take(link.dataset.number, link);
  };
}

function goOn(item, among) {
  const step = itemStep(item, among);
  $("q").value = "";
  go(step.url, [...(current ? (history.state?.trail ?? []) : []), step]).then(() =>
    $("results").focus({ preventScroll: true }),
  );
}

function openResult(number, card) {
  for (const part of current?.parts ?? []) {
    const at = part.hits.findIndex((hit) => String(hit.number) === number);
    if (at < 0 || card.closest(".grid") !== part.list) continue;
    const open = () => openLarge(part.hits, at, part.bits, about, card, current.query);
    if (about) open();
    else told.then(open); // whether originals may be shown is not known yet
  }
}

function searchPicture(file) {
  if (!file) return;
  if (about && !about.accepts_images) {
    $("results").replaceChildren(
      view.message("This model cannot read pictures.", "It was trained on precomputed features."),
    );
    return;
  }
  const key = String(pictures.size + 1);
  pictures.set(key, { file, url: URL.createObjectURL(file) });
  $("q").value = "";
  const url = address({ key }, way.images);
  go(url, [{ url, label: "your picture", image: pictures.get(key).url }]);
}

function wire() {
  if (matchMedia("(max-width: 640px)").matches) $("q").placeholder = "Type a sentence";
  $("search").addEventListener("submit", (event) => {
    event.preventDefault();
    const q = $("q").value.trim();
    if (!q) return $("q").focus();
    const url = address({ q }, way.texts);
    go(url, [{ url, label: q }]);
  });
  for (const input of document.querySelectorAll("input[name=among]")) {
    input.addEventListener("change", () => {
      const { query } = readAddress();
      way[query ? kindOf(current?.query ?? query) : "texts"] = input.value;
      if (!query) return;
      history.replaceState(history.state, "", address(query, input.value));
      show({ keepFocus: true });
    });
  }
  $("ranking").addEventListener("change", () => {
    const { query, among } = readAddress();
    if (!query) return;
    history.replaceState(history.state, "", address(query, among));
    show({ keepFocus: true });
  });
  $("more").addEventListener("click", () => reveal()?.focus());
  $("bits").addEventListener("change", () => {
    document.body.classList.toggle("in-words", !$("bits").checked);
  });
  $("home").addEventListener("click", (event) => {
    if (!view.plainClick(event)) return;
    event.preventDefault();
    $("q").value = "";
    go("/", []);
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
  follow($("results"), openResult);
  wireLarge(itemAddress, goOn);
  wireVotes();
  window.addEventListener("popstate", () => show());
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && !$("large").open && !/^(INPUT|TEXTAREA)$/.test(document.activeElement.tagName)) {
      event.preventDefault();
      $("q").focus();
    }
  });
  onPicture(searchPicture);
}

async function learnAbout() {
  try {
    about = await api.about();
    const items = `${view.plural(about.images, ...NAMES.images)} · ${view.plural(about.texts, ...NAMES.texts)}`;
    $("run").textContent = `${items} · ${about.method}, ${about.bits} bits`;
    $("run").hidden = false;
    $("pick").hidden = !about.accepts_images;
    allowVotes(about.writable);
    if (about.writable) {
      $("kept").textContent = "Votes are kept there, with the words they were given on; nothing else you type or drop is.";
    }
  } catch (error) {
    if (error.kind === "offline") waitForService();
  }
}

async function start() {
  const first = show();
  told = learnAbout();
  await Promise.all([first, told]);
}

wire();
start();
