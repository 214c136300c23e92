"""Draw the README's picture from a real run of the demo: what it prints, and the chart that it makes.

    python scripts/demo_picture.py [--out docs/pictures/demo.png]

Needs the `analyst` extra (its drawing library brings the fonts and the image format).
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib
from PIL import Image, ImageDraw, ImageFont

WIDTH, CHART, MARGIN, LINE = 1640, 820, 28, 22
PAPER, INK, SOFT = "#161c23", "#d5dbe2", "#8793a0"
COLOURS = {
    "✓": "#6fbf73",
    "✗": "#ff7b6b",
    "▲": "#ff9466",
    "▼": "#ff9466",
    "degraded": "#e8b84a",
    "completed": "#6fbf73",
}


def demo(folder: Path) -> list[str]:
    """The lines that the demo prints; its files are left in `folder`."""
    code = "from failsoft.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "demo", "--out", str(folder)],
        env={**os.environ, "COLUMNS": "100"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.splitlines()


def between(lines: list[str], first: str, last: str, *, start: int = 0) -> list[str]:
    """The lines from the one that begins with `first` up to the one that begins with `last`."""
    begin = next(i for i in range(start, len(lines)) if lines[i].strip().startswith(first))
    end = next(i for i in range(begin, len(lines)) if lines[i].strip().startswith(last))
    return [line.rstrip() for line in lines[begin:end]]


def shown(lines: list[str]) -> tuple[list[str], list[str]]:
    """What the picture shows beside the chart, and below both."""
    second = next(i for i, line in enumerate(lines) if line.startswith("2/3"))
    third = next(i for i, line in enumerate(lines) if line.startswith("3/3"))
    left = [
        '$ failsoft ask --budget 5 --data sales.csv "Compare Q3 2024 revenue',
        '                 per region with Q2 2024 and mark unusual changes"',
        *between(lines, "plan", "✓", start=second),
        *between(lines, "✓", "Answer", start=second),
        *[line for line in between(lines, "region", "Source", start=second) if line.strip()],
        "",
        *between(lines, "completed in", "written", start=second),
    ]
    below = [
        (
            "$ failsoft ask --budget 5 --fault warehouse=hang"
            ' "Which 5 carriers had the longest mean departure delay in July?"'
        ),
        *between(lines, "✗", "How the question", start=third),
        *between(lines, "What is known", "Source", start=third),
        *between(lines, "What is missing", "degraded in", start=third),
        *between(lines, "degraded in", "written", start=third),
        "",
        *[line[:120] for line in lines[-3:]],
    ]
    return squeezed(left), squeezed(below)


def squeezed(lines: list[str]) -> list[str]:
    """Without two empty lines in a row."""
    return [line for i, line in enumerate(lines) if line.strip() or (i and lines[i - 1].strip())]


def draw(left: list[str], below: list[str], chart: Path) -> Image.Image:
    """The picture."""
    fonts = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    font = ImageFont.truetype(str(fonts / "DejaVuSansMono.ttf"), 15)
    picture = Image.open(chart).convert("RGB")
    picture = picture.resize((CHART, round(picture.height * CHART / picture.width)), Image.Resampling.LANCZOS)
    top = max(len(left) * LINE, picture.height) + 2 * MARGIN
    image = Image.new("RGB", (WIDTH, top + len(below) * LINE + MARGIN), PAPER)
    pen = ImageDraw.Draw(image)
    for at, lines in ((MARGIN, left), (top, below)):
        for i, line in enumerate(lines):
            pen.text((MARGIN, at + i * LINE), line, font=font, fill=colour(line))
    image.paste(picture, (WIDTH - picture.width - MARGIN, MARGIN))
    pen.line((MARGIN, top - MARGIN // 2, WIDTH - MARGIN, top - MARGIN // 2), fill="#3b4754")
    return image


def colour(line: str) -> str:
    """By what a line begins with or holds."""
    if line.startswith("$") or "Q2 2024 and mark" in line:
        return "#ffffff"
    for mark, found in COLOURS.items():
        if line.lstrip().startswith(mark) or f"{mark} unusual" in line or f"  {mark}  " in line:
            return found
    return SOFT if line.startswith(("plan", " " * 15)) else INK


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "docs" / "pictures" / "demo.png")
    out = parser.parse_args().out
    with tempfile.TemporaryDirectory() as folder:
        lines = demo(Path(folder))
        image = draw(*shown(lines), Path(folder) / "sales" / "chart.png")
    image.quantize(64).save(out, optimize=True)
    print(f"{out}: {out.stat().st_size // 1024} KiB")


if __name__ == "__main__":
    main()
