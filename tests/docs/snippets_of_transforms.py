"""Snippets for the rows about staging, differentiation, batching and control flow.

See `coming_from_jax.py`.
"""

# ruff: noqa: E501 (a snippet is as long as it is)

from __future__ import annotations

Snippet = str | tuple[str, str]

LOSS = "lambda w, x: jnp.sin(w * x).sum()"
CARRY = "lambda c, y: (c * y + 1.0, jnp.tanh(c))"
CUSTOM_VJP = """
f = jax.custom_vjp(lambda x, y: jnp.sin(x) * y{options})
f.defvjp({rules})
"""
CUSTOM_GRADIENT = """
@jax.custom_gradient
def f(x, y):
    z = jnp.exp(x)
    return z * y, lambda g: (2 * g * z * y, z * g)
"""
CUSTOM_JVP = "f = jax.custom_jvp(lambda x, y: jnp.sin(x) * y)\n"

# The rule computes twice the function, so that one sees which of the two was called.
CUSTOM_VMAP = """
called = []
f = jax.custom_batching.custom_vmap(lambda x, y: jnp.sin(x) * y)
def rule(n, batched, x, y):
    called.append([n, batched])
    return 2 * jnp.sin(x) * y, any(batched)
f.def_vmap(rule)
"""
OF_TREES = """
f = jax.custom_batching.custom_vmap(lambda p, k: {'s': p['a'].sum() * k, 't': (k,)})
def rule(n, batched, p, k):
    return {'s': p['a'].sum(-1) * k + n, 't': (k + 1,)}, {'s': True, 't': (batched[1],)}
f.def_vmap(rule)
"""
WITH_VJP = """
f = jax.custom_vjp(jax.custom_batching.custom_vmap(lambda x, y: jnp.sin(x) * y))
f.def_vmap(lambda n, batched, x, y: (jnp.cos(x) * y, True))
f.defvjp(lambda x, y: (f(x, y), (x, y)), lambda r, g: (jnp.cos(r[0]) * g * r[1], jnp.sin(r[0]) * g))
"""
SEQUENTIAL = "f = jax.custom_batching.sequential_vmap(lambda x, y: jnp.sin(x) * y)\n"

