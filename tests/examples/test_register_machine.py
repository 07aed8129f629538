"""The register machine: its interpreter, its distances, its tasks, and what its reward pays for."""

from __future__ import annotations

import importlib
import json
import random
import shutil
import sys
from itertools import islice, pairwise, product
from statistics import mean

import pytest

from trainer.chat.dataset import read_prompts
from trainer.config import load_config, refuse_unavailable
from trainer.monitor import SilentMonitor
from trainer.reward.program import RewardRequest, open_reward_program
from trainer.run import run

FOLDER = "register_machine"
NAMES = ("machine", "make_tasks", "reward")


@pytest.fixture(scope="module")
def folder(examples):
    return examples / FOLDER


@pytest.fixture(scope="module")
def scripts(folder):
    """The example's three scripts as modules, found as Python finds them there."""
    sys.path.insert(0, str(folder))
    yield {name: importlib.import_module(name) for name in NAMES}
    sys.path.remove(str(folder))
    for name in NAMES:
        del sys.modules[name]


@pytest.fixture(scope="module")
def machine(scripts):
    return scripts["machine"]


@pytest.fixture(scope="module")
def make_tasks(scripts):
    return scripts["make_tasks"]


@pytest.fixture(scope="module")
def score(scripts):
    return scripts["reward"].score


@pytest.fixture(scope="module")
def written(make_tasks):
    return make_tasks.files()


def rows(text):
    return [json.loads(line) for line in text.splitlines()]


def task_of(row):
    return tuple(row["start"]), tuple(row["wanted"]), row["distance"]


@pytest.mark.parametrize(
    ("program", "registers"),
    [
        ("add A B", (8, 5, 2)),
        ("sub A C", (1, 5, 2)),
        ("copy C B", (3, 5, 5)),
        ("swap A C", (2, 5, 3)),
        ("add B B", (3, 10, 2)),
        ("sub B B", (3, 0, 2)),
        ("copy B B", (3, 5, 2)),
        ("swap B B", (3, 5, 2)),
        ("add A B\ncopy B A\nsub B C", (8, 6, 2)),
    ],
)
def test_instructions_do_what_the_prompt_says(machine, program, registers):
    outcome = machine.run(program, (3, 5, 2))

    assert outcome == machine.Outcome(registers, program.count("\n") + 1, complete=True)


@pytest.mark.parametrize(
    ("program", "registers", "ran", "complete"),
    [
        ("", (3, 5, 2), 0, True),
        ("\n \n", (3, 5, 2), 0, True),
        ("\n add A B \n\n", (8, 5, 2), 1, True),
        ("add A B\nand then\nadd A B", (8, 5, 2), 1, False),
        ("add A B\n\nadd A B", (8, 5, 2), 1, False),
        ("add A B; add A B", (3, 5, 2), 0, False),
        ("add A B add A B", (3, 5, 2), 0, False),
        ("add A, B", (3, 5, 2), 0, False),
        ("add A", (3, 5, 2), 0, False),
        ("add A D", (3, 5, 2), 0, False),
        ("ADD A B", (3, 5, 2), 0, False),
        ("add А B", (3, 5, 2), 0, False),  # a Cyrillic A
        ("copy A 8", (3, 5, 2), 0, False),
        ("sub A C\nsub A C\nadd A B", (1, 5, 2), 1, False),  # no register holds -1
        ("add B B\nadd B B\nadd B A", (3, 20, 2), 2, False),  # none holds 23
    ],
)
def test_a_program_stops_where_it_cannot_go_on(machine, program, registers, ran, complete):
    assert machine.run(program, (3, 5, 2)) == machine.Outcome(registers, ran, complete)


def test_every_instruction_can_be_written_and_read(machine):
    assert len(machine.INSTRUCTIONS) == 36
    assert [machine.parse(str(i)) for i in machine.INSTRUCTIONS] == list(machine.INSTRUCTIONS)


