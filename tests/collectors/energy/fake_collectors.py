"""Fakes of the collectors that the energy collector reads, and helpers to run it."""

import dataclasses

from collectors.energy.collector import EnergyCollector, EnergyOptions
from collectors.power.meter import Meter, MeterReading

BOOT_ID = "0b0e1f2c-6f3f-4a39-9a44-8a3b0c6f1d2e"


class FakeMeters:
    """Offers meters and exports nothing."""

    def __init__(self, *meters):
        self.available_meters = list(meters)

    def meters(self):
        return self.available_meters

    def start(self):
        pass

    stop = start

    def collect(self):
        return []


class FakeGpus(FakeMeters):
    readings = ()

    def gpu_energy(self):
        return self.readings


class FakeEmissions(FakeMeters):
    factors = ()

    def current(self):
        return self.factors


def meter(name, read, scope="node", includes_gpus=True, period=0.0):
    return Meter(name, scope, includes_gpus, period, read)


def energy_collector(host, collectors, *, state="", **options):
    host = dataclasses.replace(host, state=state)
    return EnergyCollector(host, dataclasses.replace(EnergyOptions(), **options), collectors)


def samples(collector, family_name):
    return {
        labels: value
        for family in collector.collect()
        if family.metric.name == f"batchjob_{family_name}"
        for labels, value in family.samples
    }


def constant_power(time, watts):
    """A function that reads the energy counter of a node of constant power."""
    return lambda: MeterReading(time.now, joules=watts * time.now)


def run_for(collector, time, seconds, step_seconds=10):
    for _ in range(int(seconds / step_seconds)):
        collector.tick()
        time.pass_(step_seconds)
    collector.tick()
