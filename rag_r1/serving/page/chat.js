// The chat page: asks the server's own chat API and shows what streams back.
//
// Questions, documents, queries and answers are data. They enter the page through textContent only, so nothing in
// them is ever markup; the server's Content-Security-Policy forbids everything else. The conversation is kept here
// and sent with each question; the server keeps none.
"use strict";

const LONGEST_EVENT = 1 << 23;   // characters; a longer event is not this API's
const CITED = "contains the answer";
const FAILURES = {
  turn_limit: "No answer: the agent used up its turns.",
  token_limit: "No answer: the agent used up its tokens.",
  no_action: "No answer: the agent neither searched nor answered.",
};

const id = (name) => document.getElementById(name);
const messages = [];   // of answered questions, as the API takes them
let running = null;    // the AbortController of the answer under way
let token = "";        // in this variable only: gone with the page

function element(tag, className = "", text = "") {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== "") made.textContent = text;
  return made;
}

function button(text, onClick) {
  const made = element("button", "quiet", text);
  made.type = "button";
  made.addEventListener("click", onClick);
  return made;
}

// Stay at the end of the page while it grows, unless the reader has scrolled up.
function keepingEnd(change) {
  const page = document.scrollingElement;
  const atEnd = page.scrollHeight - page.scrollTop - page.clientHeight < 120;
  change();
  if (atEnd) page.scrollTop = page.scrollHeight;
}

const headers = () => ({
  "Content-Type": "application/json",
  ...(token ? { Authorization: `Bearer ${token}` } : {}),
});

// ---- one question and what became of it -------------------------------------------------------------------------

class Turn {
  constructor(question) {
    this.question = question;
    this.calls = new Map();   // "turn/call" -> the passages' elements, by rank
    this.answer = "";
    this.root = element("li", "turn");
    this.root.append(element("p", "question", question));
    this.steps = this.root.appendChild(element("ol", "steps"));
    this.status = this.root.appendChild(element("p", "working", "Thinking"));
    id("chat").append(this.root);
  }

  step(kind) {
    return this.steps.appendChild(element("li", `step ${kind}`));
  }

  // Reasoning arrives in pieces; a blank line begins that of another turn.
  thought(text) {
    if (!this.thinking || text.startsWith("\n\n")) {
      if (!text.trim()) return;
      this.thinking = this.step("thought").appendChild(element("p"));
      text = text.trimStart();
    }
    this.thinking.append(text);
  }

  // Searches stand here from the moment they are made, and get their passages when these arrive.
  searching({ turn, calls }) {
    this.status.textContent = "Searching";
    this.thinking = null;
    calls.forEach((call, number) => {
      const step = this.step("search");
      const line = step.appendChild(element("p", "query"));
      const query = call.arguments.query ?? JSON.stringify(call.arguments);
      line.append(`${call.tool === "search" ? "Searched" : call.tool}: `, element("span", "said", String(query)), " ");
      step.how = line.appendChild(element("span", "how"));
      this.calls.set(`${turn}/${number}`, step);
    });
  }

  passages({ turn, calls }) {
    this.status.textContent = "Reading";
    calls.forEach((call, number) => {
      const step = this.calls.get(`${turn}/${number}`);
      if (!step) return;
      step.how.textContent = `${call.documents.length} passages, ${call.seconds.toFixed(2)} s`;
      if (!call.documents.length) {
        const why = call.status === "ok" ? "Nothing was found." : "The search did not answer.";
        step.append(element("p", "empty", why));
      }
      const list = step.appendChild(element("div", "passages"));
      step.found = call.documents.map((document) => list.appendChild(passage(document)));
    });
  }

  citations({ answer, passages }) {
    for (const { turn, call, rank } of passages) {
      const found = this.calls.get(`${turn}/${call}`)?.found?.[rank - 1];
      if (!found) continue;
      found.classList.add("found");
      found.open = true;
      found.querySelector(".title").after(element("span", "label", CITED));
      highlight(found.querySelector(".text"), answer);
    }
    this.cited = passages;
  }

  rewrite({ removed }) {
    this.thinking = null;
    this.thought(`(took ${removed.length} earlier steps out of its context)`);
    this.thinking = null;
  }

  queued({ ahead }) {
    this.status.textContent = ahead ? `Waiting for a seat; ${ahead} before this question` : "Waiting for a seat";
  }

  // The end, in one of three forms: an answer, no answer, an error.
  end(ended, trouble = "") {
    this.status.remove();
    const box = this.root.appendChild(element("div", "answer"));
    if (this.answer) {
      box.append(element("p", "text", this.answer));
      if (this.cited) box.append(element("p", "by", sources(this.cited)));
    } else {
      box.classList.add("none");
      box.append(element("p", "text", trouble || FAILURES[ended?.status] || "No answer."));
    }
    const after = this.root.appendChild(element("div", "after"));
    after.append(button(this.answer ? "Ask again" : "Retry", () => retry(this)));
    if (ended) {
      const searches = this.calls.size === 1 ? "1 search" : `${this.calls.size} searches`;
      after.append(element("span", "", `${searches}, ${ended.seconds.toFixed(1)} s`));
    }
  }
}

function passage(document) {
  const box = element("details", "passage");
  const summary = box.appendChild(element("summary"));
  summary.append(element("span", "title", document.title || document.id));
  if (typeof document.score === "number") {
    summary.append(element("span", "score", document.score.toFixed(2)));
  }
  box.append(element("p", "text", document.text));
  return box;
}

