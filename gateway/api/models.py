"""The served models by name, and ``/v1/models``."""

from collections.abc import Callable, Mapping, Sequence

from gateway.api.errors import ApiError
from gateway.api.wire import ModelCard, ModelList
from gateway.text.model import ServedModel

SHOWN_NAME_CHARACTERS = 100


class Models:
    """What this gateway serves."""

    def __init__(
        self, models: Mapping[str, ServedModel], created: int, passed: Callable[[], Sequence[str]] = tuple
    ) -> None:
        """``passed`` names the models of upstreams, whose requests are only passed on."""
        self._models = models
        self._created = created
        self._passed = passed

    def find(self, name: str) -> ServedModel:
        """Return the model. Raises ApiError 404."""
        model = self._models.get(name)
        if model is None:
            raise no_such_model(name)
        return model

    def card(self, name: str) -> ModelCard:
        """Return the model as ``/v1/models/{name}`` shows it. Raises ApiError 404."""
        if name not in self._models and name in self._passed():
            return ModelCard(id=name, created=self._created)
        return ModelCard(id=name, created=self._created, max_model_len=self.find(name).context_tokens)

    def list(self) -> ModelList:
        """Return all models."""
        return ModelList(data=[self.card(name) for name in (*self._models, *self._passed())])


def no_such_model(name: str) -> ApiError:
    """Return the error of an unknown model."""
    message = f"The model {name[:SHOWN_NAME_CHARACTERS]!r} does not exist."
    return ApiError(404, message, code="model_not_found", param="model")
