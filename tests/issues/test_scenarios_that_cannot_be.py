"""A scenario's mistakes are told before anything runs, by file and line: some were only when its arms were done."""

from pathlib import Path

import pytest

from failsoft.base.errors import BadInput
from failsoft.drills.running import checked_scenario

SCENARIOS = sorted((Path(__file__).parents[2] / "scenarios").glob("*.yaml"))
D1 = next(file for file in SCENARIOS if file.stem == "D1").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("right", "wrong", "told"),
    [
        ("value: failsoft.error_rate", "value: failsoft.errorrate", "no figure 'failsoft.errorrate' (goal 'errors')"),
        ("permits: 400", "permitz: 400", "settings.downstreams.each.permitz: Extra inputs"),
        ("maximum_budget: 60s", "maximum_budget: 6s", "settings.run: budget is over maximum_budget"),
        ("delay: 15s", "delayy: 15s", "faults.0: latency has no 'delayy'"),
        ("use: data", "use: dataz", "no downstream 'dataz'"),
        ("at_most: 0", "at_mostt: 0", "goals.0.at_mostt: Extra inputs"),
    ],
)
def test_a_mistake_is_told_with_its_line_before_anything_runs(tmp_path, right, wrong, told):
    assert right in D1
    text = D1.replace(right, wrong, 1)
    line = next(number for number, one in enumerate(text.split("\n"), 1) if wrong in one)
    file = tmp_path / "mine.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(BadInput) as failure:
        checked_scenario(file)
    assert failure.value.message.startswith(f"{file}:{line}: ")
    assert told in failure.value.message


@pytest.mark.parametrize("settings", ["{downstreams: 5}", "{downstreams: {each: 5}}", "{downstreams: {charts: }}"])
def test_settings_that_are_no_sections_are_told(tmp_path, settings):
    file = tmp_path / "mine.yaml"
    begin, end = D1.index("settings:"), D1.index("load:")
    file.write_text(f"{D1[:begin]}settings: {settings}\n{D1[end:]}", encoding="utf-8")
    with pytest.raises(BadInput, match="should be sections"):
        checked_scenario(file)


@pytest.mark.parametrize("file", SCENARIOS, ids=lambda file: file.stem)
def test_the_scenarios_that_are_there_can_be(file):
    assert checked_scenario(file).id == file.stem
