"""Which meter stands for the node."""

from collections.abc import Collection

from collectors.power.meter import BEST_FIRST, ONLY_BY_NAME


def choose(
    source: str, answering: Collection[str], enabled: Collection[str], last: str, settled: bool
) -> str | None:
    """Name the meter to use, or None while it is better to wait.

    `source` is a name, or `auto` for the best that answers; `enabled` are the collectors with
    meters, `last` the meter used before a restart, `settled` says that everybody had time to
    answer: a BMC needs some, and a lesser meter once chosen is kept.
    """
    if source != "auto":
        return source if source in answering else None
    if last in answering:
        return last
    ranked = [name for name in BEST_FIRST if name not in ONLY_BY_NAME]
    best = next((name for name in ranked if name in enabled), "")
    if not settled and best not in answering:
        return None
    return next((name for name in ranked if name in answering), None)
