"""Exposes emission factors as metrics and provides them to the energy collector."""

from collectors.collector import Collector, CollectorModule
from collectors.emissions.providers.registry import credit
from collectors.emissions.site_factors import EmissionsOptions, SiteFactors
from collectors.metric import Metric, MetricFamily, join, labels

# fmt: off
FACTOR = Metric("batchjob_emission_factor_grams_per_kilowatt_hour", "gauge",
    "Emissions of one kilowatt-hour of electricity in grams of CO2 (CO2 equivalent for lifecycle). "
    "Scopes are not comparable: lifecycle, combustion (direct emissions only), marginal (of one "
    "additional kilowatt-hour).", ("provider", "zone", "scope"))
AGE = Metric("batchjob_emission_factor_age_seconds", "gauge",
    "Time since the moment to which the factor applies; a yearly mean applies to the end of its "
    "year.", ("provider", "zone"))
ESTIMATED = Metric("batchjob_emission_factor_estimated", "gauge",
    "Whether the factor is a forecast or an estimate, according to the provider.", ("provider",
    "zone"))
INFO = Metric("batchjob_emission_factor_info", "gauge",
    "Attribution that the provider requires beside its figures.", ("provider", "zone", "credit"))
ERRORS = Metric("batchjob_emission_factor_errors_total", "counter",
    "Requests to a provider that returned no factor.", ("provider", "reason"))
# fmt: on
METRICS = (FACTOR, AGE, ESTIMATED, INFO, ERRORS)


class EmissionsCollector(SiteFactors, Collector):
    def collect(self) -> list[MetricFamily]:
        factors, now = self.current(), self.clock()
        zones = [(each, labels(provider=each.provider, zone=each.zone)) for each in factors]
        scopes = [(each, join(zone, labels(scope=each.scope))) for each, zone in zones]
        credits = [(join(zone, labels(credit=credit(each.provider))), 1.0) for each, zone in zones]
        errors = [
            (labels(provider=poller.name, reason=reason), float(count))
            for poller in self.pollers
            for reason, count in poller.errors.items()
        ]
        return [
            MetricFamily(FACTOR, [(own, each.grams_per_kilowatt_hour) for each, own in scopes]),
            MetricFamily(AGE, [(zone, each.age_seconds(now)) for each, zone in zones]),
            MetricFamily(ESTIMATED, [(zone, float(each.estimated)) for each, zone in zones]),
            MetricFamily(INFO, credits),
            MetricFamily(ERRORS, errors),
        ]


COLLECTOR = CollectorModule(
    EmissionsOptions,
    METRICS,
    lambda host, options, _: EmissionsCollector.of_site(options, clock=host.clock),
)
