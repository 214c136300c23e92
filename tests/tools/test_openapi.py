"""Tools from OpenAPI documents: names, arguments, kinds, references, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from failsoft.base.errors import BadInput
from failsoft.kernel.guard import Kernel
from failsoft.testing.contracts import check_tool
from failsoft.testing.fakes import FakeResponse, FakeTransport
from failsoft.tools.openapi import openapi_tools
from failsoft.tools.registry import ToolContext

PETS = """
openapi: 3.0.3
info: {title: Pets, version: '1'}
servers:
  - url: https://{region}.pets.test/v1/
    variables: {region: {default: eu}}
paths:
  /pets/{petId}:
    parameters:
      - {name: petId, in: path, required: true, schema: {type: integer, format: int64}, description: Which pet.}
      - $ref: '#/components/parameters/trace'
    get:
      operationId: getPet
      summary: One pet.
      description: With everything that is known of it.
      parameters:
        - {name: fields, in: query, explode: false, schema: {type: array, items: {type: string}}}
        - {name: filter, in: query, style: deepObject, schema: {type: object}}
        - {name: as of, in: query, schema: {type: string, nullable: true}}
        - {name: page, in: query, content: {application/json: {schema: {type: object}}}}
        - {name: Authorization, in: header, schema: {type: string}}
    put:
      operationId: replacePet
      requestBody: {$ref: '#/components/requestBodies/pet'}
    delete: {operationId: delete/pet}
  /pets:
    get: {summary: All}
    post:
      operationId: addPet
      requestBody: {$ref: '#/components/requestBodies/pet'}
  /upload:
    post:
      operationId: upload
      requestBody: {content: {multipart/form-data: {schema: {type: object}}}}
  /login:
    post:
      operationId: login
      requestBody:
        required: true
        content:
          application/x-www-form-urlencoded:
            schema: {type: object, required: [user], properties: {user: {type: string}, scopes: {type: array}}}
  /note:
    post:
      operationId: note
      parameters: [{name: text, in: query, required: true, schema: {type: string}}]
      requestBody:
        required: true
        content: {application/json: {schema: {type: object, properties: {text: {type: string}}}}}
components:
  parameters:
    trace: {name: X-Trace, in: header, schema: {type: string}}
  requestBodies:
    pet:
      required: true
      content: {application/json; charset=utf-8: {schema: {$ref: '#/components/schemas/Pet'}}}
  schemas:
    Pet:
      type: object
      required: [name, id]
      properties:
        id: {type: integer, readOnly: true}
        name: {type: string, example: Rex}
        tags: {type: array, items: {$ref: '#/components/schemas/Tag'}}
        weight: {type: number, minimum: 0, exclusiveMinimum: true}
        owner: {type: string, nullable: true, enum: [a, b]}
    Tag:
      type: object
      required: [label]
      properties:
        label: {type: string}
        parent: {$ref: '#/components/schemas/Tag'}
