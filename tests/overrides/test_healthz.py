# SPDX-License-Identifier: Apache-2.0
"""The rules of /healthz, on an injected clock: what is a stall, and what only looks like one."""

import types

import pytest

INTERVAL = 0.5


class World:
    """An engine as EngineHealth sees it: a clock, requests in flight, CPU time used."""

    def __init__(self, health: types.ModuleType, **settings) -> None:
        self.now, self.in_flight, self.cpu, self.busy = 1000.0, 0, 50.0, 0.0
        self.visible = True
        defaults = {"stall_seconds": 5, "max_step_seconds": 120, "window_seconds": 300}
        self.health = health.EngineHealth(
            **{**defaults, **settings},
            requests_in_flight=lambda: self.in_flight,
            cpu_seconds=lambda: self.cpu if self.visible else None,
            clock=lambda: self.now,
        )

    def live(self, seconds: float, outputs: bool = False, sampling: bool = True) -> None:
        """Let time pass; `busy` is the share of a processor that the engine uses."""
        for _step in range(round(seconds / INTERVAL)):
            self.now += INTERVAL
            self.cpu += self.busy * INTERVAL
            if outputs:
                self.output()
            if sampling:
                self.health.sample()

    def output(self, first=(), finished=(), running: int | None = None) -> None:
        stats = types.SimpleNamespace(
            time_to_first_tokens_iter=list(first),
            finished_requests=[types.SimpleNamespace(e2e_latency=value) for value in finished],
        )
        scheduler = None if running is None else types.SimpleNamespace(num_running_reqs=running)
        self.health.observe(types.SimpleNamespace(scheduler_stats=scheduler), stats)

    def status(self, dead: bool = False) -> tuple[int, str]:
        code, body = self.health.report(dead)
        return code, body["status"]


@pytest.fixture
def world(health: types.ModuleType) -> World:
    return World(health)


def test_a_fresh_engine_is_starting_then_ok_then_idle(world: World) -> None:
    world.live(60)
    assert world.status() == (200, "starting")
    world.in_flight = 1
    world.live(1, outputs=True)
    assert world.status() == (200, "ok")
    world.in_flight = 0
    world.live(3600)
    assert world.status() == (200, "idle")


def test_the_dead_are_dead_whatever_else_is_true(world: World) -> None:
    assert world.status(dead=True) == (503, "dead")
    world.in_flight = 1
    world.live(1, outputs=True)
    assert world.status(dead=True) == (503, "dead")


@pytest.mark.parametrize("offset", [0.0, 0.1, 0.25, 0.49])
def test_a_freeze_is_seen_within_five_seconds_and_not_within_three(offset: float, world: World) -> None:
    world.in_flight, world.busy = 1, 1.0
    world.live(30, outputs=True)
    world.now += offset  # the freeze falls between two samples
    world.busy = 0.0
    frozen = world.now
    while world.status() != (503, "stalled"):
        world.live(INTERVAL)
        assert world.now - frozen < 5
    assert world.now - frozen > 3
    assert world.health.report(False)[1]["seconds_since_progress"] >= 3.5


def test_a_freeze_in_the_middle_of_a_long_step_is_seen_as_fast(world: World) -> None:
    world.in_flight, world.busy = 1, 1.0
    world.live(40)
    assert world.status() == (200, "ok")
    world.busy = 0.0
    world.live(4.5)
    assert world.status() == (503, "stalled")


def test_a_long_step_is_no_stall_while_it_uses_the_processor(world: World) -> None:
    world.in_flight, world.busy = 3, 0.5
    for _second in range(119):
        world.live(1)
        assert world.status() == (200, "ok")
    # ... but not for ever: something spins.
    world.live(10)
    assert world.status() == (503, "stalled")


def test_waking_up_now_and_then_is_not_working(world: World) -> None:
    world.in_flight, world.busy = 1, 0.05
    world.live(5)
    assert world.status() == (503, "stalled")


def test_processes_that_are_stopped_or_out_of_sight_give_no_credit(world: World) -> None:
    world.in_flight, world.busy, world.visible = 1, 1.0, False
    world.live(5)
    assert world.status() == (503, "stalled")


