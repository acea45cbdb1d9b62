"""A small line chart as SVG text: powers of two across, a linear scale upwards."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

WIDTH, HEIGHT = 720, 420
LEFT, RIGHT, TOP, BOTTOM = 60, 150, 40, 50
COLORS: Final = ("#767676", "#0b6bcb", "#c2410c", "#15803d")


@dataclass(frozen=True, slots=True)
class Line:
    """A named line; its x values are positive."""

    name: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class _Scale:
    """From values to pixels."""

    low: float
    high: float
    top: float

    def x(self, value: float) -> float:
        """Return the place of an x value."""
        share = (math.log2(value) - self.low) / max(self.high - self.low, 1e-9)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        """Return the place of a y value."""
        return HEIGHT - BOTTOM - value / self.top * (HEIGHT - TOP - BOTTOM)


def line_chart(lines: Sequence[Line], *, title: str, x_label: str, y_label: str) -> str:
    """Return the chart."""
    xs = sorted({x for line in lines for x, _ in line.points})
    top = math.ceil(max(y for line in lines for _, y in line.points) + 0.25)
    scale = _Scale(math.log2(xs[0]), math.log2(xs[-1]), top)
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        _text(middle, 22, title, "middle"),
        _text(middle, HEIGHT - 10, x_label, "middle"),
        f'<g transform="rotate(-90 16 {HEIGHT / 2})">',
        _text(16, HEIGHT / 2, y_label, "middle"),
        "</g>",
    ]
    for value in range(top + 1):
        height = scale.y(value)
        parts.append(
            f'<path d="M{LEFT} {height:.1f}H{WIDTH - RIGHT}" stroke="#dddddd" fill="none"/>'
        )
        parts.append(_text(LEFT - 8, height + 4, str(value), "end"))
    parts.extend(_text(scale.x(x), HEIGHT - BOTTOM + 18, f"{x:g}", "middle") for x in xs)
    for number, line in enumerate(lines):
        parts.extend(_drawn(line, scale, COLORS[number % len(COLORS)]))
    return "\n".join([*parts, "</svg>", ""])


def _drawn(line: Line, scale: _Scale, color: str) -> list[str]:
    places = [(scale.x(x), scale.y(y)) for x, y in line.points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    last_x, last_y = places[-1]
    return [
        f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>',
        *(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>' for x, y in places),
        _text(last_x + 8, last_y + 4, line.name, "start", color),
    ]


def _text(x: float, y: float, words: str, anchor: str, color: str = "#222222") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {place} fill="{color}">{escape(words)}</text>'
