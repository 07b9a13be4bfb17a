"""Three labels for each digit: is it even, is it above four, does it have a loop?"""

import torch

import topdp

data = topdp.data.load("mnist")
labels_of_digit = torch.tensor([[d % 2 == 0, d > 4, d in (0, 6, 8, 9)] for d in range(10)]).float()
inputs, test = (torch.from_numpy(part[0]) for part in (data.train(), data.test()))
parts = [part[:1000] for part in topdp.data.partition(data.train_targets, 10, "iid", seed=0)]
shards = topdp.Shards.from_arrays(
    [(inputs[part], labels_of_digit[data.train_targets[part]]) for part in parts],
    test=(test, labels_of_digit[data.test_targets]),
)
model = torch.nn.Sequential(
    torch.nn.Flatten(), torch.nn.Linear(784, 64), torch.nn.ReLU(), torch.nn.Linear(64, 3)
)
result = topdp.train(
    model,
    shards,
    topdp.topology.random(10, 0.4, seed=0),
    loss="bce",
    metrics=["accuracy", "auroc"],
    method="correlated",
    epsilon=2.0,
    clip=0.5,
    learning_rate=16.0,
    rounds=60,
    evaluate_every=60,
)
print(result.scores["accuracy"], result.scores["auroc"])
