"""Hit-rate curves as a picture."""

from pathlib import Path

from kvproxy.offline.simulate.sweep import Sweep


def plot(sweep: Sweep, path: Path) -> None:
    """Draw hit rate against pool size, a curve a policy; the format follows the file's ending (png, svg, pdf)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    for policy, rates in sweep.rates.items():
        axes.plot(
            sweep.sizes, rates, marker="o", markersize=4, label=policy, linestyle="--" if policy == "belady" else "-"
        )
    axes.axhline(sweep.infinite, color="grey", linewidth=1, label="endless pool")
    axes.set_xscale("log")
    axes.set_xlabel(f"blocks of {sweep.block_tokens} tokens in the pool")
    axes.set_ylabel("hit blocks / all blocks")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path)
