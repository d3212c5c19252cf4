"""Makes the environments of the clients: ``python -m tests.compat.setup DIR``.

Each has its own: to find versions that suit all of them takes pip longer than all that is done with them. What cannot
be installed is named.
"""

import shutil
import subprocess
import sys
import venv
from pathlib import Path

from tests.compat.table import CLIENTS, Client


def install(client: Client, folder: Path) -> str | None:
    """Make a client's environment, or mend it; return why it could not be made."""
    if client.is_node:
        npm = shutil.which("npm")
        if npm is None:
            return "npm is not here"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "package.json").write_text('{"private": true}\n', encoding="utf-8")
        command = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", *client.packages]
        done = subprocess.run(command, cwd=folder, check=False)
        return f"npm ended with {done.returncode}" if done.returncode else None
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    pip: list[str | Path] = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run([*pip, *client.packages], check=False)
    return f"pip ended with {done.returncode}" if done.returncode else None


def main(folder: Path) -> None:
    """Make all of them; the reason for one that could not be made is in a file in its place."""
    for client in CLIENTS:
        place = folder / client.module
        if place.is_file():
            place.unlink()
        reason = install(client, place)
        if reason is not None:
            shutil.rmtree(place, ignore_errors=True)
            folder.mkdir(exist_ok=True)
            place.write_text(reason, encoding="utf-8")
            print(f"NOT INSTALLED: {client.name}: {reason}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
