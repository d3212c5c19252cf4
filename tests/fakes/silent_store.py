"""A hand on the documents whose changes are told to nobody."""

from gateway.config.document_store import DocumentStore


class SilentStore(DocumentStore):
    """A store whose notices nobody hears."""

    @property
    def channel(self) -> str:
        """Where nobody listens."""
        return "elsewhere"
