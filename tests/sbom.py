"""``make sbom``: what is installed, as a CycloneDX 1.5 list in JSON: name, version, licence and package URL of each."""

import json
import sys
from importlib.metadata import Distribution, distributions


def describe(found: Distribution) -> dict[str, object]:
    """One package."""
    name, version = found.metadata["Name"], found.version
    component: dict[str, object] = {
        "type": "library",
        "name": name,
        "version": version,
        "purl": f"pkg:pypi/{name.lower().replace('_', '-')}@{version}",
    }
    licence = found.metadata.json.get("license_expression") or found.metadata.json.get("license")
    if licence:
        component["licenses"] = [{"license": {"name": str(licence).splitlines()[0][:100]}}]
    return component


def list_all() -> dict[str, object]:
    """The whole list, in one order."""
    by_name = {found.metadata["Name"].lower(): found for found in distributions()}
    components = [describe(found) for _, found in sorted(by_name.items())]
    return {"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1, "components": components}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(list_all(), indent=1) + "\n")