def test_distances_are_those_of_trying_all_programs(machine):
    dice = random.Random(2)
    for _ in range(12):
        start = tuple(dice.randint(0, 9) for _ in range(3))
        ends = {start: 0}
        for length in (1, 2):
            for program in product(machine.INSTRUCTIONS, repeat=length):
                outcome = machine.run("\n".join(map(str, program)), start)
                if outcome.complete:
                    ends.setdefault(outcome.state, length)

        wanted = tuple(dice.choice([None, *range(10)]) for _ in range(3))
        fits = [count for end, count in ends.items() if machine.reached(end, wanted)]
        assert machine.distance(start, wanted, at_most=2) == min(fits, default=None)
        for end in dice.sample(sorted(ends), 10):
            assert machine.distance(start, end) == ends[end]


def test_a_goal_that_nothing_leads_to_has_no_distance(machine):
    assert machine.distance((2, 4, 8), (1, None, None)) is None  # even numbers stay even
    assert machine.shortest_programs((2, 4, 8), (1, None, None)) == []


def test_shortest_programs_are_all_that_reach_the_goal_in_so_many_steps(machine):
    start, wanted = (5, 2, 4), (None, 11, None)

    programs = machine.shortest_programs(start, wanted)

    found = [
        program
        for program in product(machine.INSTRUCTIONS, repeat=2)
        if (outcome := machine.run("\n".join(map(str, program)), start)).complete
        and machine.reached(outcome.state, wanted)
    ]
    assert machine.distance(start, wanted) == 2
    assert programs == found
    assert machine.shortest_programs(start, start) == [()]


def test_the_files_are_what_the_generator_writes(folder, make_tasks, written):
    assert {name: (folder / name).read_bytes() for name in make_tasks.COUNTS} == {
        name: text.encode() for name, text in written.items()
    }
    first = next(make_tasks.tasks(random.Random(2)))
    assert first != next(make_tasks.tasks(random.Random(make_tasks.SEED)))


def test_no_task_is_another_one_under_other_names(make_tasks):
    tasks = list(islice(make_tasks.tasks(random.Random(1)), sum(make_tasks.COUNTS.values())))

    def all_names(task):
        pairs = list(zip(task.start, task.wanted, strict=True))
        orders = ((0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0))
        return {tuple(pairs[at] for at in order) for order in orders}

    seen = set()
    for task in tasks:
        assert not all_names(task) & seen
        seen |= all_names(task)


def test_held_out_tasks_are_none_of_training_and_drawn_like_them(written):
    demonstrations, train, held_out = map(rows, written.values())
    asked = [{row["messages"][1]["content"] for row in file} for file in (train, held_out)]
    shown = {row["messages"][1]["content"] for row in demonstrations}

    assert [len(file) for file in (demonstrations, train, held_out)] == [480, 256, 64]
    assert not asked[1] & (asked[0] | shown)
    for file in (train, held_out):
        at = [row["distance"] for row in file]
        assert all(at[i : i + 8] == [1, 1, 2, 1, 2, 1, 3, 2] for i in range(0, len(at), 8))


@pytest.mark.parametrize("name", ["train.jsonl", "held_out.jsonl"])
def test_each_task_is_as_far_from_its_goal_as_it_says(machine, written, name):
    for row in rows(written[name]):
        start, wanted, steps = task_of(row)
        given, _, goal = row["messages"][1]["content"].removesuffix(".").partition(". Make ")
        assert given == f"A={start[0]} B={start[1]} C={start[2]}"
        assert goal.split() == [
            f"{r}={v}" for r, v in zip("ABC", wanted, strict=True) if v is not None
        ]
        assert machine.distance(start, wanted) == steps


def test_each_demonstration_is_a_shortest_program(machine, make_tasks, written):
    tasks = islice(make_tasks.tasks(random.Random(make_tasks.SEED)), 480)
    for task, row in zip(tasks, rows(written["demonstrations.jsonl"]), strict=True):
        assert row["messages"][:2] == task.prompt
        outcome = machine.run(row["messages"][2]["content"], task.start)
        assert machine.reached(outcome.state, task.wanted)
        assert (outcome.ran, outcome.complete) == (task.distance, True)


TASK = ((3, 5, 2), (8, 7, None), 2)
"""Solved by `add A B`, then `add B C`, and not by the same two in the other order."""


