"""Recorded series as input for promtool, which evaluates rules over them."""

from pathlib import Path

import yaml

from tests.helpers.processes import run

RULES = Path(__file__).parents[2] / "prometheus/rules"


def series_notation(labels):
    """The name of a series in promtool's notation."""
    name = labels["__name__"]
    labels_text = ",".join(f'{key}="{value}"' for key, value in labels.items() if key != "__name__")
    return f"{name}{{{labels_text}}}"


def with_stale_markers(values):
    """Mark the end of a series with "stale", as Prometheus does when a target drops it."""
    previous_values = [None, *values]
    return [
        "stale" if value is None and previous is not None else value
        for previous, value in zip(previous_values, values, strict=False)
    ]


def values_notation(values):
    """The values in promtool's notation, with runs of equal values; "stale" ends a series."""
    parts, previous, count = [], "", 0
    for value in [*values, object()]:
        text = "_" if value is None else value if isinstance(value, str) else ""
        if isinstance(value, (int, float)):
            text = f"{value:.15g}"
        if text == previous:
            count += 1
            continue
        if previous:
            parts.append(_repeat(previous, count))
        previous, count = text, 1
    return " ".join(parts)


def _repeat(text, count):
    if text == "_":
        return f"_x{count}"
    return " ".join([text] * count) if text == "stale" else f"{text}x{count - 1}"


def replay(folder, interval, series, expectations, rules):
    """Let promtool evaluate rule files; `expectations` are (expression, time, samples)."""
    path = folder / "replay.yml"
    test = {
        "interval": f"{interval}s",
        "input_series": [{"series": name, "values": values} for name, values in series],
        "promql_expr_test": [
            {"expr": expr, "eval_time": when, "exp_samples": samples}
            for expr, when, samples in expectations
        ],
    }
    files = [str(each) for each in rules]
    path.write_text(
        yaml.safe_dump({"rule_files": files, "evaluation_interval": "1m", "tests": [test]})
    )
    argv = ["promtool", "test", "rules", str(path)]
    result = run(argv, timeout=600)
    assert result.returncode == 0, result.stdout + result.stderr
