"""Requests to a hub: redirects are followed by hand, so that a token goes to the hub and nowhere else, and what may pass
by itself (a lost connection, an overloaded server) is told apart from what will not."""

from __future__ import annotations

import http.client
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, TypeVar
from urllib.parse import urljoin, urlsplit

import requests
import urllib3
from urllib3.exceptions import HTTPError, NameResolutionError
from urllib3.exceptions import SSLError as TlsError
from urllib3.util.retry import Retry

from gemma4web import __version__
from gemma4web.errors import FetchError, UsageError
from gemma4web.export.hub_name import PORTS, normal_endpoint
from gemma4web.toolchain.progress import SetUpProgress

NETWORK: Final = "check the network and the proxy variables, then run the command again; what was fetched is kept"
_PASSING: Final = (408, 425, 429, 500, 502, 503, 504)
T = TypeVar("T")


def shown_host(url: str) -> str:
    """The host and port of an address, fit for a terminal: an address that a server sent may hold anything."""
    return re.sub(r"[^\w.:\[\]-]", "?", urlsplit(url).netloc.rpartition("@")[2], flags=re.ASCII)


def shown_status(answer: requests.Response) -> str:
    """Status and its usual phrase; the server's own may hold anything."""
    return f"{answer.status_code} {http.client.responses.get(answer.status_code, '')}".rstrip()


def token_of(text: str | None) -> str | None:
    """What HF_TOKEN holds, without the line end of the file that it came from. Raises UsageError when it is no token."""
    token = (text or "").strip()
    if not re.fullmatch(r"[!-~]*", token):
        raise UsageError("HF_TOKEN holds a character that no token has", advice="set it to the token alone")
    return token or None


class TransientError(Exception):
    """A failure that another attempt may not meet; ``wait_s`` is what the server asked for, 0 when it named nothing."""

    def __init__(self, message: str, *, wait_s: float = 0.0) -> None:
        super().__init__(message)
        self.wait_s = wait_s


@dataclass(frozen=True, kw_only=True, slots=True)
class Patience:
    """How long anything is waited for. A transfer slower than ``least_bytes_per_s`` over ``slow_s`` has failed.

    ``attempts``: failures in a row, with little or nothing transferred between them, after which it is given up.
    """

    connect_s: float = 10.0
    read_s: float = 30.0
    attempts: int = 5
    backoff_s: float = 1.0
    longest_wait_s: float = 300.0
    slow_s: float = 60.0
    least_bytes_per_s: float = 1024.0
    redirects: int = 8


class _Session(requests.Session):
    def get_redirect_target(self, resp: requests.Response) -> str | None:
        """None: otherwise requests reads the body of a redirect to its end, however long, before anybody is asked."""
        return None


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or PORTS.get(parts.scheme)


def _reason(error: BaseException, patience: Patience) -> str:
    """What lies behind an exception of requests or urllib3, without any address: one may hold a signature."""
    if isinstance(error, requests.ConnectTimeout):
        return f"no connection within {patience.connect_s:.3g} s"
    if isinstance(error, requests.ReadTimeout | urllib3.exceptions.ReadTimeoutError | TimeoutError):
        return f"nothing came for {patience.read_s:.3g} s"
    seen: set[int] = set()
    pending: list[object] = [error]
    while pending:
        cause = pending.pop(0)
        if not isinstance(cause, BaseException) or id(cause) in seen:
            continue
        seen.add(id(cause))
        if isinstance(cause, urllib3.exceptions.IncompleteRead | http.client.IncompleteRead):
            return "the connection ended too early"
        if isinstance(cause, NameResolutionError):
            return "its name is not known here"
        if isinstance(cause, TimeoutError):
            return f"nothing came for {patience.read_s:.3g} s"
        if isinstance(cause, OSError) and cause.strerror and not isinstance(cause, requests.RequestException):
            return cause.strerror.lower()
        pending += [*cause.args, getattr(cause, "reason", None), cause.__cause__, cause.__context__]
    return f"the connection broke ({type(error).__name__})"


