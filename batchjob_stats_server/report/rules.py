"""Rules of advice: read from YAML, checked, and applied to a job's quantities."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from batchjob.runtime.reason import reason
from batchjob.runtime.settings import SettingsError, suggest_nearest
from batchjob_stats_server.report.conditions import ALWAYS, Condition, FactValues, parse_condition
from batchjob_stats_server.report.facts import FACTS, UNITS
from batchjob_stats_server.report.model import FORMATTERS, Advice, SkippedRule

SEVERITIES = ("serious", "warning", "info")
_KEYS = ("id", "severity", "title", "applies", "needs", "when", "reason", "step")
_REQUIRED = ("id", "severity", "title", "when", "reason", "step")
_ID = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_PLACEHOLDER = re.compile(r"\{([a-z]\w*)\}", re.ASCII)
_SENTENCES = re.compile(r"(?<=\.) ")
_BUILT_IN_FILE = Path(__file__).with_name("advice.yaml")


class AdviceRule(NamedTuple):
    """A rule: skipped unless `applies` is true, silent with a reason unless `needs` is true."""

    id: str
    severity: str
    title: str
    applies: Condition
    needs: Condition
    when: Condition
    reason: str  # with {quantity} as a placeholder for a number
    step: str


def load_rules(site_file: str = "") -> tuple[AdviceRule, ...]:
    """Read the built-in rules and those of the site, which may replace or disable them.

    Raises SettingsError.
    """
    rules = {rule.id: rule for rule in _read_file(_BUILT_IN_FILE)[0]}
    if site_file:
        added, disabled = _read_file(Path(site_file))
        for name in disabled:
            if name not in rules:
                raise SettingsError(
                    f"{site_file}: without: unknown rule {name}{suggest_nearest(name, rules)}"
                )
            del rules[name]
        rules.update((rule.id, rule) for rule in added)
    order = {severity: place for place, severity in enumerate(SEVERITIES)}
    return tuple(sorted(rules.values(), key=lambda rule: order[rule.severity]))


def _read_file(path: Path) -> tuple[list[AdviceRule], list[str]]:
    """The rules of a file, and the ids that it disables."""
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: {reason(error)}") from error
    except yaml.YAMLError as error:
        raise SettingsError(f"{path}: {' '.join(str(error).split())}") from error
    if not isinstance(raw, dict) or not set(raw) <= {"rules", "without"}:
        raise SettingsError(f"{path}: expected the keys rules and without")
    raw_rules, disabled = raw.get("rules") or [], raw.get("without") or []
    if not isinstance(raw_rules, list) or not isinstance(disabled, list):
        raise SettingsError(f"{path}: expected lists under rules and without")
    rules = [_parse_rule(f"{path}: rule {n}", each) for n, each in enumerate(raw_rules, 1)]
    ids = [rule.id for rule in rules]
    for name in ids:
        if ids.count(name) > 1:
            raise SettingsError(f"{path}: rule {name} is given twice")
    return rules, [str(name) for name in disabled]


def _parse_rule(where: str, raw: Any) -> AdviceRule:
    if not isinstance(raw, dict):
        raise SettingsError(f"{where}: expected a mapping with {', '.join(_REQUIRED)}")
    where = f"{where} ({raw['id']})" if isinstance(raw.get("id"), str) else where
    for key in raw:
        if key not in _KEYS:
            raise SettingsError(f"{where}: unknown key {key}{suggest_nearest(str(key), _KEYS)}")
    for key in _REQUIRED:
        if key not in raw:
            raise SettingsError(f"{where}: {key} is missing")
    name, severity, title, reason, step = (
        _checked_text(f"{where}: {key}", raw[key])
        for key in ("id", "severity", "title", "reason", "step")
    )
    if not _ID.fullmatch(name):
        raise SettingsError(f"{where}: id: expected words with dashes, got {name!r}")
    if severity not in SEVERITIES:
        raise SettingsError(f"{where}: severity: expected one of {', '.join(SEVERITIES)}")
    applies, needs, when = (
        _parse_rule_condition(f"{where}: {key}", raw[key]) if key in raw else ALWAYS
        for key in ("applies", "needs", "when")
    )
    return AdviceRule(name, severity, title, applies, needs, when, reason, step)


def _parse_rule_condition(where: str, raw: Any) -> Condition:
    try:
        return parse_condition(raw, UNITS)
    except ValueError as error:
        raise SettingsError(f"{where}: {error}") from None


def _checked_text(where: str, text: Any) -> str:
    if not isinstance(text, str) or not text.strip():
        raise SettingsError(f"{where}: expected a text")
    for name in _PLACEHOLDER.findall(text):
        if name not in UNITS:
            raise SettingsError(f"{where}: unknown quantity {name}{suggest_nearest(name, UNITS)}")
    return text


def advise(
    rules: Sequence[AdviceRule], values: FactValues
) -> tuple[tuple[Advice, ...], tuple[SkippedRule, ...]]:
    """The advice of the rules for a job, and the rules that cannot decide."""
    advice, silent = [], []
    for rule in rules:
        if not rule.applies.holds(values):
            continue
        if rule.needs.holds(values) is not True:
            silent.append(SkippedRule(rule.id, _unmet_requirements(rule.needs, values)))
        elif (found := rule.when.holds(values)) is None:
            silent.append(SkippedRule(rule.id, "; ".join(_unknown_quantities(rule.when, values))))
        elif found:
            advice.append(_advice(rule, values))
    return tuple(advice), tuple(silent)


def _advice(rule: AdviceRule, values: FactValues) -> Advice:
    reason, step = (_fill_in(text, values) for text in (rule.reason, rule.step))
    names = {name for text in (rule.reason, rule.step) for name in _PLACEHOLDER.findall(text)}
    names.update(each.name for each in rule.when.comparisons())
    numbers = {name: value for name in sorted(names) if (value := values[name]) is not None}
    return Advice(rule.id, rule.severity, rule.title, reason, step, numbers)


def _fill_in(text: str, values: FactValues) -> str:
    """Fill in the quantities of a text; sentences with an unknown one are left out."""
    sentences = _SENTENCES.split(" ".join(text.split()))
    known = [
        each for each in sentences if None not in (values[n] for n in _PLACEHOLDER.findall(each))
    ]
    return _PLACEHOLDER.sub(
        lambda match: format_quantity(match[1], values), " ".join(known or sentences)
    )


def format_quantity(name: str, values: FactValues) -> str:
    value = values[name]
    if value is None:
        return "unknown"
    return value if isinstance(value, str) else FORMATTERS[UNITS[name]](value)


def _unmet_requirements(condition: Condition, values: FactValues) -> str:
    false = [
        "the run was not sampled"
        if each.name == "measured"
        else f"{_meaning(each.name)}: {format_quantity(each.name, values)}; needed: {each.text}"
        for each in condition.comparisons()
        if each.holds(values) is False
    ]
    return "; ".join([*false, *_unknown_quantities(condition, values)])


def _unknown_quantities(condition: Condition, values: FactValues) -> list[str]:
    names = (name for each in condition.comparisons() for name in (each.name, each.other) if name)
    return [f"{_meaning(name)}: unknown" for name in dict.fromkeys(names) if values[name] is None]


def _meaning(name: str) -> str:
    return FACTS[name].about.removesuffix(".").removesuffix(": yes or no")
