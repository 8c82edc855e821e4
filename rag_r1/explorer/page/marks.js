// Marks answers in a text by splitting its text node, so that text never becomes markup. Texts are compared word by
// word, without regard to letter case, punctuation, white space and a leading article. In scripts without spaces each
// character counts as a word.

import { element } from "./dom.js";

const ALONE = "\\p{Script=Han}\\p{Script=Hiragana}\\p{Script=Katakana}\\p{Script=Thai}";
const WORD = new RegExp(`[${ALONE}]|(?:(?![${ALONE}])[\\p{L}\\p{N}\\p{M}])+`, "gu");
const ARTICLES = new Set(["a", "an", "the"]);

const wordsOf = (text) => [...text.matchAll(WORD)].map((match) => ({
  key: match[0].toLowerCase(), from: match.index, to: match.index + match[0].length,
}));

// Returns the places [from, to] of these phrases in a text, in order and without overlaps.
export function places(text, phrases) {
  const wanted = phrases.map((phrase) => {
    const keys = wordsOf(String(phrase)).map(({ key }) => key);
    return keys.length > 1 && ARTICLES.has(keys[0]) ? keys.slice(1) : keys;
  }).filter((keys) => keys.length);
  const starts = new Set(wanted.map((keys) => keys[0]));
  const words = wanted.length ? wordsOf(text) : [];
  const found = [];
  for (let at = 0; at < words.length; at++) {
    if (!starts.has(words[at].key)) continue;
    const length = Math.max(0, ...wanted
      .filter((keys) => keys.every((key, next) => words[at + next]?.key === key))
      .map((keys) => keys.length));
    if (!length) continue;
    found.push([words[at].from, words[at + length - 1].to]);
    at += length - 1;
  }
  return found;
}

// Writes a text into an element, with these phrases marked.
export function marked(box, text, phrases) {
  const parts = [];
  let end = 0;
  for (const [from, to] of places(text, phrases)) {
    parts.push(text.slice(end, from), element("mark", "", text.slice(from, to)));
    end = to;
  }
  box.replaceChildren(...parts, text.slice(end));
}
