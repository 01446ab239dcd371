"""The settings of the HTTP process, without those of the engine."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from octavo_engine.config.adapters import check_sources
from octavo_engine.config.setting import check_ranges, setting
from octavo_engine.errors import ConfigurationError
from octavo_engine.output_parsing.formats import FORMATS

_ORIGIN = re.compile(r"""\*|null|[a-z][a-z0-9+.-]*://[^*/?#@\sA-Z"']+""")
"""The values of --allowed-origins. Browsers compare origins letter by letter, so another value would have no effect."""


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """Settings of the HTTP process: the server's own, without those of the engine."""

    host: str = setting(
        "0.0.0.0", "str", "address to listen on; :: stands for all IPv6 and IPv4 addresses", metavar="ADDRESS"
    )
    port: int = setting(8000, "int", "port to listen on", minimum=1, maximum=65_535)
    metrics_port: int | None = setting(
        None,
        "int",
        "port that answers only /metrics and the probes, without keys; /metrics is then not answered on --port",
        minimum=1,
        maximum=65_535,
    )
    max_connections: int = setting(
        4096, "int", "maximum number of client connections; probes do not count", minimum=8, maximum=1_000_000
    )
    served_model_name: list[str] = setting(
        [], "str", "name of the model in the API; repeat for aliases; default: MODEL", metavar="NAME", repeated=True
    )
    api_key_file: Path | None = setting(
        None, "path", "YAML file or folder of API keys; without it the API is open", metavar="PATH"
    )
    allowed_origins: list[str] = setting(
        [],
        "str",
        'origins whose pages may use the API (CORS), or *; also as JSON, ["https://…"]; none unless given',
        metavar="ORIGIN",
        repeated=True,
    )
    allowed_methods: list[str] = setting(
        ["*"],
        "str",
        "HTTP methods that pages of --allowed-origins may use, or *; also as JSON",
        metavar="METHOD",
        repeated=True,
    )
    allowed_headers: list[str] = setting(
        ["*"],
        "str",
        "headers that pages of --allowed-origins may send, or *; also as JSON",
        metavar="HEADER",
        repeated=True,
    )
    allow_credentials: bool = setting(
        False, "bool", "let pages of --allowed-origins send cookies; this server reads none"
    )
    lora_modules_file: Path | None = setting(
        None,
        "path",
        "JSON file that lists adapters, written by `octavo-engine adapters`; it is read again when it changes",
        metavar="FILE",
    )
    lora_sources: list[str] = setting(
        [],
        "str",
        "where clients may load adapters from (/v1/load_lora_adapter): folders, owners or ids at Hugging Face, "
        "s3://bucket/prefix; from anywhere unless given",
        metavar="SOURCE",
        repeated=True,
    )
    tool_call_parser: str = setting(
        "auto",
        "str",
        "format in which the model writes tool calls; auto: as its chat template shows",
        choices=("auto", *FORMATS),
    )
    max_queued_requests: int = setting(
        1024, "int", "maximum number of waiting requests; further ones are answered 503", minimum=0, maximum=1_000_000
    )
    max_queue_seconds: float = setting(
        30.0,
        "float",
        "longest wait in the queue; requests that may wait longer (4/3 of what is expected) are answered 503 at once",
        minimum=0.1,
        maximum=86_400,
    )
    max_queued_tokens: int = setting(
        1_000_000,
        "int",
        "maximum number of waiting prompt tokens; further requests are answered 503",
        minimum=0,
        maximum=1 << 40,
    )
    max_kv_commitment: float = setting(
        4.0,
        "float",
        "maximum number of KV tokens that accepted requests may need, as a multiple of the KV cache; further requests "
        "are answered 503",
        minimum=0.1,
        maximum=1_000_000,
    )
    max_key_share: float = setting(
        0.5,
        "float",
        "part of --max-queued-… and --max-kv-commitment that one of several API keys may take; more is answered 429",
        minimum=0.01,
        maximum=1.0,
    )
    request_timeout: float = setting(
        600.0,
        "float",
        "seconds that a request may take, including its wait; a request may set less",
        minimum=0.001,
        maximum=86_400,
    )
    drain_timeout: float = setting(
        120.0, "float", "seconds that running answers have to finish after SIGTERM", minimum=0, maximum=86_400
    )
    max_request_bytes: int = setting(
        8 << 20, "size", "largest request body", minimum=1024, maximum=1 << 30, metavar="SIZE"
    )
    batch_storage: Path | None = setting(
        None,
        "path",
        "folder for files and batches, which no other server may use; without it /v1/files and /v1/batches are off",
        metavar="FOLDER",
    )
    batch_storage_size: int = setting(
        4 << 30,
        "size",
        "maximum size of all files in --batch-storage",
        minimum=1 << 20,
        maximum=1 << 50,
        metavar="SIZE",
    )
    playground: bool = setting(True, "bool", "serve a page at / that chats with the model")
    vllm_metrics: bool = setting(True, "bool", "export the vllm:* metric names beside octavo_*")
    otlp_traces_endpoint: str | None = setting(
        None,
        "str",
        "where to send spans of requests: a collector's URL of OTLP over HTTP; without it no spans are sent",
        metavar="URL",
    )
    log_format: str = setting("text", "str", "format of log lines", choices=("text", "json"))

    def __post_init__(self) -> None:
        check_ranges(self)
        check_sources(self.lora_sources)
        for origin in self.allowed_origins:
            if not _ORIGIN.fullmatch(origin):
                raise ConfigurationError(
                    f"--allowed-origins: no browser sends {origin!r} as its origin: write scheme://host or "
                    "scheme://host:port in lower case, without a path or a / at its end, as in "
                    "https://app.example.com; * alone stands for all"
                )
