"""ResNet-50 as torchvision has it, by its names: every bottleneck uses one ReLU in three places."""

from __future__ import annotations

from torch import Tensor, nn


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions beside a shortcut; the output has four times `planes`."""

    def __init__(self, inplanes: int, planes: int, stride: int, shortcut: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inplanes, planes, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv3 = nn.Conv2d(planes, 4 * planes, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * planes)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = (
            nn.Sequential(
                nn.Conv2d(inplanes, 4 * planes, 1, stride, bias=False),
                nn.BatchNorm2d(4 * planes),
            )
            if shortcut
            else None
        )

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out += x if self.downsample is None else self.downsample(x)
        return self.relu(out)


class ResNet(nn.Module):
    """Takes images of (3, height, width), of at least 32 by 32 pixels."""

    def __init__(self, layers: tuple[int, int, int, int] = (3, 4, 6, 3), planes: int = 64) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, planes, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        inplanes = planes
        for i, blocks in enumerate(layers):
            width = planes << i
            stage = nn.Sequential()
            for block in range(blocks):
                stride = 2 if i > 0 and block == 0 else 1
                stage.append(Bottleneck(inplanes, width, stride, block == 0))
                inplanes = 4 * width
            self.add_module(f"layer{i + 1}", stage)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(inplanes, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for name in ("layer1", "layer2", "layer3", "layer4"):
            x = self.get_submodule(name)(x)
        out: Tensor = self.fc(self.avgpool(x).flatten(1))
        return out
