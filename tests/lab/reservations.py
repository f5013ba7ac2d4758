"""Persistent reservations of one logical unit as SPC-4 §5.12 describes them: a state, what each service action makes of it, and who may read
and write in it. An opinion of its own, which a target is compared with."""

from dataclasses import dataclass, field, replace

REGISTER, RESERVE, RELEASE, CLEAR, PREEMPT, PREEMPT_AND_ABORT, REGISTER_AND_IGNORE = range(7)
NAMES = ["REGISTER", "RESERVE", "RELEASE", "CLEAR", "PREEMPT", "PREEMPT AND ABORT", "REGISTER AND IGNORE EXISTING KEY"]
WRITE_EXCLUSIVE, EXCLUSIVE_ACCESS, WRITE_REGISTRANTS, ACCESS_REGISTRANTS, WRITE_ALL, ACCESS_ALL = TYPES = (1, 3, 5, 6, 7, 8)
ALL = (WRITE_ALL, ACCESS_ALL)
GOOD, CONFLICT, ILLEGAL = "good", "conflict", "illegal"


@dataclass
class State:
    """`keys`: of each registered I_T nexus. `holder`: a nexus; of a reservation for all registrants, nobody's. `kind`: 0, none."""

    keys: dict = field(default_factory=dict)
    kind: int = 0
    holder: object = None
    generation: int = 0

    def holds(self, nexus):
        return self.kind != 0 and (nexus in self.keys if self.kind in ALL else nexus == self.holder)

    def after(self, nexus, action, key=0, new=0, kind=WRITE_EXCLUSIVE):
        """What PERSISTENT RESERVE OUT ends as, and the state after it. `new`: SERVICE ACTION RESERVATION KEY."""
        mine = self.keys.get(nexus)
        if action not in (REGISTER_AND_IGNORE, REGISTER) and (mine is None or mine != key) or action == REGISTER and (mine or 0) != key:
            return CONFLICT, self
        return [self.register, self.reserve, self.release, self.clear, self.preempt, self.preempt, self.register][action](nexus, new, kind)

    def counted(self, **changed):
        return GOOD, replace(self, generation=self.generation + 1, **changed)

    def register(self, nexus, new, _kind):
        if new:
            return self.counted(keys={**self.keys, nexus: new})
        return self.counted(**self.without([nexus])) if nexus in self.keys else (GOOD, self)

    def without(self, gone):
        """What is left of the registrations, and of a reservation that one of these holds."""
        keys = {nexus: key for nexus, key in self.keys.items() if nexus not in gone}
        ends = not keys if self.kind in ALL else self.holder in gone
        return {"keys": keys, **({"kind": 0, "holder": None} if ends else {})}

    def reserve(self, nexus, _new, kind):
        if self.kind and not (self.holds(nexus) and kind == self.kind):
            return CONFLICT, self
        return GOOD, replace(self, kind=kind, holder=None if kind in ALL else nexus)

    def release(self, nexus, _new, kind):
        if not self.holds(nexus):
            return GOOD, self
        return (GOOD, replace(self, kind=0, holder=None)) if kind == self.kind else (ILLEGAL, self)

    def clear(self, *_):
        return self.counted(keys={}, kind=0, holder=None)

    def preempt(self, nexus, victim, kind):
        victims = [other for other, key in self.keys.items() if key == victim and other != nexus]
        if self.kind in ALL and victim == 0:
            victims = [other for other in self.keys if other != nexus]
        elif victim == 0:
            return ILLEGAL, self
        elif victim not in self.keys.values():
            return CONFLICT, self
        elif self.kind == 0 or self.kind in ALL or self.keys[self.holder] != victim:
            # The registrations go, and nothing else.
            return self.counted(**self.without(victims + [nexus] * (self.keys[nexus] == victim)))
        left = self.without(victims)["keys"]
        return self.counted(keys=left, kind=kind, holder=None if kind in ALL else nexus)

    def may(self, nexus, write):
        """Whether READ or WRITE is allowed (SPC-4 table 46)."""
        if self.kind == 0 or self.holds(nexus):
            return True
        if self.kind in (WRITE_EXCLUSIVE, EXCLUSIVE_ACCESS):
            return self.kind == WRITE_EXCLUSIVE and not write
        return nexus in self.keys or (self.kind in (WRITE_REGISTRANTS, WRITE_ALL) and not write)

    def told(self):
        """What PERSISTENT RESERVE IN tells: the generation, all keys in order, and the reservation's key and type."""
        of = 0 if self.kind in ALL or not self.kind else self.keys[self.holder]
        return self.generation, sorted(self.keys.values()), (of, self.kind) if self.kind else None
