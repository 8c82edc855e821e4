// The page of an export: the same view of a trajectory, with the data in the page. The function static_page (in
// __init__.py) makes the page, and joins the modules that it needs into one script.

import { count, data, element, link, verdict, visible } from "./dom.js";
import { copyText } from "./clipboard.js";
import { trajectory } from "./trajectory.js";

class StaticPage {
  constructor({ title, made, trajectories }) {
    this.trajectories = trajectories;
    this.places = new Map(trajectories.map(({ row }, place) => [row.tid, place]));
    document.title = visible(title);
    const bar = document.body.appendChild(element("header", "bar"));
    bar.append(data("h1", "", title), element("p", "soft", made ?? ""));
    const main = document.body.appendChild(element("main", "static"));
    this.list = main.appendChild(element("nav", "exported"));
    this.list.ariaLabel = "Trajectories";
    this.list.hidden = trajectories.length < 2;
    this.box = main.appendChild(element("div", "reader-body"));
    this.box.tabIndex = -1;
    this.items = trajectories.map(({ row }, place) => {
      const item = this.list.appendChild(link("", `#${place + 1}`));
      item.append(verdict(row.right), data("span", "", row.question));
      return item;
    });
    addEventListener("hashchange", () => this.show());
    addEventListener("keydown", (event) => this.key(event));
    this.show();
  }

  get at() {
    return Math.min(Math.max(Number(location.hash.slice(1)) - 1 || 0, 0), this.trajectories.length - 1);
  }

  show() {
    const details = this.trajectories[this.at];
    if (!details) {
      this.box.replaceChildren(element("p", "notice", "No trajectory was exported."));
      return;
    }
    const of = ({ tid }) => (this.places.has(tid) ? `#${this.places.get(tid) + 1}` : null);
    this.box.replaceChildren(trajectory(details, { of, beside: () => null }));
    this.items.forEach((item, place) => {
      if (place === this.at) item.ariaCurrent = "true";
      else item.removeAttribute("aria-current");
    });
    this.items[this.at].scrollIntoView({ block: "nearest" });
    scrollTo(0, 0);
    this.list.title = `${count(this.at + 1)} of ${count(this.trajectories.length)}`;
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const by = { j: 1, "]": 1, k: -1, "[": -1 }[event.key];
    if (by) {
      const next = this.at + 1 + by;
      if (next >= 1 && next <= this.trajectories.length) location.hash = `#${next}`;
    } else if (event.key === "c") copyText(JSON.stringify(this.trajectories[this.at].record, null, 2));
  }
}

new StaticPage(JSON.parse(document.getElementById("data").textContent));
