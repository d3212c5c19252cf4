"""Files that hold secrets: whether others on the machine could read or change them."""

import os
import stat
from pathlib import Path


class TooOpen(ValueError):
    """Others could put a secret of their own in a file's place; the message names the file."""


def find_openness(path: Path) -> str | None:
    """Say what others can do with a file that only its owner and group should read; None: nothing.

    Raises TooOpen where others can write it, and OSError.
    """
    mode = os.stat(path).st_mode
    shown = f"{path} has the mode {stat.S_IMODE(mode):04o}"
    if mode & stat.S_IWOTH:
        raise TooOpen(f"{shown}: everybody can change it; chmod 600")
    return f"{shown}: everybody on this machine can read it; chmod 600" if mode & stat.S_IROTH else None
