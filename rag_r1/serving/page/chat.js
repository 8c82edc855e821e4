// The chat page: sends questions to the server's chat API and shows the streamed answers (turn.js). The page keeps
// the conversation and sends it with each question; the server stores nothing.

import { linkedQuestion } from "./share.js";
import { chunks } from "./stream.js";
import { Turn, button, element } from "./turn.js";

const MOST_SENT = 198;   // messages before a question; the API refuses a request with more than 200

const id = (name) => document.getElementById(name);
const messages = [];   // the answered questions and their answers, in the form of the API
let running = null;    // the AbortController of the current answer
let token = "";        // kept only in this variable, so it is lost with the page
let about = {};        // the server's description, which is part of exported answers

// Apply a change and stay at the end of the growing page, unless the reader has scrolled up.
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

// ---- asking -------------------------------------------------------------------------------------------------------

async function ask(question) {
  const turn = new Turn(question);
  turn.record.agent = about;
  id("chat").append(turn.root);
  id("welcome").hidden = true;
  id("new").hidden = false;
  turn.root.scrollIntoView({ block: "start" });
  running = new AbortController();
  showRunning(true);
  let ended = null;
  const again = () => retry(turn);
  try {
    const response = await fetch("v1/chat/completions", {
      method: "POST",
      headers: headers(),
      signal: running.signal,
      body: JSON.stringify({
        messages: [...messages.slice(-MOST_SENT), { role: "user", content: question }],
        stream: true,
      }),
    });
    if (!response.ok) throw new Error(await refusal(response));
    for await (const chunk of chunks(response.body)) {
      if (chunk.error) throw new Error(sentence(chunk.error.message));
      keepingEnd(() => {
        if (chunk.rag_r1) turn.show(chunk.rag_r1);
        if (chunk.rag_r1?.event === "ended") ended = chunk.rag_r1;
        const delta = chunk.choices?.[0]?.delta ?? {};
        if (delta.reasoning_content) turn.thought(delta.reasoning_content);
        if (delta.content) turn.answer += delta.content;
      });
    }
    if (!ended) throw new Error("The connection ended before the answer.");
    keepingEnd(() => turn.end(ended, "", again));
    if (turn.answer) {
      turn.messageIndex = messages.length;
      messages.push({ role: "user", content: question }, { role: "assistant", content: turn.answer });
    }
  } catch (error) {
    running.abort();   // stops the generation of an answer that cannot be shown
    turn.answer = "";
    const stopped = error.name === "AbortError";
    const unreachable = error instanceof TypeError;
    const reason = stopped ? "Stopped." : unreachable ? "The server cannot be reached." : error.message;
    keepingEnd(() => turn.end(null, reason, again));
  } finally {
    running = null;
    showRunning(false);
  }
}

// Ask the question of a turn again and remove the turn. Its answer leaves the conversation only if it is the last.
function retry(turn) {
  if (running) return;
  if (turn.messageIndex === messages.length - 2) messages.length = turn.messageIndex;
  turn.root.remove();
  ask(turn.question);
}

// The message for a refused request. Shows the login if the server requires a token.
async function refusal(response) {
  if (response.status === 401) {
    showLogin(true);
    return "The server requires a token.";
  }
  try {
    return sentence((await response.json()).error.message);
  } catch {
    return `The server answered with status ${response.status}.`;
  }
}

const sentence = (text) => String(text).charAt(0).toUpperCase() + String(text).slice(1);

// ---- the page -----------------------------------------------------------------------------------------------------

function showRunning(isRunning) {
  id("send").hidden = isRunning;
  id("stop").hidden = !isRunning;
  id("new").disabled = isRunning;
}

function showLogin(isShown) {
  id("login").hidden = !isShown;
  id("ask").hidden = isShown;
  id(isShown ? "token" : "question").focus();
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

// The line about the model and the search. The server leaves out what it does not know.
function agentLine({ model, step, index, what }) {
  const parts = [model, step ? `step ${step}` : "", index ? `index ${index}` : "", what ? `searches ${what}` : ""];
  return parts.filter(Boolean).join(" · ");
}

async function showAbout() {
  const response = await fetch("about", { headers: headers() });
  if (response.status === 401) return refusal(response);
  about = await response.json();
  id("what").textContent = agentLine(about);
  id("what").title = agentLine(about);
  id("note").textContent = about.note;
  id("note").hidden = !about.note;
  id("foot").textContent = about.history
    ? `A follow-up question is asked with the last ${about.history} answers.`
    : "Each question is asked on its own.";
  id("examples").replaceChildren(
    ...about.examples.map(({ question, kind }) => {
      const item = element("li");
      const example = button("", () => running || ask(question));
      if (kind) example.append(element("span", "kind", kind));
      example.append(element("span", "", question));
      item.append(example);
      return item;
    }),
  );
}

function begin() {
  showAbout().catch(() => { id("what").textContent = "the server cannot be reached"; });
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
id("question").value = linkedQuestion();
fitInput();
begin();
