"""Feature maps, inputs and gradients of layers; AlexNet's maps by kernel shape, as pictures."""

import warnings
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_sample_image
from torch import nn
from torch.utils.tensorboard import SummaryWriter

import hookstats as hs

torch.manual_seed(1)

# The gradient of a tensor that is no leaf: its .grad is None, with a warning.
warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor that is not a leaf")
w = torch.tensor([1.0], requires_grad=True)
x = torch.tensor([2.0], requires_grad=True)
a = torch.add(w, x)
b = torch.add(w, 1)
y = torch.mul(a, b)
with hs.capture(a) as c:
    y.backward()
print("gradient:", w.grad, x.grad, a.grad, b.grad, y.grad, "of a:", c.grads)
assert (w.grad.item(), x.grad.item()) == (5.0, 2.0)
assert (a.grad, b.grad, y.grad) == (None, None, None)
assert [gradient.item() for gradient in c.grads] == [2.0]

# A gradient that is changed on its way: returned, not changed in place.
w.grad = None
y = torch.mul(torch.add(w, x), torch.add(w, 1))
with hs.edit(w, lambda gradient: gradient * 2):
    y.backward()
print("w.grad:", w.grad)
assert w.grad.item() == 10.0


# What goes into a layer, what comes out of it, and the gradient that comes back.
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 2, 3)
        self.pool1 = nn.MaxPool2d(2, 2)

    def forward(self, x):
        return self.pool1(self.conv1(x))


net = Net()
nn.init.constant_(net.conv1.weight[0], 1)
nn.init.constant_(net.conv1.weight[1], 2)
nn.init.zeros_(net.conv1.bias)
fake_img = torch.ones((1, 1, 4, 4))  # batch size * channel * H * W
with hs.capture(net, include="conv1", kinds=("input", "output", "grad_output", "grad_input")) as c:
    output = net(fake_img)
    nn.functional.l1_loss(output, torch.randn_like(output)).backward()
(call,) = c.calls("conv1")
print("feature maps:", call.output.tolist())
assert call.output.shape == (1, 2, 2, 2)
assert call.output.tolist() == [[[[9.0, 9.0], [9.0, 9.0]], [[18.0, 18.0], [18.0, 18.0]]]]
assert torch.equal(call.input, fake_img)
print("their gradients:", call.grad_output.tolist())
assert call.grad_output.tolist() == [[[[0.5, 0.0], [0.0, 0.0]], [[0.5, 0.0], [0.0, 0.0]]]]
assert call.grad_input is None  # the image requires none
assert (net.conv1.weight.grad == 0.5).all()
assert (net.conv1.bias.grad == 0.5).all()

# AlexNet's convolutions, with random weights, and their feature maps by the shape of the kernels.
alexnet = nn.Sequential(
    nn.Conv2d(3, 64, kernel_size=11, stride=4, padding=2),
    nn.ReLU(inplace=True),
    nn.MaxPool2d(kernel_size=3, stride=2),
    nn.Conv2d(64, 192, kernel_size=5, padding=2),
    nn.ReLU(inplace=True),
    nn.MaxPool2d(kernel_size=3, stride=2),
    nn.Conv2d(192, 384, kernel_size=3, padding=1),
    nn.ReLU(inplace=True),
    nn.Conv2d(384, 256, kernel_size=3, padding=1),
    nn.ReLU(inplace=True),
    nn.Conv2d(256, 256, kernel_size=3, padding=1),
    nn.ReLU(inplace=True),
    nn.MaxPool2d(kernel_size=3, stride=2),
)
image = torch.tensor(load_sample_image("china.jpg")).permute(2, 0, 1)[None] / 255
image = nn.functional.interpolate(image, (224, 224), mode="bilinear", antialias=True)
image = (image - image.mean((2, 3), keepdim=True)) / image.std((2, 3), keepdim=True)
with (
    torch.no_grad(),
    hs.capture(
        alexnet,
        include=nn.Conv2d,
        kinds=("output",),
        key=lambda name, module: tuple(module.weight.shape),
    ) as c,
):
    alexnet(image)

folder = Path("runs/feature_maps")
with SummaryWriter(str(folder)) as writer:
    for shape, calls in c.by_key.items():
        (maps,) = [call.output for call in calls]
        picture = hs.pictures.grid(maps, nrow=int(np.sqrt(maps.shape[1])))
        hs.pictures.add_image(writer, f"feature map in {shape}", picture, step=322)
        large = hs.pictures.grid(maps, zoom=-(-50 // maps.shape[-1]))  # as small maps need
        hs.pictures.to_image(large).save(folder / f"{'x'.join(map(str, shape))}.png")
        print(shape, "->", tuple(maps.shape), "->", picture.shape)
        assert maps.shape[1] == shape[0]
        assert maps.min() < 0  # before the ReLU, which changes its input in place
assert list(c.by_key) == [
    (64, 3, 11, 11),
    (192, 64, 5, 5),
    (384, 192, 3, 3),
    (256, 384, 3, 3),
    (256, 256, 3, 3),
]
assert np.array_equal(c.grid("0"), hs.pictures.grid(c.by_key[64, 3, 11, 11][0].output))
print(f"pictures and TensorBoard events: {folder}")
