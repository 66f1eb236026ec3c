"""Stand-ins for what the energy collector is built from, and a look at what it shows."""

import dataclasses

from collectors.energy.collector import EnergyOptions, build
from collectors.power.meter import Meter, MeterReading

BOOT_ID = "0b0e1f2c-6f3f-4a39-9a44-8a3b0c6f1d2e"


class Source:
    """A collector with meters and nothing else."""

    def __init__(self, *meters):
        self.offered = list(meters)

    def meters(self):
        return self.offered

    def start(self):
        pass

    stop = start

    def collect(self):
        return []


class Gpus(Source):
    readings = ()

    def gpu_energy(self):
        return self.readings


class Emissions(Source):
    factors = ()

    def current(self):
        return self.factors


def counter(name, read, scope="node", includes_gpus=True, period=0.0):
    return Meter(name, scope, includes_gpus, period, read)


def energy(host, built, **options):
    return build(host, dataclasses.replace(EnergyOptions(), **options), built)


def shown(collector, family_name):
    return {
        labels: value
        for family in collector.collect()
        if family.metric.name == f"batchjob_{family_name}"
        for labels, value in family.samples
    }


def steady(time, watts):
    """A counter of a node that draws always the same."""
    return lambda: MeterReading(time.now, joules=watts * time.now)


def run(collector, time, seconds, step=10):
    for _ in range(int(seconds / step)):
        collector.tick()
        time.pass_(step)
    collector.tick()
