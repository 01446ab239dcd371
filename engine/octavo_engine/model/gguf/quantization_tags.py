"""Which of a repository's GGUF files a tag such as Q4_K_M names, as in owner/name:Q4_K_M."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import PurePosixPath

from octavo_engine.errors import ModelLoadError
from octavo_engine.model.gguf.part_names import first_parts

_PART = re.compile(r"-\d{5}-of-\d{5}$")
_TAG = re.compile(r"(?:^|[-.])((?:UD-)?\w+)$", re.IGNORECASE | re.ASCII)
"""The end of a file's name that says how its numbers are quantized; Unsloth writes UD- before some."""
_BESIDE_A_MODEL = ("mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-")
"""Parts of the names of files that are no models: projectors of images, statistics, and models that draft tokens.

As in llama.cpp they are in lower case: MTP in a name says that the model itself has layers that predict further tokens.
"""


def models_in(paths: Iterable[str]) -> list[str]:
    """Return the paths of the GGUF models among a repository's files, the first part's of one in parts, in order."""
    files = (path for path in paths if path.endswith(".gguf") and not {"/", ".."} & {*PurePosixPath(path).parts})
    return first_parts(path for path in files if not any(part in _name(path) for part in _BESIDE_A_MODEL))


def model_of(repository: str, paths: Iterable[str], tag: str | None) -> str:
    """Return the path of the one model that `tag` names, or of the only one without a tag.

    A tag is the last part of a file's name, or more of the end of its path without `.gguf`, as far as folders tell
    models apart; upper and lower case are the same. ModelLoadError, with the tags that there are, if it names none or
    several.
    """
    models = models_in(paths)
    named = models if tag is None else _named(models, tag)
    if len(named) == 1:
        return named[0]
    if not models:
        raise ModelLoadError(
            f"{repository}: has no .gguf file of a model, and a tag such as :{tag} names one of these; leave the tag "
            "out, or name a repository of GGUF files"
        )
    wanted, tags = f"{repository}:{tag}" if tag else repository, tags_of(named or models)
    found = "several .gguf models" if tag is None else f"{len(named) or 'no'} .gguf models of this tag"
    raise ModelLoadError(
        f"{wanted}: {found}; name one by its tag, such as {repository}:{tags[0]} (tags: {', '.join(tags)})"
    )


def tags_of(models: Iterable[str]) -> list[str]:
    """Return a tag for each of these models: the last part of its name, or all of it where others have the same, or
    its path where others have the same name in other folders."""
    paths, tags = list(models), []
    names, shorts = Counter(map(_name, paths)), Counter(_short(_name(path)) for path in paths)
    for path in paths:
        name = _name(path)
        short = _short(name)
        tags.append(short if shorts[short] == 1 else name if names[name] == 1 else _stem(path))
    return sorted(tags)


def _named(models: Iterable[str], tag: str) -> list[str]:
    """Return the models whose path is this tag, or else the name, its last part, or the end of the path.

    So each of `tags_of` names its own model, even if that one's path is also the name of others.
    """
    stems = {model: _stem(model).lower() for model in models}
    tag = tag.lower()
    for form in (_stem, _name, lambda path: _short(_name(path))):
        if own := [model for model, stem in stems.items() if form(stem) == tag]:
            return own
    return [model for model, stem in stems.items() if f"/{stem}".endswith((f"/{tag}", f"-{tag}", f".{tag}"))]


def _name(path: str) -> str:
    """Return a model's name: that of its file without folder, number of the part and ending."""
    return PurePosixPath(_stem(path)).name


def _stem(path: str) -> str:
    """Return the path of a model without number of the part and ending."""
    return _PART.sub("", path.removesuffix(".gguf"))


def _short(name: str) -> str:
    tag = _TAG.search(name)
    return tag[1] if tag else name
