"""Recorded series given to promtool, which evaluates rules over them."""

import subprocess
from pathlib import Path

import yaml

RULES = Path(__file__).parents[2] / "prometheus/rules"


def series_of(labels):
    """The name of a series in promtool's notation."""
    name = labels["__name__"]
    inner = ",".join(f'{key}="{value}"' for key, value in labels.items() if key != "__name__")
    return f"{name}{{{inner}}}"


def with_ends(values):
    """Prometheus marks the end of a series that a target exposes no more."""
    before = [None, *values]
    return [
        "stale" if value is None and last is not None else value
        for last, value in zip(before, values, strict=False)
    ]


def text_of(values):
    """In promtool's notation, equal ones put together; "stale" ends a series."""
    parts, before, times = [], "", 0
    for value in [*values, object()]:
        text = "_" if value is None else value if isinstance(value, str) else ""
        if isinstance(value, (int, float)):
            text = f"{value:.15g}"
        if text == before:
            times += 1
            continue
        if before:
            parts.append(_repeated(before, times))
        before, times = text, 1
    return " ".join(parts)


def _repeated(text, times):
    if text == "_":
        return f"_x{times}"
    return " ".join([text] * times) if text == "stale" else f"{text}x{times - 1}"


def replay(folder, interval, series, expectations, rules):
    """Let promtool evaluate files of rules; `expectations`: (expression, time, samples)."""
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
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