SNIPPETS: dict[str, list[Snippet]] = {
    # -- staging
    "jax.jit": [
        "jax.jit(lambda x, k: x * k)(x, 3)",
        "jax.jit(lambda x, k: x * k, static_argnums=1)(x, 3)",
        "jax.jit(lambda x, *, k: x * k, static_argnames='k')(x, k=3)",
        "jax.jit(lambda x: {'a': x, 'b': (x + 1, None)}, donate_argnums=0)(x * 1)",
    ],
    "f.trace": [
        "jax.jit(lambda x: x * 2).lower(x).compile()(x)",
        "jax.jit(lambda x: x * 2).trace(x).lower().compile()(x)",
    ],
    "jax.eval_shape": [
        "s = jax.eval_shape(lambda x, y: {'a': x @ y, 'b': x.sum()}, m, x)\n"
        "[tuple(t.shape) for t in jax.tree.leaves(s)]",
    ],
    "jax.ShapeDtypeStruct": [
        "s = jax.ShapeDtypeStruct((2, 3), jnp.float32)\n[tuple(s.shape), s.ndim, s.size, len(s)]",
        "jax.ShapeDtypeStruct((2,), jnp.float32) == jax.ShapeDtypeStruct((2,), jnp.float32)",
        "tuple(jax.eval_shape(lambda x: x.T, jax.ShapeDtypeStruct(shape=(2, 3), dtype=jnp.float32)).shape)",
        "s = jax.ShapeDtypeStruct((2, 3), jnp.float32)\ntuple(s.update(shape=(4,)).shape)",
    ],
    "jax.make_jaxpr": [("jax.make_jaxpr(jnp.sin)(x) is not None", "xf.make_hlo(torch.sin)(x) is not None")],
    "jax.disable_jit": [
        "seen = []\nwith jax.disable_jit():\n    jax.jit(lambda x: seen.append(float(x[0])) or x)(x)\nseen",
        "seen = []\nwith jax.disable_jit(False):\n    y = jax.jit(lambda x: x * 2)(x)\ny",
    ],
    "jax.clear_caches": [
        "runs = []\nf = jax.jit(lambda x: runs.append(1) or x)\nf(x), f(x)\njax.clear_caches()\nf(x)\nlen(runs)",
    ],
    "jax.export.export": [
        (
            "jax.export.export(jax.jit(jnp.sin))(x).call(x)",
            "xf.export.deserialize(xf.export.serialize(xf.jit(torch.sin).lower(x)))(x)",
        ),
    ],
    "jax.named_scope": [
        "def f(x):\n    with jax.named_scope('deep'):\n        return x * 2\njax.jit(f)(x)",
        "jax.jit(jax.named_scope('deep')(lambda x: x * 2))(x)",
    ],
    "jax.device_put": ["jax.device_put({'a': x})"],
    "jax.device_get": ["jax.device_get(jax.jit(lambda x: (x, x * 2))(x))"],
    "jax.devices": ["len(jax.devices())"],
    "jax.device_count": ["jax.device_count()"],
    "jax.local_devices": ["len(jax.local_devices())"],
    "jax.local_device_count": ["jax.local_device_count()"],
    "jax.process_count": ["jax.process_count()"],
    "jax.process_index": ["jax.process_index()"],
    "jax.default_backend": ["jax.default_backend()"],
    "jax.block_until_ready": ["jax.block_until_ready((jax.jit(lambda x: x * 2)(x), 3))"],
    "jax.config.update": [("jax.config.update('jax_traceback_filtering', 'auto') is None", "xf.config.hide_library_frames")],
    # -- differentiation
    "jax.grad": [
        f"jax.grad({LOSS})(v, x)",
        f"jax.grad({LOSS}, argnums=(0, 1))(v, x)",
        f"jax.grad({LOSS}, argnums=1)(v, x)",
        f"jax.grad({LOSS}, argnums=-1)(v, x)",
        "jax.grad(lambda w: (jnp.sin(w).sum(), {'mean': w.mean()}), has_aux=True)(x)",
        "jax.grad(lambda p: (p['a'] * p['b'][0]).sum())({'a': x, 'b': [v]})",
        "jax.grad(lambda x, *, k: (x ** k).sum())(x, k=3)",
        "jax.grad(jax.grad(lambda x: x ** 3))(2.0)",
    ],
    "jax.value_and_grad": [
        f"jax.value_and_grad({LOSS})(v, x)",
        f"jax.value_and_grad({LOSS}, argnums=(0, 1))(v, x)",
        "jax.value_and_grad(lambda w: (jnp.sin(w).sum(), {'mean': w.mean()}), has_aux=True)(x)",
    ],
    "jax.vjp": [
        "y, pull = jax.vjp(lambda x, w: jnp.sin(x * w), x, v)\n[y, pull(x)]",
        "y, pull, aux = jax.vjp(lambda x: (jnp.sin(x), x.sum()), x, has_aux=True)\n[y, pull(x), aux]",
        "y, pull = jax.vjp(lambda p: {'a': p['a'] * 2}, {'a': x})\npull({'a': v})",
    ],
    "jax.jvp": [
        "jax.jvp(lambda x, w: jnp.sin(x * w), (x, v), (v, x))",
        "jax.jvp(lambda x: (jnp.sin(x), x.sum()), (x,), (v,), has_aux=True)",
    ],
    "jax.linearize": [
        "y, push = jax.linearize(lambda x, w: jnp.sin(x * w), x, v)\n[y, push(v, x), push(x, x)]",
        "y, push, aux = jax.linearize(lambda x: (jnp.sin(x), x.sum()), x, has_aux=True)\n[y, push(v), aux]",
    ],
    "jax.jacfwd": [
        "jax.jacfwd(lambda x: jnp.sin(x) * x.sum())(x)",
        "jax.jacfwd(lambda x, w: {'a': x * w, 'b': x.sum()}, argnums=(0, 1))(x, v)",
        "jax.jacfwd(lambda x: (x * 2, x.sum()), has_aux=True)(x)",
    ],
    "jax.jacrev": [
        "jax.jacrev(lambda x: jnp.sin(x) * x.sum())(x)",
        "jax.jacrev(lambda x, w: {'a': x * w, 'b': x.sum()}, argnums=(0, 1))(x, v)",
        "jax.jacrev(lambda x: (x * 2, x.sum()), has_aux=True)(x)",
    ],
    "jax.jacobian": ["jax.jacobian(lambda x: jnp.sin(x) * x.sum())(x)"],
    "jax.lax.custom_root": [
        "jax.grad(lambda a: jax.lax.custom_root(lambda y: y * y * y - a, x[0], lambda f, y: jax.lax.fori_loop(0, 30, lambda _, y: y - f(y) / (3 * y * y), y), lambda g, y: y / g(jnp.ones(()))))(3.0)",
        "jax.lax.custom_root(lambda y: 2 * y - x, v, lambda f, y: (y - f(y) / 2, v.sum()), lambda g, y: y / 2, has_aux=True)",
    ],
    "jax.lax.dynamic_slice": [
        *[f"jax.jit(lambda x, i: jax.lax.dynamic_slice(x, (i,), (2,)))(x, {i})" for i in (0, 1, 2, 7, -2)],
        "jax.lax.dynamic_slice(m, (0, 1), (2, 2))",
    ],
    "jax.lax.dynamic_update_slice": [f"jax.jit(lambda x, i: jax.lax.dynamic_update_slice(x, v[:2], (i,)))(x, {i})" for i in (0, 1, 7, -2)],
    "jax.ops.segment_sum": [
        f"jax.ops.segment_{k}(x, jnp.array([1, 1, 0]), num_segments={n})" for k in ("sum", "prod", "max", "min") for n in (2, 3)
    ],
    "jax.lax.ragged_dot": ["jax.lax.ragged_dot(m.T, jnp.stack([m.T @ m, m.T @ m])[:, :2], jnp.array([2, 1]))"],
    "jax.lax.optimization_barrier": ["jax.jit(lambda x: jax.lax.optimization_barrier((x * 2, [v])))(x)"],
    "jax.lax.reduce_precision": ["jax.lax.reduce_precision(x * 1.01, 5, 3)"],
    "jax.hessian": [
        "jax.hessian(lambda x: (jnp.sin(x) * x.sum()).sum())(x)",
        "jax.hessian(lambda x, w: (x * x * w).sum(), argnums=(0, 1))(x, v)",
        "jax.hessian(lambda p: (p['a'] ** 2 * p['b']).sum())({'a': x, 'b': v})",
    ],
    "jax.linear_transpose": [
        "jax.linear_transpose(lambda x: m @ x, x)(jnp.array([1.0, 2.0]))",
        "jax.linear_transpose(lambda a, b: 2 * a + b, x, v)(x)",
        "jax.linear_transpose(lambda x: m @ x, jax.ShapeDtypeStruct((3,), jnp.float32))(jnp.array([1.0, 2.0]))",
    ],
    "jax.lax.custom_linear_solve": [
        "jax.lax.custom_linear_solve(lambda y: 2 * y, x, lambda mv, b: b / 2)",
        "jax.grad(lambda s: jax.lax.custom_linear_solve(lambda y: s * y, x, lambda mv, b: b / s, symmetric=True).sum())(v)",
        "jax.grad(lambda s: jax.lax.custom_linear_solve(lambda y: s * y, x, lambda mv, b: (b / s, b), transpose_solve=lambda mv, b: (b / s, b), has_aux=True)[0].sum())(v)",
    ],
    "jax.fwd_and_bwd": [
        "fwd, bwd = jax.fwd_and_bwd(lambda a, b: a * a * b, 1)\nout, res = fwd(x, v)\nout, bwd(res, x)",
        "fwd, bwd = jax.fwd_and_bwd(lambda a, b: (a * a * b, b), (0, 1), has_aux=True)\nout, res, aux = fwd(x, v)\nout, aux, bwd(res, x)",
    ],
    "jax.closure_convert": [
        "f, consts = jax.closure_convert(lambda x: x * 2.0, x)\nf(v, *consts)",
        "g = lambda w: jax.closure_convert(lambda y: (y * w).sum(), x)\n"
        "def outer(w):\n    f, consts = g(w)\n    return f(x, *consts)\njax.grad(outer)(v)",
    ],
    "jax.flatten_util.ravel_pytree": [
        "flat, unravel = jax.flatten_util.ravel_pytree({'b': x, 'a': [m, 2.0]})\n[flat, unravel(flat * 2)]",
        "jax.flatten_util.ravel_pytree({})[0].shape[0]",
    ],
    "jax.custom_vjp": [
        CUSTOM_VJP.format(options="", rules="lambda x, y: (jnp.sin(x) * y, (x, y)), lambda r, g: (2 * g, r[0] * g)")
        + "jax.grad(lambda x, y: f(x, y).sum(), argnums=(0, 1))(x, v)",
        CUSTOM_VJP.format(options=", nondiff_argnums=(1,)", rules="lambda x, y: (jnp.sin(x) * y, x), lambda y, r, g: (y * g + r,)")
        + "jax.grad(lambda x: f(x, 3.0).sum())(x)",
        CUSTOM_VJP.format(options=", nondiff_argnames=('y',)", rules="lambda x, y: (jnp.sin(x) * y, x), lambda y, r, g: (y * g + r,)")
        + "jax.grad(lambda x: f(x, 3.0).sum())(x)",
        CUSTOM_VJP.format(options="", rules="lambda x, y: (jnp.sin(x) * y, (x, y)), lambda r, g: (2 * g, None)")
        + "jax.grad(lambda x, y: f(x, y).sum(), argnums=(0, 1))(x, v)",
    ],
    "jax.custom_gradient": [
        CUSTOM_GRADIENT + "[f(x, v), jax.grad(lambda x, y: f(x, y).sum(), argnums=(0, 1))(x, v)]",
        CUSTOM_GRADIENT + "jax.grad(lambda x: jax.grad(lambda x: f(x, v).sum())(x).sum())(x)",
        CUSTOM_GRADIENT + "jax.vmap(jax.grad(f), in_axes=(0, None))(x, 2.0)",
        "f = jax.custom_gradient(lambda p: (p['a'].sum(), lambda g: ({'a': p['a'] * g},)))\njax.grad(f)({'a': x})",
        "jax.grad(jax.custom_gradient(lambda x: (x.sum(), lambda g: g * x)))(x)",
    ],
    "jax.custom_jvp": [
        CUSTOM_JVP + "f.defjvp(lambda p, t: (f(*p), 3 * t[0] + t[1]))\n"
        "[jax.jvp(f, (x, v), (v, x)), jax.grad(lambda x: f(x, v).sum())(x)]",
        CUSTOM_JVP + "f.defjvps(lambda t, out, x, y: 2 * t * out, None)\n"
        "[jax.jvp(f, (x, v), (v, x)), jax.grad(lambda x: f(x, v).sum())(x)]",
        "f = jax.custom_jvp(lambda k, x: x ** k, nondiff_argnums=(0,))\n"
        "f.defjvp(lambda k, p, t: (f(k, *p), k * 10 * t[0]))\njax.jvp(lambda x: f(3, x), (x,), (v,))",
        "f = jax.custom_jvp(lambda x, k: x ** k, nondiff_argnames=('k',))\n"
        "f.defjvp(lambda k, p, t: (f(*p, k), k * 10 * t[0]))\njax.jvp(lambda x: f(x, 3), (x,), (v,))",
    ],
    "jax.custom_batching.custom_vmap": [
        CUSTOM_VMAP + "[f(x, v), f(x, y=v), jax.jit(f)(x, v), called]",
        CUSTOM_VMAP + "[jax.vmap(f)(x, v), called]",
        CUSTOM_VMAP + "[jax.vmap(f, (1, None), 1)(m, v[:2]), called]",
        CUSTOM_VMAP + "[jax.vmap(jax.vmap(f, (None, 0)), (0, None))(x, v), called[:1]]",
        CUSTOM_VMAP + "jax.vmap(lambda x: jax.vmap(f)(x, v))(m)",
        CUSTOM_VMAP + "jax.vmap(jax.jit(lambda x: f(x, x) + f(v, v)))(x)",
        CUSTOM_VMAP + "jax.vmap(lambda x: jax.lax.scan(lambda c, y: (f(c, y), c), x, v))(x)",
        CUSTOM_VMAP + "jax.vmap(lambda x: jax.lax.cond(x > 0, lambda x: f(x, x), lambda x: x, x))(x)",
        CUSTOM_VMAP + "jax.vmap(lambda x: jax.lax.while_loop(lambda c: abs(c) < 5, lambda c: f(c, c) + 3, x))(x)",
        CUSTOM_VMAP + "jax.vmap(lambda x: jax.lax.map(lambda y: f(x, y), v))(x)",
        CUSTOM_VMAP + "jax.jvp(f, (x, v), (v, x))",
        CUSTOM_VMAP + "jax.vmap(lambda x, y: jax.jvp(f, (x, y), (y, x)))(x, v)",
        CUSTOM_VMAP + "jax.vmap(lambda x, y: jax.jvp(f, (x, y), (1.0, 1.0))[1])(x, v)",
        CUSTOM_VMAP + "jax.vmap(lambda t: jax.jvp(f, (x, v), (t, t))[1])(m)",
        CUSTOM_VMAP + "jax.jacfwd(f, argnums=(0, 1))(x, v)",
        CUSTOM_VMAP + "jax.jacfwd(lambda x: jax.vmap(f)(x, v))(x)",
        CUSTOM_VMAP + "jax.grad(lambda x: jax.vmap(f)(x, v).sum())(x)",
        CUSTOM_VMAP + "jax.hessian(lambda x: jax.vmap(f)(x, v).sum())(x)",
        CUSTOM_VMAP + "jax.grad(lambda x: jax.checkpoint(lambda x: jax.vmap(f)(x, v).sum())(x))(x)",
        CUSTOM_VMAP + "jax.grad(lambda x: jax.vmap(lambda x: jax.lax.scan(lambda c, y: (f(c, y), c), x, v))(x)[0].sum())(x)",
        OF_TREES + "[f({'a': x}, v[0]), jax.vmap(f, ({'a': 0}, None), {'s': 0, 't': None})({'a': m}, v[0])]",
        OF_TREES + "jax.vmap(f)({'a': m}, x[:2])",
        WITH_VJP + "[f(x, v), jax.vmap(f)(x, v), jax.grad(lambda x: f(x, v).sum())(x), jax.vmap(jax.grad(f))(x, v)]",
    ],
    "jax.custom_batching.sequential_vmap": [
        SEQUENTIAL + "[f(x, v), jax.vmap(f)(x, v), jax.vmap(f, (0, None), 1)(m, x)]",
        SEQUENTIAL + "jax.vmap(jax.vmap(f, (None, 0)), (0, None))(x, v)",
        SEQUENTIAL + "jax.vmap(lambda x, y: jax.jvp(f, (x, y), (y, x)))(x, v)",
    ],
    "jax.lax.stop_gradient": ["jax.grad(lambda x: (x * jax.lax.stop_gradient(x)).sum())(x)", "jax.lax.stop_gradient({'a': x, 'b': 2.0})"],
    "jax.checkpoint": [
        "jax.grad(lambda x: jax.checkpoint(lambda x: jnp.sin(jnp.sin(x)))(x).sum())(x)",
        "jax.grad(lambda x: jax.remat(lambda x, k: jnp.sin(x * k), static_argnums=1)(x, 2).sum())(x)",
    ],
    "jax.checkpoint_policies": [
        (
            "p = jax.checkpoint_policies.dots_saveable\njax.grad(lambda x: jax.checkpoint(lambda x: jnp.sin(m @ x), policy=p)(x).sum())(x)",
            "p = xf.checkpoint_policies.dots_saveable\nxf.grad(lambda x: xf.checkpoint(lambda x: torch.sin(m @ x), policy=p)(x).sum())(x)",
        ),
    ],
    "jax.ad_checkpoint.checkpoint_name": [
        (
            "p = jax.checkpoint_policies.save_only_these_names('a')\n"
            "f = jax.checkpoint(lambda x: jnp.sin(jax.ad_checkpoint.checkpoint_name(x * x, 'a')), policy=p)\njax.grad(lambda x: f(x).sum())(x)",
            "p = xf.checkpoint_policies.save_only_these_names('a')\n"
            "f = xf.checkpoint(lambda x: torch.sin(xf.checkpoint_name(x * x, 'a')), policy=p)\nxf.grad(lambda x: f(x).sum())(x)",
        ),
        "jax.ad_checkpoint.checkpoint_name({'a': x, 'b': (v,)}, 'a')",
    ],
    "jax.ad_checkpoint.print_saved_residuals": [
        (
            "import io, contextlib\nout = io.StringIO()\nwith contextlib.redirect_stdout(out):\n"
            "    jax.ad_checkpoint.print_saved_residuals(lambda x: jnp.sin(x).sum(), x)\nbool(out.getvalue())",
            "bool(str(xf.memory_report(lambda x: torch.sin(x).sum(), x)))",
        ),
    ],
    # -- batching and control flow
    "jax.vmap": [
        "jax.vmap(lambda a, b: a @ b, in_axes=(0, None))(m, x)",
        "jax.vmap(lambda a, b: a * b, in_axes=(1, 0), out_axes=1)(m, x)",
        "jax.vmap(lambda p: p['a'] * p['b'], in_axes=({'a': 0, 'b': None},))({'a': x, 'b': 2.0})",
        "jax.vmap(lambda a: (a, a.sum()), out_axes=(1, 0))(m)",
        "jax.vmap(lambda x: 3.0, axis_size=2, in_axes=None)(x)",
        "jax.vmap(lambda a: a - jax.lax.pmean(a, 'i'), axis_name='i')(m)",
        "mesh = jax.make_mesh((1,), ('i',))\nf = lambda a: jax.lax.with_sharding_constraint(a * 2, jax.sharding.NamedSharding(mesh, jax.P()))\n"
        "jax.vmap(f, spmd_axis_name='i')(m)",
    ],
    "jax.lax.scan": [
        f"jax.lax.scan({CARRY}, 1.0, x)",
        f"jax.lax.scan({CARRY}, 1.0, x, reverse=True)",
        "jax.lax.scan(lambda c, _: (c * 2, None), x, None, length=3)",
        "jax.lax.scan(lambda c, y: ({'s': c['s'] + y[0]}, y[1] * 2), {'s': 0.0}, (x, v), unroll=2)",
        "jax.grad(lambda w: jax.lax.scan(lambda c, y: (c * w + y, c), 1.0, x)[0])(0.5)",
    ],
    "jax.lax.map": ["jax.lax.map(lambda a: (a.sum(), a * 2), m)", "jax.lax.map(jnp.sin, x, batch_size=2)"],
    "jax.lax.while_loop": [
        "jax.lax.while_loop(lambda c: c[0] < 4, lambda c: (c[0] + 1, c[1] * 2), (0, x))",
        "jax.lax.while_loop(cond_fun=lambda c: c.sum() < 9, body_fun=lambda c: c + 1, init_val=x)",
        "jax.jvp(lambda x: jax.lax.while_loop(lambda c: c.sum() < 9, lambda c: c * 2, x), (x,), (v,))",
    ],
    "jax.lax.fori_loop": [
        "jax.lax.fori_loop(0, 4, lambda i, c: c * 2 + i, x)",
        "jax.lax.fori_loop(lower=1, upper=3, body_fun=lambda i, c: c * i, init_val=x, unroll=2)",
        "jax.lax.fori_loop(3, 1, lambda i, c: c * 2, x)",
        "jax.jit(lambda k: jax.lax.fori_loop(0, k, lambda i, c: c * 2, x))(3)",
        "jax.grad(lambda x: jax.lax.fori_loop(0, 3, lambda i, c: c * c, x).sum())(x)",
    ],
    "jax.lax.cond": [
        "[jax.lax.cond(p, lambda a: a + 1, lambda a: a * 2, x) for p in (True, False)]",
        "jax.lax.cond(x.sum() > 0, lambda: x, lambda: v)",
        "jax.grad(lambda x: jax.lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x).sum())(x)",
        "jax.vmap(lambda a: jax.lax.cond(a > 0, jnp.sin, jnp.cos, a))(x)",
    ],
    "jax.lax.switch": [
        "[jax.lax.switch(i, [jnp.sin, jnp.cos, jnp.tanh], x) for i in (0, 1, 2, -3, 7)]",
        "jax.vmap(lambda i: jax.lax.switch(i, [lambda: 1.0, lambda: 2.0]))(n)",
    ],
    "jax.lax.associative_scan": [
        "jax.lax.associative_scan(lambda a, b: a * b, x)",
        "jax.lax.associative_scan(lambda a, b: a + b, m, reverse=True, axis=1)",
        "jax.lax.associative_scan(fn=lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), elems=(x, v))",
    ],
    "jax.numpy.vectorize": [
        "jax.numpy.vectorize(lambda a, b: a @ b, signature='(k),(k)->()')(m, x)",
        "jax.numpy.vectorize(lambda a, b: a * 2 + b)(m, x)",
        "jax.numpy.vectorize(lambda a, k: a * k, excluded={1})(x, 3)",
    ],
    "x.at[i].set(v)": [
        (f"x.at[1].{op}", f"xf.at(x)[1].{op}")
        for op in ("set(9.0)", "add(1.0)", "mul(3.0)", "divide(2.0)", "power(2)", "min(-3.0)", "max(3.0)", "get()")
    ],
}  # fmt: skip
