"""Sound trainings of tables, graphs, functions, and agents."""

from __future__ import annotations

import copy
import math
from collections import deque

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import lr_scheduler

from bench.faults.sound.program import Session, adam, adamw, epochs, fit, mlp, sgd, sound


def _regression(r: Session) -> None:
    model = mlp(8, 32, 32, 8, act=nn.GELU)
    optimizer = adamw(model)
    schedule = lr_scheduler.CosineAnnealingLR(optimizer, r.steps)
    weights = torch.randn(8, 8)

    def take() -> tuple[Tensor, Tensor]:
        x = torch.randn(16, 8)
        return x, torch.tanh(x @ weights)

    loss = lambda x, y: (model(x) - y).square().mean()  # noqa: E731
    fit(r, model, optimizer, take, loss, scheduler=schedule)


@sound(2000)
def regression(r: Session) -> None:
    _regression(r)


@sound(20_000, long=True)
def regression_for_long(r: Session) -> None:
    _regression(r)


@sound(1000)
def regression_of_heavy_tails(r: Session) -> None:
    model = mlp(6, r.width(32), r.width(32), 1)
    weights = torch.randn(6)

    def take() -> tuple[Tensor, Tensor]:
        x = torch.distributions.StudentT(3.0).sample((32, 6))
        return x, (x @ weights).tanh() + 0.3 * torch.distributions.StudentT(2.5).sample((32,))

    fit(r, model, adam(model), take, lambda x, y: F.smooth_l1_loss(model(x)[:, 0], y))


@sound(800)
def uncertain_regression(r: Session) -> None:
    model = mlp(4, r.width(32), r.width(32), 2)

    def take() -> tuple[Tensor, Tensor]:
        x = torch.randn(32, 4)
        return x, x.sum(1).sin() + 0.1 * x[:, 0].abs() * torch.randn(32)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        mean, log = model(x).unbind(1)
        return (0.5 * log + 0.5 * (y - mean).square() * (-log).exp()).mean()

    fit(r, model, adam(model), take, loss)


@sound(600)
def tabular(r: Session) -> None:
    embed = nn.ModuleList(nn.Embedding(n, 4) for n in (12, 7, 30))
    body = nn.Sequential(
        *(nn.Linear(20, r.width(48)), nn.BatchNorm1d(r.width(48)), nn.ReLU(), nn.Dropout(0.3)),
        *(nn.Linear(r.width(48), 24), nn.ReLU(), nn.Linear(24, 1)),
    )
    model = nn.ModuleDict({"embed": embed, "body": body})
    numbers = torch.randn(3000, 8)
    kinds = torch.stack([torch.randint(n, (3000,)) for n in (12, 7, 30)], 1)
    effect = torch.randn(30)
    target = numbers[:, 0] * numbers[:, 1] + effect[kinds[:, 2]] + 0.2 * torch.randn(3000)

    def loss(x: Tensor, k: Tensor, y: Tensor) -> Tensor:
        parts = [layer(k[:, i]) for i, layer in enumerate(embed)]
        return F.mse_loss(body(torch.cat((x, *parts), 1))[:, 0], y)

    fit(r, model, adam(model, 2e-3), epochs((numbers, kinds, target), 64), loss)


