"""Line plots as SVG: block size or depth, in powers of two, across; a figure upwards, linear or in powers of ten."""

import math
from xml.sax.saxutils import escape

# Okabe and Ito's colours, which people of every colour vision tell apart; the marks differ too.
STYLES = {
    "stag": ("#D55E00", "circle"),
    "tgt": ("#0072B2", "square"),
    "istgt": ("#009E73", "triangle"),
    "floor": ("#666666", "diamond"),
    "tcp": ("#0072B2", "square"),
    "tcp-digests": ("#56B4E9", "square"),
    "iser": ("#D55E00", "circle"),
    "iser-crc": ("#E69F00", "circle"),
    "tgt-tcp": ("#666666", "triangle"),
}
WIDTH, HEIGHT = 720, 440
LEFT, RIGHT, TOP, BOTTOM = 84, 18, 64, 62
FONT = "font-family=\"'DejaVu Sans', Verdana, sans-serif\""


def size(block):
    return f"{block}" if block < 1024 else f"{block >> 10}K" if block < 1 << 20 else f"{block >> 20}M"


def _mark(shape, x, y, colour):
    if shape == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.2" fill="{colour}"/>'
    if shape == "square":
        return f'<rect x="{x - 3.8:.1f}" y="{y - 3.8:.1f}" width="7.6" height="7.6" fill="{colour}"/>'
    points = [(0, -5), (4.8, 4), (-4.8, 4)] if shape == "triangle" else [(0, -5.2), (5.2, 0), (0, 5.2), (-5.2, 0)]
    return f'<polygon points="{" ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in points)}" fill="{colour}"/>'


def _label(value):
    if value >= 1e6:
        return f"{value / 1e6:g}M"
    return f"{value / 1e3:g}K" if value >= 1e3 else f"{value:g}"


def _linear_ticks(top):
    step = 10 ** math.floor(math.log10(top))
    for part in (0.2, 0.25, 0.5, 1, 2):
        if top / (step * part) <= 7:
            step *= part
            break
    return [step * n for n in range(int(math.ceil(top / step)) + 1)]


def lines(title, subtitle, y_words, series, names, log=False, x_words="bytes of one I/O"):
    """`series`: name -> [(block, middle, least, most)]. Returns the SVG's text."""
    points = [point for line in series.values() for point in line]
    if not points:
        return ""
    blocks = sorted({point[0] for point in points})
    most, least = max(point[3] for point in points), min(point[2] for point in points if point[2] > 0)
    if log:
        low, high = math.log10(least) - 0.08, math.log10(most) + 0.08
        decades = range(math.floor(low), math.ceil(high) + 1)
        inside = [m * 10.0 ** n for n in decades for m in range(1, 10) if low <= math.log10(m * 10.0 ** n) <= high]
        firsts = (1,) if high - low > 2.2 else (1, 2, 5)
        ticks = [tick for tick in inside if round(tick / 10 ** math.floor(math.log10(tick) + 1e-9)) in firsts]
        minor = [tick for tick in inside if tick not in ticks]
    else:
        ticks, minor = _linear_ticks(most), []
        low, high = 0, ticks[-1]
    first, last = math.log2(blocks[0]), max(math.log2(blocks[-1]), math.log2(blocks[0]) + 1)

    def across(block):
        return LEFT + 10 + (math.log2(block) - first) / (last - first) * (WIDTH - LEFT - RIGHT - 20)

    def up(value):
        at = math.log10(value) if log else value
        return HEIGHT - BOTTOM - (at - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" {FONT}>',
           f"<title>{escape(title)}</title>", f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
           f'<text x="{LEFT}" y="22" font-size="16" font-weight="bold" fill="#222">{escape(title)}</text>',
           f'<text x="{LEFT}" y="40" font-size="11" fill="#555">{escape(subtitle)}</text>']
    for tick in minor:
        out.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{up(tick):.1f}" y2="{up(tick):.1f}" stroke="#f0f0f0"/>')
    for tick in ticks:
        out.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{up(tick):.1f}" y2="{up(tick):.1f}" stroke="#cccccc"/>')
        out.append(f'<text x="{LEFT - 8}" y="{up(tick) + 4:.1f}" font-size="12" fill="#333" text-anchor="end">{_label(tick)}</text>')
    for block in blocks:
        out.append(f'<line x1="{across(block):.1f}" x2="{across(block):.1f}" y1="{HEIGHT - BOTTOM}" y2="{HEIGHT - BOTTOM + 5}" stroke="#333"/>')
        out.append(f'<text x="{across(block):.1f}" y="{HEIGHT - BOTTOM + 20}" font-size="12" fill="#333" text-anchor="middle">{size(block)}</text>')
    out.append(f'<path d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}" fill="none" stroke="#333"/>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    out.append(f'<text x="{middle}" y="{HEIGHT - 22}" font-size="13" fill="#222" text-anchor="middle">{escape(x_words)}</text>')
    middle = (TOP + HEIGHT - BOTTOM) / 2
    out.append(f'<text transform="translate(20 {middle}) rotate(-90)" font-size="13" fill="#222" text-anchor="middle">{escape(y_words)}</text>')
    for name, line in series.items():
        colour, shape = STYLES.get(name, ("#000000", "circle"))
        line = sorted(line)
        for block, _, low_value, high_value in line:
            if high_value > low_value:
                out.append(f'<line x1="{across(block):.1f}" x2="{across(block):.1f}" y1="{up(low_value):.1f}" y2="{up(high_value):.1f}" '
                           f'stroke="{colour}" stroke-width="5" stroke-opacity="0.25"/>')
        path = " ".join(f"{across(block):.1f},{up(value):.1f}" for block, value, *_ in line)
        dash = ' stroke-dasharray="5 4"' if name == "floor" else ""
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2.2"{dash}/>')
        out += [_mark(shape, across(block), up(value), colour) for block, value, *_ in line]
    # The legend: a row between the title and the plot, where no line is.
    x = WIDTH - RIGHT
    for name in reversed(list(series)):
        colour, shape = STYLES.get(name, ("#000000", "circle"))
        words = names.get(name, name)
        x -= 34 + 7.4 * len(words)
        out.append(f'<line x1="{x:.1f}" x2="{x + 22:.1f}" y1="53" y2="53" stroke="{colour}" stroke-width="2.2"/>')
        out.append(_mark(shape, x + 11, 53, colour))
        out.append(f'<text x="{x + 27:.1f}" y="57" font-size="12" fill="#222">{escape(words)}</text>')
        x -= 12
    return "\n".join([*out, "</svg>", ""])
