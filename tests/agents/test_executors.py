"""The executors: order, errors, lost workers, repositories that travel, the journal, which only the driver writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from support import executor_tasks
from support.fake_ray import FakeRay
from support.mini_repo import head_tree, mini_repo, raw_git
from support.ray_scenario import candidate

from specpilot_cli.agents.durable import Durable
from specpilot_cli.agents.executor import LocalExecutor, Place, Result, Task, WorkerLost, executor_of, once_each
from specpilot_cli.agents.journal import Journal
from specpilot_cli.agents.ray_executor import RayExecutor
from specpilot_cli.agents.store import Store
from specpilot_cli.artifacts.verdict import Verdict
from specpilot_cli.core.errors import EnvironmentUnusable, ExternalFailed, InputUnusable, UsageFault
from specpilot_cli.worktrees.bundle import pack, receive
from specpilot_cli.worktrees.git import base_commit, tree_id

SCENARIO = Path(__file__).parents[1] / "support" / "ray_scenario.py"


def sums(count: int, devices: int = 2) -> list[Task]:
    return [Task(f"sum/{n}", f"cpu:{n % devices}", executor_tasks.add, {"a": n, "b": 1}) for n in range(count)]


@pytest.fixture(params=["local", "ray"])
def executor(request: pytest.FixtureRequest) -> Any:
    """Each executor; Ray's over a Ray that is no cluster."""
    with LocalExecutor() if request.param == "local" else RayExecutor(ray=FakeRay()) as made:
        yield made


def test_results_come_back_in_order(executor: Any) -> None:
    told: list[str] = []
    results = executor.map(sums(5), lambda result: told.append(result.key))
    assert [result.get()["sum"] for result in results] == [1, 2, 3, 4, 5]
    assert [result.key for result in results] == [f"sum/{n}" for n in range(5)]
    assert sorted(told) == [f"sum/{n}" for n in range(5)]
    assert [result.value["device"] for result in results] == ["cpu:0", "cpu:1", "cpu:0", "cpu:1", "cpu:0"]
    assert executor.map([]) == []


def test_a_refusal_is_a_result_and_the_others_go_on(executor: Any) -> None:
    tasks = [Task("no", "cpu", executor_tasks.refuse), *sums(2)]
    refused, *others = executor.map(tasks)
    assert type(refused.error) is InputUnusable
    assert str(refused.error) == "A fact.\nreason: A reason.\nremedy: A remedy."
    assert refused.verdict is None
    assert [other.get()["sum"] for other in others] == [1, 2]
    with pytest.raises(InputUnusable):
        refused.get()


def test_a_bug_is_raised(executor: Any) -> None:
    with pytest.raises(ZeroDivisionError):
        executor.map([*sums(1), Task("bug", "cpu:0", executor_tasks.break_down)])


def test_arguments_and_values_are_json(executor: Any) -> None:
    with pytest.raises(TypeError):
        executor.map([Task("bytes", "cpu", executor_tasks.no_json)])
    with pytest.raises(ValueError, match="not JSON compliant"):
        executor.map([Task("nan", "cpu", executor_tasks.add, {"a": float("nan"), "b": 1})])


def test_two_tasks_of_one_key_are_refused(executor: Any) -> None:
    with pytest.raises(ValueError, match="Two tasks are called sum/0"):
        executor.map([*sums(1), *sums(1)])


def test_a_task_is_a_function_that_another_process_can_find() -> None:
    def inner(place: Place, arguments: Any) -> Any:
        return None

    for function in (inner, lambda place, arguments: None):
        with pytest.raises(ValueError, match="is no function of a module"):
            Task("inner", "cpu", function)


def test_one_device_does_one_thing_at_a_time_and_devices_go_side_by_side() -> None:
    gate, inside, most = threading.Barrier(2, timeout=30), [0, 0], [0, 0]

    def begin(device: str) -> None:
        number = int(device[-1])
        inside[number] += 1
        most[number] = max(most[number], inside[number])
        gate.wait()  # only passes while the other device is at work too
        inside[number] -= 1

    WATCHED["begin"] = begin
    tasks = [Task(f"{device}/{n}", device, watched) for n in range(3) for device in ("cpu:0", "cpu:1")]
    assert [result.get() for result in LocalExecutor().map(tasks)] == [task.device for task in tasks]
    assert most == [1, 1]


WATCHED: dict[str, Any] = {}


def watched(place: Place, arguments: Any) -> Any:
    WATCHED["begin"](place.device)
    return place.device


