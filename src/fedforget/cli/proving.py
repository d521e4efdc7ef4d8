"""The commands ``verify``, ``prove``, ``demo`` and ``doctor``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedforget.algorithm.learn import Progress
from fedforget.cli.app import EXIT_VERIFICATION_FAILED, app
from fedforget.cli.option_groups import grouped
from fedforget.cli.options import EngineOptions, WorkforceOptions
from fedforget.cli.output import Output, pairs, table
from fedforget.disk.lock import RunLock
from fedforget.errors import FedForgetError, InvalidInput, escaped, quoted
from fedforget.plots.picture import check_format
from fedforget.store import hints, run_directory
from fedforget.store.books.tree import PARTS

if TYPE_CHECKING:
    from fedforget.demo.comparison import Comparison
    from fedforget.evidence.case import Proved
    from fedforget.evidence.replay import Verification
    from fedforget.store.run_directory import OpenRun

_MANY_STEPS = 10**7  # local steps from which ``verify`` states its cost first


class VerificationFailed(FedForgetError):
    code = "verification-failed"
    exit_code = EXIT_VERIFICATION_FAILED


@app.command(short_help="Replay a run and compare every byte.")
@grouped
def verify(
    run: Annotated[Path, typer.Argument(help="The run to check.")],
    *,
    how: EngineOptions,
    output: Output,
) -> None:
    """Derive all draws again, replay from round 0 on the remaining data, and compare every byte."""
    from fedforget.builtin import engine_of  # noqa: PLC0415 (torch)
    from fedforget.evidence import replay  # noqa: PLC0415

    with run_directory.reading(run, skip_seed_check=True) as opened:
        if opened.is_remote or how.workforce().superlink is not None:
            opened.require_reached(how.workforce().superlink)
            _show_verification(run, _verified_by_clients(opened, how, output), output)
            return
        engine = engine_of(
            opened,
            how.workforce(),
            data_dir=how.data_dir,
            instead=lambda: f"check it with {hints.verify(run)}",
        )
        _announce_cost(opened, output)
        with _progress_of_verification(output, opened.server.rounds_done) as (on_round, on_book):
            found = replay.verify(opened, engine, on_round, on_book)
    _show_verification(run, found, output)


def _verified_by_clients(run: OpenRun, how: EngineOptions, output: Output) -> Verification:
    """Have the clients of a deployment replay their parts."""
    from fedforget.builtin import remote_engine_of  # noqa: PLC0415 (torch)
    from fedforget.evidence.remote_replay import rounds_of_clients, verify_remote  # noqa: PLC0415
    from fedforget.session.reaching import deployed_wire, replaying  # noqa: PLC0415

    engine = remote_engine_of(run, data_dir=how.data_dir)
    with (
        engine.computing(),
        replaying(run, deployed_wire(how.workforce()), rounds_of_clients(run)) as federation,
        output.progress("replaying", run.server.rounds_done) as advance,
    ):
        return verify_remote(run, federation, engine.aggregator(), advance)


def _show_verification(run: Path, found: Verification, output: Output) -> None:
    facts = found.as_dict()
    shown = {key: value for key, value in facts.items() if key != "problems"}
    if found.draws_ok is None:
        shown["draws_ok"] = "not checked"
    output.emit(facts, lambda: pairs(shown))
    if not found.ok:
        raise VerificationFailed(
            f"{run} is not ok: {'; '.join(found.problems)}",
            hint=f"don't use its model: `fedforget doctor {run}` says what can be rebuilt; "
            "restore the rest from a backup",
        )
    for problem in found.problems:
        output.say(f"note: {escaped(problem)}")


@contextlib.contextmanager
def _progress_of_verification(output: Output, rounds: int) -> Iterator[tuple[Progress, Progress]]:
    """Show the progress of reading the clients' books, then of replaying rounds."""
    with contextlib.ExitStack() as shown:
        books = shown.enter_context(output.progress("reading the clients' books", PARTS, "file"))
        replayed: Progress | None = None

        def on_round(done: int) -> None:
            if replayed is not None:
                replayed(done)

        def on_book(done: int) -> None:
            nonlocal replayed
            books(done)
            if done == PARTS:
                shown.close()
                replayed = shown.enter_context(output.progress("replaying", rounds))

        yield on_round, on_book


def _announce_cost(opened: OpenRun, output: Output) -> None:
    """State the cost of a long replay before it begins: a hostile run may claim more rounds than can be trained."""
    plan, done = opened.file.plan, opened.server.rounds_done
    steps = done * plan.clients_per_round * plan.local_steps
    if steps >= _MANY_STEPS:
        output.announce(f"replaying {done:,} rounds: up to {steps:,} local steps, as the run says; Ctrl-C ends it")


@app.command(short_help="Enumerate tiny worlds: laws are exact.")
@grouped
def prove(
    only: Annotated[str | None, typer.Option(help="Run only the worlds whose name contains this.")] = None,
    *,
    output: Output,
) -> None:
    """Enumerate tiny worlds completely: the law after forgetting equals the textbook's, total variation exactly 0."""
    from fedforget.evidence.worlds import prove_all  # noqa: PLC0415

    with output.progress("enumerating", None, unit="order") as advance:
        results = prove_all(only, advance)
    if not results:
        raise InvalidInput(f"no world's name contains {quoted(only)}", hint="`fedforget prove` lists the worlds")
    rows = [
        (r.name, r.K, r.b, r.E, r.R, r.orders, str(r.total_variation), str(r.change_probability), r.least_change)
        for r in results
    ]
    ok = all(r.exact and r.optimal is not False for r in results)
    output.emit(
        {"ok": ok, "worlds": [r.as_dict() for r in results]},
        lambda: (
            table(("world", "K", "b", "E", "R", "orders", "total variation", "P(change)", "least possible"), rows)
            + f"\n\n{len(results)} worlds ({sum(r.processor for r in results)} through the processor of requests), "
            + f"{sum(r.orders for r in results)} orders of priorities: "
            + _verdict(results)
        ),
    )
    if not ok:
        raise VerificationFailed(_verdict(results), hint="report this: exactness is broken")


