"""An answer as an object of a Pydantic class: the server holds the model to the class's JSON schema."""

from endpoint import connect
from pydantic import BaseModel, Field


class Recipe(BaseModel):
    """A dish with what it needs."""

    name: str = Field(max_length=40)
    minutes: int = Field(ge=1, le=240)
    ingredients: list[str] = Field(min_length=2, max_length=4)
    vegetarian: bool


client, model = connect()
answer = client.chat.completions.parse(
    model=model,
    messages=[{"role": "user", "content": "Give me a recipe for tomato soup as JSON."}],
    response_format=Recipe,
    temperature=0,
    max_tokens=300,
)
recipe = answer.choices[0].message.parsed
print(recipe.model_dump_json(indent=2) if recipe else answer.choices[0].finish_reason)
