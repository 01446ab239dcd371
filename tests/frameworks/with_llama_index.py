"""LlamaIndex: a tool call with its result, a streamed one, and answers of a class."""

import sys

from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel


class Person(BaseModel):
    """A person."""

    name: str
    age: int


def temperature(city: str) -> str:
    """The temperature in a city."""
    return f"22 degrees in {city}"


llm = OpenAILike(
    model="smollm2",
    api_base=f"{sys.argv[1]}/v1",
    api_key="none",
    is_chat_model=True,
    is_function_calling_model=True,
    context_window=1024,
    max_tokens=200,
    temperature=0,
)
tool = FunctionTool.from_defaults(temperature)
question = "How warm is it in Paris?"
answer = llm.chat_with_tools([tool], user_msg=question, tool_required=True, allow_parallel_tool_calls=False)
[call] = llm.get_tool_calls_from_response(answer)
assert (call.tool_name, call.tool_kwargs) == ("temperature", {"city": "Paris"}), call
result = ChatMessage(
    role="tool", content=str(tool(**call.tool_kwargs)), additional_kwargs={"tool_call_id": call.tool_id}
)
final = llm.chat([ChatMessage(role="user", content=question), answer.message, result])
assert final.message.content, final
*_, last = llm.stream_chat_with_tools([tool], user_msg=question, tool_required=True, allow_parallel_tool_calls=False)
assert [each.tool_kwargs for each in llm.get_tool_calls_from_response(last)] == [{"city": "Paris"}], last
for by_format in (True, False):
    llm.should_use_structured_outputs = by_format
    person = llm.structured_predict(Person, PromptTemplate("{name} is 31 years old. Who is she?"), name="Anna")
    assert person == Person(name="Anna", age=31), (by_format, person)
