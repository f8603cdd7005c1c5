"""Small plots as SVG text: lines and steps over time, distributions, bars; no library, no script."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pyhetsched.policies.contract import Floats

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 260, 56, 150, 12, 40
# Okabe and Ito's palette, told apart by colour-blind readers too.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999")


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """One curve: ``label``, x and y [n]."""

    label: str
    x: Floats
    y: Floats


def thin(line: Line, points: int = 600) -> Line:
    """Return a curve with at most ``points`` points, evenly picked, the last one kept."""
    if len(line.x) <= points:
        return line
    keep = np.unique(np.linspace(0, len(line.x) - 1, points).astype(np.int64))
    return Line(line.label, line.x[keep], line.y[keep])


def distribution(label: str, values: Floats) -> Line:
    """Return the cumulative distribution of values, in percent."""
    ordered = np.sort(values)
    return thin(Line(label, ordered, 100.0 * np.arange(1, len(ordered) + 1) / max(len(ordered), 1)))


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return round numbers that span low to high."""
    if not high > low:
        return [low]
    raw = (high - low) / count
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= raw)
    first = math.ceil(low / step - 1e-9)
    return [round(index * step, 12) for index in range(first, math.floor(high / step + 1e-9) + 1)]


def chart(lines: Sequence[Line], x_label: str, y_label: str, *, log_x: bool = False, steps: bool = False) -> str:
    """Return an SVG of curves with axes and legend; ``steps`` draws them as stairs, ``log_x`` needs x > 0."""
    lines = [thin(line) for line in lines if len(line.x)]
    if not lines:
        return "<p>nothing to show</p>"
    xs = np.concatenate([line.x for line in lines])
    ys = np.concatenate([line.y for line in lines])
    x_of, x_ticks = _x_axis(xs, log_x)
    top = float(ys.max()) or 1.0
    low = min(float(ys.min()), 0.0)
    span = (top - low) or 1.0

    def y_of(value: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (1.0 - (value - low) / span)

    parts = [_frame(x_label, y_label)]
    parts += [_x_tick(x_of(value), value) for value in x_ticks]
    parts += [_y_tick(y_of(value), value) for value in ticks(low, top)]
    for number, line in enumerate(lines):
        colour = COLOURS[number % len(COLOURS)]
        points = [(x_of(x), y_of(y)) for x, y in zip(line.x.tolist(), line.y.tolist(), strict=True)]
        parts.append(f'<path d="{_path(points, steps)}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        y = TOP + 14 + 16 * number
        x = WIDTH - RIGHT + 10
        parts.append(f'<path d="M{x} {y - 4}h16" stroke="{colour}" stroke-width="3"/>')
        parts.append(f'<text x="{x + 20}" y="{y}">{html.escape(line.label)}</text>')
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{html.escape(y_label)}">{"".join(parts)}</svg>'


def _x_axis(xs: Floats, log_x: bool):  # type: ignore[no-untyped-def]
    width = WIDTH - LEFT - RIGHT
    low, high = float(xs.min()), float(xs.max())
    if log_x:
        low = max(low, 1e-3)
        a, b = math.log10(low), math.log10(max(high, low * 10))
        marks = [10.0**power for power in range(math.ceil(a - 1e-9), math.floor(b + 1e-9) + 1)]
        return (lambda value: LEFT + width * (math.log10(max(value, low)) - a) / (b - a)), marks
    span = (high - low) or 1.0
    return (lambda value: LEFT + width * (value - low) / span), ticks(low, high)


def _path(points: Sequence[tuple[float, float]], steps: bool) -> str:
    text = [f"M{points[0][0]:.1f} {points[0][1]:.1f}"]
    for x, y in points[1:]:
        text.append(f"H{x:.1f}V{y:.1f}" if steps else f"L{x:.1f} {y:.1f}")
    return "".join(text)


def _frame(x_label: str, y_label: str) -> str:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    return (
        f'<path d="M{LEFT} {TOP}V{bottom}H{right}" fill="none" stroke="#888"/>'
        f'<text x="{(LEFT + right) / 2}" y="{HEIGHT - 6}" text-anchor="middle">{html.escape(x_label)}</text>'
        f'<text x="12" y="{(TOP + bottom) / 2}" text-anchor="middle" '
        f'transform="rotate(-90 12 {(TOP + bottom) / 2})">{html.escape(y_label)}</text>'
    )


def _x_tick(x: float, value: float) -> str:
    return f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 15}" text-anchor="middle">{value:g}</text>'


def _y_tick(y: float, value: float) -> str:
    grid = f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#eee"/>'
    return f'{grid}<text x="{LEFT - 5}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>'


def scatter(x: Floats, y: Floats, x_label: str, y_label: str) -> str:
    """Return an SVG of points on two logarithmic axes of the same range, with the diagonal."""
    if not len(x):
        return "<p>nothing to show</p>"
    low = max(float(min(x.min(), y.min())), 1e-3)
    high = max(float(max(x.max(), y.max())), low * 10)
    a, b = math.log10(low), math.log10(high)
    width, height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def at(value: float) -> float:
        return (math.log10(max(value, low)) - a) / (b - a)

    marks = [10.0**power for power in range(math.ceil(a - 1e-9), math.floor(b + 1e-9) + 1)]
    parts = [_frame(x_label, y_label)]
    parts += [_x_tick(LEFT + width * at(mark), mark) for mark in marks]
    parts += [_y_tick(TOP + height * (1 - at(mark)), mark) for mark in marks]
    parts.append(f'<path d="M{LEFT} {TOP + height}L{LEFT + width} {TOP}" stroke="#888" stroke-dasharray="4"/>')
    keep = np.unique(np.linspace(0, len(x) - 1, min(len(x), 2000)).astype(np.int64))
    for one, two in zip(x[keep].tolist(), y[keep].tolist(), strict=True):
        colour = COLOURS[2] if two <= one else COLOURS[1]
        cx, cy = LEFT + width * at(one), TOP + height * (1 - at(two))
        parts.append(f'<circle cx="{cx:.1f}" cy="{cy:.1f}" r="2" fill="{colour}" fill-opacity="0.6"/>')
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{html.escape(y_label)}">{"".join(parts)}</svg>'