@pytest.mark.parametrize(
    ("answer", "nearer", "waste", "stray"),
    [
        ("add A B\nadd B C", 1, 0, 0),
        ("add A B", 0.5, 0, 0),  # one of two steps
        ("add B C", 0, -0.1, 0),
        ("add B C\nadd A B", 0.5, -0.1, 0),  # A is 10 then, one `sub A C` from 8
        ("sub C B", 0, 0, -0.5),  # cannot run: nothing did
        ("swap A C", 0, -0.1, 0),
        ("add A B\nadd B C\ncopy C C", 1, -0.1, 0),
        ("copy C C\nadd A B", 0.5, -0.1, 0),
        ("add A B\nadd B C\nThat is it.", 1, 0, -0.2),
        ("add A B\nThen the other one:\nadd B C", 0.5, 0, -0.2),
        ("add A B\nadd B C\nadd", 1, 0, -0.2),  # cut off
        ("swap A C\nI am not sure.", 0, -0.1, -0.2),
        ("", 0, 0, -0.5),
        ("Use add A B.", 0, 0, -0.5),
    ],
)
def test_reward_by_hand(machine, score, answer, nearer, waste, stray):
    start, wanted, steps = TASK
    assert machine.distance(start, wanted) == steps

    reply = score(answer, *TASK)

    parts = {"nearer": nearer, "waste": waste, "stray": stray, "solved": float(nearer == 1)}
    assert reply == {"reward": pytest.approx(nearer + waste + stray), "parts": parts}


def test_the_steps_of_a_way_are_paid_by_the_end_not_by_what_was_passed(score):
    there_and_on = "add A B\nadd B C\nadd A A"

    assert score(there_and_on, *TASK)["reward"] < score("add A B", *TASK)["reward"]
    assert score(there_and_on, *TASK)["parts"]["solved"] == 0


def test_doing_nothing_does_not_pay(score):
    idle = ["copy A A", "swap B B", "swap A B\nswap A B", "add A B\nsub A B"]

    assert [score(answer, *TASK)["reward"] for answer in idle] == [-0.1, -0.1, -0.2, -0.2]
    assert {score(blank, *TASK)["reward"] for blank in ("", " ", "\n\n", "\t")} == {-0.5}


def test_copying_the_task_or_the_instructions_does_not_pay(make_tasks, score):
    task = make_tasks.Task(*TASK)
    instructions = make_tasks.SYSTEM.splitlines()

    for copied in (task.question, make_tasks.SYSTEM, *instructions, "A=8 B=7", "8 7 2"):
        assert score(copied, *TASK)["reward"] == -0.5


def test_padding_and_repeating_cost_more_with_every_line(score):
    right = "add A B\nadd B C"
    padded = [right + "\ncopy C C" * count for count in range(12)]
    repeated = ["\n".join(["copy A A"] * count) for count in range(1, 12)]

    for answers in (padded, repeated):
        rewards = [score(answer, *TASK)["reward"] for answer in answers]
        assert all(b == pytest.approx(max(a - 0.1, -0.5)) for a, b in pairwise(rewards))


def test_several_programs_in_one_answer_do_not_pay(score):
    right = "add A B\nadd B C"

    for guesses in (f"{right}\n\n{right}", f"add A C\n\n{right}", f"swap A B\nor\n{right}"):
        assert score(guesses, *TASK)["reward"] <= score(right, *TASK)["reward"] - 0.2


def test_wandering_never_pays_more_than_the_shortest_way_to_the_same_end(machine, score, written):
    """Over every program of up to two instructions, and random longer ones."""
    dice = random.Random(4)
    short = [p for n in (1, 2) for p in product(machine.INSTRUCTIONS, repeat=n)]
    long = [dice.choices(machine.INSTRUCTIONS, k=dice.randint(3, 9)) for _ in range(300)]
    for row in rows(written["held_out.jsonl"])[4:6]:  # 2 instructions, and 1
        start, wanted, steps = task_of(row)
        left = {}
        for program in (*short, *long):
            outcome = machine.run("\n".join(map(str, program)), start)
            if outcome.state not in left:
                left[outcome.state] = machine.distance(outcome.state, wanted, at_most=steps)
            after = left[outcome.state]
            gained = 0 if after is None else steps - after
            reward = score("\n".join(map(str, program)), start, wanted, steps)["reward"]

            assert reward <= gained / steps + 1e-4
            assert (reward > 0) <= (gained > 0)
            assert (reward == 1) == (gained == steps == len(program))


