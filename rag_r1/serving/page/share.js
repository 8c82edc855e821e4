// Taking something out of the page: to the clipboard, into a file, as a link.

// Whether the text is in the clipboard. Browsers keep it from pages that are not on this machine or on https.
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}

export function saveJson(record) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([JSON.stringify(record, null, 2)], { type: "application/json" }));
  link.download = "rag-r1-answer.json";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
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