def test_after_a_bug_nothing_more_begins() -> None:
    begun: list[str] = []
    WATCHED["begin"] = begun.append
    tasks = [Task("bug", "cpu", executor_tasks.break_down), Task("later", "cpu", watched)]
    with pytest.raises(ZeroDivisionError):
        LocalExecutor().map(tasks)
    assert begun == []


@pytest.mark.parametrize(("deaths", "sent"), [(0, 1), (1, 2), (2, 3)])
def test_a_lost_worker_is_tried_again(deaths: int, sent: int) -> None:
    ray = FakeRay({"sum/1": deaths})
    with RayExecutor(ray=ray) as executor:
        results = executor.map(sums(3))
    assert [result.get()["sum"] for result in results] == [1, 2, 3]
    assert ray.sent.count("sum/1") == sent and ray.sent.count("sum/0") == 1
    assert results[1].lost == ("WorkerCrashedError: The worker died unexpectedly.",) * deaths


def test_a_worker_lost_three_times_is_infra() -> None:
    ray = FakeRay({"sum/1": 99})
    with RayExecutor(ray=ray) as executor:
        first, lost, last = executor.map(sums(3))
    assert (first.get()["sum"], last.get()["sum"]) == (1, 3)
    assert ray.sent.count("sum/1") == 3
    assert lost.verdict == Verdict.INFRA and len(lost.lost) == 2
    with pytest.raises(WorkerLost, match="The worker that ran sum/1 is lost"):
        lost.get()


def test_what_no_node_can_run_is_refused_or_given_up() -> None:
    gpu = Task("gpu", "cuda:3", executor_tasks.add, {"a": 1, "b": 1})
    with RayExecutor(ray=FakeRay()) as executor, pytest.raises(EnvironmentUnusable, match="can run gpu") as refused:
        executor.map([gpu])
    assert "1 GPU" in str(refused.value)  # eight of them are on a node that is gone
    ray = FakeRay(resources={"CPU": 1.0, "device": 1.0})
    with RayExecutor(ray=ray) as executor:
        asked = executor._placeable

        def leaving(task: Task) -> bool:  # the only node leaves once the task is sent
            if ray.sent:
                ray.resources.clear()
            return asked(task)

        executor._placeable = leaving  # type: ignore[method-assign]
        ray.wait = lambda references, num_returns, timeout: ([], references)  # type: ignore[method-assign]
        (result,) = executor.map(sums(1))
    assert result.verdict == Verdict.INFRA and "any more" in result.error.reason
    assert ray.cancelled == ["sum/0"] * 3


def test_a_gpu_task_asks_for_a_gpu_and_sees_its_own_only() -> None:
    ray = FakeRay(resources={"CPU": 1.0, "GPU": 1.0, "device": 1.0})
    with RayExecutor(ray=ray) as executor:
        gpu, cpu = executor.map([Task("gpu", "cuda:3", executor_tasks.add, {"a": 1, "b": 1}), *sums(1)])
    assert ray.options == {"gpu": {"num_gpus": 1}, "sum/0": {"resources": {"device": 1}}}
    assert (gpu.value["device"], cpu.value["device"]) == ("cuda:0", "cpu:0")


def test_another_harness_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    from specpilot_cli.agents import ray_executor

    digests = iter(["of the driver", "of the worker"])
    monkeypatch.setattr(ray_executor, "harness_sha256", lambda: next(digests))
    with RayExecutor(ray=FakeRay()) as executor:
        (result,) = executor.map(sums(1))
    assert isinstance(result.error, EnvironmentUnusable) and "another version" in result.error.fact


def test_a_repository_goes_along(executor: Any, tmp_path: Path) -> None:
    repository = mini_repo(tmp_path / "stock")
    commit, tree = candidate(repository)
    before = raw_git(repository, "for-each-ref")
    task = Task("trees", "cpu", executor_tasks.trees, {"commits": [commit]}, repository, (commit,))
    again = Task("again", "cpu", executor_tasks.trees, {"commits": [base_commit(repository)]}, repository)
    first, second = (result.get() for result in executor.map([task, again]))
    assert first["trees"] == [tree] and tree != head_tree(repository)
    assert first["stock"] == second["stock"] == head_tree(repository) == second["trees"][0]
    assert raw_git(repository, "for-each-ref") == before
    assert first["path"] == second["path"]
    assert (first["path"] == str(repository)) == (executor.name == "local")