@sound(800)
def rare_clicks(r: Session) -> None:
    table, deep = nn.Embedding(500, 8), mlp(16, r.width(32), 1)
    model = nn.ModuleDict({"table": table, "deep": deep})
    chance = torch.randn(500)

    def take() -> tuple[Tensor, Tensor]:
        ids = (torch.rand(128, 2) ** 3 * 500).long()
        return ids, torch.bernoulli((chance[ids].sum(1) - 4.5).sigmoid())

    def loss(ids: Tensor, y: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(deep(table(ids).flatten(1))[:, 0], y)

    fit(r, model, adam(model, 2e-3), take, loss)


@sound(1000)
def matrix_factorisation(r: Session) -> None:
    users, items = nn.Embedding(60, r.width(8)), nn.Embedding(80, r.width(8))
    for layer in (users, items):
        nn.init.normal_(layer.weight, std=0.01)
    model = nn.ModuleDict({"user": users, "item": items})
    truth = torch.randn(60, 4) @ torch.randn(4, 80) / 2

    def take() -> tuple[Tensor, Tensor]:
        return torch.randint(60, (128,)), torch.randint(80, (128,))

    def loss(u: Tensor, i: Tensor) -> Tensor:
        return F.mse_loss((users(u) * items(i)).sum(1), truth[u, i])

    fit(r, model, sgd(model, 1.0, 0.9), take, loss)


class Sine(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (30 * x).sin()


@sound(600)
def siren(r: Session) -> None:
    model = mlp(2, r.width(64), r.width(64), 1, act=Sine)
    for i, layer in enumerate(m for m in model if isinstance(m, nn.Linear)):
        bound = 1 / 2 if not i else math.sqrt(6 / layer.in_features) / 30
        nn.init.uniform_(layer.weight, -bound, bound)

    def take() -> tuple[Tensor, Tensor]:
        x = torch.rand(256, 2) * 2 - 1
        return x, (6 * x[:, 0]).sin() * (4 * x[:, 1]).cos()

    fit(r, model, adam(model, 1e-4), take, lambda x, y: F.mse_loss(model(x)[:, 0], y))


@sound(400)
def physics(r: Session) -> None:
    model = mlp(1, r.width(32), r.width(32), 1, act=nn.Tanh)

    def loss(x: Tensor) -> Tensor:
        x.requires_grad_(True)
        u = model(x)
        (slope,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        start = model(torch.zeros(1, 1)) - 1
        return (slope + 2 * u).square().mean() + start.square().mean()

    fit(r, model, adam(model, 3e-3), lambda: (torch.rand(64, 1) * 2,), loss)


@sound(60)
def second_order(r: Session) -> None:
    model = mlp(4, r.width(16), 1, act=nn.Tanh)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=5)
    x = torch.randn(200, 4)
    y = x.prod(1) + x[:, 0]
    w = r.start(model, optimizer)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x)[:, 0], y)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    for _ in range(r.steps):
        w.log(loss=optimizer.step(closure))


def _graph(nodes: int = 150) -> tuple[Tensor, Tensor, Tensor]:
    """Features, a normalised adjacency of four communities, and labels."""
    labels = torch.arange(nodes) % 4
    near = labels[:, None] == labels
    edges = torch.rand(nodes, nodes) < torch.where(near, 0.12, 0.01)
    edges = edges | edges.T | torch.eye(nodes, dtype=torch.bool)
    degree = edges.float().sum(1).rsqrt()
    features = (torch.rand(nodes, 60) < 0.05 + 0.2 * F.one_hot(labels, 4).repeat(1, 15)).float()
    return features, edges.float() * degree[:, None] * degree, labels


@sound(500)
def gcn(r: Session) -> None:
    first, second = nn.Linear(60, r.width(16)), nn.Linear(r.width(16), 4)
    model = nn.ModuleDict({"gc1": first, "gc2": second, "relu": nn.ReLU(), "drop": nn.Dropout(0.5)})
    x, adjacency, y = _graph()

    def loss(x: Tensor) -> Tensor:
        hidden = model["drop"](model["relu"](adjacency @ first(x)))
        return F.cross_entropy((adjacency @ second(hidden))[:60], y[:60])

    fit(r, model, adamw(model, 1e-2, 5e-4), lambda: (x,), loss)


