// Elements of the page. Questions, answers, queries and documents are hostile data: they enter the page through
// textContent only, so nothing in them is ever markup. What would be invisible in them, or would turn the order of
// the text around it, is made visible.

const SVG = "http://www.w3.org/2000/svg";
// Control characters, zero-width ones without a use in writing, and those that turn the direction of text.
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

// A text of unknown origin as it may be shown: its length is unchanged only where it has no such character.
export function visible(text) {
  return String(text ?? "")
    .replaceAll("\r\n", "\n")
    .replace(SURROGATE, "\ufffd")
    .replace(INVISIBLE, (one) => `⟨${one.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
}

// An element with such a text. It is isolated from the direction of the text around it.
export function data(tag, className, text) {
  const made = element(tag, className);
  made.dir = "auto";
  made.textContent = visible(text);
  return made;
}

// A text of which a button shows what is beyond the first `most` characters. `paint(element, text)` writes it.
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

// A term and its value, in a <dl>.
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

// A measured number, with as many digits as are of use.
export function amount(number) {
  if (!Number.isFinite(number)) return "–";
  if (Number.isInteger(number)) return count(number);
  const size = Math.abs(number);
  if (size >= 100) return number.toFixed(0);
  if (size >= 10) return number.toFixed(1);
  return size >= 0.01 || size === 0 ? number.toFixed(2) : number.toPrecision(1);
}

// Seconds, with their unit.
export const seconds = (number) => (number < 0.01 ? "< 0.01 s" : `${amount(number)} s`);

export const signed = (number) => `${number > 0 ? "+" : number < 0 ? "−" : ""}${amount(Math.abs(number))}`;
export const percent = (part, all) => (all ? `${((100 * part) / all).toFixed(1)} %` : "–");

// The sign of a verdict, which is never told by its colour alone.
export function verdict(right, text = false) {
  const [kind, sign, name] = right === true ? ["right", "✓", "right"] : right === false
    ? ["wrong", "✗", "wrong"] : ["unjudged", "–", "not judged"];
  const made = element("span", `verdict ${kind}`);
  const shown = element("span", "", sign);
  shown.ariaHidden = "true";
  made.append(shown, element("span", text ? "" : "hidden", text ? ` ${name}` : name));
  return made;
}

// The name of a run: of a long path the end, which tells it from others.
export function runName(run, most = 20) {
  const name = visible(run);
  return name.length > most ? `…${name.slice(1 - most)}` : name;
}

// Names of the data set's and the records' own words, for people.
export const words = (name) => String(name ?? "").replaceAll("_", " ");
