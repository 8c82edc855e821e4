// The panels beside a trajectory: its reward term by term, its siblings with the group's mean and its advantage, the
// same question at other steps, and its origin.

import { amount, count, counted, data, element, fact, link, shape, signed, verdict, words } from "./dom.js";

// `links` has two functions. `of(row)` returns the URL of a row's trajectory, or null if it is not part of the page;
// `beside(rows)` returns the URL of several trajectories side by side, or null.
export function aside({ row, record, siblings, group, history, advantage }, links) {
  const box = element("aside", "beside");
  box.ariaLabel = "About this trajectory";
  box.append(...[
    rewardPanel(row, record),
    siblingPanel(row, siblings ?? [], group ?? {}, advantage, links),
    historyPanel(row, history ?? [], links),
    factPanel(row, record),
  ].filter(Boolean));
  return box;
}

// Returns the number of updates before the first turn and before the last turn.
const policySteps = (steps) => (Array.isArray(steps) && steps.every(Number.isFinite) ? [...new Set(steps)].join(" – ") : null);

const isTexts = (value) => [value].flat().every((one) => typeof one === "string");

function panel(title) {
  const box = element("section", "panel");
  box.append(element("h3", "", title));
  return box;
}

function cells(row, kind, ...texts) {
  for (const text of texts) row.append(typeof text === "string" ? element(kind, "", text) : text);
}

function rewardPanel(row, record) {
  const rewards = record.rewards ?? {};
  const terms = Object.entries(rewards).filter(([name]) => name !== "score" && name !== "missing_terms");
  if (!terms.length && !Number.isFinite(rewards.score)) return null;
  const weights = record.reward_weights ?? null;
  const box = panel("Reward");
  const table = box.appendChild(element("table", "terms"));
  const head = table.appendChild(element("thead")).appendChild(element("tr"));
  cells(head, "th", "term", "value", ...(weights ? ["weight", "score"] : []));
  const body = table.appendChild(element("tbody"));
  for (const [name, value] of terms) {
    const line = body.appendChild(element("tr"));
    cells(line, "td", data("td", "", words(name)), value === null ? "no value" : amount(value));
    if (weights) {
      const weight = weights[name];
      cells(line, "td", Number.isFinite(weight) ? `× ${amount(weight)}` : "–",
        Number.isFinite(weight) && value !== null ? `= ${amount(weight * value)}` : "–");
    }
  }
  const sum = table.appendChild(element("tfoot")).appendChild(element("tr"));
  const name = element("th", "", "score");
  if (weights) name.colSpan = 3;
  sum.append(name, element("td", "", amount(rewards.score)));
  if (rewards.missing_terms) box.append(element("p", "note warn", `${counted(rewards.missing_terms, "term")} could not judge`));
  const scores = record.turn_scores ?? [];
  if (scores.length > 1) {
    box.append(element("p", "soft", `Credit of the turns: ${scores.map(signed).join(", ")}`));
  }
  return box;
}

function siblingPanel(row, rows, { mean, std }, advantage, links) {
  if (rows.length < 2) return null;
  const box = panel(`${rows.length} rollouts of this question`);
  const parts = [];
  if (Number.isFinite(mean)) parts.push(`mean ${amount(mean)}`);
  if (Number.isFinite(std)) parts.push(`std ${amount(std)}`);
  box.append(element("p", "soft", parts.join(", ")));
  if (Number.isFinite(advantage?.value)) {
    const line = box.appendChild(element("p", "advantage"));
    line.append("Advantage ", element("b", advantage.value < 0 ? "minus" : "plus", signed(advantage.value)));
    line.append(element("span", "soft", advantage.recorded ? " as the trainer used it" : " (score − mean) / std"));
  }
  const range = Math.max(1e-9, ...rows.map((one) => Math.abs((one.score ?? mean) - mean)));
  const list = box.appendChild(element("ol", "siblings"));
  for (const one of rows) {
    const bar = Number.isFinite(mean) && Number.isFinite(one.score) ? deviation((one.score - mean) / range) : null;
    list.append(other(one, row, links, [counted(one.searches ?? 0, "search", "searches")], bar));
  }
  box.append(...besideLink(links.beside(rows), "s"));
  return box;
}

