"""The report's sections as one self-contained HTML page (no script, nothing fetched) and as Markdown. On the host."""

from typing import Any

import jinja2

from eagle3.remote.report_sections import Chart, Section

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 560, 220, 48, 12, 28
MAX_LABELS = 14

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
<style>
:root { color-scheme: light dark; --text: #1d2430; --dim: #5b6675; --line: #d9dee6; --page: #fff; --soft: #f5f7fa;
  --one: #1f6fd6; --two: #d9660b; }
@media (prefers-color-scheme: dark) { :root { --text: #e6eaf0; --dim: #9aa6b5; --line: #333c49; --page: #14181e;
  --soft: #1b2129; --one: #6aaef5; --two: #f2a154; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--page); max-width: 60rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin-bottom: 0; } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
p.dim, figcaption { color: var(--dim); margin: .2rem 0; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: .5rem 0 1rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: .25rem .9rem .25rem 0; border-bottom: 1px solid var(--line);
  overflow-wrap: anywhere; }
th { color: var(--dim); font-weight: 500; white-space: nowrap; }
td:first-child { white-space: nowrap; }
section:first-of-type { background: var(--soft); padding: .1rem 1.2rem .4rem; border-radius: .5rem; margin-top: 1rem; }
section:first-of-type h2 { margin-top: 1rem; }
figure { margin: 1rem 0; } svg { width: 100%; max-width: 35rem; height: auto; }
svg text { font-size: 11px; fill: var(--dim); } svg .grid { stroke: var(--line); }
svg .s0 { stroke: var(--one); } svg .s1 { stroke: var(--two); } svg polyline { fill: none; stroke-width: 2; }
svg circle.s0, svg rect { fill: var(--one); } svg circle.s1 { fill: var(--two); }
.key0 { color: var(--one); } .key1 { color: var(--two); }
</style></head><body>
<h1>{{ title }}</h1><p class="dim">written {{ written }}</p>
{% for section in sections %}<section><h2>{{ section.title }}</h2>
{% if section.note %}<p class="dim">{{ section.note }}</p>{% endif %}
{% for table in section.tables %}<div class="wide"><table>
<thead><tr>{% for name in table.head %}<th>{{ name }}</th>{% endfor %}</tr></thead>
<tbody>{% for row in table.rows %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</tbody></table></div>
{% endfor %}{% for chart in section.charts %}{% set plot = plotted(chart) %}<figure>
<svg viewBox="0 0 {{ plot.width }} {{ plot.height }}" role="img" aria-label="{{ chart.title }}">
{% for mark in plot.marks %}<line class="grid" x1="{{ plot.left }}" x2="{{ plot.width }}" y1="{{ mark.y }}"
 y2="{{ mark.y }}"/><text x="{{ plot.left - 6 }}" y="{{ mark.y + 4 }}" text-anchor="end">{{ mark.text }}</text>
{% endfor %}{% for x, label in plot.labels %}<text
 x="{{ x }}" y="{{ plot.height - 8 }}" text-anchor="middle">{{ label }}</text>
{% endfor %}{% for points in plot.series %}{% if chart.kind == "bars" %}{% for x, y, text in points %}<rect
 x="{{ x - 22 }}" y="{{ y }}" width="44" height="{{ plot.floor - y }}" rx="2"/><text x="{{ x }}" y="{{ y - 4 }}"
 text-anchor="middle">{{ text }}</text>{% endfor %}{% else %}<polyline class="s{{ loop.index0 }}"
 points="{% for x, y, _ in points %}{{ x }},{{ y }} {% endfor %}"/>{% set nth = loop.index0 %}
{% for x, y, text in points %}<circle
 class="s{{ nth }}" cx="{{ x }}" cy="{{ y }}" r="3"><title>{{ text }}</title></circle>{% endfor %}{% endif %}
{% endfor %}</svg><figcaption>{{ chart.title }}{% if chart.series | length > 1 %}: {% for name in chart.series %}<span
 class="key{{ loop.index0 }}">■</span> {{ name }} {% endfor %}{% endif %}</figcaption></figure>
{% endfor %}</section>
{% endfor %}</body></html>
"""


def as_html(title: str, written: str, sections: list[Section]) -> str:
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    return environment.from_string(PAGE).render(title=title, written=written, sections=sections, plotted=_plotted)


def _plotted(chart: Chart) -> dict[str, Any]:
    """The chart in the picture's own coordinates: bars stand on 0, lines use the height between their extremes."""
    values = [value for series in chart.series.values() for value in series]
    low, high = (0.0, max(values)) if chart.kind == "bars" else (min(values), max(values))
    high = high if high > low else low + 1
    floor = HEIGHT - BOTTOM
    slot = (WIDTH - LEFT) / len(chart.labels)

    def x(index: int) -> float:
        return round(LEFT + slot * (index + 0.5), 1)

    def y(value: float) -> float:
        return round(floor - (floor - TOP - 10) * (value - low) / (high - low), 1)

    return {
        "width": WIDTH,
        "height": HEIGHT,
        "left": LEFT,
        "floor": floor,
        "marks": [{"y": y(value), "text": f"{value:.3g}"} for value in (low, (low + high) / 2, high)],
        "labels": [(x(index), label) for index, label in enumerate(chart.labels)][
            :: -(-len(chart.labels) // MAX_LABELS)
        ],
        "series": [
            [(x(index), y(value), f"{value:.4g}") for index, value in enumerate(series)]
            for series in chart.series.values()
        ],
    }


def as_markdown(title: str, written: str, sections: list[Section]) -> str:
    """The same text; charts are left out, their figures are in the tables."""
    lines = [f"# {_cell(title)}", "", f"written {written}", ""]
    for section in sections:
        lines += [f"## {section.title}", ""]
        if section.note:
            lines += [section.note, ""]
        for table in section.tables:
            lines += [_row(table.head), _row(["---"] * len(table.head)), *map(_row, table.rows), ""]
    return "\n".join(lines)


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(map(_cell, cells))} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
