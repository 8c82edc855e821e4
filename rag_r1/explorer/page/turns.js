// Shows the turns of a trajectory: what the policy generated, and beside or below it what it was shown. Generated and
// observed texts always have different labels and colours.

import { amount, count, counted, data, element, longText, seconds, signed, visible, words } from "./dom.js";
import { heatStrip, tokensOfTurns } from "./logprobs.js";
import { marked } from "./marks.js";

const TAG = /<\/?[A-Za-z_][\w-]{0,40}>|<\|[\w-]{1,40}\|>/g;
const ACTIONS = {
  search: "searches", call: "calls a tool", answer: "answers", plan: "plans", think: "thinks",
  summary: "summarises", backtrack: "goes back", invalid: "no valid action",
};

// `gold` has [turn, call, document], counted from 0, of the passages that contain a gold answer.
export function turnList(record, golds, gold) {
  const list = element("ol", "turns");
  const turns = record.turns ?? [];
  const tokens = tokensOfTurns({ ...record, turns });
  const removedIn = new Map(turns.flatMap((turn, number) => (turn.removed ?? []).map((one) => [one, number])));
  const golden = new Set((gold ?? []).map((place) => place.join("/")));
  const seen = { queries: new Set(), longest: longestTexts(turns) };
  turns.forEach((turn, number) => {
    if (number && turn.row !== turns[number - 1].row) list.append(rewritten(turn, number, removedIn));
    const credit = record.turn_scores?.[number];
    const box = list.appendChild(turnBox(turn, number, credit, removedIn.get(number)));
    box.append(generated(turn, golds, tokens[number]));
    if (turn.calls?.length || turn.observed_tokens) box.append(observed(turn, number, golds, golden, seen));
    for (const failure of record.failures ?? []) if (failure.turn === number) box.append(failureNote(failure));
  });
  return list;
}

// Makes the folded prompt, which the records of a training do not have.
export function promptBox({ prompt, prompt_tokens: tokens }) {
  if (!Array.isArray(prompt) || !prompt.length) return null;
  const box = element("details", "tokens prompt");
  box.append(element("summary", "", `Prompt · ${counted(tokens ?? 0, "token")}`));
  for (const message of prompt) {
    box.append(data("p", "soft", message?.role ?? ""), longText("text", message?.content ?? JSON.stringify(message), 8000));
  }
  return box;
}

export function failureNote({ kind, detail }) {
  const note = element("p", "note warn");
  note.append(element("b", "", `${words(kind)} failure`), detail ? ": " : "", data("span", "", detail ?? ""));
  return note;
}

function turnBox(turn, number, credit, removedBy) {
  const box = element("li", `turn${removedBy === undefined ? "" : " removed"}`);
  box.id = `turn-${number + 1}`;
  box.tabIndex = -1;
  const head = box.appendChild(element("div", "turn-head"));
  head.append(element("h3", "", `Turn ${number + 1}`));
  head.append(element("span", "does", ACTIONS[turn.action] ?? words(turn.action)));
  if (turn.status && turn.status !== "ok") head.append(element("span", "badge warn", words(turn.status)));
  if (turn.simulated) head.append(element("span", "badge warn", `wrote ${counted(turn.simulated, "observation")} itself`));
  if (removedBy !== undefined) head.append(element("span", "badge", `taken out of the context in turn ${removedBy + 1}`));
  const times = [["generated", turn.generate_s], ["tools", turn.tool_s]].filter(([, value]) => value > 0);
  head.append(element("span", "time", times.map(([name, value]) => `${name} ${seconds(value)}`).join(", ")));
  if (Number.isFinite(credit)) {
    const shown = head.appendChild(element("span", `credit ${credit > 0 ? "plus" : credit < 0 ? "minus" : ""}`));
    shown.textContent = `credit ${signed(credit)}`;
  }
  return box;
}

function rewritten(turn, number, removedIn) {
  const out = [...removedIn].filter(([, by]) => by === number || by === number - 1).map(([one]) => one + 1);
  const left = out.length ? ` without turn${out.length > 1 ? "s" : ""} ${out.join(", ")}` : "";
  return element("li", "rewritten", `Context rewritten${left}: training row ${turn.row + 1} begins`);
}

function strip(kind, tokens) {
  const box = element("section", `tokens ${kind}`);
  box.append(element("h4", "", `${kind === "generated" ? "Generated" : "Observed"} · ${counted(tokens ?? 0, "token")}`));
  return box;
}

function generated(turn, golds, tokens) {
  const box = strip("generated", turn.generated_tokens);
  if (turn.text) box.append(longText("text", turn.text, 8000, (part, text) => tagged(part, text, golds)));
  else box.append(element("p", "soft", "Nothing was generated."));
  if (tokens?.length) box.append(heatStrip(tokens));
  if (Number.isFinite(turn.state)) box.append(element("p", "soft", `State of the memory: ${amount(turn.state)} nats`));
  return box;
}

