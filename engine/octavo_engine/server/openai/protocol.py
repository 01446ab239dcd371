"""The bodies of requests of OpenAI's API. `null` means absent; other fields are ignored, but see unknown_fields.py.

Fields that OpenAI's API does not have carry vLLM's names.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from octavo_engine.server.openai.bodies.body import Body
from octavo_engine.server.openai.bodies.field_types import (
    MAX_N,
    MAX_TOKENS,
    WHOLE,
    WHOLE_IDS,
    BadWords,
    Content,
    Effort,
    Label,
    LogitBias,
    Metadata,
    Name,
    Penalty,
    Priority,
    Prompts,
    PromptTruncation,
    Ratio,
    RepetitionPenalty,
    Seed,
    Stop,
    TemplateValues,
    Text,
    Timeout,
    TokenCount,
    TokenId,
    TopLogprobs,
)
from octavo_engine.server.openai.bodies.refused import (
    NoFunctions,
    NotHere,
    NotYet,
    OnlyEmpty,
    OnlyFalse,
    OnlyLeft,
    OnlyOne,
    OnlyUnlimited,
    OnlyZero,
    TextModality,
)
from octavo_engine.server.openai.structured_outputs.fields import StructuredFields
from octavo_engine.server.openai.tools.fields import ToolCalls, ToolFields


class IgnoredObject(BaseModel):
    """An object that changes nothing in an answer; its fields are not read."""


class StreamOptions(Body):
    """Options of a stream. Events are never padded, whatever `include_obfuscation` says."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class IgnoredFields(Body):
    """Fields of OpenAI's API on which nothing in an answer depends. Values of other types are errors nevertheless."""

    metadata: Metadata | None = None
    store: bool | None = None
    user: Label | None = None
    safety_identifier: Label | None = None
    service_tier: Label | None = None
    prompt_cache_key: Label | None = None
    prompt_cache_retention: Label | None = None
    prompt_cache_options: IgnoredObject | None = None
    """Prefixes are always cached (unless the server was started without prefix caching)."""


class RefusedFields(Body):
    """Fields of other servers' APIs that would change an answer and are not supported, so that they are refused."""

    # How tokens are chosen.
    use_beam_search: OnlyFalse = None
    length_penalty: OnlyOne = None
    logits_processors: OnlyEmpty = None
    repetition_detection: NotYet = None
    thinking_token_budget: OnlyUnlimited = None
    thinking_budget: NotYet = None
    watermarking: OnlyFalse = None
    vllm_xargs: OnlyEmpty = None
    typical_p: OnlyOne = None
    repeat_penalty: OnlyOne = None
    mirostat: OnlyZero = None
    top_a: OnlyZero = None
    dry_multiplier: OnlyZero = None
    xtc_probability: OnlyZero = None
    dynatemp_range: OnlyZero = None
    sampling_seed: NotYet = None
    random_seed: NotYet = None
    custom_logit_processor: NotYet = None
    lora_path: NotYet = None
    # When an answer ends, and its form; these have other names here.
    max_new_tokens: NotYet = None
    min_new_tokens: NotYet = None
    n_predict: NotYet = None
    stop_regex: NotYet = None
    stop_sequences: NotYet = None
    regex: NotYet = None
    ebnf: NotYet = None
    json_schema: NotYet = None
    grammar: NotYet = None
    # What is reported beside an answer's text.
    logprob_token_ids: NotYet = None
    return_token_offsets: OnlyFalse = None
    return_prompt_text: OnlyFalse = None
    return_hidden_states: OnlyFalse = None
    # Prompts, and keys and values, that come from elsewhere.
    truncation_side: OnlyLeft = None
    input_ids: NotYet = None
    prompt_embeds: NotYet = None
    kv_transfer_params: OnlyEmpty = None
    ec_transfer_params: OnlyEmpty = None


class SamplingFields(Body):
    """The fields for sampling, an answer's end and its time limit, of all endpoints that generate."""

    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = None
    top_p: Ratio | None = None
    top_k: Annotated[int, Field(ge=-1, le=MAX_TOKENS), WHOLE] | None = None
    min_p: Ratio | None = None
    seed: Seed | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: RepetitionPenalty | None = None
    logit_bias: LogitBias | None = None
    allowed_token_ids: Annotated[list[TokenId], Field(min_length=1, max_length=65_536), WHOLE_IDS] | None = None
    """The only tokens that an answer may have. If the model's end is not among them, the answer ends by max_tokens."""
    bad_words: BadWords | None = None
    """Texts that an answer does not contain in the tokens into which the tokenizer divides them."""
    min_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS), WHOLE] | None = None
    stop: Stop | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=64), WHOLE_IDS] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9_.:=/+-]+$")] | None = None
    timeout: Timeout | None = None
    """Seconds that the request may take, its wait included."""
    priority: Priority | None = None
    """Requests with a lower number are scheduled earlier."""

    def given_sampling(self) -> dict[str, Any]:
        """Return the sampling fields that the request sets, for the body of another endpoint."""
        return {name: value for name in SamplingFields.model_fields if (value := getattr(self, name)) is not None}


