"""The JSON Schema of setup cards, for editors and other programs."""

import json
from pathlib import Path

from pytest_llmbench.card.setup import SetupCard

SCHEMA_PATH = Path(__file__).parent.parent / "card.schema.json"


def schema_text() -> str:
    """The schema as it is kept in card.schema.json (draft 2020-12)."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **SetupCard.model_json_schema(by_alias=True)}
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
