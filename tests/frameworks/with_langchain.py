"""LangChain: a tool call with its result, a streamed one, and answers of a class, by chats and by /v1/responses."""

import sys

from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel, Field


class Person(BaseModel):
    """A person."""

    name: str
    age: int


class Family(BaseModel):
    """A family: a class within a class is a reference within a JSON schema."""

    members: list[Person] = Field(max_length=1)


@tool
def temperature(city: str) -> str:
    """The temperature in a city."""
    return f"22 degrees in {city}"


url = f"{sys.argv[1]}/v1"
llm = ChatOpenAI(base_url=url, api_key="none", model="smollm2", temperature=0, max_tokens=200)
forced = llm.bind_tools([temperature], tool_choice="temperature")
question = HumanMessage("How warm is it in Paris?")
answer = forced.invoke([question])
[call] = answer.tool_calls
assert (call["name"], call["args"]) == ("temperature", {"city": "Paris"}), call
final = llm.bind_tools([temperature]).invoke([question, answer, temperature.invoke(call)])
assert final.content and not final.tool_calls, final
whole = None
for chunk in forced.stream([question]):
    whole = chunk if whole is None else whole + chunk
assert [each["args"] for each in whole.tool_calls] == [{"city": "Paris"}], whole

ANNA = "Anna is 31 years old. Who is she?"
for method in ("json_schema", "function_calling"):
    person = llm.with_structured_output(Person, method=method).invoke(ANNA)
    assert person == Person(name="Anna", age=31), (method, person)
family = llm.with_structured_output(Family, method="function_calling").invoke(ANNA)
assert family.members and isinstance(family.members[0], Person), family

responses = ChatOpenAI(base_url=url, api_key="none", model="smollm2", temperature=0, use_responses_api=True)
[call] = responses.bind_tools([temperature], tool_choice="temperature").invoke([question]).tool_calls
assert call["args"] == {"city": "Paris"}, call
assert responses.with_structured_output(Person).invoke(ANNA).age == 31
embeddings = OpenAIEmbeddings(base_url=url, api_key="none", model="smollm2", check_embedding_ctx_length=False)
assert len(embeddings.embed_documents(["a", "b"])) == 2
