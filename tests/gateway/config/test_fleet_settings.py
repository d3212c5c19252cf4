"""Which models' KV no other model may read, as the settings say it."""

import pytest

from gateway.config.fleet_settings import ModelSettings, find_adapters


def model(name: str, path: str = "/m", kv_name: str | None = None, adapter: bool | str = "auto") -> ModelSettings:
    """One model."""
    return ModelSettings(name, path, 1, kv_name=kv_name, adapter=adapter)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("models", "adapters"),
    [
        ([model("a")], set()),
        ([model("a", "/a"), model("b", "/b")], set()),
        ([model("a", "/a", "base"), model("b", "/b", "base")], {"a", "b"}),
        ([model("a", "/a"), model("b", "/b", "a")], {"a", "b"}),
        ([model("a", "/m/x"), model("b", "/m/./x/"), model("c", "/m/y")], {"a", "b"}),
        ([model("a", adapter=False), model("b")], {"b"}),
        ([model("a", adapter=False), model("b", adapter=False)], set()),
        ([model("a", "/a", adapter=True), model("b", "/b")], {"a"}),
    ],
)
def test_adapters(models: list[ModelSettings], adapters: set[str]) -> None:
    """Models that share a name of KV or a directory are apart, unless the settings say which one is no adapter."""
    assert find_adapters(models) == adapters
