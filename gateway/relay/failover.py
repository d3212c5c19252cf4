"""Who plays which role in one answer, and who steps in when somebody is lost."""

from collections.abc import Mapping
from types import MappingProxyType

from gateway.fleet.pools import Instance, Pools
from gateway.relay.types import GenerationRequest
from policies.plans import Plan
from policies.types import Rng, Role
from policies.where import Where

NO_RANKS: Mapping[str, int] = MappingProxyType({})


class Failover:
    """The plan's instances first; after a failure, the least loaded other one of the same role and region.

    Staying in the region keeps the KV that has crossed, or that RLD's store has, of use. One that would go on with
    other tokens than the plan's instances, or that mixes up salts, never steps in, nor does one that stands
    where the tenant's prompts may not be.
    ``ranks``: the data-parallel ranks that were chosen with the plan, by instance.
    """

    def __init__(
        self,
        plan: Plan,
        request: GenerationRequest,
        where: Where,
        pools: Pools,
        rng: Rng,
        ranks: Mapping[str, int] = NO_RANKS,
    ) -> None:
        self._pools = pools
        self._model = request.model
        self._is_salted = request.cache_salt is not None
        self._rng = rng
        self._chosen = dict(plan.roles)
        self._where = where
        self._roles = {role: pools[id_].spec.role for role, id_ in self._chosen.items()}
        self._regions = {role: pools[id_].spec.region for role, id_ in self._chosen.items()}
        if Role.P in self._regions:
            self._regions.setdefault(Role.RLD, self._regions[Role.P])
        self._fingerprint = pools[next(iter(self._chosen.values()))].fingerprint
        self._is_shared = len(self._chosen) > 1
        self._failed: set[str] = set()
        self._ranks = dict(ranks)

    def pick(self, role: Role) -> Instance | None:
        """Give the instance for a new leg; None: there is none just now."""
        now_s = self._pools.clock()
        kept = self._chosen.get(role)
        if kept is not None and kept not in self._failed and self._can_go_on(self._pools[kept], now_s):
            return self._pools[kept]
        region, own_role = self._regions.get(role), self._roles.get(role, role)
        candidates = [
            instance
            for instance in self._pools.of_model(self._model)
            if instance.spec.role is own_role
            and instance.spec.id not in self._failed
            and instance.usable(now_s)
            and region in (None, instance.spec.region)
            and self._where.allows(instance.spec.region)
            and instance.fingerprint == self._fingerprint
            and not (self._is_shared and instance.is_apart(now_s))
            and not (self._is_salted and instance.leaks_salts)
        ]
        if not candidates:
            return None
        best = min(candidates, key=lambda instance: (instance.view(now_s).load, self._rng.random()))
        self._chosen[role] = best.spec.id
        self._regions.setdefault(role, best.spec.region)
        return best

    def _can_go_on(self, instance: Instance, now_s: float) -> bool:
        return instance.alive(now_s) and not (self._is_shared and instance.is_apart(now_s))

    def rank_of(self, instance: Instance) -> int | None:
        """The rank that runs this answer's legs on an instance, one for all: the next leg finds its KV there only.

        None: the instance has no ranks to choose from.
        """
        size = instance.data_parallel_size
        if size == 1:
            return None
        rank = self._ranks.get(instance.spec.id)
        if rank is None or rank >= size:
            loads = instance.rank_loads()
            rank = self._ranks[instance.spec.id] = min(range(size), key=lambda one: (loads[one], self._rng.random()))
        return rank

    def lose(self, instance: Instance) -> None:
        """Do not use this instance again until ``forgive``."""
        self._failed.add(instance.spec.id)

    def forgive(self) -> None:
        """A back-off is over: all may be tried again."""
        self._failed.clear()
