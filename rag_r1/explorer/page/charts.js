// Charts of a run by step. Each measure has its own chart, with a line for the training and one for the validation, so
// that no axis has two scales. Only the shares of one whole (how episodes end, causes) and the times of a step share a
// chart. The colours are those of rag_r1/runs/pictures.py (Okabe and Ito). Each chart also has its figures as a table.

import { get } from "./api.js";
import { amount, count, data, element, link, runName, visible, words } from "./dom.js";
import { filterLine } from "./filters.js";
import { fill, notice } from "./notices.js";
import { divergence } from "./divergence.js";
import { changed, current, filters, go } from "./state.js";

const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00"];
const TOGETHER = {   // group -> title, unit
  status: ["How episodes end", "share"], cause: ["Causes of failure", "share"], time: ["Time", "seconds"],
  entropy: ["Entropy", "nats"], likelihood: ["Log-probs of sampled tokens", "nats a token"],
  groups: ["Rewards within a group", "deviation, share of groups"], sources: ["Reward by source", "mean score"],
  shares: ["Valid turns, recall, observed tokens", "share"], engine: ["Engine against actor", "difference"],
  gradient: ["Gradient", "norm"],
};
const MEASURES = {   // name of a series -> title, unit
  score: ["Reward", "mean score"], right: ["Exact match", "share right"], searches: ["Searches", "a question"],
  turns: ["Turns", "a question"], "generated tokens": ["Generated tokens", "a question"],
  "repeated queries": ["Repeated queries", "a question"], "tool failures": ["Turns with a failed search", "a question"],
  masked: ["Masked trajectories", "share"],
};
const WITHIN_ONE = new Set(["right", "masked", "status"]);   // drawn from 0 to 1
const HEIGHT = 220;
const DASHES = [[], [6, 4], [2, 3]];   // from the seventh series on

