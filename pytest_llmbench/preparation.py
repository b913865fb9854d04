"""What one run promises before its first request: the card against this machine, what it goes on with, and the contract."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pytest_llmbench import contract as contracts
from pytest_llmbench import machine, plan, promises, prompts, resume, sameness
from pytest_llmbench.engine import from_card
from pytest_llmbench.engine import log as engine_log
from pytest_llmbench.engine.command import Arguments
from pytest_llmbench.errors import InputError, LlmbenchError, PromiseBrokenError, ServerError
from pytest_llmbench.files import write_json
from pytest_llmbench.going_on import GoingOn
from pytest_llmbench.history import saved
from pytest_llmbench.journal import plain
from pytest_llmbench.measure import PARTS, request
from pytest_llmbench.runner import RetryPolicy, why_again

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from pytest_llmbench.card import SetupCard
    from pytest_llmbench.engine import RunningServer
    from pytest_llmbench.journal import Journal
    from pytest_llmbench.records import CellSpec
    from pytest_llmbench.servers import Changes, Live
    from pytest_llmbench.wishes import Wishes


class Preparation:
    """One run's promise, as far as it is known.

    cells: what is promised; contract: the same with the rest, complete once it is ``fixed``. environment: what this machine
    and the setup are, for the documents. key: what makes figures comparable. gpus: UUIDs of those that the card names.
    going_on: the earlier run that this one goes on with. saved: the saved session that it is compared with. impossible:
    why of the cells whose depth cannot hold their own task. leaves_nothing: the call was wrong, and there is to be no folder.
    """

    def __init__(
        self,
        card: SetupCard,
        *,
        cells: Sequence[CellSpec],
        left_out: Sequence[tuple[str, str]],
        folder: Path,
        wishes: Wishes,
        phase: Callable[[str], None],
    ) -> None:
        self.card, self.folder, self.wishes = card, folder, wishes
        self.cells = tuple(cells)
        self.contract = contracts.Contract(card.id, self.cells, tuple(left_out), (), {})
        self.environment: dict[str, Any] = {}
        self.key: dict[str, Any] = {}
        self.gpus: list[str] = []
        self.going_on: GoingOn | None = None
        self.saved: dict[str, Any] | None = None
        self.impossible: dict[str, str] = {}
        self.fixed = False
        self.leaves_nothing = False
        self._phase = phase
        self._setup: from_card.Setup | None = None

    def check(self) -> from_card.Setup:
        """Hold the card beside this machine and its files, once; no server is started. Raises LlmbenchError."""
        if self._setup is not None:
            return self._setup
        self._phase("checking the card against this machine")
        here = machine.detect()
        self.environment |= {"machine": here.to_json(), "software": machine.software()}
        pairs = promises.require_gpus(self.card.hardware, here)
        self.gpus = [gpu.uuid for _, gpu in pairs if gpu.uuid]
        self.environment["differs_from_card"] = promises.differences(self.card.hardware, here, pairs)
        self.environment["gpus_not_verified"] = promises.unverified(self.card.hardware)
        setup = from_card.resolve(
            self.card,
            variables=self.wishes.variables,
            model=self.wishes.model,
            ready_timeout_s=self.wishes.ready_timeout_s,
            phase=self._phase,
        )
        self.environment |= {"engine": setup.engine_facts, "model": setup.model_facts}
        self.key = {
            "card_id": self.card.id,
            "card": self._identity(setup),
            "machine": sameness.host(here.host_id, here.cpu, here.gpus),
        }
        if self.wishes.compare is not None:
            with self.nothing_left():
                self.saved = saved.load(self.wishes.storage, self.wishes.compare.name, self.card.id)
                saved.refuse_other(self.saved, self.key)
        self._setup = setup
        return setup

    def go_on(self) -> None:
        """Read the earlier run that the caller names, refuse one of another setup, and promise its cells too."""
        wish = self.wishes.go_on
        if wish is None:
            return
        setup = self.check()
        with self.nothing_left():
            earlier = resume.read(resume.find(self.wishes.storage, self.card.id, wish))
            resume.refuse_other(earlier, self._sameness(), wish)
            taken = resume.choose(earlier, self.cells, wish, lambda spec, last: why_again(spec, last)[0] is None)
        self.going_on = GoingOn(wish, earlier, taken, self.cells, [spec.id for spec in plan.cells(self.card)])
        self.cells = self.going_on.cells
        promised = {spec.id for spec in self.cells}
        left_out = tuple((cell, why) for cell, why in self.contract.left_out if cell not in promised)
        self.contract = contracts.Contract(self.card.id, self.cells, left_out, (), {})
        self.key["card"] = self._identity(setup)

    @contextmanager
    def nothing_left(self) -> Iterator[None]:
        """A wrong call, found out late: it leaves no folder, for nothing was promised."""
        try:
            yield
        except InputError:
            self.leaves_nothing = True
            raise

    async def fix(
        self,
        live: Live | None,
        texts: request.PromptBook,
        journal: Journal,
        against: Mapping[str, Any] | None,
        gate: Any,
    ) -> None:
        """Write the contract: prompts are built now, so that their hashes stand in it before the first request.

        Not those of parts with servers of their own: their size follows from what the server says (live is None where
        there are only such parts). against: the terms of a direct comparison; gate: those of the gate.
        """
        promised = []
        for number, spec in enumerate(self.cells, 1):
            if PARTS[spec.part].cold or live is None:
                continue
            self._phase(f"building prompts: {spec.id} ({number} of {len(self.cells)})")
            try:
                for run in range(1, spec.runs + 1):
                    for nth in range(spec.requests_per_run):
                        prompt = await texts(spec, run, 1, nth, live.client)
                        promised.append(contracts.PromisedPrompt(spec.id, run, nth, prompt))
            except ServerError:
                raise
            except LlmbenchError as exc:  # a depth that cannot hold its own task: no other cell's business
                self.impossible[spec.id] = str(exc)
        terms = self._terms(live, against, gate)
        self.contract = contracts.Contract(self.card.id, self.cells, self.contract.left_out, tuple(promised), terms)
        self.fixed = True
        write_json(self.folder / "contract.json", self.contract.to_json())
        journal.event("contract", file="contract.json", sha256=self.contract.to_json()["sha256"])

    def verify(self, server: RunningServer, changes: Changes) -> None:
        """Hold what a started server says of itself beside the card. Raises PromiseBrokenError."""
        from_card.verify(changed(self.card, changes), server)
        if self.card.hardware.gpus and engine_log.read(server.log_path).no_usable_gpu:
            raise PromiseBrokenError(
                "hardware.gpus",
                ", ".join(gpu.name for gpu in self.card.hardware.gpus),
                "a server that runs on the CPU: its log says 'no usable GPU found'",
                "take an engine build with the GPU's backend, and see that its driver and libraries are found",
            )

    def _identity(self, setup: from_card.Setup) -> dict[str, Any]:
        """What makes numbers comparable; of the plan only the cells that this session promises."""
        facts = {"model": setup.model_facts, "draft_model": setup.model_facts.get("draft_model")}
        weights = {name: {"sha256": one["sha256"]} for name, one in facts.items() if one is not None}
        return sameness.identity(self.card, self.cells, weights)

    def _sameness(self) -> dict[str, Any]:
        """What two sessions must share before their numbers may stand in one document."""
        engine = self.environment["engine"]
        known = {name: engine.get(name) for name in ("kind", "version", "sha256", "libraries_sha256")}
        return sameness.terms(self.card, self.cells, self.key, known)

    def _terms(self, live: Live | None, against: Mapping[str, Any] | None, gate: Any) -> dict[str, Any]:
        compare = self.wishes.compare
        return self._sameness() | {
            "probe": self.wishes.probe,
            "canary": self.wishes.canary.words if self.wishes.canary else None,
            "plan_changes": dict(self.wishes.plan_changes),
            "continues": self.going_on.to_json() if self.going_on else None,
            "against": plain(against) if against else None,
            "tool": self.environment["software"],
            "prompts_version": prompts.PROMPTS_VERSION,
            "card_content": self.card.as_json(),
            "observer": {
                "request_fields": request.OBSERVER_FIELDS,
                "server_command": list(live.server.observer_changes) if live else "said with each server start",
            },
            "server_changes": {spec.id: changes for spec in self.cells if (changes := PARTS[spec.part].changes(spec))},
            "retries": plain(RetryPolicy()),
            "watch": self.environment["watch"],
            "gate": gate,
            "compare": None
            if compare is None
            else {"name": compare.name, "tolerance": compare.tolerance, "tolerances": dict(compare.tolerances)},
        }


def changed(card: SetupCard, changes: Changes, *, known: bool = False) -> SetupCard:
    """The card as a server with other arguments is verified: by what is not changed, unless the change is known."""
    args = Arguments(card.server.args)
    for flag, value in changes:
        args = args.set(flag, value if known else "0")
    return card.model_copy(update={"server": card.server.model_copy(update={"args": args.tokens})}) if changes else card
