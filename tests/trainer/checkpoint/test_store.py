from __future__ import annotations

import os

import pytest

from trainer.checkpoint.file import DamagedCheckpointError, read, write
from trainer.checkpoint.head import UNNAMED
from trainer.checkpoint.store import Store, find
from trainer.errors import ConfigError


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def names(folder):
    return sorted(p.name for p in folder.iterdir())


def nothing(message):
    raise AssertionError(f"not expected: {message}")


# -- when ----------------------------------------------------------------------------------------


def test_one_is_due_after_so_many_optimizer_steps(tmp_path, clock):
    store = Store(tmp_path, keep=3, every_steps=10, run=UNNAMED, clock=clock)
    clock.now += 1e6
    assert [store.is_due(step) for step in (0, 9, 10, 14)] == [False, False, True, True]
    store.save(7, 14, {})
    assert [store.is_due(step) for step in (14, 23, 24)] == [False, False, True]


def test_without_a_number_of_steps_one_is_due_a_minute_after_the_last(tmp_path, clock):
    store = Store(tmp_path, keep=3, every_steps=None, run=UNNAMED, clock=clock)
    assert not store.is_due(10_000)
    clock.now += 59.9
    assert not store.is_due(10_000)
    clock.now += 0.1
    assert store.is_due(1)
    store.save(1, 1, {})
    assert not store.is_due(2)


def test_a_run_that_goes_on_counts_from_where_it_was_saved(tmp_path, clock):
    store = Store(tmp_path, keep=3, every_steps=10, run=UNNAMED, clock=clock)
    store.start_at(25)
    assert [store.is_due(step) for step in (26, 34, 35)] == [False, False, True]


# -- what stays ----------------------------------------------------------------------------------


def test_the_newest_ones_stay_and_the_best_one_whatever_its_age(tmp_path):
    store = Store(tmp_path / "deep" / "folder", keep=2, every_steps=1, run=UNNAMED)
    store.save_best({"update": 0})
    for update in range(1, 6):
        assert store.save(update, update, {"update": update}).name == f"update-00000{update}.ckpt"
    kept = ["best.ckpt", "update-000004.ckpt", "update-000005.ckpt"]
    assert names(tmp_path / "deep" / "folder") == kept


def test_the_one_just_written_stays_though_the_clock_was_set_back(tmp_path):
    store = Store(tmp_path, keep=1, every_steps=1, run=UNNAMED)
    ahead = store.save(1, 1, {"update": 1})
    os.utime(ahead, (4e9, 4e9))
    store.save(2, 2, {"update": 2})
    assert names(tmp_path) == ["update-000002.ckpt"]


def test_what_a_kill_left_unfinished_is_swept_up_and_other_files_are_not(tmp_path):
    (tmp_path / "update-000003.ckpt.unfinished").write_bytes(b"half")
    (tmp_path / "notes.txt").write_text("mine")
    Store(tmp_path, keep=1, every_steps=1, run=UNNAMED).save(4, 4, {})
    assert names(tmp_path) == ["notes.txt", "update-000004.ckpt"]


# -- which one is taken --------------------------------------------------------------------------


@pytest.fixture
def three(tmp_path):
    """Three checkpoints, a second apart."""
    store = Store(tmp_path, keep=3, every_steps=1, run=UNNAMED)
    paths = [store.save(update, update, {"update": update}) for update in (1, 2, 3)]
    for age, path in enumerate(reversed(paths)):
        os.utime(path, (1e9 - age, 1e9 - age))
    return paths


def test_the_newest_of_a_folder_is_taken(tmp_path, three):
    assert find(tmp_path, nothing) == (three[2], {"update": 3})


def test_newest_is_the_one_written_last_not_the_one_of_most_updates(tmp_path, three):
    """A run that was started afresh in the folder of a longer one."""
    write(three[0], {"update": 1})
    assert find(tmp_path, nothing) == (three[0], {"update": 1})


def test_a_file_is_taken_as_it_is(three):
    assert find(three[0], nothing) == (three[0], {"update": 1})


def test_a_file_beside_the_folder_that_is_unfinished_is_not_looked_at(tmp_path, three):
    (tmp_path / "update-000004.ckpt.unfinished").write_bytes(three[2].read_bytes())
    assert find(tmp_path, nothing)[0] == three[2]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda content: b"",
        lambda content: content[: len(content) // 2],
        lambda content: content[:-20] + bytes(20),
        lambda content: os.urandom(len(content)),
    ],
    ids=["empty", "cut", "garbled", "random"],
)
def test_a_damaged_one_is_named_and_the_one_before_it_taken(tmp_path, three, spoil):
    stamp = three[2].stat().st_mtime_ns
    three[2].write_bytes(spoil(three[2].read_bytes()))
    os.utime(three[2], ns=(stamp, stamp))
    told = []
    assert find(tmp_path, told.append) == (three[1], {"update": 2})
    [message] = told
    assert message.startswith(f"{three[2]}: is ")
    assert message.endswith("the one before it is taken.")