export class ChartsView {
  constructor(page) {
    this.page = page;
    this.root = element("div", "sheet charts");
    this.charts = [];
    new ResizeObserver(() => this.#resize()).observe(this.root);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      if (this.root.isConnected) this.show(current());
    });
  }

  show(state) {
    document.title = `Charts – ${this.page.title}`;
    const runs = this.page.overview?.runs ?? [];
    const filtered = state.getAll("run");
    const chosen = state.get("chart") ?? (filtered.length === 1 ? filtered[0] : undefined) ?? (runs.find((run) => run.steps && run.steps[0] !== run.steps[1]) ?? runs[0])?.run;
    this.chosen = chosen;
    if (chosen === undefined) return fill(this.root, () => ({ series: [] }), (found) => this.#build(found, runs));
    const query = filters(state, "run");
    query.set("run", chosen);
    return fill(this.root, async (signal) => {
      const found = await get("charts", query, signal);
      return { ...found, sentence: await divergence(found.series, query, signal) };
    }, (found) => this.#build(found, runs));
  }

  leave() { this.#drop(); }
  refresh() { return this.show(current()); }

  #drop() {
    for (const { plot } of this.charts) plot.destroy();
    this.charts = [];
  }

  #build({ series, sentence }, runs) {
    this.#drop();
    const head = element("header", "sheet-head");
    head.append(element("h2", "", "By step"));
    head.append(this.#choice(runs), filterLine(current(), "run") ?? "");
    const drawn = chartsOf(series);
    if (!drawn.length) return [head, notice("Nothing to draw", "No step of this run is left; choose a training, or remove filters.")];
    const flat = drawn.filter(({ lines }) => lines.every(({ y }) => y.every((value) => value === 0)));
    const grid = element("div", "chart-grid");
    for (const chart of drawn) if (!flat.includes(chart)) grid.append(this.#chart(chart));
    requestAnimationFrame(() => this.#resize());
    const zero = element("p", "soft zero", `Always 0: ${flat.map(({ title }) => title.toLowerCase()).join(", ")}.`);
    return [head, ...(sentence ? [sentence] : []), grid, ...(flat.length ? [zero] : [])];
  }

  #choice(runs) {
    const label = element("label", "choose", "Run ");
    const select = label.appendChild(element("select"));
    for (const { run } of runs) {
      const option = select.appendChild(element("option", "", runName(run, 40)));
      option.title = visible(run);
      option.value = run;
      option.selected = run === this.chosen;
    }
    select.addEventListener("change", () => go({ chart: select.value }));
    return label;
  }

  #chart({ title, unit, measure, lines: members }) {
    const box = element("figure", "chart");
    box.append(element("h3", "", title));
    const steps = [...new Set(members.flatMap(({ x }) => x))].sort((one, other) => one - other);
    const absent = measure === "status" || measure === "cause" ? 0 : null;   // a share without a trajectory is 0
    const columns = members.map(({ x, y }) => {
      const at = new Map(x.map((step, place) => [step, y[place]]));
      return steps.map((step) => at.get(step) ?? absent);
    });
    const canvas = box.appendChild(element("div", "canvas"));
    canvas.setAttribute("role", "img");
    canvas.ariaLabel = `${title} by step: ${members.map(({ name }) => name).join(", ")}`;
    const legend = box.appendChild(element("ul", "legend"));
    const values = members.map((member) => {
      const item = legend.appendChild(element("li"));
      item.append(swatch(member.colour), data("span", "", member.name), " ");
      return item.appendChild(element("b"));
    });
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1 } };
    const font = "12px system-ui, sans-serif";
    const show = (index) => values.forEach((value, place) => {
      const column = columns[place];
      const at = index ?? column.findLastIndex((one) => one !== null);
      value.textContent = column[at] === null || column[at] === undefined ? "" : amount(column[at]);
      value.title = index === null ? `step ${steps[at]}` : "";
    });
    const plot = new globalThis.uPlot({
      width: 300, height: HEIGHT, legend: { show: false }, cursor: { sync: { key: "step" }, y: false, points: { size: 7 } },
      scales: { x: { time: false }, y: WITHIN_ONE.has(measure) ? { range: [0, 1] } : {} },
      axes: [
        { ...axis, font, label: "step", labelFont: font, labelSize: 20, size: 32, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000] },
        { ...axis, font, label: unit, labelFont: font, labelSize: 20, size: 52, values: asTicks },
      ],
      series: [{}, ...members.map(({ name, colour: place }) => ({
        label: name, stroke: COLOURS[place % COLOURS.length], width: 2, spanGaps: true,
        dash: DASHES[Math.floor(place / COLOURS.length) % DASHES.length], points: { show: steps.length < 60, size: 5 },
      }))],
      hooks: { setCursor: [(one) => show(one.cursor.idx ?? null)] },
    }, [steps, ...columns], canvas);
    this.charts.push({ plot, canvas });
    this.#opening(plot, members, columns, steps, measure);
    show(null);
    const href = (place, at) => pointHref(this.chosen, members[place], steps[at], measure);
    box.append(figures(title, steps, members, columns, href));
    return box;
  }

  // A click opens the trajectories of the step that is nearest, and of the line that is nearest there.
  #opening(plot, members, columns, steps, measure) {
    let pressed = 0;
    plot.over.addEventListener("pointerdown", ({ clientX }) => { pressed = clientX; });
    plot.over.addEventListener("pointerup", ({ clientX, clientY, button }) => {
      if (button || Math.abs(clientX - pressed) > 3) return;   // a range was drawn
      const { left, top } = plot.over.getBoundingClientRect();
      const index = plot.posToIdx(clientX - left);
      const distance = (place) => {
        const value = columns[place][index];
        return value === null ? Infinity : Math.abs(plot.valToPos(value, "y") - (clientY - top));
      };
      const nearest = members.map((_, place) => place).sort((one, other) => distance(one) - distance(other))[0];
      location.hash = pointHref(this.chosen, members[nearest], steps[index], measure);
    });
  }

  #resize() {
    for (const { plot, canvas } of this.charts) {
      if (canvas.clientWidth > 40) plot.setSize({ width: canvas.clientWidth, height: HEIGHT });
    }
  }

  key(name) {
    if (name !== "[" && name !== "]") return false;
    const select = this.root.querySelector("select");
    const next = (select?.selectedIndex ?? 0) + (name === "]" ? 1 : -1);
    if (select?.options[next]) go({ chart: select.options[next].value });
    return true;
  }
}