def test_a_full_queue_is_no_stall_while_outputs_come(world: World) -> None:
    world.in_flight = 5000
    for _second in range(600):
        world.live(1, outputs=True)
        assert world.status() == (200, "ok")


def test_outputs_end_a_stall_at_once(world: World) -> None:
    world.in_flight = 1
    world.live(10)
    assert world.status() == (503, "stalled")
    world.output()
    assert world.status() == (200, "ok")


def test_a_request_after_a_long_pause_gets_its_full_time(world: World) -> None:
    world.output()
    world.live(3600)
    world.in_flight = 1
    assert world.status() == (200, "ok")
    world.live(3)
    assert world.status() == (200, "ok")
    world.live(2)
    assert world.status() == (503, "stalled")


def test_an_aborted_request_ends_the_stall_that_was_its_own(world: World) -> None:
    world.in_flight = 1
    world.live(10)
    assert world.status() == (503, "stalled")
    world.in_flight = 0
    world.live(INTERVAL)
    assert world.status() == (200, "starting")


def test_time_in_which_the_server_itself_stood_still_is_not_the_engines(world: World) -> None:
    world.in_flight, world.busy = 1, 1.0
    world.live(10, outputs=True)
    world.live(60, sampling=False)  # the event loop was blocked, outputs wait unread
    assert world.status() == (200, "ok")
    world.busy = 0.0
    world.live(4.5)
    assert world.status() == (503, "stalled")


def test_a_probe_alone_finds_a_stall_when_nothing_else_samples(world: World) -> None:
    world.in_flight = 1
    for _probe in range(10):
        world.live(INTERVAL, sampling=False)
        world.status()
    assert world.status() == (503, "stalled")


@pytest.mark.parametrize(("stall", "latest"), [(2, 2), (5, 5), (30, 30)])
def test_the_limit_can_be_set_and_is_kept(stall: float, latest: float, health: types.ModuleType) -> None:
    world = World(health, stall_seconds=stall)
    world.in_flight = 1
    frozen = world.now
    while world.status()[0] == 200:
        world.live(INTERVAL)
    assert stall / 2 <= world.now - frozen <= latest


def test_latencies_are_those_of_the_window(world: World) -> None:
    assert world.health.report(False)[1]["first_token_seconds"] == {"p50": None, "p99": None}
    world.output(first=[9.0], finished=[90.0])
    world.live(200)
    for value in range(1, 101):
        world.output(first=[value / 100], finished=[value / 10])
    body = world.health.report(False)[1]
    assert body["requests_in_window"] == 101
    assert body["first_token_seconds"] == {"p50": 0.51, "p99": 1.0}
    world.live(101)
    body = world.health.report(False)[1]
    assert body["requests_in_window"] == 100
    assert body["first_token_seconds"] == {"p50": 0.5, "p99": 0.99}
    assert body["end_to_end_seconds"] == {"p50": 5.0, "p99": 9.9}
    world.live(300)
    assert world.health.report(False)[1]["requests_in_window"] == 0


def test_memory_is_bounded(world: World, health: types.ModuleType) -> None:
    for _batch in range(100):
        world.output(first=[0.1] * 1000, finished=[1.0] * 1000)
    assert world.health.report(False)[1]["requests_in_window"] == health.MAX_LATENCY_SAMPLES


def test_running_and_waiting_add_up_to_what_is_in_flight(world: World) -> None:
    world.in_flight = 7
    world.output(running=4)
    body = world.health.report(False)[1]
    assert (body["running"], body["waiting"]) == (4, 3)
    # After aborts the engine's last word is old: counts never exceed what this server still waits for.
    world.in_flight = 2
    body = world.health.report(False)[1]
    assert (body["running"], body["waiting"]) == (2, 0)


def test_the_body_has_exactly_the_documented_keys(world: World) -> None:
    assert sorted(world.health.report(False)[1]) == [
        "end_to_end_seconds", "first_token_seconds", "requests_in_window", "running", "seconds_since_progress",
        "status", "waiting", "window_seconds",
    ]  # fmt: skip
