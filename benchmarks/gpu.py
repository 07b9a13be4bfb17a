"""Duration of rounds on an NVIDIA GPU, compared with aims and hardware limits; and checks of the results.

    python benchmarks/gpu.py [--json gpu.json] [--quick]    one line per measurement
    python benchmarks/gpu.py --compile                      compile the kernels for sm_90, without a GPU

The rows of replayed rounds are compared with those of rounds that the engine executes one by one. The script
also checks that the engine detects a recording that fails or is interrupted, a round counter that does not
advance, and a record that overflows. Needs torch, Triton, numpy, networkx and scipy, and topdp's source on
PYTHONPATH; other requirements of topdp are replaced by mocks. Each part runs in its own process, so a part
that fails or hangs does not affect the others.

Exit with 1 if a check fails, and with 2 if there is no GPU. A missed aim is printed, and is no error.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from unittest import mock

import numpy as np
import torch

if find_spec("PIL") is None:  # reads images
    sys.modules["PIL"] = mock.MagicMock()
if find_spec("numba") is None:  # draws noise on the CPU
    sys.modules.update({"numba": mock.MagicMock(), "numba.extending": mock.MagicMock()})

from topdp import protocols, topology
from topdp.data.shards import Shards
from topdp.learning.gradients import ClippedGradients
from topdp.learning.models import mlp
from topdp.plan import Cycle, Full, Plan, prune, schedules
from topdp.plan.noise_key import NoiseKey
from topdp.simulator.engine import Engine
from topdp.simulator.row_mixing import RowWork
from topdp.simulator.run_stacking import StackedBatches, StackedNoise, stack_plans, stack_shards
from topdp.simulator.simulated_noise import SimulatedDraws
from topdp.simulator.simulation import State

CLASSES, PIXELS = 10, 784
DEVICE = "cuda"
# The parts, each a function of this module, the most important first. A profiler may slow down all that
# follows it, so `kernels` is last.
PARTS = ("floors", "small", "safety", "full", "many", "stacked", "mixing", "kernels")
BANDWIDTH = "copy bandwidth, read and written"
MAX_PART_SECONDS = 150
MAX_TOTAL_SECONDS = 540  # no part starts or continues after this time
MAX_RELATIVE_DIFFERENCE = 1e-4  # between the rows of replayed rounds and of rounds one by one
COMPARED_ROUNDS = 24
WARM_UP_ROUNDS = 40
TARGET_CAPABILITY = 90  # sm_90, for `--compile`
Results = dict[str, object]
Advance = Callable[[State, int], State]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", type=Path, default=Path("gpu.json"), help="the file of the results")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, and smaller stacks")
    parser.add_argument("--compile", action="store_true", help="only compile the kernels, without a GPU")
    parser.add_argument("--part", choices=PARTS, help="only this part, in this process")
    options = parser.parse_args()
    if find_spec("triton") is None:
        print("gpu.py: Expected Triton, found none. PyTorch's CUDA builds contain it.", file=sys.stderr)
        return 2
    if options.compile:
        return compile_kernels()
    if not torch.cuda.is_available():
        print("gpu.py: Expected an NVIDIA GPU, found none. Only --compile needs none.", file=sys.stderr)
        return 2
    if options.part is not None:
        one(options.part, options.quick, options.json)
        return 0
    options.json.unlink(missing_ok=True)
    deadline = time.monotonic() + MAX_TOTAL_SECONDS
    quick = ["--quick"] if options.quick else []
    command = [sys.executable, __file__, "--json", str(options.json), *quick]
    for name in PARTS:
        reason = failure([*command, "--part", name], min(MAX_PART_SECONDS, deadline - time.monotonic()))
        if reason is not None:
            results, violations = read(options.json)
            write(options.json, results, [*violations, f"{name}: {reason}"])
            print(f"WRONG {name}: {reason}", flush=True)
    _, violations = read(options.json)
    print(f"{len(violations)} violations; all results are in {options.json}")
    return 1 if violations else 0


def failure(command: list[str], seconds: float) -> str | None:
    """Run a process; return None if it ends with code 0 within `seconds`, and otherwise the reason."""
    if seconds <= 0:
        return "no time was left"
    try:
        code = subprocess.run(command, timeout=seconds, check=False).returncode
    except subprocess.TimeoutExpired:
        return f"not done after {seconds:.0f} s"
    return None if code == 0 else f"ended with code {code}"


def one(name: str, quick: bool, file: Path) -> None:
    """Run one part, and add its results to `file`, even if the part fails."""
    results, violations = read(file)
    if not results:
        results |= {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
        print(f"{results['device']}, torch {results['torch']}")
    try:
        globals()[name](quick, results, violations)
    except Exception as error:
        violations.append(f"{name}: {type(error).__name__}: {error}")
        print(f"WRONG {violations[-1]}")
    write(file, results, violations)


def read(file: Path) -> tuple[Results, list[str]]:
    """Return the results so far, and the violations so far."""
    results = json.loads(file.read_text()) if file.exists() else {}
    return results, results.pop("wrong", [])


def write(file: Path, results: Results, violations: list[str]) -> None:
    file.write_text(json.dumps(results | {"wrong": violations}, indent=1) + "\n")


def say(
    results: Results, name: str, value: float, unit: str, aim: float | None = None, note: str = ""
) -> None:
    """Add a result, and print it."""
    results[name] = {"value": value, "unit": unit, "aim": aim, "note": note}
    reached = "" if aim is None else f"  aim {aim:g}: {'reached' if value <= aim else 'MISSED'}"
    print(f"{name:58s} {value:10.4g} {unit:10s}{reached}  {note}")


# Rounds


def shards_of(agents: int, records: int, test: int = 1000) -> Shards:
    generator = np.random.default_rng(0)

    def draw(count: int) -> tuple[np.ndarray, np.ndarray]:
        return generator.random((count, PIXELS), np.float32), generator.integers(0, CLASSES, count)

    return Shards.from_arrays([draw(records) for _ in range(agents)], test=draw(test), classes=CLASSES)


def plan_of(graph: topology.Topology, rounds: int, seed: int = 0) -> Plan:
    rates = schedules.learning_rates(0.05, rounds, "none")
    schedule = schedules.schedule(rates, schedules.step_decay(1.0, 1, rounds), "gradient")
    return protocols.TopSynchronous(0.5).plan(graph, schedule, np.full(graph.agents, 0.05), seed)


def engine_of(graph: topology.Topology, rounds: int, shards: Shards, batch: int | None) -> Engine:
    batches = [Full(count) if batch is None else Cycle(count, batch) for count in shards.counts]
    return Engine(
        plan_of(graph, rounds),
        fresh_gradients(),
        shards,
        batches,
        seed=0,
        key=NoiseKey.of_seed(0),
        device=DEVICE,
    )


def fresh_gradients() -> ClippedGradients:
    """Return gradients of a model whose initial parameters are always the same."""
    torch.manual_seed(0)
    return ClippedGradients(mlp(), 1.0)


def begin(engine: Engine) -> State:
    return engine.start(engine.gradients.flat.flatten())


def advance_to(state: State, release: int, advance: Advance) -> State:
    while state.releases < release:
        state = advance(state, release - state.releases)
    return state


def round_seconds(engine: Engine, advance: Advance) -> tuple[float, float]:
    """Return the wall time per round after the first rounds, and the wall time of the first rounds."""
    warm_up = min(WARM_UP_ROUNDS, engine.plan.releases // 3)
    state = begin(engine)
    torch.cuda.synchronize()
    start = time.perf_counter()
    state = advance_to(state, warm_up, advance)
    torch.cuda.synchronize()
    middle, warm_up_rounds = time.perf_counter(), state.releases
    state = advance_to(state, engine.plan.releases, advance)
    torch.cuda.synchronize()
    seconds = (time.perf_counter() - middle) / (state.releases - warm_up_rounds)
    return seconds, middle - start


def measure(
    name: str,
    make: Callable[[], Engine],
    aim: float,
    results: Results,
    violations: list[str],
    runs: int = 1,
) -> None:
    """Time rounds one by one, and replayed rounds, on engines of the same job; compare the rows of both."""
    from topdp.simulator.cuda_replay import CudaReplay

    compared_rounds = min(COMPARED_ROUNDS, make().plan.releases)
    rows = []
    for is_replayed in (False, True):
        engine = make()
        replay = CudaReplay(engine)
        advance = replay.advance if is_replayed else engine.advance
        rows.append(advance_to(begin(engine), compared_rounds, advance).rows.clone())
        if is_replayed and replay.reason is not None:
            violations.append(f"{name}: not recorded: {replay.reason}")
        engine = make()
        replay = CudaReplay(engine)
        seconds, first_seconds = round_seconds(engine, replay.advance if is_replayed else engine.advance)
        say(
            results,
            f"{name}, {'several at once' if is_replayed else 'one by one'}",
            1e3 * seconds / runs,
            "ms/round" if runs == 1 else "ms/round/run",
            aim if is_replayed else None,
            f"first rounds {first_seconds:.2f} s",
        )
        if is_replayed and replay.reason is not None:
            violations.append(f"{name}: not recorded to the end: {replay.reason}")
    difference = float((rows[0] - rows[1]).norm() / rows[0].norm())
    note = "bit by bit" if torch.equal(*rows) else f"difference {difference:.1e}"
    title = f"{name}, both ways after {compared_rounds} rounds"
    say(results, title, difference, "relative", MAX_RELATIVE_DIFFERENCE, note)
    if not difference <= MAX_RELATIVE_DIFFERENCE:
        violations.append(f"{name}: the rows of replayed rounds and of rounds one by one differ by {note}")


def time_evaluation(name: str, engine: Engine, results: Results) -> None:
    state = begin(engine)
    seconds = median_seconds(lambda: engine.evaluate(state))
    say(results, f"{name}, evaluation on 1,000 records", 1e3 * seconds, "ms")


def kernels(quick: bool, results: Results, violations: list[str]) -> None:
    """Count the kernels that one round launches."""
    from torch.profiler import ProfilerActivity, profile

    from topdp.simulator.cuda_replay import CudaReplay

    graph, shards = topology.random(30, 0.2, 0), shards_of(30, 200)
    for is_replayed in (False, True):
        engine = engine_of(graph, 8, shards, 20)
        advance = CudaReplay(engine).advance if is_replayed else engine.advance
        state = begin(engine)
        for _ in range(4):  # the engine does not compare the fifth round
            state = advance(state, 1)
        try:
            with profile(activities=[ProfilerActivity.CUDA]) as profiler:
                advance(state, 1)
                torch.cuda.synchronize()
        except (AssertionError, RuntimeError) as error:
            print(f"the profiler does not count kernels: {error}")
            return
        events = profiler.key_averages()
        count = sum(event.count for event in events if event.device_type.name == "CUDA")
        way = "several at once" if is_replayed else "one by one"
        say(results, f"30 agents, batch 20, {way}", count, "kernels")


def small(quick: bool, results: Results, violations: list[str]) -> None:
    """Time rounds of 30 agents with small batches."""
    graph, shards, rounds = topology.random(30, 0.2, 0), shards_of(30, 2000), 200 if quick else 1000
    measure("30 agents, batch 20", lambda: engine_of(graph, rounds, shards, 20), 0.15, results, violations)
    count_mixing_kernels(graph, shards, results)
    time_evaluation("30 agents", engine_of(graph, 2, shards, 20), results)


def count_mixing_kernels(graph: topology.Topology, shards: Shards, results: Results) -> None:
    """Count how often Triton compiles the mixing kernel: not again for numbers that differ between rounds."""
    from topdp.simulator import row_mixing_cuda

    engine = engine_of(graph, 40, shards, 20)
    state = begin(engine)
    start = time.perf_counter()
    for _ in range(20):
        state = engine.advance(state)
    torch.cuda.synchronize()
    say(results, "the first 20 rounds one by one", time.perf_counter() - start, "s")
    try:
        count = sum(len(caches[0]) for caches in row_mixing_cuda._round.device_caches.values())
    except (AttributeError, TypeError, KeyError):  # another version of Triton
        count = -1
    say(results, "variants of the mixing kernel so far", count, "kernels", 2)


def full(quick: bool, results: Results, violations: list[str]) -> None:
    """Time rounds of 30 agents with full batches."""
    graph, shards, rounds = topology.random(30, 0.2, 0), shards_of(30, 2000), 100 if quick else 400
    name = "30 agents, full batches of 2,000"
    measure(name, lambda: engine_of(graph, rounds, shards, None), 0.8, results, violations)


def many(quick: bool, results: Results, violations: list[str]) -> None:
    """Time rounds of 1,000 agents."""
    graph, shards, rounds = topology.regular(1000, 4, 0), shards_of(1000, 100), 60 if quick else 200
    measure("1,000 agents, batch 20", lambda: engine_of(graph, rounds, shards, 20), 2.0, results, violations)
    time_evaluation("1,000 agents", engine_of(graph, 2, shards, 20), results)


def stacked(quick: bool, results: Results, violations: list[str]) -> None:
    """Time rounds of stacked runs."""
    runs, graph, rounds = 16 if quick else 64, topology.random(30, 0.2, 0), 60 if quick else 200
    plans = [prune(plan_of(graph, rounds, seed)) for seed in range(runs)]
    shards = shards_of(30, 200)
    stacked_shards, stacked_plan = stack_shards([shards] * runs), stack_plans(plans)
    run_batches = tuple(Cycle(count, 20) for count in shards.counts)

    def make() -> Engine:
        batches = StackedBatches(tuple((run_batches, seed, NoiseKey.of_seed(seed)) for seed in range(runs)))
        return Engine(
            stacked_plan,
            fresh_gradients(),
            stacked_shards,
            batches.batches,
            seed=0,
            device=DEVICE,
            draws=StackedNoise(plans, list(map(NoiseKey.of_seed, range(runs)))),
            select=batches.select,
        )

    measure(f"{runs} stacked runs of 30 agents, batch 20", make, 0.05, results, violations, runs)


# Limits of the hardware


def floors(quick: bool, results: Results, violations: list[str]) -> None:
    """Measure the memory bandwidth and the duration of the smallest kernel."""
    x = torch.randn(1 << 28, device=DEVICE)
    y = torch.empty_like(x)
    bandwidth = 2 * 4 * x.numel() / median_seconds(lambda: y.copy_(x))
    say(results, BANDWIDTH, bandwidth / 1e12, "TB/s")
    tiny = torch.zeros(1, device=DEVICE)
    graph = torch.cuda.CUDAGraph()
    tiny.add_(1)
    with torch.cuda.graph(graph):
        for _ in range(100):
            tiny.add_(1)
    microseconds = 1e6 * median_seconds(graph.replay) / 100
    say(results, "a kernel in a replay", microseconds, "us", None, "floor of a small round")
    for _ in range(100):
        tiny.add_(1)
    say(results, "a kernel by itself", 1e6 * median_seconds(lambda: tiny.add_(1), 200), "us")


def median_seconds(function: Callable[[], object], repeats: int = 20) -> float:
    """Return the median duration of a call, measured by events of the device."""
    function()
    seconds = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        function()
        end.record()
        torch.cuda.synchronize()
        seconds.append(start.elapsed_time(end) / 1e3)
    return statistics.median(seconds)


def mixing(quick: bool, results: Results, violations: list[str]) -> None:
    """Compare the mixing kernel with the time to read and write every row once, and to read the gradients.

    There are 6,000 rows; `quick` has a tenth of them.
    """
    from topdp.simulator import row_mixing_cuda

    agents = 200 if quick else 2000
    graph, d, padded_d = topology.regular(agents, 4, 0), 79_510, 79_520
    plan = prune(plan_of(graph, 6))
    draws = SimulatedDraws(NoiseKey.of_seed(0), plan.draws, plan.releases)
    mixer = row_mixing_cuda.CudaMixer(plan, draws, torch.device(DEVICE))
    rows = [int(plan.exists[r].sum()) for r in range(plan.releases)]
    before = torch.randn(max(rows), padded_d, device=DEVICE)[:, :d]
    gradient, out = torch.randn(agents, padded_d, device=DEVICE)[:, :d], torch.empty_like(before)
    work = RowWork(round=4, before=before[: rows[3]], gradient=gradient, out=out[: rows[4]])
    if BANDWIDTH not in results:
        floors(quick, results, violations)
    floor = 4e-12 * d * (rows[3] + agents + rows[4]) / results[BANDWIDTH]["value"]
    draw_count = int((plan.draw[4][plan.exists[4]] >= 0).sum())
    note = f"{rows[4]} rows, {draw_count * d / 1e6:.0f} million draws, floor {1e3 * floor:.3f} ms"
    for lanes in (128, 256, 512):
        for warps in (2, 4, 8):
            with (
                mock.patch.object(row_mixing_cuda, "LANES_PER_PROGRAM", lanes),
                mock.patch.object(row_mixing_cuda, "WARPS_PER_PROGRAM", warps),
            ):
                floor_multiple = median_seconds(lambda: mixer(work)) / floor
            is_default = (lanes, warps) == (
                row_mixing_cuda.LANES_PER_PROGRAM,
                row_mixing_cuda.WARPS_PER_PROGRAM,
            )
            name = f"mixing and noise, {lanes} lanes, {warps} warps" + (" (as it is)" if is_default else "")
            aim = 1.5 if is_default else None
            say(results, name, floor_multiple, "floors", aim, note if is_default else "")


# Detection of errors


def safety(quick: bool, results: Results, violations: list[str]) -> None:
    """Check that errors in recordings and records are detected, and that the rows are correct anyway."""
    from topdp.simulator.cuda_graphs import CudaGraphs
    from topdp.simulator.cuda_replay import CudaReplay

    graph, shards = topology.random(12, 0.3, 0), shards_of(12, 100)

    def make() -> Engine:
        return engine_of(graph, 40, shards, 20)

    def last_rows(engine: Engine, advance: Advance) -> torch.Tensor:
        state = begin(engine)
        while state.releases < engine.plan.releases:
            state = advance(state, 16)
        return state.rows.clone()

    def check(name: str, passed: bool) -> None:
        print(f"{name:58s} {'passed' if passed else 'WRONG'}")
        results[name] = passed
        if not passed:
            violations.append(name)

    engine = make()
    expected = last_rows(engine, engine.advance)
    replay = CudaReplay(engine)

    # Replacements of `CudaGraphs`, which records a function. Each uses the current `engine` and `replay`.

    def fail(warm_up: Callable[[], None], function: Callable[[], None]) -> Callable[[], None]:
        warm_up()
        raise RuntimeError("a failure for the benchmark")

    def stop_counter(warm_up: Callable[[], None], function: Callable[[], None]) -> Callable[[], None]:
        execute = CudaGraphs(engine.device)(warm_up, function)
        program, first_value = replay._program, []

        def execute_with_first_value() -> None:
            first_value[:] = first_value or [program._clock.clone()]
            program._clock.copy_(first_value[0])
            execute()

        return execute_with_first_value

    def interrupt(warm_up: Callable[[], None], function: Callable[[], None]) -> Callable[[], None]:
        """Wait for the device during the recording, which CUDA does not allow."""
        return CudaGraphs(engine.device)(warm_up, lambda: (function(), replay._program._clock.tolist()))

    def check_fallback(name: str, record: Callable[..., Callable[[], None]]) -> None:
        """Check that there is one warning, and that the engine then executes correct rounds one by one."""
        nonlocal engine, replay
        engine = make()
        replay = CudaReplay(engine, record)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            rows = last_rows(engine, replay.advance)
        has_one_warning = sum("one by one" in str(warning.message) for warning in caught) == 1
        check(name, has_one_warning and torch.equal(rows, expected))
        torch.cuda.empty_cache()  # raises if the device is in an error state

    check_fallback("a recording that fails", fail)
    check_fallback("a clock that stands still", stop_counter)
    for value in (float("nan"), 3e38):
        rows = []
        for is_replayed in (False, True):
            engine = make()
            engine.shards.inputs[3, 7] = value
            replay = CudaReplay(engine)
            rows.append(last_rows(engine, replay.advance if is_replayed else engine.advance))
        is_close = torch.allclose(*rows, rtol=1e-4, atol=1e-5) and bool(rows[0].isfinite().all())
        is_replayed_with_blanks = replay._blanks and replay.reason is None
        check(f"a record of {value:g} that adds nothing", is_close and is_replayed_with_blanks)
    check_fallback("a recording that CUDA breaks off", interrupt)
    engine = make()
    replay = CudaReplay(engine)
    is_close = torch.allclose(last_rows(engine, replay.advance), expected, rtol=1e-4, atol=1e-5)
    check("and that others can be made after it", is_close and replay.reason is None)


# Without a GPU


def compile_kernels() -> int:
    """Compile all kernels. Return the exit code: 1 if the mixing kernel does not access 16 bytes at once."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from topdp.learning.gradients import clipping_cuda
    from topdp.simulator import row_mixing_cuda

    floats, integers, integer = "*fp32", "*i32", "i32"
    rows = {"out": floats, "before": floats, "gradient": floats, "slot": integers, "weight": floats,
            "owner": integers, "step": floats, "key": integers, "draw": integers, "std": floats}  # fmt: skip
    sizes = dict.fromkeys(("first", "agents", "round", "d", "out_row", "before_row", "gradient_row"), integer)
    mixing_constants = {"W": 5, "V": 1, "LANES": row_mixing_cuda.LANES_PER_PROGRAM}
    # The kernel, the types of its arguments, and its compile-time constants.
    kernels = {
        "mixing by a clock": (
            row_mixing_cuda._round,
            rows | {"clock": integers, "starts": integers} | sizes,
            mixing_constants | {"SOME": False, "BY_CLOCK": True, "chosen": None},
        ),
        "mixing one by one": (
            row_mixing_cuda._round,
            rows | sizes,
            mixing_constants
            | {"SOME": False, "BY_CLOCK": False, "chosen": None, "clock": None, "starts": None},
        ),
        "mixing of some agents, rounded": (
            row_mixing_cuda._round,
            rows | {"out": "*bf16", "before": "*bf16", "chosen": integers} | sizes,
            mixing_constants | {"SOME": True, "BY_CLOCK": False, "clock": None, "starts": None},
        ),
        "squared norms": (
            clipping_cuda._squared,
            {"out": floats, "x": floats, "b": integer, "size": integer, "x_n": integer, "x_b": integer,
             "x_k": integer, "underflown": "fp32"},
            {"WIDTH": 1024},
        ),
        "factors": (
            clipping_cuda._flat,
            {"factor": floats, "longer": "*u8", "bad": "*u8", "squares": floats, "clip": "fp32",
             "size": integer},
            {"BLOCK": clipping_cuda.FACTOR_BLOCK_EXAMPLES},
        ),
    }  # fmt: skip
    wide_accesses = {"ld.global.v4.b32", "st.global.v4.b32"}
    for name, (kernel, types, constants) in kernels.items():
        names = kernel.arg_names
        signature = {
            argument: "constexpr" if argument in constants else types[argument] for argument in names
        }
        aligned = [
            i
            for i, argument in enumerate(names)
            if signature[argument].startswith("*") or argument.endswith("_row")
        ]
        source = ASTSource(
            kernel, signature, {(names.index(argument),): value for argument, value in constants.items()},
            {(i,): [["tt.divisibility", 16]] for i in aligned},
        )  # fmt: skip
        target = GPUTarget("cuda", TARGET_CAPABILITY, 32)
        compiled = triton.compile(source, target=target, options={"num_warps": 4})
        accesses = Counter(re.findall(r"(?:ld|st)\.global[.\w]*", compiled.asm["ptx"]))
        print(f"{name}: compiled; {dict(accesses)}")
        if name in ("mixing by a clock", "mixing one by one") and not wide_accesses <= accesses.keys():
            print(f"{name}: Expected loads and stores of 16 bytes, found none.", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # the output remains if a later part fails
    sys.exit(main())
