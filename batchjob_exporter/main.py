"""The command `batchjob_exporter`."""

import contextlib
import ctypes
import gc
import logging
import os
import signal
import sys
import time

from batchjob.runtime import log as logs
from batchjob.runtime.output import printing
from batchjob.runtime.sd_notify import notify
from batchjob.runtime.settings import SettingsError, exit_status
from batchjob.runtime.signals import Signals
from batchjob_exporter import exposition
from batchjob_exporter.options import ExporterSettings, cpus_of, settings
from batchjob_exporter.service import ExporterService, exporter_of
from batchjob_exporter.web.auth import Web

log = logging.getLogger(__name__)

_FIRST_VALUES_SECONDS = 5.0  # how long --once waits for jobs to be identified
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_LARGE_BYTES = 128 << 10
_WATCHDOG_PATIENCE = 10.0  # seconds a listener may take to answer the watchdog's request


def main(arguments: list[str] | None = None) -> int:
    """Run the exporter; exit status 2 for wrong settings, 1 for errors that may pass."""
    try:
        chosen = settings(sys.argv[1:] if arguments is None else arguments)
        logs.set_up(chosen.log)
        return {"serve": _serve, "once": _once, "check": _check}[chosen.action](chosen)
    except SettingsError as error:
        print(f"batchjob_exporter: {error}", file=sys.stderr)
        return exit_status(error)


def _once(chosen: ExporterSettings) -> int:
    exporter = exporter_of(chosen)
    exporter.start()
    try:
        exporter.wait(_FIRST_VALUES_SECONDS)
        time.sleep(chosen.once_wait)
        body = exposition.render(exporter.collect())
    finally:
        exporter.stop()
    return printing("batchjob_exporter", lambda: _print(body))


def _print(body: bytearray) -> int:
    sys.stdout.buffer.write(body)
    return 0


def _check(chosen: ExporterSettings) -> int:
    """Report all errors. Flags and file have been parsed already."""
    wrong = []
    try:
        Web(chosen.web.config_file)
    except SettingsError as error:
        wrong.append(str(error))
    try:
        exporter_of(chosen).stop()
    except SettingsError as error:
        wrong.append(str(error))
    for each in wrong:
        print(f"batchjob_exporter: {each}", file=sys.stderr)
    if not wrong:
        print("ok")
    return 2 if wrong else 0


def _serve(chosen: ExporterSettings) -> int:
    signals = Signals(signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    _keep_to(chosen.runtime.cpus)
    _give_back_large_buffers()
    if os.geteuid() == 0:
        log.warning("running as root; docs/exporter.md says which capabilities are enough")
    service = ExporterService(chosen)
    service.start()
    gc.collect()
    gc.freeze()  # existing objects live until exit: later collections can skip them
    notify("READY=1")
    try:
        _until_stopped(signals, service)
    finally:
        notify("STOPPING=1")
        service.stop()
    return 0


def _until_stopped(signals: Signals, service: ExporterService) -> None:
    """Wait for SIGTERM or SIGINT; SIGHUP re-reads the web configuration."""
    interval = _watchdog_interval()
    while True:
        received = signals.wait(interval)
        if not received and service.answers(_WATCHDOG_PATIENCE):
            notify("WATCHDOG=1")
        elif not received:
            log.error("no answer on %s", ", ".join(service.addresses))
        for each in received:
            if each != signal.SIGHUP:
                log.info("stopping on %s", each.name)
                return
            service.web.reload()


def _watchdog_interval() -> float | None:
    """Half of the watchdog interval that systemd has set (sd_watchdog_enabled(3))."""
    microseconds = os.environ.get("WATCHDOG_USEC", "")
    meant = os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    return int(microseconds) / 2e6 if microseconds.isdigit() and meant else None


def _give_back_large_buffers() -> None:
    """Have the memory of each scrape returned to the kernel: mallopt(3).

    By default, glibc raises the size from which a buffer is mapped by itself to the largest that
    was freed; texts of scrapes then come from the heap and fragment it.
    """
    with contextlib.suppress(AttributeError, OSError):  # not glibc
        mallopt = ctypes.CDLL(None).mallopt
        for parameter in (_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD):
            mallopt(parameter, _LARGE_BYTES)


def _keep_to(cpus: str) -> None:
    """Restrict this process and its children to some CPUs."""
    if cpus == "all":
        return
    usable = os.sched_getaffinity(0)
    wanted = {min(usable)} if cpus == "first" else cpus_of(cpus)
    try:
        os.sched_setaffinity(0, wanted)
    except OSError as error:
        raise SettingsError(
            f"runtime.cpus: {cpus}: {error.strerror}; usable are {sorted(usable)}"
        ) from error
