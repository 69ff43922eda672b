"""Read a store into torch: a tensor of a whole feature, or batches in flat memory for a training loop."""

import sys

import torch

import bertfeat

folder = sys.argv[1] if len(sys.argv) > 1 else "demo-features"
store = bertfeat.extract("examples/data/peps.txt", folder)

whole = store.torch("token", "layer_06")
print("tensor:", tuple(whole.shape), whole.dtype)

# One pass over the batches trains a linear probe that detects special tokens.
probe = torch.nn.Linear(384, 1)
optimizer = torch.optim.Adam(probe.parameters(), lr=1e-2)
loss = torch.zeros(())
for batch in store.batches("token", "layer_06", batch_size=512, columns=["is_special"]):
    vectors = torch.from_numpy(batch.vectors).float()
    target = torch.from_numpy(batch.columns["is_special"].to_numpy().copy()).float()
    loss = torch.nn.functional.binary_cross_entropy_with_logits(probe(vectors).squeeze(1), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss of the last batch: {loss.item():.3f}")
