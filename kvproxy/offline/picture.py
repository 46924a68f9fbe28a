"""An estimate as a picture: who would answer, and what a prefix cache would reuse."""

from pathlib import Path

from kvproxy.offline.estimate import Estimate


def draw(found: Estimate, path: Path) -> None:
    """Draw both into a file, whose ending tells the format (png, svg, pdf)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 6), layout="constrained")
    answered, reuse = figure.subplots(2, 1, height_ratios=(1, 3))
    left = 0
    for name, count in (
        ("equal requests", found.exact),
        ("similar questions", found.similar),
        ("the engine", found.forwarded),
    ):
        answered.barh([0], [count], left=left, label=f"{name}: {count:,}")
        left += count
    answered.set_yticks([])
    answered.set_xlabel("requests, by who answers")
    answered.legend(ncols=3, loc="upper center", bbox_to_anchor=(0.5, 1.6), frameon=False)
    for name, prefix in (
        ("what reaches the engine", found.prefix),
        ("without cached responses", found.prefix_alone),
    ):
        sizes = [point.blocks for point in prefix.points]
        reuse.plot(sizes, [prefix.share(point.reused) for point in prefix.points], marker="o", label=name)
        reuse.axhline(prefix.share(prefix.endless), color="grey", linewidth=1, linestyle=":")
    reuse.set_xscale("log")
    reuse.set_ylim(0, 1)
    reuse.set_xlabel(f"blocks of {found.prefix.block_size} tokens in the pool")
    reuse.set_ylabel("prompt tokens reused / all")
    reuse.grid(alpha=0.3)
    reuse.legend()
    figure.savefig(path)
