"""Job records from attributes of PBS and Torque, which are the same in logs and in qstat.

Facts: the accounting log chapter of the PBS administrator's guide, pbs_job_attributes(7B), and
Torque's accounting records.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from batchjob.runtime.values import size_bytes
from batchjob.schedulers.fields import (
    FieldReader,
    RowError,
    clock_duration,
    count,
    epoch,
    integer,
    merged_shares,
    parse_host_list_number,
    sanitize_text,
)
from batchjob.schedulers.pbs.states import EXIT_STATUSES, KILLED, KILLED_BY_PBS, pbs_end_state
from batchjob.schedulers.records import JobRecord, NodeShare, run_time
from batchjob.schedulers.states import JobState

ACCOUNTS = ("account", "project", "group")
GPU_RESOURCES = ("ngpus", "gpus", "gpu", "naccelerators")
"""Resources that count GPUs: PBS', Torque's, sites' own, and those of Cray systems."""
NOT_LOGGED = "its end was not logged"
_NO_PROJECT = "_pbs_project_default"


def gpu_resources_of(site: str) -> tuple[str, ...]:
    """All resources that count GPUs, a site's own first."""
    own = tuple(name for word in site.split(",") if (name := word.strip()))
    return (*own, *GPU_RESOURCES)


JOB_ID = re.compile(r"(\d+)(?:\[(\d*)\]|-(\d+))?(?:\.\S+)?", re.ASCII)


def parse_job_id(text: str) -> tuple[str, int | None]:
    """Array and task of `2[3].pbs01` or Torque's `2-3.srv`; raises RowError.

    `2[].pbs01`, the array itself, has no task, and `101.pbs01` neither.
    """
    match = JOB_ID.fullmatch(text)
    if not match:
        raise RowError(f"expected a job id such as 101.server, got {text[:40]!r}")
    number, index, old = match.groups()
    task = index or old
    return "" if index is None and old is None else number, int(task) if task else None


class RecordOptions(NamedTuple):
    """How a site uses PBS' attributes."""

    cluster: str
    source: str
    account_from: str = "account"
    gpu_resources: tuple[str, ...] = GPU_RESOURCES


def job_record(
    options: RecordOptions,
    jobid: str,
    row: FieldReader,
    run: int,
    state: JobState,
    word: str,
    suspended_seconds: float | None = None,
) -> JobRecord:
    """A job record from attributes; times are epoch seconds. Raises RowError.

    Log and qstat state the id, the run and its state besides; `suspended_seconds`: None: not known.
    """
    status = row.get("Exit_status", integer)
    array_jobid, task = parse_job_id(jobid)
    start, end = row.get("start", epoch), row.get("end", epoch)
    nodes = _node_shares(row, options.gpu_resources)
    requested_gpus = _requested_gpus(row, options.gpu_resources)
    held = _held(row, nodes, options, requested_gpus)
    if len(nodes) == 1 or held == _NOTHING_KNOWN:
        nodes = tuple(NodeShare(each.node, *held) for each in nodes)
    cpu_seconds = row.get("resources_used.cput", clock_duration)
    walltime = row.get("resources_used.walltime", clock_duration)
    # A walltime of zero beside CPU time was not counted.
    counted = None if not walltime and cpu_seconds else walltime
    elapsed, suspended = run_time(start, end, counted, suspended_seconds or _suspended(row))
    return JobRecord(
        cluster=options.cluster,
        jobid=jobid,
        submit_time=row.require("ctime", epoch),
        state=state,
        state_word=word,
        source=options.source,
        run=run,
        user=row.text("user"),
        group=row.text("group"),
        account=account_of(row.values, options.account_from),
        partition=row.text("queue"),
        name=row.text("jobname"),
        reservation=row.text("resvID"),
        expected_start_time=row.get("estimated.start_time", epoch) if start is None else None,
        eligible_time=row.get("etime", epoch),
        start_time=start,
        end_time=end,
        elapsed_seconds=elapsed,
        suspended_seconds=suspended,
        time_limit_seconds=row.get(
            "Resource_List.walltime", lambda text: int(clock_duration(text))
        ),
        exit_code=status if status is not None and 0 <= status < 256 else None,
        exit_signal=_exit_signal(status),
        reason=_end_reason(status, state),
        restarts=run - 1,
        requested_cpus=row.get("Resource_List.ncpus", count),
        requested_memory_bytes=row.get("Resource_List.mem", size_bytes),
        requested_gpus=requested_gpus,
        requested_nodes=row.get("Resource_List.nodect", count),
        requested_resources=row.text("Resource_List.select") or row.text("Resource_List.nodes"),
        allocated_cpus=held[0],
        allocated_memory_bytes=held[1],
        allocated_gpus=held[2],
        allocated_nodes=len(nodes) or None,
        allocated_resources=row.text("exec_vnode"),
        node_list=row.text("exec_host"),
        nodes=nodes,
        array_jobid=array_jobid,
        array_index=task,
        dependencies=row.text("depend"),
        cpu_seconds=cpu_seconds,
        peak_memory_bytes=row.get("resources_used.mem", size_bytes),
    )


