"""Rounds on an NVIDIA GPU: how long they take beside our aims and the card's floors, and are they right?

    python benchmarks/gpu.py [--json gpu.json] [--quick]    a line for every aim; code 1 if something is wrong
    python benchmarks/gpu.py --compile                      needs no card: compiles the kernels for sm_90

Rounds that are replayed are compared with those that the engine makes one by one; then a recording that
fails or is broken off, a clock that stands still and a record that overflows must each be noticed. Needs
torch, Triton, numpy, networkx and scipy, and topdp's source on PYTHONPATH; of what else topdp needs, nothing
is used here. Without a card it says so and ends with code 2. An aim that is missed is printed, and is no
error. Every part is a process: one that fails, dies or hangs leaves the others as they are.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
import warnings
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from unittest import mock

import numpy as np
import torch

if find_spec("PIL") is None:  # reads images, of which there are none
    sys.modules["PIL"] = mock.MagicMock()
if find_spec("numba") is None:  # noise on a processor
    sys.modules.update({"numba": mock.MagicMock(), "numba.extending": mock.MagicMock()})

from topdp import protocols, topology
from topdp.data.shards import Shards
from topdp.learning.gradients import ClippedGradients
from topdp.learning.models import mlp
from topdp.plan import Cycle, Full, prune, schedules
from topdp.simulator.engine import Engine
from topdp.simulator.row_mixing import RowWork
from topdp.simulator.run_stacking import StackedBatches, StackedNoise, stack_plans, stack_shards
from topdp.simulator.simulated_noise import SimulatedDraws

CLASSES, PIXELS = 10, 784
DEVICE = "cuda"
PARTS = ("floors", "small", "safety", "full", "many", "stacked", "mixing", "kernels")  # most wanted first
BANDWIDTH = "copy bandwidth, read and written"
LONGEST = 150  # seconds of one part
Found = dict[str, object]


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--json", type=Path, default=Path("gpu.json"))
    options.add_argument("--quick", action="store_true", help="fewer rounds, and smaller stacks")
    options.add_argument("--compile", action="store_true", help="compile the kernels, without a card")
    options.add_argument("--minutes", type=float, default=9.0, help="after which no part goes on")
    options.add_argument("--part", choices=PARTS, help="this one only, in this process")
    asked = options.parse_args()
    if find_spec("triton") is None:
        print("gpu.py: Expected Triton, found none: it comes with PyTorch's CUDA builds.", file=sys.stderr)
        return 2
    if asked.compile:
        return compile_kernels()
    if not torch.cuda.is_available():
        print("gpu.py: Expected an NVIDIA GPU, found none. (--compile needs none.)", file=sys.stderr)
        return 2
    if asked.part is not None:
        one(asked.part, asked.quick, asked.json)
        return 0
    asked.json.unlink(missing_ok=True)
    ends = time.monotonic() + 60 * asked.minutes
    command = [sys.executable, __file__, "--json", str(asked.json), *(["--quick"] if asked.quick else [])]
    for name in PARTS:
        failed = failure([*command, "--part", name], min(LONGEST, ends - time.monotonic()))
        if failed is not None:
            found, wrong = read(asked.json)
            write(asked.json, found, [*wrong, f"{name}: {failed}"])
            print(f"WRONG {name}: {failed}", flush=True)
    _, wrong = read(asked.json)
    print(f"{len(wrong)} wrong; all numbers are in {asked.json}")
    return 1 if wrong else 0


def failure(command: list[str], seconds: float) -> str | None:
    """What became of a process, where it did not come to its end in that time."""
    if seconds <= 0:
        return "no time was left"
    try:
        code = subprocess.run(command, timeout=seconds, check=False).returncode
    except subprocess.TimeoutExpired:
        return f"not done after {seconds:.0f} s"
    return None if code == 0 else f"ended with code {code}"


def one(name: str, quick: bool, file: Path) -> None:
    """A part, with the numbers of those before; what it finds is written whatever becomes of it."""
    found, wrong = read(file)
    if not found:
        found |= {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
        print(f"{found['device']}, torch {found['torch']}")
    try:
        globals()[name](quick, found, wrong)
    except Exception as error:
        wrong.append(f"{name}: {type(error).__name__}: {error}")
        print(f"WRONG {wrong[-1]}")
    write(file, found, wrong)


def read(file: Path) -> tuple[Found, list[str]]:
    found = json.loads(file.read_text()) if file.exists() else {}
    return found, found.pop("wrong", [])


def write(file: Path, found: Found, wrong: list[str]) -> None:
    file.write_text(json.dumps(found | {"wrong": wrong}, indent=1) + "\n")


def say(found: Found, name: str, value: float, unit: str, aim: float | None = None, note: str = "") -> None:
    found[name] = {"value": value, "unit": unit, "aim": aim, "note": note}
    reached = "" if aim is None else f"  aim {aim:g}: {'reached' if value <= aim else 'MISSED'}"
    print(f"{name:58s} {value:10.4g} {unit:10s}{reached}  {note}")


# What is measured


def shards_of(agents: int, records: int, test: int = 1000) -> Shards:
    generator = np.random.default_rng(0)

    def draw(count: int) -> tuple[np.ndarray, np.ndarray]:
        return generator.random((count, PIXELS), np.float32), generator.integers(0, CLASSES, count)

    return Shards.from_arrays([draw(records) for _ in range(agents)], test=draw(test), classes=CLASSES)


def plan_of(graph: topology.Topology, rounds: int, seed: int = 0):
    rates = schedules.learning_rates(0.05, rounds, "none")
    schedule = schedules.schedule(rates, schedules.step_decay(1.0, 1, rounds), "gradient")
    return protocols.TopSynchronous(0.5).plan(graph, schedule, np.full(graph.agents, 0.05), seed)


def engine_of(graph: topology.Topology, rounds: int, shards: Shards, batch: int | None) -> Engine:
    batches = [Full(count) if batch is None else Cycle(count, batch) for count in shards.counts]
    return Engine(
        plan_of(graph, rounds), gradients_of_the_same_start(), shards, batches, seed=0, device=DEVICE
    )


def gradients_of_the_same_start() -> ClippedGradients:
    torch.manual_seed(0)
    return ClippedGradients(mlp(), 1.0)


def begin(engine: Engine):
    return engine.start(engine.gradients.flat.flatten())


def seconds_a_round(engine: Engine, advance, warm: int, state=None) -> tuple[float, float]:
    """By the wall clock, for all rounds after the first `warm`; and the seconds that those took together."""
    state = begin(engine) if state is None else state
    torch.cuda.synchronize()
    began = time.perf_counter()
    while state.releases < warm:
        state = advance(state, warm - state.releases)
    torch.cuda.synchronize()
    middle, done = time.perf_counter(), state.releases
    while state.releases < engine.plan.releases:
        state = advance(state, engine.plan.releases - state.releases)
    torch.cuda.synchronize()
    return (time.perf_counter() - middle) / (state.releases - done), middle - began


def measure(name: str, make, aim: float, found: Found, wrong: list[str], runs: int = 1) -> None:
    """Rounds one by one and several at once, on engines of the same job; rows of both must agree."""
    from topdp.simulator.cuda_replay import CudaReplay

    compared = min(24, make().plan.releases)
    ends = []
    for several in (False, True):
        engine = make()
        many = CudaReplay(engine)
        advance = many.advance if several else (lambda state, _, engine=engine: engine.advance(state))
        state = begin(engine)
        while state.releases < compared:
            state = advance(state, compared - state.releases)
        ends.append(state.rows.clone())
        if several and many.reason is not None:
            wrong.append(f"{name}: not recorded: {many.reason}")
        engine = make()
        many = CudaReplay(engine)
        advance = many.advance if several else (lambda state, _, engine=engine: engine.advance(state))
        rounds = engine.plan.releases
        each, first = seconds_a_round(engine, advance, min(40, rounds // 3))
        how = "several at once" if several else "one by one"
        say(found, f"{name}, {how}", 1e3 * each / runs, "ms/round" if runs == 1 else "ms/round/run",
            aim if several else None, f"first rounds {first:.2f} s")  # fmt: skip
        if several and many.reason is not None:
            wrong.append(f"{name}: not recorded to the end: {many.reason}")
    apart = float((ends[0] - ends[1]).norm() / ends[0].norm())
    same = "bit by bit" if torch.equal(*ends) else f"{apart:.1e} apart"
    say(found, f"{name}, both ways after {compared} rounds", apart, "relative", 1e-4, same)
    if not apart <= 1e-4:
        wrong.append(f"{name}: rows of both ways are {apart:.2e} apart")


def kernels(quick: bool, found: Found, wrong: list[str]) -> None:
    """How many one round launches. Last: a profiler may slow down all that comes after it."""
    from torch.profiler import ProfilerActivity, profile

    from topdp.simulator.cuda_replay import CudaReplay

    graph, shards = topology.random(30, 0.2, 0), shards_of(30, 200)
    for several in (False, True):
        engine = engine_of(graph, 8, shards, 20)
        advance = CudaReplay(engine).advance if several else (lambda state, _, one=engine: one.advance(state))
        state = advance(advance(advance(advance(begin(engine), 1), 1), 1), 1)  # the next is not compared
        try:
            with profile(activities=[ProfilerActivity.CUDA]) as seen:
                advance(state, 1)
                torch.cuda.synchronize()
        except (AssertionError, RuntimeError) as error:
            print(f"kernels are not counted: {error}")
            return
        count = sum(event.count for event in seen.key_averages() if event.device_type.name == "CUDA")
        how = "several at once" if several else "one by one"
        say(found, f"30 agents, batch 20, {how}", count, "kernels")


def small(quick: bool, found: Found, wrong: list[str]) -> None:
    graph, shards, rounds = topology.random(30, 0.2, 0), shards_of(30, 2000), 200 if quick else 1000
    measure("30 agents, batch 20", lambda: engine_of(graph, rounds, shards, 20), 0.15, found, wrong)
    compiled_once(graph, shards, found, wrong)
    engine = engine_of(graph, 2, shards, 20)
    state = begin(engine)
    engine.evaluate(state)
    say(
        found, "30 agents, evaluation on 1,000 records", 1e3 * median_of(lambda: engine.evaluate(state)), "ms"
    )


def compiled_once(graph: topology.Topology, shards: Shards, found: Found, wrong: list[str]) -> None:
    """Rounds differ in numbers that must not make Triton compile the kernel of mixing again."""
    from topdp.simulator import row_mixing_cuda

    engine = engine_of(graph, 40, shards, 20)
    state = begin(engine)
    began = time.perf_counter()
    for _ in range(20):
        state = engine.advance(state)
    torch.cuda.synchronize()
    say(found, "the first 20 rounds one by one", time.perf_counter() - began, "s")
    try:
        count = sum(len(caches[0]) for caches in row_mixing_cuda._round.device_caches.values())
    except (AttributeError, TypeError, KeyError):  # of another Triton
        count = -1
    say(found, "variants of the mixing kernel so far", count, "kernels", 2)


def full(quick: bool, found: Found, wrong: list[str]) -> None:
    graph, shards, rounds = topology.random(30, 0.2, 0), shards_of(30, 2000), 100 if quick else 400
    measure(
        "30 agents, full batches of 2,000", lambda: engine_of(graph, rounds, shards, None), 0.8, found, wrong
    )


def many(quick: bool, found: Found, wrong: list[str]) -> None:
    graph, shards, rounds = topology.regular(1000, 4, 0), shards_of(1000, 100), 60 if quick else 200
    measure("1,000 agents, batch 20", lambda: engine_of(graph, rounds, shards, 20), 2.0, found, wrong)
    engine = engine_of(graph, 2, shards, 20)
    state = begin(engine)
    engine.evaluate(state)
    say(
        found,
        "1,000 agents, evaluation on 1,000 records",
        1e3 * median_of(lambda: engine.evaluate(state)),
        "ms",
    )


def stacked(quick: bool, found: Found, wrong: list[str]) -> None:
    runs, graph, rounds = 16 if quick else 64, topology.random(30, 0.2, 0), 60 if quick else 200
    plans = [prune(plan_of(graph, rounds, seed)) for seed in range(runs)]
    one = shards_of(30, 200)
    shards, together = stack_shards([one] * runs), stack_plans(plans)
    each = tuple(Cycle(count, 20) for count in one.counts)

    def make() -> Engine:
        chosen = StackedBatches(tuple((each, seed) for seed in range(runs)))
        noise = StackedNoise(plans, list(range(runs)))
        gradients = gradients_of_the_same_start()
        return Engine(
            together,
            gradients,
            shards,
            chosen.batches,
            seed=0,
            device=DEVICE,
            draws=noise,
            select=chosen.select,
        )

    measure(f"{runs} stacked runs of 30 agents, batch 20", make, 0.05, found, wrong, runs)


# What the card can do


def floors(quick: bool, found: Found, wrong: list[str]) -> None:
    x = torch.randn(1 << 28, device=DEVICE)
    y = torch.empty_like(x)
    bandwidth = 2 * 4 * x.numel() / median_of(lambda: y.copy_(x))
    say(found, BANDWIDTH, bandwidth / 1e12, "TB/s")
    tiny = torch.zeros(1, device=DEVICE)
    graph = torch.cuda.CUDAGraph()
    tiny.add_(1)
    with torch.cuda.graph(graph):
        for _ in range(100):
            tiny.add_(1)
    say(found, "a kernel in a replay", 1e4 * median_of(graph.replay), "us", None, "floor of a small round")
    for _ in range(100):
        tiny.add_(1)
    say(found, "a kernel by itself", 1e6 * median_of(lambda: tiny.add_(1), 200), "us")


def median_of(function, repeats: int = 20) -> float:
    """Seconds by the device's own events."""
    function()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        function()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return statistics.median(times)


