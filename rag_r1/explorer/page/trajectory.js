// Shows one trajectory: the question, the answer with the gold answers, why it failed, its tokens, its turns, and the
// panels beside them (aside.js). The static page of an export uses this module, too, so it does not use the server.

import { aside } from "./aside.js";
import { count, counted, data, element, longText, shape, verdict, words } from "./dom.js";
import { places } from "./marks.js";
import { failureNote, promptBox, turnList } from "./turns.js";

const ENDS = {
  turn_limit: "it used up its turns", token_limit: "it used up its tokens", no_action: "it neither searched nor answered",
  tool_failure: "a search had failed", engine_failure: "the engine failed", bad_row: "the row could not be used",
  error: "an error ended it",
};

// `details` is the answer of /api/trajectory/TID. For `links` see aside.js; without them there are no side panels.
export function trajectory(details, links = null) {
  const { row, record } = details;
  const box = element("article", "trajectory");
  const head = box.appendChild(element("header", "asked"));
  const title = head.appendChild(element("h2"));
  title.append(longText("question", record.question, 1500));
  head.append(outcome(details), tokenBar(record));
  const columns = box.appendChild(element("div", links ? "columns" : ""));
  const played = columns.appendChild(element("div", "played"));
  showPath(played, details, record, details.gold_passages);
  if (links) columns.append(aside(details, links));
  if (row.right !== undefined) box.dataset.right = String(row.right);
  return box;
}

// Makes the list of the turns. A trajectory with several paths has a list for each.
function showPath(played, details, record, gold) {
  const golds = details.row.golds ?? [];
  played.replaceChildren();
  const paths = details.record.paths ?? [];
  if (paths.length > 1) {
    const choice = played.appendChild(element("div", "paths"));
    choice.append(element("span", "soft", `${paths.length} paths:`));
    paths.forEach((path, number) => {
      const one = choice.appendChild(element("button", "quiet", `${number + 1}: `));
      one.type = "button";
      one.append(data("span", "", path.answer ?? words(path.status)));
      one.ariaPressed = String((record.path ?? 0) === number);
      one.addEventListener("click", () => {
        showPath(played, details, { ...path, path: number }, goldPassages(path, golds));
        played.querySelectorAll(".paths button")[number].focus();
      });
    });
  }
  const prompt = promptBox(details.record);
  if (prompt) played.append(prompt);
  if (!(record.turns ?? []).length) {
    played.append(element("p", "soft", "This trajectory has no turns."));
    for (const failure of record.failures ?? []) played.append(failureNote(failure));
  } else played.append(turnList(record, golds, gold ?? goldPassages(record, golds)));
}

export function goldPassages(record, golds) {
  const found = [];
  (record.turns ?? []).forEach((turn, number) => (turn.calls ?? []).forEach((call, place) => {
    (call.documents ?? []).forEach((one, rank) => {
      if (places(String(one.contents), golds).length) found.push([number, place, rank]);
    });
  }));
  return found;
}

function outcome({ row, record, cause }) {
  const box = element("div", `outcome ${row.right === true ? "right" : row.right === false ? "wrong" : ""}`);
  const answer = box.appendChild(element("div", "answered"));
  answer.append(element("h3", "", "Answer"));
  if (record.answer !== null && record.answer !== undefined) answer.append(longText("given", record.answer, 600));
  else answer.append(element("p", "given none", `No answer: ${ENDS[record.status] ?? words(record.status)}`));
  const gold = box.appendChild(element("div", "golds"));
  const golds = row.golds ?? [];
  gold.append(element("h3", "", golds.length > 1 ? "Gold answers" : "Gold answer"));
  if (!golds.length) gold.append(element("p", "given none", "not known"));
  for (const one of golds.slice(0, 8)) gold.append(longText("given", one, 300));
  if (golds.length > 8) gold.append(element("p", "soft", `and ${count(golds.length - 8)} others`));
  const why = box.appendChild(element("div", "why"));
  const badges = why.appendChild(element("p", "badges"));
  badges.append(verdict(row.right, true));
  if (cause?.name) badges.append(element("span", "badge", words(cause.name)));
  if (row.masked) badges.append(element("span", "badge warn", "masked"));
  if (cause?.sentence) why.append(data("p", "", cause.sentence));
  const held = cause?.evidence?.gold_passages?.length;
  if (held) why.append(element("p", "soft", `${counted(held, "gold passage was", "gold passages were")} shown.`));
  return box;
}

// Shows how the tokens are distributed over the prompt and, for each turn, generated and observed text.
function tokenBar(record) {
  const box = element("figure", "budget");
  const parts = [["prompt", record.prompt_tokens ?? 0]];
  for (const turn of record.turns ?? []) {
    parts.push(["generated", turn.generated_tokens ?? 0], ["observed", turn.observed_tokens ?? 0]);
  }
  const all = parts.reduce((sum, [, size]) => sum + size, 0);
  const picture = shape("svg", { viewBox: "0 0 1000 10", preserveAspectRatio: "none", "aria-hidden": "true" });
  let at = 0;
  for (const [kind, size] of parts.filter(([, tokens]) => tokens > 0)) {
    const width = (1000 * size) / all;
    picture.append(shape("rect", { x: at, y: 0, width: Math.max(width - 1.5, 0.5), height: 10, class: kind }));
    at += width;
  }
  const caption = element("figcaption");
  const sums = [["prompt", record.prompt_tokens], ["generated", record.generated_tokens], ["observed", record.observed_tokens]];
  for (const [kind, size] of sums) caption.append(element("span", `key ${kind}`, `${count(size ?? 0)} ${kind}`));
  const turns = counted((record.turns ?? []).length, "turn");
  caption.append(element("span", "soft", `tokens in ${turns}`));
  box.append(picture, caption);
  return box;
}
