"""All settings of the engine and its server: name, default, range and help of each, in one place.

The command line, the `OCTAVO_<NAME>` variables, the YAML of `--config` and the reference in docs/ are all made from
the two classes here, so that no limit can exist without a name. Settings with vLLM's meaning have vLLM's name.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import Any

from octavo_engine.attention.registry import BACKENDS
from octavo_engine.core.eviction import POLICIES
from octavo_engine.errors import ConfigurationError
from octavo_engine.model.quantization.registry import GGUF, ONLINE_SCHEMES
from octavo_engine.output_parsing.formats import FORMATS
from octavo_engine.sizes import parse_size
from octavo_engine.speculative.settings import SpeculativeSettings, parse_speculative


def _boolean(text: str) -> bool:
    value = {
        "true": True,
        "1": True,
        "yes": True,
        "on": True,
        "false": False,
        "0": False,
        "no": False,
        "off": False,
    }.get(text.lower())
    if value is None:
        raise ValueError(f"{text!r} is neither true nor false")
    return value


_PARSERS: Mapping[str, Callable[[str], Any]] = {
    "int": int,
    "float": float,
    "bool": _boolean,
    "size": parse_size,
    "str": str,
    "path": Path,
}


@dataclass(frozen=True, slots=True)
class Setting:
    """The description and the limits of a setting. Its name and default are those of the dataclass field."""

    kind: str
    help: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[Any, ...] | None = None
    metavar: str | None = None
    repeated: bool = False

    def parse(self, name: str, text: str) -> Any:
        """Return the typed value of `text`; the ConfigurationError names the setting and the values that it accepts."""
        try:
            value = _PARSERS[self.kind](text)
        except ValueError as error:
            expected = {"int": "a whole number", "float": "a number"}.get(self.kind)
            raise ConfigurationError(f"--{name}: {f'{text!r} is not {expected}' if expected else error}") from None
        self.check(name, value)
        return value

    def check(self, name: str, value: Any) -> None:
        """Raise ConfigurationError unless `value` is in the setting's range, or None."""
        if value is None:
            return
        if self.choices is not None and value not in self.choices:
            raise ConfigurationError(f"--{name}: {value!r} is not one of {', '.join(map(str, self.choices))}")
        if isinstance(value, str) and self.kind in ("int", "float", "size"):
            unit = ", of bytes" if self.kind == "size" else ""
            raise ConfigurationError(f"--{name}: {value!r} is text; in Python, give a number{unit}")
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigurationError(f"--{name}: {value} is not a finite number")
        if self.minimum is not None and value < self.minimum:
            raise ConfigurationError(f"--{name}: {value} is below the smallest allowed value, {self.minimum:g}")
        if self.maximum is not None and value > self.maximum:
            raise ConfigurationError(f"--{name}: {value} is above the largest allowed value, {self.maximum:g}")


