"""Runs as a user starts them, a few steps long: saving, resuming, starting from a checkpoint, reporting."""
import io
import json
import os
import pathlib
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from reference import export as checkpoint
from reference import inventory, numerics
from reference.layers import rope_frequencies
from reference.train import feed, parameters, plot, progress, run, state
from reference.train.data import mix
from reference.train.optimiser import Optimiser, PortableOptimiser
from reference.train.ranks import Place

TINY = ["--device", "cpu", "--ranks", "1", "--minutes", "600", "--tokens-per-step", "512", "--eval-samples", "0"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "ROOT", tmp_path)
    return tmp_path / "build" / "train" / "scratch"


def place(rank, count, values=None):
    """For ranks that save one after the other, rank 0 last."""
    values = torch.zeros(1) if values is None else values
    return Place(rank, count, SimpleNamespace(values=values), threading.Barrier(1))


def train(*arguments):
    assert run.main(["--run", "scratch", *TINY, *arguments]) == 0


@pytest.mark.parametrize("option, value", [("--ranks", "0"), ("--tokens-per-step", "-1"), ("--tokens-per-pass", "0"),
                                           ("--data-workers", "-1"), ("--minutes", "0"), ("--from-progress", "1")])
def test_a_value_that_cannot_be_is_refused(folder, capsys, option, value):
    with pytest.raises(SystemExit):
        train(option, value)
    assert f"error: {option}: must" in capsys.readouterr().err
    assert not folder.exists()


@pytest.mark.parametrize("first, second", [(["--portable"], []), ([], ["--portable"])])
def test_a_state_of_one_path_is_resumed_by_the_other(folder, first, second):
    train("--steps", "3", *first)
    before = torch.load(folder / "rank0.pt")
    assert before["step"] == before["step_count"] == 3 and before["tokens"] == 3 * 256
    values = torch.load(folder / "values.pt")
    train("--steps", "0", *second)  # loads and saves
    after = torch.load(folder / "rank0.pt")
    assert torch.equal(torch.load(folder / "values.pt"), values)
    assert set(after["optimiser"]) == set(before["optimiser"])
    assert all(torch.equal(after["optimiser"][n], t) for n, t in before["optimiser"].items())
    assert after["step"] == 3 and after["elapsed"] >= before["elapsed"]
    train("--steps", "1", *second)
    moved = torch.load(folder / "values.pt")
    assert torch.load(folder / "rank0.pt")["step"] == 4
    assert not torch.equal(moved, values) and moved.isfinite().all()


def test_both_paths_go_the_same_way(folder, nano):
    """Two steps from the same start: what the weights have moved by points the same way."""
    start = parameters.Parameters(nano.config)
    parameters.initialise(start, rope_frequencies(nano.config, False), 1)
    moved = []
    for path in ([], ["--portable"]):
        train("--steps", "2", *path)
        moved.append(torch.load(folder / "values.pt") - start.values)
        for file in folder.iterdir():
            file.unlink()
    assert torch.dot(*moved) / (moved[0].norm() * moved[1].norm()) > 0.9


def test_two_processes_train_one_model(folder):
    train("--ranks", "2", "--steps", "2", "--eval-samples", "1")
    saved = [torch.load(folder / f"rank{rank}.pt") for rank in (0, 1)]
    assert all(one["step"] == one["ranks"] == 2 and one["tokens"] == 2 * 2 * 256 for one in saved)
    assert saved[0]["elapsed"] == saved[1]["elapsed"] > 0
    assert saved[0]["optimiser"] and not set(saved[0]["optimiser"]) & set(saved[1]["optimiser"])
    scores = json.loads((folder / "log.jsonl").read_text().splitlines()[-1])["eval"]
    assert {"arithmetic", "session", "recall_3072", "tool_result"} <= set(scores)  # of both ranks
    train("--steps", "1")
    assert torch.load(folder / "rank0.pt")["step"] == 3


def test_ranks_may_change_between_starts(tmp_path, nano):
    p = parameters.Parameters(nano.config)
    owners = [Optimiser(p, [p.grads, p.grads], rank, 2, run.train_wanted) for rank in (0, 1)]
    for rank, owner in reversed(list(enumerate(owners))):
        owner.step_count = 7
        for name, tensor in owner.state.items():
            tensor.fill_(float(len(name)))
        state.save(tmp_path, "rank", place(rank, 2), owner, {"step": 9})
    alone = PortableOptimiser(p, [p.grads], 0, 1, run.train_wanted)
    assert state.load(tmp_path, "rank", alone) == {"step": 9, "step_count": 7}
    assert all((tensor == len(name)).all() for name, tensor in alone.state.items())
    for tensor in alone.state.values():
        tensor.fill_(1.0)
    state.save(tmp_path, "rank", place(0, 1), alone, {"step": 10})  # leaves rank1.pt of the earlier save behind
    for owner in owners:
        assert state.load(tmp_path, "rank", owner)["step"] == 10
        assert all((tensor == 1).all() for tensor in owner.state.values())


