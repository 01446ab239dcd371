"""Offline use: a list of prompts in, a list of answers out, in this process and without a server.

from octavo_engine import LLM, SamplingParams
llm = LLM("smollm2")
[answer] = llm.generate(["The capital of France is"], SamplingParams(max_tokens=8, temperature=0))
print(answer.text)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from octavo_engine.config import EngineConfig
from octavo_engine.core.request import FinishReason, Request
from octavo_engine.core.step import RequestOutput
from octavo_engine.engine.adapters import Adapters
from octavo_engine.engine.info import AdapterInfo
from octavo_engine.engine.pooled_vectors import to_vector
from octavo_engine.engine.scheduler_stats import SchedulerStats
from octavo_engine.engine.startup.start_engine import LoadProgress, start_engine
from octavo_engine.errors import ConfigurationError, NotAdmissibleError
from octavo_engine.model.source import resolve_model
from octavo_engine.model_outputs import TokenLogprobs
from octavo_engine.process_setup.freed_memory import use_one_heap
from octavo_engine.process_setup.signals import interrupt_waits
from octavo_engine.request_checks import check_sampling
from octavo_engine.sampling_params import SamplingParams
from octavo_engine.text.detokenizer import Detokenizer
from octavo_engine.text.tokenizer import Tokenizer, load_tokenizer

Prompt = str | Sequence[int]
"""Text, or token ids."""
Message = Mapping[str, Any]
"""One message of a conversation, in the form of OpenAI's chat completions."""


@dataclass(slots=True)
class Completion:
    """The answer to one prompt. If the prompt cannot be answered, `error` says why."""

    prompt_token_ids: list[int]
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    """Log probabilities of the prompt's tokens except the first, if `SamplingParams.prompt_logprobs` is set."""
    pooled: bytes = b""
    """The prompt's embedding as float32 bytes, if `generate` was called with `pooled=True`."""
    finish_reason: str | None = None
    stop_token: int | None = None
    """The last of `token_ids`, if this token ended the answer; `text` does not contain it."""
    cached_tokens: int = 0
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Embedding:
    """The vector of one prompt. If the prompt cannot be embedded, `error` says why."""

    prompt_token_ids: list[int]
    vector: list[float]
    error: str | None = None


@dataclass(slots=True)
class _Running:
    index: int
    completion: Completion
    detokenizer: Detokenizer


def _silent(phase: str, ratio: float, detail: str) -> None:
    """Report nothing: the default `progress` of `LLM`, which shows no progress bar."""


