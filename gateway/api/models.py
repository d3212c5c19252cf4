"""The served models by name, and ``/v1/models``."""

from collections.abc import Callable, Mapping, Sequence

from msgspec import UNSET

from gateway.api.wire import ModelCard, ModelList
from gateway.errors import GatewayError
from gateway.fleet.reading import Readings
from gateway.text.model import ServedModel
from gateway.text.turns import TurnMemory
from policies.tenant_rules import ModelRules

SHOWN_NAME_CHARACTERS = 100


ALL = ModelRules()


class Models:
    """What this gateway serves, as a tenant's rules let it see it: some of the models, and other names for them."""

    def __init__(
        self,
        models: Mapping[str, ServedModel],
        created: int,
        passed: Callable[[], Sequence[str]] = tuple,
        note_unread: Callable[[str], object] = str,
        readings: Readings | None = None,
        note_turn: Callable[[str, str], object] = lambda model, result: None,
        turns: TurnMemory | None = None,
    ) -> None:
        """``passed`` names the models of upstreams, whose requests are only passed on.

        ``note_unread`` is told the model when a conversation holds a tool call whose arguments cannot be read, and
        ``note_turn`` the model and what came of the ids of a conversation's earlier turns.
        """
        self._models = models
        self._created = created
        self._passed = passed
        self.note_unread = note_unread
        self.note_turn = note_turn
        self.turns = turns or TurnMemory()
        self.readings = readings
        """Lets engines read chats; None: all are read here."""

    def find(self, name: str, rules: ModelRules = ALL) -> ServedModel:
        """Return the model of a name or an alias. Raises GatewayError 404, also for one that the tenant may not use."""
        model = self._models.get(resolve_name(name, rules))
        if model is None or not is_allowed(model.name, rules):
            raise no_such_model(name)
        return model

    def takes_media(self, name: str) -> bool:
        """Say whether an own model reads more than text: an engine's own chat API then answers."""
        return name in self._models and self._models[name].takes_media

    def card(self, name: str, rules: ModelRules = ALL) -> ModelCard:
        """Return the model as ``/v1/models/{name}`` shows it. Raises GatewayError 404."""
        served = resolve_name(name, rules)
        if served not in self._models and served in self._passed() and is_allowed(served, rules):
            return ModelCard(id=name, created=self._created)
        tokens = self.find(name, rules).context.known_tokens
        return ModelCard(id=name, created=self._created, max_model_len=tokens or UNSET)

    def list(self, rules: ModelRules = ALL) -> ModelList:
        """Return all names that may be asked for."""
        served = {name: name for name in (*self._models, *self._passed())}
        aliases = {alias: name for alias, name in rules.aliases.items() if name in served}
        names = [name for name, model in (served | aliases).items() if is_allowed(model, rules)]
        return ModelList(data=[self.card(name, rules) for name in names])


def resolve_name(name: str, rules: ModelRules) -> str:
    """Return the model that a name stands for."""
    return rules.aliases.get(name, name)


def is_allowed(model: str, rules: ModelRules) -> bool:
    """Say whether a tenant may use a model."""
    return rules.allowed is None or model in rules.allowed


def no_such_model(name: str) -> GatewayError:
    message = f"The model {name[:SHOWN_NAME_CHARACTERS]!r} does not exist."
    return GatewayError(404, message, code="model_not_found", param="model")