def test_two_damaged_ones_are_both_named(tmp_path, three):
    for path in three[1:]:
        path.write_bytes(b"")
    told = []
    assert find(tmp_path, told.append)[0] == three[0]
    assert [message.split(":")[0] for message in told] == [str(three[2]), str(three[1])]


def test_a_damaged_file_that_was_asked_for_is_an_error(three):
    three[1].write_bytes(three[1].read_bytes()[:100])
    with pytest.raises(DamagedCheckpointError, match=r"update-000002\.ckpt: is damaged"):
        find(three[1], nothing)
    with pytest.raises(DamagedCheckpointError):
        read(three[1])


def test_a_folder_without_a_whole_one_is_an_error_that_names_it(tmp_path, three):
    for path in three:
        path.write_bytes(b"")
    told = []
    with pytest.raises(ConfigError, match="holds no whole checkpoint") as caught:
        find(tmp_path, told.append)
    assert told == []
    assert all(str(path) in str(caught.value) for path in three)


def test_a_place_where_nothing_is_is_an_error_that_names_it(tmp_path):
    with pytest.raises(
        ConfigError, match=r"gone: there is no such checkpoint, and no folder"
    ) as told:
        find(tmp_path / "gone", nothing)
    assert str(told.value).endswith("to begin from the start, leave out --resume.")


def test_a_run_that_begins_anew_puts_aside_what_an_earlier_one_left(tmp_path):
    earlier = Store(tmp_path, keep=2, every_steps=1, run=UNNAMED)
    earlier.save(7, 7, {"of": "the earlier run"})
    new = Store(tmp_path, keep=2, every_steps=1, run=UNNAMED)
    new.save(1, 1, {"of": "the new run"})
    new.save(2, 2, {"of": "the new run"})
    aside, *own = names(tmp_path)
    assert own == ["update-000001.ckpt", "update-000002.ckpt"]
    assert aside.startswith("earlier-")
    assert names(tmp_path / aside) == ["update-000007.ckpt"]


def test_a_run_that_goes_on_keeps_its_own(tmp_path):
    Store(tmp_path, keep=2, every_steps=1, run=UNNAMED).save(7, 7, {})
    goes_on = Store(tmp_path, keep=2, every_steps=1, run=UNNAMED)
    goes_on.start_at(7)
    goes_on.save(8, 8, {})
    assert names(tmp_path) == ["update-000007.ckpt", "update-000008.ckpt"]


def test_a_run_that_goes_on_from_elsewhere_leaves_what_others_have_in_its_folder(tmp_path):
    for update in (7, 8):
        Store(tmp_path, keep=2, every_steps=1, run="others", _cleared=True).save(update, 1, {})
    goes_on = Store(tmp_path, keep=2, every_steps=1, run="mine")
    goes_on.start_at(3)
    for update in (4, 5, 6):
        goes_on.save(update, update, {})
    aside, *own = names(tmp_path)
    assert own == ["update-000005.ckpt", "update-000006.ckpt"]
    assert names(tmp_path / aside) == ["update-000007.ckpt", "update-000008.ckpt"]


def test_of_a_folder_that_runs_share_only_its_own_is_taken(tmp_path):
    mine, others = tmp_path / "update-000002.ckpt", tmp_path / "update-000009.ckpt"
    write(mine, {"update": 2}, "mine")
    write(others, {"update": 9}, "others")
    os.utime(mine, (1, 1))
    told = []
    assert find(tmp_path, told.append, "mine") == (mine, {"update": 2})
    assert told == [f"{tmp_path}: passed over 1 checkpoint of another run."]
    assert find(tmp_path, nothing)[0] == others, "whoever does not know whose takes the newest"
    assert find(others, nothing, "mine")[0] == others, "a file that is named is taken"
    mine.unlink()
    with pytest.raises(ConfigError, match="no whole checkpoint of this run, but 1 checkpoint of"):
        find(tmp_path, told.append, "mine")


def test_where_there_is_none_the_ones_that_were_put_aside_are_named(tmp_path):
    aside = tmp_path / "earlier-20260105-101112"
    aside.mkdir()
    write(aside / "update-000007.ckpt", {"update": 7})
    with pytest.raises(ConfigError) as told:
        find(tmp_path, nothing)
    assert f"Those of a run before it are in {aside}" in str(told.value)
    assert find(aside, nothing)[1] == {"update": 7}
