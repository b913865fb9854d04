"""Setup cards: one JSON file a setup. ``SetupCard.load(path)`` reads and checks one."""

from pytest_llmbench.card.base import Fault
from pytest_llmbench.card.build import EngineBuild, LlamaServer
from pytest_llmbench.card.hardware import Gpu, Hardware
from pytest_llmbench.card.parts import FIGURES, PARTS, ClientCheck, Limit, PartName, Plan, Validity
from pytest_llmbench.card.server import Placeholder, Sampling, Server, Thinking
from pytest_llmbench.card.setup import Deviation, Published, SetupCard
from pytest_llmbench.card.weights import DraftModel, Model, expand_path

__all__ = [
    "FIGURES",
    "PARTS",
    "ClientCheck",
    "Deviation",
    "DraftModel",
    "EngineBuild",
    "Fault",
    "Gpu",
    "Hardware",
    "Limit",
    "LlamaServer",
    "Model",
    "PartName",
    "Placeholder",
    "Plan",
    "Published",
    "Sampling",
    "Server",
    "SetupCard",
    "Thinking",
    "Validity",
    "expand_path",
]
