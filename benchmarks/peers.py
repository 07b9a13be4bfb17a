"""Agents per second on one machine: this engine beside other ways to simulate many agents.

The job is one step of each agent on its own batch (MLP 784-100-10, batch 64), and then mixing. `topdp` makes
private rounds: clipped per example, with noise. The others take a plain step, which is less work: what is
compared is what it costs to have many agents.

    processes       one process for each node; rows go over pipes around a ring: nothing but the processes
    decentralizepy  itself: one process for each node, TCP over loopback around a ring; see README.md
    flower          Flower's simulation engine (Ray actors), a server averages; pip install 'flwr[simulation]'
    pfl             pfl-research: one agent after the other, a server averages; pip install 'pfl[pytorch]'
    pfl-dp          the same with its central mechanism: updates of agents are clipped, one noise in all

    python benchmarks/peers.py [--agents 8] [--rounds 5] [--who topdp,processes] [--json]
    torchrun --nproc-per-node 2 benchmarks/peers.py --who pfl      # pfl has workers of its own

TOPDP_THREADS is the number of threads of topdp and pfl, which have all agents in one process (else all
cores).
"""

from __future__ import annotations

import argparse
import json
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

BATCH, RATE, ALPHA = 64, 0.5, 0.25


def network():
    from torch import nn

    return nn.Sequential(nn.Flatten(), nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 10))


def batch_of(agent: int):
    import torch

    generator = torch.Generator().manual_seed(agent)
    return torch.rand(BATCH, 784, generator=generator), torch.randint(10, (BATCH,), generator=generator)


def step(model, x, y) -> None:
    """One plain step of gradient descent."""
    import torch

    loss = torch.nn.functional.cross_entropy(model(x), y)
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    with torch.no_grad():
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter.sub_(gradient, alpha=RATE)


def use_threads() -> None:
    """As many as TOPDP_THREADS says, for those who have one process."""
    import torch

    torch.set_num_threads(int(os.environ.get("TOPDP_THREADS", os.cpu_count() or 1)))


def topdp(agents: int, rounds: int) -> float:
    """Seconds for `rounds` private rounds."""
    from topdp.experiments.bench.bench_job import BenchData, BenchJob, topdp_round

    use_threads()
    job = BenchJob(agents=agents, batch=BATCH, rounds=rounds + 2)
    run = topdp_round(job, BenchData.of(job), job.noise_multiplier)
    run()
    begun = time.perf_counter()
    for _ in range(rounds):
        run()
    return time.perf_counter() - begun


def node(agent: int, agents: int, rounds: int, send, receive, ready, go, done) -> None:
    """One process: steps, sends its row to the next agent of a ring, mixes with what it gets."""
    import torch

    torch.set_num_threads(1)
    model, (x, y) = network(), batch_of(agent)
    parameters = list(model.parameters())
    step(model, x, y)
    ready.put(agent)
    go.wait()
    for _ in range(rounds):
        step(model, x, y)
        row = torch.nn.utils.parameters_to_vector(parameters).detach()
        # Even ones speak first: pipes are shorter than rows.
        if agent % 2 == 0:
            send.send_bytes(row.numpy().tobytes())
        got = torch.frombuffer(bytearray(receive.recv_bytes()), dtype=torch.float32)
        if agent % 2:
            send.send_bytes(row.numpy().tobytes())
        torch.nn.utils.vector_to_parameters(ALPHA * row + (1 - ALPHA) * got, parameters)
    done.put(agent)


def processes(agents: int, rounds: int) -> float:
    """Seconds for `rounds` rounds, from when all processes are up."""
    if agents % 2:
        raise SystemExit("Expected an even number of agents for processes in a ring.")
    context = mp.get_context("spawn")
    ready, done, go = context.Queue(), context.Queue(), context.Event()
    pipes = [context.Pipe(duplex=False) for _ in range(agents)]
    started = [
        context.Process(
            target=node,
            args=(i, agents, rounds, pipes[(i + 1) % agents][1], pipes[i][0], ready, go, done),
            daemon=True,
        )
        for i in range(agents)
    ]
    for process in started:
        process.start()
    for _ in started:
        ready.get(timeout=600)
    begun = time.perf_counter()
    go.set()
    for _ in started:
        done.get(timeout=600)
    seconds = time.perf_counter() - begun
    for process in started:
        process.join()
    return seconds


