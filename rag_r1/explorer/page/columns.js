// The columns of the table: their names in the API, their titles and their cells. A column of numbers also has the
// filter that the histogram above it sets.

import { amount, button, data, element, runName, verdict, words } from "./dom.js";
import { histogram } from "./histogram.js";
import { go } from "./state.js";

const troubles = ({ cause, status, masked }) => [
  ...(masked ? ["masked"] : []), ...(cause ? [words(cause)] : status === "answered" ? [] : [words(status)]),
];

export const COLUMNS = [
  ["right", "Verdict", (row) => verdict(row.right)],
  ["question", "Question", null],
  ["answer", "Answer", answers],
  ["run", "Run", (row) => element("span", "", runName(row.run))],
  ["step", "Step", (row) => amount(row.step), "step"],
  ["score", "Score", (row) => amount(row.score), "score"],
  ["searches", "Searches", (row) => amount(row.searches), "searches"],
  ["turns", "Turns", (row) => amount(row.turns), "turns"],
  ["generated_tokens", "Generated", (row) => amount(row.generated_tokens), "generated"],
  ["cause", "Cause", (row) => data("span", "", troubles(row).join(", "))],
];

function answers(row) {
  const box = element("span", "answers");
  box.append(row.answer === null || row.answer === undefined
    ? element("span", "soft", "no answer") : data("span", "", row.answer));
  // Also shown if a judge has found an answer right whose words differ, because a judge can be wrong.
  if (row.golds?.length && (row.right === false || (row.right && !row.golds.some((gold) => same(gold, row.answer))))) {
    box.append(element("span", "hidden", ", gold: "), data("span", "gold", row.golds[0]));
  }
  return box;
}

const letters = (text) => String(text ?? "").toLowerCase().replace(/\b(a|an|the)\b|[^\p{L}\p{N}]/gu, "");
const same = (one, other) => letters(one) === letters(other);

// Makes the titles, which sort the table (up, down, not at all), and the histograms. `bins` are by name of the filter.
export function headLine(columns, state, bins) {
  const line = element("tr");
  for (const [name, title, , range] of columns) {
    const cell = line.appendChild(element("th", `c-${name}`));
    cell.scope = "col";
    const sorted = state.get("sort") === name ? state.get("order") ?? "asc" : "";
    if (sorted) cell.ariaSort = sorted === "asc" ? "ascending" : "descending";
    const sort = button(title, () => {
      const [by, order] = !sorted ? [name, "asc"] : sorted === "asc" ? [name, "desc"] : [null, null];
      go({ sort: by, order });
    }, "sort");
    sort.title = "Sort";
    if (sorted) sort.append(element("span", "arrow", sorted === "asc" ? " ↑" : " ↓"));
    cell.append(sort);
    if (range && bins[range]) cell.append(histogram(range, title, bins[range]));
  }
  return line;
}
