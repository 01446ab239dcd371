"""The objects of files and batches, in the shape in which the API returns them and in which they are stored."""

from __future__ import annotations

from typing import Literal

import msgspec

Status = Literal["validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"]
ENDED: frozenset[Status] = frozenset({"failed", "completed", "expired", "cancelled"})


class FileObject(msgspec.Struct, kw_only=True):
    """A file that was uploaded, or that a batch has written."""

    id: str
    object: str = "file"
    bytes: int
    created_at: int
    filename: str
    purpose: Literal["batch", "batch_output"]
    status: str = "processed"
    expires_at: int | None = None


class Deleted(msgspec.Struct, kw_only=True):
    """The answer to the deletion of a file."""

    id: str
    object: str = "file"
    deleted: bool = True


class LineError(msgspec.Struct):
    """An error of a line of an input file, or of the whole file if `line` is None."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


class LineErrors(msgspec.Struct):
    """The errors for which a batch failed."""

    data: list[LineError]
    object: str = "list"


class RequestCounts(msgspec.Struct):
    """The numbers of a batch's lines: of all, of those that were answered, and of those that ended with an error."""

    total: int = 0
    completed: int = 0
    failed: int = 0


class InputTokensDetails(msgspec.Struct):
    """How many of a batch's prompt tokens came from the prefix cache."""

    cached_tokens: int = 0


class OutputTokensDetails(msgspec.Struct):
    """How many of a batch's answer tokens are reasoning."""

    reasoning_tokens: int = 0


class BatchUsage(msgspec.Struct):
    """The numbers of tokens of all lines that were answered."""

    input_tokens: int = 0
    input_tokens_details: InputTokensDetails = msgspec.field(default_factory=InputTokensDetails)
    output_tokens: int = 0
    output_tokens_details: OutputTokensDetails = msgspec.field(default_factory=OutputTokensDetails)
    total_tokens: int = 0


class ExpiresAfter(msgspec.Struct, kw_only=True):
    """The expiry of the files that a batch writes: `seconds` after each has been listed."""

    anchor: str = "created_at"
    seconds: int


class BatchObject(msgspec.Struct, kw_only=True):
    """A batch; times are seconds of the Unix clock."""

    id: str
    object: str = "batch"
    endpoint: str
    model: str | None = None
    """The model that gave all answers so far; None if there are several."""
    errors: LineErrors | None = None
    input_file_id: str
    completion_window: str
    status: Status = "validating"
    output_file_id: str | None = None
    error_file_id: str | None = None
    created_at: int
    in_progress_at: int | None = None
    expires_at: int
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: RequestCounts
    usage: BatchUsage | None = None
    metadata: dict[str, str] | None = None
    output_expires_after: ExpiresAfter | None = None


class Page(msgspec.Struct, kw_only=True):
    """A part of a list, the newest first."""

    object: str = "list"
    data: list[FileObject] | list[BatchObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class LineResponse(msgspec.Struct):
    """The answer to a line, as the endpoint would have sent it."""

    status_code: int
    request_id: str
    body: msgspec.Raw


class LineFailure(msgspec.Struct):
    """The reason why a line has no answer."""

    code: str
    message: str


class OutputLine(msgspec.Struct):
    """A line of an output or error file."""

    id: str
    custom_id: str
    response: LineResponse | None
    error: LineFailure | None


encode = msgspec.json.Encoder().encode
