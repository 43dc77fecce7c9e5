"""The Llama example's report of what a step takes on TPUs: formulas, traffic, search, command."""

import io
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import xfunc as xf
from examples.llama import aot, collectives, config, flops, model, options, plan, planner, show
from examples.llama.collectives import Traffic
from examples.llama.config import Run
from examples.llama.footprint import Case, Footprint
from examples.llama.planner import Mesh, Trial
from xfunc.aot import Buffer
from xfunc.backends.torch_xla.analysis import MemoryAnalysis
from xfunc.stages.stages import Lowered

# Formulas


def counted(fun: Callable[..., Any], config: model.Config, rows: int, seq: int) -> float:
    """The operations of a function of parameters and tokens, for one token, as XLA counts them."""
    tokens = xf.ShapeDtypeStruct((rows, seq), torch.int64)
    lowered = xf.jit(fun).lower(model.shapes(config, torch.float32), tokens)
    return lowered.cost_analysis()["flops"] / (rows * seq)


EXPERTS = ("e_gate", "e_up", "e_down")
CONFIG = model.Config(4096, 512, 1408, layers=3, heads=4, kv_heads=2)


@pytest.mark.parametrize("name", ["qwen3-8b", "mixtral-8x7b", "qwen3-30b-a3b"])
def test_flops_of_weights_that_a_token_uses(name: str) -> None:
    config = model.PUBLISHED[name]
    e = config.experts
    part = {"embed": 0.0} | ({} if e is None else dict.fromkeys(EXPERTS, e.active / e.count))
    shapes = model.shapes(config)
    used = sum(
        math.prod(leaf.shape) * part.get(key, 1.0)
        for tree in (shapes, shapes["layers"])
        for key, leaf in tree.items()
        if key != "layers"
    )
    assert flops.per_token(config, 0) == pytest.approx(6 * used, rel=1e-3)  # it has norms, too


def test_flops_of_attention_with_a_window() -> None:
    config = model.PUBLISHED["mistral-7b"]
    seen = sum(min(i + 1, 4096) for i in range(8192)) / 8192
    expected = 32 * 4 * 4096 * seen
    assert flops.forward(config, 8192).attention == pytest.approx(expected, rel=1e-3)


def test_forward_flops_are_those_of_the_program() -> None:
    dense = plan.Plan(attention="dense")
    found = counted(lambda p, t: model.forward(p, t, CONFIG, dense), CONFIG, 2, 512)
    # Twice the length: the program computes the whole square of scores. And it has norms, too.
    assert found == pytest.approx(sum(flops.forward(CONFIG, 2 * 512)), rel=0.01)


@pytest.mark.parametrize(
    ("policy", "loss_chunk"), [*((name, 128) for name in plan.POLICIES), ("full", 1024)]
)
def test_training_flops_are_those_of_the_program(policy: str, loss_chunk: int) -> None:
    one_block = plan.Plan(policy=policy, block=512, loss_chunk=loss_chunk)

    def loss(params: Any, tokens: Any) -> Any:
        return model.loss(params, model.Batch(tokens, tokens), CONFIG, one_block)

    found = counted(xf.value_and_grad(loss), CONFIG, 2, 512)
    assert found == pytest.approx(flops.executed_per_token(CONFIG, 2 * 512, one_block), rel=0.01)


def test_training_takes_six_operations_for_each_weight() -> None:
    config = model.PUBLISHED["llama3.1-405b"]
    shapes = model.shapes(config)
    weights = sum(math.prod(leaf.shape) for leaf in xf.tree.leaves(shapes))
    weights -= math.prod(shapes["embed"].shape)
    assert flops.per_token(config, 0) == pytest.approx(6 * weights, rel=1e-4)  # it has norms, too
    tied = model.PUBLISHED["llama3.2-1b"]
    assert flops.forward(tied, 0).head == 2 * 128256 * 2048


def test_utilisation() -> None:
    config = model.PUBLISHED["llama3.1-8b"]
    speed = 918e12 * 4 / flops.per_token(config, 8192)
    given = {"chips": 8, "chip": "v6e"}
    assert flops.utilisation(config, 8192, tokens_per_second=speed, **given) == pytest.approx(0.5)
    given["chip"] = "cpu"
    assert flops.utilisation(config, 8192, tokens_per_second=speed, **given) is None


