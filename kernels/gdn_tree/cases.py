"""Both variants against float64 on every kind of tree, within a bound that is computed for each case.

python cases.py cpu        # TRITON_INTERPRET=1
python cases.py cuda
"""

import itertools
import sys
from dataclasses import dataclass
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1] / "_testing")
    from mount import mount

    mount()

import torch
from specpilot_kernels.gdn_tree import op, reference
from specpilot_kernels.gdn_tree.reference import Inputs

TREES = ("chain", "star", "comb", "random", "pairs")
VALUES = ("plain", "same-keys", "long-memory", "forgetful", "large-state", "long-context")
CONTEXT = 1024
"""Tokens before the drawn rows, of long-context cases."""


@dataclass(frozen=True)
class Case:
    """One drawn problem; everything on the device, values representable in BF16."""

    x: Inputs
    state: torch.Tensor
    slots: torch.Tensor
    parents: torch.Tensor
    scale: float

    @property
    def before(self) -> torch.Tensor:
        """`[B, HV, K, V]` float64: the state of every request; zeros where it has none."""
        own = self.state[self.slots.clamp(min=0).long()].double().transpose(-1, -2)
        return torch.where((self.slots >= 0)[:, None, None, None], own, 0.0)


def parents_of(kind: str, rows: int, generator: torch.Generator) -> list[int]:
    """Parents of one tree: a chain, all children of the first row, a spine with one leaf each, any, two chains."""
    if kind == "chain":
        return list(range(-1, rows - 1))
    if kind == "star":
        return [-1, *[0] * (rows - 1)]
    if kind == "comb":
        return [-1, *[(row - 1) // 2 * 2 for row in range(1, rows)]]
    if kind == "pairs":
        return [-1, *[max(0, row - 2) for row in range(1, rows)]]
    draw = torch.rand(rows, generator=generator).tolist()
    return [-1, *[int(draw[row] * row) for row in range(1, rows)]]


def long_context(heads: int, width: int, height: int, generator: torch.Generator, device: str) -> torch.Tensor:
    """`[HV, V, K]` float32: the state that `CONTEXT` tokens leave from zeros. Keys lie around eight directions, so that
    updates keep meeting each other, and a head forgets half of it in 14 to 14,000 tokens."""

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    chosen = torch.randint(0, 8, (CONTEXT, heads, 1), generator=generator).expand(-1, -1, width)
    keys = reference.unit(normal(8, heads, width).gather(0, chosen) + 0.5 * normal(CONTEXT, heads, width)).to(device)
    values, beta = normal(CONTEXT, heads, height).to(device), normal(CONTEXT, heads).sigmoid().to(device)
    decay = (-0.05 * 10 ** (-3 * torch.rand(heads, generator=generator))).exp().to(device)
    state = torch.zeros(heads, height, width, device=device)
    for key, value, share in zip(keys, values, beta, strict=True):
        state = state * decay[:, None, None]
        added = share[:, None] * (value - torch.einsum("hvk,hk->hv", state, key))
        state = state + added[:, :, None] * key[:, None, :]
    return state


def draw(
    tree: str,
    values: str,
    requests: int,
    rows: int,
    heads: tuple[int, int],
    size: tuple[int, int],
    seed: int,
    device: str,
) -> Case:
    """A case. heads: of keys, of values. size: K, V. Inputs are views into wider rows, as the engine's are."""
    generator = torch.Generator().manual_seed(seed)
    (key_heads, value_heads), (width, height) = heads, size

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    mixed = normal(requests, rows, 2 * key_heads * width + value_heads * height + 7)
    q, k, v, _ = mixed.split([key_heads * width, key_heads * width, value_heads * height, 7], -1)
    if values == "same-keys":  # the worst conditioned: every update undoes the one before
        k.copy_((k[:, :1] + 0.01 * k).expand_as(k))
    a, b = normal(requests, rows, value_heads), 2 * normal(requests, rows, value_heads)
    a_log, dt_bias = normal(value_heads) * 0.5 - 1, normal(value_heads)
    if values == "long-memory":
        a_log -= 8
    if values == "forgetful":
        a_log += 3
    if values == "same-keys":
        a_log, b = a_log - 8, b + 6
    state = normal(2 * requests + 1, value_heads, height, width) * (100.0 if values == "large-state" else 0.3)
    if values == "long-context":
        state = (1 + 0.01 * state) * long_context(value_heads, width, height, generator, device).cpu()
    slots = torch.randperm(len(state), generator=generator)[:requests].int()
    if requests > 1:
        slots[-1] = -1
    parents = torch.tensor([parents_of(tree, rows, generator) for _ in range(requests)])
    given = (mixed, a, b, a_log, dt_bias)
    kept = torch.bfloat16 if device == "cuda" else torch.float32  # the interpreter has no BF16
    mixed, a, b, a_log, dt_bias = (t.bfloat16().to(kept).to(device) for t in given)
    q, k, v, _ = mixed.split([key_heads * width, key_heads * width, value_heads * height, 7], -1)
    x = Inputs(
        q.unflatten(-1, (key_heads, width)),
        k.unflatten(-1, (key_heads, width)),
        v.unflatten(-1, (value_heads, height)),
        a,
        b,
        a_log.float(),
        dt_bias,
    )
    return Case(x, state.to(device), slots.to(device), parents.to(device), width**-0.5)


def error_bound(case: Case) -> torch.Tensor:
    """`[B, N, HV, V]` float64: how far a float32 evaluation in either form may be from the exact output.

    U solves (1 + A) U = R (README). A computed U solves a system whose entries are off by at most c 2^-24 of their
    terms' absolute sum, so its error is at most |(1 + A)^-1| (Higham, "Accuracy and Stability", section 7.2) times
    c 2^-24 beta (e^G |S|^T |k| + sum decay |k||k| |u| + |v|); the output adds the same for its own sums. c counts
    roundings: 2K for the sums over K (twice: lengths, products), 4 a level for the additions along the path, 16 times
    2^-21 / 2^-24 for TF32 in three parts, and, since decays are exponentials of sums, (depth + 10) times the log decay.
    """
    x = case.x.to(torch.float64)
    groups, width = x.v.shape[2] // x.k.shape[2], x.k.shape[3]
    keys = reference.unit(x.k).repeat_interleave(groups, 2).transpose(1, 2)  # [B, HV, N, K]
    queries = reference.unit(x.q).repeat_interleave(groups, 2).transpose(1, 2) * case.scale
    g, beta = (t.transpose(1, 2) for t in reference.gates(x))
    values, before = x.v.transpose(1, 2), case.before
    bits = op.ancestors(case.parents)
    mask = ((bits[:, :, None] >> torch.arange(bits.shape[1], device=bits.device)) & 1).bool()[:, None]
    total = torch.where(mask, g[..., None, :], 0.0).sum(-1)
    decay = torch.where(mask, (total[..., :, None] - total[..., None, :]).clamp(max=0).exp(), 0.0)
    own = torch.eye(mask.shape[-1], device=mask.device, dtype=torch.bool)
    coupling = torch.where(own, 0.0, beta[..., None] * decay * (keys @ keys.mT))
    whole = coupling + own
    start = total.exp()[..., None] * (keys @ before)
    added = torch.linalg.solve_triangular(whole, beta[..., None] * (values - start), upper=False)
    inverse = torch.linalg.inv(whole).abs()
    depth = mask.sum(-1).amax()
    c = 2 * width + 4 * depth + 128 + (depth + 10) * total.abs()[..., None]
    seen = total.exp()[..., None] * (keys.abs() @ before.abs())
    seen = seen + (decay * (keys.abs() @ keys.abs().mT)) @ added.abs() + values.abs()
    added_error = inverse @ (c * 2.0**-24 * beta[..., None] * seen)
    read = total.exp()[..., None] * (queries.abs() @ before.abs())
    read = read + (decay * (queries.abs() @ keys.abs().mT)) @ added.abs()
    found = c * 2.0**-24 * read + (decay * (queries @ keys.mT).abs()) @ added_error
    return found.transpose(1, 2) * (1 + 2.0**-8)


def worst(found: torch.Tensor, exact: torch.Tensor, bound: torch.Tensor) -> float:
    """Largest error as a share of what is allowed, with the rounding to the output's type. Above 1 is wrong."""
    half_ulp = 2.0**-8 if found.dtype == torch.bfloat16 else 2.0**-24
    allowed = bound + half_ulp * (exact.abs() + bound) + 2.0**-133
    share = ((found.double() - exact).abs() / allowed).amax()
    return float("inf") if bool(share.isnan()) else float(share)


def verify_shares(case: Case) -> dict[str, float]:
    """Of each variant, and of the same bits again from poisoned memory."""
    tree = op.ancestors(case.parents)
    exact = reference.verify(case.x.to(torch.float64), case.before, case.parents, case.scale)
    bound, kept, shares = error_bound(case), case.state.clone(), {}
    for variant in ("path", "wy"):
        runs = []
        for _ in range(2):
            torch.full_like(case.x.v.contiguous(), float("nan"))  # freed at once: the allocator gives it out again
            runs.append(op.verify(case.x, case.state, case.slots, tree, case.scale, variant))  # type: ignore[arg-type]
        shares[variant] = worst(runs[0], exact, bound) if torch.equal(*runs) else float("inf")
    if not torch.equal(case.state, kept):
        shares["state changed"] = float("inf")
    return shares


def drawn_path(case: Case, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """`[B, D]` a drawn root path of every request, zeros behind it, and `[B]` int32 its drawn length."""
    generator = torch.Generator().manual_seed(seed)
    requests, rows = case.parents.shape
    depth = min(rows, 16)
    path, lengths = torch.zeros(requests, depth, dtype=torch.int64), []
    for request, parents in enumerate(case.parents.tolist()):
        row, chain = int(torch.randint(0, rows, (), generator=generator)), []
        while row >= 0:
            chain.append(row)
            row = parents[row]
        chain = chain[::-1][: int(torch.randint(0, depth + 1, (), generator=generator))]
        path[request, : len(chain)] = torch.tensor(chain)
        lengths.append(len(chain))
    device = case.state.device
    return path.to(device), torch.tensor(lengths, dtype=torch.int32, device=device)


def commit_share(case: Case, path: torch.Tensor, length: torch.Tensor, state: torch.Tensor) -> float:
    """Of a committed pool: the largest error as a share of the bound; infinite where another slot changed.

    The state's bound is that of an output read with each unit vector: K queries a path.
    """
    exact = reference.commit(case.x.to(torch.float64), case.before, path, length)
    bound, share = state_bound(case, path, length), 0.0
    for request, slot in enumerate(case.slots.tolist()):
        if slot >= 0:
            share = max(share, worst(state[slot], exact[request].mT, bound[request].mT))
    others = [i for i in range(len(state)) if i not in case.slots.tolist()]
    return share if torch.equal(state[others], case.state[others]) else float("inf")


def commit_shares(case: Case, seed: int) -> dict[str, float]:
    """Of each variant along a drawn root path of drawn length, and of slots that must not change."""
    path, length = drawn_path(case, seed)
    shares = {}
    for variant in ("path", "wy"):
        state = case.state.clone()
        op.commit(case.x, state, case.slots, path, length, variant)  # type: ignore[arg-type]
        shares[f"commit {variant}"] = commit_share(case, path, length, state)
    return shares


def state_bound(case: Case, path: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
    """`[B, HV, K, V]` float64, as `error_bound` of the path as a chain, read with unit vectors instead of queries."""
    x, found = case.x.to(torch.float64), []
    groups, width = x.v.shape[2] // x.k.shape[2], x.k.shape[3]
    g, beta = reference.gates(x)
    all_keys = reference.unit(x.k).repeat_interleave(groups, 2)
    for request, steps in enumerate(length.tolist()):
        at = path[request, :steps]
        before = case.before[request]
        if not steps:
            found.append(torch.zeros_like(before))
            continue
        keys, values = all_keys[request, at].transpose(0, 1), x.v[request, at].transpose(0, 1)
        log, share = g[request, at].T, beta[request, at].T
        total = log.cumsum(-1)
        decay = (total[..., :, None] - total[..., None, :]).clamp(max=0).exp().tril()
        whole = share[..., None] * decay.tril(-1) * (keys @ keys.mT) + torch.eye(steps, device=keys.device)
        start = total.exp()[..., None] * (keys @ before)
        added = torch.linalg.solve_triangular(whole, share[..., None] * (values - start), upper=False)
        c = 2 * width + 4 * steps + 128 + (steps + 10) * total.abs().amax(-1)[:, None, None]
        seen = total.exp()[..., None] * (keys.abs() @ before.abs()) + values.abs()
        seen = seen + (decay * (keys.abs() @ keys.abs().mT)) @ added.abs()
        error = torch.linalg.inv(whole).abs() @ (c * 2.0**-24 * share[..., None] * seen)
        last = decay[..., -1, :, None] * keys.abs()  # [HV, N, K]
        rounding = c * 2.0**-24 * (total[:, -1].exp()[:, None, None] * before.abs() + last.mT @ added.abs())
        found.append((rounding + last.mT @ error) * (1 + 2.0**-8))
    return torch.stack(found)


def main(device: str) -> int:
    """Every tree with every kind of values; on a device at the engine's sizes too."""
    sizes = [(2, 9, (1, 2), (32, 32)), (1, 17, (2, 2), (16, 32))]
    if device == "cuda":
        sizes += [(1, 32, (16, 48), (128, 128)), (3, 64, (4, 8), (128, 128)), (2, 1, (2, 4), (128, 64))]
    largest: dict[str, float] = {}
    wrong: list[str] = []
    count = 0
    every = list(itertools.product(sizes, TREES, VALUES))
    pairs = len(TREES) * len(VALUES)
    if device == "cpu":  # the interpreter is slow: of the second size every fourth pair
        every = every[:pairs] + every[pairs::4]
    for number, (size, tree, values) in enumerate(every):
        case = draw(tree, values, *size, seed=number, device=device)
        for name, share in {**verify_shares(case), **commit_shares(case, number)}.items():
            count += 1
            largest[name] = max(share, largest.get(name, 0.0))
            if not share <= 1:
                wrong.append(f"{name}: {share:.3g} of what is allowed, {tree} {values} {size}")
    print(
        f"{count} comparisons, {len(wrong)} wrong; largest share of the bound:",
        {n: f"{s:.3f}" for n, s in largest.items()},
    )
    print("\n".join(wrong[:20]))
    return bool(wrong)


if __name__ == "__main__":
    from specpilot_kernels._testing.words import word

    raise SystemExit(main(word(__doc__, ("cpu", "cuda"))))
