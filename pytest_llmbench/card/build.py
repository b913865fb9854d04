"""The ``engine`` section: which program serves, and which build of it. A new kind is one class and one line in Engine."""

from typing import Annotated, Literal

from pydantic import Tag

from pytest_llmbench.card.base import (
    BY_KIND,
    CardModel,
    Commit,
    Digest,
    Positive,
    Sha256,
    Stated,
    Text,
    by_key,
)


class BinaryByPath(CardModel):
    """A program on this machine."""

    path: Text
    """May begin with ~ and hold $VARS."""
    sha256: Sha256 | None = None


class BinaryByName(CardModel):
    """A program looked up on $PATH."""

    name: Text
    sha256: Sha256 | None = None


class BinaryFromPackage(CardModel):
    """A program that an installed Python package brings."""

    package: Text
    sha256: Sha256 | None = None


class BinaryInWrapper(CardModel):
    """A program inside what ``server.wrapper`` starts (a container): written after the wrapper as it is, not looked up."""

    in_wrapper: Text | None
    """null: the wrapper's last word is the image, and its entrypoint is the program."""


class Release(CardModel):
    """An official release."""

    kind: Literal["release"]
    tag: Text
    url: Text | None = None


class CommitOf(CardModel):
    """Built from a commit."""

    kind: Literal["commit"]
    repository: Text
    commit: Commit


class PullRequestHead(CardModel):
    """Built from the head of a pull request."""

    kind: Literal["pull-request"]
    repository: Text
    number: Positive
    commit: Commit
    """The head that was built: a pull request moves."""


class Fork(CardModel):
    """Built from a fork."""

    kind: Literal["fork"]
    repository: Text
    branch: Text | None = None
    commit: Commit | None = None


class ContainerImage(CardModel):
    """A container image by digest: a tag may change under the card."""

    kind: Literal["container"]
    image: Text
    digest: Digest


class EnginePackage(Stated):
    """The archive or package that the engine came from."""

    name: Text
    version: Text | None = None
    sha256: Sha256 | None = None


Binary = Annotated[
    Annotated[BinaryByPath, Tag("<path>")]
    | Annotated[BinaryByName, Tag("<name>")]
    | Annotated[BinaryFromPackage, Tag("<package>")]
    | Annotated[BinaryInWrapper, Tag("<in_wrapper>")],
    by_key("path", "name", "package", "in_wrapper"),
]
Origin = Annotated[
    Annotated[Release, Tag("<release>")]
    | Annotated[CommitOf, Tag("<commit>")]
    | Annotated[PullRequestHead, Tag("<pull-request>")]
    | Annotated[Fork, Tag("<fork>")]
    | Annotated[ContainerImage, Tag("<container>")],
    BY_KIND,
]


class EngineBuild(Stated):
    """What every kind of engine states."""

    kind: str
    binary: Binary | None = None
    version: Text | None = None
    """As the engine or its release names it: "b12223"."""
    commit: Commit | None = None
    origin: Origin | None = None
    package: EnginePackage | None = None


class LlamaServer(EngineBuild):
    """llama.cpp's llama-server."""

    kind: Literal["llama-server"]


# A further kind: its class, and one more line here: | Annotated[Vllm, Tag("<vllm>")]
Engine = Annotated[
    Annotated[LlamaServer, Tag("<llama-server>")],
    BY_KIND,
]
