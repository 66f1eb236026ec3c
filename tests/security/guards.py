"""Guards of the site, each with a citizen that succeeds where the guard is taken out."""

import contextlib
import importlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

from tests.security.citizens import (
    audits,
    believed_by_id,
    cookies,
    exceptions,
    files,
    grammar,
    impossible_numbers,
    messages,
    neighbours,
    waits,
)
from tests.security.citizens.citizen import Act
from tests.security.one_bad_citizen import CITIZEN

# What is put in place of a guard, made from the guard itself.
Replacement = Callable[[Any], Any]


class Guard(NamedTuple):
    """What protects others, and how the site works without it.

    Where a second guard stands behind the first, both are taken out.
    """

    citizen: Act
    parts: Mapping[str, Replacement]  # by module:name or module:class.name

    @contextlib.contextmanager
    def taken_out(self) -> Iterator[None]:
        """Put the replacements wherever a module has imported the guard."""
        with contextlib.ExitStack() as stack:
            for place, without in self.parts.items():
                module, _, path = place.partition(":")
                owner: Any = importlib.import_module(module)
                *parents, name = path.split(".")
                for parent in parents:
                    owner = getattr(owner, parent)
                guard = vars(owner)[name]
                owners = [owner, *(_modules_with(name, guard) if not parents else ())]
                for each in dict.fromkeys(owners):
                    stack.enter_context(mock.patch.object(each, name, without(guard)))
            yield


def _modules_with(name: str, guard: object) -> list[Any]:
    ours = ("batchjob", "tests.security")
    return [
        module
        for label, module in list(sys.modules.items())
        if label.startswith(ours) and vars(module).get(name) is guard
    ]


def returns(value: object) -> Replacement:
    return lambda _: lambda *_, **__: value


def is_now(value: object) -> Replacement:
    return lambda _: value


def _without_owners(open_file):
    return lambda path, owners=None, writable=False: open_file(path, None, writable)


def _first_value_wins(unique_pairs):
    del unique_pairs
    return lambda pairs, leading=(): dict(reversed(pairs))


def _without_isolation(isolate):
    def work_on_all(items, work, is_common):
        del is_common
        work(items)
        return {}

    del isolate
    return work_on_all


def _raise(error):
    raise error


def _one_owner(listing):
    def of_root(directory):
        return [(path, _owned_by_root(status)) for path, status in listing(directory)]

    return of_root


def _owned_by_root(status):
    names = [name for name in dir(status) if name.startswith("st_")]
    return SimpleNamespace(**{name: getattr(status, name) for name in names} | {"st_uid": 0})


def _without_maximum(has_room):
    def has_room_for_anybody(turns, caller):
        turns._fair_share = 10**6
        return has_room(turns, caller)

    return has_room_for_anybody


_DB, _SERVER = "batchjob_stats_db", "batchjob_stats_server"

