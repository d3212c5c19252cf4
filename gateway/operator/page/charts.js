// Pictures as SVG: sparklines, curves, and one request on a time axis.
import { h, s, seconds } from "./dom.js";

// least: what fills the height when nothing is larger.
export function spark(element, series, kinds, label, least) {
  const most = Math.max(least, ...series.flat());
  const paths = series.map((values, index) => {
    const points = values.map((value, at) => `${((60 - values.length + at) / 59) * 100},${28 - (value / most) * 26}`);
    return s("path", { class: `line stroke-${kinds[index]}`, d: points.length ? `M${points.join("L")}` : "", "vector-effect": "non-scaling-stroke" });
  });
  element.replaceChildren(s("title", {}, label), ...paths);
  element.setAttribute("aria-label", label);
}

export const newSpark = () => s("svg", { class: "spark", viewBox: "0 0 100 30", preserveAspectRatio: "none", role: "img" });

// series: [{kind, label, points: [[x, y], ...]}]; bands: [[x0, x1, label], ...]
export function plot({ series, bands = [], xLabel, yLabel, xFormat, yFormat, label, yMost }) {
  const [width, height, left, bottom, top] = [560, 220, 56, 34, 12];
  const xs = series.flatMap((one) => one.points.map(([x]) => x));
  const [x0, x1] = [Math.min(...xs), Math.max(...xs, Math.min(...xs) + 1e-9)];
  const most = yMost ?? Math.max(1e-9, ...series.flatMap((one) => one.points.map(([, y]) => y)));
  const x = (value) => left + ((value - x0) / (x1 - x0)) * (width - left - 10);
  const y = (value) => top + (1 - value / most) * (height - top - bottom);
  const ticks = [0, 0.25, 0.5, 0.75, 1];
  return s("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label, class: "plot" },
    bands.map(([from, to, why]) => s("rect", { class: "fill-soft", x: x(from), y: top, width: Math.max(3, x(to) - x(from)), height: height - top - bottom }, s("title", {}, why))),
    ticks.map((share) => [
      s("line", { class: "grid", x1: left, x2: width - 10, y1: y(share * most), y2: y(share * most) }),
      s("text", { x: left - 6, y: y(share * most) + 4, "text-anchor": "end" }, yFormat(share * most)),
      s("text", { x: x(x0 + share * (x1 - x0)), y: height - bottom + 15, "text-anchor": share === 1 ? "end" : "middle" }, xFormat(x0 + share * (x1 - x0))),
    ]),
    s("text", { x: (left + width) / 2, y: height - 3, "text-anchor": "middle" }, xLabel),
    s("text", { x: 4, y: top - 2 }, yLabel),
    series.map((one) => s("path", { class: `line stroke-${one.kind}`, d: `M${one.points.map(([px, py]) => `${x(px)},${y(py)}`).join("L")}` }, s("title", {}, one.label))));
}

const LANES = { prefill: "P", relay: "RLD", extend: "extend", final: "MD" };
const KINDS = { prefill: "P", relay: "RLD", extend: "MD", final: "MD" };

// Lays a request's events out as bars and marks.
export function layOut(events) {
  const open = new Map(), bars = [], marks = [];
  let end = Math.max(0.05, ...events.map((event) => event.t_s)), transfer = null;
  for (const event of events) {
    const name = event.event;
    if (name === "leg_started") open.set(event.leg, event);
    else if (name === "leg_ended" && open.has(event.leg)) {
      const begun = open.get(event.leg);
      bars.push({ lane: LANES[begun.kind] ?? begun.kind, kind: KINDS[begun.kind] ?? "other", from: begun.t_s, to: event.t_s, text: `${begun.kind} on ${begun.instance}: ${event.outcome}` });
      open.delete(event.leg);
    } else if (name === "transfer_started") transfer = event;
    else if (name.startsWith("transfer_") && name !== "transfer_open" && transfer) {
      bars.push({ lane: "KV", kind: name === "transfer_failed" ? "bad" : "link", from: transfer.t_s, to: event.t_s, text: `KV over the line: ${name.slice(9)}` });
      transfer = null;
    } else if (name === "first_token") marks.push({ at: event.t_s, text: `first token, by ${event.role}` });
    else if (name === "joint") marks.push({ at: event.t_s, text: `joint: ${event.instance} takes over after ${seconds(event.gap_s)}`, joint: true });
    else if (name === "failed" || name === "client_gone") marks.push({ at: event.t_s, text: name, bad: true });
  }
  for (const begun of open.values()) bars.push({ lane: LANES[begun.kind] ?? begun.kind, kind: KINDS[begun.kind] ?? "other", from: begun.t_s, to: end, text: `${begun.kind} on ${begun.instance}, running` });
  if (transfer) bars.push({ lane: "KV", kind: "link", from: transfer.t_s, to: end, text: "KV over the line, moving" });
  return { bars, marks, end };
}

// room: how wide it may be, in pixels.
export function timeline(events, room) {
  const { bars, marks, end } = layOut(events);
  const lanes = ["P", "KV", "RLD", "extend", "MD", ...new Set(bars.map((bar) => bar.lane))].filter((lane, at, all) => all.indexOf(lane) === at && bars.some((bar) => bar.lane === lane));
  const [width, left, lane] = [Math.min(900, Math.max(320, room || 760)), 58, 26];
  const height = lanes.length * lane + 40;
  const x = (value) => left + (value / end) * (width - left - 14);
  const told = [...bars.map((bar) => `${bar.text} from ${seconds(bar.from)} to ${seconds(bar.to)}`), ...marks.map((mark) => `${mark.text} at ${seconds(mark.at)}`)].join("; ");
  const picture = s("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Timeline: ${told}`, class: "timeline" },
    lanes.map((name, at) => [
      s("text", { x: left - 8, y: at * lane + 22, "text-anchor": "end" }, name),
      s("line", { class: "grid", x1: left, x2: width - 14, y1: at * lane + 32, y2: at * lane + 32 }),
    ]),
    bars.map((bar) => s("rect", { class: `fill-${bar.kind}`, x: x(bar.from), y: lanes.indexOf(bar.lane) * lane + 10, width: Math.max(2, x(bar.to) - x(bar.from)), height: 14, rx: 3 }, s("title", {}, `${bar.text}, ${seconds(bar.from)} to ${seconds(bar.to)}`))),
    marks.map((mark) => s("line", { class: mark.bad ? "stroke-soft" : "stroke-joint", "stroke-dasharray": mark.joint ? "" : "3 3", x1: x(mark.at), x2: x(mark.at), y1: 4, y2: height - 24 }, s("title", {}, `${mark.text}, ${seconds(mark.at)}`))),
    [0, 0.25, 0.5, 0.75, 1].map((share) => s("text", { x: x(share * end), y: height - 6, "text-anchor": share === 0 ? "start" : share === 1 ? "end" : "middle" }, seconds(share * end))));
  return h("figure", {}, picture, h("figcaption", { class: "small soft" }, "Dotted: the first token. Full line: another role's tokens take over."));
}