class GenerationBody(RefusedFields, IgnoredFields, StructuredFields, SamplingFields):
    """The common fields of chat and text completions."""

    model: Name | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=MAX_N), WHOLE] | None = None
    best_of: Annotated[int, Field(ge=1, le=MAX_N), WHOLE] | None = None
    """Must be equal to n, since answers are not ranked."""
    max_tokens: TokenCount | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    """Has no effect: no space is put between tokens."""
    add_special_tokens: bool | None = None
    """Whether the tokenizer adds its special tokens, such as the one that begins a text, to the prompt."""
    truncate_prompt_tokens: PromptTruncation | None = None
    """How many tokens of a prompt are kept, from its end; -1 for as many as fit beside the answer."""
    prompt_logprobs: TopLogprobs | None = None
    """Log probabilities of the prompt's tokens and of as many of the likeliest ones at each position."""
    return_token_ids: bool | None = None
    """Whether the answer has the token ids of the prompt and of each choice."""
    return_tokens_as_token_ids: bool | None = None
    """Whether log probabilities name a token `token_id:5` instead of by its text."""
    # Fields of vLLM's API on which nothing in an answer depends.
    request_id: Label | None = None
    guided_decoding_backend: Label | None = None
    mm_processor_kwargs: IgnoredObject | None = None


def _only_text(value: Any) -> Any:
    """Ignore values that are not text: some clients send other things under this name."""
    return value if isinstance(value, str) else None


class Message(Body):
    """One turn of a chat."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content = None
    name: Annotated[str, Field(max_length=256)] | None = None
    reasoning_content: Text | None = None
    """The reasoning of an earlier answer, for templates that render it."""
    reasoning: Annotated[Text | None, BeforeValidator(_only_text)] = None
    """`reasoning_content` under vLLM's name."""
    tool_calls: ToolCalls | None = None
    tool_call_id: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    refusal: Text | None = None
    """The refusal that an earlier answer had instead of content."""
    function_call: NotYet = None

    @model_validator(mode="after")
    def _is_not_empty(self) -> Message:
        parts: list[Any] = [self.content]
        if self.role == "assistant":
            parts += [self.refusal, self.reasoning_content, self.reasoning, self.tool_calls or None]
        missing = "content" if all(each is None for each in parts) else None
        if self.role == "tool" and self.tool_call_id is None:
            missing = "tool_call_id"
        if missing is not None:
            raise PydanticCustomError(
                "missing_member", "in a message of role {role}", {"place": (missing,), "role": self.role}
            )
        return self


Messages = Annotated[list[Message], Field(min_length=1, max_length=16_384)]


class TemplateOptions(Body, ToolFields):
    """The options of the chat template, for chat completions and /tokenize alike."""

    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: TemplateValues | None = None
    reasoning_effort: Effort | None = None
    """A variable of the template; one of this name in chat_template_kwargs takes precedence."""
    chat_template: NotYet = None
    documents: OnlyEmpty = None


class ChatCompletionBody(GenerationBody, TemplateOptions):
    """The body of POST /v1/chat/completions."""

    messages: Messages
    max_completion_tokens: TokenCount | None = None
    include_reasoning: bool | None = None
    """If it is False, the answer omits the reasoning, whose tokens are counted nevertheless."""
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    """Has no effect, nor has `prediction`."""
    prediction: IgnoredObject | None = None
    functions: NoFunctions = None
    function_call: NoFunctions = None
    audio: NotYet = None
    modalities: TextModality = None
    web_search_options: NotYet = None
    moderation: NotYet = None
    enable_thinking: NotYet = None
    thinking: NotYet = None
    reasoning: NotYet = None
    echo: OnlyFalse = None
    suffix: OnlyEmpty = None
    # Fields of completions, of responses and of Anthropic's messages.
    prompt: NotHere = None
    input: NotHere = None
    instructions: NotHere = None
    system: NotHere = None
    previous_response_id: NotHere = None
    max_output_tokens: NotHere = None
    output_config: NotHere = None


class CompletionBody(GenerationBody):
    """The body of POST /v1/completions."""

    prompt: Prompts
    max_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS), WHOLE] | None = None
    """0 generates nothing; the answer has the prompt and its log probabilities, if they are asked for."""
    echo: bool | None = None
    logprobs: TopLogprobs | None = None
    suffix: OnlyEmpty = None
    # Fields of chats.
    max_completion_tokens: NotHere = None
    """It limits an answer as max_tokens does here."""
    messages: NotHere = None
    tools: OnlyEmpty = None
    tool_choice: NoFunctions = None
    functions: NoFunctions = None
    function_call: NoFunctions = None
    top_logprobs: NotHere = None
    reasoning_effort: NotHere = None
    chat_template: NotHere = None
    chat_template_kwargs: OnlyEmpty = None
    continue_final_message: OnlyFalse = None


class TokenizeBody(TemplateOptions):
    """The body of POST /tokenize: a prompt, or messages as for a chat."""

    model: Name | None = None
    prompt: Text | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(Body):
    """The body of POST /detokenize."""

    model: Name | None = None
    tokens: Annotated[list[TokenId], Field(max_length=MAX_TOKENS), WHOLE_IDS]
