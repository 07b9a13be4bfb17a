"""LoRA: a network trained on public images of clothes learns digits by low-rank updates and a new head."""

import torch
from torch import nn

import topdp

public = topdp.data.load("fashion-mnist")
clothes, labels = (torch.from_numpy(part[:10000]) for part in public.train())
layers = [nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)]
network = nn.Sequential(*layers)
optimizer = torch.optim.Adam(network.parameters(), 1e-3)
for x, y in zip(clothes.split(100), labels.split(100), strict=True):
    optimizer.zero_grad()
    nn.functional.cross_entropy(network(x), y).backward()
    optimizer.step()

data = topdp.data.load("mnist")
parts = [part[:1000] for part in topdp.data.partition(data.train_targets, 10, "iid", seed=0)]
network[-1] = nn.Linear(128, 10)  # a new head
result = topdp.train(
    topdp.lora(network, rank=4, train=["5"]),
    topdp.Shards.from_dataset(data, parts),
    topdp.topology.random(10, 0.4, seed=0),
    method="correlated",
    epsilon=2.0,
    clip=0.5,
    learning_rate=8.0,
    average=0.8,
    rounds=120,
    evaluate_every=120,
)
print(result.scores["accuracy"])
