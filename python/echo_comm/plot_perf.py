"""Draws what echo-perf measured: bus bandwidth and speed-up against size.

    python3 plot_perf.py OUT.png < result.json        echo-perf --plot OUT.png does this
    python3 plot_perf.py --check                      exit status 3: there is no matplotlib

Runs as a script of its own: it needs matplotlib and nothing else of this package.
"""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from typing import Any

NO_MATPLOTLIB = 3
COLORS = {"echo": "#1f77b4", "exact": "#7f7f7f", "gloo": "#d62728", "stream": "#2ca02c"}
NAMES = {"exact": "Echo's exact path", "gloo": "Gloo ring, fp32", "stream": "one TCP stream"}


def _title(report: dict[str, Any]) -> str:
    row, options = report["rows"][0], report["env"]["options"]
    lab = report["env"].get("netlab")
    where = row["transport"]
    if lab:
        flows = lab.get("flows", {}).get("each_way", 0)
        where += f", links of {lab['rate']}" + (f", {flows} competing flows each way" if flows else "")
    codec = f"{row['codec']}, feedback {options['feedback']}"
    return f"{row['collective']} of {row['type']}, {row['ranks']} ranks over {where}: {codec}"


def draw(report: dict[str, Any], file: str) -> None:
    """Writes the figure; the file's ending decides on its form."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    rows = report["rows"]
    sizes = [row["bytes"] for row in rows]
    figure, (speed, gain) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    speed.plot(sizes, [row["busbw"] for row in rows], "o-", color=COLORS["echo"], label=f"Echo {rows[0]['codec']}")
    for name in rows[0]["vs"]:
        style = {"color": COLORS[name], "label": NAMES[name]}
        if name != "stream":  # the stream moves another number of bytes
            times = [row["baseline_percentiles"][name]["p50"] for row in rows]
            bandwidth = [row["busbw"] * row["time_us"] / time for row, time in zip(rows, times, strict=True)]
            speed.plot(sizes, bandwidth, "s--", **style)
        gain.plot(sizes, [row["vs"][name] for row in rows], "o-", color=COLORS[name], label=f"against {NAMES[name]}")
    gain.axhline(1, color="black", linewidth=0.8)
    if break_even := report["summary"]["break_even_bytes"]:
        gain.axvline(break_even, color="black", linewidth=0.8, linestyle=":", label=f"break-even {break_even} bytes")
    speed.set_ylabel("bus bandwidth, logical bytes (GB/s)")
    gain.set_ylabel("speed-up: time of the baseline / time of Echo")
    for axes in (speed, gain):
        axes.set_xscale("log", base=2)
        axes.set_xlabel("size of the tensor (bytes)")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        if axes.get_legend_handles_labels()[0]:
            axes.legend()
    figure.suptitle(_title(report), fontsize=10)
    figure.savefig(file, dpi=150)


def main(arguments: list[str]) -> int:
    """Runs one command line and returns the exit status."""
    if len(arguments) != 1:
        print("usage: plot_perf.py OUT.png < result.json", file=sys.stderr)
        return 2
    if find_spec("matplotlib") is None:
        return NO_MATPLOTLIB
    if arguments == ["--check"]:
        return 0
    report = json.load(sys.stdin)
    if not report["rows"]:
        print("plot_perf: there are no rows to draw", file=sys.stderr)
        return 1
    try:
        draw(report, arguments[0])
    except (OSError, ValueError) as error:  # cannot be written; an ending that is no image format
        print(f"plot_perf: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
