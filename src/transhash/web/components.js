// Building blocks of the page. Data reach the document as text nodes only, never as markup.

const SVG = "http://www.w3.org/2000/svg";

export function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

export const count = (n) => n.toLocaleString("en");
export const plural = (n, one, many) => `${count(n)} ${n === 1 ? one : many}`;
export const shorten = (text, length) => (text.length > length ? `${text.slice(0, length - 1)}…` : text);

// A code as a row of bits: tall for 1, low for 0, in a warm color where it differs from the query.
export function strip(code, differingBits = []) {
  const differing = new Set(differingBits);
  const paths = { off: "", on: "", differs: "" };
  [...code].forEach((bit, i) => {
    const kind = differing.has(i) ? "differs" : bit === "1" ? "on" : "off";
    const top = bit === "1" ? 0 : 5;
    paths[kind] += `M${i * 10 + 1} ${top}h8v${12 - top}h-8z`;
  });
  const shapes = Object.entries(paths)
    .filter(([, d]) => d)
    .map(([kind, d]) => svg("path", { class: kind, d }));
  return svg(
    "svg",
    {
      class: "strip",
      width: code.length * 13,
      viewBox: `0 0 ${code.length * 10} 12`,
      preserveAspectRatio: "none",
      "aria-hidden": "true",
    },
    ...shapes,
  );
}

export function distanceText(distance, bits) {
  if (distance === 0) return "same code";
  return `${distance} of ${bits} bits ${distance === 1 ? "differs" : "differ"}`;
}

export const badge = (label) => el("span", { class: `badge ${label}` }, label);

// Where the words of the query are, if they are somewhere.
export function reasonText(hit) {
  const fields = (hit.matched ?? []).filter((name) => name !== "similar");
  return fields.length ? `Matches ${fields.join(", ")}` : "";
}

function duplicates(hit) {
  if (!hit.duplicates?.length) return null;
  const items = hit.duplicates.map((item) =>
    el(
      "li",
      {},
      item.thumbnail ? el("img", { src: item.thumbnail, alt: "", loading: "lazy" }) : null,
      el("span", {}, item.id),
    ),
  );
  const title = `+${plural(items.length, "duplicate", "duplicates")}`;
  return el("details", { class: "duplicates" }, el("summary", {}, title), el("ul", {}, ...items));
}

export function card(hit, bits, href, votes = null) {
  const reasons = reasonText(hit);
  const foot = el(
    "div",
    { class: "foot" },
    strip(hit.code, hit.differing_bits),
    el(
      "div",
      { class: "facts" },
      reasons ? el("span", { class: "reasons" }, reasons) : null,
      hit.relevance ? badge(hit.relevance) : null,
      el("span", { class: "distance" }, distanceText(hit.distance, bits)),
      el("span", { class: "name", title: hit.id }, hit.modality === "images" ? hit.id.replace(/.*\/(?=.)/, "") : hit.id),
    ),
  );
  const content =
    hit.modality === "texts" ? el("div", { class: "text" }, hit.text || hit.id) : thumbnail(hit);
  const link = el("a", { class: "card", href, "data-number": hit.number }, content, foot);
  return el("li", {}, link, duplicates(hit), votes);
}

function thumbnail(item) {
  if (!item.thumbnail) return el("div", { class: "no-image" }, item.id);
  return el("img", {
    class: "image",
    src: item.thumbnail,
    alt: `Image ${item.id}`,
    loading: "lazy",
    decoding: "async",
  });
}

export const grid = (modality) => el("ul", { class: `grid ${modality}` });

// Both modalities side by side, each under its name.
export function columns(lists) {
  const column = ([title, list]) => el("section", {}, el("h2", {}, title), list);
  return el("div", { class: "both" }, ...lists.map(column));
}

export function skeleton(modality) {
  const list = el("ul", {
    class: `grid skeleton ${modality === "texts" ? "texts" : "images"}`,
    "aria-hidden": "true",
  });
  for (let i = 0; i < 12; i++) list.append(el("li", {}, el("div", { class: "card" })));
  return list;
}

export function message(title, text, action, run) {
  const box = el("div", { class: "message" }, el("h2", {}, title), el("p", {}, text));
  if (action) {
    const button = el("button", { class: "quiet", type: "button" }, action);
    button.addEventListener("click", run);
    box.append(button);
  }
  return box;
}

// The query, where the search field does not show it, and the words that do not count. Empty: nothing to show.
export function queryPanel(reply, imageUrl) {
  const { item, known_words: known, unknown_words: unknown } = reply.query;
  const url = imageUrl || (item?.modality === "images" ? item.thumbnail : null);
  const parts = [];
  if (item?.modality === "texts" && item.text) parts.push(el("blockquote", {}, shorten(item.text, 600)));
  if (item) parts.push(el("p", { class: "note" }, item.id));
  else if (url) parts.push(el("p", { class: "note" }, "Your image"));
  if (reply.query.unknown_image) {
    const warning = "The model was trained on no image like this one; results are unreliable.";
    parts.push(el("p", { class: "note warn" }, warning));
  }
  if (known && !known.length) {
    const warning = "No query word is known to the model; results are unreliable.";
    parts.push(el("p", { class: "note warn" }, warning));
  } else if (unknown?.length) {
    // A warning where fewer than half of the words count.
    const kind = unknown.length < known.length ? "note" : "note warn";
    parts.push(el("p", { class: kind }, `Ignored words: ${shorten(unknown.join(", "), 200)}`));
  }
  if (!parts.length) return [];
  const image = url ? el("img", { src: url, alt: item ? `Image ${item.id}` : "Your image" }) : null;
  return [image, el("div", { class: "about" }, ...parts)].filter(Boolean);
}

export function trail(steps, open) {
  const parts = [];
  steps.forEach((step, i) => {
    const last = i === steps.length - 1;
    const content = [
      step.image ? el("img", { src: step.image, alt: "" }) : null,
      el("span", {}, shorten(step.label, 40)),
    ];
    const node = last
      ? el("span", { class: "here", "aria-current": "page" }, ...content)
      : el("a", { href: step.url }, ...content);
    if (!last) {
      node.addEventListener("click", (event) => {
        if (isPlainClick(event)) open(event, i);
      });
    }
    if (i) parts.push(el("span", { class: "arrow", "aria-hidden": "true" }, "→"));
    parts.push(node);
  });
  return parts;
}

export function isPlainClick(event) {
  return event.button === 0 && !event.metaKey && !event.ctrlKey && !event.shiftKey && !event.altKey;
}

export function exampleLists({ texts, images }, itemUrl) {
  const parts = [];
  const link = (item, content) => el("a", { href: itemUrl(item), "data-number": item.number }, content);
  if (texts.length) {
    parts.push(el("h2", {}, "Start from one of your texts"));
    parts.push(el("ul", { class: "chips" }, ...texts.slice(0, 6).map((t) => el("li", {}, link(t, t.text)))));
  }
  if (images.length) {
    parts.push(el("h2", {}, texts.length ? "Or from one of your images" : "Start from one of your images"));
    parts.push(el("ul", { class: "thumbnails" }, ...images.map((i) => el("li", {}, link(i, thumbnail(i))))));
  }
  return parts;
}
