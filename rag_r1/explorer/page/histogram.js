// A histogram above a column of the table. Dragging over its bars, or a click on a bar, sets the range of the column.
// Enter or Space opens a form for the two ends of the range, for use with the keyboard.

import { amount, button, element, shape } from "./dom.js";
import { current, go } from "./state.js";

const WIDTH = 100;
const HEIGHT = 26;

// `name` is the name of the filter (state.js), and `title` the title of the column.
export function histogram(name, title, bins) {
  const state = current();
  const [low, high] = [`${name}_min`, `${name}_max`].map((key) => (state.has(key) ? Number(state.get(key)) : null));
  const isSet = low !== null || high !== null;
  const box = element("div", `histogram${isSet ? " set" : ""}`);
  const span = isSet
    ? `${low === null ? "≤" : amount(low)}${low !== null && high !== null && low !== high ? " – " : low === null ? " " : ""}${
      high === null ? " or more" : high === low ? "" : amount(high)}`
    : bins.length ? ends(bins[0].lo, bins.at(-1).hi) : "no values";
  const open = button("", () => {}, "bars");
  open.ariaLabel = `Filter by ${title.toLowerCase()}, now ${span}`;
  open.title = "Drag to set a range";
  open.dataset.range = name;
  open.append(bars(bins, low, high));
  box.append(open);
  const line = box.appendChild(element("span", "range", span));
  if (isSet) {
    const clear = button("×", () => go({ [`${name}_min`]: null, [`${name}_max`]: null }), "clear");
    clear.ariaLabel = `Clear the range of ${title.toLowerCase()}`;
    line.append(clear);
  }
  open.addEventListener("click", (event) => {
    if (event.detail === 0) rangeForm(box, name, title, [low, high], open);   // pressed by a key
  });
  if (bins.length) dragging(open, name, bins);
  return box;
}

const ends = (low, high) => (low === high ? amount(low) : `${amount(low)} – ${amount(high)}`);

function bars(bins, low, high) {
  const picture = shape("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" });
  const most = Math.max(1, ...bins.map(({ n }) => n));
  const width = WIDTH / Math.max(bins.length, 1);
  bins.forEach((bin, place) => {
    const out = (low !== null && bin.hi < low) || (high !== null && bin.lo > high);
    const group = picture.appendChild(shape("g", { class: out ? "out" : "" }));
    group.append(shape("rect", { x: place * width, y: 0, width, height: HEIGHT, class: "behind" }));
    let top = HEIGHT;
    for (const [kind, n] of [["right", bin.right ?? 0], ["rest", bin.n - (bin.right ?? 0)]]) {
      if (!n) continue;
      const height = Math.max((HEIGHT * n) / most, 1);
      top -= height;
      group.append(shape("rect", { x: place * width + 0.5, y: top, width: Math.max(width - 1, 0.6), height, class: kind }));
    }
    group.append(shape("title", {}));
    group.lastChild.textContent = `${ends(bin.lo, bin.hi)}: ${bin.n}, ${bin.right ?? 0} right`;
  });
  return picture;
}

function dragging(open, name, bins) {
  const at = (event) => {
    const { left, width } = open.getBoundingClientRect();
    return Math.min(bins.length - 1, Math.max(0, Math.floor((bins.length * (event.clientX - left)) / width)));
  };
  let from = null;
  const groups = open.querySelectorAll("g");
  const show = (first, last) => groups.forEach((group, place) => {
    group.classList.toggle("out", place < Math.min(first, last) || place > Math.max(first, last));
  });
  open.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    from = at(event);
    open.setPointerCapture(event.pointerId);
    show(from, from);
  });
  open.addEventListener("pointermove", (event) => { if (from !== null) show(from, at(event)); });
  open.addEventListener("pointercancel", () => { from = null; });
  open.addEventListener("pointerup", (event) => {
    if (from === null) return;
    const [first, last] = [from, at(event)].sort((one, other) => one - other);
    from = null;
    go({ [`${name}_min`]: bins[first].lo, [`${name}_max`]: bins[last].hi });
  });
}

function rangeForm(box, name, title, [low, high], open) {
  const form = element("form", "range-form");
  const fields = [["from", low], ["to", high]].map(([text, value]) => {
    const label = form.appendChild(element("label", "", text));
    const field = label.appendChild(element("input"));
    field.type = "number";
    field.step = "any";
    field.value = value ?? "";
    field.ariaLabel = `${title} ${text}`;
    return field;
  });
  const set = element("button", "quiet", "Set");
  const close = () => {
    form.remove();
    open.focus();
  };
  form.append(set, button("Clear", () => {
    close();
    go({ [`${name}_min`]: null, [`${name}_max`]: null });
  }));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    close();
    go({ [`${name}_min`]: fields[0].value, [`${name}_max`]: fields[1].value });
  });
  form.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    event.stopPropagation();
    close();
  });
  form.addEventListener("focusout", (event) => {
    if (event.relatedTarget && !form.contains(event.relatedTarget)) form.remove();
  });
  box.append(form);
  fields[0].focus();
}
