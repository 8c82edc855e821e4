// One trajectory as a view of the page: it is fetched with what stands beside it, and the keys lead to the one before
// or after it in the table's order.

import { Rows, get, getPage } from "./api.js";
import { besideHref } from "./beside.js";
import { button, count, element, link, visible } from "./dom.js";
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
    const links = { of: (row) => changed({ tid: row.tid, at: null }), beside: besideHref };
    const isHere = await fill(this.box, load, (details) => {
      this.details = details;
      return trajectory(details, links);
    });
    if (!isHere) return;
    document.title = `${visible(this.details.record.question).slice(0, 80)} – ${this.page.title}`;
    this.#paintHead(state);
    await this.rows.fetch(Math.max(this.#at() - 1, 0), this.#at() + 1).catch(() => {});
    if (this.tid === tid) this.#paintHead(state);
  }

  #at() { return Number(current().get("at") ?? -1); }

  #paintHead(state) {
    const at = state.has("at") ? Number(state.get("at")) : null;
    const back = link("← Trajectories", this.#backTo(), "back");
    back.title = "Back to the table (Esc)";
    const earlier = button("‹ Previous", () => this.step(-1));
    const later = button("Next ›", () => this.step(1));
    earlier.disabled = at === null || at <= 0;
    later.disabled = at === null || (this.rows.counts !== null && at >= this.rows.total - 1);
    earlier.title = "[";
    later.title = "]";
    const place = at !== null && this.rows.total ? `${count(at + 1)} of ${count(this.rows.total)}` : "";
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

  async step(by) {
    const at = this.#at();
    if (at < 0 || at + by < 0) return;
    const row = await this.rows.row(at + by);
    if (row) go({ tid: row.tid, at: at + by });
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

  // To the turn after or before the one at the top of the window.
  #turn(by) {
    const turns = [...this.box.querySelectorAll(".turn")];
    const top = this.page.main.getBoundingClientRect().top + this.head.offsetHeight + 16;
    const tops = turns.map((turn) => turn.getBoundingClientRect().top - top);
    const place = by > 0 ? tops.findIndex((one) => one > 4) : tops.findLastIndex((one) => one < -4);
    const turn = turns[place];
    turn?.scrollIntoView({ block: "start" });
    turn?.focus({ preventScroll: true });
  }

  // Open or close all passages.
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
