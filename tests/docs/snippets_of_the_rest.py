"""Snippets for the rows about sharding, random numbers, trees, debugging, and `jnp`.

See `coming_from_jax.py`.
"""

# ruff: noqa: E501 (a snippet is as long as it is)

from __future__ import annotations

Snippet = str | tuple[str, str]

PAIR = "{'b': x, 'a': [m, n]}"
NODE = """
class Point:
    def __init__(self, x, tag):
        self.x, self.tag = x, tag
"""
DATA_CLASS = """
import dataclasses
@dataclasses.dataclass
class Point:
    x: object
    tag: str
jax.tree_util.register_dataclass(Point, data_fields=["x"], meta_fields=["tag"])
"""
MESH = "mesh = jax.make_mesh((1,), ('i',))\n"
SHARDED = "jax.shard_map(lambda x: {body}, mesh=mesh, in_specs=jax.P('i'), out_specs={out})(x)"
EACH = "jax.vmap(lambda x: {body}, axis_name='i')(m)"


def _draws(name: str, *arguments: str) -> list[Snippet]:
    return [f"jax.random.{name}(jax.random.key(7), {a})" for a in arguments]


_ONES = ("(3,)", "(2, 2), jnp.float32")

SNIPPETS: dict[str, list[Snippet]] = {
    # -- sharding
    "jax.sharding.Mesh": ["jax.make_mesh((1,), ('i',)).axis_names", "dict(jax.make_mesh((1, 1), ('i', 'j')).shape)"],
    "jax.sharding.AbstractMesh": ["dict(jax.sharding.AbstractMesh((2, 4), ('i', 'j')).shape)"],
    "jax.sharding.use_mesh": [
        (
            "with jax.set_mesh(jax.make_mesh((1,), ('i',))):\n    y = jax.jit(lambda x: jax.lax.with_sharding_constraint(x * 2, jax.P('i')))(x)\ny",
            "with xf.use_mesh(xf.make_mesh((1,), ('i',))):\n    y = xf.jit(lambda x: xf.with_sharding_constraint(x * 2, xf.P('i')))(x)\ny",
        ),
    ],
    "jax.sharding.PartitionSpec": [
        "[tuple(jax.P('i', None, ('j', 'k'))), len(jax.sharding.PartitionSpec('i'))]",
        "jax.P('i') == jax.sharding.PartitionSpec('i')",
        "jax.P('i', 'j') == jax.P('j', 'i')",
    ],
    "jax.sharding.NamedSharding": [
        MESH + "s = jax.sharding.NamedSharding(mesh, jax.P('i'))\n[tuple(s.spec), s.shard_shape((4, 2)), s.is_fully_replicated]",
    ],
    "array.sharding": [
        (
            "s = jax.sharding.NamedSharding(jax.make_mesh((1,), ('i',)), jax.P('i'))\njax.device_put(x, s).sharding == s",
            "s = xf.NamedSharding(xf.make_mesh((1,), ('i',)), xf.P('i'))\nxf.sharding_of(xf.device_put(x, s)) == s",
        ),
    ],
    "array.addressable_shards": [
        (
            "[(s.data, x[s.index], s.device.id, s.replica_id) for s in jax.device_put(x).addressable_shards]",
            "[(s.data, x[s.index], s.device, s.replica_id) for s in xf.sharding.addressable_shards(xf.device_put(x))]",
        )
    ],
    "jax.debug.visualize_array_sharding": [
        (
            "jax.debug.visualize_array_sharding(jax.device_put(x)) is None",
            "'0' in str(xf.visualize_sharding(xf.device_put(x)))",
        ),
    ],
    "jax.lax.with_sharding_constraint": [
        MESH + "jax.jit(lambda x: jax.lax.with_sharding_constraint(x, jax.sharding.NamedSharding(mesh, jax.P('i'))) * 2)(x)",
    ],
    "jax.experimental.shard_alike.shard_alike": [
        ("jax.experimental.shard_alike.shard_alike(x, v)", "xf.shard_alike(x, v)"),
    ],
    "jax.shard_map": [
        MESH + SHARDED.format(body="x * 2", out="jax.P('i')"),
        MESH + SHARDED.format(body="jax.lax.psum(x, 'i')", out="jax.P()"),
    ],
    "jax.lax.pvary": [MESH + SHARDED.format(body="jax.lax.pvary(x.sum() * 0 + 1.0, ()) * x", out="jax.P('i')")],
    "jax.typeof": [
        "t = jax.typeof(m)\n[tuple(t.shape), t.ndim, t.size, t.dtype == jnp.float32, sorted(t.vma)]",
        "[tuple(jax.jit(lambda x: (jax.typeof(x).shape == (3,)) * x)(x).shape), sorted(jax.typeof(2.0).vma)]",
    ],
    "jax.lax.psum": [EACH.format(body=f"jax.lax.{f}(x, 'i')") for f in ("psum", "pmean", "pmax", "pmin")],
    "jax.lax.all_gather": [
        EACH.format(body="jax.lax.all_gather(x, 'i')"),
        EACH.format(body="jax.lax.all_gather(x, 'i', axis=1)"),
        EACH.format(body="jax.lax.all_gather(x, 'i', tiled=True)"),
        EACH.format(body="jax.lax.psum_scatter(x[:2], 'i')"),
        EACH.format(body="jax.lax.psum_scatter(x[:2], 'i', scatter_dimension=0, tiled=True)"),
    ],
    "jax.lax.all_gather_invariant": [
        (
            "from jax._src.lax.parallel import all_gather_invariant\n"
            + MESH + "jax.shard_map(lambda x: all_gather_invariant(x, 'i', tiled=True), mesh=mesh, in_specs=jax.P('i'), out_specs=jax.P())(x)",
            "mesh = xf.make_mesh((1,), ('i',))\nxf.shard_map(lambda x: xf.all_gather_invariant(x, 'i', tiled=True), mesh=mesh, in_specs=xf.P('i'), out_specs=xf.P())(x)",
        ),
    ],
    "jax.lax.ppermute": [
        EACH.format(body="jax.lax.ppermute(x, 'i', [(0, 1), (1, 0)])"),
        EACH.format(body="jax.lax.all_to_all(x[:2], 'i', 0, 0)"),
        EACH.format(body="jax.lax.all_to_all(x[:2], 'i', 0, 0, tiled=True)"),
    ],
    "jax.lax.axis_index": [EACH.format(body="x * jax.lax.axis_index('i')"), EACH.format(body="x * jax.lax.axis_size('i')")],
    # -- random numbers
    "jax.random.key": [("jax.random.key_data(jax.random.key(7))", "xf.random.key(7)"), ("jax.random.key_data(jax.random.key(-1))", "xf.random.key(-1)")],
    "jax.random.split": [
        ("jax.random.key_data(jax.random.split(jax.random.key(7)))", "xf.random.split(xf.random.key(7))"),
        ("jax.random.key_data(jax.random.split(jax.random.key(7), num=3))", "xf.random.split(xf.random.key(7), num=3)"),
        ("jax.random.key_data(jax.random.split(jax.random.key(7), (2, 2)))", "xf.random.split(xf.random.key(7), (2, 2))"),
    ],
    "jax.random.fold_in": [("jax.random.key_data(jax.random.fold_in(jax.random.key(7), 5))", "xf.random.fold_in(xf.random.key(7), 5)")],
    "jax.random.bits": [("jax.random.bits(jax.random.key(7), (4,)).astype(jnp.int32)", "xf.random.bits(xf.random.key(7), (4,))"),
                        ("jax.random.bits(jax.random.key(7), (4,), jnp.uint8)", "xf.random.bits(xf.random.key(7), (4,), torch.uint8)")],
    "jax.random.uniform": _draws("uniform", *_ONES, "(3,), minval=-1.0, maxval=2.0"),
    "jax.random.normal": _draws("normal", *_ONES),
    "jax.random.truncated_normal": _draws("truncated_normal", "-1.0, 2.0", "-1.0, 2.0, (3,)", "x - 1, 3.0"),
    "jax.random.bernoulli": _draws("bernoulli", "0.3, (5,)", "shape=(5,)", "jnp.array([0.1, 0.9])"),
    "jax.random.randint": _draws("randint", "(5,), 0, 10", "(5,), minval=-3, maxval=3"),
    "jax.random.permutation": _draws("permutation", "5", "x", "m, axis=1", "m, axis=1, independent=True"),
    "jax.random.categorical": _draws("categorical", "m", "m, axis=0", "x, shape=(4,)"),
    "jax.random.gumbel": _draws("gumbel", *_ONES, "(3,), mode='high'"),
    "jax.random.choice": _draws("choice", "5", "x, (4,)", "x, (2,), replace=False", "x, (4,), p=jnp.array([0.2, 0.3, 0.5])", "m, (2,), axis=1"),
    "jax.random.cauchy": _draws("cauchy", *_ONES),
    "jax.random.exponential": _draws("exponential", *_ONES),
    "jax.random.laplace": _draws("laplace", *_ONES),
    "jax.random.logistic": _draws("logistic", *_ONES),
    "jax.random.lognormal": _draws("lognormal", "0.5, (3,)", "shape=(3,)"),
    "jax.random.maxwell": _draws("maxwell", *_ONES),
    "jax.random.multivariate_normal": _draws(
        "multivariate_normal", "x[:2], jnp.array([[1.0, 0.5], [0.5, 2.0]])",
        "x[:2], jnp.array([[1.0, 0.5], [0.5, 2.0]]), (3,)",
        "x[:2], jnp.array([[1.0, 0.0], [0.0, 2.0]]), method='cholesky'"),
    "jax.random.pareto": _draws("pareto", "2.0, (3,)", "jnp.array([1.0, 2.0])"),
    "jax.random.rademacher": _draws("rademacher", "(5,)"),
    "jax.random.rayleigh": _draws("rayleigh", "2.0, (3,)"),
    "jax.random.weibull_min": _draws("weibull_min", "2.0, 3.0, (3,)"),
    "jax.random.gamma": [
        *_draws("gamma", "2.5, (3,)"),
        *_draws("dirichlet", "jnp.array([1.0, 2.0, 3.0])"),
        "jax.grad(lambda a: jax.random.gamma(jax.random.key(7), a, (3,)).sum())(2.5)",
    ],
    "jax.random.double_sided_maxwell": [
        *_draws("double_sided_maxwell", "x, 2.0, (2,)"),
        *_draws("generalized_normal", "1.5, (3,)"),
        *_draws("triangular", "0.0, 1.0, 3.0, (3,)"),
        *_draws("wald", "jnp.array([1.0, 2.0])"),
    ],
    "jax.random.poisson": [*_draws("poisson", "4.0, (3,)"), *_draws("geometric", "0.25, (3,)")],
    "jax.random.binomial": [
        *_draws("binomial", "20, 0.25, (3,)"),
        *_draws("multinomial", "9.0, jnp.array([0.25, 0.5, 0.25])"),
    ],
    "jax.random.ball": [*_draws("ball", "3"), *_draws("orthogonal", "2", "2, m=3")],
    "jax.random.PRNGKey": [
        "jax.random.PRNGKey(7)",
        "jax.random.key_data(jax.random.clone(jax.random.key(7)))",
        "jax.random.key_data(jax.random.wrap_key_data(jax.random.PRNGKey(7)))",
    ],
    # -- trees
    "jax.tree.flatten": [f"jax.tree.flatten({PAIR})[0]", "jax.tree.flatten((x, None, [v]), is_leaf=lambda t: isinstance(t, list))[0][0]"],
    "jax.tree.unflatten": [f"jax.tree.unflatten(jax.tree.structure({PAIR}), [1, 2, 3])"],
    "jax.tree.leaves": [f"jax.tree.leaves({PAIR})", "jax.tree.leaves((x, None, {}))"],
    "jax.tree.structure": [
        "jax.tree.structure((1, [2])) == jax.tree.structure((3, [4]))", "jax.tree.structure((1, [2])) == jax.tree.structure((3, (4,)))",
        "jax.tree.structure({'a': 1, 'b': (2, None)}).num_leaves",
    ],
    "jax.tree.map": ["jax.tree.map(lambda a, b: a * b, {'p': x, 'q': (v,)}, {'p': v, 'q': (x,)})", "jax.tree.map(len, {'p': [1, 2]}, is_leaf=lambda t: isinstance(t, list))"],
    "jax.tree.map_with_path": ["jax.tree.map_with_path(lambda path, a, b: (len(path) > 0, a + b), {'p': 1}, {'p': 2})"],
    "jax.tree.leaves_with_path": [f"[leaf for _, leaf in jax.tree.leaves_with_path({PAIR})]"],
    "jax.tree.all": ["jax.tree.all({'a': True, 'b': [1]})", "jax.tree.all([True, False])", "jax.tree.all([])", "jax.tree.all([[], 1], is_leaf=lambda t: t == [])"],
    "jax.tree.reduce": ["jax.tree.reduce(lambda a, b: a + b, {'a': 1, 'b': [2, 3]})", "jax.tree.reduce(lambda a, b: a + b, [1, 2], initializer=10)",
                        "jax.tree.reduce(lambda a, b: a + b, [[1], [2]], is_leaf=lambda t: t in ([1], [2]))"],
    "jax.tree.transpose": ["jax.tree.transpose(jax.tree.structure([0, 0]), jax.tree.structure((0, 0, 0)), [(1, 2, 3), (4, 5, 6)])", "jax.tree.transpose(jax.tree.structure([0, 0]), None, [(1, 2), (3, 4)])"],
    "jax.tree_util.register_pytree_node": [
        NODE + "jax.tree_util.register_pytree_node(Point, lambda p: ((p.x,), p.tag), lambda tag, xs: Point(xs[0], tag))\n"
        "q = jax.tree.map(lambda a: a * 2, Point(x, 'here'))\n[q.x, q.tag]",
    ],
    "jax.tree_util.register_dataclass": [DATA_CLASS + "q = jax.jit(lambda p: jax.tree.map(lambda a: a * 2, p))(Point(x, 'here'))\n[q.x, q.tag]"],
    # -- modules, debugging, profiling
    "jax.debug.print": [
        "import io, contextlib\nout = io.StringIO()\nwith contextlib.redirect_stdout(out):\n"
        "    jax.jit(lambda n: jax.debug.print('n = {n} and {}', n.sum(), n=n[0]))(n)\n    jax.block_until_ready(x)\n"
        "    jax.effects_barrier()\nout.getvalue()",
    ],
    "jax.debug.callback": [
        "seen = []\njax.jit(lambda n: jax.debug.callback(lambda a, *, b: seen.append((a.tolist(), int(b))), n, b=3))(n)\n"
        "jax.effects_barrier()\nseen",
    ],
    "jax.pure_callback": ["jax.jit(lambda x: jax.pure_callback(lambda a: a * 2, jax.ShapeDtypeStruct((3,), jnp.float32), x))(x)"],
    "jax.experimental.io_callback": ["jax.jit(lambda x: jax.experimental.io_callback(lambda a: a * 2, jax.ShapeDtypeStruct((3,), jnp.float32), x))(x)"],
    "jax.experimental.checkify.check": [
        (
            "from jax.experimental import checkify\nf = lambda x: (checkify.check(x.sum() > 9, 'the sum is {s}', s=x.sum()), x)[1]\n"
            "'the sum is 1.25' in checkify.checkify(f)(x)[0].get()",
            "try:\n    xf.jit(lambda x: (xf.debug.check(x.sum() > 9, 'the sum is {s}', s=x.sum()), x)[1])(x)\n    text = ''\n"
            "except xf.errors.ExecutionError as error:\n    text = str(error)\n'the sum is 1.25' in text",
        ),
    ],
    "jax.debug_nans": [
        "with jax.debug_nans(True):\n    try:\n        jax.block_until_ready(jax.jit(lambda x: jnp.sqrt(x))(x))\n        found = 'nothing'\n"
        "    except FloatingPointError:\n        found = 'NaN'\nfound",
        "with jax.debug_nans(False):\n    y = jax.jit(lambda x: jnp.sqrt(x))(x)\ny",
    ],
    "jax.debug_infs": [
        "with jax.debug_infs(True):\n    try:\n        jax.block_until_ready(jax.jit(lambda x: x / 0)(x + 2))\n        found = 'nothing'\n"
        "    except FloatingPointError:\n        found = 'infinity'\nfound",
        "with jax.debug_infs(False):\n    y = jax.jit(lambda x: jnp.exp(x * 1000))(x)\ny",
    ],
    "jax.profiler.trace": [
        "import tempfile\nfrom pathlib import Path\nd = tempfile.mkdtemp()\nwith jax.profiler.trace(d):\n    jax.block_until_ready(jax.jit(lambda x: x * 2)(x))\n"
        "any(p.suffix == '.pb' for p in Path(d).rglob('*'))",
    ],
    "jax.profiler.TraceAnnotation": ["with jax.profiler.TraceAnnotation('part'):\n    y = x * 2\ny"],
    # -- what to write for jnp and lax
    "jnp.where": [
        "jnp.where(x > 0, x, v)", "jnp.einsum('ij,j->i', m, x)", "jnp.concatenate([x, v])",
    ],
    "jnp.sum(x, axis=0, keepdims=True)": [
        ("jnp.sum(m, axis=0, keepdims=True)", "m.sum(dim=0, keepdim=True)"),
        ("jnp.sum(m, axis=0, keepdims=True)", "m.sum(axis=0, keepdims=True)"),
    ],
    "jnp.max(x, axis=0)": [("jnp.max(m, axis=0)", "m.amax(0)")],
    "x.astype(jnp.bfloat16)": [("x.astype(jnp.bfloat16)", "x.to(torch.bfloat16)")],
    "x[i]": ["jax.jit(lambda m, i: [m[i], m[i, 1:]])(m, 1)"],
    "jnp.take_along_axis(x, i, 0)": [("jnp.take_along_axis(x, n, 0)", "torch.take_along_dim(x, n.long(), 0)")],
    "jax.nn.softmax": [
        ("jax.nn.softmax(m)", "torch.softmax(m, -1)"),
        ("jax.nn.gelu(x)", "torch.nn.functional.gelu(x, approximate='tanh')"),
        ("jax.nn.one_hot(n, 4)", "torch.nn.functional.one_hot(n.long(), 4).float()"),
    ],
    "x[mask]": [("jnp.where(x > 0, x, 0)", "torch.where(x > 0, x, 0)")],
}  # fmt: skip
