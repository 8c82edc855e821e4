// Two runs (or two steps) on the questions that both have: how many verdicts changed, and those first. A question
// opens with both trajectories beside each other.

import { get } from "./api.js";
import { button, count, counted, data, element, link, percent, verdict } from "./dom.js";
import { fill, notice } from "./notices.js";
import { changed, current, go } from "./state.js";
import { trajectory } from "./trajectory.js";

const CHANGES = {
  lost: ["▼", "Lost", "right in A, wrong in B"], gained: ["▲", "Gained", "wrong in A, right in B"],
  same_wrong: ["✗", "Wrong in both", "wrong in A and B"], same_right: ["✓", "Right in both", "right in A and B"],
};
const SHOWN = 200;   // rows before "show more"

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
    if (a === undefined || b === undefined) {
      this.box.replaceChildren(notice("One run", "A comparison needs two runs, or two steps of one."));
      return undefined;
    }
    const query = new URLSearchParams({ a, b });
    for (const name of ["a_step", "b_step"]) if (state.has(name)) query.set(name, state.get(name));
    const limit = { shown: SHOWN };
    if (this.query === query.toString() && this.found) {
      this.box.replaceChildren(...this.#build(this.found, state, limit));
      this.#focusLast();
      return undefined;
    }
    await fill(this.box, (signal) => get("compare", query, signal), (found) => {
      [this.query, this.found] = [query.toString(), found];
      return this.#build(found, current(), limit);
    });
    return undefined;
  }

  grown() {
    this.found = null;
    return current().has("pair") ? undefined : this.show(current());
  }

  #sides(state) {
    const runs = this.page.overview?.runs ?? [];
    const a = state.get("a") ?? runs[0]?.run;
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
      const option = select.appendChild(data("option", "", run));
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

  #build(found, state, limit) {
    if (!found.both) return [notice("No question in common", "Choose two runs that were asked the same questions.")];
    const chosen = state.get("change");
    const numbers = Object.groupBy ? Object.groupBy(found.rows, ({ change }) => change) : {};
    const tiles = element("div", "tiles");
    tiles.setAttribute("role", "group");
    tiles.ariaLabel = "Verdicts";
    for (const [change, [sign, name, title]] of Object.entries(CHANGES)) {
      const n = (numbers[change] ?? found.rows.filter((row) => row.change === change)).length;
      const tile = tiles.appendChild(button("", () => go({ change: chosen === change ? null : change }), `tile ${change}`));
      tile.ariaPressed = String(chosen === change);
      tile.title = title;
      const mark = element("span", "sign", sign);
      mark.ariaHidden = "true";
      tile.append(mark, element("b", "", count(n)), element("span", "", name));
    }
    const line = element("p", "summary");
    line.append(`${counted(found.both, "question")} in both · A ${percent(found.a_right, found.both)} right · B ${percent(found.b_right, found.both)} right`);
    const rows = found.rows.filter((row) => !chosen || row.change === chosen);
    const table = element("table", "pairs");
    const head = table.appendChild(element("thead")).appendChild(element("tr"));
    for (const name of ["Change", "Question", "A", "B", "Gold"]) {
      const cell = head.appendChild(element("th", "", name));
      cell.scope = "col";
    }
    const body = table.appendChild(element("tbody"));
    body.append(...rows.slice(0, limit.shown).map((row) => this.#line(row)));
    const rest = rows.length - limit.shown;
    const more = rest > 0 ? [button(`Show ${count(Math.min(rest, SHOWN))} more of ${count(rows.length)}`, () => {
      limit.shown += SHOWN;
      this.box.replaceChildren(...this.#build(found, current(), limit));
    })] : [];
    return [line, tiles, table, ...more];
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
    const load = (signal) => Promise.all(pair.map((tid) => get(`trajectory/${encodeURIComponent(tid)}`, "", signal)));
    await fill(this.box, load, (both) => {
      const back = link("← All questions", changed({ pair: null }), "back");
      const row = element("div", "pair");
      both.forEach((details, place) => {
        const side = row.appendChild(element("section", `side ${"ab"[place]}`));
        const where = [details.row.run, details.row.step === null || details.row.step === undefined ? "" : `step ${details.row.step}`];
        side.ariaLabel = "AB"[place];
        const title = side.appendChild(element("h3"));
        const open = link("", changed({ view: "trajectory", tid: details.row.tid, pair: null, at: null }));
        open.append(data("span", "", where.filter(Boolean).join(", ")));
        title.append(`${"AB"[place]}: `, open);
        side.append(trajectory(details));
      });
      return [back, row];
    });
  }

  #focusLast() {
    const open = [...this.box.querySelectorAll("a.item")].find((one) => one.hash === changed({ pair: this.last }));
    if (this.last) open?.focus();
    this.last = null;
  }

  #step(by) {
    const rows = (this.found?.rows ?? []).filter((row) => !current().has("change") || row.change === current().get("change"));
    const pairs = rows.map(({ a, b }) => `${a.tid}:${b.tid}`);
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
