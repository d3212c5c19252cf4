"""What the parts share."""


class NotRun(Exception):
    """A part cannot run here; ``str()`` says what it misses."""
