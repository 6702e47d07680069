"""JSON from the sections of a file, which anybody may have written: an object, or a named error. Whoever reads a key checks its type."""
import json
from typing import Any

from moegg.errors import FormatError
from moegg.formats.container import Container


def section_json(container: Container, name: str) -> dict[str, Any]:
    """A JSON section as a dict; empty if the file has none. Raises FormatError for what is no JSON, or no object."""
    if name not in container.sections:
        return {}
    return json_object(container.read_section(name), f"{container.path}: section {name!r}")


def json_object(text: str | bytes, where: str) -> dict[str, Any]:
    """JSON as a dict; `where` is for the error. Raises FormatError likewise."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise FormatError(f"{where}: not JSON: {str(e):.200}", "section-json") from None
    if not isinstance(value, dict):
        raise FormatError(f"{where}: got {type(value).__name__}, expected an object", "section-json")
    return value
