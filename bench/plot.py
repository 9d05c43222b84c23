"""The classic workload as a plot (SVG, no library needed): transactions a
second by number of clients.
"""

from __future__ import annotations

from figures import TARGETS, figures, middle

COLOURS = {"direct": "#7a7a7a", "pg_baton": "#c2410c", "PgBouncer": "#1d4ed8"}
WIDTH, HEIGHT = 430, 300
LEFT, RIGHT, TOP, BOTTOM = 60, 15, 40, 45


def plot(raw: dict) -> str:
    """A panel a protocol: transactions a second by clients."""
    protocols = [
        protocol
        for protocol in ("simple", "extended", "prepared")
        if any(one["cell"]["workload"] == "select-only" and one["cell"]["protocol"] == protocol for one in raw["cells"])
    ]
    width = max(WIDTH * len(protocols), WIDTH)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{HEIGHT}"'
        f' font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="white"/>'
    ]
    for index, protocol in enumerate(protocols):
        parts.append(f'<g transform="translate({index * WIDTH},0)">{panel(raw, protocol)}</g>')
    return "\n".join(parts) + "\n</svg>\n"


def panel(raw: dict, protocol: str) -> str:
    # pgbench up to 64 clients, the load generator beyond (pgbench where the
    # generator has no figure).
    chosen: dict[int, dict] = {}
    for one in raw["cells"]:
        cell = one["cell"]
        if cell["workload"] != "select-only" or cell["protocol"] != protocol:
            continue
        wanted = "pgbench" if cell["clients"] <= 64 else "baton-load"
        if cell["clients"] not in chosen or cell["generator"] == wanted:
            chosen[cell["clients"]] = one
    counts = sorted(chosen)
    if not counts:
        return ""
    top = max([value for one in chosen.values() for target in TARGETS for value in figures(one, target)] or [1]) * 1.08
    inner_width, inner_height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def x(position: int) -> float:
        return LEFT + inner_width * (position + 0.5) / len(counts)

    def y(value: float) -> float:
        return TOP + inner_height * (1 - value / top)

    parts = [f'<text x="{LEFT}" y="18" font-size="13" font-weight="bold">select-only, {protocol}</text>']
    step = 10_000 if top > 25_000 else 5_000
    for value in range(0, int(top) + 1, step):
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}" stroke="#ddd"/>'
            f'<text x="{LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:,}</text>'
        )
    for position, clients in enumerate(counts):
        parts.append(f'<text x="{x(position):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{clients:,}</text>')
    parts.append(f'<text x="{LEFT + inner_width / 2}" y="{HEIGHT - 10}" text-anchor="middle">clients</text>')
    for row, target in enumerate(TARGETS):
        points = [
            (x(position), y(value))
            for position, clients in enumerate(counts)
            if (value := middle(figures(chosen[clients], target))) is not None
        ]
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{COLOURS[target]}" stroke-width="2"/>')
        parts += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{COLOURS[target]}"/>' for a, b in points]
        parts.append(f'<text x="{LEFT + 4 + row * 80}" y="33" fill="{COLOURS[target]}">{target}</text>')
    return "".join(parts)
