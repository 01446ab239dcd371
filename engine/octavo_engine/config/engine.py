"""The settings of the engine process: how to load a model and batch requests."""

from __future__ import annotations

from dataclasses import dataclass

from octavo_engine.attention.registry import BACKENDS
from octavo_engine.config.adapters import parse_adapter
from octavo_engine.config.setting import check_ranges, setting
from octavo_engine.core.eviction import POLICIES
from octavo_engine.errors import ConfigurationError
from octavo_engine.model.quantization.registry import GGUF, ONLINE_SCHEMES
from octavo_engine.speculative.settings import SpeculativeSettings, parse_speculative

_CPU_LORAS = 16


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
        "maximum number of requests in one step; default: 256 on a GPU, 24 for each core on a CPU, never above 256",
        minimum=1,
        maximum=65_536,
    )
    max_num_batched_tokens: int = setting(
        2048,
        "int",
        "maximum number of tokens in one step; longer prompts are cut into chunks, or refused by models "
        "that read a prompt in one step, as encoders do",
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
        "use NCCL for every all-reduce between GPUs, also for small ones, which otherwise use memory that all GPUs map",
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
    cudagraph_mode: str = setting(
        "full_decode_only",
        "str",
        "which steps run as CUDA graphs: full_decode_only, decodes alone; full, steps of up to 512 tokens that compute "
        "prompts too, which halves the time to the first token of short prompts",
        choices=("full_decode_only", "full"),
    )
    enable_prefix_caching: bool = setting(
        True, "bool", "keep the KV cache of finished prompts for requests that begin with the same tokens"
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
        "target in seconds for the 90th percentile of the time between tokens; if it is missed, steps get fewer "
        "prefill tokens, and fewer requests run at once",
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
        "these alone; the name experts stands for all experts of a mixture; default: all linear layers",
        metavar="NAME",
        repeated=True,
    )
    max_loras: int = setting(
        1,
        "int",
        "maximum number of different adapters in one step; the device has memory for that many",
        minimum=1,
        maximum=256,
    )
    max_lora_rank: int = setting(
        16,
        "int",
        "largest rank of an adapter; memory is reserved for it; ranks above 64 have not been run on a GPU yet",
        minimum=1,
        maximum=512,
    )
    max_cpu_loras: int | None = setting(
        None,
        "int",
        "maximum number of adapters in CPU memory; others are read again when they are needed; default: 16, "
        "or --max-loras",
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
        "model's generation_config.json or the header of its .gguf file, vllm takes neutral values",
        choices=("auto", "vllm"),
    )
    attention_backend: str = setting(
        "auto",
        "str",
        "implementation of attention; auto takes the fastest that is verified on GPUs, and C kernels on a CPU",
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
        check_ranges(self)
        if self.max_num_seqs is not None and self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigurationError(
                f"--max-num-batched-tokens {self.max_num_batched_tokens} is below --max-num-seqs {self.max_num_seqs}: "
                f"every running request needs a token in each step; raise --max-num-batched-tokens to "
                f"{self.max_num_seqs}, or lower --max-num-seqs"
            )
        self._check_adapters()
        _ = self.speculative

    def _check_adapters(self) -> None:
        if self.lora_modules and not self.enable_lora:
            raise ConfigurationError("--lora-modules needs --enable-lora")
        if self.max_cpu_loras is not None and self.max_cpu_loras < self.max_loras:
            raise ConfigurationError(
                f"--max-cpu-loras {self.max_cpu_loras} is below --max-loras {self.max_loras}: adapters on the device "
                f"are in CPU memory, too; raise --max-cpu-loras to {self.max_loras}, or lower --max-loras"
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