def end_state(row: FieldReader, *, deleted: bool) -> JobState:
    """The end state, by the exit status, the time limit and whether somebody deleted the job."""
    status = row.get("Exit_status", integer)
    if status is None and not deleted:
        return JobState.UNKNOWN  # PBS writes one, which cannot be read
    limit = row.get("Resource_List.walltime", clock_duration)
    used = row.get("resources_used.walltime", clock_duration)
    return pbs_end_state(status, deleted=deleted, past_limit=bool(limit and used and used >= limit))


def never_ran(row: FieldReader) -> bool:
    """Whether PBS gave up a start: the job had no session and no run time."""
    return row.values.get("session") == "0" and not row.get(
        "resources_used.walltime", clock_duration
    )


def _suspended(row: FieldReader) -> float | None:
    """Seconds of suspension, None for the time that the walltime lacks.

    A suspended job loses its session; so does one that never ran its script (status: PBS' own).
    """
    status = row.get("Exit_status", integer)
    lost = row.values.get("session") == "0" and status is not None and 0 <= status < 256
    return None if lost and row.text("resources_used.walltime") else 0


def _end_reason(status: int | None, state: JobState) -> str:
    if status in KILLED and state is JobState.FAILED:
        return KILLED_BY_PBS
    return "" if status is None or status >= 0 else EXIT_STATUSES.get(status, f"PBS {status}")


def _exit_signal(status: int | None) -> int | None:
    """The signal that ended the job's shell: its status is 256 + signal."""
    if status is None or status < 0:
        return None
    return status - 256 if status >= 256 else 0


def account_of(attributes: Mapping[str, str], preferred: str) -> str:
    """The first attribute of ACCOUNTS that the job has, `preferred` before the others."""
    order = (preferred, *(name for name in ACCOUNTS if name != preferred))
    named = (sanitize_text(attributes.get(name, "")) for name in order)
    return next((account for account in named if account and account != _NO_PROJECT), "")


def _node_shares(row: FieldReader, gpu_resources: tuple[str, ...]) -> tuple[NodeShare, ...]:
    """Shares per node: exec_vnode has details, exec_host the names; Torque has only the latter."""
    host, vnode = row.values.get("exec_host", ""), row.values.get("exec_vnode", "")
    if not host:
        return ()
    try:
        return pbs_exec_vnode(vnode, host, gpu_resources) if vnode else pbs_exec_host(host)
    except ValueError as error:
        row.parse_errors.append(f"exec_host: {error}")
        return ()


_Held = tuple[float | None, int | None, int | None]
"""CPUs, bytes of memory and GPUs."""
_NOTHING_KNOWN: _Held = (None, None, None)


def _held(
    row: FieldReader, nodes: tuple[NodeShare, ...], options: RecordOptions, requested: int | None
) -> _Held:
    """What the job holds of all its nodes.

    `resource_assigned` of a start says what it keeps from others: with exclusive placement the
    whole of its nodes, whose size qstat does not know. GPUs that only the request names, as in
    Torque, are granted with it.
    """
    if not nodes:
        return _NOTHING_KNOWN
    cpus, memory, gpus = (_total(nodes, name) for name in ("cpus", "memory_bytes", "gpus"))
    gpus = requested if gpus is None else gpus
    assigned_cpus = row.get("resource_assigned.ncpus", count)
    if assigned_cpus is None:
        is_exclusive = "excl" in row.text("Resource_List.place")  # also exclhost
        return _NOTHING_KNOWN if is_exclusive else (cpus, memory, gpus)
    assigned_memory = row.get("resource_assigned.mem", size_bytes)
    assigned_gpus = _most(
        row.get(f"resource_assigned.{name}", count) for name in options.gpu_resources
    )
    return (
        assigned_cpus,
        memory if assigned_memory is None else assigned_memory,
        gpus if assigned_gpus is None else assigned_gpus,
    )


