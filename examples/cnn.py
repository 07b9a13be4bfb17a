"""Ten agents with 1,000 digits each, a small convolutional network."""

from torch import nn

import topdp

data = topdp.data.load("mnist")
parts = [part[:1000] for part in topdp.data.partition(data.train_targets, 10, "iid", seed=0)]
shards = topdp.Shards.from_dataset(data, parts)
model = nn.Sequential(
    nn.Conv2d(1, 8, 5, stride=2),
    nn.ReLU(),
    nn.Conv2d(8, 16, 5, stride=2),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(256, 10),
)
result = topdp.train(
    model,
    shards,
    topdp.topology.random(10, 0.4, seed=0),
    method="correlated",
    epsilon=2.0,
    clip=0.5,
    learning_rate=16.0,
    average=0.8,
    rounds=60,
    evaluate_every=60,
)
print(result.scores["accuracy"])
