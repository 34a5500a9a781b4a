"""Every option of the server, the limits of a request, and the errors for exceeding them.

Options are the flags of `gemel serve`, with their environment variables and defaults. Bytes and JSON are counted while
a body arrives (`connection.py`); the texts of a parsed body are checked by `Limits.check_texts` in its route, and
tokens by `Limits.check_tokens` where they are counted.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args
from urllib.parse import urlsplit

from gemel.errors import InputError, WorkError
from gemel.options import EngineName, Precision, parse_bytes

LogFormat = Literal["json", "text", "none"]
ANY_ORIGIN = "*"
_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Of one request, unless stated otherwise."""

    body_bytes: int = 16_000_000
    """Bytes of a request's body."""
    texts: int = 2048
    """Texts in one request."""
    characters: int = 200_000
    """Characters of one text."""
    tokens: int = 500_000
    """Tokens of one request, all texts together, before the model's own cut."""
    json_depth: int = 20
    """Brackets within brackets."""
    pair_texts: int = 20_000
    """Texts in one request for pairs or clusters."""
    queue_tokens: int = 1_000_000
    """Tokens that wait, all requests together; over it: 429."""
    client_jobs: int = 16
    """Long computations (pairs, clusters, a cross-encoder, writes) of one client that run or wait; over it: 429."""
    seconds: float = 60.0
    """Until a request is answered or given up."""

    def check_texts(self, texts: Sequence[str], name: str, most: int | None = None) -> None:
        """Refuse an empty list, too many texts, or one that is too long.

        `name` is the field of the request; `most`: how many texts it may have, if not `self.texts`.
        """
        allowed = self.texts if most is None else most
        if not texts:
            raise InputError(f"{name} is empty: give at least one text")
        if len(texts) > allowed:
            raise TooLarge(
                f"{name} has {len(texts):,} texts; one request takes at most {allowed:,}. Send several"
            )
        for position, text in enumerate(texts):
            if len(text) > self.characters:
                raise TooLarge(
                    f"{name}[{position}] has {len(text):,} characters; a text takes at most {self.characters:,}"
                )

    def check_tokens(self, tokens: int, *, all_counted: bool = True) -> None:
        """Refuse more tokens than one request may have. `all_counted` False: counting stopped before the end."""
        if tokens > self.tokens:
            if all_counted:
                raise TooLarge(f"the request has {tokens:,} tokens, at most {self.tokens:,} are taken")
            raise TooLarge(
                f"the request has more than {self.tokens:,} tokens, which is the most that is taken. Send several"
            )

    # The limits of a body's JSON are derived: raising a limit above also raises what must be let through for it.

    @property
    def json_strings(self) -> int:
        """Strings of a body, names of fields included: a hundred for each document, or the texts of pairs."""
        return max(100 * self.texts, 2 * self.pair_texts)

    @property
    def json_containers(self) -> int:
        """Lists and objects of a body: ten for each text."""
        return max(10 * self.texts, 1000)

    @property
    def json_values(self) -> int:
        """Values of a body: token ids, or strings."""
        return max(self.tokens, self.json_strings) + 1000

    @property
    def json_characters(self) -> int:
        """Characters in all strings of a body: eight for each token."""
        return max(8 * self.tokens, 2 * self.characters)

    @property
    def json_bare_bytes(self) -> int:
        """Bytes of a body that are neither in strings nor structure: ten for each number."""
        return 10 * self.json_values


class Overloaded(WorkError):
    """Too much is waiting; `retry_after` seconds later there may be room."""

    code = "GEM-604"

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class DeadlineExceeded(WorkError):
    """The deadline of a request passed before its answer."""

    code = "GEM-604"


def deadline_message(seconds: float) -> str:
    """The message of DeadlineExceeded."""
    return f"the answer was not ready within {seconds:g} s. Send fewer texts at once, or try again later"


class EncodeFailed(WorkError):
    """The engine failed at one text; the others are not affected."""


