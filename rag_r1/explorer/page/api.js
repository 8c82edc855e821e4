// Client of the server's API. A request is aborted when a newer one replaces it. After a 401 the user is asked for the
// token, which is kept only in this module, and is lost when the page is closed.

let token = "";
let asking = null;   // a promise while the user is asked for the token

export class Refused extends Error {}

async function request(path, signal) {
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  let response;
  try {
    response = await fetch(path, { headers, signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer. Is `rag-r1 view` still running?");
  }
  if (response.status === 401) {
    const used = token;
    asking ??= askForToken(Boolean(used)).then((entered) => { token = entered; asking = null; });
    await asking;
    return request(path, signal);
  }
  if (response.ok) return response;
  let message = `The server answers with status ${response.status}.`;
  try {
    message = (await response.json()).error.message || message;
  } catch { /* not this API's form */ }
  throw new Refused(message.charAt(0).toUpperCase() + message.slice(1));
}

export async function get(path, query = "", signal = undefined) {
  const parameters = String(query);
  return (await request(`api/${path}${parameters ? `?${parameters}` : ""}`, signal)).json();
}

export async function getPage(path, query) {
  return (await request(`api/${path}?${query}`)).blob();
}

function askForToken(again) {
  const dialog = document.getElementById("login");
  const field = document.getElementById("token");
  document.getElementById("refused").hidden = !again;
  field.value = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      const entered = field.value.trim();
      field.value = "";
      resolve(entered);
    }, { once: true });
  });
}

// The rows of a query. They are fetched in windows, when they are needed.
const WINDOW = 100;

export class Rows {
  constructor(query) {
    this.query = String(query);
    this.counts = null;      // {total, right, wrong, unjudged}
    this.windows = new Map();
    this.giveUp = new AbortController();
  }

  get total() { return this.counts?.total ?? 0; }

  // Returns a row, or undefined if it has not been fetched yet.
  at(index) { return this.windows.get(Math.floor(index / WINDOW))?.rows?.[index % WINDOW]; }

  // Returns the index of a row among those that have been fetched.
  placeOf(tid) {
    for (const [number, { rows }] of this.windows) {
      const place = rows?.findIndex((row) => String(row.tid) === tid) ?? -1;
      if (place >= 0) return number * WINDOW + place;
    }
    return undefined;
  }

  async fetch(first, last = first) {
    const numbers = [];
    for (let number = Math.floor(Math.max(first, 0) / WINDOW); number <= last / WINDOW; number++) numbers.push(number);
    await Promise.all(numbers.map((number) => this.#window(number)));
  }

  async row(index) {
    await this.fetch(index);
    return this.at(index);
  }

  async #window(number) {
    if (!this.windows.has(number)) {
      const entry = {};
      this.windows.set(number, entry);
      const query = new URLSearchParams(this.query);
      query.set("offset", number * WINDOW);
      query.set("limit", WINDOW);
      entry.arriving = get("trajectories", query, this.giveUp.signal).then(
        ({ rows, ...counts }) => {
          entry.rows = rows;
          // While a run grows, every window reports more rows. The table keeps its first count.
          this.counts ??= counts;
        },
        (error) => { this.windows.delete(number); throw error; },
      );
    }
    await this.windows.get(number).arriving;
  }

  stop() { this.giveUp.abort(); }
}
