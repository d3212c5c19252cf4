"""The secret, and the salts that keep tenants' caches apart."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.kv.bridge.keys import DIALECTS, KeyRequest
from gateway.auth.secrets import BadSecret, Salts, derive, find_adapters, read_secret
from gateway.config.fleet_settings import ModelSettings

SECRET = b"0123456789abcdef"
PARTS = st.lists(st.text(max_size=6), min_size=1, max_size=4)


def test_tenants_and_groups_have_salts_of_their_own() -> None:
    """TEN-03: each tenant and each group has one salt, also where their names are the same."""
    salts = Salts(SECRET)
    found = [salts.of("a"), salts.of("b"), salts.of("a", "a"), salts.of("a", "g")]
    assert len(set(found)) == 4 and all(salt and len(salt) == 64 for salt in found)
    assert salts.of("b", "g") == salts.of("a", "g")


def test_salts_hang_on_the_secret_and_on_nothing_else() -> None:
    """TEN-03: every process makes the same salts, whatever keys a tenant has; another secret makes others."""
    assert Salts(SECRET).of("a") == Salts(SECRET).of("a") != Salts(SECRET * 2).of("a")


def test_without_a_secret_there_is_no_salt() -> None:
    """Open mode has one cache."""
    assert Salts(None).of("a") is None


@pytest.mark.parametrize("adapters", [frozenset[str](), frozenset({"law"})])
def test_salts_of_models_that_are_no_adapters_never_change(adapters: frozenset[str]) -> None:
    """Known answers: KV that was stored under a tenant's salt is found by every later version."""
    salts = Salts(SECRET, adapters)
    own, group = salts.of("a"), salts.of("a", "g")
    assert own == "267b6e25f605b69c90be6b663e2bfb07c7544f77bc5752c49cc523ec50e6e162"
    assert group == "dae1a47fc27864c70faf8cdcaca22532be323b8d38ba4274b2eb0f4f1624b77c"
    assert [salts.of_model(salt, "base") for salt in (own, group, None)] == [own, group, None]


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


@pytest.mark.parametrize("secret", [SECRET, None])
def test_adapters_have_salts_of_their_own(secret: bytes | None) -> None:
    """No two models and no two tenants share an adapter's salt, and without a secret there is one as well."""
    salts = Salts(secret, frozenset({"org/law", "org/code"}))
    models = ("org/law", "org/code", "org/base")
    asked = [(salts.of(tenant), model) for tenant in (("a", "b") if secret else ("a",)) for model in models]
    found = [salts.of_model(*one) for one in asked]
    assert len(set(found)) == len(found)
    assert found == [Salts(secret, frozenset(models[:2])).of_model(*one) for one in asked]


def test_adapters_salts_can_be_spelled_in_every_store() -> None:
    """Names with a slash make salts that all dialects of chunk keys take, and keys that differ."""
    salts = Salts(None, frozenset({"org/law", "org/code"}))
    for dialect in DIALECTS.values():
        keys = [
            set(dialect.spell(KeyRequest("base", range(64), 16, salts.of_model(None, model))))
            for model in ("org/law", "org/code", "base")
        ]
        assert keys[0].isdisjoint(keys[1]) and keys[0].isdisjoint(keys[2]) and keys[1].isdisjoint(keys[2])


@given(PARTS, PARTS)
def test_no_two_lists_of_parts_look_the_same(one: list[str], other: list[str]) -> None:
    """TEN-03: framed parts never run into each other, as "org_1" and "2345" do without frames."""
    assert (derive(SECRET, "p", *one) == derive(SECRET, "p", *other)) == (one == other)
    assert derive(SECRET, "p", *one) != derive(SECRET, "q", *one)


def test_secret_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment variable or the file gives the secret, without the line's end; none is named: none."""
    path = tmp_path / "secret"
    path.write_bytes(SECRET + b"\n")
    monkeypatch.setenv("PDD_TEST_SECRET", SECRET.decode())
    assert read_secret(None, str(path)) == read_secret("PDD_TEST_SECRET", None) == SECRET
    assert read_secret(None, None) is None


def test_a_secret_that_others_can_reach_is_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A file that everybody can read is warned of, one that everybody can change is refused; no secret is shown."""
    path = tmp_path / "secret"
    path.write_bytes(SECRET)
    for mode, warned in ((0o600, False), (0o440, False), (0o644, True)):
        path.chmod(mode)
        caplog.clear()
        assert read_secret(None, str(path)) == SECRET
        assert [f"{path} has the mode {mode:04o}" in line for line in caplog.messages] == [True] * warned
    path.chmod(0o602)
    with pytest.raises(BadSecret, match="everybody can change it") as caught:
        read_secret(None, str(path))
    assert SECRET.decode() not in str(caught.value) + caplog.text


def test_bad_secrets_are_refused_without_being_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing or short secret is an error that says where, and not what."""
    monkeypatch.setenv("PDD_TEST_SECRET", "short")
    for env, file in (("PDD_TEST_SECRET", None), ("PDD_NO_SECRET", None), (None, str(tmp_path / "none"))):
        with pytest.raises(BadSecret) as caught:
            read_secret(env, file)
        assert "short" not in str(caught.value) and str(env or file) in str(caught.value)
        assert ("is not set" in str(caught.value)) is (env == "PDD_NO_SECRET")
