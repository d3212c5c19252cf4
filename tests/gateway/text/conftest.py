"""The tokenizers that the text tests run over."""

from tests.gateway.model_dir import model_dir

__all__ = ["model_dir"]
