"""Line plots as SVG text, without any library: points, straight fits, axes with round numbers."""
import math
from html import escape

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 420, 70, 20, 40, 50
COLOURS = ("#1f6fb2", "#c8511b", "#3a8f3a", "#8a4fb0")


def line_fit(points: list[tuple[float, float]]) -> tuple[float, float, float]:
    """(slope, intercept, R squared) of least squares; R squared is 1 where y does not vary."""
    n = len(points)
    mx, my = sum(x for x, _ in points) / n, sum(y for _, y in points) / n
    sxx, syy = sum((x - mx) ** 2 for x, _ in points), sum((y - my) ** 2 for _, y in points)
    sxy = sum((x - mx) * (y - my) for x, y in points)
    slope = sxy / sxx if sxx else 0.0
    return slope, my - slope * mx, sxy * sxy / (sxx * syy) if sxx and syy else 1.0


def ticks(most: float, about: int = 8) -> list[float]:
    """Round numbers from 0 to the first that is not below `most`."""
    raw = max(most, 1e-12) / about
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(m * size for m in (1, 2, 5, 10) if m * size >= raw)
    return [i * step for i in range(math.ceil(most / step - 1e-9) + 1)]


def svg(title: str, x_label: str, y_label: str, series: dict[str, list[tuple[float, float]]], fit: bool = True) -> str:
    """One polyline per series, with its straight fit dashed; both axes start at 0."""
    xs, ys = (ticks(max(p[i] for points in series.values() for p in points)) for i in (0, 1))

    def x(v: float) -> float:
        return LEFT + v / xs[-1] * (WIDTH - LEFT - RIGHT)

    def y(v: float) -> float:
        return HEIGHT - BOTTOM - v / ys[-1] * (HEIGHT - TOP - BOTTOM)

    def text(at: tuple[float, float], words: str, anchor: str = "middle", more: str = "") -> str:
        return f'<text x="{at[0]:.1f}" y="{at[1]:.1f}" text-anchor="{anchor}"{more}>{escape(words)}</text>'

    def path(points: list[tuple[float, float]], style: str) -> str:
        return f'<polyline fill="none" {style} points="{" ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in points)}"/>'
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>', text((WIDTH / 2, 20), title, more=' font-size="15"')]
    out += [path([(v, 0), (v, ys[-1])], 'stroke="#e4e4e4"') + text((x(v), HEIGHT - BOTTOM + 18), f"{v:g}") for v in xs]
    out += [path([(0, v), (xs[-1], v)], 'stroke="#e4e4e4"') + text((LEFT - 8, y(v) + 4), f"{v:g}", "end") for v in ys]
    out += [text((WIDTH / 2, HEIGHT - 10), x_label), text((16, HEIGHT / 2), y_label, more=f' transform="rotate(-90 16 {HEIGHT / 2})"')]
    for i, (name, points) in enumerate(series.items()):
        colour = COLOURS[i % len(COLOURS)]
        slope, base, r2 = line_fit(points)
        if fit:
            out.append(path([(e, min(max(base + slope * e, 0), ys[-1])) for e in (points[0][0], points[-1][0])],
                            f'stroke="{colour}" stroke-dasharray="5 4"'))
        out.append(path(points, f'stroke="{colour}" stroke-width="2"'))
        out += [f'<circle cx="{x(a):.1f}" cy="{y(b):.1f}" r="3" fill="{colour}"/>' for a, b in points]
        legend = f"{name}: {base:.3g} + {slope * 1000:.3g} per 1000 tokens (R² {r2:.3f})" if fit else name
        out.append(text((LEFT + 10, TOP + 14 + 16 * i), legend, "start", f' fill="{colour}"'))
    return "\n".join([*out, "</svg>", ""])
