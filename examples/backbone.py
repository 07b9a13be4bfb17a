"""A network with BatchNorm, trained on public images of clothes, and a new head for private digits."""

import torch
from torch import nn

import topdp

public = topdp.data.load("fashion-mnist")
clothes, labels = (torch.from_numpy(part[:10000]) for part in public.train())
backbone = nn.Sequential(
    nn.Conv2d(1, 16, 3, stride=2),
    nn.BatchNorm2d(16),
    nn.ReLU(),
    nn.Conv2d(16, 32, 3, stride=2),
    nn.BatchNorm2d(32),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(3),
    nn.Flatten(),
)
network = nn.Sequential(backbone, nn.Linear(288, 10))
optimizer = torch.optim.Adam(network.parameters(), 1e-3)
for x, y in zip(clothes.split(100), labels.split(100), strict=True):
    optimizer.zero_grad()
    nn.functional.cross_entropy(network(x), y).backward()
    optimizer.step()

data = topdp.data.load("mnist")
parts = [part[:1000] for part in topdp.data.partition(data.train_targets, 10, "iid", seed=0)]
model = nn.Sequential(backbone.eval().requires_grad_(False), nn.Linear(288, 10))
result = topdp.train(
    model,
    topdp.Shards.from_dataset(data, parts),
    topdp.topology.random(10, 0.4, seed=0),
    method="correlated",
    epsilon=2.0,
    clip=0.5,
    learning_rate=48.0,
    average=0.8,
    rounds=60,
    evaluate_every=60,
)
print(result.scores["accuracy"])
