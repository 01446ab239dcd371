"""Prints an answer while it is written, then how many tokens it cost."""

from endpoint import connect

client, model = connect()
stream = client.chat.completions.create(
    model=model,
    messages=[{"role": "user", "content": "Tell me about the sea in two sentences."}],
    temperature=0.2,
    seed=1,
    max_tokens=80,
    stream=True,
    stream_options={"include_usage": True},
)
usage = None
for chunk in stream:
    usage = chunk.usage or usage
    for choice in chunk.choices:
        print(choice.delta.content or "", end="", flush=True)
if usage is not None:
    print(f"\n{usage.prompt_tokens} prompt tokens, {usage.completion_tokens} tokens answered")
