// One question on the page, with its steps while they arrive, its answer, and what is known about the answer.
//
// Questions, documents, queries and answers are untrusted. They enter the page only through textContent, so nothing
// in them becomes markup; the server's Content-Security-Policy forbids everything else.

import { copyText } from "./clipboard.js";
import { saveJson, questionLink } from "./share.js";

// Passages are matched by the words of the answer, which can also occur in a passage about something else.
const CITED = "contains these words";
const FAILURES = {
  turn_limit: "No answer: the agent used up its turns.",
  token_limit: "No answer: the agent used up its tokens.",
  no_action: "No answer: the agent neither searched nor answered.",
};

export function element(tag, className = "", text = "") {
  const created = document.createElement(tag);
  if (className) created.className = className;
  if (text !== "") created.textContent = text;
  return created;
}

export function button(text, onClick) {
  const created = element("button", "quiet", text);
  created.type = "button";
  created.addEventListener("click", onClick);
  return created;
}

export class Turn {
  constructor(question) {
    this.question = question;
    this.calls = new Map();     // "turn/call" -> {step, documents: the passages' elements, by rank}
    this.searched = new Set();  // the queries of this question, in the form in which they are compared
    this.answer = "";
    this.record = { question, events: [] };  // what is exported
    this.root = element("li", "turn");
    this.root.append(element("p", "question", question));
    this.steps = this.root.appendChild(element("ol", "steps"));
    this.status = this.root.appendChild(element("p", "working", "Thinking"));
  }

  step(kind) {
    return this.steps.appendChild(element("li", `step ${kind}`));
  }

  // Shows an event of the stream. Events of later versions are only recorded.
  show(event) {
    const known = { searching: 1, passages: 1, citations: 1, rewrite: 1, queued: 1 };
    this.record.events.push(event);
    if (Object.hasOwn(known, event.event)) this[event.event](event);
  }

  // Shows a piece of reasoning. A blank line begins the reasoning of another turn.
  thought(text) {
    if (!this.thinking || text.startsWith("\n\n")) {
      if (!text.trim()) return;
      this.thinking = this.step("thought").appendChild(element("p"));
      text = text.trimStart();
    }
    this.thinking.append(text);
  }

  // Shows the calls of a turn, side by side in one step, since they are made concurrently. `passages` adds their
  // results later.
  searching({ turn, calls }) {
    this.status.textContent = "Searching";
    this.thinking = null;
    const step = this.step("search");
    const searches = calls.every((call) => call.tool === "search");
    const title = !searches ? `${calls.length} calls` : `${calls.length} searches`;
    if (calls.length > 1) step.append(element("p", "together", `${title} at once`));
    const row = step.appendChild(element("div", "calls"));
    row.dataset.count = calls.length;
    calls.forEach((call, number) => {
      const box = row.appendChild(element("section", "call"));
      const line = box.appendChild(element("p", "query"));
      const query = String(call.arguments.query ?? JSON.stringify(call.arguments));
      line.append(`${call.tool === "search" ? "Searched" : call.tool}: `, element("span", "said", query), " ");
      const key = `${call.tool} ${query.trim().toLowerCase()}`;
      const repeated = this.searched.has(key);
      this.searched.add(key);
      this.calls.set(`${turn}/${number}`, { box, repeated, how: line.appendChild(element("span", "how")) });
    });
  }

  passages({ turn, calls }) {
    this.status.textContent = "Reading";
    calls.forEach((call, number) => {
      const shown = this.calls.get(`${turn}/${number}`);
      if (!shown) return;
      const count = call.documents.length === 1 ? "1 passage" : `${call.documents.length} passages`;
      shown.how.textContent = `${count}, ${call.seconds.toFixed(2)} s`;
      if (!call.documents.length) {
        const reason = call.status === "ok" ? "Nothing was found." : "The search did not answer.";
        shown.box.append(element("p", "empty", reason));
      }
      const list = element("div", "passages");
      shown.documents = call.documents.map((document) => list.appendChild(passage(document)));
      shown.box.append(shown.repeated ? folded(list) : list);
    });
  }

