"""What the tests of the edge share: the API that stands behind it."""

from tests.gateway.api.conftest import generator, loaded_openai, model, model_dir, state

__all__ = ["generator", "loaded_openai", "model", "model_dir", "state"]
