// Notices that a view shows instead of its contents: that they are loading, that there are none, or an error.

import { button, data, element } from "./dom.js";

const PATIENCE_MS = 150;   // nothing is shown for a request that is answered sooner

export function notice(title, text = "", ...actions) {
  const box = element("div", "notice");
  box.append(element("h2", "", title));
  if (text) box.append(data("p", "soft", text));
  if (actions.length) {
    const row = box.appendChild(element("p", "actions"));
    row.append(...actions);
  }
  return box;
}

export function failure(error, retry) {
  const box = notice("This could not be loaded", error.message, button("Retry", retry));
  box.setAttribute("role", "alert");
  return box;
}

// Fills a box with the result of a request. A later call for the same box cancels an earlier one.
const latest = new WeakMap();

export async function fill(box, load, build) {
  const turn = {};
  latest.get(box)?.giveUp.abort();
  turn.giveUp = new AbortController();
  latest.set(box, turn);
  const isLatest = () => latest.get(box) === turn;
  const waiting = setTimeout(() => { if (isLatest()) box.replaceChildren(skeleton()); }, PATIENCE_MS);
  box.ariaBusy = "true";
  try {
    const loaded = await load(turn.giveUp.signal);
    if (!isLatest()) return false;
    box.replaceChildren(...[build(loaded)].flat());
    return true;
  } catch (error) {
    if (isLatest() && error.name !== "AbortError") {
      box.replaceChildren(failure(error, () => fill(box, load, build)));
    }
    return false;
  } finally {
    clearTimeout(waiting);
    if (isLatest()) box.ariaBusy = "false";
  }
}

export function skeleton() {
  const box = element("div", "skeleton");
  box.append(element("span", "hidden", "Loading"));
  for (let line = 0; line < 6; line++) box.append(element("div", `line l${line % 3}`));
  return box;
}