  citations({ answer, passages, grounded, verdict, golds }) {
    for (const { turn, call, rank } of passages) {
      const found = this.calls.get(`${turn}/${call}`)?.documents?.[rank - 1];
      if (!found) continue;
      found.classList.add("found");
      found.open = true;
      found.querySelector(".title").after(element("span", "label", CITED));
      highlight(found.querySelector(".text"), answer);
    }
    this.about = { passages, grounded, verdict, golds };
  }

  rewrite({ removed }) {
    this.thinking = null;
    this.thought(`(took ${removed.length} earlier steps out of its context)`);
    this.thinking = null;
  }

  queued({ ahead }) {
    this.status.textContent = ahead ? `Waiting for a seat; ${ahead} before this question` : "Waiting for a seat";
  }

  // Shows the end of the turn: an answer, no answer, or an error (`trouble`).
  end(ended, trouble, retry) {
    this.status.remove();
    const box = this.root.appendChild(element("div", "answer"));
    if (this.answer) {
      box.append(element("p", "text", this.answer));
      if (this.about) judge(box, this.about);
    } else {
      box.classList.add("none");
      box.append(element("p", "text", trouble || FAILURES[ended?.status] || "No answer."));
      if (this.about?.verdict) judge(box, { ...this.about, grounded: null, passages: null });
    }
    this.record.answer = this.answer || null;
    const after = this.root.appendChild(element("div", "after"));
    after.append(button(this.answer ? "Ask again" : "Retry", retry));
    if (this.answer) after.append(copying("Copy", () => this.answer));
    after.append(button("Export", () => saveJson(this.record)), copying("Link", () => questionLink(this.question)));
    if (ended) {
      const searches = this.calls.size === 1 ? "1 search" : `${this.calls.size} searches`;
      after.append(element("span", "", `${searches}, ${ended.seconds.toFixed(1)} s`));
    }
  }
}

// Shows what is known about an answer: whether it is right, and which passages contain its words.
function judge(box, { passages, grounded, verdict, golds }) {
  if (verdict === "right") {
    box.classList.add("right");
    box.append(element("p", "verdict", "Right: it is the known answer."));
  } else if (verdict === "wrong") {
    box.classList.add("wrong");
    box.append(element("p", "verdict", `Wrong. The right answer is: ${(golds ?? []).join(", or ")}`));
  }
  if (grounded === false) {
    box.classList.add("ungrounded");
    box.append(element("p", "by", "Ungrounded: no passage contains these words. The model may have made them up."));
  } else if (passages?.length) {
    const titles = [...new Set(passages.map((cited) => cited.title))];
    const note = verdict ? "" : " They do not say whether the answer is right.";
    box.append(element("p", "by", `The model's words occur in: ${titles.join(", ")}.${note}`));
  }
}

function passage(document) {
  const box = element("details", "passage");
  const summary = box.appendChild(element("summary"));
  summary.append(element("span", "title", document.title || document.id));
  if (typeof document.score === "number") {
    summary.append(element("span", "score", `score ${document.score.toFixed(2)}`));
  }
  summary.append(element("span", "first", document.text.trim().split("\n", 1)[0]));
  box.append(element("p", "text", document.text));
  return box;
}

// Folds the passages of a repeated search behind a line that says so.
function folded(list) {
  const box = element("details", "folded");
  box.append(element("summary", "", "The same search as before"), list);
  return box;
}

// Marks the answer in a passage by splitting its text node: no markup is made from text.
function highlight(element_, answer) {
  const text = element_.textContent;
  const lower = text.toLowerCase();
  const start = lower.indexOf(String(answer).toLowerCase());
  if (start < 0 || !answer || lower.length !== text.length) return;   // "İ" is longer in lower case
  element_.replaceChildren(
    text.slice(0, start),
    element("mark", "", text.slice(start, start + answer.length)),
    text.slice(start + answer.length),
  );
}

// A button that copies a text and says so.
function copying(name, text) {
  const created = button(name, async () => {
    created.textContent = (await copyText(text())) ? "Copied" : "Not copied";
    setTimeout(() => { created.textContent = name; }, 1500);
  });
  return created;
}
