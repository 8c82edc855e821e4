// Detects that the reward of the validations rises while exact match falls. The rule is that from the step with the
// highest EM (the last such step) to the last validation, EM falls and the mean score rises, each by LEAST or more. The
// note names the reward term whose weighted mean grew most between these steps, if the records have weights.

import { get } from "./api.js";
import { amount, data, element, words } from "./dom.js";

const LEAST = 0.02;
const SCORE = "validation: score";
const EM = "validation: right";

// Returns the steps and values of the rule, or null if it does not apply. `series` are those of /api/charts.
export function diverging(series) {
  const [score, em] = [SCORE, EM].map((name) => valuesOf(series.find((one) => one.name === name)));
  const steps = [...em.keys()].filter((step) => score.has(step)).sort((one, other) => one - other);
  if (steps.length < 2) return null;
  const best = steps.reduce((one, other) => (em.get(other) >= em.get(one) ? other : one));
  const last = steps.at(-1);
  if (em.get(best) - em.get(last) < LEAST || score.get(last) - score.get(best) < LEAST) return null;
  return { best, last, em: [em.get(best), em.get(last)], score: [score.get(best), score.get(last)] };
}

// Returns the term (other than EM) whose weighted mean grew most between two steps, and by how much; or null.
export function grownMost(series, weights, best, last) {
  const grown = Object.entries(weights ?? {}).flatMap(([term, weight]) => {
    const values = valuesOf(series.find(({ name, group }) => group === "reward" && name === `validation: ${term}`));
    const by = weight * (values.get(last) - values.get(best));
    return by > 0 ? [[term, by]] : [];
  });
  return grown.sort(([, one], [, other]) => other - one)[0] ?? null;
}

// Makes the note for the charts, or null if the rule does not apply. `query` is the one of the charts.
export async function divergence(series, query, signal) {
  const found = diverging(series);
  if (!found) return null;
  const { best, last, em, score } = found;
  const box = element("p", "note warn divergence");
  box.append(`From step ${best} to ${last} the validation reward rises from ${amount(score[0])} to ${amount(score[1])}, `
    + `while exact match falls from ${amount(em[0])} to ${amount(em[1])}. `);
  const term = grownMost(series, await weightsAt(last, query, signal), best, last);
  if (term) {
    box.append("The reward term that grew most is ", data("b", "", words(term[0])), `: its weighted mean by ${amount(term[1])}.`);
  }
  return box;
}

// Reads the weights of the reward terms from a record of a validation.
async function weightsAt(step, query, signal) {
  const one = new URLSearchParams(query);
  for (const [name, value] of [["kind", "validation"], ["step_min", step], ["step_max", step], ["limit", 1]]) one.set(name, value);
  const { rows } = await get("trajectories", one, signal);
  return rows.length ? (await get(`trajectory/${rows[0].tid}`, "", signal)).record.reward_weights : null;
}

const valuesOf = (one) => new Map((one?.x ?? []).map((step, place) => [step, one.y[place]]));
