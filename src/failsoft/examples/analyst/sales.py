"""A small sales CSV made by a seeded, documented process, so that what an analysis should find in it is known.

Three reports a month (on the 1st, 11th and 21st) over two years, 2023 and 2024, from five regions on four products:
one row each, with units sold, the price and the revenue (units × price). Expected units of a row = base of the region
× weight of the product × season of the month × growth (6 % a year) × chance (mean 1, between 0.84 and 1.16,
bell-shaped). On top of that, four changes are planted:

1. From July to September 2024 the **West** sells a third of its usual ``Gadget`` units and 60 % of the others: a
   warehouse fire.
2. In the third quarter of 2024 the **North** sells 55 % more of everything: a new large customer.
3. From October 2024 the price of ``Widget`` is 15 % higher in the **South**, and 20 % fewer are sold.
4. On 2023-03-21 the **East** reports nothing at all: its rows are missing.

Only additions, multiplications and divisions of one stream of random numbers are used, so the bytes are the same on
every machine.
"""

from __future__ import annotations

import datetime as dt
import os
import random
import secrets
from collections.abc import Iterator
from pathlib import Path

SEED = 20240930
HEADER = ("date", "region", "product", "units", "price", "revenue")
REGIONS = {"North": 120, "South": 95, "East": 140, "West": 110, "Central": 60}
PRODUCTS = {"Widget": (1.0, 1999), "Gadget": (0.7, 3450), "Doohickey": (0.4, 799), "Gizmo": (0.25, 12900)}
"""Weight of the product and its price in cents."""
SEASON = (0.94, 0.93, 0.98, 1.0, 1.02, 1.01, 0.97, 0.96, 1.0, 1.03, 1.1, 1.28)
DATES = tuple(dt.date(year, month, day) for year in (2023, 2024) for month in range(1, 13) for day in (1, 11, 21))


def rows(seed: int = SEED) -> Iterator[tuple[str, str, str, int, str, str]]:
    """The rows of the file, in order of date, region and product."""
    chance = random.Random(seed)
    for report, date in enumerate(DATES):
        growth = 1 + 0.06 * report / 36
        for region, base in REGIONS.items():
            for product, (weight, cents) in PRODUCTS.items():
                noise = 1 + 0.08 * (sum(chance.random() for _ in range(4)) - 2)
                factor, price = _planted(date, region, product)
                if not factor:
                    continue
                units = int(base * weight * SEASON[date.month - 1] * growth * noise * factor + 0.5)
                priced = (cents * price + 50) // 100
                yield date.isoformat(), region, product, units, _money(priced), _money(units * priced)


def _planted(date: dt.date, region: str, product: str) -> tuple[float, int]:
    """The factor on units and the price in percent that the planted changes make."""
    third_quarter = dt.date(2024, 7, 1) <= date < dt.date(2024, 10, 1)
    if region == "West" and third_quarter:
        return (0.33 if product == "Gadget" else 0.6), 100
    if region == "North" and third_quarter:
        return 1.55, 100
    if region == "South" and product == "Widget" and date >= dt.date(2024, 10, 1):
        return 0.8, 115
    if region == "East" and date == dt.date(2023, 3, 21):
        return 0.0, 100
    return 1.0, 100


def _money(cents: int) -> str:
    return f"{cents // 100}.{cents % 100:02d}"


def write_csv(path: str | Path, *, seed: int = SEED) -> Path:
    """Write the file (UTF-8, commas, line feeds), whole or not at all; the same seed gives the same bytes."""
    path = Path(path)
    lines = [",".join(HEADER), *(",".join(map(str, row)) for row in rows(seed))]
    part = path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}.part")
    try:
        part.write_bytes(("\n".join(lines) + "\n").encode())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return path
