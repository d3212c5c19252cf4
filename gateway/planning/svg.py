"""Plots as inline SVG: lines over two axes, and a legend. Nothing else is needed to look at them."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

WIDTH, HEIGHT = 520, 300
LEFT, RIGHT, TOP, BOTTOM = 56, 18, 14, 42
COLOURS = ("#1b6ca8", "#d1495b", "#2e933c", "#edae49", "#7b4b94", "#00798c")
TICKS = 5


@dataclass(frozen=True, slots=True)
class Curve:
    """One line; points in order of x."""

    name: str
    points: Sequence[tuple[float, float]]


def find_ticks(low: float, high: float) -> list[float]:
    """Return round numbers, some ``TICKS`` of them, that reach from ``low`` or below to ``high`` or above."""
    span = (high - low) or abs(high) or 1.0
    power = 10.0 ** floor(log10(span / TICKS))
    step = next(times * power for times in (1, 2, 2.5, 5, 10) if times * power >= span / TICKS * 0.99)
    return [number * step for number in range(floor(low / step + 1e-9), ceil((low + span) / step - 1e-9) + 1)]


def plot(title: str, x_name: str, y_name: str, curves: Sequence[Curve], note: str = "") -> str:
    """Draw curves with a title, and a note below; empty curves are left out."""
    curves = [curve for curve in curves if curve.points]
    if not curves:
        return ""
    xs = [x for curve in curves for x, _ in curve.points]
    ys = [y for curve in curves for _, y in curve.points]
    x_ticks, y_ticks = find_ticks(min(xs), max(xs)), find_ticks(min(0.0, *ys), max(ys))
    x_low, y_low = x_ticks[0], y_ticks[0]
    x_span, y_span = x_ticks[-1] - x_low, y_ticks[-1] - y_low

    def place(x: float, y: float) -> tuple[str, str]:
        left = LEFT + (x - x_low) / x_span * (WIDTH - LEFT - RIGHT)
        top = HEIGHT - BOTTOM - (y - y_low) / y_span * (HEIGHT - TOP - BOTTOM)
        return f"{left:.1f}", f"{top:.1f}"

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">']
    for x in x_ticks:
        at = place(x, y_low)[0]
        parts.append(f'<path d="M{at},{TOP} V{HEIGHT - BOTTOM}" class="grid"/>')
        parts.append(f'<text x="{at}" y="{HEIGHT - BOTTOM + 15}" class="x">{x:.6g}</text>')
    for y in y_ticks:
        at = place(x_low, y)[1]
        parts.append(f'<path d="M{LEFT},{at} H{WIDTH - RIGHT}" class="grid"/>')
        parts.append(f'<text x="{LEFT - 5}" y="{float(at) + 4:.1f}" class="y">{y:.6g}</text>')
    for number, curve in enumerate(curves):
        points = " ".join(",".join(place(x, y)) for x, y in curve.points)
        parts.append(f'<polyline points="{points}" stroke="{COLOURS[number % len(COLOURS)]}"/>')
    parts += [
        f'<text x="{WIDTH / 2}" y="{HEIGHT - 8}" class="x">{escape(x_name)}</text>',
        f'<text transform="translate(13 {HEIGHT / 2}) rotate(-90)" class="x">{escape(y_name)}</text></svg>',
    ]
    legend = "".join(
        f'<li style="--colour:{COLOURS[number % len(COLOURS)]}">{escape(curve.name)}</li>'
        for number, curve in enumerate(curves)
    )
    below = f"<p>{escape(note)}</p>" if note else ""
    return f"<figure><h2>{escape(title)}</h2>{''.join(parts)}<ul>{legend}</ul>{below}</figure>"


def rows_to_table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Write an HTML table, with words to the left and numbers to the right."""

    def write(cell: str) -> str:
        kind = ' class="words"' if cell[:1].isalpha() else ""
        return f"<td{kind}>{escape(cell)}</td>"

    heads = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join("<tr>" + "".join(map(write, row)) + "</tr>" for row in rows)
    return f"<section><h2>{escape(title)}</h2><table><tr>{heads}</tr>{body}</table></section>"
