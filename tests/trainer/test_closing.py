from __future__ import annotations

import pytest

from trainer.closing import Closing


class Door(Closing):
    def __init__(self):
        self.closings = 0

    def close(self):
        self.closings += 1


def test_leaving_the_block_closes_what_was_entered():
    opened = Door()
    with opened as door:
        assert door is opened
        assert door.closings == 0
    assert door.closings == 1


def test_an_error_closes_as_well_and_goes_on():
    door = Door()
    with pytest.raises(KeyError), door:
        raise KeyError
    assert door.closings == 1


def test_a_class_that_does_not_say_how_it_closes_cannot_be_opened():
    class Half(Closing):
        pass

    with pytest.raises(TypeError, match="close"):
        Half()
