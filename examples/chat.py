"""One question, one answer."""

from endpoint import connect

client, model = connect()
answer = client.chat.completions.create(
    model=model,
    messages=[
        {"role": "system", "content": "Answer in one sentence."},
        {"role": "user", "content": "What is the capital of France?"},
    ],
    temperature=0,
    max_tokens=60,
)
print(answer.choices[0].message.content)
