"""Hypothesis settings for all tests of policies: a loaded machine is no failure."""

from hypothesis import HealthCheck, settings

settings.register_profile("policies", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("policies")