def test_a_state_of_before_the_rank_count_was_kept_is_resumed(tmp_path, nano):
    p = parameters.Parameters(nano.config)
    for rank in (1, 0):
        owner = Optimiser(p, [p.grads, p.grads], rank, 2, run.train_wanted)
        for tensor in owner.state.values():
            tensor.fill_(2.0)
        state.save(tmp_path, "rank", place(rank, 2), owner, {"step": 9, "tokens": 5, "elapsed": 1.0})
    for rank in (0, 1):
        saved = torch.load(tmp_path / f"rank{rank}.pt")
        del saved["ranks"]
        torch.save(saved, tmp_path / f"rank{rank}.pt")
    alone = Optimiser(p, [p.grads], 0, 1, run.train_wanted)
    assert state.load(tmp_path, "rank", alone)["tokens"] == 5
    assert all((tensor == 2).all() for tensor in alone.state.values())
    (tmp_path / "rank1.pt").unlink()
    with pytest.raises(FileNotFoundError):
        state.load(tmp_path, "rank", alone)


class Killed(BaseException):
    pass


def kill_at(patch, count):
    """From now on the `count`-th change of a file (from 0) does not happen, or tears what torch.save writes."""
    left = [count]

    def dying(change, torn=lambda *arguments: None):
        def wrapped(*arguments, **options):
            left[0] -= 1
            if left[0] < 0:
                torn(*arguments)
                raise Killed
            return change(*arguments, **options)
        return wrapped
    patch.setattr(torch, "save", dying(torch.save, lambda value, path: pathlib.Path(path).write_bytes(b"torn")))
    patch.setattr(os, "replace", dying(os.replace))
    patch.setattr(pathlib.Path, "write_text", dying(pathlib.Path.write_text))
    patch.setattr(pathlib.Path, "unlink", dying(pathlib.Path.unlink))


def save_step(folder, step):
    """What two ranks save: every number is the step."""
    for rank in (1, 0):
        optimiser = SimpleNamespace(state={f"w{rank}": torch.full((3,), float(step))}, step_count=step)
        state.save(folder, "rank", place(rank, 2, torch.full((5,), float(step))), optimiser, {"step": step})


def saved_step(folder):
    """The step that everything in the folder is of; 0 for no state."""
    state.finish_save(folder)
    assert not (folder / "saved").exists()
    if not state.exists(folder, "rank"):
        return 0
    values, tensors = torch.zeros(5), {"w0": torch.zeros(3), "w1": torch.zeros(3)}
    state.load_values(folder, values)
    optimiser = SimpleNamespace(state=tensors, step_count=0)
    step = state.load(folder, "rank", optimiser)["step"]
    assert optimiser.step_count == step and all((t == step).all() for t in (values, *tensors.values()))
    return step


@pytest.mark.parametrize("before", [0, 1])
def test_a_run_killed_at_any_moment_of_a_save_has_all_of_it_or_of_the_one_before(tmp_path, monkeypatch, before):
    found = []
    while True:
        folder = tmp_path / str(len(found))
        folder.mkdir()
        if before:
            save_step(folder, before)
        try:
            with monkeypatch.context() as patch:
                kill_at(patch, len(found))
                save_step(folder, 2)
        except Killed:
            found.append(saved_step(folder))
            save_step(folder, 3)  # what was left behind is no hindrance
            assert saved_step(folder) == 3
        else:
            break
    # Three files and `saved` are written, and `saved` put in place: only then has the save happened. After it the
    # three files are put in place and `saved` is removed.
    assert found == [before] * 5 + [2] * 4


