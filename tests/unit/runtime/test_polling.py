"""Waiting without an event loop."""

from podwire.runtime.polling import wait_until


def test_it_asks_until_the_condition_holds() -> None:
    answers = iter([False, False, True])
    assert wait_until(lambda: next(answers), within_s=60)
    assert next(answers, None) is None


def test_it_gives_up_after_the_time() -> None:
    assert not wait_until(lambda: False, within_s=0)
