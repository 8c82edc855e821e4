// Compares two runs (or two steps) on their common questions: how many verdicts changed, and the questions, of which
// the changed ones come first. A question opens with both trajectories side by side.

import { get } from "./api.js";
import { columns, fetchAll } from "./beside.js";
import { button, count, counted, data, element, link, percent, runName, verdict, visible } from "./dom.js";
import { fill, notice } from "./notices.js";
import { changed, current, go } from "./state.js";

const CHANGES = {
  lost: ["▼", "Lost", "right in A, wrong in B"], gained: ["▲", "Gained", "wrong in A, right in B"],
  same_wrong: ["✗", "Wrong in both", "wrong in A and B"], same_right: ["✓", "Right in both", "right in A and B"],
};
const SHOWN = 200;   // rows that are fetched at once

export class CompareView {
  constructor(page) {
    this.page = page;
    this.root = element("div", "sheet compare");
    this.head = this.root.appendChild(element("header", "sheet-head"));
    this.box = this.root.appendChild(element("div"));
  }

  async show(state) {
    document.title = `Compare – ${this.page.title}`;
    const pair = state.get("pair")?.split(":");
    this.#paintHead(state);
    if (pair?.length === 2) return this.#showPair(state, pair);
    const [a, b] = this.#sides(state);
    if (a !== undefined && a === b && !state.has("a_step") && !state.has("b_step")) return this.#chooseSteps(a, state);
    if (a === undefined || b === undefined) {
      this.box.replaceChildren(notice("One run", "A comparison needs two runs, or two steps of one."));
      return undefined;
    }
    const query = new URLSearchParams({ a, b });
    for (const name of ["a_step", "b_step"]) if (state.has(name)) query.set(name, state.get(name));
    query.sort();
    const change = state.get("change");
    if (this.loaded === `${query}:${change}`) {
      this.box.replaceChildren(...this.#build(state));
      this.#focusLast();
      return undefined;
    }
    await fill(this.box, async (signal) => {
      const { rows, ...counts } = await get("compare", new URLSearchParams([...query, ["limit", SHOWN]]), signal);
      [this.query, this.counts] = [query, numbers(counts)];
      [this.rows, this.loaded] = [change ? [] : rows, `${query}:${change}`];
      if (change) await this.#fetchMore(signal);
    }, () => this.#build(state));
    return undefined;
  }

  // For a single run, its first validation is compared with its last, or its first step if it has no validations.
  async #chooseSteps(run, state) {
    await fill(this.box, async (signal) => {
      for (const kind of ["validation", "training"]) {
        const query = new URLSearchParams({ run, kind, column: "step" });
        const { bins = [] } = await get("histogram", query, signal);
        if (bins.length && bins[0].lo !== bins.at(-1).hi) return [bins[0].lo, bins.at(-1).hi];
      }
      return null;
    }, (found) => {
      if (!found) return notice("One run", "A comparison needs two runs, or two steps of one.");
      if (this.root.isConnected) go({ a: run, b: run, a_step: found[0], b_step: found[1] }, true);
      return [];
    });
  }

  // Changed verdicts come first, and the rows of each kind of change are adjacent.
  async #fetchMore(signal) {
    const change = current().get("change");
    const kinds = Object.keys(CHANGES);
    const before = change ? kinds.slice(0, kinds.indexOf(change)).reduce((sum, kind) => sum + this.counts[kind], 0) : 0;
    const limit = Math.min(this.#total(change) - this.rows.length, SHOWN);
    if (limit <= 0) return;
    const window = [["offset", before + this.rows.length], ["limit", limit]];
    this.rows.push(...(await get("compare", new URLSearchParams([...this.query, ...window]), signal)).rows);
  }

  #total(change) { return change ? this.counts[change] : this.counts.both; }

  refresh() {
    this.loaded = null;
    return this.show(current());
  }

  #sides(state) {
    const runs = this.page.overview?.runs ?? [];
    const other = runs.find(({ run }) => run !== state.get("b")) ?? runs[0];
    const a = state.get("a") ?? other?.run;
    const b = state.get("b") ?? (runs.length > 1 ? runs.find(({ run }) => run !== a)?.run : a);
    return [a, b];
  }

  #paintHead(state) {
    const focused = document.activeElement?.id;
    this.head.replaceChildren(element("h2", "", "Compare"));
    const [a, b] = this.#sides(state);
    for (const [side, chosen] of [["a", a], ["b", b]]) this.head.append(this.#side(side, chosen, state));
    this.head.append(button("Swap", () => go({
      a: b, b: a, a_step: state.get("b_step"), b_step: state.get("a_step"), pair: null,
    })));
    if (focused) document.getElementById(focused)?.focus();
  }

