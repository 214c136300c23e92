"""Schemas of an OpenAPI document as JSON schemas that stand by themselves."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final
from urllib.parse import unquote

from failsoft.base.errors import BadInput

__all__ = ["Schemas"]

_DEPTH: Final = 40
_NODES: Final = 20_000
"""Bounds of one tool's schema: levels, and values in all; a model could not read more."""

_DROPPED: Final = frozenset({"example", "examples", "xml", "externalDocs", "discriminator", "deprecated", "readOnly",
                             "writeOnly", "nullable", "$schema", "$id", "$anchor", "$dynamicRef", "$dynamicAnchor",
                             "$vocabulary"})  # fmt: skip
_NAMED: Final = frozenset({"properties", "patternProperties", "$defs", "dependentSchemas"})
"""Keywords whose values have names of the user's in them."""
_DATA: Final = frozenset({"default", "enum", "const"})


class Schemas:
    """The schemas of one document. Raises :class:`BadInput` for references that lead nowhere, out, or in circles."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document

    def resolved(self, value: Any) -> Mapping[str, Any]:
        """What a reference stands for, or the object itself."""
        for _ in range(_DEPTH):
            if not isinstance(value, Mapping):
                raise BadInput("the document has something else where an object should be", param="document")
            reference = value.get("$ref")
            if reference is None:
                return value
            value = self._at(reference)
        raise BadInput("a reference leads in circles", param="document")

    def _at(self, reference: Any) -> Any:
        if not isinstance(reference, str) or not reference.startswith("#/"):
            raise BadInput(f"the reference {reference!r:.100} leads out of the document", param="document")
        found: Any = self._document
        for part in reference[2:].split("/"):
            name = unquote(part).replace("~1", "/").replace("~0", "~")
            if isinstance(found, Mapping) and name in found:
                found = found[name]
            elif isinstance(found, list) and name.isdigit() and int(name) < len(found):
                found = found[int(name)]
            else:
                raise BadInput(f"the reference {reference!r:.100} leads nowhere", param="document")
        return found

    def fields(self, schema: Any) -> tuple[Mapping[str, Any], Collection[str]] | None:
        """The properties and the required ones of a plain object's schema; None when it is anything else."""
        if not isinstance(schema, Mapping):
            return None
        schema = self.resolved(schema)
        plain = not any(
            key in schema for key in ("allOf", "anyOf", "oneOf", "not", "patternProperties", "nullable", "if")
        )
        properties, required = schema.get("properties"), schema.get("required", [])
        free = schema.get("additionalProperties", False)
        if not plain or not isinstance(properties, Mapping) or not properties or free not in (False, None):
            return None
        kept = {
            str(name): self.converted(one)
            for name, one in properties.items()
            if not (isinstance(one, Mapping) and self.resolved(one).get("readOnly") is True)
        }
        return kept, [name for name in required if name in kept] if isinstance(required, list) else []

    def converted(self, schema: Any) -> Any:
        """The schema in JSON Schema 2020-12, its references still those of the document; see :meth:`closed`."""
        budget = [_NODES]
        return self._converted(schema, 0, budget)

    def _converted(self, node: Any, depth: int, budget: list[int]) -> Any:
        budget[0] -= 1
        if depth > _DEPTH or budget[0] < 0:
            raise BadInput("a schema is too large or too deep for a tool", param="document")
        if isinstance(node, list):
            return [self._converted(one, depth + 1, budget) for one in node]
        if not isinstance(node, Mapping):
            return node
        if "$ref" in node:
            self._at(node["$ref"])
            return {"$ref": node["$ref"]}
        made: dict[str, Any] = {}
        for key, value in node.items():
            if key in _DROPPED or str(key).startswith("x-"):
                continue
            if key in _NAMED and isinstance(value, Mapping):
                made[key] = {str(name): self._converted(one, depth + 1, budget) for name, one in value.items()}
            elif key in _DATA:
                made[key] = value
            else:
                made[str(key)] = self._converted(value, depth + 1, budget)
        for bound, limit in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
            if isinstance(made.get(bound), bool) and made.pop(bound) and limit in made:  # OpenAPI 3.0
                made[bound] = made.pop(limit)
        if node.get("nullable") is True and isinstance(made.get("type"), str):
            made["type"] = [made["type"], "null"]
            if isinstance(made.get("enum"), list) and None not in made["enum"]:
                made["enum"] = [*made["enum"], None]
        return made

    def closed(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        """The schema with everything that it refers to under ``$defs``."""
        names: dict[str, str] = {}
        definitions: dict[str, Any] = {}
        budget = [_NODES]

        def pointed(node: Any) -> Any:
            budget[0] -= 1
            if budget[0] < 0:
                raise BadInput("the schemas are too large for a tool", param="document")
            if isinstance(node, list):
                return [pointed(one) for one in node]
            if not isinstance(node, Mapping):
                return node
            reference = node.get("$ref")
            if isinstance(reference, str) and reference.startswith("#/") and len(node) == 1:
                if reference not in names:
                    last = "".join(c if c.isalnum() or c in "_-" else "_" for c in reference.rpartition("/")[2])
                    name, count = last, 1
                    while name in names.values():
                        count += 1
                        name = f"{last}_{count}"
                    names[reference] = name
                    waiting.append(reference)
                return {"$ref": f"#/$defs/{names[reference]}"}
            return {key: value if key in _DATA else pointed(value) for key, value in node.items()}

        waiting: list[str] = []
        result: dict[str, Any] = pointed(schema)
        while waiting:
            reference = waiting.pop()
            definitions[names[reference]] = pointed(self.converted(self._at(reference)))
        if definitions:
            result["$defs"] = definitions
        return result
