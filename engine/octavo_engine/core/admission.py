"""What a request must satisfy before it may wait: judged once, at the door, so that nothing accepted can get stuck."""

from __future__ import annotations


class NotAdmissibleError(ValueError):
    """The request can never run as asked; the message says what would."""


def check_request(prompt_tokens: int, max_tokens: int, max_model_len: int) -> None:
    """NotAdmissibleError unless prompt and answer fit into the longest sequence that the engine can hold."""
    if prompt_tokens == 0:
        raise NotAdmissibleError("the prompt is empty")
    if max_tokens < 1:
        raise NotAdmissibleError("max_tokens must be at least 1")
    if prompt_tokens + max_tokens > max_model_len:
        raise NotAdmissibleError(
            f"the prompt's {prompt_tokens} tokens and max_tokens {max_tokens} are more than the {max_model_len} tokens "
            f"of context; shorten the prompt by {prompt_tokens + max_tokens - max_model_len} tokens, lower max_tokens, "
            f"or raise --max-model-len"
        )