class Gat(nn.Module):
    """A layer of graph attention: a LeakyReLU and a softmax over neighbours are modules."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.W, self.a = nn.Linear(inputs, outputs, bias=False), nn.Linear(2 * outputs, 1)
        self.leakyrelu, self.softmax = nn.LeakyReLU(0.2), nn.Softmax(dim=1)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        hidden = self.W(x)
        left, right = self.a.weight[0].chunk(2)
        scores = self.leakyrelu((hidden @ left)[:, None] + (hidden @ right) + self.a.bias)
        out: Tensor = self.softmax(scores.masked_fill(edges == 0, -1e9)) @ hidden
        return out


@sound(400)
def gat(r: Session) -> None:
    model = nn.ModuleList([Gat(60, r.width(8)), Gat(r.width(8), 4)])
    x, adjacency, y = _graph()

    def loss(x: Tensor) -> Tensor:
        hidden = F.dropout(F.elu(model[0](x, adjacency)), 0.4)
        return F.cross_entropy(model[1](hidden, adjacency)[:80], y[:80])

    fit(r, model, adamw(model, 5e-3, 5e-4), lambda: (x,), loss)


@sound(500)
def sets_of_points(r: Session) -> None:
    each, whole = mlp(3, r.width(32), r.width(32)), mlp(r.width(32), 32, 2)
    model = nn.ModuleDict({"each": each, "whole": whole})

    def take() -> tuple[Tensor, Tensor]:
        y = torch.randint(2, (32,))
        return torch.randn(32, 20, 3) * (1 + 0.5 * y)[:, None, None], y

    loss = lambda x, y: F.cross_entropy(whole(each(x).amax(1)), y)  # noqa: E731
    fit(r, model, adam(model), take, loss)


class Walk:
    """An agent on a line of 2 * reach + 1 places: +1 at the right end, -1 at the left one."""

    def __init__(self, reach: int = 5) -> None:
        self.reach, self.at, self.time = reach, 0, 0

    def see(self) -> Tensor:
        """What the agent sees, float32 [4]."""
        at = self.at / self.reach
        return torch.tensor([at, at * at, 1.0, self.time / 40])

    def act(self, right: bool) -> tuple[float, bool]:
        """The reward, and whether the walk ends."""
        self.at += 1 if right else -1
        self.time += 1
        if abs(self.at) == self.reach or self.time == 40:
            reward = self.at / self.reach if abs(self.at) == self.reach else -0.2
            self.at, self.time = 0, 0
            return reward, True
        return -0.01, False


@sound(300)
def reinforce(r: Session) -> None:
    model = mlp(4, r.width(32), 2)
    optimizer = adam(model, 3e-3)
    walk = Walk()
    w = r.start(model, optimizer)
    for _ in range(r.steps):
        logs, rewards, done = [], [], False
        while not done:
            choice = torch.distributions.Categorical(logits=model(walk.see()))
            action = choice.sample()
            reward, done = walk.act(bool(action))
            logs.append(choice.log_prob(action))
            rewards.append(reward)
        returns = torch.tensor([sum(rewards[i:]) for i in range(len(rewards))])
        returns = (returns - returns.mean()) / (returns.std(correction=0) + 1e-6)
        loss = -(torch.stack(logs) * returns).mean()
        w.log(loss=loss)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()


class Q(nn.Module):
    """A network and the older copy that its targets come from, as stable-baselines3 keeps them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.q_net = mlp(4, width, width, 2)
        self.q_net_target = copy.deepcopy(self.q_net)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.q_net(x)
        return out


@sound(1200)
def dqn(r: Session) -> None:
    model = Q(r.width(32))
    optimizer = torch.optim.Adam(model.q_net.parameters(), 1e-3)
    walk, memory = Walk(), deque(maxlen=2000)  # type: ignore[var-annotated]
    w = r.start(model, optimizer)
    for step in range(r.steps):
        for _ in range(2):
            seen = walk.see()
            with torch.no_grad():
                best = bool(model(seen).argmax())
            explore = float(torch.rand(())) < max(0.1, 1 - step / 500)
            right = bool(torch.rand(()) < 0.5) if explore else best
            reward, done = walk.act(right)
            memory.append((seen, right, reward, walk.see(), done))
        if len(memory) < 40:
            continue
        some = [memory[i] for i in torch.randint(len(memory), (32,)).tolist()]
        state, action, reward_, after, ended = zip(*some, strict=True)
        with torch.no_grad():
            future = model.q_net_target(torch.stack(after)).amax(1)
            target = torch.tensor(reward_) + 0.97 * future * ~torch.tensor(ended)
        found = model(torch.stack(state))[torch.arange(32), torch.tensor(action).long()]
        loss = F.smooth_l1_loss(found, target)
        w.log(loss=loss)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.q_net.parameters(), 10)
        optimizer.step()
        if step % 100 == 99:
            model.q_net_target.load_state_dict(model.q_net.state_dict())


