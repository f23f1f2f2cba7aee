"""What runs in a ResNet-50: the shape and the mean of every stage, the gradients of parameters."""

import math

import torch
from transformers import ResNetConfig, ResNetForImageClassification

import hookstats as hs

# The children of torchvision's ResNet, by the names that transformers has for them.
STAGES = {
    "resnet.embedder.embedder.convolution": "conv1",
    "resnet.embedder.embedder.normalization": "bn1",
    "resnet.embedder.embedder.activation": "relu",
    "resnet.embedder.pooler": "maxpool",
    "resnet.encoder.stages.0": "layer1",
    "resnet.encoder.stages.1": "layer2",
    "resnet.encoder.stages.2": "layer3",
    "resnet.encoder.stages.3": "layer4",
    "resnet.pooler": "avgpool",
    "classifier.1": "fc",
}
SHAPES = {
    "conv1": (10, 64, 112, 112),
    "bn1": (10, 64, 112, 112),
    "relu": (10, 64, 112, 112),
    "maxpool": (10, 64, 56, 56),
    "layer1": (10, 256, 56, 56),
    "layer2": (10, 512, 28, 28),
    "layer3": (10, 1024, 14, 14),
    "layer4": (10, 2048, 7, 7),
    "avgpool": (10, 2048, 1, 1),
    "fc": (10, 1000),
}


def mean(tensor):
    return tensor.double().mean().item()


torch.manual_seed(0)
model = ResNetForImageClassification(ResNetConfig(num_labels=1000))

# What plain hooks say of the outputs, to compare with.
means = {}
for name, stage in STAGES.items():
    model.get_submodule(name).register_forward_hook(
        lambda module, args, output, stage=stage: means.update({stage: mean(output)})
    )

with torch.no_grad():
    stages = hs.trace(model, torch.ones(10, 3, 224, 224), include=list(STAGES))
print(stages)
assert [STAGES[call.name] for call in stages.calls] == list(SHAPES)
for call in stages.calls:
    stage = STAGES[call.name]
    assert call.output.shape == SHAPES[stage]
    assert math.isclose(call.mean, means[stage], rel_tol=1e-6, abs_tol=1e-6 * call.std), stage

# The gradient of every parameter, as the backward brings them; their .grad stays as it was.
gradient_means = {}
parameters = dict(model.named_parameters())
for name, parameter in parameters.items():
    parameter.register_hook(
        lambda gradient, name=name: gradient_means.update({name: mean(gradient)})
    )
labels = torch.zeros(4, dtype=torch.long)
whole = hs.trace(
    model,
    torch.randn(4, 3, 32, 32),
    depth=0,
    backward=lambda output: torch.nn.functional.cross_entropy(output.logits, labels),
)
for gradient in whole.gradients[:4]:
    print(f"{gradient.name}: {gradient.mean:.3g}")
names = [gradient.name for gradient in whole.gradients]
assert names == list(gradient_means)
assert names[:2] == ["classifier.1.bias", "classifier.1.weight"]
assert sorted(names) == sorted(parameters)
for gradient in whole.gradients:
    assert gradient.shape == parameters[gradient.name].shape
    assert math.isclose(
        gradient.mean, gradient_means[gradient.name], rel_tol=1e-5, abs_tol=1e-6 * gradient.std
    ), gradient
assert all(parameter.grad is None for parameter in parameters.values())

# Where no model is at hand: whatever modules the block calls, here the root and its children.
with hs.trace(depth=1) as everything:
    model(torch.randn(4, 3, 32, 32)).logits.mean().backward()
for call in everything.calls:
    print(call.name, [tensor.shape for tensor in call.inputs], "->", call.output.shape)
assert [call.name.partition(".")[2] for call in everything.calls] == ["", "resnet", "classifier"]
assert len(everything.gradients) == len(parameters)
