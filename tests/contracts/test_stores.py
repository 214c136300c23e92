"""Every store we ship meets the contract of the port."""

import pytest

from failsoft.stores.memory import MemoryStore
from failsoft.stores.sqlite import SqliteStore
from failsoft.testing.contracts import store_cases


@pytest.mark.parametrize("case", store_cases(), ids=lambda case: case.name)
@pytest.mark.parametrize("kind", ["memory", "sqlite_file", "sqlite_memory"])
async def test_store_meets_its_contract(case, kind, tmp_path):
    store = {
        "memory": MemoryStore,
        "sqlite_file": lambda: SqliteStore(tmp_path / "a" / "runs.db"),
        "sqlite_memory": lambda: SqliteStore(":memory:"),
    }[kind]()
    try:
        await case.check(store)
    finally:
        await store.aclose()