def setting(default: Any, kind: str, help: str, **limits: Any) -> Any:
    """Return a dataclass field that is also a flag, an `OCTAVO_<NAME>` variable and a key of the configuration file."""
    metadata = {"setting": Setting(kind, help, **limits)}
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Settings of the engine process: how to load a model and batch requests."""

    model: str
    revision: str | None = setting(None, "str", "branch, tag or commit of a Hugging Face repository", metavar="NAME")
    device: str = setting(
        "auto", "str", "where to run: auto takes a GPU if there is one", choices=("auto", "cuda", "cpu")
    )
    dtype: str = setting(
        "auto",
        "str",
        "type of weights and activations; auto takes the checkpoint's",
        choices=("auto", "bfloat16", "float16", "float32"),
    )
    max_model_len: int | None = setting(
        None,
        "int",
        "longest context in tokens, prompt and answer together; default: the model's, or what fits",
        minimum=1,
        maximum=16_777_216,
    )
    max_num_seqs: int | None = setting(
        None,
        "int",
        "most requests in one step; default: 256 on a GPU, 24 for each core on a CPU, never above 256",
        minimum=1,
        maximum=65_536,
    )
    max_num_batched_tokens: int = setting(
        2048,
        "int",
        "most tokens in one step; longer prompts are cut into chunks, or refused by encoders, which read whole prompts "
        "in one step",
        minimum=1,
        maximum=1_048_576,
    )
    block_size: int = setting(16, "int", "tokens in one block of the KV cache", choices=(16, 32, 64, 128))
    gpu_memory_utilization: float = setting(
        0.90, "float", "share of the device's memory that the engine may use", minimum=0.05, maximum=1.0
    )
    kv_cache_memory: int | None = setting(
        None,
        "size",
        "size of the KV cache; default: the rest of --gpu-memory-utilization after weights and activations",
        minimum=1,
        metavar="SIZE",
    )
    num_kv_blocks: int | None = setting(
        None,
        "int",
        "number of KV blocks, instead of the computed number; layers with a sliding window may have fewer",
        minimum=2,
        maximum=1 << 31,
    )
    kv_cache_dtype: str = setting(
        "auto", "str", "type of cached keys and values; auto takes --dtype", choices=("auto", "fp8", "fp8_e4m3")
    )
    swap_space: int = setting(0, "size", "CPU memory for the KV cache of preempted requests", minimum=0, metavar="SIZE")
    tensor_parallel_size: int = setting(
        1, "int", "GPUs, or processes on CPU, that share each layer", minimum=1, maximum=64
    )
    disable_custom_all_reduce: bool = setting(
        False,
        "bool",
        "use NCCL for every all-reduce between GPUs, also for small ones, which else go through memory that all GPUs "
        "map",
    )
    quantization: str | None = setting(
        None,
        "str",
        "fp8, int8 and int4 quantize the linear layers' weights while they are loaded; a checkpoint that is already "
        "quantized needs no flag, and accepts only the name of its own scheme; gguf keeps the blocks of a .gguf file "
        "in memory as they are (by default they are dequantized while loading)",
        choices=(*ONLINE_SCHEMES, "awq", "gptq", GGUF),
    )
    enforce_eager: bool = setting(
        False,
        "bool",
        "no CUDA graphs: every step launches its kernels one by one, which is slower for decodes on GPUs",
    )
    enable_prefix_caching: bool = setting(
        True, "bool", "keep the KV cache of finished prompts for requests that begin alike"
    )
    prefix_cache_policy: str = setting("lru", "str", "which cached blocks are evicted first", choices=tuple(POLICIES))
    prefix_cache_ttl: float | None = setting(
        None, "float", "seconds after which an unused cached block is evicted", minimum=0
    )
    scheduling_policy: str = setting("fcfs", "str", "which waiting request comes first", choices=("fcfs", "priority"))
    target_ttft_p90: float | None = setting(
        None,
        "float",
        "target in seconds for the 90th percentile of the time to the first token; if it is missed, the limits that "
        "--target-itl-p90 has lowered are raised again, as far as that target allows; without --target-itl-p90 it is "
        "only reported",
        minimum=0.001,
        maximum=3600,
    )
    target_itl_p90: float | None = setting(
        None,
        "float",
        "target in seconds for the 90th percentile of the time between tokens; lowers a step's prefill tokens and "
        "how many requests run at once",
        minimum=0.001,
        maximum=3600,
    )
    enable_lora: bool = setting(
        False, "bool", "serve LoRA adapters, which requests name as their model, beside the base"
    )
    lora_modules: list[str] = setting(
        [],
        "str",
        'adapters to load at start: directories, Hugging Face ids or s3://bucket/prefix; also as JSON, {"name": …, '
        '"path": …}',
        metavar="NAME=PATH",
        repeated=True,
    )
    lora_target_modules: list[str] = setting(
        [],
        "str",
        "the only layers that adapters may change, by the ends of their names, such as q_proj; memory is reserved for "
        "these alone; experts is all experts of mixtures; default: all linear layers",
        metavar="NAME",
        repeated=True,
    )
    max_loras: int = setting(
        1,
        "int",
        "most different adapters in one step; the device has memory for so many",
        minimum=1,
        maximum=256,
    )
    max_lora_rank: int = setting(
        16, "int", "largest rank of an adapter; memory is reserved for it", minimum=1, maximum=256
    )
    max_cpu_loras: int | None = setting(
        None,
        "int",
        "most adapters in CPU memory; others are read again when they are needed; default: 16, or --max-loras",
        minimum=1,
        maximum=65_536,
    )
    speculative_config: str | None = setting(
        None,
        "str",
        "propose draft tokens and verify several in one step; ngram proposes what followed the same tokens before: "
        '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4, "prompt_lookup_min": 2}',
        metavar="JSON",
    )
    generation_config: str = setting(
        "auto",
        "str",
        "default temperature, top_p, top_k, min_p and repetition_penalty of requests: auto takes the "
        "model's generation_config.json, vllm takes neutral values",
        choices=("auto", "vllm"),
    )
    attention_backend: str = setting(
        "auto",
        "str",
        "implementation of attention; auto takes the fastest one on this GPU for this model",
        choices=("auto", *BACKENDS),
    )
    seed: int = setting(0, "int", "seed of requests that set none", minimum=0, maximum=(1 << 63) - 1)
    watchdog_timeout: float = setting(
        30.0,
        "float",
        "seconds without a finished step after which the engine counts as stalled (exit 5)",
        minimum=1,
        maximum=3600,
    )

    def __post_init__(self) -> None:
        _check_ranges(self)
        if self.max_num_seqs is not None and self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigurationError(
                f"--max-num-batched-tokens {self.max_num_batched_tokens} is below --max-num-seqs {self.max_num_seqs}: "
                f"every running request needs a token in each step; raise the first to {self.max_num_seqs} or lower "
                f"the second"
            )
        self._check_adapters()
        _ = self.speculative

    def _check_adapters(self) -> None:
        if self.lora_modules and not self.enable_lora:
            raise ConfigurationError("--lora-modules needs --enable-lora")
        if self.max_cpu_loras is not None and self.max_cpu_loras < self.max_loras:
            raise ConfigurationError(
                f"--max-cpu-loras {self.max_cpu_loras} is below --max-loras {self.max_loras}: adapters on the device "
                f"are in CPU memory, too; raise the first to {self.max_loras} or lower the second"
            )
        names = [name for name, _ in self.adapters]
        if len(set(names)) < len(names):
            raise ConfigurationError("--lora-modules has a name twice; give each adapter a name of its own")

    @property
    def speculative(self) -> SpeculativeSettings | None:
        """The parsed --speculative-config, None without the flag; ConfigurationError if it is not valid."""
        return None if self.speculative_config is None else parse_speculative(self.speculative_config)

    @property
    def adapters(self) -> tuple[tuple[str, str], ...]:
        """Name and path of each adapter of --lora-modules."""
        return tuple(map(parse_adapter, self.lora_modules))

    @property
    def cpu_loras(self) -> int:
        """The largest number of adapters in CPU memory: --max-cpu-loras, or its default."""
        return self.max_cpu_loras or max(_CPU_LORAS, self.max_loras)


_CPU_LORAS = 16


def parse_adapter(text: str) -> tuple[str, str]:
    """Return the name and the path in one value of --lora-modules, which is NAME=PATH or vLLM's JSON.

    ConfigurationError if it is neither.
    """
    name, _, path = text.partition("=")
    if text.lstrip().startswith("{"):
        try:
            values = json.loads(text)
            name, path = values.get("name", ""), values.get("path", "")
        except (ValueError, RecursionError):
            raise ConfigurationError(f"--lora-modules: {text[:100]!r} is not valid JSON") from None
    if not (isinstance(name, str) and isinstance(path, str) and name and path):
        raise ConfigurationError(
            f"--lora-modules: {text[:100]!r} is neither NAME=PATH nor JSON with name and path, such as "
            f'{{"name": "sql", "path": "/adapters/sql"}}'
        )
    try:
        check_adapter_name(name)
    except ValueError as error:
        raise ConfigurationError(f"--lora-modules: the name {name[:100]!r} {error}") from None
    return name, path


MAX_ADAPTERS = 1024
"""The largest number of adapters that a server may list as models; `--max-cpu-loras` bounds how many are in memory."""
ADAPTERS_READ_AT_ONCE = 2
"""Adapters that are fetched and read at once for clients that load them."""
_LONGEST_ADAPTER_NAME = 256


def check_adapter_name(name: str) -> str:
    """Return the name of an adapter; ValueError if it could not be written in logs, lists and labels of metrics."""
    if not name.isprintable() or "," in name or any(map(str.isspace, name)) or len(name) > _LONGEST_ADAPTER_NAME:
        raise ValueError(
            f"has to be of at most {_LONGEST_ADAPTER_NAME} printable characters, without spaces and commas"
        )
    return name


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """Settings of the HTTP process: the server's own, without those of the engine."""

    host: str = setting("0.0.0.0", "str", "address to listen on; :: is all, of IPv6 and IPv4", metavar="ADDRESS")
    port: int = setting(8000, "int", "port to listen on", minimum=1, maximum=65_535)
    metrics_port: int | None = setting(
        None,
        "int",
        "port that answers only /metrics and the probes, without keys; /metrics is then not answered on --port",
        minimum=1,
        maximum=65_535,
    )
    max_connections: int = setting(
        4096, "int", "most connections of clients; probes are answered beside them", minimum=8, maximum=1_000_000
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
    tool_call_parser: str = setting(
        "auto",
        "str",
        "format in which the model writes tool calls; auto: as its chat template shows",
        choices=("auto", *FORMATS),
    )
    max_queued_requests: int = setting(
        1024, "int", "most requests that wait; more are answered 503", minimum=0, maximum=1_000_000
    )
    max_queue_seconds: float = setting(
        30.0,
        "float",
        "longest expected wait in the queue; requests that would wait longer are answered 503 at once",
        minimum=0.1,
        maximum=86_400,
    )
    max_queued_tokens: int = setting(
        1_000_000, "int", "most prompt tokens that wait; more are answered 503", minimum=0, maximum=1 << 40
    )
    max_kv_commitment: float = setting(
        4.0,
        "float",
        "most KV tokens that accepted requests may need, as a multiple of the KV cache; more are answered 503",
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
        4 << 30, "size", "most bytes of files in --batch-storage", minimum=1 << 20, maximum=1 << 50, metavar="SIZE"
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
        _check_ranges(self)


def flag_name(name: str) -> str:
    """Return a setting's name as a flag: `max-num-seqs` for `max_num_seqs`."""
    return name.replace("_", "-")


def settings_of(config: type) -> list[tuple[Field[Any], Setting]]:
    """Return the fields of a configuration class that are settings, in order."""
    return [(f, f.metadata["setting"]) for f in fields(config) if "setting" in f.metadata]


def default_of(f: Field[Any]) -> Any:
    """Return the default of a setting's field."""
    return f.default_factory() if f.default_factory is not MISSING else f.default


def _check_ranges(config: Any) -> None:
    for f, known in settings_of(type(config)):
        value = getattr(config, f.name)
        if not known.repeated:
            known.check(flag_name(f.name), value)


def read_settings(
    config: type, flags: Mapping[str, Any], environ: Mapping[str, str], file: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the values of `config`'s settings that are given anywhere.

    A flag takes precedence over OCTAVO_<NAME>, and OCTAVO_<NAME> over the file. `flags` holds the command line's values
    by field name, None for flags that were not given; `file` is the mapping of --config, keyed by flag name with - or
    _.
    """
    values: dict[str, Any] = {}
    from_file = {str(key).replace("-", "_"): value for key, value in file.items()}
    for f, known in settings_of(config):
        name, variable, source = flag_name(f.name), f"OCTAVO_{f.name.upper()}", ""
        if flags.get(f.name) is not None:
            raw = flags[f.name]
        elif variable in environ:
            raw, source = _listed(environ[variable]) if known.repeated else environ[variable], f"{variable} is set: "
        elif from_file.get(f.name) is not None:
            raw, source = from_file[f.name], "in the file of --config: "
        else:
            continue
        if known.repeated and isinstance(raw, list):
            raw = [each for text in raw for each in _from_json(text)]
        try:
            values[f.name] = _parse_all(known, name, raw if isinstance(raw, list) else [raw])
        except ConfigurationError as error:
            raise ConfigurationError(f"{source}{error}") from None
    return values


def _listed(text: str) -> list[str]:
    """Split an environment variable into its values: separated by commas, or one JSON object or list of values."""
    if not text.lstrip().startswith(("{", "[")):
        return text.split(",")
    try:
        found = json.loads(text)
    except ValueError:
        return [text]
    return [
        each if isinstance(each, str) else json.dumps(each) for each in (found if isinstance(found, list) else [found])
    ]


def _from_json(value: Any) -> list[Any]:
    """Return the values of a flag that is given as one JSON list, as some of vLLM's are; other values unchanged."""
    return _listed(value) if isinstance(value, str) and value.lstrip().startswith("[") else [value]


def _parse_all(known: Setting, name: str, raw: Sequence[Any]) -> Any:
    parsed = [known.parse(name, json.dumps(value) if isinstance(value, dict) else str(value)) for value in raw]
    if known.repeated:
        return parsed
    if len(parsed) != 1:
        raise ConfigurationError(f"--{name} takes one value, not {len(parsed)}")
    return parsed[0]
