"""The gradient of every input of a module, and of the sub-expressions in it.

A deprecated backward hook (`register_backward_hook`) on a module of 2*x + 3*y - 5*z is given two
gradients for three inputs: those of the two operands of the last operation.
"""

import torch
from torch import nn

import hookstats as hs


def tensors(*rows):
    return [torch.tensor(row, requires_grad=True) for row in rows]


# Three inputs, three gradients.
class Model(nn.Module):
    def forward(self, x, y, z):
        return 2 * x + 3 * y - 5 * z


x, y, z, target = tensors([2.0, 3.0], [6.0, 4.0], [1.0, 5.0], [9.0, -1.0])
model = Model()
with hs.capture(model, include="", kinds=("grad_input", "grad_output")) as c:
    loss = nn.MSELoss()(model(x, y, z), target)
    loss.backward()
(of_inputs,) = c["", "grad_input"]
(of_output,) = c["", "grad_output"]
print("loss =", loss)
print("grad_output:", of_output)
print("grad_input:", of_inputs)
assert loss == 50.0
assert of_output.tolist() == [8.0, -6.0]
assert [g.tolist() for g in of_inputs] == [[16.0, -12.0], [24.0, -18.0], [-40.0, 30.0]]
assert [g.tolist() for g in (x.grad, y.grad, z.grad)] == [g.tolist() for g in of_inputs]
assert target.grad.tolist() == [-8.0, 6.0]


# A sub-expression that is a module has an output, and that a gradient to look at and to edit.
class Weighted(nn.Module):
    """The sum of its inputs, each times its factor."""

    def __init__(self, *factors):
        super().__init__()
        self.factors = factors

    def forward(self, *inputs):
        return sum(factor * x for factor, x in zip(self.factors, inputs, strict=True))


class Difference(nn.Module):
    def __init__(self):
        super().__init__()
        self.left = Weighted(2, 3)
        self.right = Weighted(5)

    def forward(self, x, y, z):
        return self.left(x, y) - self.right(z)


x, y, z, target = tensors([2.0, 3.0], [6.0, 4.0], [1.0, 5.0], [9.0, -1.0])
model = Difference()
seen = {}
hs.edit(model.left, lambda g: seen.update(left=g.tolist()), "grad_output")  # merely looks
hs.edit(model.right, lambda g: seen.update(right=g.tolist()), "grad_output")
hs.edit(model.left, lambda g: g + 888888.0, "grad_output")
hs.edit(model.right, lambda g: g - 777777.0, "grad_output")
nn.MSELoss()(model(x, y, z), target).backward()
print(seen, x.grad, y.grad, z.grad)
assert seen == {"left": [8.0, -6.0], "right": [-8.0, 6.0]}
assert x.grad.tolist() == [1777792.0, 1777764.0]
assert y.grad.tolist() == [2666688.0, 2666646.0]
assert z.grad.tolist() == [-3888925.0, -3888855.0]
assert target.grad.tolist() == [-8.0, 6.0]


# One that is a tensor alone is edited as a tensor.
class Sum(nn.Module):
    def __init__(self, edited):
        super().__init__()
        self.edited = edited

    def forward(self, x, y):
        a, b = 2 * x, 3 * y
        if self.edited:
            hs.edit(a, lambda g: g + 1000.0)
            hs.edit(b, lambda g: g - 2000.0)
        return a + b


for edited, of_x, of_y in (
    (False, [16.0, 12.0], [24.0, 18.0]),
    (True, [2016.0, 2012.0], [-5976.0, -5982.0]),
):
    x, y, target = tensors([2.0, 3.0], [6.0, 4.0], [14.0, 12.0])
    loss = nn.MSELoss()(Sum(edited)(x, y), target)
    loss.backward()
    print(loss, x.grad, y.grad, target.grad)
    assert loss == 50.0
    assert (x.grad.tolist(), y.grad.tolist()) == (of_x, of_y)
    assert target.grad.tolist() == [-8.0, -6.0]