class Transport:
    """Asks one hub. ``token`` goes only to the origin of ``endpoint``. ``progress`` is told of waits and retries."""

    def __init__(self, endpoint: str, *, token: str | None = None, progress: SetUpProgress,
                 patience: Patience | None = None) -> None:
        self.endpoint = normal_endpoint(endpoint)
        self.has_token = token is not None
        self.patience = patience or Patience()
        self.progress = progress
        self._token = token
        self._session = _Session()
        self._session.headers["User-Agent"] = f"gemma4web/{__version__}"
        self._session.headers["Accept-Encoding"] = "identity"

    def close(self) -> None:
        self._session.close()

    @property
    def host(self) -> str:
        return shown_host(self.endpoint)

    def is_own(self, url: str) -> bool:
        """Whether an address is one of the hub itself."""
        return _origin(url) == _origin(self.endpoint)

    def _sign(self, url: str) -> Callable[[requests.PreparedRequest], requests.PreparedRequest]:
        """Adds the token for the hub alone. Given for other hosts too, as requests would else look into ~/.netrc."""
        def sign(request: requests.PreparedRequest) -> requests.PreparedRequest:
            if self._token and self.is_own(url):
                request.headers["Authorization"] = f"Bearer {self._token}"
            return request
        return sign

    @contextmanager
    def open(self, url: str, headers: Mapping[str, str] | None = None) -> Iterator[requests.Response]:
        """The answer at the end of the redirects, its body unread, with a status that does not pass by itself.

        Raises TransientError, and FetchError for redirects that lead nowhere.
        """
        answer = self._follow(url, dict(headers or {}))
        try:
            if answer.status_code in _PASSING or (answer.status_code == 403 and not self.is_own(answer.url)):
                wait_s = 0.0
                try:
                    wait_s = Retry().get_retry_after(answer.raw) or 0.0
                except urllib3.exceptions.InvalidHeader:
                    pass
                raise TransientError(f"{shown_host(answer.url)} answered {shown_status(answer)}", wait_s=wait_s)
            yield answer
        finally:
            answer.close()

    def _follow(self, url: str, headers: dict[str, str]) -> requests.Response:
        for _ in range(self.patience.redirects + 1):
            host = shown_host(url)
            try:
                answer = self._session.get(url, headers=headers, auth=self._sign(url), stream=True, allow_redirects=False,
                                           timeout=(self.patience.connect_s, self.patience.read_s))
            except requests.exceptions.SSLError as error:
                raise FetchError(f"{host} cannot be trusted: {self._tls_reason(error)}",
                                 advice="check the clock and the certificates of this machine, or of the proxy in between"
                                 ) from None
            except (requests.exceptions.InvalidURL, requests.exceptions.InvalidSchema, UnicodeError):
                raise FetchError(f"{host} is no host's name", advice=NETWORK) from None
            except (requests.RequestException, HTTPError, OSError) as error:
                raise TransientError(f"{host}: {_reason(error, self.patience)}") from None
            if not answer.is_redirect:
                return answer
            answer.close()
            try:
                target = urljoin(url, answer.headers["Location"].encode("latin-1").decode())  # as requests reads it
                scheme = urlsplit(target).scheme
            except ValueError:
                scheme = ""
            if scheme not in PORTS:
                raise FetchError(f"{host} redirects to an address that is none of http", advice=NETWORK)
            if urlsplit(url).scheme == "https" and scheme != "https":
                raise FetchError(f"{host} redirects from https to http", advice=NETWORK)
            url = target
        raise FetchError(f"{self.host} redirects more than {self.patience.redirects} times",
                         advice="check the address in HF_ENDPOINT or --hub, and the proxy in between")

    @staticmethod
    def _tls_reason(error: BaseException) -> str:
        cause: object = error
        while isinstance(cause, BaseException) and cause.args and isinstance(cause.args[0], BaseException):
            cause = getattr(cause.args[0], "reason", None) or cause.args[0]
        return str(getattr(cause, "verify_message", "") or (type(cause).__name__ if isinstance(cause, TlsError) else cause))

    def blocks(self, answer: requests.Response, size: int) -> Iterator[bytes]:
        """The body as it comes, in blocks of at most ``size`` bytes, undecoded.

        Raises TransientError when the connection breaks, falls silent or only drips.
        """
        patience, since, received = self.patience, time.monotonic(), 0
        while True:
            try:
                block = answer.raw.read1(size, decode_content=False)
            except (requests.RequestException, HTTPError, OSError) as error:
                raise TransientError(f"{shown_host(answer.url)}: {_reason(error, patience)}") from None
            if not block:
                return
            yield block
            received += len(block)
            passed = time.monotonic() - since
            if passed >= patience.slow_s:
                if received < patience.least_bytes_per_s * passed:
                    raise TransientError(f"{shown_host(answer.url)}: only {received / passed:.0f} bytes a second came")
                since, received = time.monotonic(), 0

    def pause(self, error: TransientError, failures: int, what: str) -> None:
        """Waits before attempt ``failures + 1``. Raises FetchError when there is none, or the wait is too long."""
        patience = self.patience
        if failures >= patience.attempts:
            raise FetchError(f"{what} could not be fetched in {failures} attempts; the last one: {error}",
                             advice=NETWORK) from None
        if error.wait_s > patience.longest_wait_s:
            raise FetchError(f"{what}: {error}, and asks to wait for {error.wait_s:.0f} s",
                             advice=f"run the command again after {error.wait_s:.0f} s; a token in HF_TOKEN raises the hub's "
                                    "limits") from None
        wait_s = max(error.wait_s, patience.backoff_s * 2.0 ** (failures - 1))
        self.progress.line(f"{what}: {error}; attempt {failures + 1} of {patience.attempts} in {wait_s:.3g} s")
        time.sleep(wait_s)

    def retried(self, what: str, attempt: Callable[[], T]) -> T:
        """The result of ``attempt``, which is called again after a transient failure. Raises what it raises."""
        failures = 0
        while True:
            try:
                return attempt()
            except TransientError as error:
                failures += 1
                self.pause(error, failures, what)
