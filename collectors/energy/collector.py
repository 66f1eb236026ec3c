"""The energy of the node's jobs: each tick reads the meter and the jobs together."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from batchjob.runtime.background import PeriodicTask
from batchjob.runtime.log import LogOnce
from batchjob.runtime.settings import option
from batchjob.runtime.values import duration, number, one_of
from collectors.collector import Collector, CollectorModule
from collectors.emissions.providers.provider import EmissionFactor
from collectors.energy import checkpoint
from collectors.energy.ledger import EnergyAccounts, IdlePower, Ledger
from collectors.energy.metrics import METRICS, families
from collectors.energy.split import NodeSnapshot
from collectors.host import Host
from collectors.metric import MetricFamily
from collectors.node import read_stat
from collectors.power.meter import METER_RANKING, Meter, MeterReading, choose_meter
from collectors.state import StateFile

if TYPE_CHECKING:  # its modules are loaded by those collectors that are enabled
    from collectors.emissions.site_factors import SiteFactors
    from collectors.gpu.collector import GpuCollector
    from collectors.jobs.collector import JobsCollector

log = logging.getLogger(__name__)

# How long a BMC may take for its first answer before a lower-ranked meter is chosen, and how long
# an exporter that starts may look for the jobs of the node.
_STARTUP_SECONDS = 30.0
_POLL_SECONDS = 1.0
_LOOK_FOR_JOBS_SECONDS = 0.1


@dataclass(frozen=True)
class EnergyOptions:
    # fmt: off
    source: str = option("auto",
        "Power meter of the node; auto: the best one available.", parse=one_of("auto",
        *METER_RANKING))
    interval: float = option(10.0, "Interval at which energy is assigned to jobs.", parse=duration)
    gpus_included: str = option("auto",
        "Whether the meter includes the GPUs; auto: as is usual for this kind of meter.",
        parse=one_of("auto", "yes", "no"))
    idle_watts: float | None = option(None,
        "Power of the idle node without its GPUs; default: estimated while the node is idle.",
        parse=number, metavar="WATTS")
    # fmt: on


class EnergyCollector(Collector):
    """Chooses the meter, keeps the ledger, and exposes the accounts of the last tick."""

    def __init__(self, host: Host, options: EnergyOptions, built: Mapping[str, Collector]) -> None:
        self._host = host
        self._options = options
        self._metered: Mapping[str, Any] = {
            name: each for name, each in built.items() if name in METER_RANKING
        }
        self._jobs = cast("JobsCollector | None", built.get("jobs"))
        self._gpus = cast("GpuCollector | None", built.get("gpu"))
        self._factors = cast("SiteFactors | None", built.get("emissions"))
        self._state = StateFile(host, checkpoint.FILE, "energy counters")
        self._saved_state: dict[str, Any] = {}
        self._started_at: float | None = None
        # The first snapshot with each meter, where its accounts begin.
        self._first_snapshots: dict[str, NodeSnapshot] = {}
        # The snapshots of GPUs before the ledger is opened.
        self._gpu_snapshots: list[NodeSnapshot] = []
        self._meter: Meter | None = None
        self.ledger: Ledger | None = None
        self._ticked_at = float("-inf")
        self._read_at: dict[str, float] = {}
        self._tick_errors = 0
        self._accounts = EnergyAccounts()
        self._once = LogOnce(log)
        self.threads = (PeriodicTask("energy", self.step),)

    def collect(self) -> list[MetricFamily]:
        return families(self._accounts, self._host.monotonic())

    def accounts(self) -> EnergyAccounts:
        return self._accounts

    def step(self) -> float:
        """Tick once; returns the seconds until the next tick."""
        try:
            self.tick()
            self._once.forget("tick")
        except Exception as error:  # a failed tick must not end the accounting
            self._tick_errors += 1
            self._accounts = self._accounts._replace(tick_errors=self._tick_errors)
            self._once.warning("tick", "energy: %s: %s", type(error).__name__, error)
        return self.seconds_until_next_tick()

    def tick(self) -> None:
        """Attribute the energy since the last tick, at each new reading or each interval."""
        now = self._host.monotonic()
        if self._started_at is None:
            self._started_at = now
            self._saved_state = self._state.load()
        if self._awaits_jobs(now):
            return
        readings = self._read_meters()
        if self._meter is None:
            for name in readings.keys() - self._first_snapshots.keys():
                self._first_snapshots[name] = self._take_snapshot(readings[name][1])
            self._choose_meter(readings, now)
        if self.ledger is None:
            self._record_gpus()
            return
        meter_and_reading = self._meter and readings.get(self._meter.name)
        meter, reading = meter_and_reading or (self._meter, None)
        self._meter = meter
        last = self.ledger.last_snapshot
        is_new = reading is not None and (
            last is None or last.meter is None or reading.at > last.meter.at
        )
        if is_new or now - self._ticked_at >= self._options.interval - _POLL_SECONDS / 2:
            self._ticked_at = now
            self._book_interval(self.ledger, reading)

    def _awaits_jobs(self, now: float) -> bool:
        """Whether energy since the last run would be lost to jobs that are not yet known again."""
        if self.ledger is not None or self._jobs is None or self._started_at is None:
            return False
        return now - self._started_at < _STARTUP_SECONDS and not self._jobs.is_settled()

    def _read_meters(self) -> dict[str, tuple[Meter, MeterReading]]:
        readings = {}
        for each in self._metered.values():
            for meter in each.meters():
                reading = meter.read()
                if reading is not None:
                    readings[meter.name] = meter, reading
                    self._read_at[meter.name] = reading.at
        return readings

    def _choose_meter(self, readings: Mapping[str, tuple[Meter, MeterReading]], now: float) -> None:
        """Choose the meter once: changing it during a job would falsify the job's energy."""
        assert self._started_at is not None
        startup_over = now - self._started_at >= _STARTUP_SECONDS
        saved = self._saved_state
        same_collectors = saved.get("collectors") == sorted(self._metered)
        goes_on = self._state.is_of_boot(saved) and same_collectors
        last = str(saved.get("meter", "")) if goes_on else ""
        name = choose_meter(
            self._options.source, readings.keys(), self._metered.keys(), last, startup_over
        )
        if name is not None:
            self._meter = readings[name][0]
            log.info("using %s as the meter of the node's energy", name)
        elif startup_over and self._options.source != "auto":
            self._once.warning("source", "%s returns no reading", self._options.source)
        if self.ledger is None and (name is not None or startup_over):
            self.ledger = self._open_ledger(name or "")
            for snapshot in self._gpu_snapshots:
                self.ledger.book_gpus(snapshot, self._current_factors())
            self._gpu_snapshots = []
        if self.ledger is not None and self._meter is not None:
            if self.ledger.last_snapshot is None:
                self.ledger.last_snapshot = self._first_snapshots[self._meter.name]
            setting = self._options.gpus_included
            usual = self._meter.includes_gpus
            self.ledger.includes_gpus = usual if setting == "auto" else setting == "yes"
            self.ledger.max_gap_seconds = 3 * max(self._meter.period, self._options.interval)

    def _open_ledger(self, meter: str) -> Ledger:
        """The ledger of the last run if it belongs to this meter, else a new one."""
        ledger = Ledger(IdlePower(self._options.idle_watts))
        saved = self._saved_state
        try:
            if saved:
                checkpoint.restore(saved, self._state.is_of_boot(saved), meter, ledger)
        except ValueError as error:
            self._state.refuse(error)
            return Ledger(IdlePower(self._options.idle_watts))
        return ledger

    def _record_gpus(self) -> None:
        """Keep the readings of GPUs until a meter is chosen: jobs may end before."""
        gpus = {gpu.uuid: gpu.at for gpu in self._gpus.gpu_energy()} if self._gpus else {}
        last = self._gpu_snapshots[-1].gpus if self._gpu_snapshots else {}
        if gpus != {uuid: gpu.at for uuid, gpu in last.items()}:
            self._gpu_snapshots.append(self._take_snapshot(None))

    def _take_snapshot(self, reading: MeterReading | None) -> NodeSnapshot:
        gpus = self._gpus.gpu_energy() if self._gpus else ()
        usage = self._jobs.usage() if self._jobs else ()
        cpu = read_stat(self._host.procfs)
        return NodeSnapshot(
            at=self._host.monotonic(),
            epoch=self._host.clock(),
            meter=reading,
            busy_seconds=cpu.busy_seconds,
            cpus=cpu.cpus,
            jobs={job.name: job for job in usage},
            gpus={gpu.uuid: gpu for gpu in gpus},
        )

    def _book_interval(self, ledger: Ledger, reading: MeterReading | None) -> None:
        accounts = ledger.book(self._take_snapshot(reading), self._current_factors())
        meter = self._meter.name if self._meter else ""
        self._state.save(checkpoint.document(meter, sorted(self._metered), ledger))
        self._accounts = accounts._replace(
            meter=self._meter, read_at=dict(self._read_at), tick_errors=self._tick_errors
        )

    def _current_factors(self) -> Iterable[EmissionFactor]:
        return self._factors.current() if self._factors else ()

    def seconds_until_next_tick(self) -> float:
        """Seconds until the next tick: a slow meter is read when its next reading is due."""
        interval = self._options.interval
        if self._awaits_jobs(self._host.monotonic()):
            return _LOOK_FOR_JOBS_SECONDS
        last = self.ledger.last_snapshot if self.ledger else None
        if self._meter is None or self._meter.period == 0 or last is None or last.meter is None:
            return interval if self.ledger else _POLL_SECONDS
        overdue = self._host.monotonic() - last.meter.at - self._meter.period
        if overdue > 3 * self._meter.period:
            return interval
        return min(interval, max(_POLL_SECONDS, -overdue))


COLLECTOR = CollectorModule(EnergyOptions, METRICS, EnergyCollector)
