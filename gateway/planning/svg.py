"""Plots as inline SVG: lines over two axes, and a legend. Nothing else is needed to look at them."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 520, 300
LEFT, RIGHT, TOP, BOTTOM = 56, 14, 14, 42
COLOURS = ("#1b6ca8", "#d1495b", "#2e933c", "#edae49", "#7b4b94", "#00798c")
TICKS = 5


@dataclass(frozen=True, slots=True)
class Curve:
    """One line; points in order of x."""

    name: str
    points: Sequence[tuple[float, float]]


def plot(title: str, x_name: str, y_name: str, curves: Sequence[Curve], note: str = "") -> str:
    """Draw curves with a title, and a note below; empty curves are left out."""
    curves = [curve for curve in curves if curve.points]
    if not curves:
        return ""
    xs = [x for curve in curves for x, _ in curve.points]
    ys = [y for curve in curves for _, y in curve.points]
    x_low, x_high = min(xs), max(xs) or 1.0
    y_low, y_high = min(0.0, *ys), max(ys) * 1.05 or 1.0
    x_span, y_span = (x_high - x_low) or 1.0, (y_high - y_low) or 1.0

    def place(x: float, y: float) -> str:
        left = LEFT + (x - x_low) / x_span * (WIDTH - LEFT - RIGHT)
        top = HEIGHT - BOTTOM - (y - y_low) / y_span * (HEIGHT - TOP - BOTTOM)
        return f"{left:.1f},{top:.1f}"

    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">',
        f'<path d="M{place(x_low, y_high)} L{place(x_low, y_low)} L{place(x_high, y_low)}" class="axis"/>',
    ]
    for tick in range(TICKS + 1):
        x, y = x_low + x_span * tick / TICKS, y_low + y_span * tick / TICKS
        at_x, at_y = place(x, y_low).split(",")[0], place(x_low, y).split(",")[1]
        parts += [
            f'<text x="{at_x}" y="{HEIGHT - BOTTOM + 15}" class="x">{x:.3g}</text>',
            f'<text x="{LEFT - 5}" y="{float(at_y) + 4:.1f}" class="y">{y:.3g}</text>',
        ]
    for number, curve in enumerate(curves):
        points = " ".join(place(x, y) for x, y in curve.points)
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
    """Write an HTML table."""
    heads = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<section><h2>{escape(title)}</h2><table><tr>{heads}</tr>{body}</table></section>"