function besideLink(href, key) {
  if (!href) return [];
  const open = link("Beside each other", href, "beside-link");
  open.dataset.key = key;
  open.title = key;
  return [open];
}

// Draws how far a score is from the mean, to the left or to the right of a line.
function deviation(share) {
  const picture = shape("svg", { viewBox: "-21 0 42 10", class: "deviation", "aria-hidden": "true" });
  const width = Math.abs(share) * 20;
  picture.append(
    shape("rect", { x: share < 0 ? -width : 0, y: 2, width, height: 6, class: share < 0 ? "minus" : "plus" }),
    shape("line", { x1: 0, x2: 0, y1: 0, y2: 10 }),
  );
  return picture;
}

function other(one, row, links, more, picture) {
  const item = element("li");
  const href = one.tid === row.tid ? null : links.of(one);
  const line = item.appendChild(element(href ? "a" : "span", "other"));
  if (href) line.setAttribute("href", href);
  if (one.tid === row.tid) {
    line.classList.add("this");
    line.ariaCurrent = "true";
  }
  line.append(verdict(one.right), data("span", "answer", one.answer ?? words(one.status)));
  line.append(element("span", "soft", [...more, amount(one.score)].join(" · ")));
  if (picture) line.append(picture);
  return item;
}

// Shows the same question in the same run, with a line for each step and a sign for each rollout.
function historyPanel(row, rows, links) {
  const steps = [...new Set(rows.map((one) => one.step))];
  if (steps.length < 2) return null;
  const box = panel("This question across steps");
  const list = box.appendChild(element("ol", "history"));
  for (const step of steps) {
    const item = list.appendChild(element("li"));
    const same = rows.filter((one) => one.step === step);
    item.append(element("span", "step", step === null ? "no step" : `step ${step}`));
    const signs = item.appendChild(element("span", "signs"));
    for (const one of same) {
      const href = one.tid === row.tid ? null : links.of(one);
      const sign = signs.appendChild(element(href ? "a" : "span", one.tid === row.tid ? "this" : ""));
      if (href) sign.setAttribute("href", href);
      sign.append(verdict(one.right));
      sign.title = `${one.answer ?? words(one.status)}, score ${amount(one.score)}`;
    }
    const scores = same.map((one) => one.score).filter(Number.isFinite);
    const mean = scores.reduce((sum, one) => sum + one, 0) / scores.length;
    item.append(element("span", "soft", scores.length ? amount(mean) : ""));
  }
  const first = steps.map((step) => rows.find((one) => one.step === step));
  box.append(...besideLink(links.beside(first), "h"));
  return box;
}

function factPanel(row, record) {
  const box = panel("Where it comes from");
  const list = box.appendChild(element("dl", "facts"));
  const values = [
    ["run", row.run], ["kind", row.kind], ["step", row.step], ["split", row.split], ["source", row.source],
    ["checkpoint", row.checkpoint], ["model", record.model],
    ["updates of the weights", policySteps(record.policy_steps)], ["protocol", record.protocol], ["id", record.id],
    ["question id", record.question_id], ["sample", record.sample], ["try", record.try],
    ["seconds", Number.isFinite(record.seconds) ? amount(record.seconds) : null],
    ["prompt tokens", count(record.prompt_tokens)], ["retries", record.retries || null],
    ["prompt", record.prompt_sha256 || null],
    ["masked", row.masked ? "yes: in no loss and no mean" : null],
    ...Object.entries(record.metadata ?? {}).map(([name, value]) => [
      words(name), isTexts(value) ? [value].flat().join(", ") : JSON.stringify(value),
    ]),
  ];
  for (const [name, value] of values) if (value !== null && value !== undefined && value !== "") fact(list, name, value);
  return box;
}
