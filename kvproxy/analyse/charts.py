"""Charts in a terminal (plotext) or in files (matplotlib), in the colours of the dashboard."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The palette of Okabe and Ito, readable for the colour-blind; both as in http/ui/static/style.css.
_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")
_BACKEND, _GREY = "#b4bcc8", "#8b94a3"
_LAYER_COLOURS = {
    "exact": "#0072b2",
    "semantic": "#e69f00",
    "shared": "#56b4e9",
    "prefix": "#009e73",
    "plugin": "#cc79a7",
    **dict.fromkeys(("forward", "bypass", "revalidated", "warming", "engine"), _BACKEND),
    **dict.fromkeys(("refused", "disconnected"), _GREY),
    "error": "#d55e00",
}
_HEIGHT, _ROWS = 14, 10  # Lines of text of a chart in a terminal, with and without its frame.
_TIME_LABELS = 6
_FILLS, _POINTS = "█░▓▒#o=x+", "ox+*#%@&"
"""Characters that distinguish the lines without colours: for stacked bars, and for curves."""
_DAY = 86_400


@dataclass(frozen=True, slots=True)
class ChartLine:
    """A line of a chart. In files, `lows` and `highs` bound a band around the line."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    lows: Sequence[float] = ()
    highs: Sequence[float] = ()
    is_dashed: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart with lines or bars.

    Attributes:
        bars: horizontal bars, as names and values.
        levels: horizontal reference lines, as names and y values.
        is_share: values are fractions, shown in percent.
        time_step: seconds between the x values if they are Unix times; the lines are then drawn as stacked bars.
    """

    x_label: str
    y_label: str
    lines: Sequence[ChartLine] = ()
    bars: Sequence[tuple[str, float]] = ()
    levels: Sequence[tuple[str, float]] = ()
    log_x: bool = False
    is_share: bool = False
    time_step: float | None = None


def draw(charts: Sequence[Chart], width: int, *, with_colours: bool = True) -> str:
    return "\n".join(_draw_chart(chart, width, with_colours) for chart in charts)


def save(charts: Sequence[Chart], path: Path) -> None:
    from matplotlib.figure import Figure

    heights = [1 + len(chart.bars) / 3 if chart.bars else 4 for chart in charts]
    figure = Figure(figsize=(8, sum(heights) + 1), layout="constrained")
    axes = figure.subplots(len(charts), 1, height_ratios=heights, squeeze=False)
    for chart, ax in zip(charts, axes[:, 0], strict=True):
        _plot(chart, ax)
    figure.savefig(path)


def _draw_chart(chart: Chart, width: int, with_colours: bool) -> str:
    # Typed as Any: plotext has no types. It draws on one global figure.
    import plotext

    if chart.bars:
        return _draw_bars(chart, width, with_colours)
    if not any(line.xs for line in chart.lines):
        return f"{chart.y_label}: no values"
    plot: Any = plotext
    plot.clear_figure()
    plot.theme("clear")
    plot.plotsize(width, _HEIGHT)
    scale = 100 if chart.is_share else 1
    if chart.time_step is not None:
        names, values, rgb = zip(
            *((line.name, list(line.ys), _rgb(_colour(line.name))) for line in chart.lines), strict=True
        )
        indexes = list(range(len(chart.lines[0].xs)))
        markers = None if with_colours else [_FILLS[index % len(_FILLS)] for index in range(len(names))]
        plot.stacked_bar(indexes, list(values), labels=list(names), color=list(rgb), marker=markers, width=1)
        labels = _time_labels(chart)
        plot.xticks([index for index, _ in labels], [label for _, label in labels])
        highest = int(max(map(sum, zip(*values, strict=True))))
        _make_room_for_legend(plot, highest, len(names), max(1, -(-highest // 5)))
    else:
        for index, line in enumerate(chart.lines):
            ys = [y * scale for y in line.ys]
            marker = "braille" if with_colours else _POINTS[index % len(_POINTS)]
            plot.plot(line.xs, ys, label=line.name, marker=marker, color=_rgb(_colour(line.name, index)))
    for name, value in chart.levels:
        xs = [x for line in chart.lines for x in line.xs] or [0, 1]
        marker = "braille" if with_colours else "·"
        plot.plot([min(xs), max(xs)], [value * scale] * 2, label=name, marker=marker, color=_rgb(_GREY))
    if chart.log_x:
        plot.xscale("log")
        sizes = sorted({x for line in chart.lines for x in line.xs})
        plot.xticks(sizes, [f"{size:,.0f}" for size in sizes])
    if chart.time_step is None:
        most = scale * max([y for line in chart.lines for y in line.ys] + [value for _, value in chart.levels])
        _make_room_for_legend(plot, most, len(chart.lines) + len(chart.levels), most / 4)
    plot.xlabel(chart.x_label)
    plot.title(f"{chart.y_label} in %" if chart.is_share else chart.y_label)
    text: str = plot.build()
    lines = (text if with_colours else plot.uncolorize(text)).splitlines()
    return "\n".join(line.rstrip() for line in lines)


def _make_room_for_legend(plot: Any, max_y: float, num_names: int, tick_step: float) -> None:
    ticks = [index * tick_step for index in range(int(max_y / tick_step) + 1)] if tick_step else [0.0]
    plot.yticks(ticks, [f"{tick:.3g}" for tick in ticks])
    plot.ylim(0, (max_y or 1) * _ROWS / max(1, _ROWS - num_names))


def _draw_bars(chart: Chart, width: int, colours: bool) -> str:
    values = [_format_value(value, chart.is_share) for _, value in chart.bars]
    most = max(0.0, *(value for _, value in chart.bars)) or 1.0
    left, right = (max(map(len, texts)) for texts in ([name for name, _ in chart.bars], values))
    lines = [chart.x_label]
    for (name, value), text in zip(chart.bars, values, strict=True):
        bar = "█" * round(max(1, width - left - right - 4) * value / most)
        if colours and bar:
            bar = f"\x1b[38;2;{';'.join(map(str, _rgb(_colour(name))))}m{bar}\x1b[0m"
        lines.append(f"{name:<{left}}  {bar} {text}")
    return "\n".join(lines)


def _plot(chart: Chart, axes: "Axes") -> None:
    from matplotlib.ticker import FuncFormatter, PercentFormatter

    axes.set_axisbelow(True)
    if chart.bars:
        names, values = zip(*reversed(chart.bars), strict=True)
        bars = axes.barh(names, values, color=[_colour(name) for name in names])
        axes.bar_label(bars, [_format_value(value, chart.is_share) for value in values], padding=3)
        axes.margins(x=0.15)
        axes.set_xlabel(chart.x_label)
        if chart.is_share:
            axes.xaxis.set_major_formatter(PercentFormatter(1.0))
        return
    if chart.time_step is not None:
        bottom = [0.0] * len(chart.lines[0].ys) if chart.lines else []
        for line in chart.lines:
            axes.bar(range(len(bottom)), line.ys, bottom=bottom, label=line.name, color=_colour(line.name))
            bottom = [low + y for low, y in zip(bottom, line.ys, strict=True)]
        labels = _time_labels(chart)
        axes.set_xticks([index for index, _ in labels], [label for _, label in labels])
    else:
        for index, line in enumerate(chart.lines):
            colour, marker = _colour(line.name, index), "o" if len(line.xs) < 30 else ""
            style = "--" if line.is_dashed else "-"
            axes.plot(line.xs, line.ys, label=line.name, color=colour, marker=marker, markersize=4, linestyle=style)
            if line.lows:
                axes.fill_between(line.xs, line.lows, line.highs, color=colour, alpha=0.15)
    for name, value in chart.levels:
        axes.axhline(value, color=_GREY, linewidth=1, label=name)
    if chart.log_x:
        axes.set_xscale("log")
        for formatter in (axes.xaxis.set_major_formatter, axes.xaxis.set_minor_formatter):
            formatter(FuncFormatter(_format_log_tick))
    if chart.is_share:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    if chart.time_step is None:
        # A part of the axis would exaggerate differences.
        highs = [y for line in chart.lines for ys in (line.ys, line.highs) for y in ys]
        axes.set_ylim(0, 1.06 * max([*highs, *(value for _, value in chart.levels)], default=0.0) or 1.0)
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)
    axes.grid(alpha=0.3)
    axes.legend()


def _format_log_tick(value: float, _: int | None = None) -> str:
    """Return 1, 2, and 5 times a power of ten as 20k or 5M; other ticks have no label."""
    digit = value / 10 ** math.floor(math.log10(value))
    if not any(math.isclose(digit, labelled) for labelled in (1, 2, 5)):
        return ""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size * 0.999:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def _time_labels(chart: Chart) -> list[tuple[int, str]]:
    xs, step = (chart.lines[0].xs if chart.lines else ()), chart.time_step or 0
    clock = "%H:%M" if step >= 60 else "%H:%M:%S"
    form = "%d %b" if step >= _DAY else clock if xs and xs[-1] - xs[0] < _DAY else "%d %b %H:%M"
    apart = max(1, -(-len(xs) // _TIME_LABELS))
    return [(index, datetime.fromtimestamp(xs[index]).strftime(form)) for index in range(0, len(xs), apart)]


def _format_value(value: float, is_share: bool) -> str:
    return f"{100 * value:.1f}%" if is_share else f"{value:,.0f}" if value >= 1_000 else f"{value:.4g}"


def _colour(name: str, index: int = 0) -> str:
    return _LAYER_COLOURS.get(name.partition(" ")[0], _COLOURS[index % len(_COLOURS)])


def _rgb(colour: str) -> tuple[int, ...]:
    return tuple(bytes.fromhex(colour[1:]))
