"""What of the gateway is open to whom, as the settings have it: the operator's pages, and TLS."""

import logging
from dataclasses import dataclass

from backends.transport.serving import BadTls, Tls, parse_listen
from gateway.auth.admin import AdminAuth
from gateway.auth.secrets import BadSecret, read_secret
from gateway.config.fleet_settings import BadSettings
from gateway.config.settings import Settings
from gateway.http.proxies import is_loopback

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AdminAccess:
    """The ways to the operator's pages: beside the API, and on a listener of their own."""

    beside_api: AdminAuth
    own: AdminAuth


def find_admin_access(settings: Settings) -> AdminAccess:
    """Return who may see the operator's pages. Raises BadSettings where anybody could."""
    admin = settings.admin
    try:
        key = read_secret(admin.key_env, None)
    except BadSecret as error:
        raise BadSettings(f"admin.key_env: {error}") from None
    if admin.listen is None:
        # Where clients need keys, one of them must not see by being near what all of them do.
        is_open = key is None and is_private(settings) and not settings.auth.asks_for_keys
        return AdminAccess(AdminAuth(is_open, key, is_local=True), AdminAuth())
    host = parse_listen(admin.listen)[0]
    if key is not None and admin.open:
        raise BadSettings("admin.open: a key is asked for, as there is admin.key_env")
    if key is None and not (admin.open or is_loopback(host)):
        raise BadSettings(
            f"admin.key_env: not set, and {host} of admin.listen can be reached from elsewhere; set it, listen on "
            "127.0.0.1, or say admin.open: true"
        )
    return AdminAccess(AdminAuth(), AdminAuth(key is None, key, is_local=not admin.open))


def is_private(settings: Settings) -> bool:
    """Say whether only this machine's own requests come to the API: no proxy hands on those of others."""
    return is_loopback(parse_listen(settings.listen)[0]) and not settings.trusted_proxies


def read_tls(settings: Settings) -> Tls | None:
    """Return the files of TLS, which can be used; None: there are none. Raises BadSettings."""
    if settings.tls is None:
        return None
    tls = Tls(settings.tls.cert_file, settings.tls.key_file, settings.tls.client_ca_file)
    try:
        tls.check()
    except BadTls as error:
        raise BadSettings(f"tls.{error}") from None
    return tls


def check_exposure(settings: Settings, host: str) -> None:
    """Refuse to be open to others than this machine unless that is said, and warn of it. Raises BadSettings."""
    if settings.auth.asks_for_keys:
        return
    if settings.trusted_proxies and not settings.auth.open:
        raise BadSettings(
            "auth.secret_env: not set, and trusted_proxies hand on the requests of others; or say auth.open: true"
        )
    if not (settings.auth.open or is_loopback(host)):
        raise BadSettings(
            f"auth.secret_env: not set, so no keys are asked for, and {host} can be reached from elsewhere; set it (or "
            "auth.secret_file), listen on 127.0.0.1, or say auth.open: true"
        )
    log.warning("NO API KEYS ARE ASKED FOR: whoever reaches %s may use this gateway (see auth.secret_env)", host)
