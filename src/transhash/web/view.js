// Pieces of the page. Data reach the document as text nodes only, never as markup.

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
export const short = (text, length) => (text.length > length ? `${text.slice(0, length - 1)}…` : text);

// A code as a row of bits: tall for 1, low for 0, warm where it differs from the query.
export function strip(code, differing = []) {
  const far = new Set(differing);
  const paths = { off: "", on: "", differs: "" };
  [...code].forEach((bit, i) => {
    const kind = far.has(i) ? "differs" : bit === "1" ? "on" : "off";
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

export function far(distance, bits) {
  if (distance === 0) return "same code";
  return `${distance} of ${bits} bits ${distance === 1 ? "differs" : "differ"}`;
}

export const badge = (word) => el("span", { class: `badge ${word}` }, word);

export function card(hit, bits, href, beside = null) {
  const foot = el(
    "div",
    { class: "foot" },
    strip(hit.code, hit.differing),
    el(
      "div",
      { class: "facts" },
      hit.relevance ? badge(hit.relevance) : null,
      el("span", { class: "distance" }, far(hit.distance, bits)),
      el("span", { class: "name", title: hit.id }, hit.id),
    ),
  );
  const link = el("a", { class: "card", href, "data-number": hit.number }, face(hit), foot);
  return el("li", {}, link, beside);
}

function face(item) {
  if (item.modality === "texts") return el("div", { class: "words" }, item.text || item.id);
  return picture(item, "picture");
}

function picture(item, kind) {
  if (!item.thumbnail) return el("div", { class: "no-picture" }, item.id);
  return el("img", {
    class: kind,
    src: item.thumbnail,
    alt: `Picture ${item.id}`,
    loading: "lazy",
    decoding: "async",
  });
}

export const grid = (among) => el("ul", { class: `grid ${among}` });

// The two kinds side by side, each under its name.
export function columns(lists) {
  const column = ([title, list]) => el("section", {}, el("h2", {}, title), list);
  return el("div", { class: "both" }, ...lists.map(column));
}

export function skeleton(kind) {
  const among = kind === "texts" ? "texts" : "images";
  const list = el("ul", { class: `grid skeleton ${among}`, "aria-hidden": "true" });
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

// What was searched with: the picture or the words, its code, and which words the model knows.
export function queryPanel(found, source) {
  const query = found.query;
  const item = query.item;
  const about = el("div", { class: "about" });
  const image = source || (item && item.modality === "images" ? item.thumbnail : null);
  const text = item && item.modality === "texts" ? item.text : null;
  // Typed words stand in the field above already.
  if (item && text) about.append(el("blockquote", {}, short(text, 600)));
  if (item) about.append(el("p", { class: "note" }, item.id));
  about.append(strip(query.code));
  const words = query.known_words;
  if (words && words.length) {
    const code = el("span", { class: "coded" }, `The sentence’s code of ${found.bits} bits. `);
    about.append(el("p", { class: "note" }, code, `Words the model knows: ${words.join(", ")}`));
    about.append(...unknown(words, query.unknown_words ?? []));
  } else if (words) {
    const sorry = "The model knows none of these words, so the order below means little.";
    about.append(el("p", { class: "note warn" }, sorry));
  } else {
    const whose = image ? "The picture’s" : "The text’s";
    about.append(el("p", { class: "note coded" }, `${whose} code of ${found.bits} bits`));
  }
  const alt = item ? `Picture ${item.id}` : "Your picture";
  return [image ? el("img", { src: image, alt }) : null, about].filter(Boolean);
}

// Results are for the known words alone; where those are the lesser part, that is a warning.
function unknown(known, others) {
  if (!others.length) return [];
  const listed = short(others.join(", "), 200);
  if (others.length < known.length) return [el("p", { class: "note" }, `It does not know: ${listed}`)];
  const sorry = `It does not know, and leaves out: ${listed}. So the order below may mean little.`;
  return [el("p", { class: "note warn" }, sorry)];
}

export function trail(steps, go) {
  const parts = [];
  steps.forEach((step, i) => {
    const last = i === steps.length - 1;
    const body = [
      step.image ? el("img", { src: step.image, alt: "" }) : null,
      el("span", {}, short(step.label, 40)),
    ];
    const node = last
      ? el("span", { class: "here", "aria-current": "page" }, ...body)
      : el("a", { href: step.url }, ...body);
    if (!last) {
      node.addEventListener("click", (event) => {
        if (plainClick(event)) go(event, i);
      });
    }
    if (i) parts.push(el("span", { class: "arrow", "aria-hidden": "true" }, "→"));
    parts.push(node);
  });
  return parts;
}

export function plainClick(event) {
  return event.button === 0 && !event.metaKey && !event.ctrlKey && !event.shiftKey && !event.altKey;
}

export function exampleLists(found, hrefOf) {
  const parts = [];
  if (found.texts.length) {
    parts.push(el("h2", {}, "Start from one of your texts"));
    const link = (item) => el("a", { href: hrefOf(item), "data-number": item.number }, item.text);
    parts.push(el("ul", { class: "chips" }, ...found.texts.slice(0, 6).map((t) => el("li", {}, link(t)))));
  }
  if (found.images.length) {
    parts.push(el("h2", {}, "Or from a picture"));
    const link = (item) =>
      el("a", { href: hrefOf(item), "data-number": item.number }, picture(item, "picture"));
    parts.push(el("ul", { class: "thumbs" }, ...found.images.map((i) => el("li", {}, link(i)))));
  }
  return parts;
}