def test_every_policy_has_a_place() -> None:
    assert set(flops.RECOMPUTED) == set(planner.FROM_SMALL) == set(plan.POLICIES)


# Collectives

HLO = """HloModule main

%add (a: f32[], b: f32[]) -> f32[] {
  ROOT %s = f32[] add(%a, %b)
}

%start.1 (p: bf16[4,8]) -> (bf16[4,8], bf16[16,8]) {
  %g.1 = bf16[16,8]{1,0:T(8,128)(2,1)S(1)} all-gather(%p), channel_id=1, replica_groups=[2,4]<=[8]
}

%carry_on.1 (p: bf16[4,8]) -> (bf16[4,8], bf16[16,8]) {
  %g.2 = bf16[16,8]{1,0:T(8,128)} all-gather(%p), channel_id=1, replica_groups=[2,4]<=[8]
}

%all-reduce-scatter.3 (p: f32[64]) -> f32[32] {
  %r.1 = f32[64]{0:T(256)} all-reduce(%p), channel_id=2, replica_groups={{0,1},{2,3}}, to_apply=%add
}

%unused (p: f32[64]) -> f32[64] {
  %r.2 = f32[64]{0} all-reduce(%p), channel_id=3, replica_groups={{0,1}}, to_apply=%add
}

%inner_condition (p: (f32[8], u32[])) -> pred[] {
  %i = u32[]{:T(128)} get-tuple-element((f32[8]{0}, u32[]) %p), index=1
  %c = u32[]{:T(128)} constant(9)
  ROOT %l = pred[]{:T(512)} compare(u32[]{:T(128)} %i, u32[]{:T(128)} %c), direction=LT
}

%inner_body (p: (f32[8], u32[])) -> (f32[8], u32[]) {
  %m = (f32[8]{0}, f32[8]{0}, u32[], u32[]) collective-permute-start(%q), channel_id=4
  %i.1 = u32[]{:T(128)} get-tuple-element((f32[8]{0}, u32[]) %p), index=1
  %two = u32[]{:T(128)} constant(2)
  %n = u32[]{:T(128)} add(u32[]{:T(128)} %i.1, u32[]{:T(128)} %two)
  ROOT %o = (f32[8]{0}, /*index=1*/u32[]{:T(128)}) tuple(f32[8]{0} %q, u32[]{:T(128)} %n)
}

%counts_in_another_way (p: (s32[])) -> pred[] {
  ROOT %o.1 = pred[] fusion(%p), kind=kLoop, calls=%add
}

%condition (p: (s32[])) -> pred[] {
  %c.1 = s32[] constant(4), metadata={op_name="x"}
  %i.2 = s32[] get-tuple-element(%p), index=0
  ROOT %l.1 = pred[] compare(%i.2, %c.1), direction=LT, metadata={op_name="%x"}
}

%body (p: (s32[])) -> (s32[]) {
  %a.1 = (bf16[4,8]{1,0}, bf16[16,8]{1,0}) fusion(%p), kind=kCustom, calls=%start.1
  %a.2 = (bf16[4,8]{1,0}, bf16[16,8]{1,0}) fusion(%a.1), kind=kCustom, calls=%carry_on.1, x={1}
  %zero = u32[]{:T(128)} constant(0)
  %zero.1 = u32[]{:T(128)} copy(u32[]{:T(128)} %zero)
  %start = (f32[8]{0}, u32[]{:T(128)}) tuple(f32[8]{0} %q, u32[]{:T(128)} %zero.1)
  %w.1 = (f32[8]{0}, u32[]{:T(128)}) while((f32[8]{0}, u32[]{:T(128)}) %start), \
condition=%inner_condition, body=%inner_body, metadata={op_name="y"}
  %i.3 = s32[] get-tuple-element(%p), index=0
  %one = s32[] constant(1)
  %n.1 = s32[] add(%i.3, %one)
  ROOT %o.2 = (s32[]) tuple(%n.1)
}

%yes (p: f32[8]) -> f32[8] {
  %t = f32[8]{0} all-to-all(%p), channel_id=9, replica_groups={{0,1,2,3}}, dimensions={0}
}

ENTRY %main (p: f32[64]) -> f32[32] {
  %one.1 = s32[] constant(1)
  %start.2 = (s32[]) tuple(%one.1)
  %w.2 = (s32[]) while(%start.2), condition=%condition, body=%body
  %w.3 = (s32[]) while(%start.2), condition=%counts_in_another_way, body=%yes
  %m.1 = (f32[8]{0}, f32[8]{0}, u32[], u32[]) collective-permute-start(%q), channel_id=4
  %f = f32[32]{0} fusion(%w.2), kind=kLoop, calls=%all-reduce-scatter.3
  %k = f32[8]{0} conditional(%i, %p, %p), branch_computations={%yes, %unused.2}
  %g = (f32[8]{0}, f32[16]{0}) all-gather-start(%p), channel_id=5, replica_groups=[4,2]<=[8]
  %s = f32[16]{0} reduce-scatter(%p), channel_id=6, replica_groups=[4,2]<=[8], to_apply=%add
  %r = (f32[8]{0}, pred[8]{0}) all-reduce(%p, %p), channel_id=7, replica_groups=[1,8]<=[8]
}
"""


