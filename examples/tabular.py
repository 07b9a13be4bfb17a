"""Benign and malignant tumours. Six hospitals with 76 records each, a logistic regression."""

import torch

import topdp

data = topdp.data.load("breast-cancer")
shards = topdp.Shards.from_dataset(data, topdp.data.partition(data.train_targets, 6, "iid", seed=0))
model = torch.nn.Linear(30, 2)
result = topdp.train(
    model,
    shards,
    topdp.topology.ring(6),
    method="correlated",
    epsilon=2.0,
    clip=1.0,
    learning_rate=4.0,
    rounds=60,
)
print(result.scores["accuracy"])
