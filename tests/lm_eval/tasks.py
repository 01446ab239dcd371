"""Two tasks for lm-eval whose data are made here: kinds of things by likelihood, and sums that are written out."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

QUESTIONS = 200
"""Of each task: one of them is half a point."""
_KINDS = {
    "animal": "horse rabbit tiger sheep camel otter zebra badger goat elephant beaver donkey",
    "bird": "robin eagle sparrow pigeon heron falcon swallow parrot crow pelican ostrich penguin",
    "fruit": "apple mango cherry plum papaya lemon grape fig apricot melon orange pear",
    "tool": "hammer saw chisel wrench drill pliers shovel screwdriver axe rake file clamp",
    "vehicle": "truck bicycle tractor ferry tram scooter van canoe train taxi bus helicopter",
    "colour": "crimson violet turquoise beige scarlet indigo magenta teal maroon olive amber ivory",
}
_PHRASES = (
    "A {} is a kind of",
    "The word {} is the name of a",
    "My child asked what a {} is: it is a",
    "{}: a type of",
)
_SHOTS = "Question: What is 2 + 2?\nAnswer: 4\nQuestion: What is 9 - 3?\nAnswer: 6\nQuestion: What is {}?\nAnswer:"


def _kinds(random_: random.Random) -> Iterator[dict[str, Any]]:
    for _ in range(QUESTIONS):
        kind = random_.choice(sorted(_KINDS))
        word = random_.choice(_KINDS[kind].split())
        choices = random_.sample([kind, *random_.sample(sorted(_KINDS.keys() - {kind}), 3)], 4)
        yield {
            "question": random_.choice(_PHRASES).format(word),
            "choices": choices,
            "answer": choices.index(kind),
        }


def _sums(random_: random.Random) -> Iterator[dict[str, Any]]:
    for _ in range(QUESTIONS):
        one, other = random_.randint(1, 20), random_.randint(1, 20)
        minus = one > other and random_.random() < 0.5
        text = f"{one} {'-' if minus else '+'} {other}"
        yield {"question": _SHOTS.format(text), "answer": str(one - other if minus else one + other)}


_TASKS: dict[str, dict[str, Any]] = {
    "octavo_kinds": {
        "output_type": "multiple_choice",
        "doc_to_choice": "choices",
        "doc_to_target": "answer",
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
    },
    "octavo_sums": {
        "output_type": "generate_until",
        "doc_to_target": "{{answer}}",
        "generation_kwargs": {"until": ["\n"], "do_sample": False, "temperature": 0, "max_gen_toks": 8},
        "filter_list": [
            {
                "name": "number",
                "filter": [{"function": "regex", "regex_pattern": r"(\d+)"}, {"function": "take_first"}],
            }
        ],
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
    },
}


def write_tasks(folder: Path) -> None:
    """Both tasks' files; JSON is YAML as well."""
    for name, questions in (("octavo_kinds", _kinds), ("octavo_sums", _sums)):
        data = folder / f"{name}.jsonl"
        data.write_text("".join(json.dumps(each) + "\n" for each in questions(random.Random(18))))
        task = {
            "task": name,
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(data)}},
            "test_split": "test",
            "doc_to_text": "{{question}}",
            **_TASKS[name],
        }
        (folder / f"{name}.yaml").write_text(json.dumps(task, indent=1))