def mixing(quick: bool, found: Found, wrong: list[str]) -> None:
    """Every row is read once and written once, with the gradients of its owners, at 6,000 rows."""
    from topdp.simulator import row_mixing_cuda

    agents = 200 if quick else 2000
    graph, d = topology.regular(agents, 4, 0), 79_510
    plan = prune(plan_of(graph, 6))
    draws = SimulatedDraws(0, plan.draws, plan.releases)
    mixer = row_mixing_cuda.CudaMixer(plan, draws, torch.device(DEVICE))
    made = [int(plan.exists[r].sum()) for r in range(plan.releases)]
    before = torch.randn(max(made), 79_520, device=DEVICE)[:, :d]
    gradient, out = torch.randn(agents, 79_520, device=DEVICE)[:, :d], torch.empty_like(before)
    work = RowWork(round=4, before=before[: made[3]], gradient=gradient, out=out[: made[4]])
    if BANDWIDTH not in found:
        floors(quick, found, wrong)
    floor = 4e-12 * d * (made[3] + agents + made[4]) / found[BANDWIDTH]["value"]
    drawn = int((plan.draw[4][plan.exists[4]] >= 0).sum())
    note = f"{made[4]} rows, {drawn * d / 1e6:.0f} million draws, floor {1e3 * floor:.3f} ms"
    for lanes in (128, 256, 512):
        for warps in (2, 4, 8):
            with (
                mock.patch.object(row_mixing_cuda, "LANES", lanes),
                mock.patch.object(row_mixing_cuda, "WARPS", warps),
            ):
                time_of = median_of(lambda: mixer(work)) / floor
            ours = (lanes, warps) == (row_mixing_cuda.LANES, row_mixing_cuda.WARPS)
            name = f"mixing and noise, {lanes} lanes, {warps} warps" + (" (as it is)" if ours else "")
            say(found, name, time_of, "floors", 1.5 if ours else None, note if ours else "")


