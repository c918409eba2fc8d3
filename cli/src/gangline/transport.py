"""HTTP to the gateway: the token on every request, bounded retries, problems as CliError."""

from __future__ import annotations

import os
import re
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from gangline.errors import CliError, ExitCode
from gangline.sse import ComeLaterError, ServerEvent, follow
from gangline_service.loopback import is_loopback

CA_VARIABLE = "GANGLINE_CA_FILE"
CONNECT_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 30.0
SILENCE_TIMEOUT_S = 60.0
"""The gateway sends a comment at least this often on a quiet stream."""
RETRIES = 6
RETRY_DELAY_S, LONGEST_DELAY_S, LONGEST_WAIT_S = 0.5, 5.0, 30.0
HTML = "text/html"
_AWAY = frozenset({502, 503, 504})
_TOO_MANY = 429
_LATER = _AWAY | {_TOO_MANY}
_USAGE = frozenset({400, 413, 422})
_UP_HINT = "is the platform up? start it here with: gangline up"

Params = Mapping[str, str | int | float | bool | list[str] | None]


class Transport:
    """One connection pool to one gateway. May be shared by threads."""

    def __init__(
        self,
        url: str,
        token: str,
        *,
        notice: Callable[[str], None] = lambda _: None,
        sleep: Callable[[float], None] = time.sleep,
        unencrypted: bool = False,
        ca: Path | None = None,
    ) -> None:
        """Raises CliError for no URL or token, and when the token would travel unencrypted.

        `unencrypted` allows that: the operator chose the URL, for the cluster's own network.
        `ca`: a PEM file of the authority of its certificate; None: the one that GANGLINE_CA_FILE
        names, else the system's.
        """
        self.url = url.strip().rstrip("/")
        token = token.strip()  # that of a file often ends with a line
        if not all("!" <= letter <= "~" for letter in token):
            raise CliError(
                "the token holds letters that no token has", "copy it again", ExitCode.USAGE
            )
        loopback = _check_url(self.url, unencrypted=unencrypted)
        self._notice = notice
        self._sleep = sleep
        self._answered = False
        self._client = httpx.Client(
            base_url=self.url,
            headers={"Authorization": f"Bearer {token}"} if token else {},
            timeout=httpx.Timeout(ANSWER_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            trust_env=not loopback,  # a proxy of the environment does not reach this machine
            verify=_trusted(ca) if self.url.startswith("https:") else False,
        )

    def close(self) -> None:
        """Close all connections."""
        self._client.close()

    def call(
        self,
        method: str,
        path: str,
        *,
        params: Params | None = None,
        body: Any = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        repeatable: bool | None = None,
    ) -> Any:
        """The JSON answer, or the text of a page when the headers accept HTML alone.

        Requests that may be sent twice are tried again while it is away: GET and PUT may be,
        POST only when `repeatable` says so. Any is sent again when it came too soon (429). The
        pause is at least what the gateway asks for, up to 30 s. Raises CliError.
        """
        again = method in {"GET", "PUT"} if repeatable is None else repeatable
        return _content(
            self._answer(
                again,
                method,
                path,
                params=_set_only(params),
                json=body,
                content=content,
                headers={"Accept": "application/json", **(headers or {})},
            )
        )

    def download(self, path: str, params: Params, target: Path) -> None:
        """Write the body of a route to a file. Raises CliError and OSError."""
        answer = self._answer(True, "GET", path, streamed=True, params=_set_only(params))
        try:
            if not answer.is_success:
                answer.read()
                raise problem_of(answer)
            with target.open("wb") as file:
                for part in answer.iter_bytes():
                    file.write(part)
        except httpx.TransportError as error:
            raise CliError(f"no answer from {self.url}: {type(error).__name__}", _UP_HINT) from None
        finally:
            answer.close()

    def pages(self, path: str, params: Params) -> Iterator[bytes]:
        """The bodies of a route whose header Link names the next page. Raises CliError."""
        asked: dict[str, Any] = {"params": _set_only(params)}
        while True:
            answer = self._answer(True, "GET", path, **asked)
            if not answer.is_success:
                raise problem_of(answer)
            yield answer.content
            following = answer.links.get("next")
            if following is None:
                return
            path, asked = following["url"], {}

    def _answer(
        self, again: bool, method: str, path: str, *, streamed: bool = False, **asked: Any
    ) -> httpx.Response:
        """The answer, when all that says "later" are over; see `call`.

        `streamed`: its body is not read yet, and the caller closes it.
        """
        for retry in range(RETRIES + 1):
            least_s, retries = 0.0, RETRIES if again else 0
            try:
                request = self._client.build_request(method, path, **asked)
                answer = self._client.send(request, stream=streamed)
                if answer.status_code in _LATER:
                    answer.read()
            except httpx.ConnectError as error:
                failure = _unreached(self.url, error)
                if not self._answered:  # it is not restarting: it was never there
                    raise failure from None
            except httpx.TransportError as error:
                failure = CliError(f"no answer from {self.url}: {type(error).__name__}", _UP_HINT)
            else:
                self._answered = True
                if answer.status_code not in _LATER:
                    return answer
                failure = problem_of(answer)
                least_s = retry_after_s(answer)
                if answer.status_code == _TOO_MANY:
                    retries = RETRIES
            if retry >= retries:
                raise failure
            delay_s = max(least_s, min(LONGEST_DELAY_S, RETRY_DELAY_S * 2**retry))
            self._notice(f"{failure.message}; trying again in {delay_s:g} s")
            self._sleep(delay_s)
        raise AssertionError  # the loop returns or raises

    def send(
        self,
        method: str,
        path: str,
        *,
        timeout_s: float,
        params: Params | None = None,
        content: bytes | Iterator[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        """One request, sent once, and its answer, whatever it is. Raises httpx.TransportError."""
        return self._client.request(
            method,
            path,
            params=_set_only(params),
            content=content,
            headers=headers,
            timeout=httpx.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S),
        )

    def events(
        self, path: str, params: Params | None = None, *, after: str = ""
    ) -> Iterator[ServerEvent]:
        """Server-sent events of a route, resumed where a broken connection ended."""

        @contextmanager
        def open_stream(last_id: str) -> Iterator[Iterator[str]]:
            headers = {"Accept": "text/event-stream"}
            if last_id:
                headers["Last-Event-ID"] = last_id
            with self._client.stream(
                "GET",
                path,
                params=_set_only(params),
                headers=headers,
                timeout=httpx.Timeout(SILENCE_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            ) as answer:
                if answer.status_code in _LATER:
                    raise ComeLaterError(answer.status_code, retry_after_s(answer))
                if answer.is_error:
                    answer.read()
                    raise problem_of(answer)
                self._answered = True
                yield answer.iter_lines()

        return follow(open_stream, notice=self._notice, after=after, sleep=self._sleep)


def _trusted(ca: Path | None) -> ssl.SSLContext | bool:
    """The authorities to trust: True for the usual ones, which take long to load.

    Raises CliError.
    """
    file = ca or os.environ.get(CA_VARIABLE, "")
    if not file:
        return True
    try:
        return ssl.create_default_context(cafile=file)
    except OSError as error:
        raise CliError(
            f"{file}: is no PEM file of an authority: {error}",
            f"give the file of the gateway's authority, by {CA_VARIABLE} or --ca",
            _BAD_URL,
        ) from None


def retry_after_s(answer: httpx.Response) -> float:
    """The pause that an answer asks for, in seconds up to 30; 0: none."""
    text = answer.headers.get("retry-after", "")
    seconds = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
    return min(LONGEST_WAIT_S, float(seconds))


def problem_of(answer: httpx.Response) -> CliError:
    """A problem+json answer as the error that the user sees."""
    try:
        problem = answer.json()
    except ValueError:
        problem = None
    if not isinstance(problem, dict):
        problem = {}
    said = problem.get("detail") or problem.get("message") or problem.get("title")
    text = _option(said or f"status {answer.status_code}")  # `message` is MLflow's
    errors = problem.get("errors")
    for item in errors if isinstance(errors, list) else []:
        line = _option(f"{item.get('field', '?')}: {item.get('message', '?')}")
        if line != text:  # a single error is the detail itself
            text += f"\n  {line}"
    unknown_route = str(problem.get("type", "")).endswith(":no-such-route")
    if unknown_route or (answer.status_code == httpx.codes.NOT_FOUND and not problem):
        return CliError(
            f"{answer.url.path}: {text}", "check --url; is the gateway older than this?"
        )
    hint = _where_to_look(answer.url.path) if answer.status_code == _GONE else ""
    status = answer.status_code
    return CliError(text, hint or _hint(status), _code(status), status=status)


def _option(text: object) -> str:
    """A message about a request's field, with the command's name of it: query.state.0 is state."""
    return re.sub(r"^(?:query|path)\.(\w+)(?:\.\d+)?: ", r"\1: ", str(text))


def _where_to_look(path: str) -> str:
    """The command that lists what was asked for, when no such thing exists."""
    parts = path.strip("/").removeprefix("v1/").split("/")
    if parts[0] in {"training-jobs", "training-runs"} and len(parts) > 1:
        if "checkpoints" in parts[2:-1]:
            return f"its steps: gangline checkpoints {parts[1]}"
        return f"the ids of jobs: gangline list --name {parts[1]}"
    lists = {"runs": "gangline runs", "nodes": "gangline nodes"}
    return f"see: {lists[parts[0]]}" if parts[0] in lists else ""


def _hint(status: int) -> str:
    if status == httpx.codes.UNAUTHORIZED:
        return "sign in: gangline login; or set GANGLINE_TOKEN, or --data-dir to the platform's"
    if status == httpx.codes.FORBIDDEN:
        return "this token may not do that; `gangline teams` lists the teams that it sees"
    if status in _AWAY:
        return "a part of the platform is away; its logs are in the data directory"
    return ""


def _code(status: int) -> ExitCode:
    if status == httpx.codes.NOT_FOUND:
        return ExitCode.NOT_FOUND
    return ExitCode.USAGE if status in _USAGE else ExitCode.TOOL_ERROR


def _content(answer: httpx.Response) -> Any:
    if answer.is_error:
        raise problem_of(answer)
    if not answer.is_success:
        raise CliError(
            f"{answer.url.host} answered with status {answer.status_code}",
            "check --url: it must be the gateway itself",
        )
    if not answer.content:
        return None
    if answer.request.headers["Accept"] == HTML:
        if not answer.headers.get("content-type", "").startswith(HTML):
            raise CliError(f"{answer.url.path} gave no page", "is the gateway older than this?")
        return answer.text
    try:
        return answer.json()
    except (ValueError, RecursionError):
        raise CliError(
            f"{answer.url} is no Gangline gateway: its answer is not JSON", "check --url"
        ) from None


def _unreached(url: str, error: httpx.ConnectError) -> CliError:
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return CliError(
            f"the certificate of {url} is not by a known authority, or is of another host",
            f"set {CA_VARIABLE} to the PEM file of the gateway's authority",
        )
    return CliError(f"nothing answers at {url}", _UP_HINT)


def _check_url(url: str, *, unencrypted: bool) -> bool:
    """Whether the URL is of this machine. Raises CliError when it must not get a token."""
    try:
        parts = urlsplit(url)
        is_one = parts.scheme in {"http", "https"} and bool(httpx.URL(url).host)
        is_one = is_one and parts.port != 0  # above 65,535 it raises ValueError
    except (ValueError, httpx.InvalidURL):  # a name that no host can have, too
        is_one = False
    if not is_one or parts.hostname is None:
        raise CliError(
            f"{url} is not a URL", "write it as http://127.0.0.1:PORT or https://HOST", _BAD_URL
        )
    loopback = is_loopback(parts.hostname)
    if parts.scheme == "http" and not (loopback or unencrypted):
        raise CliError(
            f"{url} is not encrypted: the token would be readable on the way",
            "use https://, or a tunnel to a port of this machine",
            _BAD_URL,
        )
    return loopback


_BAD_URL = ExitCode.USAGE
_GONE = httpx.codes.NOT_FOUND


def _set_only(params: Params | None) -> dict[str, Any]:
    return {name: value for name, value in (params or {}).items() if value is not None}
