"""pydantic-ai: a tool call, a function as the answer, and answers of a class, by chats and by /v1/responses."""

import asyncio
import sys

from pydantic import BaseModel
from pydantic_ai import Agent, ModelRequest, NativeOutput, ToolDefinition
from pydantic_ai.direct import model_request_sync
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider


class Person(BaseModel):
    """A person."""

    name: str
    age: int


def temperature(city: str) -> str:
    """The temperature in a city."""
    return f"22 degrees in {city}"


ANNA = "Anna is 31 years old. Who is she?"
SHORT = {"temperature": 0, "max_tokens": 100}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = ToolDefinition(name="temperature", description="The temperature in a city.", parameters_json_schema=SCHEMA)


async def streamed(model: Model) -> Person:
    """The last state of an answer that is validated while it is written."""
    async with Agent(model, output_type=NativeOutput(Person), model_settings=SHORT).run_stream(ANNA) as run:
        return [each async for each in run.stream_output()][-1]


for kind in (OpenAIChatModel, OpenAIResponsesModel):
    model = kind("smollm2", provider=OpenAIProvider(base_url=f"{sys.argv[1]}/v1", api_key="none"))
    answer = model_request_sync(
        model,
        [ModelRequest.user_text_prompt("How warm is it in Paris?")],
        model_settings={**SHORT, "tool_choice": "required", "parallel_tool_calls": False},
        model_request_parameters=ModelRequestParameters(function_tools=[TOOL]),
    )
    [call] = [part for part in answer.parts if isinstance(part, ToolCallPart)]
    assert (call.tool_name, call.args_as_dict()) == ("temperature", {"city": "Paris"}), call
    agent = Agent(model, output_type=temperature, model_settings={**SHORT, "parallel_tool_calls": False})
    assert agent.run_sync("How warm is it in Paris?").output == "22 degrees in Paris"
    person = Agent(model, output_type=NativeOutput(Person), model_settings=SHORT).run_sync(ANNA).output
    assert person == Person(name="Anna", age=31), person
    assert asyncio.run(streamed(model)).age == 31