def test_bundles_hold_what_is_new(tmp_path: Path) -> None:
    repository = mini_repo(tmp_path / "stock")
    stock, (commit, tree) = base_commit(repository), candidate(repository)
    bundle, more = pack(repository, [stock]), pack(repository, [commit], [stock])
    assert 0 < len(more) < len(bundle)
    assert pack(repository, [stock], [stock]) == b""
    target = receive(tmp_path / "elsewhere" / "copy", stock, bundle, more, [commit])
    assert tree_id(target) == head_tree(repository)
    assert raw_git(target, "rev-parse", f"{commit}^{{tree}}") == tree
    assert base_commit(target) == stock
    (target / "engine" / "model.py").unlink()  # a copy is used again as it is: only commits are taken from it
    assert receive(target, stock, b"never read", b"", [commit]) == target


def test_a_damaged_or_short_bundle_is_refused(tmp_path: Path) -> None:
    repository = mini_repo(tmp_path / "stock")
    stock, (commit, _) = base_commit(repository), candidate(repository)
    bundle, more = pack(repository, [stock]), pack(repository, [commit], [stock])
    target = tmp_path / "copy"
    for damaged in (b"", bundle[:-40], bundle[:200] + bytes([bundle[200] ^ 1]) + bundle[201:], more):
        with pytest.raises(ExternalFailed):
            receive(target, stock, damaged)
        assert not target.exists()
    receive(target, stock, bundle)
    with pytest.raises(ExternalFailed, match="did not arrive"):
        receive(target, stock, bundle, b"", [commit])


def test_each_task_runs_once_in_the_life_of_a_round(executor: Any, tmp_path: Path) -> None:
    tasks = [Task(f"square/{n}", "cpu", executor_tasks.refuse_nothing, {"n": n}) for n in range(3)]

    def carried_out(wanted: list[Task]) -> tuple[list[Any], list[tuple[str, str]]]:
        with Journal(tmp_path / "journal.jsonl") as journal:
            values = once_each(Durable(journal, Store(tmp_path / "objects")), executor, wanted)
            return values, [(event.kind, event.key) for event in journal.events]

    values, events = carried_out(tasks[:2])
    assert [value["square"] for value in values] == [0, 1]
    assert sorted(events) == [(kind, f"square/{n}") for kind in ("done", "started") for n in range(2)]
    values, after = carried_out(tasks)
    assert [value["square"] for value in values] == [0, 1, 4]
    assert after == [*events, ("started", "square/2"), ("done", "square/2")]


def test_what_failed_is_tried_again_by_the_next_run(tmp_path: Path) -> None:
    tasks = [Task("square/1", "cpu", executor_tasks.refuse_nothing, {"n": 1})]
    with Journal(tmp_path / "journal.jsonl") as journal:
        durable = Durable(journal, Store(tmp_path / "objects"))
        with RayExecutor(ray=FakeRay({"square/1": 9})) as executor, pytest.raises(WorkerLost):
            once_each(durable, executor, tasks)
        assert not durable.known("square/1")
        assert once_each(durable, LocalExecutor(), tasks) == [{"square": 1, "device": "cpu"}]


def test_executors_by_name() -> None:
    assert isinstance(executor_of("local"), LocalExecutor)
    made = executor_of("ray", "10.0.0.1:6379")
    assert isinstance(made, RayExecutor) and made.cluster.address == "10.0.0.1:6379"
    with pytest.raises(UsageFault, match="no executor 'slurm'"):
        executor_of("slurm")


def test_without_ray_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(EnvironmentUnusable, match="Ray is not installed") as refused:
        RayExecutor().__enter__()
    assert "specpilot[cluster]" in str(refused.value)


def test_a_result_without_error_has_no_verdict() -> None:
    assert Result("key", {"a": 1}).verdict is None


@pytest.mark.slow  # 13 s on two idle cores, 32 s on busy ones
@pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed")
def test_a_true_cluster_of_two_workers(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SCENARIO.parents[1]), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, str(SCENARIO), str(tmp_path)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    by_key = {result["key"]: result for result in told["results"]}
    assert list(by_key) == ["sum", "killed", "always", "refused", "names", "trees"]
    assert by_key["sum"]["value"]["sum"] == 3 and by_key["sum"]["lost"] == []
    first, second = by_key["killed"]["value"]["pids"]
    assert first != second and len(by_key["killed"]["lost"]) == 1
    assert by_key["always"]["verdict"] == "INFRA" and told["tried"] == 3
    assert by_key["refused"]["error"] == ["InputUnusable", "A fact.", "A reason.", "A remedy."]
    assert "PATH" in by_key["names"]["value"] and "ANTHROPIC_API_KEY" not in by_key["names"]["value"]
    assert told["kept_key"] == "sk-of-the-scenario" and told["own_sigterm"]
    trees = by_key["trees"]["value"]
    assert trees["trees"] == [told["tree"]] and trees["stock"] == told["stock_tree"]
    assert trees["path"] != told["repository"]
    assert told["journals_equal"] and len(told["journal"]) == 6