def flower(agents: int, rounds: int) -> float:
    """Seconds from the end of the first round to the end of the last: starting Ray does not count."""
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
            step(model, x, y)
            return [parameter.detach().numpy() for parameter in model.parameters()], BATCH, {}

    class Timed(FedAvg):
        def aggregate_fit(self, server_round, results, failures):
            found = super().aggregate_fit(server_round, results, failures)
            assert len(results) == agents and not failures
            ends.append(time.perf_counter())
            return found

    start = ndarrays_to_parameters([parameter.detach().numpy() for parameter in network().parameters()])
    strategy = Timed(
        fraction_fit=1.0, fraction_evaluate=0.0, min_fit_clients=agents, min_available_clients=agents,
        initial_parameters=start,
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
    """Seconds from the end of the first round to the end of the last: evaluation is in the first alone."""
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

    use_threads()
    ends: list[float] = []

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = network()

        def loss(self, x, y):
            return torch.nn.functional.cross_entropy(self.layers(x), y)

        def metrics(self, x, y):
            return {"loss": Weighted(self.loss(x, y).item() * len(y), len(y))}

    class Clock(TrainingProcessCallback):
        def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
            ends.append(time.perf_counter())
            return False, Metrics()

    records = [PyTorchTensorDataset(batch_of(agent), user_id=str(agent)) for agent in range(agents)]
    # Takes the agents in turn: in a round of as many as there are, each is in once.
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
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=RATE, local_batch_size=BATCH),
        callbacks=[Clock()],
        send_metrics_to_platform=False,
    )  # fmt: skip
    return ends[-1] - ends[0]


def pfl_dp(agents: int, rounds: int) -> float:
    return pfl(agents, rounds, private=True)


def decentralizepy(agents: int, rounds: int) -> float:
    from peers_decentralizepy import seconds_of

    return seconds_of(agents, rounds)


WHO = {
    "topdp": topdp,
    "processes": processes,
    "decentralizepy": decentralizepy,
    "flower": flower,
    "pfl": pfl,
    "pfl-dp": pfl_dp,
}
NEEDS = {
    "flower": ("flwr", "pip install 'flwr[simulation]'"),
    "pfl": ("pfl", "pip install 'pfl[pytorch]'"),
    "pfl-dp": ("pfl", "pip install 'pfl[pytorch]'"),
    "decentralizepy": ("decentralizepy", "see benchmarks/README.md"),
}


def is_there(name: str) -> bool:
    """Whether what a contestant needs can be imported; if not, it says how to get it."""
    module, how = NEEDS.get(name, ("", ""))
    if module and find_spec(module) is None:
        print(f"{name}: not installed; {how}", file=sys.stderr)
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--agents", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--who", default=",".join(WHO))
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    arguments = parser.parse_args()
    names = arguments.who.split(",")
    if unknown := sorted(set(names) - set(WHO)):
        parser.error(f"Expected --who of {', '.join(WHO)}; got {', '.join(unknown)}.")
    # Workers of torchrun run all of this: one of them speaks.
    first = os.environ.get("RANK", "0") == "0"
    found = {}
    for name in filter(is_there, names):
        seconds = WHO[name](arguments.agents, arguments.rounds)
        found[name] = {
            "milliseconds_a_round": 1e3 * seconds / arguments.rounds,
            "agents_per_second": arguments.agents * arguments.rounds / seconds,
        }
        if not arguments.json and first:
            each = found[name]
            print(
                f"{name:14} {each['milliseconds_a_round']:10.1f} ms a round "
                f"{each['agents_per_second']:12,.0f} agents/s"
            )
    if arguments.json and first:
        print(json.dumps({"agents": arguments.agents, "rounds": arguments.rounds, "found": found}))


if __name__ == "__main__":
    main()
