"""A breaker closed again in the middle of a ramp began the next one with what the last had earned and not spent."""

import random

from failsoft.kernel.breaker import Breaker, BreakerPolicy


def test_what_one_ramp_has_earned_is_not_spent_in_the_next():
    breaker = Breaker(BreakerPolicy(ramp=5.0), rng=random.Random(1))

    def begin_ramp(now):
        breaker.force_open(now)
        breaker.force_close(now)

    begin_ramp(0.0)
    assert [breaker.admit(2.4) is not None for _ in range(3)] == [True, False, False]  # 0.96 of an admission is left
    begin_ramp(2.4)
    # At its beginning a tenth of the calls passes: the first one, and not one of the next ten as well.
    assert [breaker.admit(2.4) is not None for _ in range(11)] == [True] + [False] * 10
