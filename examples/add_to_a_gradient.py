"""A gradient changed inside of a graph, the wrong way that is refused, and pooled features."""

import torch
import torch.nn.functional as F
from torch import nn

import hookstats as hs


def gradients(edit=None):
    """The gradients of c = a * b by a, b and c."""
    a = torch.tensor(7.0, requires_grad=True)
    b = torch.tensor(13.0, requires_grad=True)
    c = a * b
    if edit is not None:
        hs.edit(c, edit)
    c.retain_grad()
    c.backward()
    return a.grad, b.grad, c.grad


print(*gradients())
assert gradients() == (13.0, 7.0, 1.0)

# What c's gradient becomes, those before it in the graph are computed from.
print(*gradients(lambda gradient: gradient + 2))
assert gradients(lambda gradient: gradient + 2) == (39.0, 21.0, 3.0)


# In place, it would change what other tensors may have a share in.
def in_place(gradient):
    gradient += 100


try:
    gradients(in_place)
except hs.EditError as error:
    print(error)
else:
    raise AssertionError("a change in place was not refused")


# The features that a pooling layer computes.
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 2)
        self.pool = nn.AdaptiveAvgPool2d((4, 4))
        self.fc = nn.Linear(8 * 4 * 4, 1)

    def forward(self, x):
        x = F.relu(self.conv(x))
        x = self.pool(x)
        x = x.view(x.shape[0], -1)
        return self.fc(x)


net = Net()
x = torch.randn(1, 3, 10, 10)
with hs.capture(net, include="pool", kinds=("output",)) as c:
    net(x)
(features,) = c["pool", "output"]
print(features.shape)
assert features.shape == (1, 8, 4, 4)
assert torch.equal(features, net.pool(F.relu(net.conv(x))))
