"""A node with simulated time: processors, a power meter, and jobs that start and end."""

from collectors.jobs.view import JobCpu, make_name


def name(jobid, user="alice", manager="slurm"):
    return make_name(manager, str(jobid), user)


class Time:
    """Both clocks of a Host; `pass_()` moves them."""

    def __init__(self, monotonic=5000.0, epoch=1_700_000_000.0):
        self.now = monotonic
        self.ahead = epoch - monotonic

    def monotonic(self):
        return self.now

    def clock(self):
        return self.now + self.ahead

    def pass_(self, seconds):
        self.now += seconds


class Job:
    """One job; it uses `load` CPUs while it lives."""

    def __init__(self, jobid, cpus, load, start, end, user="alice"):
        self.name = name(jobid, user)
        self.cpus, self.load, self.start, self.end = cpus, load, start, end

    def cpu_seconds(self, now):
        return self.load * max(0.0, min(now, self.end) - self.start)


class Jobs:
    """The view of the jobs collector; ended jobs are listed for five more minutes."""

    def __init__(self, time, jobs, linger=300.0):
        self.time, self.jobs, self.linger = time, jobs, linger
        self.settled = True

    def is_settled(self):
        return self.settled

    def usage(self):
        if not self.settled:  # as a collector that has just started
            return []
        now = self.time.clock()
        return [
            JobCpu(
                job.name,
                job.cpu_seconds(now),
                job.cpus,
                ended_at=job.end - self.time.ahead if job.end <= now else None,
                started_at=job.start - self.time.ahead,
            )
            for job in self.jobs
            if job.start <= now < job.end + self.linger
        ]

    def lifetimes(self):
        return {}

    def holders(self):
        return []


def write_stat(procfs, busy_seconds, seconds, cpus):
    """Write /proc/stat of a node with this uptime."""
    busy = round(busy_seconds * 100)
    idle = max(0, round(seconds * cpus * 100) - busy)
    line = f"{busy} 0 0 {idle} 0 0 0 0 0 0"
    cpu_lines = "".join(f"cpu{n} {line}\n" for n in range(cpus))
    (procfs / "stat").write_text(f"cpu  {line}\n{cpu_lines}btime 1700000000\n")
