// Talking to the service. Every failure becomes a Trouble with a sentence for people.

export class Trouble extends Error {
  constructor(message, kind, status) {
    super(message);
    this.kind = kind; // "offline", "busy" or "refused"
    this.status = status; // of the reply, if there was one
  }
}

async function ask(path, options = {}) {
  let reply;
  try {
    // Never from a cache: its reply would be faster than the search it tells of.
    const headers = { Accept: "application/json", ...options.headers };
    reply = await fetch(path, { ...options, cache: "no-store", headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Trouble("The service does not answer.", "offline");
  }
  let body = null;
  try {
    body = await reply.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
  }
  if (reply.ok && body !== null) return body;
  const sentence = body && body.error ? body.error : `The service answered ${reply.status}.`;
  const kind = [429, 503, 504].includes(reply.status) ? "busy" : "refused";
  throw new Trouble(sentence, kind, reply.status);
}

export const about = () => ask("/api/about");
export const examples = () => ask("/api/examples");
export const diagnostics = () => ask("/api/diagnostics");
export const alive = () => ask("/health");

// query: {q} | {item} | {picture: File}
// ranking: all, ties or hamming; an item has bits only, so Hamming distance ranks for it.
export async function search(query, among, k, ranking, limit, signal) {
  const options = new URLSearchParams({ among, k });
  if (query.item === undefined) options.set("ranking", ranking);
  if (query.picture) {
    const form = new FormData();
    form.append("image", await fitting(query.picture, limit), "picture");
    return ask(`/api/search/image?${options}`, { method: "POST", body: form, signal });
  }
  if (query.item !== undefined) return ask(`/api/items/${query.item}/similar?${options}`, { signal });
  options.set("q", query.q);
  return ask(`/api/search/text?${options}`, { signal });
}

// pair: {image, text: {text} | {number}}; value: 1, 0, or null to take it back.
export function vote(pair, value, key) {
  // A header holds bytes: those of the key in UTF-8.
  const own = { "X-API-Key": String.fromCharCode(...new TextEncoder().encode(key)) };
  if (value === null) {
    const options = new URLSearchParams({ image: pair.image, ...pair.text });
    return ask(`/api/votes?${options}`, { method: "DELETE", headers: own });
  }
  const headers = { ...own, "Content-Type": "application/json" };
  const body = JSON.stringify({ ...pair, vote: value });
  return ask("/api/votes", { method: "POST", headers, body });
}

// A photograph over the limit is scaled down here; what is no picture goes as it is and the
// service says what is wrong with it.
async function fitting(file, limit) {
  if (!limit || file.size <= limit) return file;
  try {
    const bitmap = await createImageBitmap(file);
    const scale = Math.min(1, 1600 / Math.max(bitmap.width, bitmap.height));
    const canvas = document.createElement("canvas");
    canvas.width = Math.max(1, Math.round(bitmap.width * scale));
    canvas.height = Math.max(1, Math.round(bitmap.height * scale));
    canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
    return await new Promise((done) => canvas.toBlob((blob) => done(blob || file), "image/jpeg", 0.9));
  } catch {
    return file;
  }
}