# Whether what is wrong is noticed


def safety(quick: bool, found: Found, wrong: list[str]) -> None:
    from topdp.simulator.cuda_graphs import CudaGraphs
    from topdp.simulator.cuda_replay import CudaReplay

    graph, shards = topology.random(12, 0.3, 0), shards_of(12, 100)

    def make() -> Engine:
        return engine_of(graph, 40, shards, 20)

    def ends(engine: Engine, advance) -> torch.Tensor:
        state = begin(engine)
        while state.releases < engine.plan.releases:
            state = advance(state, 16)
        return state.rows.clone()

    def check(name: str, right: bool) -> None:
        print(f"{name:58s} {'noticed' if right else 'WRONG'}")
        found[name] = right
        if not right:
            wrong.append(name)

    engine = make()
    expected = ends(engine, lambda state, _: engine.advance(state))

    def failing(warm_up, function):
        warm_up()
        raise RuntimeError("as asked")

    def frozen(warm_up, function):
        replay = CudaGraphs(engine.device)(warm_up, function)
        program, clock = several._program, []

        def again() -> None:
            clock[:] = clock or [program._clock.clone()]
            program._clock.copy_(clock[0])
            replay()

        return again

    def broken_off(warm_up, function):
        """To wait for the device while it records is what CUDA does not allow."""
        return CudaGraphs(engine.device)(warm_up, lambda: (function(), several._program._clock.tolist()))

    def gives_up(name: str, record) -> None:
        nonlocal engine, several
        engine = make()
        several = CudaReplay(engine, record)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            last = ends(engine, several.advance)
        once = sum("one by one" in str(one.message) for one in said) == 1
        check(name, once and torch.equal(last, expected))
        torch.cuda.empty_cache()  # still can

    several = CudaReplay(engine)
    gives_up("a recording that fails", failing)
    gives_up("a clock that stands still", frozen)
    for value in (float("nan"), 3e38):
        results = []
        for at_once in (False, True):
            engine = make()
            engine.shards.inputs[3, 7] = value
            several = CudaReplay(engine)
            results.append(
                ends(engine, several.advance if at_once else lambda state, _, one=engine: one.advance(state))
            )
        close = torch.allclose(*results, rtol=1e-4, atol=1e-5) and bool(results[0].isfinite().all())
        check(
            f"a record of {value:g} that adds nothing", close and several._blanks and several.reason is None
        )
    gives_up("a recording that CUDA breaks off", broken_off)
    engine = make()
    several = CudaReplay(engine)
    close = torch.allclose(ends(engine, several.advance), expected, rtol=1e-4, atol=1e-5)
    check("and that others can be made after it", close and several.reason is None)