def _requested_gpus(row: FieldReader, gpu_resources: tuple[str, ...]) -> int | None:
    named = [row.get(f"Resource_List.{name}", count) for name in gpu_resources]
    return _most([*named, _torque_gpus(row.text("Resource_List.nodes"), gpu_resources)])


def _most(amounts: Iterable[int | None]) -> int | None:
    """The GPUs by several words for them: those that are not used may have a default of 0."""
    return max((amount for amount in amounts if amount is not None), default=None)


def _torque_gpus(specification: str, gpu_resources: tuple[str, ...]) -> int | None:
    """GPUs of Torque's `2:ppn=28:gpus=1+n7:gpus=4#shared`; None if it names none."""
    amounts = []
    if not any(name in specification for name in gpu_resources):
        return None
    for part in specification.partition("#")[0].split("+"):
        number, *resources = part.split(":")
        named = dict(each.split("=", 1) for each in resources if "=" in each)
        found = (named.get(name, "") for name in gpu_resources)
        amount = _most(int(each) for each in found if each.isdecimal() and len(each) < 7)
        if amount is not None:
            amounts.append(amount * (int(number) if number.isdecimal() else 1))
    return sum(amounts) if amounts else None


def _total(nodes: tuple[NodeShare, ...], name: str) -> int | None:
    known = [value for node in nodes if (value := getattr(node, name)) is not None]
    return sum(known) if known else None


_RANGE = re.compile(r"(\d{1,18})-(\d{1,18})", re.ASCII)


def pbs_exec_host(text: str) -> tuple[NodeShare, ...]:
    """Hosts of `n1/0*8+n2/3` (PBS: `*8` CPUs), `n1/7+n1/6` or `n1/0-7` (Torque: slots)."""
    return merged_shares(NodeShare(host, cpus) for host, cpus in _exec_hosts(text))


def _exec_hosts(text: str) -> Iterator[tuple[str, int]]:
    for item in text.split("+"):
        host, slash, slot = item.partition("/")
        if not host or not slash:
            raise ValueError(f"not an exec_host: {text[:80]!r}")
        index, star, count = slot.partition("*")
        bounds = [_RANGE.fullmatch(part) for part in index.split(",")]
        if star:
            yield host, parse_host_list_number(count, text)
        elif any(bounds) or "," in index:
            yield host, sum(1 if b is None else int(b[2]) - int(b[1]) + 1 for b in bounds)
        else:
            yield host, 1


def pbs_exec_vnode(
    exec_vnode: str, exec_host: str, gpu_resources: tuple[str, ...] = GPU_RESOURCES
) -> tuple[NodeShare, ...]:
    """Shares per host from `(n1[0]:ncpus=4+n1[1]:ncpus=4)+(n2:ncpus=8:mem=2gb:ngpus=1)`.

    A chunk in parentheses may lie on several vnodes; its host is the chunk's counterpart in
    exec_host. If the two do not match, vnode names are used as hosts.
    """
    if not (exec_vnode.startswith("(") and exec_vnode.endswith(")")):
        raise ValueError(f"not an exec_vnode: {exec_vnode[:80]!r}")
    chunks = exec_vnode[1:-1].split(")+(")
    hosts = [host for host, _ in _exec_hosts(exec_host)] if exec_host else []
    if len(hosts) != len(chunks):
        hosts = []
    return merged_shares(
        _vnode_share(hosts[at] if hosts else vnode.split(":", 1)[0], vnode, gpu_resources)
        for at, chunk in enumerate(chunks)
        for vnode in chunk.split("+")
    )


def _vnode_share(node: str, vnode: str, gpu_resources: tuple[str, ...]) -> NodeShare:
    resources = dict(part.split("=", 1) for part in vnode.split(":")[1:] if "=" in part)
    cpus, memory = resources.get("ncpus"), resources.get("mem")
    found = (resources[name] for name in gpu_resources if name in resources)
    return NodeShare(
        node,
        None if cpus is None else parse_host_list_number(cpus, vnode),
        None if memory is None else size_bytes(memory),
        _most(parse_host_list_number(each, vnode) for each in found),
    )
