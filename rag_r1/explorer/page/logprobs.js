// Shows the log-probs of the generated tokens if a record has its training rows (rag_r1.trajectory_tokens), as a strip
// with a square for each token. The less likely a token was, the warmer is its colour. The strip is below the text,
// because records have the ids of tokens, but not the text of each.

import { amount, count, element } from "./dom.js";

const EDGES = [-0.1, -0.7, -1.6, -3];   // nats: 90, 50, 20 and 5 %
const STEPS = ["> 90 %", "50–90 %", "20–50 %", "5–20 %", "< 5 %"];
const MOST = 4000;   // squares of a turn

// Returns the generated tokens of each turn as [id, log-prob], or null if they are not known.
export function tokensOfTurns({ rows, turns }) {
  const of = turns.map(() => null);
  (rows ?? []).forEach((row, number) => {
    if (![row?.response_ids, row?.response_mask, row?.response_logprobs].every(Array.isArray)) return;
    const tokens = row.response_ids
      .map((id, place) => [id, row.response_logprobs[place]])
      .filter((_, place) => row.response_mask[place]);
    const own = turns.map((turn, place) => [turn, place]).filter(([turn]) => (turn.row ?? 0) === number);
    // A row that holds other tokens than its turns (a rewritten context) is left out.
    if (own.reduce((sum, [turn]) => sum + turn.generated_tokens, 0) !== tokens.length) return;
    let at = 0;
    for (const [turn, place] of own) of[place] = tokens.slice(at, at += turn.generated_tokens);
  });
  return of;
}

export function heatStrip(tokens) {
  const box = element("div", "logprobs");
  const strip = box.appendChild(element("div", "strip"));
  strip.setAttribute("role", "img");
  const known = tokens.map(([, logprob]) => logprob).filter(Number.isFinite);
  const mean = known.reduce((sum, one) => sum + one, 0) / known.length;
  strip.ariaLabel = `Log-probs of ${count(tokens.length)} tokens, mean ${amount(mean)}, lowest ${amount(Math.min(...known))}`;
  tokens.slice(0, MOST).forEach(([id, logprob], place) => {
    const one = strip.appendChild(element("span", `p${EDGES.filter((edge) => logprob < edge).length}`));
    one.title = `token ${place + 1}, id ${id}: log-prob ${Number(logprob).toFixed(2)}, p = ${Math.exp(logprob).toFixed(3)}`;
  });
  const legend = box.appendChild(element("p", "legend soft", `mean log-prob ${amount(mean)}; probability of each token: `));
  STEPS.forEach((name, level) => legend.append(element("span", `p${level}`, name), " "));
  return box;
}
