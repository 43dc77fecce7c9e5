"""`benchmarks.operations` measures in processes of their own, any of which may die."""

from benchmarks import operations


def test_measure_reports_dead_worker_as_crash(monkeypatch):
    class Dead(operations.run.Worker):
        def examine(self, unit):
            self._process.kill()
            return super().examine(unit)

    monkeypatch.setattr(operations.run, "Worker", Dead)
    found = operations.measure(operations.units(["int64"], ["jit", "vmap", "grad"], ["add"], 1))
    assert [(f.transform, f.status, f.detail) for f in found] == [
        ("jit", "crash", "exit status -9"),
        ("vmap", "crash", "exit status -9"),
    ]
