// The state of the page, which is the fragment of its URL. Each view with its filters is therefore a link, and the
// browser's Back button works. Filters have the names of the API's parameters.

// Filters by value. Several values of a filter are combined with "or".
export const VALUES = ["right", "cause", "run", "kind", "split", "source", "status", "masked"];
// Filters by range (NAME_min and NAME_max), with the column of each.
export const RANGES = {
  step: "step", score: "score", searches: "searches", turns: "turns", generated: "generated_tokens",
};
const FILTERS = new Set([
  "text", ...VALUES, ...Object.keys(RANGES).flatMap((name) => [`${name}_min`, `${name}_max`]),
]);

export const current = () => new URLSearchParams(location.hash.slice(1));

// Returns the URL of the state with some changes. A change is a value, an array of values, or null to remove a key.
export function changed(changes, state = current()) {
  const next = new URLSearchParams(state);
  for (const [name, value] of Object.entries(changes)) {
    next.delete(name);
    if (Array.isArray(value)) for (const one of value) next.append(name, one);   // may be empty texts
    else if (value !== null && value !== undefined && value !== "") next.append(name, value);
  }
  return `#${next}`;
}

// Goes to a state. With `quietly` it replaces the present one in the history, for changes in small steps.
export function go(changes, quietly = false) {
  const hash = changed(changes);
  if (hash === (location.hash || "#")) return;
  if (!quietly) {
    location.hash = hash;
    return;
  }
  history.replaceState(null, "", hash);
  dispatchEvent(new HashChangeEvent("hashchange"));
}

// Returns the filters of a state except those in `without`, in an order that does not depend on how they were set.
export function filters(state, ...without) {
  const kept = [...state].filter(([name]) => FILTERS.has(name) && !without.includes(name));
  return new URLSearchParams(kept.sort());
}

export const withoutFilters = () => Object.fromEntries([...FILTERS].map((name) => [name, null]));

// Returns the query of the table: its filters and its order.
export function tableQuery(state) {
  const query = filters(state);
  for (const name of ["sort", "order"]) if (state.has(name)) query.set(name, state.get(name));
  return query;
}
