"""Gradients that PyTorch does not keep: of a tensor in the middle, of a layer, of every call."""

import warnings

import torch
from torch import nn

import hookstats as hs

# y is no leaf: its .grad is None, with a warning. A capture has what passed through.
warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor that is not a leaf")
x = torch.randn(2, 1, requires_grad=True)
y = x + 2
z = y.pow(2).mean()
with hs.capture(y) as c:
    z.backward()
print("y.grad :", y.grad)
print("dz/dy  :", c.grads)
assert y.grad is None
torch.testing.assert_close(c.grads, [2 * y.detach() / 2])  # mean() divides by 2
x.data -= 1e-3 * x.grad

# A layer with one weight, 2, and the gradients before and behind it.
x = torch.tensor([[1.0], [2.0]], requires_grad=True)
y = torch.tensor([[1.0], [1.0]])
model = nn.Linear(1, 1, bias=False)
nn.init.constant_(model.weight, 2.0)
with hs.capture(model, kinds=("input", "output", "grad_input", "grad_output")) as c:
    y_p = model(x)
    loss = nn.functional.mse_loss(y_p, y)
    loss.backward()
print("loss   :", loss.data)
print("dl/dy_p:", c["", "grad_output"][0])
print("dl/dx  :", c["", "grad_input"][0])
print("grad   :", model.weight.grad)
assert loss.item() == 5.0
assert c["", "grad_output"][0].tolist() == [[1.0], [3.0]]
assert c["", "grad_input"][0].tolist() == [[2.0], [6.0]]
assert model.weight.grad.tolist() == [[7.0]]

# What a forward hook that registers a tensor hook is for: a call's input and its gradient together.
(call,) = c.calls("")
assert call.input.tolist() == [[1.0], [2.0]]
assert call.grad_output.tolist() == [[1.0], [3.0]]
torch.testing.assert_close(call.grad_output.T @ call.input, model.weight.grad)

# The same in a training run: each step is a call of its own, and its tensors are copies.
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with hs.capture(model, kinds=("input", "grad_output")) as c:
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
for call in c.calls():
    print(f"step {call.index} :", call.grad_output.flatten())
assert len(c.calls()) == 3
torch.testing.assert_close(call.grad_output.T @ call.input, model.weight.grad)
