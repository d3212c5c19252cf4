"""The colours of who made a token, in a terminal: those of the page, readable on dark and on light."""

ROLE_STYLES = {"P": "bold #8b5cf6", "RLD": "#d97706", "MD": "#14b8a6"}
"""As rich has styles; a role that is not here has none."""
