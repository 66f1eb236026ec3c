"""Snapshots of a node of 64 CPUs with jobs A and B, and the ledger's accounts as joules."""

import pytest

from collectors.energy.split import NodeSnapshot
from collectors.jobs.view import JobCpu
from collectors.power.meter import GpuEnergyReading, MeterReading
from tests.simulated.node import name

CPUS = 64
EPOCH = 1_700_000_000.0
A, B = name(1), name(2, "bob")


def job_cpu(job_name, cpu_seconds, cpus=32.0, ended_at=None, started_at=-3600.0):
    return JobCpu(job_name, cpu_seconds, cpus, ended_at, started_at)


def gpu_reading(joules, at, *shares, series=0, uuid="GPU-1"):
    return GpuEnergyReading(uuid, at, joules, series, shares)


def snapshot(
    at, *, joules=None, watts=None, busy_seconds=0.0, jobs=(), gpus=(), read_at=None, series=0
):
    no_meter = joules is None and watts is None
    return NodeSnapshot(
        at,
        EPOCH + at,
        None
        if no_meter
        else MeterReading(at if read_at is None else read_at, joules, watts, series),
        busy_seconds,
        CPUS,
        {job.name: job for job in jobs},
        {gpu.uuid: gpu for gpu in gpus},
    )


def job_joules(accounts):
    return {
        f"{job.name.jobid} {component} {kind}": pytest.approx(joules)
        for job in accounts.jobs
        for (component, kind), joules in job.joules.items()
    }


def node_joules(accounts):
    return {
        f"{component} {consumer}": pytest.approx(joules)
        for (component, consumer), joules in accounts.node.items()
    }
