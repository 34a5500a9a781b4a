"""The part of Ray that gemel uses, in this process: results come in a random order, workers die on demand."""

from __future__ import annotations

import random
from types import SimpleNamespace


class RayError(Exception):
    """A worker or object was lost."""


class RayTaskError(RayError):
    """A worker's own error, around its cause."""

    def __init__(self, cause):
        super().__init__(str(cause))
        self.cause = cause


class Ref:
    def __init__(self, actor, method, arguments):
        self.actor, self.method, self.arguments = actor, method, arguments


class Method:
    def __init__(self, actor, name):
        self.actor, self.name = actor, name

    def remote(self, *arguments):
        assert not self.actor.dead, "a call for a worker that was given up"
        self.actor.ray.calls += 1
        return Ref(self.actor, self.name, arguments)


class Actor:
    def __init__(self, ray, cls, arguments):
        self.ray, self.dead = ray, False
        self.inner = cls(*arguments)
        self.ready, self.work = Method(self, "ready"), Method(self, "work")


class FakeRay:
    """`dies(ref, number)`: whether the worker dies instead of finishing the n-th fetched result."""

    exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)

    def __init__(self, dies=lambda ref, number: False, seed=0, cores=2):
        self.dies, self.random, self.cores = dies, random.Random(seed), cores
        self.fetched = self.calls = self.started = 0

    def nodes(self):
        return [{"NodeID": "a", "Alive": True, "Resources": {"CPU": float(self.cores)}}]

    def put(self, value):
        return value

    def remote(self, **options):
        assert options["max_restarts"] == options["max_task_retries"] == 0
        self.options = options

        def decorate(cls):
            def make(*arguments):
                self.started += 1
                return Actor(self, cls, arguments)

            return SimpleNamespace(remote=make)

        return decorate

    def wait(self, refs, num_returns, timeout):
        assert refs, "nothing to wait for"
        first = list(
            {id(ref.actor): ref for ref in reversed(refs)}.values()
        )  # a worker runs one task at a time
        return [self.random.choice([ref for ref in first if ref.actor.dead] or first)], []

    def get(self, ref):
        self.fetched += 1
        if not ref.actor.dead and self.dies(ref, self.fetched):
            ref.actor.dead = True
        if ref.actor.dead:
            raise RayError("the worker died")
        try:
            return getattr(ref.actor.inner, ref.method)(*ref.arguments)
        except Exception as error:
            raise RayTaskError(error) from error

    def kill(self, actor):
        actor.dead = True

    def available_resources(self):
        return {"CPU": 0.0}
