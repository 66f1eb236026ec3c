"""The parts of a dashboard, independent of Grafana's JSON."""

from typing import Literal, NamedTuple

Json = dict[str, object]

# The server's own default; docs/grafana.md explains how to set another.
PAGES = "http://localhost:10912"
SUFFIX = "@SUFFIX@"  # in URLs, a placeholder for the suffix of the plugin's dashboard uids


class Thresholds(NamedTuple):
    """Where the colour of a value changes from green; thresholds.py has all of them."""

    orange: float
    red: float | None = None
    low: bool = False  # low values are bad: a colour applies below its threshold


class PanelColumn(NamedTuple):
    """A key of the API's rows (or a label of series), and how a table shows it."""

    key: str
    title: str = ""
    unit: str = ""  # Grafana's name: s, bytes, joule …; only for numbers
    kind: Literal["string", "number", "time"] = "string"
    link: str = ""  # URL; may contain ${__data.fields.KEY}
    hidden: bool = False  # only used by links
    thresholds: Thresholds | None = None


class ApiQuery(NamedTuple):
    """A query to the server's API, and the wanted keys of its rows."""

    path: str  # below /api/v1
    columns: tuple[PanelColumn, ...]
    params: tuple[tuple[str, str], ...] = ()

    def parameters(self) -> tuple[tuple[str, str], ...]:
        """Parameters with the displayed keys: a job has over a hundred."""
        keys = dict.fromkeys(column.key for column in self.columns)
        return (*self.params, ("fields", ",".join(keys)))


class Promql(NamedTuple):
    """A query to Prometheus."""

    expr: str
    legend: str = ""
    instant: bool = False


class LogQuery(NamedTuple):
    """Lines of a log database; Loki and VictoriaLogs have the same selectors of streams."""

    expr: str
    source: str  # type of the data source


Query = ApiQuery | Promql | LogQuery
Kind = Literal["timeseries", "stat", "table", "bargauge", "logs", "text", "row"]


class Panel(NamedTuple):
    """One panel; the layout is from left to right, 24 columns wide."""

    title: str
    queries: tuple[Query, ...] = ()
    unit: str = ""
    about: str = ""  # description of the panel, shown at its (i)
    kind: Kind = "timeseries"
    width: int = 12
    height: int = 8
    stacked: bool = False
    bars: bool = False
    maximum: float | None = None  # of the axis
    thresholds: Thresholds | None = None
    line_name: str = ""  # for long rows (one per point and line): name of a line
    columns: tuple[PanelColumn, ...] = ()  # of a table with Promql queries: labels, then "Value"
    sort_by: str = ""  # title of a column, in descending order
    text: str = ""  # Markdown


class Variable(NamedTuple):
    """A selection of the viewer's at the top."""

    name: str
    label: str
    query: ApiQuery | str | None = None  # to the API, or `label_values(…)`; None: free text
    every: bool = False  # offers "All"
    all_value: str | None = ".*"  # what "All" is; None: all values that it offers
    several: bool = False
    words: tuple[str, ...] = ()  # a fixed list of values
    hidden: bool = False
    about: str = ""


class Dashboard(NamedTuple):
    """A dashboard; `slug` is part of its uid and its file name."""

    slug: str
    title: str
    about: str
    panels: tuple[Panel, ...]
    variables: tuple[Variable, ...] = ()
    since: str = "now-6h"
    until: str = "now"
    refresh: str = ""
    links: tuple[tuple[str, str], ...] = ()  # title and URL, at the top
    folder: str = "prometheus"  # of its files, if it only queries Prometheus
    on_nodes: bool = True  # whether its label `instance` is a node

    def queries(self) -> list[Query]:
        """Those of its panels."""
        return [query for panel in self.panels for query in panel.queries]

    def asks_api(self) -> bool:
        """Whether it is generated for each plugin that reads the API."""
        queries = (*self.queries(), *(variable.query for variable in self.variables))
        return any(isinstance(query, ApiQuery) for query in queries)

    def log_source(self) -> str:
        """The type of the data source of log lines that it needs, or ""."""
        return next((query.source for query in self.queries() if isinstance(query, LogQuery)), "")

    def asks_prometheus(self) -> bool:
        """Whether it needs a Prometheus data source."""
        of_variables = any(isinstance(variable.query, str) for variable in self.variables)
        return of_variables or any(isinstance(query, Promql) for query in self.queries())