def test_a_run_starts_from_the_dequantized_weights_of_a_checkpoint(folder, tmp_path, nano, capsys):
    source = nano.parameters(5)
    checkpoint.export(dict(source.value), nano.config, tmp_path / "model", nano.mapping.tolist())
    train("--init", str(tmp_path / "model"), "--from-progress", "0.5", "--steps", "0")
    got = parameters.Parameters(nano.config, torch.load(folder / "values.pt"))
    rounded = {"fp8": numerics.fp8_weight, "fp4": numerics.fp4_weight, "rows": numerics.fp8_rows,
               "bf16": numerics.round_bf16, "f32": lambda x: x}
    for parameter in inventory.parameters(nano.config):
        assert torch.equal(got.value[parameter.name], rounded[parameter.kind](source.value[parameter.name]))
    saved = torch.load(folder / "rank0.pt")
    assert saved["step"] == 0 and 300 * 60 <= saved["elapsed"] < 301 * 60
    assert not any(tensor.any() for tensor in saved["optimiser"].values())
    with pytest.raises(SystemExit):
        train("--init", str(tmp_path / "model"))
    assert "has begun already" in capsys.readouterr().err


def test_a_checkpoint_of_another_shape_is_refused(tmp_path, nano):
    source = parameters.Parameters(nano.config)
    checkpoint.export(dict(source.value), nano.config, tmp_path, nano.mapping.tolist())
    text = (tmp_path / "config.json").read_text()
    assert '"index_topk": 128' in text
    (tmp_path / "config.json").write_text(text.replace('"index_topk": 128', '"index_topk": 64'))
    with pytest.raises(ValueError, match="differs from this trainer's in index_topk"):
        run.start_from(tmp_path, parameters.Parameters(nano.config))


def test_background_rows_are_those_made_in_place(nano):
    behind = feed.open_feed(1, nano.tokenizer, run.NANO / "tokenizer.json", "A", 256, 2, "seed")
    try:
        here = mix.Stream(nano.tokenizer, "A", 256, "seed-0")
        for _ in range(3):
            want, got = here.batch(2), behind.next()
            assert set(want) == set(got) and all(np.array_equal(want[k], got[k]) for k in want)
    finally:
        behind.close()


def test_steps_are_cut_into_passes():
    class Options:
        tokens_per_step, tokens_per_pass, ranks = None, None, 2
    assert run.step_shape(Options, "C", (1, 2048)) == (1, 1)
    Options.tokens_per_step, Options.tokens_per_pass, Options.ranks = 65536, 32768, 1
    assert run.step_shape(Options, "C", (1, 2048)) == (2, 16)
    assert run.step_shape(Options, "D", (1, 4096)) == (2, 8)
    assert run.step_shape(Options, "A", (4, 256)) == (1, 64)  # a quarter: copying wants many small steps


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_gets_a_bar_and_a_file_gets_lines():
    record = {"step": 20, "loss": 0.25}
    screen, file = Terminal(), io.StringIO()
    for out in (screen, file):
        reporter = progress.Progress(out)
        reporter.show("C", 0.5, 2485.0, 0.25, 3725, record)
        reporter.note({"eval": "done"})
    assert file.getvalue() == "step 20  loss 0.25\neval done\n"
    assert "C  50.0% [" in screen.getvalue() and "2,485 tok/s  loss 0.250  left 1:02:05" in screen.getvalue()
    assert screen.getvalue().endswith("\r\x1b[Keval done\n")
    line = progress.bar("C", 0.5, 2485.0, 0.25, 3725, 79)
    assert len(line) == 79 and abs(line.count("#") - line.count(".") + 2) <= 2  # two dots are of the figures
    assert len(progress.bar("C", 0.5, 2485.0, 0.25, 3725, 30)) == 30


def test_a_log_whose_tasks_change_can_be_drawn():
    step = {"loss": 1.0, "prompt_loss": 2.0, "accuracy": 0.5, "stage": "A"}
    records = [{**step, "tokens": 0}, {**step, "tokens": 1e6, "stage": "B"}, {"tokens": 5e5, "eval": {"echo": 0.1}},
               {"tokens": 1e6, "eval": {"echo": 0.2, "json": 0.4}}, {"phase": "draft", "minutes": 1, "accepted": 0.5},
               {"phase": "draft", "minutes": 0.5, "accepted": 0.7},
               {"phase": "draft-eval", "accepted": {"without_bonus": 1.5}}]
    losses, tasks, drafts = plot.draw(records).axes
    assert [line.get_label() for line in tasks.lines] == ["json 0.40", "echo 0.20"]
    assert [list(line.get_xdata()) for line in tasks.lines] == [[1.0], [0.5, 1.0]]
    assert [t.get_text() for t in losses.texts] == ["A", "B"]
    assert [list(line.get_ydata()) for line in drafts.lines][:2] == [[0.5], [0.7]]
