"""Random PromQL expressions: well-typed, and often hostile."""

import json

from hypothesis import strategies as st

METRICS = ("batchjob_job_cpu_seconds_total", "batchjob_job_processes", "batchjob_job_info", "up")
VALUES = st.sampled_from(
    ["", "alice", "bob", "c1", "c2", ".*", ".+", "alice|bob", "bob|.*", 'a"} or {user="bob', "\\",
     "b.b", "{", "}", "#", "\n", "batchjob_job_processes", "batchjob_.*", "é", "1"]
)  # fmt: skip
LABELS = st.sampled_from(["user", "cluster", "jobid", "mode", "secret", "__name__", "instance"])
DURATIONS = st.sampled_from(["1m", "5m", "1h", "90s", "1h30m", "2d"])
REGEX_SAFE = VALUES.filter(lambda value: value not in ("\\", "{", "}"))


@st.composite
def matchers(draw, label=LABELS):
    operator = draw(st.sampled_from(["=", "!=", "=~", "!~"]))
    value = draw(REGEX_SAFE if "~" in operator else VALUES)
    quoted = [json.dumps(value, ensure_ascii=False), f"`{value}`"]
    return f"{draw(label)}{operator}{draw(st.sampled_from(quoted))}"


@st.composite
def selectors(draw):
    named = draw(st.sampled_from([*METRICS, None]))
    without_name = LABELS.filter(lambda label: label != "__name__")
    inner = draw(st.lists(matchers(without_name if named else LABELS), max_size=3))
    if not named:
        inner.append(draw(st.sampled_from(['jobid=~".+"', '__name__=~"batchjob_.*"', 'user!=""'])))
    joined = draw(st.sampled_from([",", " , ", ", #}\n"])).join(inner)
    return f"{named or ''}{{{joined}}}"


def modified(text):
    """With `offset` and `@`, or without."""
    at = st.sampled_from(["", " @ start()", " @ end()", " @ 1700000000"])
    offset = st.sampled_from(["", " offset 5m", " offset -5m"])
    return st.builds(lambda a, b: f"{text}{a}{b}", at, offset)


@st.composite
def ranges(draw, vectors):
    if draw(st.booleans()):
        text = f"{draw(selectors())}[{draw(DURATIONS)}]"
    else:
        step = draw(st.sampled_from(["", "1m", "5m"]))
        text = f"({draw(vectors)})[{draw(st.sampled_from(['5m', '1h']))}:{step}]"
    return draw(modified(text))


def grown(vectors):
    """Instant vectors inside one more layer of functions or operators."""
    by = st.sampled_from(["", " by (user, secret) ", " without (user) ", " by () "])
    matching = st.sampled_from(["", "on (jobid)", "ignoring (user, mode)"])
    group = st.sampled_from(["on () group_left () ", "on (instance, jobid) group_left (user) "])
    many = st.sampled_from(["and", "or", "unless"])
    return st.one_of(
        st.builds(lambda f, r: f"{f}({r})",
                  st.sampled_from(["rate", "last_over_time", "max_over_time", "absent_over_time"]),
                  ranges(vectors)),
        st.builds(lambda f, v: f"{f}({v})",
                  st.sampled_from(["abs", "absent", "timestamp", "sort", "-", "+", ""]), vectors),
        st.builds(lambda f, b, v: f"{f}{b}({v})",
                  st.sampled_from(["sum", "max", "group", "count"]), by, vectors),
        st.builds(lambda k, v: f"topk({k}, {v})", st.integers(1, 5), vectors),
        st.builds(lambda v: f'count_values("user", {v})', vectors),
        st.builds(lambda a, b, v: f"label_replace({v}, {json.dumps(a)}, {json.dumps(b)}, "
                  '"secret", "(.*)")', st.sampled_from(["user", "cluster", "x"]),
                  st.sampled_from(["$1", "bob", '"}']), vectors),
        st.builds(lambda v: f'label_join({v}, "user", "}}", "secret", "jobid")', vectors),
        st.builds(lambda a, o, m, r: f"({a}) {o} {m} ({r})", vectors, many, matching, vectors),
        st.builds(lambda a, m, r: f"{a} * {m}{r}", vectors, group, vectors),
        st.builds(lambda a, o, r: f"{a} {o} {r}", vectors,
                  st.sampled_from(["+", "> bool", "!=", "^"]), st.integers(-3, 1000)),
    )  # fmt: skip


EXPRESSIONS = st.recursive(selectors().flatmap(modified), grown, max_leaves=6)
