// The table of trajectories. Only visible rows are elements of the page, and rows are fetched in windows when they
// become visible (Rows). When a run grows, the table does not change before the user requests the new rows.

import { Rows, get, getPage } from "./api.js";
import { COLUMNS, headLine } from "./columns.js";
import { button, count, counted, data, element, link, percent } from "./dom.js";
import { Filters } from "./filters.js";
import { failure, notice, skeleton } from "./notices.js";
import { saveBlob } from "./clipboard.js";
import { RANGES, changed, current, filters, go, tableQuery, withoutFilters } from "./state.js";

const MARGIN = 12;        // rows above and below what is in sight
const MOST_EXPORTED = 100;

export class TableView {
  constructor(page) {
    this.page = page;
    this.filters = new Filters();
    this.selected = { index: 0, tid: null };
    this.root = element("div", "table-view");
    const main = element("section", "table-main");
    main.ariaLabel = "Trajectories";
    this.counts = main.appendChild(element("div", "counts"));
    this.scroll = main.appendChild(element("div", "scroll"));
    this.table = this.scroll.appendChild(element("table", "rows"));
    this.head = this.table.appendChild(element("thead"));
    this.body = this.table.appendChild(element("tbody"));
    this.instead = main.appendChild(element("div", "instead"));
    this.root.append(this.filters.root, main);
    this.scroll.addEventListener("scroll", () => this.#soon(), { passive: true });
    new ResizeObserver(() => this.#soon(true)).observe(this.scroll);
    this.bins = {};
    this.#paintHead();
  }

  // ---- loading ----------------------------------------------------------------------------------------------------

  async show(state) {
    document.title = `Trajectories – ${this.page.title}`;
    const query = tableQuery(state).toString();
    if (this.rows?.query === query && !this.failed) {
      this.scroll.scrollTop = this.top ?? this.scroll.scrollTop;
      this.#paint(true);
      this.focusSelected();
      return;
    }
    this.selected = { index: 0, tid: null };
    this.top = 0;
    this.filters.update(state).catch(() => {});
    this.#histograms(state).catch(() => {});
    await this.#load(query, 0);
  }

  leave() { this.top = this.scroll.scrollTop; }

  async #load(query, top) {
    const rows = new Rows(query);
    this.coming?.stop();
    this.coming = rows;
    this.root.ariaBusy = "true";
    if (!this.rows) this.instead.replaceChildren(skeleton());
    try {
      const [first, last] = this.#inSight(top);
      await rows.fetch(first, last);
      if (this.coming !== rows) return;
      this.rows = rows;
      this.failed = false;
      this.page.setNew(0);
      this.#paintCounts();
      this.instead.replaceChildren(...this.#emptiness());
      this.scroll.hidden = rows.total === 0 && ![...filters(current())].length;
      this.#paint(true);
      this.scroll.scrollTop = top;
    } catch (error) {
      if (this.coming !== rows || error.name === "AbortError") return;
      this.failed = true;
      this.scroll.hidden = true;
      this.instead.replaceChildren(failure(error, () => this.#load(query, top)));
    } finally {
      if (this.coming === rows) this.root.ariaBusy = "false";
    }
  }

  #emptiness() {
    if (this.rows.total) return [];
    if ([...filters(current())].length) {
      const clear = button("Clear all filters", () => go(withoutFilters()));
      return [notice("No trajectory matches these filters", "", clear)];
    }
    const paths = (this.page.overview?.runs ?? []).map((run) => run.path).slice(0, 3).join(", ");
    return [notice("No trajectories yet", `${paths ? `${paths}: ` : ""}this page looks again every second.`)];
  }

  async #histograms(state) {
    this.givenUp?.abort();
    const { signal } = (this.givenUp = new AbortController());
    const all = await Promise.all(Object.entries(RANGES).map(async ([name, column]) => {
      const query = filters(state, `${name}_min`, `${name}_max`);
      query.set("column", column);
      return [name, (await get("histogram", query, signal)).bins ?? []];
    }));
    if (signal.aborted) return;
    this.bins = Object.fromEntries(all);
    this.#paintHead();
  }

  // The run has grown. Shows the number of new rows, and updates the counts of the filters.
  async grown() {
    const state = current();
    this.filters.update(state).catch(() => {});
    this.#histograms(state).catch(() => {});
    if (!this.rows) return;
    const query = new URLSearchParams(this.rows.query);
    query.set("limit", 1);
    const { total } = await get("trajectories", query);
    if (!this.rows.total) await this.#load(this.rows.query, 0);
    else this.page.setNew(total - this.rows.total);
  }

  loadNew() { return this.#load(this.rows.query, this.scroll.scrollTop); }

  // ---- painting ---------------------------------------------------------------------------------------------------

  get rowHeight() { return parseFloat(getComputedStyle(this.scroll).getPropertyValue("--row")) || 36; }

  #inSight(top = this.scroll.scrollTop) {
    const first = Math.floor(top / this.rowHeight) - MARGIN;
    return [Math.max(first, 0), first + Math.ceil((this.scroll.clientHeight || 800) / this.rowHeight) + 2 * MARGIN];
  }

  #soon(always = false) {
    this.always ||= always;
    this.frame ??= requestAnimationFrame(() => {
      this.frame = null;
      this.#paint(this.always);
      this.always = false;
    });
  }

  #paintCounts() {
    const { total, right, wrong, unjudged } = this.rows.counts;
    const text = element("p", "total");
    text.append(element("b", "", counted(total, "trajectory", "trajectories")));
    const judged = right + wrong;
    if (judged) text.append(` · ${!right ? "none" : right === judged ? "all" : percent(right, judged)} right`);
    if (unjudged) text.append(` · ${count(unjudged)} not judged`);
    const most = Math.min(total, MOST_EXPORTED);
    const save = button(total > most ? `Export first ${most}` : "Export", () => this.exportPage());
    save.title = "One page with these trajectories, which needs no server (e)";
    save.disabled = !total;
    this.counts.replaceChildren(text, save);
  }