def test_traffic_counts_what_each_chip_receives() -> None:
    assert collectives.traffic(HLO) == {
        "all-gather": Traffic(3 + 1, 3 * (16 * 8 * 2) * 3 / 4 + 16 * 4 / 2),
        "reduce-scatter": Traffic(1 + 1, 64 * 4 / 2 + 16 * 4),
        "all-reduce": Traffic(1, 2 * (8 * 4 + 8) * 7 / 8),
        "all-to-all": Traffic(1 + 1, 2 * (8 * 4 * 3 / 4)),
        "collective-permute": Traffic(3 * 5 + 1, (3 * 5 + 1) * 8 * 4),
    }


# The search

LIMIT = 1000


class Fake:
    """A compiler for which a policy takes a fixed size, and so much for each row of a part."""

    def __init__(self, sizes: dict[str, Callable[[int], int]], *, tells: bool = True) -> None:
        self.sizes, self.tells = sizes, tells
        self.compiled: list[tuple[str, Mesh, int]] = []

    def __call__(self, mesh: Mesh, policy: str, batch: int) -> Trial:
        assert batch % mesh.parts == 0
        self.compiled.append((policy, mesh, batch))
        size = self.sizes[policy](batch // mesh.parts * mesh.tensor)
        known = size if self.tells or size <= LIMIT else None
        return Trial(mesh, policy, batch, size <= LIMIT, known, mfu_bound=1 / len(policy))


def found(fake: Fake, *meshes: Mesh) -> Trial | None:
    return planner.best(planner.search(meshes, list(fake.sizes), fake, LIMIT))


FSDP = Mesh(1, 4, 1)


def test_an_affine_size_takes_three_compiles() -> None:
    fake = Fake({"full": lambda rows: 200 + 30 * rows})
    trial = found(fake, FSDP)
    assert trial is not None
    assert trial.batch == 4 * 26
    assert [batch // 4 for _, _, batch in fake.compiled] == [1, 4, 26]


@pytest.mark.parametrize(
    ("size", "tried"),
    [
        (lambda rows: 200 + 30 * rows + rows**2, [1, 4, 22, 15, 16, 17]),  # more than predicted
        (lambda rows: 200 + 30 * rows - 25 * (rows > 20), [1, 4, 26, 27]),  # and less
        (lambda rows: 1000 * rows, [1, 2]),
        (lambda rows: 990 if rows < 7 else 1010, [1, 2, 4, 8, 6, 7]),  # no slope
    ],
)
def test_other_sizes_take_a_few_more(size: Callable[[int], int], tried: list[int]) -> None:
    fake = Fake({"full": size})
    trial = found(fake, FSDP)
    assert trial is not None
    assert [batch // 4 for _, _, batch in fake.compiled] == tried
    assert trial.batch == 4 * max(rows for rows in tried if size(rows) <= LIMIT)


def test_what_is_too_large_need_not_be_known() -> None:
    fake = Fake({"full": lambda rows: 200 + 30 * rows + rows**2}, tells=False)
    trial = found(fake, FSDP)
    assert trial is not None
    assert trial.batch == 4 * 17
    assert len(fake.compiled) == 7


def test_nothing_fits() -> None:
    fake = Fake({"offload": lambda rows: 2000, "full": lambda rows: 3000})
    assert found(fake, FSDP, Mesh(1, 2, 2)) is None
    assert len(fake.compiled) == 2  # one for each mesh: `full` keeps more than `offload`


def test_what_cannot_win_is_tried_once() -> None:
    fake = Fake(
        {
            "offload": lambda rows: 200 + 30 * rows,
            "full": lambda rows: 200 + 40 * rows,
            "dots": lambda rows: 200 + 60 * rows,
        }
    )
    other = Mesh(1, 2, 2)
    trial = found(fake, FSDP, other)
    assert trial is not None
    assert (trial.mesh, trial.policy, trial.batch) == (FSDP, "offload", 104)
    assert fake.compiled[3:] == [("full", FSDP, 104), ("offload", other, 104)]


def test_of_equal_batches_the_fastest_wins() -> None:
    fake = Fake({"offload": lambda rows: 500 * rows, "full": lambda rows: 500 * rows})
    trial = found(fake, FSDP)
    assert trial is not None
    assert (trial.policy, trial.batch) == ("full", 8)


def test_meshes_divide_heads_and_features() -> None:
    config = model.PUBLISHED["llama3.1-405b"]
    sizes = [(256, 1), (128, 2), (64, 4), (32, 8)]
    assert planner.meshes(config, 256) == [Mesh(1, *size) for size in sizes]
    assert planner.meshes(model.TINY["tiny"], 8) == [Mesh(1, 8, 1), Mesh(1, 4, 2)]


# The command

TINY = ["--config", "tiny", "--topology", "v6e:2x2", "--seq", "64"]
MESH = ["--mesh", "fsdp=2,tensor=2"]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([*TINY, *MESH], "give --batch, or --plan to find the largest"),
        ([*TINY, *MESH, "--plan", "--batch", "4"], "--plan finds the batch"),
        ([*TINY, *MESH, "--plan", "data.batch=4"], "--plan finds the batch"),
        (
            [*TINY, "--mesh", "fsdp=8"],
            "mesh is data 1 x fsdp 8 x tensor 1 x expert 1, and the devices are 4",
        ),
        ([*TINY, "train.stepz=9"], "there is no setting train.stepz: did you mean train.steps?"),
        (["--config", "tinny", *TINY[2:]], "there is no file tinny: give one, or one of"),
        ([*TINY, "--mesh", "model=4"], "cannot read 'model=4' as an axis"),
        ([*TINY[:3], "v6e-5"], "unknown target 'v6e-5'"),
        ([*TINY, *MESH, "--batch", "0"], "data: batch is 0: use 1 or more"),
        ([*TINY, "--compiler-option", "a"], "'a' is not of the form NAME=VALUE"),
    ],
)
def test_wrong_arguments(given: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        aot.main(given)
    assert says in capsys.readouterr().err


def test_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XFUNC_CACHE_DIR", str(tmp_path))
    assert aot.main([*TINY, *MESH, "--batch", "4", "--policy", "offload", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    found = figures["footprint"]
    shapes = model.shapes(model.TINY["tiny"])
    # Both axes divide each matrix, and norms are divided over one.
    sizes = [2 * math.prod(leaf.shape) for leaf in xf.tree.leaves(shapes)]
    norms = 2 * (2 * 2 * 32 + 32)
    assert found["parameters"] == (sum(sizes) - norms) / 4 + norms / 2
    assert found["batch"] == 3 * (2 * 64 * 4)  # with the documents
    assert found["limit"] == 31996 * 2**20
    parts = ("parameters", "optimizer", "batch", "padding", "temporaries")
    assert found["hbm"] == sum(found[part] for part in parts)
    assert found["host"] >= 2 * (2 * 64 * 32 * 2) / 2  # the layers' inputs, a part of the features
    assert found["results"] < found["parameters"]  # metrics: the new state lies where the old was
    assert found["traffic"]["all-gather"]["runs"] > 0
    assert 0 < found["mfu_bound"] < 1
    assert figures["staging"]["hlo_bytes"] > 0
    largest = [b["bytes"] for b in figures["largest_buffers"]]
    assert len(largest) == 10
    assert largest == sorted(largest, reverse=True)

    # The same, read: libtpu is not asked again.
    assert aot.main([*TINY, *MESH, "--batch", "4", "--policy", "offload"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"HBM per chip: {found['hbm'] / 2**30:.2f} GiB" in lines
    assert f"host per chip: {found['host'] / 2**30:.2f} GiB" in lines
    assert "limit per chip: 31.25 GiB" in lines
    assert len(list(tmp_path.rglob("*.zip"))) == 1


def test_chips_gather_bfloat16_of_float32_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XFUNC_CACHE_DIR", str(tmp_path))
    pairs = (
        "train.model=tiny train.precision=mixed train.optimizer=adafactor data.batch=8 "
        "data.seq=64 mesh.tensor=2"
    ).split()
    case = Case(config.read(pairs=pairs), "v6e:2x2")
    text = case.lower().compile(f"tpu:{case.topology}").as_text()
    assert text is not None
    found = re.findall(r"= (\w+)\[[\d,]*\]\S* all-gather\(", text)
    assert len(found) > 10
    assert set(found) == {"bf16"}


def test_a_batch_that_cannot_be_divided(capsys: pytest.CaptureFixture[str]) -> None:
    assert aot.main([*TINY, *MESH, "--batch", "3"]) == 1
    assert "(3, 64) cannot be sharded" in capsys.readouterr().err


def out_of_memory(*_: Any) -> None:
    raise xf.errors.OutOfMemoryError("does not fit: Used 40G of 31G hbm", 40 << 30, 31 << 30)


def test_out_of_memory(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(Lowered, "compile", out_of_memory)
    assert aot.main([*TINY, *MESH, "--batch", "4"]) == 1
    printed = capsys.readouterr().out
    assert "required per chip: 40.00 GiB" in printed
    assert "limit per chip: 31.00 GiB" in printed
    assert "does not fit: Used 40G of 31G hbm" in printed
    assert "HBM per chip" not in printed
    assert aot.main([*TINY, *MESH, "--batch", "4", "--json"]) == 1
    sizes = json.loads(capsys.readouterr().out)["out_of_memory"]
    assert sizes == {"required": 40 << 30, "limit": 31 << 30}
    assert aot.main([*TINY, *MESH, "--plan", "--policy", "full"]) == 1
    assert "Nothing fits" in capsys.readouterr().out


def test_shard_as_is_off_while_lowering_only(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def compile(*_: Any) -> None:
        seen.append(xf.config.shard_as_in_scan)
        out_of_memory()

    monkeypatch.setattr(Lowered, "compile", compile)
    for flags in (["--no-shard-as"], []):
        assert aot.main([*TINY, *MESH, "--batch", "4", "--what", "grad", *flags]) == 1
    assert seen == [False, True]
    assert xf.config.shard_as_in_scan


def test_plan(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    tried = []

    class Compiled:
        """10 GiB, and 1 GiB for each row of a batch."""

        def __init__(self, gib: int) -> None:
            self.gib = gib

        def memory_analysis(self) -> Any:
            return MemoryAnalysis(0, 0, self.gib << 30, 0, 3 << 30)

        def as_text(self) -> None:
            return None

        compiler = "libtpu 1"

    def compile(lowered: Lowered, target: str, options: dict[str, str], _: Any) -> Compiled:
        rows = lowered.traced.in_avals[-1].shape[0]
        tried.append((target, options, rows))
        if 10 + rows > 31:
            raise xf.errors.OutOfMemoryError("no", (10 + rows) << 30, 31 << 30)
        return Compiled(10 + rows)

    monkeypatch.setattr(Lowered, "compile", compile)
    given = ["--plan", "--policy", "offload", "--compiler-option", "a=b"]
    assert aot.main([*TINY, *MESH, *given]) == 0
    assert tried == [("tpu:v6e:2x2", {"a": "b"}, rows) for rows in (2, 4, 20)]
    printed = capsys.readouterr().out
    command = printed.splitlines()[-1].split()
    assert command[:4] == ["python", "-m", "examples.llama", "fit"]
    # What is printed are the settings of the best.
    run = config.read(pairs=command[4:])
    assert (run.data.batch, run.data.seq, run.mesh) == (20, 64, config.Mesh(1, 2, 2))
    assert (run.train.model, run.train.plan.policy) == (model.TINY["tiny"], "offload")
    assert (run.train.optimizer, run.train.precision) == ("adafactor", "bfloat16")
    assert printed.splitlines()[-2].startswith("train.precision=bfloat16 loses updates of less")
    assert "30.00" in printed


def test_settings_are_those_of_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(
        "train: {model: tiny, precision: mixed, plan: {microbatches: 2, block: 32}}\n"
        "data: {batch: 16, seq: 64}\n"
    )
    seen: list[tuple[Any, ...]] = []

    def compile(lowered: Lowered, *_: Any) -> None:
        seen.append((*(aval.dtype for aval in lowered.traced.in_avals[-3:]),))
        out_of_memory()

    monkeypatch.setattr(Lowered, "compile", compile)
    given = ["--config", str(file), "--topology", "v6e:2x2", "--seq", "32", "train.clip=2"]
    assert aot.main([*given, "--json"]) == 1
    assert seen == [(torch.int32,) * 3]  # tokens, targets and documents
    found = json.loads(capsys.readouterr().out)["case"]
    run = config.read(file, ["data.seq=32", "train.clip=2"])
    assert found == {"topology": "v6e:2x2", "what": "train", "run": options.plain(run)}
    assert aot.main(given) == 1
    heading = (
        "tiny, a step with adamw in mixed, on v6e:2x2 as fsdp=4: 16 rows of 32 in 2 parts, full"
    )
    assert heading in capsys.readouterr().out

    # The planner keeps the parts, and its command the file.
    assert aot.main([*given, "--plan", "--policy", "full"]) == 1
    assert "fsdp=4 full 8 2" in " ".join(capsys.readouterr().out.split())


def test_settings_that_differ_are_told_as_one_would_type_them() -> None:
    pairs = ["train.model=llama3.1-8b", "mesh.tensor=2", "data.files=[a, b]", "train.spike=6.0"]
    run = config.read(pairs=pairs)
    assert sorted(options.differing(run, Run())) == sorted(pairs)
    pairs += ["train.model.layers=2", "train.model.rope_scaling=null", "train.plan.policy=dots"]
    run = config.read(pairs=pairs)
    told = [*options.differing(run, Run())]
    assert config.read(pairs=told) == run
    assert "train.model.layers=2" in told


@pytest.mark.parametrize("width", [100, 1000])
def test_long_names_leave_the_sizes_in_sight(width: int) -> None:
    run = config.read(pairs=["train.model=tiny", "data.batch=4"])
    case = Case(run, "v6e:2x2")
    found = Footprint(3 << 30, 0, 0, 0, 0, 0, 0, None, None, 1.0, 1.0, None, None, None, "libtpu 1")
    name = "xfunc__scan.block/" + "while/body/closed_call/" * 20
    large = Buffer(
        5 << 30, "temporary", "bf16[64,16384,8192]", "fusion.1", name, "/some/" * 20 + "x.py", 7
    )
    out = io.StringIO()
    console = Console(file=out, width=width, highlight=False, markup=False, soft_wrap=True)
    show.report(console, case, show.Staging(1.0, 1, 1), found, [large])
    [line] = [line for line in out.getvalue().splitlines() if "temporary bf16" in line]
    assert line.split()[2] == "5.00"
    assert "parameters                    3.00" in out.getvalue()
