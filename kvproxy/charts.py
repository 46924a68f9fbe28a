"""Charts of the analyses, at a terminal (plotext) or in files (matplotlib)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The palette of Okabe and Ito, readable for the colour-blind.
_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")
_GREY = "#8b94a3"
_HEIGHT = 14
_BAR_MARGIN = 12
"""Characters for the values of bars."""


@dataclass(frozen=True, slots=True)
class ChartLine:
    """A line of a chart; terminals show neither intervals nor dashes.

    `lows` and `highs` are an interval around each value; empty without one.
    """

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
        bars: names and values; horizontal bars.
        levels: names and values; horizontal lines.
        is_share: values are shares of 1, shown in percent.
    """

    x_label: str
    y_label: str
    lines: Sequence[ChartLine] = ()
    bars: Sequence[tuple[str, float]] = ()
    levels: Sequence[tuple[str, float]] = field(default=())
    log_x: bool = False
    is_share: bool = False


def draw(charts: Sequence[Chart], width: int, *, colours: bool = True) -> str:
    """Return charts as text; `width` is in characters."""
    return "\n".join(_drawn(chart, width, colours) for chart in charts)


def save(charts: Sequence[Chart], path: Path) -> None:
    """Save charts below each other, in the format of the file's suffix (png, svg, pdf)."""
    from matplotlib.figure import Figure

    heights = [1 + len(chart.bars) / 3 if chart.bars else 4 for chart in charts]
    figure = Figure(figsize=(8, sum(heights) + 1), layout="constrained")
    axes = figure.subplots(len(charts), 1, height_ratios=heights, squeeze=False)
    for chart, each in zip(charts, axes[:, 0], strict=True):
        _plot(chart, each)
    figure.savefig(path)


def _drawn(chart: Chart, width: int, colours: bool) -> str:
    # Typed as Any: plotext has no types. It draws on one global figure.
    import plotext

    if not chart.bars and not any(line.xs for line in chart.lines):
        return f"{chart.y_label}: no values"
    plot: Any = plotext
    plot.clear_figure()
    plot.theme("clear")
    scale = 100 if chart.is_share else 1
    unit = " in %" if chart.is_share else ""
    if chart.bars:
        names, values = zip(*chart.bars, strict=True)
        room = width - max(map(len, names)) - _BAR_MARGIN
        plot.simple_bar(names, [value * scale for value in values], width=room, title=f"{chart.x_label}{unit}")
    else:
        plot.plotsize(width, _HEIGHT)
        for line, colour in zip(chart.lines, _repeated(len(chart.lines)), strict=True):
            ys = [y * scale for y in line.ys]
            plot.plot(line.xs, ys, label=line.name, marker="braille", color=_rgb(colour))
        for name, value in chart.levels:
            xs = [x for line in chart.lines for x in line.xs] or [0, 1]
            plot.plot([min(xs), max(xs)], [value * scale] * 2, label=name, marker="braille", color=_rgb(_GREY))
        if chart.log_x:
            plot.xscale("log")
        if chart.is_share:
            plot.ylim(0, None)
        plot.xlabel(chart.x_label)
        plot.title(f"{chart.y_label}{unit}")
    text: str = plot.build()
    lines = (text if colours else plot.uncolorize(text)).splitlines()
    return "\n".join(line.rstrip() for line in lines)


def _plot(chart: Chart, axes: "Axes") -> None:
    from matplotlib.ticker import PercentFormatter

    if chart.bars:
        names, values = zip(*reversed(chart.bars), strict=True)
        axes.barh(names, values, color=_COLOURS[0])
        axes.set_xlabel(chart.x_label)
        if chart.is_share:
            axes.xaxis.set_major_formatter(PercentFormatter(1.0))
        return
    for line, colour in zip(chart.lines, _repeated(len(chart.lines)), strict=True):
        marker = "o" if len(line.xs) < 30 else ""
        style = "--" if line.is_dashed else "-"
        axes.plot(line.xs, line.ys, label=line.name, color=colour, marker=marker, markersize=4, linestyle=style)
        if line.lows:
            axes.fill_between(line.xs, line.lows, line.highs, color=colour, alpha=0.15)
    for name, value in chart.levels:
        axes.axhline(value, color=_GREY, linewidth=1, label=name)
    if chart.log_x:
        axes.set_xscale("log")
    if chart.is_share:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.set_ylim(bottom=0)
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)
    axes.grid(alpha=0.3)
    axes.legend()


def _repeated(count: int) -> list[str]:
    return [_COLOURS[place % len(_COLOURS)] for place in range(count)]


def _rgb(colour: str) -> tuple[int, ...]:
    return tuple(bytes.fromhex(colour[1:]))