  #side(side, chosen, state) {
    const runs = this.page.overview?.runs ?? [];
    const box = element("span", "choose-side");
    const label = box.appendChild(element("label", "choose", `${side.toUpperCase()} `));
    const select = label.appendChild(element("select"));
    select.id = `run-${side}`;
    for (const { run } of runs) {
      const option = select.appendChild(element("option", "", runName(run, 40)));
      option.title = visible(run);
      option.value = run;
      option.selected = run === chosen;
    }
    select.addEventListener("change", () => go({ [side]: select.value, [`${side}_step`]: null, pair: null }));
    const steps = runs.find(({ run }) => run === chosen)?.steps;
    if (steps) {
      const step = box.appendChild(element("label", "choose", "step "));
      const field = step.appendChild(element("input"));
      Object.assign(field, { type: "number", min: steps[0], max: steps[1], id: `step-${side}`, placeholder: "all" });
      field.value = state.get(`${side}_step`) ?? "";
      field.addEventListener("change", () => go({ [`${side}_step`]: field.value, pair: null }));
    }
    return box;
  }

  #build(state) {
    const { counts } = this;
    if (!counts.both) return [notice("No question in common", "Choose two runs that were asked the same questions.")];
    const chosen = state.get("change");
    const tiles = element("div", "tiles");
    tiles.setAttribute("role", "group");
    tiles.ariaLabel = "Verdicts";
    for (const [change, [sign, name, title]] of Object.entries(CHANGES)) {
      const tile = tiles.appendChild(button("", () => go({ change: chosen === change ? null : change }), `tile ${change}`));
      tile.ariaPressed = String(chosen === change);
      tile.title = title;
      const mark = element("span", "sign", sign);
      mark.ariaHidden = "true";
      tile.append(mark, element("b", "", count(counts[change])), element("span", "", name));
    }
    const line = element("p", "summary");
    line.append(`${counted(counts.both, "question")} in both · A ${percent(counts.a_right, counts.both)} right`
      + ` · B ${percent(counts.b_right, counts.both)} right`);
    const table = element("table", "pairs");
    const head = table.appendChild(element("thead")).appendChild(element("tr"));
    for (const name of ["Change", "Question", "A", "B", "Gold"]) {
      const cell = head.appendChild(element("th", "", name));
      cell.scope = "col";
    }
    const body = table.appendChild(element("tbody"));
    body.append(...this.rows.map((row) => this.#line(row)));
    const total = this.#total(chosen);
    if (this.rows.length >= total) return [line, tiles, table];
    const more = button(`Show more (${count(this.rows.length)} of ${count(total)})`, async () => {
      await this.#fetchMore();
      this.box.replaceChildren(...this.#build(current()));
    });
    return [line, tiles, table, more];
  }

  #line({ question, golds, a, b, change }) {
    const line = element("tr", change);
    const [sign, name] = CHANGES[change] ?? ["", change];
    const what = line.appendChild(element("td", "change"));
    what.append(`${sign} `, element("span", "", name.toLowerCase()));
    const open = link("", changed({ pair: `${a.tid}:${b.tid}` }), "item");
    open.append(data("span", "", question));
    line.appendChild(element("td", "question")).append(open);
    for (const side of [a, b]) {
      const cell = line.appendChild(element("td", "side"));
      cell.append(verdict(side.right), " ", side.answer ? data("span", "", side.answer) : element("span", "soft", "no answer"));
    }
    line.append(data("td", "gold", (golds ?? [])[0] ?? ""));
    line.addEventListener("click", (event) => { if (!event.target.closest("a")) open.click(); });
    return line;
  }

  async #showPair(state, pair) {
    this.last = state.get("pair");
    await fill(this.box, (signal) => fetchAll(pair, signal), (both) => [
      link("← All questions", changed({ pair: null }), "back"), columns(both),
    ]);
  }

  #focusLast() {
    const open = [...this.box.querySelectorAll("a.item")].find((one) => one.hash === changed({ pair: this.last }));
    if (this.last) open?.focus();
    this.last = null;
  }

  #step(by) {
    const pairs = (this.rows ?? []).map(({ a, b }) => `${a.tid}:${b.tid}`);
    const next = pairs[pairs.indexOf(current().get("pair")) + by];
    if (next) go({ pair: next });
  }

  key(name) {
    if (!current().has("pair")) return this.page.walk(this.root, name);
    if (name === "Escape") location.hash = changed({ pair: null });
    else if (name === "[" || name === "]") this.#step(name === "]" ? 1 : -1);
    else return false;
    return true;
  }
}

function numbers(counts) {
  const same_right = counts.a_right - counts.lost;
  return { ...counts, same_right, same_wrong: counts.both - counts.a_right - counts.gained };
}
