// Rows that are fetched a page at a time, where they are looked at.

const SIZE = 100;
const MOST = 30; // Pages that are held.
const REST = 50; // Milliseconds that a list rests before its rows are fetched: who scrolls past needs none of them.

/** Rows of a route that takes `limit` and `offset`; `changed` is called when some have come. */
export class Pages {
  #pages = new Map();
  #asked = new Set();
  #round = 0;
  #wanted = new Set(); // Pages that the last look missed.
  #since = 0;
  #timer = 0;
  total = 0;

  constructor(api, path, query, signal, changed) {
    Object.assign(this, { api, path, query, signal, changed });
  }

  /** The row at a place; null while it is fetched. */
  at(place) {
    const number = Math.floor(place / SIZE);
    const page = this.#pages.get(number);
    if (page === undefined) this.#want(number);
    return page?.[place % SIZE] ?? null;
  }

  #want(number) {
    if (this.#wanted.size === 0 || performance.now() - this.#since > 4) this.#wanted.clear();
    this.#since = performance.now();
    this.#wanted.add(number);
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => {
      for (const each of this.#wanted) this.#fetch(each);
      this.#wanted.clear();
    }, REST);
  }

  /** Fetch anew what is looked at. */
  async refresh(place = 0) {
    this.#round += 1;
    this.#asked.clear();
    await this.#fetch(Math.floor(place / SIZE), true);
  }

  async #fetch(number, anew = false) {
    if (this.#asked.has(number)) return;
    this.#asked.add(number);
    const round = this.#round;
    try {
      const query = { ...this.query, limit: SIZE, offset: number * SIZE };
      const { rows, total } = await this.api.page(this.path, query, this.signal);
      if (round !== this.#round) return;
      if (anew || this.#pages.size >= MOST) this.#pages.clear();
      this.#pages.set(number, rows);
      this.total = total;
      this.changed();
    } catch (error) {
      if (anew) throw error;
    } finally {
      this.#asked.delete(number);
    }
  }
}
