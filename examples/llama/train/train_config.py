"""What is trained, and how."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import ClassVar

from jaxtyping import Float, Int
from torch import Tensor

import xfunc as xf

from .. import checks, model
from ..model import Routers
from ..model.flops import Extent
from ..model.plan import Plan
from ..model.precision import PRECISIONS, Precision
from ..tune import lora
from ..tune.lora import Adapter, Tune
from . import optimizer
from .optimizer import OPTIMIZERS as OPTIMIZERS

PREFERENCES = {  # and their options
    "dpo": ("dpo_beta",),
    "orpo": ("orpo_weight",),
    "kto": ("dpo_beta", "kto_weights"),
}
SCHEDULES = ("cosine", "linear", "wsd", "constant")


@dataclass(frozen=True)
class Recipe:
    """What is trained, and how.

    Attributes:
        model: the sizes, or a name that stands for them.
        steps: the number of steps.
        plan: how the model is computed.
        precision: dtypes of the weights and the computation. `float32`: everything; `mixed`:
            weights in float32, the model in bfloat16; `stochastic`: everything in bfloat16 except
            the optimizer, whose updates are rounded at random; `bfloat16`: the same, but small
            updates are lost.
        optimizer: the optimizer. `muon` updates the matrices within layers and leaves the rest to
            `adamw`.
        schedule: how the learning rate falls after `warmup` steps. `wsd`: it is stable, and falls
            in the last steps, see `cooldown`; `constant`: it does not fall.
        warmup: steps in which the learning rate rises to `peak_lr`. null: a twentieth of all, and
            at most 2000.
        peak_lr: the highest learning rate.
        floor: the learning rate of the last step, as a fraction of the highest.
        cooldown: the last part of the steps, in which the rate of `wsd` falls.
        beta1: the decay of `adamw`'s running mean of gradients.
        beta2: the decay of its running mean of squared gradients.
        eps: added by `adamw` to the square root of that mean.
        momentum: the decay of `muon`'s running mean of gradients.
        weight_decay: the fraction of a matrix that a step subtracts. It is multiplied by the
            learning rate. Embeddings decay, but no scales of norms or biases.
        clip: the maximum global norm of the gradients.
        router_balance: the weight of experts' load-balancing loss in training.
        router_size: the weight of the loss for large router logits.
        router_bias: the step of the bias in the choice of experts, for routers with sigmoids.
        tune: which weights are trained, and with which adapters.
        preference: the loss of preferred and other answers, see `data.kind`. `dpo`, and `kto` for
            unpaired answers, compare the model with its base; `orpo` needs none.
        dpo_beta: the penalty for moving away from the base, in `dpo` and `kto`.
        orpo_weight: the weight of comparing the two answers, in `orpo`.
        kto_weights: the weights of desirable and of undesirable answers, in `kto`.
        pairs: whether to train on answers that are preferred or not.
        skip_bad: whether to skip steps whose loss or gradient is not finite.
    """

    CHOICES: ClassVar[Mapping[str, Iterable[str]]] = {
        "precision": PRECISIONS,
        "optimizer": OPTIMIZERS,
        "schedule": SCHEDULES,
        "preference": PREFERENCES,
    }
    DERIVED: ClassVar = ("skip_bad", "pairs")  # from other settings of a run

    model: model.Config
    steps: int
    plan: Plan = Plan()
    precision: str = "float32"
    optimizer: str = "adamw"
    schedule: str = "cosine"
    warmup: int | None = None
    peak_lr: float = 5e-3
    floor: float = 0.1
    cooldown: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    momentum: float = 0.95
    weight_decay: float = 0.3
    clip: float = 1.0
    router_balance: float = 0.001
    router_size: float = 0.0
    router_bias: float = 0.0
    tune: Tune = Tune()
    preference: str = "dpo"
    dpo_beta: float = 0.1
    orpo_weight: float = 0.1
    kto_weights: tuple[float, float] = (1.0, 1.0)
    pairs: bool = False
    skip_bad: bool = True

    def __post_init__(self) -> None:
        checks.choices(self)
        checks.at_least(self, 1, "steps")
        checks.above_0(self, "peak_lr", "clip", "eps", "dpo_beta", "orpo_weight")
        if self.router_bias and not self.model.traits.sigmoid_router:
            raise ValueError(
                f"router_bias is {self.router_bias}, but models of the family {self.model.family} "
                "have no bias in the choice of experts: leave it out"
            )
        names = "warmup", "weight_decay", "router_balance", "router_size", "router_bias"
        checks.at_least(self, 0, *names)
        for name, whole in (("floor", "rate"), ("cooldown", "steps")):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(
                    f"{name} is {getattr(self, name)}: use a fraction of the {whole}, from 0 to 1"
                )
        for name in ("beta1", "beta2", "momentum"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: use 0 or more, below 1")
        known = {name for each in OPTIMIZERS.values() for name in each.options}
        others = known - {*OPTIMIZERS[self.optimizer].options}
        usual = {f.name: f.default for f in fields(self)}
        if given := sorted(x for x in others if getattr(self, x) != usual[x]):
            why = f"not an option of the optimizer, {self.optimizer}. Leave it out"
            raise ValueError(f"{', '.join(given)}: {why}")
        others = {x for options in PREFERENCES.values() for x in options}
        for other in sorted(others - {*PREFERENCES[self.preference]}):
            if getattr(self, other) != usual[other]:
                raise ValueError(f"{other}: not for preference {self.preference}. Leave it out")
        if len(self.kto_weights) != 2 or not all(0 <= w < math.inf for w in self.kto_weights):
            raise ValueError(
                f"kto_weights is {list(self.kto_weights)}: use two numbers of 0 or more"
            )
        try:
            lora.forms(self.model, self.tune)
        except ValueError as error:
            raise ValueError(f"tune: {error}") from None

    @property
    def numbers(self) -> Precision:
        """The precision that `precision` names."""
        return PRECISIONS[self.precision]

    @property
    def routers(self) -> Routers:
        """The weights of the router losses."""
        return Routers(self.router_balance, self.router_size)

    @property
    def compared(self) -> bool:
        """Whether the model is compared with its base, in the loss of preferences."""
        return self.pairs and self.preference != "orpo"

    @property
    def has_base(self) -> bool:
        """Whether there are weights that no step changes."""
        roles = xf.tree.leaves(lora.roles(self.model, self.tune))
        return self.compared or set(roles) != {lora.FULL}

    @property
    def extent(self) -> Extent:
        """How much of the model is trained, for `flops`."""
        return Extent(lora.learned_part(self.model, self.tune), self.compared)

    @property
    def rising(self) -> int:
        """The steps in which the learning rate rises."""
        return min(self.steps // 20, 2000) if self.warmup is None else self.warmup

    def check_warmup(self) -> None:
        """Raise an error if the schedule ends, or falls, before its warm-up ends."""
        if self.rising >= self.steps:
            raise ValueError(
                f"warmup is {self.rising} steps of {self.steps}: make it shorter than the run"
            )
        stable = optimizer.stable_until(self.steps, self.cooldown)
        if self.schedule == "wsd" and self.rising > stable:
            raise ValueError(
                f"warmup is {self.rising} steps of {self.steps}, and cooldown is {self.cooldown}, "
                f"so that the rate falls from step {stable} on: make one of them shorter"
            )

    def rate(self, step: Int[Tensor, ""]) -> Float[Tensor, ""]:
        """The learning rate after `step` updates."""
        return optimizer.rate(
            self.schedule,
            step,
            peak=self.peak_lr,
            warmup=self.rising,
            total=self.steps,
            floor=self.floor,
            cooldown=self.cooldown,
        )

    def transformation(self, rate: float | Float[Tensor, ""]) -> xf.optim.GradientTransformation:
        """The optimizer, with a learning rate."""
        made = OPTIMIZERS[self.optimizer]
        decayed = lora.trained(
            model.decayed(self.model), self.model, self.tune, lambda _, yes: Adapter(yes, yes)
        )
        options = {name: getattr(self, name) for name in made.options}
        return made.make(rate, self.weight_decay, decayed, **options)
