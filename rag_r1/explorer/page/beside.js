// Shows trajectories side by side: a question in two runs, the rollouts of a group, or a question at several steps.

import { get } from "./api.js";
import { amount, data, element, link, signed } from "./dom.js";
import { fill } from "./notices.js";
import { changed, current } from "./state.js";
import { trajectory } from "./trajectory.js";

const MOST = 8;
const LETTERS = "ABCDEFGH";

// Returns the URL of the view for some rows, or null if there are fewer than two.
export function besideHref(rows) {
  const tids = rows.slice(0, MOST).map(({ tid }) => tid);
  return tids.length < 2 ? null : changed({ view: "beside", tids: tids.join(":"), tid: null, pair: null });
}

export const fetchAll = (tids, signal) => Promise.all(
  tids.slice(0, MOST).map((tid) => get(`trajectory/${encodeURIComponent(tid)}`, "", signal)),
);

// Makes a column for each trajectory, whose title is a link to the whole trajectory.
export function columns(all) {
  const row = element("div", "pair");
  row.dataset.count = all.length;
  all.forEach((details, place) => {
    const side = row.appendChild(element("section"));
    side.ariaLabel = LETTERS[place];
    const { run, step, tid, score } = details.row;
    const title = side.appendChild(element("h3"));
    const open = link("", changed({ view: "trajectory", tid, tids: null, pair: null, at: null }), "item");
    open.append(data("span", "", [run, Number.isFinite(step) ? `step ${step}` : ""].filter(Boolean).join(", ")));
    title.append(`${LETTERS[place]}: `, open);
    const facts = [];
    if (Number.isFinite(score)) facts.push(`score ${amount(score)}`);
    if (Number.isFinite(details.advantage?.value)) facts.push(`advantage ${signed(details.advantage.value)}`);
    side.append(element("p", "soft", facts.join(", ")), trajectory(details));
  });
  return row;
}

export class BesideView {
  constructor(page) {
    this.page = page;
    this.root = element("div", "sheet beside-view");
  }

  show(state) {
    document.title = `Beside each other – ${this.page.title}`;
    const tids = (state.get("tids") ?? "").split(":");
    return fill(this.root, (signal) => fetchAll(tids, signal), (all) => {
      const head = element("header", "sheet-head");
      head.append(link("← Trajectories", changed({ view: null, tids: null, at: null }), "back"));
      const group = all[0]?.group;
      if (group?.n > 1 && all.every(({ row }) => row.group === all[0].row.group)) {
        head.append(element("p", "group", `Group of ${group.n}: mean ${amount(group.mean)}, std ${amount(group.std)}`));
      }
      return [head, columns(all)];
    });
  }

  key(name) {
    if (name !== "Escape") return this.page.walk(this.root, name);
    if (history.length > 1) history.back();
    else location.hash = changed({ view: null, tids: null }, current());
    return true;
  }
}
