"""Agents per second on one machine: topdp's simulator and other frameworks that simulate many agents.

    python benchmarks/peers.py [--agents 8] [--rounds 5] [--who topdp,processes]
    torchrun --nproc-per-node 2 benchmarks/peers.py --who pfl      # two workers of pfl

In a round, each agent takes one step on its own batch (MLP 784-100-10, batch 64), then rows are mixed.
`topdp` clips per-example gradients and adds noise. The others take a plain step, which is less work, so the
comparison shows the cost of many agents.

    processes       one process per agent; rows go around a ring through pipes; no framework
    decentralizepy  one process per agent; rows go around a ring over TCP on loopback; see README.md
    flower          Flower's simulation engine (Ray actors), a server averages; pip install 'flwr[simulation]'
    pfl             pfl-research: agents one after the other, a server averages; pip install 'pfl[pytorch]'
    pfl-dp          pfl with its central mechanism: clipped updates of agents, noise drawn once per round

TOPDP_THREADS is the number of threads of topdp and pfl, which simulate all agents in one process; the default
is the number of cores.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing as mp
import os
import sys
import time
from importlib.util import find_spec

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("RAY_DEDUP_LOGS", "0")
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

BATCH, LEARNING_RATE = 64, 0.5
MIXING_ALPHA = 0.25  # the weight of an agent's own row
MAX_START_SECONDS = 600
MAX_RUN_SECONDS = 600


def network():
    from torch import nn

    return nn.Sequential(nn.Flatten(), nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 10))


def batch_of(agent: int):
    import torch

    generator = torch.Generator().manual_seed(agent)
    return torch.rand(BATCH, 784, generator=generator), torch.randint(10, (BATCH,), generator=generator)


def plain_step(model, x, y) -> None:
    """Take one step of gradient descent, without clipping and noise."""
    import torch

    loss = torch.nn.functional.cross_entropy(model(x), y)
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    with torch.no_grad():
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter.sub_(gradient, alpha=LEARNING_RATE)


def set_threads() -> None:
    """Use as many threads as TOPDP_THREADS states, for frameworks that use one process."""
    import torch

    torch.set_num_threads(int(os.environ.get("TOPDP_THREADS", os.cpu_count() or 1)))


def topdp(agents: int, rounds: int) -> float:
    """Return the seconds for `rounds` private rounds."""
    from topdp.experiments.bench.bench_job import BenchData, BenchJob, topdp_round

    set_threads()
    job = BenchJob(agents=agents, batch=BATCH, rounds=rounds + 2)
    execute_round = topdp_round(job, BenchData.of(job), job.noise_multiplier)
    execute_round()
    start = time.perf_counter()
    for _ in range(rounds):
        execute_round()
    return time.perf_counter() - start


def run_ring_agent(agent: int, agents: int, rounds: int, to_next, from_previous, ready, go, done) -> None:
    """Run the process of one agent, which mixes its row with that of the previous agent of a ring."""
    import torch

    torch.set_num_threads(1)
    model, (x, y) = network(), batch_of(agent)
    parameters = list(model.parameters())
    plain_step(model, x, y)
    ready.put(agent)
    go.wait()
    for _ in range(rounds):
        plain_step(model, x, y)
        row = torch.nn.utils.parameters_to_vector(parameters).detach()
        # A row is larger than the buffer of a pipe. To avoid a deadlock, agents with even numbers send first.
        if agent % 2 == 0:
            to_next.send_bytes(row.numpy().tobytes())
        received = torch.frombuffer(bytearray(from_previous.recv_bytes()), dtype=torch.float32)
        if agent % 2:
            to_next.send_bytes(row.numpy().tobytes())
        mixed = MIXING_ALPHA * row + (1 - MIXING_ALPHA) * received
        torch.nn.utils.vector_to_parameters(mixed, parameters)
    done.put(agent)


def processes(agents: int, rounds: int) -> float:
    """Return the seconds for `rounds` rounds, after all processes have taken their first step."""
    if agents % 2:
        raise SystemExit(f"Expected an even number of agents for processes in a ring, got {agents}.")
    context = mp.get_context("spawn")
    ready, done, go = context.Queue(), context.Queue(), context.Event()
    pipes = [context.Pipe(duplex=False) for _ in range(agents)]
    workers = [
        context.Process(
            target=run_ring_agent,
            args=(i, agents, rounds, pipes[(i + 1) % agents][1], pipes[i][0], ready, go, done),
            daemon=True,
        )
        for i in range(agents)
    ]
    for worker in workers:
        worker.start()
    for _ in workers:
        ready.get(timeout=MAX_START_SECONDS)
    start = time.perf_counter()
    go.set()
    for _ in workers:
        done.get(timeout=MAX_RUN_SECONDS)
    seconds = time.perf_counter() - start
    for worker in workers:
        worker.join()
    return seconds


def flower(agents: int, rounds: int) -> float:
    """Return the seconds from the end of the first round to the end of the last, without the start of Ray."""
    from flwr.client import ClientApp, NumPyClient
    from flwr.common import ndarrays_to_parameters
    from flwr.server import ServerApp, ServerAppComponents, ServerConfig
    from flwr.server.strategy import FedAvg
    from flwr.simulation import run_simulation

    logging.getLogger("flwr").setLevel(logging.ERROR)
    ends: list[float] = []

    class Client(NumPyClient):
        def __init__(self, agent: int) -> None:
            self.agent = agent

        def fit(self, parameters, config):
            import torch

            torch.set_num_threads(1)
            model, (x, y) = network(), batch_of(self.agent)
            for parameter, value in zip(model.parameters(), parameters, strict=True):
                parameter.data = torch.from_numpy(value.copy())
            plain_step(model, x, y)
            return [parameter.detach().numpy() for parameter in model.parameters()], BATCH, {}

    class TimedAveraging(FedAvg):
        def aggregate_fit(self, server_round, results, failures):
            aggregate = super().aggregate_fit(server_round, results, failures)
            assert len(results) == agents and not failures
            ends.append(time.perf_counter())
            return aggregate

    initial = ndarrays_to_parameters([parameter.detach().numpy() for parameter in network().parameters()])
    strategy = TimedAveraging(
        fraction_fit=1.0, fraction_evaluate=0.0, min_fit_clients=agents, min_available_clients=agents,
        initial_parameters=initial,
    )  # fmt: skip
    run_simulation(
        server_app=ServerApp(
            server_fn=lambda context: ServerAppComponents(
                strategy=strategy, config=ServerConfig(num_rounds=rounds + 1)
            )
        ),
        client_app=ClientApp(
            client_fn=lambda context: Client(int(context.node_config["partition-id"])).to_client()
        ),
        num_supernodes=agents,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
    return ends[-1] - ends[0]


def pfl(agents: int, rounds: int, private: bool = False) -> float:
    """Return the seconds from the end of the first round to the end of the last.

    The first round contains an evaluation, and the others do not.
    """
    import torch
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.metrics import Metrics, Weighted
    from pfl.model.pytorch import PyTorchModel
    from pfl.privacy import CentrallyAppliedPrivacyMechanism, GaussianMechanism

    set_threads()
    ends: list[float] = []

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = network()

        def loss(self, x, y):
            return torch.nn.functional.cross_entropy(self.layers(x), y)

        def metrics(self, x, y):
            return {"loss": Weighted(self.loss(x, y).item() * len(y), len(y))}

    class RoundClock(TrainingProcessCallback):
        def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
            ends.append(time.perf_counter())
            return False, Metrics()

    records = [PyTorchTensorDataset(batch_of(agent), user_id=str(agent)) for agent in range(agents)]
    # Each round has as many agents as there are, so each agent takes part once.
    sampler = get_user_sampler("minimize_reuse", range(agents))
    data = FederatedDataset(records.__getitem__, sampler)
    mechanism = CentrallyAppliedPrivacyMechanism(
        GaussianMechanism(clipping_bound=1.0, relative_noise_stddev=1.0)
    )
    module = Network()
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=rounds + 1, evaluation_frequency=rounds + 1, train_cohort_size=agents,
            val_cohort_size=None,
        ),
        SimulatedBackend(data, data, [mechanism] if private else []),
        model,
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=LEARNING_RATE, local_batch_size=BATCH),
        callbacks=[RoundClock()],
        send_metrics_to_platform=False,
    )  # fmt: skip
    return ends[-1] - ends[0]


def pfl_dp(agents: int, rounds: int) -> float:
    return pfl(agents, rounds, private=True)


def decentralizepy(agents: int, rounds: int) -> float:
    from peers_decentralizepy import time_rounds

    return time_rounds(agents, rounds)


FRAMEWORKS = {
    "topdp": topdp,
    "processes": processes,
    "decentralizepy": decentralizepy,
    "flower": flower,
    "pfl": pfl,
    "pfl-dp": pfl_dp,
}
# The module that a framework needs, and how to install it.
REQUIREMENTS = {
    "flower": ("flwr", "pip install 'flwr[simulation]'"),
    "pfl": ("pfl", "pip install 'pfl[pytorch]'"),
    "pfl-dp": ("pfl", "pip install 'pfl[pytorch]'"),
    "decentralizepy": ("decentralizepy", "see benchmarks/README.md"),
}


def is_installed(name: str) -> bool:
    """Return whether a framework is installed; otherwise print how to install it."""
    module, instruction = REQUIREMENTS.get(name, ("", ""))
    if module and find_spec(module) is None:
        print(f"{name}: not installed; {instruction}", file=sys.stderr)
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--agents", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--who", default=",".join(FRAMEWORKS), help="frameworks, separated by commas")
    options = parser.parse_args()
    names = options.who.split(",")
    if unknown := sorted(set(names) - set(FRAMEWORKS)):
        parser.error(f"Expected --who of {', '.join(FRAMEWORKS)}; got {', '.join(unknown)}.")
    is_first_worker = os.environ.get("RANK", "0") == "0"  # all workers of torchrun run this program
    for name in filter(is_installed, names):
        seconds = FRAMEWORKS[name](options.agents, options.rounds)
        milliseconds = 1e3 * seconds / options.rounds
        agents_per_second = options.agents * options.rounds / seconds
        if is_first_worker:
            print(f"{name:14} {milliseconds:10.1f} ms per round {agents_per_second:12,.0f} agents/s")


if __name__ == "__main__":
    main()