  #paintHead() {
    const focused = document.activeElement?.dataset?.range;
    const state = current();
    const many = (this.page.overview?.runs ?? []).length > 1;
    this.columns = COLUMNS.filter(([name]) => name !== "run" || many)
      .filter(([name]) => name !== "step" || !this.bins.step || this.bins.step.length || state.has("step_min"));
    this.head.replaceChildren(headLine(this.columns, state, this.bins));
    if (focused) this.head.querySelector(`[data-range="${focused}"]`)?.focus();
    this.#paint(true);
  }

  #paint(always) {
    if (!this.rows || !this.scroll.isConnected) return;
    const { total } = this.rows;
    const [first, end] = this.#inSight();
    const last = Math.min(end, total);
    if (!always && Math.abs(first - this.first) < MARGIN / 2 && last <= this.last + MARGIN / 2) return;
    [this.first, this.last] = [first, last];
    const hadFocus = this.body.contains(document.activeElement);
    const lines = [spacer(first * this.rowHeight)];
    for (let index = first; index < last; index++) lines.push(this.#line(index));
    lines.push(spacer(Math.max(total - last, 0) * this.rowHeight));
    this.body.replaceChildren(...lines);
    this.table.ariaRowCount = String(total + 1);
    if (hadFocus) this.focusSelected(false);
    if (lines.some((line) => line.classList.contains("absent"))) {
      const { rows } = this;
      rows.fetch(first, last - 1).then(() => { if (this.rows === rows) this.#paint(true); }, () => {});
    }
  }

  #line(index) {
    const row = this.rows.at(index);
    const line = element("tr", row ? "" : "absent");
    line.ariaRowIndex = String(index + 2);
    if (!row) {
      line.appendChild(element("td")).colSpan = this.columns.length;
      return line;
    }
    if (this.selected.tid ? row.tid === this.selected.tid : index === this.selected.index) {
      this.selected = { index, tid: this.selected.tid };
      line.classList.add("selected");
    }
    for (const [name, , value] of this.columns) {
      const cell = line.appendChild(element("td", `c-${name}`));
      if (name === "question") {
        const open = link("", changed({ view: "trajectory", tid: row.tid, at: index }));
        open.append(data("span", "", row.question));
        open.tabIndex = index === this.selected.index ? 0 : -1;
        open.addEventListener("click", () => { this.selected = { index, tid: row.tid }; });
        cell.append(open);
      } else cell.append(value(row));
    }
    line.addEventListener("click", (event) => {
      if (!event.target.closest("a") && !String(getSelection())) line.querySelector("a").click();
    });
    return line;
  }

  // ---- moving -----------------------------------------------------------------------------------------------------

  async move(by, absolute = false) {
    if (!this.rows?.total) return;
    const isFirst = !this.body.contains(document.activeElement) && !this.selected.tid && !absolute;
    const wanted = absolute ? by : this.selected.index + (isFirst ? 0 : by);
    const index = Math.min(Math.max(wanted, 0), this.rows.total - 1);
    const row = await this.rows.row(index);
    this.selected = { index, tid: row?.tid ?? null };
    const top = index * this.rowHeight;
    const room = this.scroll.clientHeight - this.head.offsetHeight - this.rowHeight;
    if (top < this.scroll.scrollTop) this.scroll.scrollTop = top;
    else if (top > this.scroll.scrollTop + room) this.scroll.scrollTop = top - room;
    this.#paint(true);
    this.focusSelected();
  }

  focusSelected(scrolls = true) {
    this.body.querySelector("tr.selected a")?.focus({ preventScroll: true });
    return scrolls;
  }

  async exportPage() {
    await this.rows.fetch(0, Math.min(this.rows.total, MOST_EXPORTED) - 1);
    const query = new URLSearchParams();
    for (let index = 0; index < Math.min(this.rows.total, MOST_EXPORTED); index++) query.append("tid", this.rows.at(index).tid);
    saveBlob(await getPage("export", query), "trajectories.html");
    this.page.say("Exported");
  }

  key(name) {
    const page = Math.max(1, Math.floor(this.scroll.clientHeight / this.rowHeight) - 3);
    const moves = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1, PageDown: page, PageUp: -page };
    if (name in moves) this.move(moves[name]);
    else if (name === "Home") this.move(0, true);
    else if (name === "End") this.move(this.rows.total - 1, true);
    else if (name === "Enter" || name === "o") this.body.querySelector("tr.selected a")?.click();
    else if (name === "f") this.filters.focusFirst();
    else if (name === "x") go(withoutFilters());
    else if (name === "e") this.exportPage().catch((error) => this.page.say(error.message));
    else return false;
    return true;
  }
}

function spacer(height) {
  const line = element("tr", "spacer");
  line.ariaHidden = "true";
  const cell = line.appendChild(element("td"));
  cell.style.height = `${height}px`;
  return line;
}
