"""The gradient of every input of a module, and of the sub-expressions in it."""

import warnings

import torch
from torch import nn

import hookstats as hs

# The .grad of an output, which is no leaf, is None, with a warning.
warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor that is not a leaf")


def tensors(*rows):
    return [torch.tensor(row, requires_grad=True) for row in rows]


# Three inputs, three gradients.
class Model(nn.Module):
    def forward(self, x, y, z):
        return 2 * x + 3 * y - 5 * z


x, y, z, target = tensors([2.0, 3.0], [6.0, 4.0], [1.0, 5.0], [9.0, -1.0])
model = Model()
with hs.capture(model, include="", kinds=("grad_input", "grad_output")) as c:
    out = model(x, y, z)
    loss = nn.MSELoss()(out, target)
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
assert out.grad is None

# A deprecated backward hook is given two: those of the operands of the last operation.
given = []
model.register_backward_hook(lambda module, grad_input, grad_output: given.extend(grad_input))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    nn.MSELoss()(model(x, y, z), target).backward()
print("by a deprecated hook:", given)
assert [g.tolist() for g in given] == [[8.0, -6.0], [-8.0, 6.0]]
assert [warning.category for warning in caught] == [FutureWarning]


# Edits of one place run in their order: the first and the last here merely look.
def add(change, where, *kind):
    """Add to the gradient there. The list that it returns gets it as it came and as it went on."""
    seen = []
    hs.edit(where, lambda g: seen.append(g.tolist()), *kind)
    hs.edit(where, lambda g: g + change, *kind)
    hs.edit(where, lambda g: seen.append(g.tolist()), *kind)
    return seen


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
left = add(888888, model.left, "grad_output")
right = add(-777777, model.right, "grad_output")
nn.MSELoss()(model(x, y, z), target).backward()
print(left, right, x.grad, y.grad, z.grad)
assert left == [[8.0, -6.0], [888896.0, 888882.0]]
assert right == [[-8.0, 6.0], [-777785.0, -777771.0]]
assert x.grad.tolist() == [1777792.0, 1777764.0]
assert y.grad.tolist() == [2666688.0, 2666646.0]
assert z.grad.tolist() == [-3888925.0, -3888855.0]
assert target.grad.tolist() == [-8.0, 6.0]


# One that is a tensor alone is edited as a tensor.
class Sum(nn.Module):
    def __init__(self, *changes):
        super().__init__()
        self.changes = changes

    def forward(self, x, y):
        a, b = 2 * x, 3 * y
        self.seen = [add(change, term) for change, term in zip(self.changes, (a, b), strict=True)]
        return a + b


for changes, of_a, of_b, of_x, of_y in (
    ((0, 0), [8.0, 6.0], [8.0, 6.0], [16.0, 12.0], [24.0, 18.0]),
    ((1000, -2000), [1008.0, 1006.0], [-1992.0, -1994.0], [2016.0, 2012.0], [-5976.0, -5982.0]),
):
    x, y, target = tensors([2.0, 3.0], [6.0, 4.0], [14.0, 12.0])
    model = Sum(*changes)
    out = model(x, y)
    loss = nn.MSELoss()(out, target)
    loss.backward()
    print(loss, model.seen, x.grad, y.grad, target.grad)
    assert loss == 50.0
    assert model.seen == [[[8.0, 6.0], of_a], [[8.0, 6.0], of_b]]
    assert (x.grad.tolist(), y.grad.tolist()) == (of_x, of_y)
    assert target.grad.tolist() == [-8.0, -6.0]
    assert out.grad is None
