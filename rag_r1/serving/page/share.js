// Taking something out of the page: into a file, as a link.

import { saveBlob } from "./clipboard.js";

export function saveJson(record) {
  saveBlob(new Blob([JSON.stringify(record, null, 2)], { type: "application/json" }), "rag-r1-answer.json");
}

// The question stands behind the #, so it is in no log of a server. Answers are greedy: the link gives the same again.
export function questionLink(question) {
  return `${location.href.split("#")[0]}#q=${encodeURIComponent(question)}`;
}

// The question of a link, to be sent by its reader: a page that was only opened asks nothing.
export function linkedQuestion() {
  const [, text] = /^#q=(.*)$/.exec(location.hash) ?? [];
  try {
    return text ? decodeURIComponent(text) : "";
  } catch {
    return "";
  }
}
