// Requests to the server. Every failure becomes an ApiError with a message for people.

export class ApiError extends Error {
  constructor(message, kind, status) {
    super(message);
    this.kind = kind; // "offline", "busy" or "refused"
    this.status = status; // of the reply, if there is one
  }
}

async function request(path, options = {}) {
  let reply;
  try {
    // Never from a cache: the reply would report the time of an earlier search.
    const headers = { Accept: "application/json", ...options.headers };
    reply = await fetch(path, { ...options, cache: "no-store", headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server is not responding.", "offline");
  }
  let body = null;
  try {
    body = await reply.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
  }
  if (reply.ok && body !== null) return body;
  const message = body?.error ?? `The server replied with status ${reply.status}.`;
  const kind = [429, 503, 504].includes(reply.status) ? "busy" : "refused";
  throw new ApiError(message, kind, reply.status);
}

export const about = () => request("/api/about");
export const examples = () => request("/api/examples");
export const filters = () => request("/api/filters");
export const diagnostics = () => request("/api/diagnostics");
export const syncStatus = () => request("/api/sync");
export const startSync = (key) => request("/api/sync", { method: "POST", headers: keyHeader(key) });
export const health = (signal) => request("/health", { signal });

// Header values are bytes: those of the key in UTF-8.
const keyHeader = (key) => ({ "X-API-Key": String.fromCharCode(...new TextEncoder().encode(key)) });

// query: {q} | {item} | {image: File}
// parameters: of the request besides these, such as {ranking, search, folder}. Items are always
// ranked by Hamming distance, and only texts have keywords.
export async function search(query, modality, k, parameters, maxUpload, signal) {
  const options = new URLSearchParams({ ...parameters, modality, k });
  if (query.item !== undefined) options.delete("ranking");
  if (query.q === undefined) options.delete("search");
  if (query.image) {
    const form = new FormData();
    form.append("image", await shrink(query.image, maxUpload), "image");
    return request(`/api/search/image?${options}`, { method: "POST", body: form, signal });
  }
  if (query.item !== undefined) return request(`/api/items/${query.item}/similar?${options}`, { signal });
  options.set("q", query.q);
  return request(`/api/search/text?${options}`, { signal });
}

// pair: {image, text: {text} | {number}}; value: 1, 0, or null to remove the vote.
export function vote(pair, value, key) {
  if (value === null) {
    const options = new URLSearchParams({ image: pair.image, ...pair.text });
    return request(`/api/votes?${options}`, { method: "DELETE", headers: keyHeader(key) });
  }
  const headers = { ...keyHeader(key), "Content-Type": "application/json" };
  const body = JSON.stringify({ ...pair, vote: value });
  return request("/api/votes", { method: "POST", headers, body });
}

// An image over the upload limit is scaled down here. A file that is not an image is sent as it
// is, and the server says what is wrong with it.
async function shrink(file, maxUpload) {
  if (!maxUpload || file.size <= maxUpload) return file;
  try {
    const bitmap = await createImageBitmap(file);
    const scale = Math.min(1, 1600 / Math.max(bitmap.width, bitmap.height));
    const canvas = document.createElement("canvas");
    canvas.width = Math.max(1, Math.round(bitmap.width * scale));
    canvas.height = Math.max(1, Math.round(bitmap.height * scale));
    canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
    return await new Promise((resolve) => canvas.toBlob((blob) => resolve(blob || file), "image/jpeg", 0.9));
  } catch {
    return file;
  }
}
