"""Who else used the processors while a request was timed, and when that spoils a paired run.

Two measurements around every request, neither of which needs root:
- foreign CPU: busy time of the whole machine (`/proc/stat`, steal included) less that of the serving arm's process
  tree and of the controller. The *other* arm's server is foreign too: an idle server has to be idle (but not where both
  answer at once, each on a device of its own). Busy time comes in ticks of 10 ms, so a single short request is coarse;
  means over a run are not.
- waiting: time that the server's threads, or the one that asks and takes the time, were runnable but had no CPU
  (`/proc/PID/task/TID/schedstat`, second field, in ns). It is the harm itself, whatever caused it.

Load on both sides alike leaves the ratio unbiased and only widens the interval. Load on one side moves the ratio, so
the arms are compared with each other: that is the rule which a co-tenant on one side runs into.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from specpilot_cli.artifacts.pair_run import Sample
from specpilot_cli.controller.schedule import pair_of

if TYPE_CHECKING:
    import psutil

WAIT_LIMIT = 0.05
"""Share of a request's time spent waiting for a CPU from which it counts as contaminated."""
FOREIGN_LIMIT = 0.5
"""CPUs in foreign use from which it does, where waiting cannot be observed."""
SHARE_LIMIT = 0.5
"""Share of contaminated requests from which the machine is called busy."""
FOREIGN_DIFFERENCE = 0.05
"""CPUs by which the arms' foreign load may differ: the slowdown it can cause is then under the bar of 1 % + noise for
any server that leaves a CPU free, and small against the interval otherwise."""
WAIT_DIFFERENCE = 0.01
"""Waiting shares may differ by this much: a request that waits 1 % of its time is 1 % slower."""
OWN_DIFFERENCE = 0.1
"""CPUs that the arms may use differently where the CPU is the device: a second thread uses up to 1 more, and a server
that was stopped from outside less. CPU time comes in ticks of 10 ms, HTTP and parsing cost both arms alike."""
IDLE_LIMIT = 0.05
"""CPUs that a server without a request may use: it polls a socket, which costs under a hundredth."""
CONTAMINATED_DIFFERENCE = 0.1
"""Share of requests that were contaminated by which the arms may differ: at 5 % each, 0.5 % of the time."""
SIGNIFICANCE = 0.005
"""Level of the paired test that must confirm a difference."""


@dataclass(frozen=True)
class Reading:
    """Counters at one moment. None: this machine does not have them."""

    at_s: float
    busy_s: float | None
    own_s: float
    waited_s: dict[int, float] | None
    """Per thread of the serving process tree."""


@dataclass(frozen=True)
class Load:
    """What happened between two readings."""

    foreign_cpu: float | None
    wait_share: float | None
    own_cpu: float | None = None
    idle_cpu: float | None = None

    @property
    def contaminated(self) -> bool:
        """Whether another process took time from the request."""
        if self.wait_share is not None:
            return self.wait_share > WAIT_LIMIT
        return self.foreign_cpu is not None and self.foreign_cpu > FOREIGN_LIMIT


class Meter(Protocol):
    """Reads the counters; tests give their own."""

    def read(self, serving: int | None) -> Reading:
        """Counters now; `serving` is the process id of the arm that is about to answer."""
        ...


class SystemMeter:
    """The counters of this machine."""

    def read(self, serving: int | None) -> Reading:
        """See `Meter`. A process that ends meanwhile is left out."""
        import time

        import psutil

        tree = _tree(serving)
        own = _cpu_seconds(psutil.Process(os.getpid()), reaped=False)
        for process in tree:
            with suppress(psutil.Error):
                own += _cpu_seconds(process, reaped=True)
        waited = _waited([process.pid for process in tree]) if tree else None
        return Reading(time.monotonic(), _busy_seconds(), own, waited)


def _tree(root: int | None) -> list[psutil.Process]:
    import psutil

    if root is None:
        return []
    try:
        leader = psutil.Process(root)
        return [leader, *leader.children(recursive=True)]
    except psutil.Error:
        return []


def _busy_seconds() -> float | None:
    """Time of all CPUs that was not idle; None where the kernel does not say (some sandboxes give zeros)."""
    import psutil

    times = psutil.cpu_times()
    # guest time is contained in user time; time that the hypervisor gave to others (steal) is somebody's load
    idle = times.idle + getattr(times, "iowait", 0.0)
    guests = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
    busy = float(sum(times) - idle - guests)
    return busy if busy > 0 else None


def _cpu_seconds(process: psutil.Process, *, reaped: bool) -> float:
    times = process.cpu_times()
    children = times.children_user + times.children_system if reaped else 0.0
    return float(times.user + times.system + children)


def _waited(pids: Sequence[int]) -> dict[int, float] | None:
    found: dict[int, float] = {}
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            with suppress(OSError, ValueError, IndexError):
                ran, waited = task.read_text().split()[:2]
                if int(ran) or int(waited):  # a kernel without scheduler statistics shows zeros
                    found[int(task.parent.name)] = int(waited) / 1e9
    return found or None


def waited_here() -> float | None:
    """Seconds that this thread was runnable but had no CPU, so far; None where the kernel does not say."""
    with suppress(OSError, ValueError, IndexError):
        ran, waited = Path("/proc/thread-self/schedstat").read_text().split()[:2]
        return int(waited) / 1e9 if int(ran) or int(waited) else None
    return None


