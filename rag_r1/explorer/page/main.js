// The page of `rag-r1 view`. The fragment of the URL determines which view is shown (state.js). This module has what
// all views share: the bar, the keys, and a request each second that asks the server whether the runs have grown.

import { get } from "./api.js";
import { BesideView } from "./beside.js";
import { CausesView } from "./causes.js";
import { ChartsView } from "./charts.js";
import { CompareView } from "./compare.js";
import { counted, element, link, visible, wrap } from "./dom.js";
import { failure } from "./notices.js";
import { ReaderView } from "./reader.js";
import { changed, current } from "./state.js";
import { TableView } from "./table.js";

const POLL_MS = 1000;
const id = (name) => document.getElementById(name);
const VIEWS = [
  ["table", "Trajectories", TableView], ["causes", "Causes", CausesView],
  ["charts", "Charts", ChartsView], ["compare", "Compare", CompareView],
];
const KEYS = [
  ["j k", "next, previous row or turn"], ["Enter", "open"], ["Esc", "back"], ["[ ]", "previous, next trajectory, pair or run"],
  ["/", "search in texts"], ["f", "filters"], ["x", "clear all filters"], ["1 2 3 4", "views"], ["r", "show what is new"],
  ["p", "open or close all passages"], ["s h", "rollouts, steps beside each other"], ["c", "copy the record as JSON"], ["l", "copy the link"], ["e", "export"], ["?", "keys"],
];

class Page {
  constructor() {
    this.main = id("main");
    this.title = "RAG-R1";
    this.overview = null;
    this.version = null;
    this.views = {};
    this.shown = null;
  }

  // ---- views ------------------------------------------------------------------------------------------------------

  view(name) {
    const Made = { trajectory: ReaderView, beside: BesideView }[name] ?? VIEWS.find(([one]) => one === name)?.[2] ?? TableView;
    return (this.views[Made.name] ??= new Made(this));
  }

  show() {
    const state = current();
    const name = state.get("view") ?? "table";
    const view = this.view(name);
    if (this.shown !== view) {
      this.shown?.leave?.();
      this.main.replaceChildren(view.root);
      this.main.className = `view-${name}`;
      this.main.scrollTop = 0;
      this.shown = view;
      this.setNew(0);
    }
    this.#paintNav(name, state);
    this.seen = this.#records();
    view.show(state);
  }

  #paintNav(name, state) {
    const links = VIEWS.map(([view, title], place) => {
      const one = link(title, changed({
        view: view === "table" ? null : view, tid: null, tids: null, at: null, pair: null,
      }, state));
      one.title = `${title} (${place + 1})`;
      if (view === name || (view === "table" && (name === "trajectory" || name === "beside"))) one.ariaCurrent = "page";
      return one;
    });
    id("views").replaceChildren(...links);
  }

  // ---- what is said -----------------------------------------------------------------------------------------------

  say(text) {
    id("said").textContent = text;
    clearTimeout(this.silence);
    this.silence = setTimeout(() => { id("said").textContent = ""; }, 2500);
  }

  setNew(number) {
    id("new").hidden = !(number > 0);
    id("new").textContent = number > 0 ? `${number} new` : "";
    id("new").title = "Show them (r)";
  }

  async loadNew() {
    this.seen = this.#records();
    await (this.shown?.loadNew?.() ?? this.shown?.refresh?.());
    this.setNew(0);
  }

  #records() { return (this.overview?.runs ?? []).reduce((sum, run) => sum + run.records, 0); }

  // A view changes only when the reader asks for what is new.
  async #grown() {
    if (this.shown?.grown) await this.shown.grown();
    else if (this.shown?.refresh) this.setNew(this.#records() - this.seen);
  }

  // ---- growth -----------------------------------------------------------------------------------------------------

  async readOverview() {
    this.overview = await get("overview");
    this.title = visible(this.overview.title || "RAG-R1");
    id("title").textContent = this.title;
    id("title").title = this.overview.runs.map(({ path }) => visible(path)).join("\n");
    const broken = this.overview.runs.reduce((sum, run) => sum + (run.broken ?? 0), 0);
    id("reading").title = this.overview.runs.flatMap(({ faults }) => faults ?? []).map(visible).join("\n");
    this.broken = broken ? counted(broken, "broken line") : "";
  }

  async poll() {
    try {
      if (!document.hidden) {
        const { version, reading, problem } = await get("version");
        const isBack = !id("away").hidden;
        id("away").textContent = visible(problem ?? "");
        id("away").hidden = !problem;
        if (isBack && this.main.querySelector(".notice[role=alert]")) this.show();
        this.#paintReading(reading);
        if (version !== this.version) {
          const isFirst = this.version === null;
          await this.readOverview();
          this.version = version;
          if (!isFirst) await this.#grown();
        }
      }
    } catch (error) {
      id("away").textContent = error.message;
      id("away").hidden = false;
    }
    setTimeout(() => this.poll(), POLL_MS);
  }

  #paintReading(reading) {
    const busy = reading && reading.bytes_total > reading.bytes_done;
    const growing = this.overview?.runs.some((run) => run.growing);
    const text = busy ? `reading, ${Math.floor((100 * reading.bytes_done) / reading.bytes_total)} %` : growing ? "live" : "";
    const line = [this.broken, text].filter(Boolean).join(" · ");
    if (id("reading").textContent !== line) id("reading").textContent = line;
    id("reading").classList.toggle("live", Boolean(growing) && !busy);
  }

  // ---- keys -------------------------------------------------------------------------------------------------------

  // j and k move through the links of a list.
  walk(root, name) {
    const by = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1 }[name];
    if (!by) return false;
    const items = [...root.querySelectorAll("a.item")];
    const at = items.indexOf(document.activeElement);
    const next = items[at < 0 ? 0 : Math.min(Math.max(at + by, 0), items.length - 1)];
    next?.focus();
    next?.scrollIntoView({ block: "nearest" });
    return true;
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    if (document.querySelector("dialog[open]")) return;
    const { target, key } = event;
    if (target.closest("input:not([type=checkbox]), select, textarea")) {
      if (key === "Escape") target.blur();
      return;
    }
    // Enter and the space bar belong to what has the focus; arrows to what scrolls.
    if (key === "Enter" && target.closest("a, button, summary")) return;
    if (this.#ownKey(key) || this.shown?.key(key)) event.preventDefault();
  }

  #ownKey(key) {
    const place = ["1", "2", "3", "4"].indexOf(key);
    if (place >= 0) id("views").children[place].click();
    else if (key === "?") id("keys").showModal();
    else if (key === "/") {
      if (current().get("view")) location.hash = changed({ view: null, tid: null, tids: null, at: null, pair: null });
      setTimeout(() => this.view("table").filters.focusText());
    } else if (key === "r" && !id("new").hidden) this.loadNew();
    else if (key === "l" && this.shown !== this.views.ReaderView) ReaderView.prototype.copyLink.call({ page: this });
    else return false;
    return true;
  }

  async begin() {
    for (const [keys, what] of KEYS) {
      const names = element("dt");
      for (const key of keys.split(" ")) names.append(element("kbd", "", key), " ");
      id("key-list").append(wrap("div", names, element("dd", "", what)));
    }
    id("help").addEventListener("click", () => id("keys").showModal());
    id("new").addEventListener("click", () => this.loadNew());
    addEventListener("keydown", (event) => this.key(event));
    addEventListener("hashchange", () => this.show());
    try {
      await this.readOverview();
    } catch (error) {
      this.main.replaceChildren(failure(error, () => location.reload()));
      return;
    }
    this.show();
    this.poll();
  }
}

new Page().begin();
