"""History in any server that speaks the Prometheus HTTP API.

Prometheus, VictoriaMetrics, Mimir and Thanos answer the few functions used here alike:
`last_over_time`, `resets`, `max_over_time`, `avg_over_time`, `count_over_time`, and a bare range
selector for raw samples. `increase()` and `rate()` are not among them: they give nothing for a
series of one sample, and Prometheus extrapolates where VictoriaMetrics does not.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import requests

from batchjob_stats_db.history import courses
from batchjob_stats_db.history.courses import Identity, Points, Stretches
from batchjob_stats_db.history.history import (
    Asked,
    Course,
    HistoryError,
    Kind,
    Point,
    Sample,
    Span,
    Statistic,
)

Found = Iterator[tuple[str, dict[str, str], dict[str, Any]]]

# Labels that tell series of one job apart. Whatever else a site adds (replica, prometheus,
# job, pod ...) tells only copies apart, and `max by` folds these.
IDENTITY = (
    "__name__", "cluster", "instance", "manager", "jobid", "user", "mode", "component", "kind",
    "resource", "device", "provider", "gpu", "uuid", "gpu_instance", "UUID", "GPU_I_ID",
)  # fmt: skip

_FUNCTIONS = {
    Statistic.PEAK: "max_over_time",
    Statistic.MEAN: "avg_over_time",
    Statistic.COUNT: "count_over_time",
}

_MOST_SAMPLES = 5000  # of a series that are looked at one by one; 42 h at one in 30 s
CARRIED_SECONDS = 900  # how far before a rerun its predecessor's last value is looked for


@dataclass(frozen=True)
class Endpoint:
    """Where the server is, and how to be let in."""

    url: str
    username: str = ""
    password: str = ""
    token: str = ""
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    headers: Mapping[str, str] | None = None  # such as Mimir's X-Scope-OrgID
    timeout_seconds: float = 60.0
    answer_bytes: int = 256 << 20
    batch_jobs: int = 1000
    batch_characters: int = 12_000  # of job ids; VictoriaMetrics takes queries of 16 kB
    batch_samples: int = 5_000_000  # a tenth of Prometheus' --query.max-samples
    scrape_interval: float = 30.0


class Prometheus:
    """Asks one server; used by one thread."""

    source = "prometheus"

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._session = session(endpoint)

    def measure(
        self, statistic: Statistic, metrics: Sequence[str], spans: Sequence[Span]
    ) -> list[Sample]:
        """See History; as few requests as the batches' bounds allow."""
        samples: list[Sample] = []
        for batch in batches(spans, self._endpoint):
            if statistic is Statistic.TOTAL:
                samples += self._totals(metrics, batch)
                continue
            for metric in metrics:
                # One by one: these functions drop the metric's name, and series that differ in
                # nothing else would clash.
                found = self._folded(_FUNCTIONS[statistic], [metric], batch)
                samples += [sample._replace(metric=metric) for sample in found]
        return samples

    def courses(self, asked: Asked, span: Span, stretches: int) -> list[Course]:
        """See History; replicas folded, gaps left open."""
        cut = courses.stretches(span, stretches, self._endpoint.scrape_interval)
        return (self._values if asked.kind is Kind.GAUGE else self._rates)(asked, span, cut)

    def _values(self, asked: Asked, span: Span, cut: Stretches) -> list[Course]:
        """The store's own lows, means and highs."""
        found: dict[Identity, dict[float, list[float]]] = {}
        # Before Prometheus 3, a window held the sample at its very beginning as well.
        window = f"{matching(asked, span)}[{round(cut.seconds * 1000) - 1}ms]"
        times = {
            "start": f"{cut.ends(0):.3f}", "end": f"{cut.end:.3f}", "step": f"{cut.seconds:.3f}"
        }  # fmt: skip
        for over in ("min", "avg", "max"):
            query = f"{over} by ({', '.join(IDENTITY)}) ({over}_over_time({window}))"
            for _, labels, result in _named(self._ask("query_range", query=query, **times)):
                points = found.setdefault(_identity(labels), {})
                for at, value in _finite(result["values"]):
                    points.setdefault(at, []).append(value)
        return [
            # Of a running job the last question may have seen more than the first.
            Course(
                dict(identity),
                [Point(at, *three) for at, three in sorted(points.items()) if len(three) == 3],
            )
            for identity, points in found.items()
        ]

    def _rates(self, asked: Asked, span: Span, cut: Stretches) -> list[Course]:
        """From samples, all or, of a long time, one of several."""
        interval = self._endpoint.scrape_interval
        every = interval * math.ceil((span.until - span.start) / interval / _MOST_SAMPLES)
        found = (
            self._thinned(asked, span, every)
            if every > interval
            else self._raw(matching(asked, span), span)
        )
        gap = max(4 * interval, 2 * every)
        copies: dict[Identity, list[Points]] = {}
        for _, labels, result in found:
            points = list(_finite(result["values"]))
            copies.setdefault(_identity(labels), []).append(points)
        whole = ((identity, courses.merged(seen, gap)) for identity, seen in copies.items())
        return courses.together(whole, asked, span, cut, gap)

    def _thinned(self, asked: Asked, span: Span, every: float) -> Found:
        """A sample of each so many seconds; a multiple of the interval, so that all are as old."""
        query = f"last_over_time({matching(asked, span)}[{every:g}s])"
        seconds = span.until - span.start + (CARRIED_SECONDS if span.alone else 0)
        begin = span.until - every * (seconds // every)  # so that the very last is among them
        return _named(
            self._ask("query_range", query=query, start=begin, end=span.until, step=f"{every:g}")
        )

    def _folded(self, function: str, metrics: Sequence[str], batch: Sequence[Span]) -> list[Sample]:
        query = f"max by ({', '.join(IDENTITY)}) ({function}({_range(metrics, batch)}))"
        answer = self._ask("query", query=query, time=_end(batch))
        return [
            Sample(name, labels, float(result["value"][1]))
            for name, labels, result in _named(answer)
        ]

    def _totals(self, metrics: Sequence[str], batch: Sequence[Span]) -> list[Sample]:
        if batch[0].alone:
            return self._raw_totals(metrics, batch[0])
        last = self._folded("last_over_time", metrics, batch)
        restarted = self._restarted(metrics, batch)
        whole = [sample for sample in last if sample.labels.get("jobid") not in restarted]
        for span in batch:
            if span.jobid in restarted:
                whole += self._raw_totals(metrics, span)
        return whole

    def _restarted(self, metrics: Sequence[str], batch: Sequence[Span]) -> set[str]:
        """Ids of the jobs of which any counter began anew."""
        restarted: set[str] = set()
        for metric in metrics:
            resets = f"max by (cluster, jobid) (resets({_range([metric], batch)})) > 0"
            answer = self._ask("query", query=resets, time=_end(batch))
            restarted.update(str(result["metric"].get("jobid", "")) for result in answer)
        return restarted

    def _raw_totals(self, metrics: Sequence[str], span: Span) -> list[Sample]:
        """Totals from the samples themselves, for counters that began anew."""
        folded: dict[tuple[str, Identity], float] = {}
        for name, labels, result in self._raw(selector(metrics, [span]), span):
            points = [(float(at), float(value)) for at, value in result["values"]]
            total = total_of(points, span.start)
            if total is None:
                continue
            key = (name, _identity(labels))
            folded[key] = max(total, folded.get(key, total))
        return [Sample(name, dict(identity), value) for (name, identity), value in folded.items()]

    def _raw(self, which: str, span: Span) -> Found:
        """The samples themselves; for one of several runs from some time before."""
        seconds = max(1, span.until - span.start) + (CARRIED_SECONDS if span.alone else 0)
        return _named(self._ask("query", query=f"{which}[{seconds}s]", time=span.until))

    def _ask(self, what: str, **parameters: object) -> list[dict[str, Any]]:
        """One request; VictoriaMetrics must not answer from its cache, Thanos not in part."""
        form = {**parameters, "nocache": "1", "partial_response": "false"}
        url = f"{self._endpoint.url.rstrip('/')}/api/v1/{what}"
        try:
            with self._session.post(
                url, data=form, timeout=self._endpoint.timeout_seconds, stream=True
            ) as response:
                body = _bounded(response, self._endpoint.answer_bytes)
                return _results(url, response.status_code, body)
        except requests.RequestException as error:
            raise HistoryError(f"{url}: {error}") from error


def session(endpoint: Endpoint) -> requests.Session:
    """How the server is asked: who we are, whom we trust, and no proxies."""
    made = requests.Session()
    made.trust_env = False  # ~/.netrc and proxies of whoever starts the daemon are not ours
    if endpoint.username:
        made.auth = (endpoint.username, endpoint.password)
    if endpoint.token:
        made.headers["Authorization"] = f"Bearer {endpoint.token}"
    if endpoint.ca_file:
        made.verify = endpoint.ca_file
    if endpoint.cert_file:
        made.cert = (endpoint.cert_file, endpoint.key_file or endpoint.cert_file)
    made.headers.update(endpoint.headers or {})
    return made


def _bounded(response: requests.Response, limit: int) -> bytes:
    body = bytearray()
    for chunk in response.iter_content(1 << 16):
        body += chunk
        if len(body) > limit:
            raise HistoryError(f"{response.url}: more than {limit} bytes")
    return bytes(body)


def _results(url: str, status: int, body: bytes) -> list[dict[str, Any]]:
    try:
        answer = json.loads(body)
        if answer["status"] == "success" and not answer.get("isPartial"):
            results = answer["data"]["result"]
            if isinstance(results, list):
                return results
        reason = str(answer.get("error") or "an answer in part")
    except (ValueError, KeyError, TypeError, AttributeError):
        reason = f"not an answer of a Prometheus API: {body[:80]!r}"
    raise HistoryError(f"{url}: status {status}: {reason}")


def _named(answer: list[dict[str, Any]]) -> Found:
    for result in answer:
        labels = dict(result["metric"])
        yield labels.pop("__name__", ""), labels, result


def _identity(labels: Mapping[str, str]) -> Identity:
    return tuple((label, labels[label]) for label in IDENTITY if label in labels)


def _finite(pairs: Iterable[tuple[float, str]]) -> Iterator[tuple[float, float]]:
    return ((at, value) for at, text in pairs if math.isfinite(value := float(text)))


def batches(spans: Sequence[Span], endpoint: Endpoint) -> Iterator[list[Span]]:
    """Spans that may share a request: different jobs, near each other, not too many samples.

    A batch is asked over the time of all its spans; that is right for each of them because a job's
    series have no samples outside its own, unless another run of the same jobid is near.
    """
    batch: list[Span] = []
    samples, characters = 0.0, 0
    for span in sorted(spans, key=lambda each: (each.until, each.start)):
        if span.alone:
            yield [span]
            continue
        # A job has some 40 series on a node.
        cost = 40 * (1 + (span.until - span.start) / endpoint.scrape_interval)
        length = 1 + len(_literal(span.jobid))
        full = batch and (
            span.cluster != batch[0].cluster
            or len(batch) >= endpoint.batch_jobs
            or samples + cost > endpoint.batch_samples
            or characters + length > endpoint.batch_characters
            or any(span.jobid == each.jobid for each in batch)
        )
        if full:
            yield batch
            batch, samples, characters = [], 0.0, 0
        batch.append(span)
        samples += cost
        characters += length
    if batch:
        yield batch


def selector(metrics: Sequence[str], spans: Sequence[Span]) -> str:
    """A selector of the jobs' series; cluster and jobid always in it."""
    names = _pattern("__name__", metrics)
    jobs = _pattern("jobid", [span.jobid for span in spans])
    return f"{{{names}, cluster={_string(spans[0].cluster)}, {jobs}}}"


def matching(asked: Asked, span: Span) -> str:
    """A selector of the series asked for; the cluster always in it."""
    given = {"__name__": [asked.metric], "cluster": [span.cluster], **asked.where}
    return f"{{{', '.join(_pattern(label, values) for label, values in given.items())}}}"


def _pattern(label: str, values: Sequence[str]) -> str:
    if len(values) == 1:
        return f"{label}={_string(values[0])}"
    return f"{label}=~{_string('|'.join(map(_literal, values)))}"


# RE2 knows no escapes of characters that need none, as re.escape() makes them of "-" or "#".
_SPECIAL = re.compile(r"([.+*?()|\[\]{}^$\\])")


def _literal(value: str) -> str:
    return _SPECIAL.sub(r"\\\1", value)


def _string(value: str) -> str:
    """A PromQL string, which is written like JSON's (both know \\" \\\\ \\n \\uXXXX)."""
    return json.dumps(value, ensure_ascii=False)


def _range(metrics: Sequence[str], batch: Sequence[Span]) -> str:
    seconds = max(1, _end(batch) - min(span.start for span in batch))
    return f"{selector(metrics, batch)}[{seconds}s]"


def _end(batch: Sequence[Span]) -> int:
    return max(span.until for span in batch)


def total_of(points: Sequence[tuple[float, float]], start: float) -> float | None:
    """What a counter counted from `start` on, through its resets; None without a sample.

    A counter that a rerun took over still shows its predecessor's last value until the new run's
    processes exist; these leading samples are not this run's.
    """
    carried = next((value for at, value in reversed(points) if at < start), None)
    own = [value for at, value in points if at >= start]
    while own and own[0] == carried:
        own.pop(0)
    if not own:
        return None
    before_resets = sum(value for value, after in pairwise(own) if after < value)
    return before_resets + own[-1]