"""


def yaml(text):
    from ruamel.yaml import YAML

    return YAML(typ="safe", pure=True).load(text)


READ = yaml(PETS)


def made(document: Any = READ, **options):
    transport = FakeTransport(FakeResponse([b"[]"], 200, {"content-type": "application/json"}))
    return {one.spec.name: one for one in openapi_tools(document, transport=transport, **options)}, transport


async def call(tool, arguments):
    kernel = Kernel()
    try:
        return await tool.call(kernel.guard(tool.spec.downstream), arguments, ToolContext.current(idempotency_key="k"))
    finally:
        await kernel.aclose()


def test_operations_become_tools(caplog):
    tools, _ = made(prefix="pets_")
    assert [name.removeprefix("pets_") for name in tools] == [
        *("getPet", "replacePet", "delete_pet", "get_pets", "addPet", "login", "note")
    ]
    assert "upload is not offered as a tool: its body is 'multipart/form-data'" in caplog.text
    spec = tools["pets_getPet"].spec
    assert spec.description == "One pet. With everything that is known of it."
    assert (spec.kind, spec.downstream) == ("query", "eu.pets.test")
    properties = spec.parameters["properties"]
    assert list(properties) == ["petId", "X-Trace", "fields", "filter", "as_of", "page"]
    assert properties["petId"] == {"type": "integer", "format": "int64", "description": "Which pet."}
    assert properties["as_of"] == {"type": ["string", "null"]}
    assert spec.parameters["required"] == ["petId"]
    kinds = {name: one.spec.kind for name, one in tools.items()}
    assert [name for name, kind in kinds.items() if kind == "query"] == ["pets_getPet", "pets_get_pets"]


def test_bodies_become_arguments_and_references_come_along():
    tools, _ = made(operations=["addPet"])
    parameters = tools["addPet"].spec.parameters
    assert set(parameters["properties"]) == {"name", "tags", "weight", "owner"}  # the id is the server's
    assert parameters["required"] == ["name"]
    assert parameters["properties"]["name"] == {"type": "string"}
    assert parameters["properties"]["weight"] == {"type": "number", "exclusiveMinimum": 0}
    assert parameters["properties"]["owner"] == {"type": ["string", "null"], "enum": ["a", "b", None]}
    assert parameters["properties"]["tags"]["items"] == {"$ref": "#/$defs/Tag"}
    assert parameters["$defs"]["Tag"]["properties"]["parent"] == {"$ref": "#/$defs/Tag"}
    json.dumps(parameters)


async def test_requests_are_written_as_the_document_says():
    tools, transport = made()
    arguments = {"petId": 7, "X-Trace": "t", "fields": ["a,b", "c"], "filter": {"x": 1}, "as_of": "é", "page": {"n": 2}}
    await call(tools["getPet"], arguments)
    await call(tools["replacePet"], {"petId": 7, "name": "Rex", "tags": [{"label": "x", "parent": {"label": "y"}}]})
    await call(tools["login"], {"user": "a b", "scopes": ["x", "y"]})
    await call(tools["note"], {"text": "q", "text_body": "b"})
    read, put, login, note = transport.requests
    assert read.url == (
        "https://eu.pets.test/v1/pets/7?fields=a%2Cb,c&filter%5Bx%5D=1&as%20of=%C3%A9&page=%7B%22n%22%3A2%7D"
    )
    assert (read.method, read.headers["X-Trace"], read.body) == ("GET", "t", None)
    assert json.loads(put.body or b"") == {"name": "Rex", "tags": [{"label": "x", "parent": {"label": "y"}}]}
    assert put.headers["Idempotency-Key"] == "k"
    assert login.body == b"user=a+b&scopes=x&scopes=y"
    assert (note.url, note.body) == ("https://eu.pets.test/v1/note?text=q", b'{"text":"b"}')
    for bad in ({"petId": 7, "name": 5}, {"petId": 7, "name": "x", "tags": [{"parent": {}}]}, {"petId": 7}):
        with pytest.raises(BadInput):
            await call(tools["replacePet"], bad)
    assert len(transport.requests) == 4


async def test_the_contract_of_tools():
    tools, _ = made()
    await check_tool(tools["getPet"], {"petId": 1}, {"petId": "one"})


def test_the_owner_has_the_last_word(tmp_path):
    file = tmp_path / "pets.json"
    tools, _ = made()
    file.write_text(json.dumps(READ))
    assert made(PETS)[0].keys() == tools.keys()
    tools, transport = made(
        file,
        operations=["getPet", "addPet"],
        kinds={"getPet": "external"},
        server="http://127.0.0.1:1/x",
        downstream="pets",
        approval=["addPet"],
        timeout="2s",
        allow=["loopback"],
    )
    assert [(one.spec.kind, one.spec.downstream, one.spec.timeout) for one in tools.values()] == [
        ("external", "pets", 2.0),
        ("action", "pets", 2.0),
    ]
    assert [one.spec.approval for one in tools.values()] == [False, True]
    assert transport.requests == []


def changed(**operation):
    return {
        "openapi": "3.1.0",
        "servers": [{"url": "https://a.test"}],
        "paths": {"/a/{x}": {"get": {"operationId": "op", "parameters": [{"name": "x", "in": "path"}], **operation}}},
    }


LOOP = {"a": {"$ref": "#/b"}, "b": {"$ref": "#/a"}}


@pytest.mark.parametrize(
    ("document", "options", "text"),
    [
        ("[]", {}, "no OpenAPI 3"),
        ("swagger: '2.0'", {}, "no OpenAPI 3"),
        ("openapi: 3.0.0", {}, "no paths"),
        ("a: [", {}, ":1: not YAML"),
        ("{", {}, "neither JSON nor YAML"),
        ('{"a":' * 100_000, {}, "neither JSON nor YAML"),
        (Path("/nowhere/pets.yaml"), {}, "cannot be read"),
        ({**changed(), "servers": []}, {}, "no server"),
        ({**changed(), "servers": [{"url": "/v1"}]}, {}, "no server"),
        (changed(), {"server": "ftp://a.test"}, "no server"),
        (changed(), {"operations": ["opp"]}, "did you mean op"),
        (changed(), {"kinds": {"other": "query"}}, "no operation 'other'"),
        (changed(parameters=[]), {"operations": ["op"]}, "'op': the URL has {x}"),
        (changed(parameters=[{"$ref": "https://evil.test/p"}]), {"operations": ["op"]}, "leads out"),
        (changed(parameters=[{"$ref": "#/nowhere"}]), {"operations": ["op"]}, "leads nowhere"),
        ({**changed(parameters=[{"$ref": "#/a"}]), **LOOP}, {"operations": ["op"]}, "in circles"),
        (changed(parameters=["x"]), {"operations": ["op"]}, "something else"),
        (
            changed(parameters=[{"name": "x", "in": "path", "style": "matrix"}]),
            {"operations": ["op"]},
            "style 'matrix'",
        ),
        (
            changed(parameters=[{"name": "x", "in": "path", "schema": {"type": "what"}}]),
            {"operations": ["op"]},
            "no JSON schema",
        ),
    ],
)
def test_a_document_that_is_wrong_is_refused_by_name(document, options, text):
    with pytest.raises(BadInput, match=text):
        made(document, **options)


def test_huge_schemas_are_refused():
    deep: Any = {"type": "string"}
    for _ in range(200):
        deep = {"type": "array", "items": deep}
    wide = {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(30_000)}}
    for schema in (deep, wide):
        document = changed(parameters=[{"name": "x", "in": "path", "schema": schema}])
        with pytest.raises(BadInput, match="too large or too deep"):
            made(document, operations=["op"])


def test_shared_nodes_do_not_multiply():
    bomb = "a0: &a0 {type: string}\n" + "".join(
        f"a{n}: &a{n} {{type: object, properties: {{{', '.join(f'p{i}: *a{n - 1}' for i in range(10))}}}}}\n"
        for n in range(1, 9)
    )
    text = bomb + (
        "openapi: 3.1.0\nservers: [{url: 'https://a.test'}]\n"
        "paths: {/a: {post: {operationId: op, requestBody: {content: {application/json: {schema: *a8}}}}}}\n"
    )
    with pytest.raises(BadInput, match="too large"):
        made(text, operations=["op"])


async def test_a_reference_to_itself_is_an_error_and_no_crash():
    document = {**changed(), "components": {"schemas": {"A": {"$ref": "#/components/schemas/A"}}}}
    document["paths"]["/a/{x}"]["get"]["parameters"] = [
        {"name": "x", "in": "path", "schema": {"$ref": "#/components/schemas/A"}}
    ]
    tools, transport = made(document)
    with pytest.raises(BadInput):
        await call(tools["op"], {"x": "1"})
    assert transport.requests == []
