// Exports an answer as a file, and a question as a link.

import { saveBlob } from "./clipboard.js";

export function saveJson(record) {
  saveBlob(new Blob([JSON.stringify(record, null, 2)], { type: "application/json" }), "rag-r1-answer.json");
}

// The question follows the #, so it is in no server's log. Answers are greedy, so the link leads to the same answer.
export function questionLink(question) {
  return `${location.href.split("#")[0]}#q=${encodeURIComponent(question)}`;
}

// The question in the page's address. It is only put into the input: opening a link does not send a question.
export function linkedQuestion() {
  const [, text] = /^#q=(.*)$/.exec(location.hash) ?? [];
  try {
    return text ? decodeURIComponent(text) : "";
  } catch {
    return "";
  }
}