@sound(60)
def ppo(r: Session) -> None:
    """The steps are rollouts, each of which is learned from sixteen times."""
    body, policy, value = mlp(4, r.width(32), r.width(32), act=nn.Tanh), None, None
    policy, value = nn.Linear(r.width(32), 2), nn.Linear(r.width(32), 1)
    nn.init.orthogonal_(policy.weight, 0.01)
    model = nn.ModuleDict({"body": body, "act": nn.Tanh(), "policy": policy, "value": value})
    optimizer = adam(model, 1e-3)
    w, walk = r.start(model, optimizer), Walk()
    for _ in range(r.steps):
        states, actions, rewards, ends = [], [], [], []
        model.eval()
        with torch.no_grad():
            for _ in range(64):
                states.append(walk.see())
                logits = policy(model["act"](body(states[-1])))
                actions.append(torch.distributions.Categorical(logits=logits).sample())
                reward, done = walk.act(bool(actions[-1]))
                rewards.append(reward)
                ends.append(done)
        model.train()
        x, a = torch.stack(states), torch.stack(actions)
        returns, total = [], 0.0
        for reward, done in zip(reversed(rewards), reversed(ends), strict=True):
            total = reward + (0.0 if done else 0.97 * total)
            returns.append(total)
        goal = torch.tensor(returns[::-1])
        with torch.no_grad():
            hidden = model["act"](body(x))
            old = policy(hidden).log_softmax(1)[torch.arange(64), a]
            better = goal - value(hidden)[:, 0]
            better = (better - better.mean()) / (better.std() + 1e-6)
        for _ in range(4):
            for rows in torch.randperm(64).split(16):
                hidden = model["act"](body(x[rows]))
                logs = policy(hidden).log_softmax(1)
                ratio = (logs[torch.arange(16), a[rows]] - old[rows]).exp()
                kept = ratio.clamp(0.8, 1.2)
                gain = torch.min(ratio * better[rows], kept * better[rows]).mean()
                error = F.mse_loss(value(hidden)[:, 0], goal[rows])
                noise = -(logs.exp() * logs).sum(1).mean()
                loss = 0.5 * error - gain - 0.01 * noise
                w.log(loss=loss, value_loss=error)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()


@sound(400)
def actor_critic(r: Session) -> None:
    model = nn.ModuleDict(
        {"affine1": nn.Linear(4, r.width(32)), "action": nn.Linear(r.width(32), 2)}
    )
    model["value"] = nn.Linear(r.width(32), 1)
    optimizer = adam(model, 3e-3)
    w, walk = r.start(model, optimizer), Walk(4)
    for _ in range(r.steps):
        logs, values, rewards, done = [], [], [], False
        while not done:
            hidden = F.relu(model["affine1"](walk.see()))
            choice = torch.distributions.Categorical(logits=model["action"](hidden))
            action = choice.sample()
            reward, done = walk.act(bool(action))
            logs.append(choice.log_prob(action))
            values.append(model["value"](hidden)[0])
            rewards.append(reward)
        goal = torch.tensor([sum(rewards[i:]) for i in range(len(rewards))])
        found = torch.stack(values)
        loss = F.smooth_l1_loss(found, goal, reduction="sum")
        loss = loss - (torch.stack(logs) * (goal - found.detach())).sum()
        w.log(loss=loss)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
