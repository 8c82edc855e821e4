// Shows why trajectories failed. Each cause has its number, a sentence, examples, and a link to the table of its
// trajectories. The filters of the table apply here, too.

import { get } from "./api.js";
import { counted, data, element, link, percent, runName, shape, words } from "./dom.js";
import { filterLine } from "./filters.js";
import { fill, notice } from "./notices.js";
import { changed, current, filters, go } from "./state.js";

const EXAMPLES = 3;

export class CausesView {
  constructor(page) {
    this.page = page;
    this.root = element("div", "sheet causes");
  }

  show(state) {
    document.title = `Causes – ${this.page.title}`;
    const query = filters(state, "cause");
    return fill(this.root, async (signal) => {
      const found = await get("causes", query, signal);
      const examples = await Promise.all(found.causes.map(async ({ name, examples: ids }) => {
        const one = new URLSearchParams(query);
        one.set("cause", name);
        one.set("limit", EXAMPLES);
        return ids?.length ? (await get("trajectories", one, signal)).rows : [];
      }));
      return { found, examples };
    }, ({ found, examples }) => this.#build(found, examples, query));
  }

  refresh() { return this.show(current()); }

  #build({ causes, failures }, examples, query) {
    const head = element("header", "sheet-head");
    head.append(element("h2", "", "Causes of failure"), this.#choice());
    const intro = head.appendChild(element("p", "soft"));
    intro.append(`${counted(failures, "wrong trajectory", "wrong trajectories")}. `
      + "Each has one cause, the first rule that holds.");
    head.append(filterLine(query) ?? "");
    if (!causes.length) {
      return [head, notice("No failures", "Every judged trajectory is right, or none was judged.")];
    }
    const most = Math.max(...causes.map(({ n }) => n));
    const list = element("ol", "cause-list");
    const order = causes.map((_, place) => place).sort((one, other) => causes[other].n - causes[one].n);
    order.forEach((place) => {
      const cause = causes[place];
      const item = list.appendChild(element("li", "cause"));
      const title = item.appendChild(element("h3"));
      const open = link("", changed({ view: null, cause: cause.name, right: null }), "item");
      open.append(data("span", "", words(cause.name)));
      title.append(open, element("span", "n", `${counted(cause.n, "trajectory", "trajectories")} · ${percent(cause.n, failures)}`));
      const bar = shape("svg", { viewBox: "0 0 100 4", preserveAspectRatio: "none", "aria-hidden": "true" });
      bar.append(shape("rect", { x: 0, y: 0, width: (100 * cause.n) / most, height: 4 }));
      item.append(bar, data("p", "sentence", cause.sentence), this.#examples(cause, examples[place]));
    });
    return [head, list];
  }

  #choice() {
    const label = element("label", "choose", "Run ");
    const select = label.appendChild(element("select"));
    const chosen = current().getAll("run");
    const names = (this.page.overview?.runs ?? []).map(({ run }) => run);
    for (const [text, value] of [["all", ""], ...names.map((run) => [runName(run, 40), run])]) {
      const option = select.appendChild(element("option", "", text));
      option.value = value;
      option.selected = chosen.length === 1 && chosen[0] === value;
    }
    if (chosen.length > 1) select.prepend(new Option(`${chosen.length} runs`, "", true, true));
    select.addEventListener("change", () => go({ run: select.value }));
    label.hidden = names.length < 2;
    return label;
  }

  #examples(cause, rows) {
    const list = element("ul", "examples");
    rows.forEach((row, place) => {
      const open = link("", changed({ view: "trajectory", cause: cause.name, right: null, tid: row.tid, at: place }), "item");
      open.append(data("span", "question", row.question));
      const answer = open.appendChild(element("span", "soft"));
      answer.append(row.answer ? data("span", "", row.answer) : "no answer");
      if (row.golds?.length) answer.append(", gold: ", data("span", "gold", row.golds[0]));
      list.appendChild(element("li")).append(open);
    });
    return list;
  }

  key(name) { return this.page.walk(this.root, name); }
}
