"""What the text tests share."""

from tests.gateway.model_dir import model_dir

__all__ = ["model_dir"]