def test_no_constant_answer_pays(machine, score, written):
    tasks = [
        task_of(row) for name in ("train.jsonl", "held_out.jsonl") for row in rows(written[name])
    ]
    dice = random.Random(5)
    pairs = [
        f"{dice.choice(machine.INSTRUCTIONS)}\n{dice.choice(machine.INSTRUCTIONS)}"
        for _ in range(40)
    ]

    best = max(
        mean(score(answer, *task)["reward"] for task in tasks[::4])
        for answer in (*map(str, machine.INSTRUCTIONS), *pairs)
    )

    assert best < 0.1


def test_the_program_keeps_the_protocol_and_names_the_parts(folder, converse):
    hello, end = {"protocol": "retrograd-reward/1"}, {"_retrograd_batch_end": 3}
    start, wanted, steps = TASK
    metadata = {"start": start, "wanted": wanted, "distance": steps}
    requests = [
        {
            "prompt": "?",
            "completion": completion,
            "messages": [],
            "metadata": metadata,
            "_retrograd_batch": 3,
            "_retrograd_index": index,
        }
        for index, completion in enumerate(["add A B", "Здравствуй"])
    ]

    replies = converse(folder / "reward.py", hello, *requests, end)

    assert replies == [
        hello,
        {
            "reward": 0.5,
            "parts": {"nearer": 0.5, "waste": 0.0, "stray": 0.0, "solved": 0.0},
            "_retrograd_batch": 3,
            "_retrograd_index": 0,
        },
        {
            "reward": -0.5,
            "parts": {"nearer": 0.0, "waste": 0.0, "stray": -0.5, "solved": 0.0},
            "_retrograd_batch": 3,
            "_retrograd_index": 1,
        },
        end,
    ]


def test_a_run_would_get_full_marks_for_the_shortest_programs(folder, machine):
    lines = read_prompts(folder / "held_out.jsonl")
    answers = [
        machine.shortest_programs(tuple(x.metadata["start"]), tuple(x.metadata["wanted"]))[-1]
        for x in lines
    ]
    requests = [
        RewardRequest(line, "\n".join(map(str, answer)))
        for line, answer in zip(lines, answers, strict=True)
    ]

    with open_reward_program(
        ["python3", "reward.py"],
        mode="persistent",
        timeout_seconds=60,
        folder=folder,
        judge_allowed=False,
    ) as program:
        replies = program.score(requests)

    assert [reply.reward for reply in replies] == [1.0] * 64
    assert all(reply.parts["solved"] == 1 for reply in replies)


@pytest.mark.parametrize("name", ["sft.toml", "grpo.toml"])
def test_configurations_load_and_write_under_runs(folder, root, name):
    config = load_config(folder / name)

    refuse_unavailable(config)
    for path in (config.output.path, config.observe.directory):
        assert path.resolve().is_relative_to(root / "runs")


def test_grpo_begins_with_what_sft_leaves(folder):
    sft, grpo = load_config(folder / "sft.toml"), load_config(folder / "grpo.toml")

    assert grpo.lora.init_adapter.resolve() == sft.output.path.resolve()
    assert grpo.training.ctx == sft.training.ctx


class Watcher(SilentMonitor):
    """Keeps the mean reward of each evaluation."""

    def __init__(self):
        self.means = []

    def evaluation(self, update, groups, values):
        self.means.append(values["eval/mean_reward"])


@pytest.mark.full
@pytest.mark.timeout(4800)
def test_grpo_raises_the_held_out_reward_by_a_tenth_and_more(folder, smollm2, tmp_path):
    copied = shutil.copytree(folder, tmp_path / "examples" / FOLDER)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / smollm2.name).symlink_to(smollm2)
    watcher = Watcher()

    for name in ("sft.toml", "grpo.toml"):
        outcome = run(load_config(copied / name), watcher)
        assert outcome.status == "completed", outcome.message

    assert watcher.means[-1] - watcher.means[0] >= 0.1
