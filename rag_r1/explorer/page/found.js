// Shows where a trajectory contains the text of the search: a line names the parts of the record that contain it, and
// the browser highlights its occurrences (CSS Custom Highlight API), so that no element changes. As in the server's
// search, letter case is ignored.

import { button, counted, element, visible } from "./dom.js";

// The elements of the page that show each part of a record.
const SHOWN = {
  question: ".question", answer: ".answered .given", generated: ".tokens.generated .text", query: ".query .said",
  passage: ".passage .title, .passage > .text, .passage > div > .text",
};

const pattern = (text) => new RegExp(text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), "giu");

// The texts of each part of a record.
function partsOf({ question, answer, turns }) {
  const calls = (turns ?? []).flatMap((turn) => turn.calls ?? []);
  return {
    question: [question], answer: [answer], generated: (turns ?? []).map((turn) => turn.text),
    query: calls.map((call) => Object.values(call.arguments ?? {}).map((one) => (typeof one === "string" ? one : JSON.stringify(one))).join("\n")),
    passage: calls.flatMap((call) => (call.documents ?? []).map((one) => one.contents)),
  };
}

// Makes a line that says which parts contain the text, and how often. A button leads to the first occurrence in a part.
export function foundLine(box, record, text) {
  const line = element("p", "found-line soft");
  line.append("“", element("b", "", visible(text)), "” stands in ");
  const found = Object.entries(partsOf(record)).flatMap(([part, texts]) => {
    const n = texts.reduce((sum, one) => sum + [...String(one ?? "").matchAll(pattern(text))].length, 0);
    return n ? [button(`${part} (${counted(n, "time")})`, () => firstOf(box, part, text)?.scrollIntoView({ block: "center" }))] : [];
  });
  line.append(...(found.length ? found : ["no part that is shown"]));
  return line;
}

function firstOf(box, part, text) {
  const holder = [...box.querySelectorAll(SHOWN[part])].find((one) => rangesIn(one, text).length);
  const passage = holder?.closest("details");
  if (passage) passage.open = true;
  return holder;
}

// Highlights the occurrences of a text in the shown record; none for "".
export function highlight(box, text) {
  if (!globalThis.CSS?.highlights) return;
  CSS.highlights.delete("found");
  if (!text) return;
  const holders = [...box.querySelectorAll(Object.values(SHOWN).join(", "))];
  const ranges = holders.flatMap((holder) => rangesIn(holder, text));
  if (ranges.length) CSS.highlights.set("found", new Highlight(...ranges));
}

// Finds the ranges of a text in an element. A range may span several text nodes, such as those around a mark.
function rangesIn(holder, text) {
  const nodes = [];
  const walker = document.createTreeWalker(holder, NodeFilter.SHOW_TEXT);
  let whole = "";
  while (walker.nextNode()) {
    nodes.push([walker.currentNode, whole.length]);
    whole += walker.currentNode.data;
  }
  const at = (offset, isEnd) => {
    const [node, begin] = nodes.findLast(([, start]) => (isEnd ? start < offset : start <= offset));
    return [node, offset - begin];
  };
  return [...whole.matchAll(pattern(text))].map(({ index, 0: match }) => {
    const range = new Range();
    range.setStart(...at(index, false));
    range.setEnd(...at(index + match.length, true));
    return range;
  });
}
