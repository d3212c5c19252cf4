"""What the text tests share."""

from hypothesis import settings

from tests.gateway.model_dir import model_dir

__all__ = ["model_dir"]

# A slow machine is no failure; pytest's own timeout holds.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