class LLM:
    """A loaded model for offline use. Its settings are the flags of `octavo-engine serve`, as keyword arguments."""

    def __init__(self, model: str, *, progress: LoadProgress = _silent, **settings: Any) -> None:
        config = EngineConfig(model=model, **settings)
        use_one_heap()
        # First, as it takes a moment: a tokenizer that cannot be used leaves no engine with loaded weights behind.
        files = resolve_model(model, config.revision, progress, weights=False)
        self.tokenizer: Tokenizer = load_tokenizer(files)
        self._loop = start_engine(config, progress)
        self.info = self._loop.info
        self._count = 0

    def generate(
        self,
        prompts: Sequence[Prompt],
        sampling: SamplingParams | Sequence[SamplingParams],
        *,
        stop: Sequence[str] = (),
        adapter: str | Sequence[str | None] | None = None,
        on_finish: Callable[[int, Completion], None] | None = None,
        pooled: bool = False,
    ) -> list[Completion]:
        """Answer all prompts with continuous batching, and return the answers in the prompts' order.

        `stop` strings end an answer and are not part of it. A prompt that cannot be answered (too long, empty) gets a
        Completion with `error`; other prompts are not affected. `adapter` is the name of a loaded LoRA adapter, or a
        sequence with a name for each prompt; None is the base model. KeyError if there is no such adapter. `on_finish`
        is called with a prompt's index and its complete answer. If it raises, or on Ctrl-C, the prompts without an
        answer are dropped. `pooled` asks for the prompts' embeddings.
        """
        _check_sequences(prompts, stop)
        options = self._options(len(prompts), sampling, adapter)
        completions = [Completion(self.encode(prompt, continued=not pooled)) for prompt in prompts]
        for completion, (params, _) in zip(completions, options, strict=True):
            _note_refusal(completion, params)
        refused = [(index, completion) for index, completion in enumerate(completions) if completion.error]
        running: dict[str, _Running] = {}
        try:
            for index, (completion, (params, digest)) in enumerate(zip(completions, options, strict=True)):
                if completion.error:
                    continue
                detokenizer = Detokenizer(self.tokenizer, stop=stop, min_tokens=params.min_tokens)
                with interrupt_waits():
                    request_id = self._add(completion.prompt_token_ids, params, digest, pooled=pooled)
                    running[request_id] = _Running(index, completion, detokenizer)
            ended = ((each.index, each.completion) for each in self._steps(running))
            for index, completion in chain(refused, ended):
                if on_finish is not None:
                    on_finish(index, completion)
        finally:
            self._loop.abort(list(running))
        return completions

    def _options(
        self,
        count: int,
        sampling: SamplingParams | Sequence[SamplingParams],
        adapter: str | Sequence[str | None] | None,
    ) -> list[tuple[SamplingParams, str]]:
        """Return the sampling parameters and the adapter's digest for each of `count` prompts.

        ValueError if there are more or fewer.
        """
        each = [sampling] * count if isinstance(sampling, SamplingParams) else list(sampling)
        digests = [self._digest(name) for name in _each(adapter, count)]
        if not count == len(each) == len(digests):
            given = f"{count} prompts, {len(each)} `sampling`, {len(digests)} `adapter`"
            raise ValueError(f"{given}: give one `sampling` and one `adapter` for all prompts, or one for each")
        return list(zip(each, digests, strict=True))

    def chat(
        self, conversations: Sequence[Sequence[Message]], sampling: SamplingParams, **options: Any
    ) -> list[Completion]:
        """Render conversations with the model's chat template and answer them as `generate` does."""
        if any(isinstance(each, Mapping) for each in conversations):
            raise TypeError("conversations must be a sequence of lists of messages: put a single list into a list")
        return self.generate([self.encode_chat(messages) for messages in conversations], sampling, **options)

    def embed(self, prompts: Sequence[Prompt]) -> list[Embedding]:
        """Return the embedding of each prompt, normalized to length 1 unless the model's own files say otherwise."""
        ends = SamplingParams(max_tokens=0, temperature=0.0)
        found = self.generate(prompts, ends, pooled=True)
        normalize = self.info.embedding is None or self.info.embedding.normalize
        return [
            Embedding(each.prompt_token_ids, to_vector(each.pooled, normalize=normalize).tolist(), each.error)
            for each in found
        ]

    def load_adapter(self, name: str, path: str) -> AdapterInfo:
        """Load a LoRA adapter that PEFT has saved, from a directory, a Hugging Face id or s3://bucket/prefix.

        The new adapter replaces one of the same name. ModelLoadError if the adapter cannot be loaded;
        ConfigurationError without `enable_lora=True`.
        """
        return self._adapters.store.load(name, path)

    def unload_adapter(self, name: str) -> None:
        """Unload a LoRA adapter; KeyError if no adapter has this name."""
        self._adapters.store.digest_of(name)
        self._adapters.store.unload(name)

    @property
    def _adapters(self) -> Adapters:
        if self._loop.adapters is None:
            raise ConfigurationError("adapters need enable_lora=True")
        return self._loop.adapters

    def _add(self, tokens: list[int], params: SamplingParams, adapter: str, *, pooled: bool) -> str:
        """Give the engine a request for these tokens, and return its id."""
        request_id = f"llm-{self._count}"
        self._count += 1
        self._loop.add(
            Request(
                request_id=request_id,
                prompt_token_ids=tuple(tokens),
                sampling=self._with_ends(params),
                pooled=pooled,
                adapter=adapter,
            )
        )
        return request_id

    def _digest(self, adapter: str | None) -> str:
        return "" if adapter is None else self._adapters.store.digest_of(adapter)

    def encode(self, prompt: Prompt, *, continued: bool = True) -> list[int]:
        """Return the prompt's token ids, without `continued` as for an embedding."""
        return self.tokenizer.encode(prompt, continued=continued) if isinstance(prompt, str) else list(prompt)

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Return a conversation's token ids, up to the start of the assistant's answer.

        ValueError if the model has no chat template, or if the template refuses the conversation.
        """
        if (template := self.tokenizer.chat_template) is None:
            raise ValueError("this model has no chat template: give a prompt instead of messages")
        return self.tokenizer.encode(template.render(messages), add_special_tokens=False)

    def _with_ends(self, params: SamplingParams) -> SamplingParams:
        """Add the model's end-of-sequence tokens to the stop tokens, unless `ignore_eos` is set without a grammar."""
        if params.ignore_eos and params.grammar is None:
            return params
        return replace(params, stop_token_ids=tuple({*params.stop_token_ids, *self.info.eos_token_ids}))

    def _steps(self, running: dict[str, _Running]) -> Iterator[_Running]:
        while self._loop.has_work:
            with interrupt_waits():  # else a step's result could be lost, and the next one taken for it
                outputs = self._loop.step()
            for output in outputs.each():
                request = running.get(output.request_id)
                if request is not None and self._take(request, output):
                    yield running.pop(output.request_id)
        self._loop.check_integrity()

    def _take(self, request: _Running, output: RequestOutput) -> bool:
        """Add a step's output to the answer, and return True if the answer is complete."""
        completion = request.completion
        if output.error is not None:
            completion.error, completion.finish_reason = output.error, FinishReason.ERROR.value
            return True
        shown = [token for token in output.token_ids if token != output.stop_token]
        delta = request.detokenizer.push(shown, last=output.finish_reason is not None)
        kept = len(output.token_ids) if delta.stop is None else delta.tokens
        completion.token_ids += output.token_ids[:kept]
        completion.logprobs += output.logprobs[:kept]
        if output.prompt is not None:
            completion.prompt_logprobs = list(output.prompt.logprobs)
            completion.pooled = output.prompt.pooled
        completion.cached_tokens = max(completion.cached_tokens, output.cached_tokens)
        completion.text += delta.text
        completion.finish_reason, completion.stop_token = output.finish_reason, output.stop_token
        if delta.stop is not None:
            completion.finish_reason, completion.stop_token = "stop", None
            if output.finish_reason is None:
                self._loop.abort([output.request_id])
        return completion.finish_reason is not None

    def report(self) -> SchedulerStats:
        """Return the scheduler's counters: preemptions, prefix cache hits, KV blocks in use."""
        return self._loop.report()

    def close(self) -> None:
        """Stop the engine and release the device's memory."""
        self._loop.close()


def _check_sequences(prompts: Sequence[Prompt], stop: Sequence[str]) -> None:
    """Raise TypeError or ValueError if `prompts` or `stop` is a single text, or a stop string is empty."""
    if isinstance(prompts, str):
        raise TypeError("prompts must be a sequence of prompts, not a str: put a single prompt into a list")
    if isinstance(stop, str) or "" in stop:
        raise ValueError("stop must be a sequence of strings, of which none is empty: put a single one into a list")


def _note_refusal(completion: Completion, params: SamplingParams) -> None:
    """Give an answer its error if its sampling parameters cannot be carried out."""
    try:
        check_sampling(params)
    except NotAdmissibleError as error:
        completion.error, completion.finish_reason = str(error), FinishReason.ERROR.value


def _each(adapter: str | Sequence[str | None] | None, count: int) -> Sequence[str | None]:
    """Return the name of an adapter for each of `count` prompts."""
    return [adapter] * count if adapter is None or isinstance(adapter, str) else adapter
