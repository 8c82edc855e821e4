// Creates elements of the page. Questions, answers, queries and documents are hostile data. They enter the page only
// through textContent, so nothing in them becomes markup. Characters that would be invisible, or would change the
// direction of the text around them, are made visible.

const SVG = "http://www.w3.org/2000/svg";
// Control characters, zero-width characters that no script needs, and characters that change the text direction.
const INVISIBLE = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;
const SURROGATE = /[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;

export function element(tag, className = "", text = "") {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== "") made.textContent = text;
  return made;
}

export function shape(tag, attributes) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

// Makes a text of unknown origin safe to show. If it has such characters, its length changes.
export function visible(text) {
  return String(text ?? "")
    .replaceAll("\r\n", "\n")
    .replace(SURROGATE, "\ufffd")
    .replace(INVISIBLE, (one) => `⟨${one.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
}

// Makes an element with such a text, which is isolated from the direction of the text around it.
export function data(tag, className, text) {
  const made = element(tag, className);
  made.dir = "auto";
  made.textContent = visible(text);
  return made;
}

// Shows the first `most` characters of a text, and a button for the rest. `paint(element, text)` writes the text.
export function longText(className, text, most, paint = (box, part) => { box.textContent = part; }) {
  const whole = visible(text);
  const box = element("div", className);
  box.dir = "auto";
  paint(box, whole.slice(0, most));
  if (whole.length <= most) return box;
  const outer = element("div");
  const more = button(`Show all ${count(whole.length)} characters`, () => {
    paint(box, whole);
    more.remove();
  });
  outer.append(box, more);
  return outer;
}

export function button(text, onClick, className = "quiet") {
  const made = element("button", className, text);
  made.type = "button";
  made.addEventListener("click", onClick);
  return made;
}

export function link(text, hash, className = "") {
  const made = element("a", className, text);
  made.setAttribute("href", hash);
  return made;
}

// Makes a term and its value for a <dl>.
export function fact(list, name, value) {
  const box = list.appendChild(element("div"));
  box.append(element("dt", "", name));
  box.append(wrap("dd", longText("", value, 300)));
}

export function wrap(tag, ...children) {
  const made = element(tag);
  made.append(...children);
  return made;
}

const whole = new Intl.NumberFormat("en-US");
// `|| 0`: -0 is shown as 0.
export const count = (number) => (Number.isFinite(number) ? whole.format(number || 0) : "–");

// "1 search", "3 searches".
export const counted = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;

// Formats a measured number with as many digits as are useful.
export function amount(number) {
  if (!Number.isFinite(number)) return "–";
  if (Number.isInteger(number)) return count(number);
  const size = Math.abs(number);
  if (size >= 100) return number.toFixed(0);
  if (size >= 10) return number.toFixed(1);
  return size >= 0.01 || size === 0 ? number.toFixed(2) : number.toPrecision(1);
}

// Formats a time in seconds, with its unit.
export const seconds = (number) => (number < 0.01 ? "< 0.01 s" : `${amount(number)} s`);

export const signed = (number) => `${number > 0 ? "+" : number < 0 ? "−" : ""}${amount(Math.abs(number))}`;
export const percent = (part, all) => (all ? `${((100 * part) / all).toFixed(1)} %` : "–");

// Returns the sign of a verdict, since colour alone must not convey it.
export function verdict(right, text = false) {
  const [kind, sign, name] = right === true ? ["right", "✓", "right"] : right === false
    ? ["wrong", "✗", "wrong"] : ["unjudged", "–", "not judged"];
  const made = element("span", `verdict ${kind}`);
  const shown = element("span", "", sign);
  shown.ariaHidden = "true";
  made.append(shown, element("span", text ? "" : "hidden", text ? ` ${name}` : name));
  return made;
}

// Shortens the name of a run. Of a long path the end is kept, which distinguishes it from others.
export function runName(run, most = 20) {
  const name = visible(run);
  return name.length > most ? `…${name.slice(1 - most)}` : name;
}

// Makes names from the data set or the records readable.
export const words = (name) => String(name ?? "").replaceAll("_", " ");
