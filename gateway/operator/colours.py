"""The colours of who made a token, in a terminal: the page's violet, amber and teal, readable on dark and on light."""

ROLE_STYLES = {"P": "bold #b04ae8", "RLD": "#d97706", "MD": "#14b8a6"}
"""As rich has styles; a role that is not here has none."""
