"""Progress of a disease in one year. Five practices with 70 records each."""

import torch

import topdp

data = topdp.data.load("diabetes")
shards = topdp.Shards.from_dataset(data, topdp.data.partition(data.train_targets, 5, "iid", seed=0))
result = topdp.train(
    torch.nn.Linear(10, 1),
    shards,
    topdp.topology.ring(5),
    loss="mse",
    metrics=["r2", "mae"],
    method="correlated",
    epsilon=2.0,
    clip=1.0,
    learning_rate=0.5,
    rounds=60,
)
print(result.scores["r2"])
