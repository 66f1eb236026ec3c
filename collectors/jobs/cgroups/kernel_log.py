"""OOM kills from the kernel's log, for cgroups that were removed before they could be read.

    log = KernelLog("/dev/kmsg")
    log.kills("/slurm/uid_1000/job_42", since=0)     # {"/slurm/uid_1000/job_42/step_0/task_0": 1}

Linux Documentation/ABI/testing/dev-kmsg: each read returns one record,
`6,1234,11930570567,-;oom-kill:constraint=CONSTRAINT_MEMCG,...,task_memcg=PATH,task=NAME,pid=1,uid=0`
(mm/oom_kill.c, dump_oom_victim; since Linux 5.0, and at most ten in five seconds).
"""

import logging
import os
import re
import threading
from collections import Counter, deque

log = logging.getLogger(__name__)

_RECORD_BYTES = 8192  # the longest record that the kernel returns
_MAX_KILLS = 1000  # maximum number of kills to remember
# Priorities from 8 on are not the kernel's: root can write them to /dev/kmsg.
_VICTIM = re.compile(rb"[0-7],\d+,\d+,[^;]*;oom-kill:constraint=.*?,task_memcg=(.+?),task=")
_FIELD = b",task_memcg="


class KernelLog:
    """Reads new records on demand, without waiting. Thread-safe.

    Without the right to read the log (CAP_SYSLOG, if kernel.dmesg_restrict is 1) it has no records.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.RLock()
        # Number of the kill, and the cgroup of its victim.
        self._victims: deque[tuple[int, str]] = deque(maxlen=_MAX_KILLS)
        self._kill_count = 0
        self._descriptor: int | None = None
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._descriptor, 0, os.SEEK_END)
        except OSError as error:
            self._disable(error)

    def position(self) -> int:
        """The number of kills so far, from which `kills` counts later ones."""
        with self._lock:
            self._read()
            return self._kill_count

    def kills(self, path: str, since: int) -> Counter[str]:
        """Kills in the cgroup `path` and below it after the position `since`, by cgroup."""
        with self._lock:
            self._read()
            return Counter(
                victim
                for number, victim in self._victims
                if number > since and f"{victim}/".startswith(f"{path}/")
            )

    def close(self) -> None:
        with self._lock:
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None

    def _disable(self, error: OSError) -> None:
        log.info(
            "%s: %s; on cgroup v1, OOM kills are read from cgroups only", self._path, error.strerror
        )
        self.close()

    def _read(self) -> None:
        while self._descriptor is not None:
            try:
                text = os.read(self._descriptor, _RECORD_BYTES)
            except BrokenPipeError:
                continue  # unread records were overwritten; continue with the next
            except BlockingIOError:
                return  # nothing new
            except OSError as error:
                self._disable(error)
                return
            if not text:
                return
            for line in text.splitlines():
                self._record_kill(line)

    def _record_kill(self, line: bytes) -> None:
        """Record a kill, if this is the record of one.

        A record that contains the field twice may be forged: users can name their own cgroups.
        """
        victim = _VICTIM.match(line)
        if victim and line.count(_FIELD) == 1:
            self._kill_count += 1
            self._victims.append((self._kill_count, os.fsdecode(victim[1])))
