"""What was said before, in a window, and such that every model accepts it."""

from failsoft.memory.history import sound, summarised, window


def size(message):
    return len(message.get("content") or "")


SYSTEM = {"role": "system", "content": "s" * 10}
ASKED = {"role": "assistant", "content": None, "tool_calls": [{"id": "a"}, {"id": "b"}]}


def talk(*texts):
    return [{"role": "user" if i % 2 == 0 else "assistant", "content": text} for i, text in enumerate(texts)]


def test_what_fits_is_left_alone():
    messages = [SYSTEM, *talk("one", "two")]
    assert window(messages, 100, size) == messages


def test_the_newest_is_kept_and_the_rest_is_named():
    messages = [SYSTEM, *talk("a" * 50, "b" * 50, "c" * 5)]
    kept = window(messages, 70, size)
    assert [m["content"][0] for m in kept] == ["s", "(", "b", "c"]
    assert "1 messages" in kept[1]["content"]


def test_calls_and_their_results_go_together():
    results = [{"role": "tool", "tool_call_id": one, "content": "x" * 40} for one in "ab"]
    kept = window([SYSTEM, *talk("q"), ASKED, *results, *talk("z" * 10)], 60, size)
    assert [m["role"] for m in kept] == ["system", "user", "user"]


def test_what_is_to_be_kept_is_kept():
    messages = talk("question", "b" * 50, "c" * 5)
    assert window(messages, 20, size, keep=(0,))[1]["content"] == "question"


def test_open_calls_are_answered_and_stray_results_dropped():
    made = sound(
        [
            ASKED,
            {"role": "tool", "tool_call_id": "b", "content": "1"},
            *talk("next"),
            {"role": "tool", "tool_call_id": "zzz", "content": "2"},
        ]
    )
    assert [(m["role"], m.get("tool_call_id")) for m in made] == [
        ("assistant", None),
        ("tool", "b"),
        ("tool", "a"),
        ("user", None),
    ]
    assert "cancelled" in made[2]["content"]
    assert sound(made) == made


async def test_what_falls_out_is_summed_up():
    told = []

    async def summarise(text):
        told.append(text)
        return "they said a lot"

    messages = talk("a" * 50, "b" * 50, "c" * 5)
    kept, failed = await summarised(messages, 20, size, summarise)
    assert failed is None
    assert "they said a lot" in kept[0]["content"]
    assert told[0].startswith("user: aaa")
    kept, failed = await summarised(messages[2:], 20, size, summarise)
    assert (len(kept), len(told)) == (1, 1)


async def test_a_summary_that_fails_costs_only_itself():
    async def summarise(text):
        raise TimeoutError

    kept, failed = await summarised(talk("a" * 50, "c"), 20, size, summarise)
    assert failed == "tool_failed"
    assert "left out" in kept[0]["content"]