// Dims the protocol's tags, and distinguishes thoughts from other text.
function tagged(box, text, golds) {
  const parts = [];
  let end = 0;
  let inside = "";
  const piece = (from, to) => {
    if (from === to) return;
    const part = element("span", inside === "think" ? "thought" : inside ? "said" : "");
    marked(part, text.slice(from, to), golds);
    parts.push(part);
  };
  for (const match of text.matchAll(TAG)) {
    piece(end, match.index);
    parts.push(element("span", "tag", match[0]));
    end = match.index + match[0].length;
    inside = match[0].startsWith("</") ? "" : match[0].slice(1, -1).toLowerCase();
  }
  piece(end, text.length);
  box.replaceChildren(...parts);
}

function observed(turn, number, golds, golden, seen) {
  const box = strip("observed", turn.observed_tokens);
  const calls = turn.calls ?? [];
  const seenText = observationText(turn);
  if (!calls.length) {
    box.append(seenText ? longText("text", seenText, 8000)
      : element("p", "soft", "A hint of the environment; the record does not hold its text."));
    return box;
  }
  const row = box.appendChild(element("div", "calls"));
  row.dataset.count = Math.min(calls.length, 3);
  calls.forEach((call, place) => row.append(callBox(call, (rank) => golden.has(`${number}/${place}/${rank}`), golds, seen)));
  if (seenText) {
    const whole = box.appendChild(element("details", "as-seen"));
    whole.append(element("summary", "", "As the policy saw it"));
    whole.append(longText("text", seenText, 8000));
  }
  return box;
}

// Shows what followed the turn in the context: text, and between it the documents as [call, document].
function observationText({ observation, calls }) {
  if (!Array.isArray(observation)) return "";
  return observation.map((piece) => (Array.isArray(piece)
    ? calls?.[piece[0]]?.documents?.[piece[1]]?.contents ?? "" : String(piece))).join("").trim();
}

function callBox(call, isGold, golds, seen) {
  const box = element("div", "call");
  const query = call.arguments?.query ?? JSON.stringify(call.arguments ?? {});
  const line = box.appendChild(element("p", "query"));
  line.append(data("span", "said", query), " ");
  if (call.tool !== "search") line.prepend(data("span", "tool", call.tool), " ");
  const documents = call.documents;
  const how = [documents ? counted(documents.length, "passage") : "nothing shown"];
  if (call.seconds > 0) how.push(seconds(call.seconds));
  line.append(data("span", "how", [...how, ...(call.index ? [`index ${call.index}`] : [])].join(", ")));
  const key = `${call.tool} ${String(query).trim().toLowerCase()}`;
  if (seen.queries.has(key)) line.append(" ", element("span", "badge", "same as before"));
  seen.queries.add(key);
  if (call.status && call.status !== "ok") line.append(" ", element("span", "badge warn", words(call.status)));
  if (call.sent) {
    const sent = box.appendChild(element("p", "soft"));
    sent.append("sent as ", data("span", "", call.sent.query ?? JSON.stringify(call.sent)));
  }
  if (documents && !documents.length) box.append(element("p", "soft", "Nothing was found."));
  (documents ?? []).forEach((one, rank) => box.append(passage(one, rank, isGold(rank), golds, seen.longest)));
  return box;
}

function passage(one, rank, isGold, golds, longest) {
  const contents = visible(one.contents);
  const at = contents.indexOf("\n");
  const first = (at < 0 ? contents : contents.slice(0, at)).replace(/^"(.*)"$/, "$1");
  const rest = at < 0 ? "" : contents.slice(at + 1).trim();
  const box = element("details", `passage${isGold ? " gold" : ""}`);
  box.open = isGold || one.verbatim === true;
  const summary = box.appendChild(element("summary"));
  summary.append(element("span", "rank", String(rank + 1)));
  const title = summary.appendChild(element("span", "title"));
  title.dir = "auto";
  marked(title, first.slice(0, 300) || one.id || "(no text)", golds);
  if (isGold) summary.append(element("span", "badge gold", "gold"));
  const missing = (longest.get(one.id) ?? 0) - String(one.contents).length;
  if (missing > 0) summary.append(element("span", "badge", `cut by ${count(missing)} characters`));
  else if (one.cut) summary.append(element("span", "badge", "cut"));
  if (Number.isFinite(one.score)) summary.append(element("span", "score", one.score.toFixed(2)));
  const start = summary.appendChild(element("span", "start"));
  start.dir = "auto";
  marked(start, rest.slice(0, 240).split("\n", 1)[0], golds);
  box.append(longText("text", rest || contents, 3000, (part, text) => marked(part, text, golds)));
  box.append(data("p", "id", `id ${one.id}`));
  return box;
}

// A passage that is shorter here than elsewhere in the trajectory was cut to the budget of the observation.
function longestTexts(turns) {
  const longest = new Map();
  for (const turn of turns) {
    for (const call of turn.calls ?? []) {
      for (const one of call.documents ?? []) {
        longest.set(one.id, Math.max(longest.get(one.id) ?? 0, String(one.contents).length));
      }
    }
  }
  return longest;
}
