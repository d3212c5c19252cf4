"""The list of what is installed."""

from tests.sbom import list_all


def test_the_list_has_each_package_once_with_its_version() -> None:
    """The gateway itself and what it needs are in it, each with a package URL."""
    components = list_all()["components"]
    assert isinstance(components, list)
    urls = [component["purl"] for component in components]
    assert len(set(urls)) == len(urls) and {"pdd-gateway", "uvicorn"} <= {one["name"] for one in components}
    assert all(one["version"] and one["purl"].startswith("pkg:pypi/") for one in components)
