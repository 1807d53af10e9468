"""The trie that lays out packed trees."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from turnwise.rollouts.pack import Trie


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), min_size=1, max_size=12))
def test_a_trie_holds_each_path_and_its_ancestor_mask_is_exact(paths: list[list[int]]) -> None:
    trie = Trie()
    ends = [trie.add(path)[-1] for path in paths]
    layout = trie.layout()
    place = layout.place_N
    for path, end in zip(paths, ends, strict=True):
        seen, node = [], end
        while node >= 0:
            seen.append(node)
            node = trie.parents[node]
        assert [trie.tokens[n] for n in reversed(seen)] == path
        visible = [i for i in range(len(trie)) if i <= place[end] < layout.end_S[i]]
        assert visible == sorted(place[n] for n in seen)
        assert layout.position_S[place[end]] == len(path) - 1
    assert len(trie) == len({tuple(path[: i + 1]) for path in paths for i in range(len(path))})
