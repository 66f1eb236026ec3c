"""What all tests share."""

from hypothesis import HealthCheck, settings

# Machines that run the tests may be busy: time is no property under test here.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")