GUARDS: Mapping[str, Guard] = {
    "ranges of measured numbers": Guard(
        impossible_numbers.node_reports_impossible_emissions,
        {f"{_DB}.measure.job_usage:_is_possible": returns(True)},
    ),
    "times of records": Guard(
        impossible_numbers.record_of_a_run_of_centuries,
        {
            f"{_DB}.database.gate:_impossible_record": returns(None),
            f"{_DB}.database.gate:_without_bad_values": is_now(lambda record, now: (record, [])),
        },
    ),
    "ranges of numbers in records": Guard(
        impossible_numbers.record_with_numbers_that_no_column_holds,
        {f"{_DB}.database.gate:_without_bad_values": is_now(lambda record, now: (record, []))},
    ),
    "measuring in halves": Guard(
        neighbours.job_that_cannot_be_measured,
        {f"{_DB}.isolation:isolate_failures": _without_isolation},
    ),
    "rows apart": Guard(
        neighbours.line_of_garbage_among_records,
        {"batchjob.schedulers.fields:row_problem": is_now(_raise)},
    ),
    "steps of a cycle apart": Guard(
        neighbours.source_that_fails_in_a_way_nobody_foresaw,
        {f"{_DB}.poller.poller:Poller._run_step": is_now(lambda poller, name, work: work())},
    ),
    "series of allocated nodes only": Guard(
        believed_by_id.node_speaks_of_jobs_of_other_nodes,
        {f"{_DB}.measure.job_usage:foreign_instances": returns(frozenset())},
    ),
    "series of the job's login only": Guard(
        believed_by_id.series_of_another_login_with_the_ids_of_all_jobs,
        {
            f"{_DB}.measure.job_usage:user_labels": lambda labels: (
                lambda job: {*labels(job), CITIZEN}
            )
        },
    ),
    "targets of the scheduler only": Guard(
        believed_by_id.node_speaks_for_the_scheduler,
        {f"{_SERVER}.cluster_readings:_of_scheduler": is_now(iter)},
    ),
    "GPUs by node and UUID": Guard(
        believed_by_id.node_claims_the_gpu_of_another,
        {f"{_SERVER}.curves:without_port": returns("n000")},
    ),
    "runs of the owner of their file": Guard(
        believed_by_id.record_of_another_user_with_the_id_of_a_job,
        {"batchjob.local_runs.record:_check_owner": returns(None)},
    ),
    "deletions by the owner": Guard(
        believed_by_id.deletion_of_the_run_of_another,
        {
            "batchjob.local_runs.accounting:_read_deletion": lambda read: (
                lambda path: read(path)._replace(uid=None)
            )
        },
    ),
    "names once in accounting logs": Guard(
        grammar.account_that_closes_its_quote_in_a_pbs_log,
        {"batchjob.runtime.json_reader:unique_pairs": _first_value_wins},
    ),
    "names once in JSON": Guard(
        grammar.name_twice_in_a_json_record,
        {"batchjob.runtime.json_reader:_ANY": is_now(json.JSONDecoder())},
    ),
    "fields once in requests": Guard(
        grammar.name_twice_in_a_request, {f"{_SERVER}.api.params:_refuse_repeated": returns(None)}
    ),
    "owners of requests to stop": Guard(
        files.request_to_stop_the_run_of_another,
        {"batchjob.runtime.user_files:open_regular_file": _without_owners},
    ),
    "quotas of logs by owner": Guard(
        files.logs_that_take_all_the_room, {"batchjob.local_runs.retention:_list": _one_owner}
    ),
    "sizes by blocks": Guard(
        files.sparse_log_dated_ahead, {"batchjob.local_runs.retention:_BLOCK_BYTES": is_now(10**9)}
    ),
    "lines and seconds of a log": Guard(
        files.log_that_unpacks_for_minutes,
        {
            "batchjob.local_runs.output:_MAX_FOREIGN_LINES": is_now(10**12),
            "batchjob.local_runs.output:Reader.limit_time": returns(None),
            "batchjob.local_runs.output:Reader.seek_to_last": returns(None),
        },
    ),
    "waiting for the store": Guard(
        waits.store_of_time_series_that_hangs,
        {
            f"{_SERVER}.turns:Threads.wait_for_store": is_now(
                lambda _, answers: [each.result() for each in answers]
            )
        },
    ),
    "threads by user": Guard(
        waits.user_whose_requests_take_long,
        {f"{_SERVER}.turns:Turns._has_room": _without_maximum},
    ),
    "threads for files": Guard(
        waits.file_system_that_hangs, {f"{_SERVER}.pages.job:_MAX_FILE_SECONDS": is_now(3600.0)}
    ),
    "waiting for a source": Guard(
        waits.source_whose_file_system_hangs,
        {f"{_DB}.isolation:Patience.each": is_now(lambda _, name, ask: iter(ask()))},
    ),
    "waiting for the database": Guard(
        waits.database_that_accepts_and_says_nothing,
        {f"{_DB}.database.engine:_limit_waiting": returns(None)},
    ),
    "time of a scrape": Guard(
        waits.scrape_that_may_wait_for_an_hour,
        {"batchjob_exporter.web.site:_seconds_left": returns(3600.0)},
    ),
    "opaque sessions": Guard(
        cookies.port_that_sends_the_cookie_as_a_token,
        {f"{_SERVER}.auth.browser_session:seal": is_now(lambda token, connection: token)},
    ),
    "owner of the browser's socket": Guard(
        cookies.program_of_another_user_with_the_cookie,
        {f"{_SERVER}.auth.browser_session:is_from_own_user": returns(True)},
    ),
    "origins of forms": Guard(
        cookies.page_of_another_site_that_sends_a_form,
        {f"{_SERVER}.auth.peers:find_problem": returns(None)},
    ),
    "one cookie": Guard(
        cookies.port_that_sets_a_second_cookie,
        {
            f"{_SERVER}.auth.browser_session:session_cookie": is_now(
                lambda request: request.cookies.get("batchjob-80", "")
            )
        },
    ),
    "forms only for sessions": Guard(
        cookies.session_that_changes_through_the_api,
        {f"{_SERVER}.auth.identity:FORM_PATHS": is_now(("/",))},
    ),
    "tokens end with the process": Guard(
        cookies.token_that_outlives_the_process_that_made_it,
        {f"{_SERVER}.auth.identity:_token_maker": returns(None)},
    ),
    "depth of JSON": Guard(
        exceptions.answer_of_the_store_nested_too_deeply,
        {
            "batchjob.runtime.json_reader:parse_json": is_now(
                lambda data, *_, **__: json.loads(data)
            )
        },
    ),
    "signed links": Guard(
        messages.link_that_ends_the_messages_of_another,
        {f"{_DB}.database.subscriptions:is_signed": returns(True)},
    ),
    "places for messages": Guard(
        messages.webhook_to_a_place_of_the_citizen,
        {f"{_DB}.database.subscriptions:Offer.check_target": returns(None)},
    ),
    "addresses of mails": Guard(
        messages.mail_to_another_address,
        {f"{_DB}.database.subscriptions:Offer.check_target": returns(None)},
    ),
    "accounts of digests": Guard(
        messages.digest_of_an_account_of_others,
        {f"{_DB}.database.access:coordinates": returns(True)},
    ),
    "audit of questions": Guard(
        audits.viewer_who_asks_for_sums_of_one_person,
        {f"{_SERVER}.auth.rights:log_question": returns(None)},
    ),
    "audit of jobs seen": Guard(
        audits.viewer_who_reads_jobs_of_others,
        {f"{_SERVER}.auth.rights:log_jobs_seen": returns(None)},
    ),
    "audit of actions": Guard(
        audits.user_who_tries_what_is_forbidden,
        {f"{_SERVER}.auth.rights:log_action": returns(None)},
    ),
}
