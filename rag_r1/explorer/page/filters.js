// The filters beside the table: a text, and the values of each column of names. Each value has the number of its
// trajectories, and how many of these are right. Values of one column are combined with "or", columns with "and".

import { get } from "./api.js";
import { button, count, data, element, runName, shape, visible, words } from "./dom.js";
import { VALUES, current, filters, go, withoutFilters } from "./state.js";

const TITLES = {
  right: "Verdict", cause: "Cause of failure", run: "Run", kind: "Kind", split: "Split", source: "Source",
  status: "Status", masked: "Masked",
};
const NAMES = { right: { true: "right", false: "wrong", none: "not judged" }, masked: { true: "masked", false: "not masked" } };
const FIRST = 8;         // values that are shown before "show all"
const PAUSE_MS = 250;    // after the last letter of a text

// Makes a line with the filters of a state, each with a button that removes it. Returns null if there are none.
export function filterLine(state, ...without) {
  const set = [...filters(state, ...without)];
  if (!set.length) return null;
  const line = element("p", "filter-line");
  line.append(element("span", "soft", "Filters: "));
  for (const [name, value] of set) {
    const [, column = name, end] = /^(\w+)_(min|max)$/.exec(name) ?? [];
    const title = TITLES[column]?.toLowerCase() ?? column;
    const text = `${title} ${end ? (end === "min" ? "≥ " : "≤ ") : ""}${visible(NAMES[name]?.[value] ?? words(value))}`;
    const remove = button(`${text} ×`, () => go({ [name]: state.getAll(name).filter((one) => one !== value) }));
    remove.ariaLabel = `Remove the filter ${text}`;
    line.append(remove, " ");
  }
  line.append(button("Clear all filters", () => go(withoutFilters()), "quiet clear-line"));
  return line;
}

export class Filters {
  constructor() {
    this.root = element("details", "filters");
    this.root.open = matchMedia("(min-width: 68.01rem)").matches;
    this.summary = this.root.appendChild(element("summary", "", "Filters"));
    this.body = this.root.appendChild(element("div", "filter-body"));
    this.all = new Set();    // columns of which all values are shown
    this.values = {};
    this.order = {};         // column -> its values in the order of their places, which they keep
    this.body.append(this.#textField());
    this.facets = this.body.appendChild(element("div", "facets"));
  }

  #textField() {
    const label = element("label", "search");
    label.append(element("span", "hidden", "Text in question, answer, generated text, queries or passages"));
    this.text = label.appendChild(element("input"));
    this.text.type = "search";
    this.text.placeholder = "Text (press /)";
    this.text.spellcheck = false;
    this.text.maxLength = 1000;   // the API takes no longer one
    this.text.addEventListener("input", () => {
      clearTimeout(this.waiting);
      this.waiting = setTimeout(() => go({ text: this.text.value }, true), PAUSE_MS);
    });
    this.text.addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      clearTimeout(this.waiting);
      go({ text: this.text.value }, true);
    });
    return label;
  }

  focusText() {
    this.root.open = true;
    this.text.focus();
    this.text.select();
  }

  focusFirst() {
    this.root.open = true;
    (this.facets.querySelector("input") ?? this.text).focus();
  }

  async update(state = current()) {
    if (document.activeElement !== this.text) this.text.value = state.get("text") ?? "";
    const set = [...filters(state)].length;
    this.summary.textContent = set ? `Filters (${set})` : "Filters";
    this.giveUp?.abort();
    const { signal } = (this.giveUp = new AbortController());
    const counted = await Promise.all(VALUES.map(async (column) => {
      const query = filters(state, column);
      query.set("column", column);
      const { values = [] } = await get("histogram", query, signal);
      return [column, values.filter(([value]) => value !== null || column === "right")
        .map(([value, ...numbers]) => [value === null ? "none" : String(value), ...numbers])];
    }));
    if (signal.aborted) return;
    this.values = Object.fromEntries(counted.map(([column, values]) => [column, this.#inPlace(column, values, state)]));
    this.#paint(state);
  }

  // Keeps the values in their first order. New values follow, and a value that no row has any more stays with 0.
  #inPlace(column, values, state) {
    const numbers = new Map(values.map(([value, ...rest]) => [value, rest]));
    const order = [...new Set([...(this.order[column] ?? []), ...numbers.keys(), ...state.getAll(column)])];
    this.order[column] = order;
    return order.map((value) => [value, ...(numbers.get(value) ?? [0, 0])]);
  }

  #paint(state) {
    const { column, value } = document.activeElement?.dataset ?? {};
    const hadFocus = this.facets.contains(document.activeElement);
    const shown = VALUES.filter((name) => this.values[name].length > 1 || state.has(name));
    this.facets.replaceChildren(...shown.map((name) => this.#facet(name, state)));
    const clear = button("Clear all filters", () => go(withoutFilters()), "quiet clear-all");
    clear.disabled = ![...filters(state)].length;   // always there, so that nothing moves
    this.facets.prepend(clear);
    if (hadFocus) {
      const same = [...this.facets.querySelectorAll("[data-column]")]
        .find((one) => one.dataset.column === column && one.dataset.value === value);
      (same ?? this.facets.querySelector("input, button"))?.focus();
    }
  }

  #facet(column, state) {
    const chosen = new Set(state.getAll(column));
    const values = this.values[column];
    const box = element("fieldset", "facet");
    box.append(element("legend", "", TITLES[column]));
    const most = Math.max(1, ...values.map(([, n]) => n));
    const many = values.length > FIRST + 2 && !this.all.has(column);
    values.forEach(([value, n, right], place) => {
      if (many && place >= FIRST && !chosen.has(value)) return;
      box.append(this.#choice(column, value, n, right, most, chosen));
    });
    if (many) {
      box.append(button(`Show all ${values.length}`, () => {
        this.all.add(column);
        this.#paint(current());
      }, "more"));
    }
    return box;
  }

  #choice(column, value, n, right, most, chosen) {
    const label = element("label", "choice");
    const tick = label.appendChild(element("input"));
    tick.type = "checkbox";
    tick.checked = chosen.has(value);
    Object.assign(tick.dataset, { column, value });
    tick.addEventListener("change", () => {
      if (tick.checked) chosen.add(value);
      else chosen.delete(value);
      go({ [column]: [...chosen] });
    });
    const isName = column === "cause" || column === "status";
    const shown = column === "run" ? runName(value) : isName ? words(value) : value;
    label.append(data("span", "name", NAMES[column]?.[value] ?? (shown || "(none)")));
    label.append(element("span", "n", count(n)));
    const bar = shape("svg", { viewBox: "0 0 100 3", preserveAspectRatio: "none", "aria-hidden": "true" });
    bar.append(
      shape("rect", { x: 0, y: 0, width: (100 * n) / most, height: 3, class: "rest" }),
      shape("rect", { x: 0, y: 0, width: (100 * (right ?? 0)) / most, height: 3, class: "right" }),
    );
    label.append(bar);
    label.title = `${visible(value)}: ${count(right ?? 0)} of ${count(n)} right`;
    return label;
  }
}
