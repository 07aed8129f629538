from __future__ import annotations

import io

import pytest
from rich.console import Console

from app.store.queries.compare import Course
from app.terminal.comparison import ComparedRun, print_comparison


def course(last, lowest=0.1, highest=0.9, mean=0.5):
    return Course(1, 20, lowest, highest, last, mean, 10)


def run(number, name="addition", algorithm="grpo", **courses):
    named = {name.replace("__", "/"): course for name, course in courses.items()}
    return ComparedRun(
        number, name, algorithm, "completed", 20, 24, 61.0, 12345, [0.1, None, 0.9], named,
        dict.fromkeys(named, 7),
    )  # fmt: skip


def shown(runs, metrics=("reward/mean",), differences=(), width=80):
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    print_comparison(runs, differences, metrics, 10, console)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_each_metric_has_a_line_for_each_run_with_what_differs_from_the_first():
    lines = shown([run(3, reward__mean=course(0.5)), run(12, reward__mean=course(0.75, mean=0.4))])
    assert lines[0] == "id  name      status     update    time  tokens  reward"
    assert lines[1] == " 3  addition  completed   20/24  1m 01s  12,345  ▁ █"
    place = lines.index("reward/mean")
    assert lines[place + 1 : place + 4] == [
        "id  name       last           best          at  mean of 10",
        " 3  addition  0.500          0.900           7       0.500",
        "12  addition  0.750  +0.250  0.900  +0.000   7       0.400  -0.100",
    ]


@pytest.mark.parametrize(
    ("counts", "heading"),
    [((6, 6), "mean of 6"), ((6, 10), "mean of up to 10"), ((4, 6), "mean of up to 6")],
)
def test_the_heading_says_of_how_many_values_the_means_are(counts, heading):
    runs = [
        run(number, reward__mean=Course(1, count, 0.1, 0.9, 0.5, 0.5, count))
        for number, count in enumerate(counts, start=1)
    ]
    lines = shown(runs)
    assert lines[lines.index("reward/mean") + 1].endswith(f"  {heading}")


def test_the_best_of_a_loss_is_the_lowest_and_other_metrics_have_none():
    loss, length = course(2.0, 1.5), course(12.0)
    runs = [run(n, "warm", "sft", sft__loss=loss, sft__tokens=length) for n in (1, 2)]
    lines = shown(runs, ("sft/loss", "sft/tokens"))
    assert "1.500" in lines[lines.index("sft/loss") + 2]
    assert "best" not in lines[lines.index("sft/tokens") + 1]


def test_a_run_that_lacks_a_metric_says_so_and_a_metric_that_all_lack_is_left_out():
    lines = shown([run(1, reward__mean=course(0.5)), run(2)], ("reward/mean", "eval/loss"))
    assert lines[lines.index("reward/mean") + 3].split() == ["2", "addition", "-", "-", "-"]
    assert "eval/loss" not in lines


def test_values_that_are_not_finite_leave_their_place_empty():
    nothing = Course(1, 2, None, None, None, None, 0)
    lines = shown([run(1, reward__mean=nothing), run(2, reward__mean=course(0.5))])
    assert lines[lines.index("reward/mean") + 3].split() == [
        "2", "addition", "0.500", "0.900", "7", "0.500"
    ]  # fmt: skip


def test_differences_stand_across_and_long_ones_below_their_key():
    long = '["python3", "reward.py", "--one", "--two", "--three", "--four", "--five", "--six"]'
    lines = shown(
        [run(1), run(2)],
        differences=[("training.lr", ["0.0002", "0.001"]), ("grpo.reward_command", ["[]", long])],
        width=60,
    )
    place = lines.index("Told differently")
    assert lines[place + 1 : place + 5] == [
        "             1       2",
        "training.lr  0.0002  0.001",
        "grpo.reward_command",
        "  1  []",
    ]
    assert "".join(line.strip() for line in lines[place + 5 :]).startswith("2  [")
    assert "--six" in " ".join(lines)


def test_runs_that_were_told_the_same_say_so():
    assert "nothing: their configurations are the same" in shown([run(1), run(2)])


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_line_is_wider_than_the_terminal(width):
    runs = [
        run(number, f"\x1b[2J run {number} " + "名前" * 20, reward__mean=course(-1234.5))
        for number in range(1, 7)
    ]
    words = ["x" * 20] * 6
    lines = shown(runs, differences=[("grpo.prompts", words)], width=width)
    assert not [line for line in lines if "\x1b" in line]
    console = Console(file=io.StringIO())
    assert max(console.render_str(line, markup=False).cell_len for line in lines) <= width
