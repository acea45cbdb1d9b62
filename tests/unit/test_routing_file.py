"""The routing file: what is refused, how requests are shared out, and how changes arrive."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline import routing
from paceline.errors import ConfigurationError
from paceline.routing import Routing, follow_routing, read_routing

TWO = "pools: {blue: {address: 'b:1', weight: 3}, green: {address: 'g:1', weight: 1}}"
WEIGHTS = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 50), min_size=1)


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_reads_pools_weights_and_default(tmp_path: Path) -> None:
    read = read_routing(written(tmp_path / "r.yaml", f"default_pool: green\n{TWO}"))

    assert read.default_pool == "green"
    assert read.addresses == {"blue": "b:1", "green": "g:1"}
    assert read.weights == {"blue": 3, "green": 1}


def test_the_documented_file_names_a_pool_that_gets_nothing_yet(tmp_path: Path) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "drafters.md").read_text()
    example = page.partition("```yaml\n# routing.yaml")[2].partition("```")[0]

    read = read_routing(written(tmp_path / "r.yaml", example))

    assert read == Routing("", {"suffix": "127.0.0.1:50061"}, {"suffix": 0})
    assert read.pool_at(0.5) == ""


def test_a_file_without_pools_says_so(tmp_path: Path) -> None:
    assert read_routing(written(tmp_path / "r.yaml", "pools: {}")) == Routing()


@pytest.mark.parametrize("text", ["", "\n", "null", "# pools: {}", "---\n"])
def test_an_empty_file_is_refused_with_what_to_write(text: str, tmp_path: Path) -> None:
    path = written(tmp_path / "r.yaml", text)

    with pytest.raises(ConfigurationError) as refusal:
        read_routing(path)

    told = f"routing file {path} is empty; `pools: {{}}` stands for no pools"
    assert refusal.value.message == told


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("pools: [", "not YAML"),
        ("pools: {a: {address: nowhere}}", "pools.a.address"),
        ("pools: {a: {address: 'a:1', weight: -1}}", "pools.a.weight"),
        ("pools: {a: {address: 'a:1', wait: 1}}", "pools.a.wait"),
        ("surprise: 1", "surprise: is unknown here"),
        ("default_pool: ''", "pools: is missing"),
        ("pools:", "pools: must be a mapping"),
        ("pools: {a: {address: 'a:0'}}", "pools.a.address: must be host:port or [v6]:port"),
        ("pools: {a: {address: 'a:70000'}}", "pools.a.address: must be host:port or [v6]:port"),
        ("default_pool: b\npools: {a: {address: 'a:1'}}", "there is no pool b"),
        ("- a", "file"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="routing file") as refusal:
        read_routing(written(tmp_path / "r.yaml", text))

    assert said in refusal.value.message


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="No such file"):
        read_routing(tmp_path / "none.yaml")


@given(weights=WEIGHTS)
def test_shares_follow_the_weights_exactly(weights: Mapping[str, int]) -> None:
    total = sum(weights.values())
    shared = Routing(weights=weights)

    chosen = [shared.pool_at((number + 0.5) / total) for number in range(total)]

    assert {name: chosen.count(name) for name in weights} == dict(weights)


@given(weights=WEIGHTS)
def test_without_weight_no_pool_is_chosen(weights: Mapping[str, int]) -> None:
    assert Routing(weights=dict.fromkeys(weights, 0)).pool_at(0.5) == ""


@given(moved=st.integers(0, 100), share=st.floats(0, 1, exclude_max=True))
def test_moving_weight_moves_no_more_requests_than_it_must(moved: int, share: float) -> None:
    before = Routing(weights={"blue": 100, "green": 0}).pool_at(share)
    after = Routing(weights={"blue": 100 - moved, "green": moved}).pool_at(share)

    assert before == "blue"
    assert (after == "green") == (share * 100 >= 100 - moved)


def test_the_default_comes_before_the_weights() -> None:
    assert Routing("blue", weights={"green": 100}).pool_at(0.1) == "blue"


@pytest.mark.asyncio
@pytest.mark.parametrize("nonsense", ["pools: [", "", "null"])
async def test_changes_are_applied_and_nonsense_leaves_the_last_good_file_in_force(
    nonsense: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routing, "LOOK_SECONDS", 0.01)
    path = written(tmp_path / "r.yaml", TWO)
    seen: asyncio.Queue[Routing] = asyncio.Queue()
    following = asyncio.create_task(follow_routing(path, read_routing(path), seen.put))

    written(path, nonsense)
    await asyncio.sleep(0.1)
    quiet = seen.empty()
    written(path, "pools: {green: {address: 'g:1', weight: 1}}")
    changed = await asyncio.wait_for(seen.get(), 5)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)

    assert quiet
    assert changed.weights == {"green": 1}
    assert seen.empty()