function sources(cited) {
  const titles = [...new Set(cited.map((passage) => passage.title))];
  if (!titles.length) return "None of the passages contains these words.";
  return `These words are in: ${titles.join(", ")}`;
}

// Marks the answer in a passage by splitting its text node: no markup is made from text.
function highlight(element_, answer) {
  const text = element_.textContent;
  const lower = text.toLowerCase();
  const at = lower.indexOf(String(answer).toLowerCase());
  if (at < 0 || !answer || lower.length !== text.length) return;   // "İ" is longer in lower case
  element_.replaceChildren(
    text.slice(0, at),
    element("mark", "", text.slice(at, at + answer.length)),
    text.slice(at + answer.length),
  );
}

// ---- asking -------------------------------------------------------------------------------------------------------

async function ask(question) {
  const turn = new Turn(question);
  id("welcome").hidden = true;
  id("new").hidden = false;
  turn.root.scrollIntoView({ block: "start" });
  running = new AbortController();
  showRunning(true);
  let ended = null;
  try {
    const response = await fetch("v1/chat/completions", {
      method: "POST",
      headers: headers(),
      signal: running.signal,
      body: JSON.stringify({ messages: [...messages, { role: "user", content: question }], stream: true }),
    });
    if (!response.ok) throw new Error(await refusal(response));
    for await (const chunk of chunks(response.body)) {
      if (chunk.error) throw new Error(sentence(chunk.error.message));
      keepingEnd(() => {
        if (chunk.rag_r1?.event === "ended") ended = chunk.rag_r1;
        else if (chunk.rag_r1) show(turn, chunk.rag_r1);
        const delta = chunk.choices?.[0]?.delta ?? {};
        if (delta.reasoning_content) turn.thought(delta.reasoning_content);
        if (delta.content) turn.answer += delta.content;
      });
    }
    if (!ended) throw new Error("The connection ended before the answer.");
    keepingEnd(() => turn.end(ended));
    if (turn.answer) {
      turn.at = messages.length;
      messages.push({ role: "user", content: question }, { role: "assistant", content: turn.answer });
    }
  } catch (error) {
    running.abort();   // an answer that cannot be shown is not generated further
    turn.answer = "";
    const stopped = error.name === "AbortError";
    const unreachable = error instanceof TypeError;
    const why = stopped ? "Stopped." : unreachable ? "The server cannot be reached." : error.message;
    keepingEnd(() => turn.end(null, why));
  } finally {
    running = null;
    showRunning(false);
  }
}

function show(turn, event) {
  const known = ["searching", "passages", "citations", "rewrite", "queued"];
  if (known.includes(event.event)) turn[event.event](event);
}

// Ask the same again, in the place of what became of it; what was said after it stays.
function retry(turn) {
  if (running) return;
  if (turn.at !== undefined && turn.at === messages.length - 2) messages.length = turn.at;
  turn.root.remove();
  ask(turn.question);
}

async function refusal(response) {
  if (response.status === 401) {
    showLogin(true);
    return "The server requires a token.";
  }
  const wait = response.headers.get("Retry-After");
  if (response.status === 503 && wait) return `The server is busy. Try again in ${wait} s.`;
  try {
    return sentence((await response.json()).error.message);
  } catch {
    return `The server answered with status ${response.status}.`;
  }
}

const sentence = (text) => String(text).charAt(0).toUpperCase() + String(text).slice(1);

// The chunks of a stream of server-sent events.
async function* chunks(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    if (rest.length > LONGEST_EVENT) throw new Error("The answer is not of the chat API's form.");
    for (const event of events) {
      if (event === "data: [DONE]") return;
      if (event.startsWith("data: ")) yield JSON.parse(event.slice(6));
    }
  }
}

// ---- the page -----------------------------------------------------------------------------------------------------

function showRunning(is) {
  id("send").hidden = is;
  id("stop").hidden = !is;
  id("new").disabled = is;
}

function showLogin(is) {
  id("login").hidden = !is;
  id("ask").hidden = is;
  id(is ? "token" : "question").focus();
}

function fitInput() {
  const input = id("question");
  input.style.height = "auto";
  input.style.height = `${Math.min(input.scrollHeight + 2, 160)}px`;
}

function submit() {
  const question = id("question").value.trim();
  if (!question || running) return;
  id("question").value = "";
  fitInput();
  ask(question);
}

async function tellAbout() {
  const response = await fetch("about", { headers: headers() });
  if (response.status === 401) return refusal(response);
  const about = await response.json();
  id("what").textContent = about.what ? `searches ${about.what}` : "";
  id("note").textContent = about.note;
  id("note").hidden = !about.note;
  id("foot").textContent = about.history
    ? `A follow-up question is asked with the last ${about.history} answers.`
    : "Each question is asked on its own.";
  id("examples").replaceChildren(
    ...about.examples.map((question) => {
      const item = element("li");
      item.append(button(question, () => running || ask(question)));
      return item;
    }),
  );
}

function begin() {
  tellAbout().catch(() => { id("what").textContent = "the server cannot be reached"; });
}

id("ask").addEventListener("submit", (event) => { event.preventDefault(); submit(); });
id("question").addEventListener("input", fitInput);
id("question").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    submit();
  }
});
id("stop").addEventListener("click", () => running?.abort());
id("new").addEventListener("click", () => {
  if (running) return;
  messages.length = 0;
  id("chat").replaceChildren();
  id("welcome").hidden = false;
  id("new").hidden = true;
  id("question").focus();
});
id("login").addEventListener("submit", (event) => {
  event.preventDefault();
  token = id("token").value.trim();
  id("token").value = "";
  showLogin(false);
  begin();
});
begin();
