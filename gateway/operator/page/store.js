// What the gateway told, kept up to date by one event stream.
const POINTS = 60;

class Store extends EventTarget {
  sections = {};
  points = [];
  connected = false;

  get(name) { return this.sections[name] ?? {}; }
  get gateway() { return this.get("gateway").self ?? null; }
  series(name) { return this.points.map((point) => point[name] ?? 0); }

  follow() {
    const source = new EventSource("/admin/events");
    source.addEventListener("open", () => this.#connect(true));
    source.addEventListener("error", () => {
      this.#connect(false);
      // A refused stream is not tried again by the browser itself.
      if (source.readyState === EventSource.CLOSED) setTimeout(() => this.follow(), 3000);
    });
    source.addEventListener("state", (event) => { this.sections = {}; this.points = []; this.#take(event); });
    source.addEventListener("change", (event) => this.#take(event));
  }

  #connect(connected) {
    this.connected = connected;
    this.dispatchEvent(new Event("change"));
  }

  #take(event) {
    const { sections, points } = JSON.parse(event.data);
    for (const [name, changes] of Object.entries(sections)) {
      const section = (this.sections[name] = { ...this.sections[name] });
      for (const [id, value] of Object.entries(changes)) {
        if (value === null) delete section[id];
        else section[id] = value;
      }
    }
    this.points = [...this.points, ...points].slice(-POINTS);
    this.dispatchEvent(new Event("change"));
  }
}

export const store = new Store();
