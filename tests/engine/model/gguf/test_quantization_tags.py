"""Which of a repository's GGUF files a tag names."""

from __future__ import annotations

import pytest

from octavo_engine.errors import ModelLoadError
from octavo_engine.model.gguf.quantization_tags import model_of, tags_of

FILES = [
    "README.md",
    "Qwen3-8B-Q4_K_M.gguf",
    "Qwen3-8B-UD-Q4_K_XL.gguf",
    "Qwen3-8B-Q4_K_XL.gguf",
    "Qwen3-8B.i1-IQ2_XXS.gguf",
    "qwen3-8b-q8_0.gguf",
    "BF16/Qwen3-8B-BF16-00001-of-00002.gguf",
    "BF16/Qwen3-8B-BF16-00002-of-00002.gguf",
    "mmproj-BF16.gguf",
    "Qwen3-8B-imatrix.gguf",
    "mtp-Qwen3-8B-Q8_0.gguf",
    "../../Qwen3-8B-Q3_K_M.gguf",
    "/etc/Qwen3-8B-Q5_K_M.gguf",
]


@pytest.mark.parametrize(
    ("tag", "file"),
    [
        ("Q4_K_M", "Qwen3-8B-Q4_K_M.gguf"),
        ("q4_k_m", "Qwen3-8B-Q4_K_M.gguf"),
        ("UD-Q4_K_XL", "Qwen3-8B-UD-Q4_K_XL.gguf"),
        ("Q4_K_XL", "Qwen3-8B-Q4_K_XL.gguf"),
        ("IQ2_XXS", "Qwen3-8B.i1-IQ2_XXS.gguf"),
        ("i1-IQ2_XXS", "Qwen3-8B.i1-IQ2_XXS.gguf"),
        ("Q8_0", "qwen3-8b-q8_0.gguf"),
        ("BF16", "BF16/Qwen3-8B-BF16-00001-of-00002.gguf"),
        ("Qwen3-8B-Q4_K_M", "Qwen3-8B-Q4_K_M.gguf"),
    ],
)
def test_a_tag_is_the_end_of_a_models_name(tag: str, file: str) -> None:
    assert model_of("o/n", FILES, tag) == file


@pytest.mark.parametrize("tag", ["Q4_K", "K_M", "Q3_K_M", "Q5_K_M", "F16", "00001-of-00002", "Q4_K_M.gguf"])
def test_no_other_tag_names_a_model(tag: str) -> None:
    with pytest.raises(ModelLoadError) as caught:
        model_of("o/n", FILES, tag)
    tags = "BF16, IQ2_XXS, Q4_K_M, Q4_K_XL, UD-Q4_K_XL, q8_0"
    assert str(caught.value) == (
        f"o/n:{tag}: no .gguf models of this tag; name one by its tag, such as o/n:BF16 (tags: {tags})"
    )


def test_models_of_the_same_tag_are_named_by_more_of_their_names() -> None:
    files = ["base-Q8_0.gguf", "chat-Q8_0.gguf", "chat-Q4_0.gguf"]
    with pytest.raises(ModelLoadError, match=r"o/n:Q8_0: 2 \.gguf models .*\(tags: base-Q8_0, chat-Q8_0\)"):
        model_of("o/n", files, "Q8_0")
    assert model_of("o/n", files, "chat-Q8_0") == "chat-Q8_0.gguf"
    assert model_of("o/n", ["mmproj-F16.gguf", "model.gguf"], None) == "model.gguf"


def test_models_of_the_same_name_are_named_by_their_folders() -> None:
    files = ["base/model-Q8_0.gguf", "chat/model-Q8_0.gguf", "chat/model-Q4_0.gguf"]
    with pytest.raises(ModelLoadError, match=r"2 \.gguf models .*\(tags: base/model-Q8_0, chat/model-Q8_0\)"):
        model_of("o/n", files, "Q8_0")
    with pytest.raises(ModelLoadError, match=r"no \.gguf models .*\(tags: Q4_0, base/model-Q8_0, chat/model-Q8_0\)"):
        model_of("o/n", files, "hat/model-Q8_0")
    assert model_of("o/n", files, "Chat/model-q8_0") == "chat/model-Q8_0.gguf"


@pytest.mark.parametrize(
    "files", [["Q4_0/model.gguf", "Q8_0/model.gguf", "model.gguf"], ["a/Q4_0.gguf", "b/model-Q4_0.gguf"]]
)
def test_each_tag_in_the_list_names_its_model(files: list[str]) -> None:
    """Also one without a folder, whose name others have in folders."""
    assert sorted(model_of("o/n", files, tag) for tag in tags_of(files)) == files


def test_a_model_that_has_layers_for_further_tokens_is_one() -> None:
    files = ["Qwen3.6-27B-MTP-Q8_0.gguf", "mtp-Qwen3.6-27B-Q8_0.gguf"]
    assert model_of("o/n", files, "Q8_0") == files[0]
