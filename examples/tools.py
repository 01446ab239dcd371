"""The model calls a function of ours; its next answer uses what the function returned."""

import json
from typing import Any

from endpoint import connect

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "temperature",
            "description": "The temperature in a city now.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "enum": ["Paris", "Oslo", "Rome"]}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
]


def temperature(city: str) -> str:
    """Degrees Celsius, as a weather service would report them."""
    return json.dumps({"city": city, "celsius": {"Paris": 21, "Oslo": 9, "Rome": 27}[city]})


client, model = connect()
messages: list[Any] = [{"role": "user", "content": "How warm is it in Paris?"}]
# A model as small as SmolLM2 does not decide well by itself whether to call, and may repeat a call; with a large one,
# use tool_choice="auto" and leave parallel_tool_calls out.
first = client.chat.completions.create(
    model=model,
    messages=messages,
    tools=TOOLS,
    tool_choice="required",
    parallel_tool_calls=False,
    temperature=0,
    max_tokens=120,
)
message = first.choices[0].message
messages.append(message)
for call in message.tool_calls or []:
    if call.type == "function":
        print(f"the model calls {call.function.name}({call.function.arguments})")
        result = temperature(**json.loads(call.function.arguments))
        messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
final = client.chat.completions.create(model=model, messages=messages, tools=TOOLS, temperature=0, max_tokens=60)
print(final.choices[0].message.content)