# Without a card


def compile_kernels() -> int:
    """For a card of compute capability 9.0: that they compile, and what they read and write at once."""
    import re

    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from topdp.learning.gradients import clipping_cuda
    from topdp.simulator import row_mixing_cuda

    real, whole, small_number = "*fp32", "*i32", "i32"
    rows = {"out": real, "before": real, "gradient": real, "slot": whole, "weight": real, "owner": whole,
            "step": real, "key": whole, "draw": whole, "std": real}  # fmt: skip
    sizes = dict.fromkeys(
        ("first", "agents", "round", "d", "out_row", "before_row", "gradient_row"), small_number
    )
    rest = {"W": 5, "V": 1, "LANES": row_mixing_cuda.LANES}
    kernels = {
        "mixing by a clock": (
            row_mixing_cuda._round,
            rows | {"clock": whole, "starts": whole} | sizes,
            rest | {"SOME": False, "BY_CLOCK": True, "chosen": None},
        ),
        "mixing one by one": (
            row_mixing_cuda._round,
            rows | sizes,
            rest | {"SOME": False, "BY_CLOCK": False, "chosen": None, "clock": None, "starts": None},
        ),
        "mixing of some agents, rounded": (
            row_mixing_cuda._round,
            rows | {"out": "*bf16", "before": "*bf16", "chosen": whole} | sizes,
            rest | {"SOME": True, "BY_CLOCK": False, "clock": None, "starts": None},
        ),
        "squared norms": (
            clipping_cuda._squared,
            {"out": real, "x": real, "b": small_number, "size": small_number, "x_n": small_number,
             "x_b": small_number, "x_k": small_number, "underflown": "fp32"},
            {"WIDTH": 1024},
        ),
        "factors": (
            clipping_cuda._flat,
            {"factor": real, "longer": "*u8", "bad": "*u8", "squares": real, "clip": "fp32",
             "size": small_number},
            {"BLOCK": clipping_cuda.FACTOR_BLOCK_EXAMPLES},
        ),
    }  # fmt: skip
    for name, (kernel, types, constants) in kernels.items():
        names = kernel.arg_names
        signature = {one: "constexpr" if one in constants else types[one] for one in names}
        even = [at for at, one in enumerate(names) if signature[one].startswith("*") or one.endswith("_row")]
        source = ASTSource(
            kernel, signature, {(names.index(one),): value for one, value in constants.items()},
            {(at,): [["tt.divisibility", 16]] for at in even},
        )  # fmt: skip
        made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
        seen = Counter(re.findall(r"(?:ld|st)\.global[.\w]*", made.asm["ptx"]))
        print(f"{name}: compiled; {dict(seen)}")
        wide = {"ld.global.v4.b32", "st.global.v4.b32"} if "clock" in name or "one by one" in name else set()
        if not wide <= seen.keys():
            print(f"{name}: expected 16 bytes to be read and written at once.", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # what is printed is seen, whatever comes after
    sys.exit(main())
