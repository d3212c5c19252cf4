"""Makes the environments of the clients: ``python -m tests.compat.setup DIR``.

Each has its own: to find versions that suit all of them takes pip longer than all that is done with them. What cannot
be installed is named, and has no environment afterwards.
"""

import shutil
import subprocess
import sys
import venv
from pathlib import Path

from tests.compat.table import CLIENTS, Client


def install(client: Client, folder: Path) -> bool:
    """Make a client's environment, or mend it; whether that went well."""
    if client.is_node:
        npm = shutil.which("npm")
        if npm is None:
            return False
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "package.json").write_text('{"private": true}\n', encoding="utf-8")
        command = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", *client.packages]
        return subprocess.run(command, cwd=folder, check=False).returncode == 0
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    pip: list[str | Path] = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *client.packages]
    return subprocess.run(pip, check=False).returncode == 0


def main(folder: Path) -> None:
    """Make all of them."""
    for client in CLIENTS:
        place = folder / client.module
        if not install(client, place):
            shutil.rmtree(place, ignore_errors=True)
            print(f"NOT INSTALLED: {client.name}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
