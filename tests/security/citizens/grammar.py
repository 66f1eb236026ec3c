"""Citizens whose text would be read as part of a grammar."""

import json

from tests.security.citizens.citizen import citizen, own_job, own_pbs_job
from tests.security.one_bad_citizen import CITIZEN

GRAMMAR = "grammar"


@citizen(GRAMMAR)
def account_that_closes_its_quote_in_a_pbs_log(site, dice):
    job = own_pbs_job(site)
    forged = dice.choice(
        [
            f"start={job.start - 10**6}",
            "end=9999999999",
            "ctime=5",
            "exec_host=n000/0*8 exec_vnode=(n000:ncpus=8)",
            "Exit_status=0",
        ]
    )
    attributes = site.pbs_attributes(job).replace('"physics"', f'"physics" {forged} x="')
    site.write_pbs_line(job, attributes)
    site.poll()
    with site.engine.connect() as db:
        for row in site.find(db, job.jobid):
            assert row["start_time"] in (None, job.start)
            assert row["end_time"] in (None, job.end)
            assert "n000" not in row["node_list"]


@citizen(GRAMMAR)
def record_within_a_record_of_a_pbs_log(site, dice):
    """A name of a job that holds the end of a line and the beginning of the next."""
    victim = next(reversed([each for each in site.jobs.values() if each.user == "carol"]))
    job = own_pbs_job(site)
    inner = site.pbs_attributes(victim._replace(start=victim.start - dice.randrange(10, 10**6)))
    site.write_pbs_line(job, site.pbs_attributes(job, f"x;E;{victim.jobid};{inner}"))


@citizen(GRAMMAR)
def name_twice_in_a_json_record(site, dice):
    job = own_job(site)
    text = json.dumps(site.json_record(job))
    name, value = dice.choice(
        [
            ("user", '"alice"'),
            ("start_time", "631152100"),
            ("end_time", "631152100"),
            ("jobid", '"0"'),
        ]
    )
    site.write_json_line(f'{text[:-1]}, "{name}": {value}}}')
    site.poll()
    with site.engine.connect() as db:
        assert not site.find(db, job.jobid)


@citizen(GRAMMAR)
def name_twice_in_a_request(site, dice):
    bodies = [("/sign-in", "token=bj_a&token=bj_b"), ("/sign-in", "next=/a&next=/b&token=bj_a")]
    path, body = dice.choice(bodies)
    assert site.client.post(path, content=body).status_code == 422
    headers = {"Content-Type": "application/json", **site.bearer(CITIZEN)}
    body = '{"label": "x", "role": "user", "role": "admin"}'
    assert site.client.post("/api/v1/tokens", content=body, headers=headers).status_code == 422
    name = dice.choice(["limit", "since", "user"])
    assert site.get(CITIZEN, f"/api/v1/jobs?{name}=1&{name}=2").status_code == 422


@citizen(GRAMMAR)
def markup_and_formulas_in_a_name(site, dice):
    text = dice.choice(
        [
            "<script>alert(1)</script>",
            '"><img src=x onerror=alert(1)>',
            "=cmd|' /C calc'!A0",
            "</title><svg/onload=alert(1)>",
        ]
    )
    job = own_job(site)
    site.write_json_line(site.json_record(job, name=text, reason=text, submit_line=text))
    site.now += 4000
    site.poll()
    page = site.get("vera", f"/jobs/{job.jobid}", Accept="text/html").text
    assert "<script>alert" not in page
    assert "<img src=x" not in page
    assert "<svg/onload" not in page
    lines = site.get("vera", "/api/v1/jobs?format=csv&fields=name&limit=5").text
    assert not any(line.lstrip('"').startswith("=") for line in lines.splitlines())


@citizen(GRAMMAR)
def id_with_the_grammar_of_queries(site, dice):
    jobid = dice.choice(['1"} or up{a="', "1'; DROP TABLE job; --", ".*", "%", "1\\", "a/../b"])
    for path in ("/api/v1/jobs/{}", "/api/v1/jobs/{}/metrics", "/jobs/{}"):
        answer = site.get(CITIZEN, path.format(jobid.replace("/", "%2f").replace("%", "%25")))
        assert answer.status_code in (404, 422) or answer.text == "[]", answer.text