// Formats the numbers of an axis with as many digits as distinguish them.
function asTicks(_, ticks, axis, space, step) {
  const digits = (String(Number(step.toPrecision(3))).split(".")[1] ?? "").length;
  return ticks.map((tick) => (step < 1e-6 ? tick.toPrecision(2) : tick.toFixed(digits)));
}

function swatch(place) {
  const made = element("span", `swatch s${place % COLOURS.length}`);
  made.ariaHidden = "true";
  return made;
}

// Groups series into charts with a title, a unit, and lines that are named for the legend. A series is named
// "KIND: MEASURE" (training: score), or only by its measure. A name has the same colour in all charts of its sort.
function chartsOf(series) {
  const charts = new Map();
  const colours = {};   // sort of chart -> its names, in the order of their colours
  for (const one of series) {
    const [, kind, measure] = /^(\w+): (.*)$/s.exec(one.name) ?? [null, "", one.name];
    if (one.group === "cause" && measure === "none") continue;
    const isTogether = Object.hasOwn(TOGETHER, one.group);
    const isTerm = one.group === "reward" && measure !== "score";   // it may have the name of a measure
    const [title, unit] = TOGETHER[one.group] ?? (Object.hasOwn(MEASURES, measure) && !isTerm ? MEASURES[measure]
      : [isTerm ? `Reward term: ${words(measure)}` : words(measure), "mean"]);
    const named = isTogether && kind ? `${title}, ${kind}` : title;
    if (!charts.has(named)) charts.set(named, { title: named, unit, measure: isTogether ? one.group : measure, lines: [] });
    const name = isTogether || !kind ? words(measure.replace(/^(timing_s|search|actor|training)\//, "")) : kind;
    const names = (colours[isTogether ? one.group : kind ? "kind" : named] ??= []);
    if (!names.includes(name)) names.push(name);
    charts.get(named).lines.push({ ...one, name, kind, value: measure, colour: names.indexOf(name) });
  }
  return [...charts.values()];
}

// Returns the URL of the table with the trajectories over which a point of a chart is the mean.
function pointHref(run, { kind, value }, step, measure) {
  const share = measure === "status" || measure === "cause" ? { [measure]: value } : {};
  return changed({ view: null, chart: null, run, step_min: step, step_max: step, ...(kind ? { kind } : {}), ...share });
}

function figures(title, steps, members, columns, href) {
  const box = element("details", "figures");
  box.append(element("summary", "", "Figures"));
  box.addEventListener("toggle", () => {
    if (!box.open || box.querySelector("table")) return;
    const scroll = box.appendChild(element("div", "figures-scroll"));
    scroll.tabIndex = 0;
    scroll.setAttribute("role", "region");
    scroll.ariaLabel = `${title}, figures`;
    const table = scroll.appendChild(element("table"));
    const head = table.appendChild(element("thead")).appendChild(element("tr"));
    for (const name of ["step", ...members.map((one) => one.name)]) {
      const cell = head.appendChild(data("th", "", name));
      cell.scope = "col";
    }
    const body = table.appendChild(element("tbody"));
    steps.forEach((step, place) => {
      const line = body.appendChild(element("tr"));
      line.append(element("th", "", count(step)), ...columns.map((one, member) => {
        const cell = element("td");
        if (one[place] !== null) cell.append(link(amount(one[place]), href(member, place)));
        return cell;
      }));
    });
  });
  return box;
}
