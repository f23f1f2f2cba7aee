"""Settings of the tests that pyproject.toml cannot hold."""

import gc
import os
import signal
import sys
from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings
from support.ranks import RANKS, Pool, Ranks

from hookstats.kernels import native

# How long an example takes says nothing on a busy machine. `make full` asks for more of them.
EXAMPLES = int(os.environ.get("HOOKSTATS_EXAMPLES", "30"))
settings.register_profile("hookstats", deadline=None, print_blob=True, max_examples=EXAMPLES)
settings.load_profile("hookstats")


# Shells have commands in the background ignore interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def seed() -> None:
    """The same random tensors in every run."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def nothing_is_left_compiled() -> Iterator[None]:
    """`watch` warns of what was compiled before it."""
    yield
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Threads only slow small tensors down where cores are busy."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    made = Pool(tmp_path_factory.mktemp("ranks"))
    yield made
    made.close()


@pytest.fixture
def ranks(pool: Pool, request: pytest.FixtureRequest) -> Ranks:
    """Processes of one gloo group, as many as the parameter or `SIZE` of the test's module says."""
    return pool.ranks(getattr(request, "param", getattr(request.module, "SIZE", RANKS)))


@pytest.fixture
def no_collections() -> Iterator[None]:
    """Python reports and drops a signal's exception in a callback of the garbage collector."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(params=["c++", pytest.param("python", marks=pytest.mark.check)])
def hooks_in(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Runs a test with the C++ hooks, and in `make check` also with the Python hooks.

    Returns the language of the hooks.
    """
    if request.param == "python":
        monkeypatch.setattr(native, "hooks", None)
    else:
        assert native.hooks is not None, native.why_not
    return str(request.param)


def pytest_collection_finish() -> None:
    # Collections leave out what there is before the first test, for the most part torch.
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # Minutes each: of several workers, none is to begin one when the others are done.
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("cuda"):
                item.add_marker(pytest.mark.skip(reason="needs a GPU"))
