"""What the exporter needs besides its sources: an address, and the right time."""

import ctypes
import os
import urllib.error
import urllib.request

from batchjob.runtime.settings import SettingsError
from batchjob_cli.doctor.finding import Check, ExaminedNode, Finding
from batchjob_exporter.web.addresses import open_listeners

_TIMEX_BYTES = 208  # struct timex of <sys/timex.h> on 64-bit Linux
_TIMEX_STATUS = 40  # offset of `status`
_STA_UNSYNC = 0x0040


def _check_address(node: ExaminedNode) -> Finding | None:
    if not node.listen:
        return None
    shown = ", ".join(node.listen)
    try:
        for each in open_listeners(node.listen):
            each.close()
    except SettingsError as error:
        if any(_exporter_answers(address) for address in node.listen):
            return Finding("ok", f"an exporter answers on {shown}")
        return Finding("warning", str(error), "choose another with --web.listen-address")
    return Finding("ok", f"{shown} is free")


def _exporter_answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    if not port.isdigit():
        return False
    try:
        url = f"http://{host or 'localhost'}:{port}/-/healthy"
        with urllib.request.urlopen(url, timeout=2) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError, ValueError):
        return False


def _check_clock(_: ExaminedNode) -> Finding | None:
    """Whether the clock is synchronised, according to the kernel (adjtimex(2))."""
    state = ctypes.create_string_buffer(_TIMEX_BYTES)
    if ctypes.sizeof(ctypes.c_long) != 8 or ctypes.CDLL(None).adjtimex(state) < 0:
        return None
    status = int.from_bytes(state.raw[_TIMEX_STATUS : _TIMEX_STATUS + 4], "little")
    if not status & _STA_UNSYNC:
        return Finding("ok", "synchronised")
    return Finding(
        "warning",
        "the clock is not synchronized: samples and job records may not match",
        "run chronyd or systemd-timesyncd (in a virtual machine, on its host)",
    )


def _check_cpus(_: ExaminedNode) -> Finding:
    allowed = sorted(os.sched_getaffinity(0))
    return Finding("ok", f"{len(allowed)} usable; the exporter uses one of them")


CHECKS = (
    Check("address", _check_address),
    Check("clock", _check_clock),
    Check("cpus", _check_cpus),
)
