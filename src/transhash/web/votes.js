// Thumbs on results: whether a picture and a text belong together. Only a writable service keeps
// votes, and it asks for its key, unless the link that it printed ended in it; the page remembers the
// key as long as the tab is open.

import * as api from "./api.js";
import * as view from "./view.js";

const $ = (id) => document.getElementById(id);
const PLACE = "transhash-key";
const THUMB =
  "M2 10h4v11H2zM8 21h9.5c1 0 1.8-.6 2.1-1.5l2.2-6.6c.5-1.4-.6-2.9-2.1-2.9h-5.2l.9-4.4c.2-1-.2-2-1-2.6L13.6 2 8 9.2z";
const CHOICES = [
  { value: 1, kind: "up", name: "Right" },
  { value: 0, kind: "down", name: "Wrong" },
];

let key = "";
try {
  key = sessionStorage.getItem(PLACE) ?? "";
} catch {
  // storage is switched off: the key is asked for once a page
}

// A link with the key: out of the address at once, which people copy and histories keep.
function takeKey() {
  const given = keyIn(location.hash);
  if (!given) return;
  key = given;
  remember();
  history.replaceState(history.state, "", location.pathname + location.search);
}

const keyIn = (link) => (link.includes("#key=") ? link.split("#key=").pop() : "");

export const allowVotes = (writable) => document.body.classList.toggle("voting", Boolean(writable));

// What a vote on this result would be on; null where there is no picture or no text to it.
// query: {q} | {item, modality, usable} | {key}; a dropped picture is not kept, so it has no votes.
function pairOf(query, hit) {
  if (hit.modality === "images") {
    if (!hit.thumbnail || query.key) return null;
    if (query.q !== undefined) return { image: hit.number, text: { text: query.q } };
    const words = query.modality === "texts" && query.usable;
    return words ? { image: hit.number, text: { number: Number(query.item) } } : null;
  }
  if (query.modality !== "images" || !query.usable || !hit.text) return null;
  return { image: Number(query.item), text: { number: hit.number } };
}

export function thumbs(query, hit) {
  const pair = pairOf(query, hit);
  if (!pair) return null;
  const said = view.el("span", { class: "vote-said", role: "status" });
  const buttons = CHOICES.map(({ value, kind, name }) => {
    const what = `${name}: ${view.short(hit.modality === "texts" ? hit.text : hit.id, 60)}`;
    const button = view.el(
      "button",
      { class: `vote ${kind}`, type: "button", "aria-label": what, title: name, "data-vote": value },
      view.svg("svg", { viewBox: "0 0 24 24", "aria-hidden": "true" }, view.svg("path", { d: THUMB })),
    );
    button.addEventListener("click", () => vote(pair, hit, value, said));
    return button;
  });
  const names = { class: "votes", role: "group", "aria-label": "Does it belong to what you asked?" };
  const group = view.el("div", { ...names, "data-votes": hit.number }, said, ...buttons);
  show(group, hit.vote);
  return group;
}

function show(group, value) {
  for (const button of group.querySelectorAll(".vote")) {
    button.setAttribute("aria-pressed", String(button.dataset.vote === String(value)));
  }
}

async function vote(pair, hit, value, said) {
  const next = hit.vote === value ? null : value; // pressed again: taken back
  try {
    const kept = await withKey((own) => api.vote(pair, next, own));
    if (!kept) return;
    hit.vote = kept.vote;
    for (const group of document.querySelectorAll(`[data-votes="${hit.number}"]`)) show(group, hit.vote);
    said.classList.remove("bad");
    said.textContent = next === null ? "Taken back." : "Kept.";
  } catch (error) {
    said.classList.add("bad");
    said.textContent = error.message;
  }
}

// The reply to ask(key); where the key is not the right one people are asked for it. Null: they left.
async function withKey(ask) {
  for (let again = false; ; again = true) {
    if (!key || again) {
      const given = await askForKey(again && Boolean(key));
      if (!given) return null;
      key = given;
    }
    try {
      const reply = await ask(key);
      remember();
      return reply;
    } catch (error) {
      if (error.status !== 401) throw error;
    }
  }
}

function remember() {
  try {
    sessionStorage.setItem(PLACE, key);
  } catch {
    // see above
  }
}

function askForKey(wrong) {
  $("key-wrong").hidden = !wrong;
  $("key-value").value = "";
  $("key").returnValue = "";
  $("key").showModal();
  $("key-value").focus();
  return new Promise((done) => {
    const closed = () => done($("key").returnValue === "given" ? typed() : "");
    $("key").addEventListener("close", closed, { once: true });
  });
}

function typed() {
  const value = $("key-value").value.trim();
  return keyIn(value) || value; // the whole link will do
}

export function wireVotes() {
  takeKey();
  window.addEventListener("hashchange", takeKey);
  $("key-cancel").addEventListener("click", () => $("key").close(""));
}
