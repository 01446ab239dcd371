"""Sends a file of requests as a batch, waits for it, and prints each answer. The server needs --batch-storage."""

import io
import json
import time

from endpoint import connect

client, model = connect()
lines = [
    {
        "custom_id": city,
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {
            "model": model,
            "messages": [{"role": "user", "content": f"In which country is {city}?"}],
            "temperature": 0,
            "max_tokens": 30,
        },
    }
    for city in ("Paris", "Oslo", "Rome")
]
requests = io.BytesIO("\n".join(json.dumps(line) for line in lines).encode())
file = client.files.create(file=("requests.jsonl", requests), purpose="batch")
batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
while batch.status in ("validating", "in_progress", "finalizing"):
    time.sleep(0.5)
    batch = client.batches.retrieve(batch.id)
print(f"the batch is {batch.status}: {batch.request_counts}")
if batch.output_file_id:
    for text in client.files.content(batch.output_file_id).text.strip().split("\n"):
        row = json.loads(text)
        print(f"{row['custom_id']}: {row['response']['body']['choices'][0]['message']['content']}")
