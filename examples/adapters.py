"""LoRA: a network trained in public on clothes learns digits by changes of low rank, and a new head."""

import torch
from torch import nn

import topdp

public = topdp.data.load("fashion-mnist")
clothes, kinds = (torch.from_numpy(part[:10000]) for part in public.train())
layers = [nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)]
whole = nn.Sequential(*layers)
steps = torch.optim.Adam(whole.parameters(), 1e-3)
for x, y in zip(clothes.split(100), kinds.split(100), strict=True):
    steps.zero_grad()
    nn.functional.cross_entropy(whole(x), y).backward()
    steps.step()

data = topdp.data.load("mnist")
parts = [part[:1000] for part in topdp.data.partitions.iid(data.train_targets, agents=10, seed=0)]
whole[-1] = nn.Linear(128, 10)  # a new head
result = topdp.train(
    topdp.lora(whole, rank=4, train=["5"]),
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