def _verdict(results: Sequence[Proved]) -> str:
    wrong = [r.name for r in results if not r.exact]
    if wrong:
        return f"{len(wrong)} laws are NOT EXACT: {', '.join(wrong)}"
    bounded = [r for r in results if r.optimal is not None]
    often = [r.name for r in bounded if not r.optimal]
    if often:
        return f"every law is exact, but state changes more often than it must: {', '.join(often)}"
    bound = f"; in {len(bounded)} worlds no exact method changes state less often" if bounded else ""
    rest = " (the others have no such bound: requests at several times, or additions)" if bounded != results else ""
    return f"every law is exact{bound}{rest}"


@app.command(short_help="Train, forget four times, compare digests.")
@grouped
def demo(
    out: Annotated[Path | None, typer.Option(help="Keep both runs in this directory.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Plot the events to this file (.png, .svg, .pdf).")] = None,
    seed: Annotated[int, typer.Option(help="Seed of both runs.")] = 2024,
    *,
    how: WorkforceOptions,
    output: Output,
) -> None:
    """Train on digits, forget four times, train again without all of it, and compare the two digests."""
    from fedforget.demo.comparison import run_demo  # noqa: PLC0415 (torch)

    if plot is not None:
        check_format(plot)
    result = run_demo(out, seed, how.workforce(), say=output.announce, progress=output.progress)
    if plot is not None:
        from fedforget.demo.plot import draw_comparison  # noqa: PLC0415 (matplotlib)

        draw_comparison(plot, result)
    output.emit({**result.as_dict(), "plot": None if plot is None else str(plot)}, lambda: _comparison_text(result))
    if plot is not None:
        output.say(f"drawn in {plot}")
    if not result.equal:
        raise VerificationFailed("the two digests differ", hint="report this: exactness is broken")


def _comparison_text(result: Comparison) -> str:
    header = (
        "forgotten", "first use", "recomputed", f"of {result.steps}", "a-priori probability",
        "accuracy before", "after",
    )  # fmt: skip
    rows = [
        (
            c.what,
            "never" if c.first_changed_step is None else f"step {c.first_changed_step}",
            f"{c.recomputed_steps} steps",
            f"{c.recomputed_steps / result.steps:.0%}",
            f"{c.probability:.1%}",
            f"{c.accuracy_before:.3f}",
            f"{c.accuracy_after:.3f}",
        )
        for c in result.chapters
    ]
    every_time = len(result.chapters) * result.steps
    return "\n".join(
        [
            "",
            table(header, rows),
            "",
            f"after forgetting          model {result.unlearned_digest}",
            f"trained without the data  model {result.retrained_digest}",
            f"after forgetting          state {result.unlearned_state}",
            f"trained without the data  state {result.retrained_state}",
            "EQUAL, byte for byte" if result.equal else "DIFFERENT",
            "",
            f"recomputed {result.recomputed_steps} steps in all, where retraining every time takes {every_time}",
            "these requests were chosen by looking at the draws: their receipts are marked model-informed and claim",
            "equality path by path only; the a-priori probabilities hold for requests that do not depend on the draws",
        ]
    )


@app.command(short_help="Check this machine, and a run.")
@grouped
def doctor(
    run: Annotated[Path | None, typer.Argument(help="A run to examine as well.")] = None,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Rebuild lost or torn models by replay, where that gives the same bytes.")
    ] = False,
    *,
    how: EngineOptions,
    output: Output,
) -> None:
    """Check this machine (versions, vectors, repeatable arithmetic) and, if given, every file of a run."""
    from fedforget.health.doctor import examine  # noqa: PLC0415

    if rebuild and run is None:
        raise InvalidInput("there is nothing to rebuild without a run", hint="give its directory as well")
    checks = examine(run)
    facts: dict[str, Any] = {}
    if rebuild and run is not None:
        if any(check.rebuildable for check in checks):
            facts = _rebuilt(run, how, output)
            checks = examine(run)
        else:
            facts = {"rebuilt": [], "not_rebuilt": []}
    bad = [check for check in checks if not check.ok]

    remedies = [f"{check.name}: {check.remedy}" for check in bad]

    def text() -> str:
        lines = [*(f"rebuilt: {what}" for what in facts.get("rebuilt", ())), *facts.get("not_rebuilt", ()), *remedies]
        results = table(("check", "ok", "detail"), [(c.name, c.ok, c.detail) for c in checks])
        return "\n".join([results, *([""] if lines else []), *map(escaped, lines)])  # names of files may be hostile

    output.emit({"ok": not bad, "checks": [check.as_dict() for check in checks], **facts}, text)
    if bad:
        raise VerificationFailed(
            "; ".join(f"{check.name}: {check.detail}" for check in bad),
            hint="; ".join(remedies) if len(bad) > 1 else bad[0].remedy,
        )


def _rebuilt(run: Path, how: EngineOptions, output: Output) -> dict[str, Any]:
    from fedforget.builtin import engine_of  # noqa: PLC0415 (torch)
    from fedforget.evidence.rebuild import rebuild_files  # noqa: PLC0415 (torch)

    with RunLock(run), run_directory.reading(run, only_idle=False) as opened:
        engine = engine_of(
            opened, how.workforce(), instead=lambda: f"rebuild it with {hints.rebuild(run)}", data_dir=how.data_dir
        )
        with output.progress("replaying", None) as advance:
            return rebuild_files(opened, engine, advance).as_dict()