def load_between(before: Reading, after: Reading, wall_s: float, beside_s: float = 0.0, asker_s: float = 0.0) -> Load:
    """Foreign CPUs and waiting share from readings just outside a request of `wall_s`.

    Args:
        beside_s: CPU time in the same window of a server that answers at the same time by design (placement swap).
        asker_s: how long the thread that asked waited for a CPU meanwhile (`waited_here`). A request waits for it, too:
            with requests of milliseconds beside a neighbour that is most of the harm.

    Both readings lie outside the timed window, so the window between them is what busy and own time are compared
    over; waiting is put in relation to the request's own time. Threads that came or went meanwhile count from zero.
    """
    window = max(after.at_s - before.at_s, wall_s)
    own = max(0.0, after.own_s - before.own_s) / window
    foreign = None
    if before.busy_s is not None and after.busy_s is not None:
        foreign = max(0.0, (after.busy_s - before.busy_s) - (after.own_s - before.own_s) - beside_s) / window
    waited = None
    if before.waited_s is not None and after.waited_s is not None:
        gained = [max(0.0, now - before.waited_s.get(task, 0.0)) for task, now in after.waited_s.items()]
        waited = (sum(gained) + asker_s) / wall_s
    return Load(foreign, waited, own)


def _differences(samples: Sequence[Sample], field: str) -> list[float]:
    """Candidate less stock, one entry a pair."""
    sides: dict[object, dict[str, float]] = {}
    for sample in samples:
        value = getattr(sample, field)
        if value is not None:
            sides.setdefault(pair_of(sample), {})[sample.arm] = value
    return [both["candidate"] - both["stock"] for both in sides.values() if len(both) == 2]


def one_sided(differences: Sequence[float], limit: float) -> bool:
    """Whether the arms' loads differ by more than `limit` on average, beyond chance (paired t-test)."""
    import numpy as np
    from scipy import stats

    if len(differences) < 3 or abs(float(np.mean(differences))) <= limit:
        return False
    if float(np.ptp(differences)) == 0.0:
        return True
    return float(stats.ttest_1samp(differences, 0.0).pvalue) < SIGNIFICANCE


def one_sided_counts(differences: Sequence[float], limit: float) -> bool:
    """Whether one arm's requests were contaminated more often, by more than `limit` of the pairs, beyond chance.

    Args:
        differences: 1, 0 or -1 a pair. McNemar's exact test: unlike the means above it has no tail to get lost in, when
            a few requests of some milliseconds wait many times as long as the others.
    """
    from scipy import stats

    up, down = sum(d > 0 for d in differences), sum(d < 0 for d in differences)
    if not differences or abs(up - down) <= limit * len(differences):
        return False
    return float(stats.binomtest(up, up + down).pvalue) < SIGNIFICANCE


def findings(samples: Sequence[Sample]) -> list[str]:
    """Why the run is INFRA as far as processors go; empty where it is not."""
    found = []
    foreign, waits = _differences(samples, "foreign_cpu"), _differences(samples, "wait_share")
    if one_sided(foreign, FOREIGN_DIFFERENCE):
        found.append(
            f"other processes used {_mean(samples, 'stock', 'foreign_cpu'):.2f} CPUs while stock ran and "
            f"{_mean(samples, 'candidate', 'foreign_cpu'):.2f} while the candidate ran"
        )
    if one_sided(waits, WAIT_DIFFERENCE):
        found.append(
            f"stock waited for a CPU {_mean(samples, 'stock', 'wait_share'):.1%} of its time, "
            f"the candidate {_mean(samples, 'candidate', 'wait_share'):.1%}"
        )
    if one_sided_counts(_differences(samples, "contaminated"), CONTAMINATED_DIFFERENCE):
        found.append(
            f"{_mean(samples, 'stock', 'contaminated'):.0%} of stock's requests ran against other processes for a CPU, "
            f"{_mean(samples, 'candidate', 'contaminated'):.0%} of the candidate's"
        )
    share = sum(s.contaminated for s in samples) / len(samples) if samples else 0.0
    if share > SHARE_LIMIT:
        found.append(f"{share:.0%} of the requests ran against other processes for a CPU")
    return found


def unequal_means(samples: Sequence[Sample]) -> list[str]:
    """Whether one arm computed with more CPUs than the other (only for deployments on a CPU).

    A server may use more threads than its configuration says, or hold the other one up: neither changes
    `/server_info`, and neither is a better engine.
    """
    if not one_sided(_differences(samples, "own_cpu"), OWN_DIFFERENCE):
        return []
    stock, candidate = _mean(samples, "stock", "own_cpu"), _mean(samples, "candidate", "own_cpu")
    return [f"stock used {stock:.2f} CPUs while it was timed, the candidate {candidate:.2f}"]


def cpu_seconds(root: int | None) -> float | None:
    """CPU time of a process tree so far; None where there is no process."""
    import psutil

    found = None
    for process in _tree(root):
        with suppress(psutil.Error):
            found = (found or 0.0) + _cpu_seconds(process, reaped=True)
    return found


def idle_work(samples: Sequence[Sample]) -> list[str]:
    """Whether a server worked while the other arm was timed (only for deployments on a CPU).

    Work for the next request, done while nobody looks at the clock, is no gain. It also slows the other arm down.
    """
    found = []
    for whose, other in (("the candidate's", "stock"), ("stock's", "candidate")):
        if any(s.arm == other and s.idle_cpu is not None for s in samples):
            used = _mean(samples, other, "idle_cpu")
            if used > IDLE_LIMIT:
                found.append(f"{whose} server used {used:.2f} CPUs while it had no request")
    return found


def _mean(samples: Sequence[Sample], arm: str, field: str) -> float:
    values: list[float] = [getattr(s, field) for s in samples if s.arm == arm and getattr(s, field) is not None]
    return sum(values) / len(values)


def unobservable(samples: Sequence[Sample]) -> bool:
    """Whether any request was timed without either measurement."""
    return any(s.foreign_cpu is None and s.wait_share is None for s in samples)
