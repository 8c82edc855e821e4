// The view of one trajectory, which is fetched with the data of its side panels. Keys lead to the previous and the
// next trajectory in the order of the table.

import { Rows, get, getPage } from "./api.js";
import { besideHref } from "./beside.js";
import { button, count, element, link, visible } from "./dom.js";
import { foundLine, highlight } from "./found.js";
import { fill } from "./notices.js";
import { copyText, saveBlob } from "./clipboard.js";
import { changed, current, go, tableQuery } from "./state.js";
import { trajectory } from "./trajectory.js";

export class ReaderView {
  constructor(page) {
    this.page = page;
    this.root = element("div", "reader");
    this.head = this.root.appendChild(element("div", "reader-head"));
    this.box = this.root.appendChild(element("div", "reader-body"));
    // Text that a button shows after a click has to be highlighted, too.
    this.box.addEventListener("click", () => requestAnimationFrame(() => highlight(this.box, current().get("text") ?? "")));
  }

  async show(state) {
    const tid = state.get("tid") ?? "";
    const query = tableQuery(state).toString();
    if (this.rows?.query !== query) this.rows = new Rows(query);
    this.tid = tid;
    this.details = null;
    this.#paintHead(state);
    this.page.main.scrollTop = 0;
    this.page.main.focus({ preventScroll: true });
    const load = (signal) => get(`trajectory/${encodeURIComponent(tid)}`, "", signal);
    const links = { of: (row) => changed({ tid: row.tid }), beside: besideHref };
    const isHere = await fill(this.box, load, (details) => {
      this.details = details;
      const article = trajectory(details, links);
      return state.get("text") ? [foundLine(this.box, details.record, state.get("text")), article] : article;
    });
    if (!isHere) return;
    highlight(this.box, state.get("text") ?? "");
    document.title = `${visible(this.details.record.question).slice(0, 80)} – ${this.page.title}`;
    this.#paintHead(state);
    await this.rows.fetch(Math.max(this.#at() - 1, 0), this.#at() + 1).catch(() => {});
    if (this.tid === tid && current().get("tid") === tid) this.#paintHead(this.#placed(state));
  }

  // The state with the trajectory's own place in the table, if it is among the rows that were fetched. Otherwise a
  // rollout or a step that was opened from another trajectory keeps the place of that.
  #placed(state) {
    const place = this.rows.placeOf(state.get("tid"));
    if (place === undefined) return state;
    history.replaceState(null, "", changed({ at: place }, state));
    return current();
  }

  #at() { return Number(current().get("at") ?? -1); }

  #paintHead(state) {
    const at = state.has("at") ? Number(state.get("at")) : null;
    const back = link("← Trajectories", this.#backTo(), "back");
    back.title = "Back to the table (Esc)";
    const aside = this.#isAside(state);
    const earlier = button("‹ Previous", () => this.step(-1));
    const later = button("Next ›", () => this.step(1));
    earlier.disabled = at === null || (at <= 0 && !aside);
    later.disabled = at === null || (this.rows.counts !== null && at >= this.rows.total - 1);
    const absent = "It was opened by a link, without its place in the table";
    earlier.title = at === null ? absent : "[";
    later.title = at === null ? absent : "]";
    const number = `${count(at + 1)} of ${count(this.rows.total)}`;
    const place = at === null || !this.rows.total ? "" : aside ? `beside ${number}` : number;
    const copyJson = button("Copy JSON", () => this.copy());
    const copyLink = button("Copy link", () => this.copyLink());
    const save = button("Export", () => this.export());
    copyJson.title = "The whole record (c)";
    copyLink.title = "The address of this view (l)";
    save.title = "One page that needs no server (e)";
    for (const one of [copyJson, save]) one.disabled = !this.details;
    const focused = this.head.contains(document.activeElement) ? document.activeElement.textContent : null;
    this.head.replaceChildren(back, earlier, element("span", "soft", place), later, element("span", "gap"), copyJson, copyLink, save);
    if (focused) [...this.head.children].find((one) => one.textContent === focused)?.focus();
  }

  #backTo() { return changed({ view: null, tid: null, at: null }); }

  leave() { highlight(this.box, ""); }

  async step(by) {
    const at = this.#at();
    // From a row that was opened from a trajectory, Previous leads back to the row of the table.
    const next = at + (by < 0 && this.#isAside(current()) ? 0 : by);
    if (at < 0 || next < 0) return;
    const row = await this.rows.row(next);
    if (row) go({ tid: row.tid, at: next });
  }

  // Whether the shown trajectory is not the row at its place in the table, but was opened from that row.
  #isAside(state) {
    const row = state.has("at") ? this.rows.at(this.#at()) : null;
    return Boolean(row) && String(row.tid) !== state.get("tid");
  }

  async copy() {
    if (!this.details) return;
    this.page.say((await copyText(JSON.stringify(this.details.record, null, 2))) ? "Record copied" : "Not copied");
  }

  async copyLink() { this.page.say((await copyText(location.href)) ? "Link copied" : "Not copied"); }

  async export() {
    try {
      const blob = await getPage("export", new URLSearchParams({ tid: this.tid }));
      saveBlob(blob, "trajectory.html");
      this.page.say("Exported");
    } catch (error) {
      this.page.say(error.message);
    }
  }

  // Scrolls to the turn after or before the one at the top of the window.
  #turn(by) {
    const turns = [...this.box.querySelectorAll(".turn")];
    const top = this.page.main.getBoundingClientRect().top + this.head.offsetHeight + 16;
    const tops = turns.map((turn) => turn.getBoundingClientRect().top - top);
    const place = by > 0 ? tops.findIndex((one) => one > 4) : tops.findLastIndex((one) => one < -4);
    const turn = turns[place];
    turn?.scrollIntoView({ block: "start" });
    turn?.focus({ preventScroll: true });
  }

  // Opens or closes all passages.
  #fold() {
    const all = [...this.box.querySelectorAll("details.passage")];
    const open = all.some((one) => !one.open);
    for (const one of all) one.open = open;
  }

  key(name) {
    const keys = {
      "[": () => this.step(-1), "]": () => this.step(1), c: () => this.copy(), l: () => this.copyLink(),
      e: () => this.export(), j: () => this.#turn(1), k: () => this.#turn(-1), p: () => this.#fold(),
      Escape: () => { location.hash = this.#backTo(); },
    };
    const beside = this.box.querySelector(`.beside-link[data-key="${CSS.escape(name)}"]`);
    if (beside) {
      beside.click();
      return true;
    }
    if (!Object.hasOwn(keys, name)) return false;
    keys[name]();
    return true;
  }
}
