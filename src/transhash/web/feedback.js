// Vote buttons on results: whether an image and a text are a correct match. Only a writable server
// stores votes, and it needs an API key. The page takes the key from the link that the server
// printed, or asks for it, and remembers it as long as the tab is open.

import * as api from "./api.js";
import { el, shorten, svg } from "./components.js";

const $ = (id) => document.getElementById(id);
const STORAGE_KEY = "transhash-key";
const LINK_STORAGE_KEY = "transhash-link-key";
const THUMB =
  "M2 10h4v11H2zM8 21h9.5c1 0 1.8-.6 2.1-1.5l2.2-6.6c.5-1.4-.6-2.9-2.1-2.9h-5.2l.9-4.4c.2-1-.2-2-1-2.6L13.6 2 8 9.2z";
const CHOICES = [
  { value: 1, kind: "up", name: "Correct" },
  { value: 0, kind: "down", name: "Wrong" },
];

let key = ""; // accepted by the server
let linkKey = ""; // of a link, which anyone may have made: it replaces `key` once it was accepted
try {
  key = sessionStorage.getItem(STORAGE_KEY) ?? "";
  linkKey = sessionStorage.getItem(LINK_STORAGE_KEY) ?? "";
} catch {
  // Storage is disabled: the key is asked for once per page.
}

// Move the key out of the address, which people copy and browsers remember.
function takeKeyFromAddress() {
  const found = keyInLink(location.hash);
  if (!found) return;
  linkKey = found;
  storeKeys();
  history.replaceState(history.state, "", location.pathname + location.search);
}

const keyInLink = (link) => (link.includes("#key=") ? link.split("#key=").pop() : "");

export const enableVotes = (writable) => document.body.classList.toggle("voting", Boolean(writable));

// The image and text that a vote on this hit is about; null unless there is one of each.
// query: {q} | {item, modality, canVote} | {key}; a dropped image is not stored, so it has no votes.
function votedPair(query, hit) {
  if (hit.modality === "images") {
    if (!hit.thumbnail || query.key) return null;
    if (query.q !== undefined) return { image: hit.number, text: { text: query.q } };
    const isText = query.modality === "texts" && query.canVote;
    return isText ? { image: hit.number, text: { number: Number(query.item) } } : null;
  }
  if (query.modality !== "images" || !query.canVote || !hit.text) return null;
  return { image: Number(query.item), text: { number: hit.number } };
}

export function voteButtons(query, hit) {
  const pair = votedPair(query, hit);
  if (!pair) return null;
  const status = el("span", { class: "vote-status", role: "status" });
  const buttons = CHOICES.map(({ value, kind, name }) => {
    const label = `${name}: ${shorten(hit.modality === "texts" ? hit.text : hit.id, 60)}`;
    const button = el(
      "button",
      { class: `vote ${kind}`, type: "button", "aria-label": label, title: name, "data-vote": value },
      svg("svg", { viewBox: "0 0 24 24", "aria-hidden": "true" }, svg("path", { d: THUMB })),
    );
    button.addEventListener("click", () => vote(pair, hit, value, status));
    return button;
  });
  const attributes = { class: "votes", role: "group", "aria-label": "Is this a correct match?" };
  const group = el("div", { ...attributes, "data-votes": hit.number }, status, ...buttons);
  showVote(group, hit.vote);
  return group;
}

function showVote(group, value) {
  for (const button of group.querySelectorAll(".vote")) {
    button.setAttribute("aria-pressed", String(button.dataset.vote === String(value)));
  }
}

async function vote(pair, hit, value, status) {
  const next = hit.vote === value ? null : value; // a second click removes the vote
  try {
    const reply = await withKey((apiKey) => api.vote(pair, next, apiKey));
    if (!reply) return;
    hit.vote = reply.vote;
    for (const group of document.querySelectorAll(`[data-votes="${hit.number}"]`)) showVote(group, hit.vote);
    status.classList.remove("error");
    status.textContent = next === null ? "Removed." : "Saved.";
  } catch (error) {
    status.classList.add("error");
    status.textContent = error.message;
  }
}

// Return send(key), asking for the key while it is missing or wrong; null if the user cancels.
export async function withKey(send) {
  const known = [linkKey, key].filter(Boolean);
  for (let attempt = 0; ; attempt++) {
    const candidate = known[attempt] ?? (await askForKey(attempt > 0));
    if (!candidate) return null;
    try {
      const reply = await send(candidate);
      [key, linkKey] = [candidate, ""];
      storeKeys();
      return reply;
    } catch (error) {
      if (error.status !== 401) throw error;
    }
  }
}

function storeKeys() {
  try {
    sessionStorage.setItem(STORAGE_KEY, key);
    sessionStorage.setItem(LINK_STORAGE_KEY, linkKey);
  } catch {
    // Storage is disabled.
  }
}

function askForKey(isWrong) {
  $("key-wrong").hidden = !isWrong;
  $("key-value").value = "";
  $("key").returnValue = "";
  $("key").showModal();
  $("key-value").focus();
  return new Promise((resolve) => {
    const onClose = () => {
      const value = $("key-value").value.trim();
      resolve($("key").returnValue === "submit" ? keyInLink(value) || value : ""); // a full link works
    };
    $("key").addEventListener("close", onClose, { once: true });
  });
}

export function initFeedback() {
  takeKeyFromAddress();
  window.addEventListener("hashchange", takeKeyFromAddress);
  $("key-cancel").addEventListener("click", () => $("key").close(""));
}
