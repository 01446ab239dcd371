"""instructor: answers of a class by tool calls and by JSON schema, partial ones, and a class within a class."""

import sys

import instructor
import openai
from pydantic import BaseModel, Field


class Person(BaseModel):
    """A person."""

    name: str
    age: int


class Family(BaseModel):
    """A family: a class within a class is a reference within a JSON schema."""

    members: list[Person] = Field(max_length=1)


client = openai.OpenAI(base_url=f"{sys.argv[1]}/v1", api_key="none")
messages = [{"role": "user", "content": "Anna is 31 years old. Who is she?"}]
asked = {"model": "smollm2", "temperature": 0, "messages": messages, "max_retries": 0}
ANNA = {"name": "Anna", "age": 31}
for mode in (instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON_SCHEMA):
    person = instructor.from_openai(client, mode=mode).chat.completions.create(response_model=Person, **asked)
    assert person.model_dump() == ANNA, (mode, person)
by_responses = instructor.from_openai(client, mode=instructor.Mode.RESPONSES_TOOLS)
assert by_responses.chat.completions.create(response_model=Person, **asked).model_dump() == ANNA
by_calls = instructor.from_openai(client)
*_, last = by_calls.chat.completions.create_partial(response_model=Person, **asked)
assert (last.name, last.age) == ("Anna", 31), last
family = by_calls.chat.completions.create(response_model=Family, max_tokens=200, **asked)
assert isinstance(family.members[0], Person)