class TooLarge(InputError):
    """A request over one of the limits."""

    code = "GEM-603"


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """How a server runs. Every limit has a stated default."""

    name: str | None = None
    """The name of the model for clients. None: as it was given on the command line."""
    accept_token_ids: bool = False
    """Clients may send token ids of the model's own vocabulary to /v1/embeddings instead of texts. Ids of tiktoken,
    which some clients send by default, mean other words."""
    task: str | None = None
    """Of a model with adapters for several tasks, such as jina-embeddings-v3: the one to use. None: those for both
    sides of a search."""
    precision: Precision = "float32"
    """Numbers used in the computation: float32, bfloat16 (float32 where the processor cannot) or int8 (fastest, nearly
    as good)."""
    engine: EngineName = "auto"
    """What runs the network."""
    index: tuple[str, ...] = ()
    """An index that clients may search and change: LOCATION, or NAME=LOCATION."""
    snapshots: Path | None = None
    """A folder for the snapshots of indexes that clients request; those of an index are in a folder of its name. None:
    clients cannot make any."""
    rerank: str | None = None
    """A cross-encoder that reranks answers. None: the model of `late` does, else the cosine of the model."""
    sparse: str | None = None
    """A sparse encoder (SPLADE) for /embed_sparse, /v1/sparse and searches by its weights of words: its folder or
    name."""
    late: str | None = None
    """A model for late interaction (ColBERT) that reranks answers, and searches by vectors of tokens: its folder or
    name."""
    host: str = "127.0.0.1"
    """The address to listen on. Another one than this machine's own needs API keys, or `insecure`."""
    port: int = 8080
    """The port to listen on; 0 takes a free one."""
    threads: int | None = None
    """CPU cores to use. None: all that the process may use."""
    api_key_file: Path | None = None
    """A file of API keys, one per line: KEY, NAME:KEY or NAME:KEY:REQUESTS_PER_MINUTE; NAME:KEY:read-only may not
    change an index. Also GEMEL_API_KEYS."""
    requests_per_minute: float | None = None
    """Requests per minute of each key, unless its line in the file states another number. None: no limit."""
    insecure: bool = False
    """Listen on any address without API keys, for networks that are guarded by other means."""
    allowed_host: tuple[str, ...] = ()
    """A further name that requests may call this server by, when it listens on this machine only."""
    cors_origin: tuple[str, ...] = ()
    """A web origin, such as https://example.org, whose pages may call this server; * lets every page do so."""
    max_queue_tokens: int = Limits.queue_tokens
    """Tokens that may wait, all requests together; over it requests are refused with 429."""
    max_body: int | str = Limits.body_bytes
    """Bytes of a request's body."""
    max_texts: int = Limits.texts
    """Texts in one request."""
    max_characters: int = Limits.characters
    """Characters of one text."""
    max_tokens: int = Limits.tokens
    """Tokens of one request, all texts together, before the model's own cut."""
    max_pair_texts: int = Limits.pair_texts
    """Texts in one request for pairs or clusters."""
    max_client_jobs: int = Limits.client_jobs
    """Long computations (pairs, clusters, a cross-encoder, writes) of one client that run or wait; over it 429."""
    request_seconds: float = Limits.seconds
    """Until a request is answered or given up."""
    body_seconds: float = 20.0
    """Until a request's body has arrived."""
    vector_cache: int | str = "64MB"
    """Memory for vectors of recent texts; 0 keeps none."""
    memory_limit: int | str | None = None
    """Memory of the process: at 90 % of it new work is refused, over it the process ends to be restarted. None: new
    work is refused at 90 % of the limit of the container, where there is one."""
    grace_seconds: float = 20.0
    """After SIGTERM, the time that running requests have to finish."""
    ready_seconds: float = 10.0
    """How old the last forward pass may be for /health/ready; an older one is repeated."""
    ssl_certfile: Path | None = None
    """A certificate (PEM): the server speaks HTTPS."""
    ssl_keyfile: Path | None = None
    """The certificate's private key (PEM), where it is not in the same file."""
    log: LogFormat = "json"
    """A line for each request on standard error, without its texts: json, text or none."""

    def __post_init__(self) -> None:
        if self.log not in get_args(LogFormat):
            raise InputError(f"log must be one of {', '.join(get_args(LogFormat))}, got {self.log!r}")
        if not 0 <= self.port <= 65535:
            raise InputError(f"port must be from 0 to 65535, got {self.port}")
        if self.ssl_keyfile and not self.ssl_certfile:
            raise InputError("ssl_keyfile was given without ssl_certfile. Give the certificate too")
        for name in ("request_seconds", "body_seconds", "ready_seconds"):
            if getattr(self, name) <= 0:
                raise InputError(f"{name} must be more than 0, got {getattr(self, name)}")
        for name in (
            "threads",
            "max_queue_tokens",
            "max_texts",
            "max_characters",
            "max_tokens",
            "max_pair_texts",
            "max_client_jobs",
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} must be at least 1, got {value}")
        for origin in self.cors_origin:
            check_origin(origin)
        parse_bytes(self.max_body)
        self.memory_bytes, self.cache_bytes  # noqa: B018 - a size that cannot be parsed is refused here

    @property
    def limits(self) -> Limits:
        """The limits of one request."""
        return Limits(
            body_bytes=parse_bytes(self.max_body),
            texts=self.max_texts,
            characters=self.max_characters,
            tokens=self.max_tokens,
            pair_texts=self.max_pair_texts,
            queue_tokens=self.max_queue_tokens,
            client_jobs=self.max_client_jobs,
            seconds=self.request_seconds,
        )

    @property
    def cache_bytes(self) -> int:
        return 0 if self.vector_cache in (0, "0") else parse_bytes(self.vector_cache)

    @property
    def memory_bytes(self) -> int | None:
        return None if self.memory_limit is None else parse_bytes(self.memory_limit)

    @property
    def loopback(self) -> bool:
        """Only programs of this machine can reach the server."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def check_origin(origin: str) -> None:
    """Refuse what no browser ever sends as an Origin: such an option would silently do nothing."""
    if origin != ANY_ORIGIN and (origin != _origin_as_sent(origin) or set(origin) & set(" *")):
        raise InputError(
            f"cors_origin {origin!r} can never match. Write scheme://host or scheme://host:port as a browser sends it "
            "(lower case, punycode, no path, no default port), such as https://example.org, or * for every page"
        )


def _origin_as_sent(url: str) -> str | None:
    """The origin of a URL as browsers send it; None: it has none."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    if not parts.scheme or not parts.hostname or not url.isascii():
        return None
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    shown = port is not None and port != _DEFAULT_PORTS.get(parts.scheme)
    return f"{parts.scheme}://{host}" + (f":{port}" if shown else "")
