"""Queries made to cost the server or the database much more than their length.

All use series such as `batchjob_job_info{x="..."}`.
"""

QUOTED = '"x"'
INFO = "batchjob_job_info"
_SEED = f'label_replace({INFO},"x","{"a" * 36}","","")'


def nested(times, inner, wrap):
    """`wrap` around `inner`, as often as `times`; `%s` stands for the inner query."""
    for _ in range(times):
        inner = wrap.replace("%s", inner)
    return inner


AMPLIFYING_QUERIES = {
    "eight references, six times": nested(
        6, _SEED, 'label_replace(%s,"x","$1$1$1$1$1$1$1$1","x","(.*)")'
    ),
    "two references, sixteen times": nested(16, _SEED, 'label_replace(%s,"x","${1}$1","x","(.*)")'),
    "eight labels joined, six times": nested(
        6, _SEED, f'label_join(%s,"x","",{",".join([QUOTED] * 8)})'
    ),
    "a long literal": f'label_replace({INFO},"x","{"a" * 3000}","","")',
    "references behind aggregations": nested(
        6, _SEED, 'max by (x) (label_replace(%s,"x","$1$1$1$1$1$1$1$1","x","(.*)"))'
    ),
    "references behind binary operators": nested(
        6, _SEED, '-(0 + label_replace(%s,"x","$1$1$1$1$1$1$1$1","x","(.*)"))'
    ),
    "all pairs": f"{INFO} * on () group_left (x) {INFO}",
    "all pairs of one node": f"{INFO} * on (instance) group_left (x) {INFO}",
    "all pairs, the other way": f"{INFO} * on () group_right (x) {INFO}",
    "all pairs of series made alike": (
        f"sum by (x) ({INFO}) * on (instance, jobid) group_left (x) sum by (x) ({INFO})"
    ),
    "all pairs of all series": (f'{INFO} * on (instance, jobid) group_left (x) {{__name__=~".+"}}'),
    "counts of counts": 'up{x=~"((a{10}){10}){10}"}',
    "counts of classes": r'up{x=~"(\\pL{1,50}){1,19}"}',
    "many counts": 'up{x=~"' + r"\\pL{1000}" * 300 + '"}',
    "counts in label_replace": f'label_replace({INFO},"x","","x","(a{{900}})")',
    "points of a subquery, at many points": f"max_over_time({INFO}[20h:10s])",
    "a series for each value at each time": f'count_values("y", {INFO} * time())',
    "a series for each value in a subquery": (
        f'count_over_time(count_values("y", {INFO} * time())[1h:1s])'
    ),
}
"""Rejected in a range query of 11000 points."""

SLOW_QUERIES = {
    "regular expressions": " or ".join([r'up{x=~"(\\p{L}{1,50}){1,19}"}'] * 110),
    "a chain of operators": "+".join(["1"] * 2000),
    "a chain of comparisons": "<".join(["a"] * 1300),
    "a chain of words": " or ".join(["a"] * 800),
    "brackets": "(" * 2000 + "a" + ")" * 2000,
    "brackets that never close": "(" * 4000,
    "aggregations": "sum(" * 800 + "a" + ")" * 800,
    "signs": "-" * 4000 + "1",
    "matchers": "a{" + ",".join(['b=~"c"'] * 400) + "}",
    "strings": "a{" + ",".join(['"b"'] * 1000) + "}",
    "quotes": '"' * 4001,
    "escapes": '"' + "\\" * 4001,
    "ranges": "a" + "[1m:1s]" * 500,
    "offsets": "a" + " offset 1m" * 370,
    "words": "a " * 2000,
    "names": "sum by (" + ",".join(["b"] * 1900) + ") (a)",
    "comments": "#" * 4000,
    "blanks": " " * 4000,
    "digits": "9" * 4000,
    "a long regular expression": 'a{x=~"' + r"\\w" * 1300 + '"}',
}
"""Queries that have been too slow for the parser, or may be."""
