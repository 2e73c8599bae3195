"""The measurement of the client measures every contender, on answers that came."""

from __future__ import annotations

import pytest

from load_tests import client


def test_every_contender_is_measured_in_every_round() -> None:
    seconds = client.measure(3)
    assert set(seconds) == {*client._PAIRS, *client._PAIRS.values()}
    assert {len(each) for each in seconds.values()} == {3}
    assert all(0 < taken < 10 for each in seconds.values() for taken in each)


def test_the_table_subtracts_the_bare_call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    taken = {name: [0.9, 0.003, 0.0] for name in client._PAIRS} | {bare: [0.001] for bare in client._PAIRS.values()}
    monkeypatch.setattr(client, "measure", lambda rounds: taken)
    client.run(3)
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("REST", "gRPC"))]
    assert [row.split()[-1] for row in rows] == ["2.00"] * 4
