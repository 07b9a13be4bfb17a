"""Spam detection. Six mail servers with 806 messages each, a transformer over 32 words."""

import torch
from torch import nn

import topdp


class SpamClassifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(512, 16)
        self.positions = nn.Parameter(torch.zeros(32, 16))
        self.encoder = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.output = nn.Linear(16, 2)

    def forward(self, tokens):
        states = self.encoder(self.embedding(tokens % 512) + self.positions)
        return self.output(states.mean(1))


data = topdp.data.load("spam-assassin")
tokens, test = torch.from_numpy(data.train_inputs)[:, :32], torch.from_numpy(data.test_inputs)[:, :32]
parts = topdp.data.partition(data.train_targets, 6, "iid", seed=0)
shards = topdp.Shards.from_arrays(
    [(tokens[part], data.train_targets[part]) for part in parts],
    test=(test, data.test_targets),
    dtype=torch.int64,
)
result = topdp.train(
    SpamClassifier(),
    shards,
    topdp.topology.ring(6),
    method="correlated",
    epsilon=2.0,
    clip=0.5,
    learning_rate=16.0,
    average=0.8,
    rounds=60,
    evaluate_every=60,
)
print(result.scores["accuracy"])
