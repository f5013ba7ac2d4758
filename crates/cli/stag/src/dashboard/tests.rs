//! Every page for a daemon that serves nothing and for one that serves a lot, with names that try
//! to be markup; and each change, with an API that only remembers what it was asked for.

use std::cell::RefCell;

use admin_http::Answer;
use serde_json::{Value, json};

use super::form::Form;
use super::gate::Visitor;
use super::{Look, changes, pages};
use crate::api::{Asked, Caller, Looked, Refused};
use crate::control::status::Status;
use crate::tokens::Role;

const IQN: &str = "iqn.2026-01.org.example:disk";
const BAD: &str = "<img src=x onerror=alert(1)>\"'&";
const PAGES: [&[&str]; 9] = [
    &[],
    &["targets"],
    &["exports"],
    &["clients"],
    &["slow"],
    &["drains"],
    &["changes"],
    &["support"],
    &["support", "bundle.json"],
];

fn io() -> Value {
    json!({ "reads": 1000, "writes": 20, "others": 3, "read_bytes": 4096, "written_bytes": 512, "failed": 1,
            "timed": 10, "time_ns": 1_000_000, "longest_ns": 400_000, "buckets": vec![1; iscsi_server::Counts::default().buckets.len()] })
}

fn status(json: Value) -> Status {
    let mut all = json!({ "version": "0.1.0", "pid": 1, "uptime_s": 5.0, "portals": [], "targets": [], "sessions": [],
                          "cores": [], "complete": true, "generation": 7 });
    all.as_object_mut().unwrap().extend(json.as_object().unwrap().clone());
    serde_json::from_value(all).unwrap()
}

fn empty() -> Status {
    status(json!({ "complete": false }))
}

fn full() -> Status {
    let unit = json!({ "lun": 0, "path": format!("/srv/{BAD}"), "size": 1_u64 << 30, "block": 512, "read_only": false,
                       "thin": true, "write_cache": true, "engine": null, "serial": BAD, "naa": "6f", "allocated": 4096, "io": io(),
                       "shared": { "image": "rbd/vm1", "owner": 1, "moving_to": null, "here": true } });
    let buckets = vec![1; iscsi_server::STAGE_BUCKETS];
    let stages = ["order", "data", "medium", "send"]
        .map(|stage| json!({ "operation": "read", "stage": stage, "seconds": 0.5, "buckets": buckets }));
    let work = json!({ "outcomes": [{ "status": "check-condition", "sense_key": BAD, "commands": 4 }],
                       "limit_waits": 2, "limit_wait_s": 0.5, "stages": stages });
    let target = |iqn: &str, managed: bool| json!({ "iqn": iqn, "alias": BAD, "groups": [1], "managed": managed, "units": [unit], "work": work });
    let problem = |served: Value| {
        let mut problem = json!({ "level": "critical", "path": BAD, "kind": "flush", "since_unix_s": 0, "last_unix_s": 0,
                                  "count": 2, "errno": 5, "error": null, "lba": null, "text": BAD });
        problem.as_object_mut().unwrap().extend(served.as_object().unwrap().clone());
        problem
    };
    let system = json!({ "mount": BAD, "size": 100, "used": 95, "free": 5, "used_percent": 95.0, "provisioned": 50,
                         "allocated": 40, "overcommitted": 5, "exported": true, "state": "warning" });
    status(json!({
        "portals": [{ "listen": "192.0.2.1:3260", "group": 1, "transports": "iSCSI and iSER" }],
        "targets": [target(IQN, true), target(BAD, false)],
        "sessions": [{ "tsih": 3, "initiator": BAD, "user": BAD, "isid": "00", "target": IQN, "group": 1,
                       "error_recovery_level": 0, "max_connections": 1, "age_s": 5.0, "io": io(),
                       "connections": [{ "cid": 0, "peer": "192.0.2.7:1", "transport": "iscsi", "header_digest": false,
                                         "data_digest": false, "core": 0, "age_s": 5.0 }] }],
        "gateways": { "gateway": 1, "life": 2, "problem": BAD, "missing": [3],
                      "members": [{ "number": 1, "instance": BAD, "standing": BAD, "silent_ms": 3, "units": 1, "own": true },
                                  { "number": 2, "instance": "b", "standing": "serving", "silent_ms": 3, "units": 1, "own": false, "link": false }],
                      "units": [{ "image": "rbd/vm1", "owner": 1, "moving_to": null, "here": true },
                                { "image": BAD, "owner": null, "moving_to": 2, "here": false }],
                      "fences": [{ "gateway": 2, "instance": BAD, "by": 1, "epoch": 77 }] },
        "health": { "state": "critical", "file_systems": [system], "group": [BAD],
                    "problems": [problem(json!({ "target": IQN, "lun": 0 })), problem(json!({ "export": BAD }))] },
        "nfs": { "listen": ["192.0.2.1:2049"],
                 "exports": [{ "name": "/data", "path": BAD, "managed": true, "calls": 5, "read_bytes": 1, "written_bytes": 2, "errors": 1 },
                             { "name": BAD, "path": BAD, "calls": 5, "read_bytes": 1, "written_bytes": 2, "errors": 1 }],
                 "clients": [{ "peer": "192.0.2.7:900", "core": 0, "age_s": 1.5, "calls": 9 }],
                 "operations": [{ "version": 4, "name": "read", "done": 5, "refused": 1, "delayed": 0, "failed": 0 }] },
        "cores": [{ "connections": 1, "pool_in_use": 1, "pool_high_water": 2, "pool_mapped": 3, "pool_limit": 4, "busy_s": 1.0 }, null],
    }))
}

/// What the API was asked for, and its answers.
struct Asks {
    all: RefCell<Vec<(String, Asked, Value)>>,
    configuration: Value,
    query: Form,
}

impl Asks {
    fn new(configuration: Value) -> Self {
        Self { all: RefCell::default(), configuration, query: Form::default() }
    }

    fn answer(&self, method: &str, path: &[&str], asked: Asked, body: &Value) -> Result<Looked, Refused> {
        let line = format!("{method} {}", path.join(" "));
        self.all.borrow_mut().push((line.clone(), asked, body.clone()));
        let slow = json!([{ "protocol": "iscsi", "initiator": BAD, "target": IQN, "session": 3, "lun": 0, "itt": 1, "operation": "write", "cdb": "2a",
                            "state": "data", "ended_ago_s": null, "took_s": 1.5, "order_s": 0.0, "data_s": 1.5, "medium_s": 0.0, "send_s": null },
                          { "protocol": "nfs", "client": BAD, "export": BAD, "version": 4, "operations": [BAD], "operation": BAD, "xid": 1,
                            "state": "medium", "ended_ago_s": null, "took_s": 1.5, "order_s": 0.0, "medium_s": 1.5, "send_s": null }]);
        let drain = json!([{ "target": IQN, "state": "asking", "asked": 1, "dropped": 0, "left": 1, "age": 1.0, "remaining": 2.0, "redirect": null }]);
        let audit = json!([{ "time_unix_s": 5.5, "change": "1-1", "who": BAD, "from": BAD, "what": BAD, "result": BAD, "generation": 7,
                             "plan": { "changes": [{ "kind": "added", "what": BAD }] } }, { "time_unix_s": 1.0, "change": "1-0" }]);
        let plan = json!({ "changes": [{ "kind": "added", "what": BAD, "disturbs": BAD }], "at_next_start": [BAD], "refused": [] });
        let value = match (method, path[0]) {
            ("GET", "slow") => slow,
            ("GET", "drain") => drain,
            ("GET", "audit") => audit,
            ("GET", "document") if path.len() > 1 => {
                json!([{ "generation": 6, "written_unix_s": 5, "targets": 1, "exports": 0 }])
            }
            ("GET", "alua") => json!([{ "iqn": IQN, "explicit": true, "implicit": true, "groups": [
                { "id": 1, "portal_groups": [1, 2], "state": BAD, "preferred": true, "changed_by": BAD }] }]),
            ("GET", "doctor") => return Err(Refused { status: 500, what: BAD.into() }),
            ("GET", _) => json!({ "configuration": self.configuration }),
            _ => json!({ "plan": plan }),
        };
        Ok(Looked { generation: 7, value })
    }

    fn look<T>(&self, status: &Status, role: Role, with: impl FnOnce(&Look<'_>) -> T) -> T {
        let caller = Caller { token: "ops".into(), role, whence: "192.0.2.9:1".into() };
        let visitor = Visitor { id: "i".repeat(64), proof: "p".repeat(64), caller };
        let ask =
            |method: &str, path: &[&str], asked: Asked, body: &Value| self.answer(method, path, asked, body);
        let (host, query) = ("192.0.2.1:3261", &self.query);
        with(&Look { visitor: &visitor, status, rates: None, query, host, file: BAD, ask: &ask })
    }

    /// The last request that changes something, or would.
    fn last(&self) -> (String, Asked, Value) {
        let all = self.all.borrow();
        all.iter().rev().find(|(line, ..)| !line.starts_with("GET")).cloned().unwrap()
    }
}

fn target() -> Value {
    json!({ "iqn": IQN, "unit": [{ "lun": 0, "path": "/srv/a.img", "size": "1G" }],
            "acl": [{ "initiator": "iqn.i:a", "auth": { "users": [{ "name": BAD }] }, "luns": [0], "ro": true }] })
}

/// A page is whole, and has no markup but ours.
fn check(answer: &Answer, what: &str) {
    let body = &answer.body;
    let field =
        |name: &str| answer.fields.iter().find(|(own, _)| *own == name).map(|(_, value)| value.as_str());
    assert!(
        field("content-security-policy").is_some_and(|policy| policy.contains("default-src 'none'")),
        "{what}"
    );
    assert!(field("x-frame-options").is_some() && field("referrer-policy").is_some(), "{what}");
    if field("content-type") == Some("application/json") {
        assert!(serde_json::from_str::<Value>(body).is_ok(), "{what}");
        return;
    }
    assert!(
        !body.contains("<img src=x") && !body.contains("alert(1)>") && !body.contains("style="),
        "{what}: {body}"
    );
    assert!(!body.contains("<script>"), "{what}");
    for element in ["html", "main", "h1", "header", "footer", "title"] {
        assert_eq!(body.matches(&format!("<{element}")).count(), 1, "{what}: {element}");
        assert_eq!(body.matches(&format!("</{element}>")).count(), 1, "{what}: {element}");
    }
    for element in
        ["table", "form", "tr", "td", "th", "dl", "p", "a", "button", "ul", "li", "pre", "div", "span"]
    {
        let open =
            body.matches(&format!("<{element}>")).count() + body.matches(&format!("<{element} ")).count();
        assert_eq!(open, body.matches(&format!("</{element}>")).count(), "{what}: {element}");
    }
    // Each form proves that this session's page has sent it, and each field has a label.
    assert_eq!(
        body.matches("<form").count(),
        body.matches("name=\"proof\"").count()
            + body.matches("action=\"/login\"").count()
            + body.matches("method=\"get\"").count(),
        "{what}"
    );
    for id in body.split(" id=\"").skip(1).filter_map(|rest| rest.split('"').next()) {
        assert_eq!(body.matches(&format!(" id=\"{id}\"")).count(), 1, "{what}: two {id}");
    }
    let visible = body.matches("<input type=\"text\"").count()
        + body.matches("<input id=").count()
        + body.matches("<select").count();
    assert!(body.matches("<label for=").count() >= visible, "{what}");
}

#[test]
fn every_page_shows_an_empty_daemon_and_a_full_one() {
    let asks = Asks::new(target());
    for status in [empty(), full()] {
        for role in [Role::Read, Role::Operate, Role::Admin] {
            for path in PAGES {
                let answer = asks.look(&status, role, |look| pages::answer(look, path));
                assert_eq!(answer.status, 200, "{path:?}");
                check(&answer, &format!("{path:?} as {}", role.name()));
                assert_eq!(
                    answer.body.contains("Disconnect"),
                    path == ["clients"] && role >= Role::Operate && !status.sessions.is_empty(),
                    "{path:?}"
                );
            }
        }
    }
    for (role, may) in [(Role::Read, false), (Role::Operate, true)] {
        let answer = asks.look(&full(), role, |look| pages::answer(look, &["gateways"]));
        check(&answer, "gateways");
        let body = &answer.body;
        assert_eq!((answer.status, body.contains("Move rbd/vm1"), body.contains("Spread")), (200, may, may));
        for told in
            ["gateway 3 is not in the group", "moving to gateway 2", ">down<", ">77<", ">LUN 0 of &lt;img"]
        {
            assert!(body.contains(told), "{told}: {body}");
        }
        assert!(body.contains("aria-current=\"page\">Gateways"), "{body}");
    }
    let alone = asks.look(&empty(), Role::Admin, |look| pages::answer(look, &["gateways"]));
    assert!(alone.status == 404 && !alone.body.contains("href=\"/gateways\""), "{}", alone.body);
    for path in [
        &["targets", IQN][..],
        &["targets", BAD],
        &["targets", IQN, "units", "0"],
        &["exports", "/data"],
        &["exports", BAD],
    ] {
        let answer = asks.look(&full(), Role::Admin, |look| pages::answer(look, path));
        assert_eq!(answer.status, 200, "{path:?}");
        check(&answer, &format!("{path:?}"));
    }
    for path in [&["targets", "x"][..], &["targets", IQN, "units", "9"], &["exports", "x"], &["nothing"]] {
        let answer = asks.look(&full(), Role::Admin, |look| pages::answer(look, path));
        assert_eq!(answer.status, 404, "{path:?}");
        check(&answer, &format!("{path:?}"));
    }
    check(&pages::login::page(401, Some(BAD)), "login");
}

#[test]
fn a_long_list_is_shown_in_parts_and_searched() {
    let mut status = full();
    let (first, session) = (status.targets[0].clone(), status.sessions[0].clone());
    for number in 0..250 {
        let mut other = first.clone();
        other.iqn = format!("iqn.2026-01.org.example:t{number:03}");
        status.targets.push(other);
        status.sessions.push(session.clone());
    }
    let shown = |path: &[&str], query: &str| {
        let mut asks = Asks::new(target());
        asks.query = Form::read(query).unwrap();
        let answer = asks.look(&status, Role::Admin, |look| pages::answer(look, path));
        assert_eq!(answer.status, 200, "{path:?}");
        check(&answer, query);
        let body = answer.body.split("<tbody>").nth(1).unwrap_or_default();
        (body.split("</tbody>").next().unwrap_or_default().matches("<tr>").count(), answer.body)
    };
    let (rows, body) = shown(&["targets"], "");
    assert!(rows == 100 && body.contains("1 to 100 of 252") && body.contains("from=100"), "{rows}: {body}");
    let (rows, body) = shown(&["targets"], "from=200");
    assert!(rows == 52 && body.contains("201 to 252 of 252") && !body.contains("Those behind"), "{rows}");
    assert_eq!(shown(&["targets"], "from=99999").0, 52, "the last part");
    assert_eq!(shown(&["targets"], "from=nothing").0, 100);
    let (rows, body) = shown(&["targets"], "find=T24");
    assert!(rows == 10 && body.contains("t249") && body.contains("value=\"T24\""), "{rows}");
    let (rows, body) = shown(&["targets"], "find=iqn.2026&from=100");
    assert!(rows == 100 && body.contains("?from=200&amp;find=iqn.2026"), "{rows}: {body}");
    let (rows, body) = shown(&["clients"], "");
    assert!(rows == 100 && body.contains("1 to 100 of 251"), "{rows}");
    assert_eq!(shown(&["clients"], "sessions=200").0, 51);
    let bad = crate::api::percent::encoded(BAD);
    assert!(shown(&["clients"], &format!("find={bad}")).1.contains("sessions=100&amp;find=%3Cimg"));
}

/// Plans a change, agrees to it, and returns the pages and the request.
fn make(asks: &Asks, name: &str, fields: &str) -> (Answer, Answer, (String, Asked, Value)) {
    let form = Form::read(fields).unwrap();
    let first = asks.look(&full(), Role::Admin, |look| changes::begin(look, name, &form));
    check(&first, name);
    let plan = asks.look(&full(), Role::Admin, |look| changes::go_on(look, name, &form, &full));
    check(&plan, name);
    assert_eq!(plan.status, 200, "{name}: {}", plan.body);
    // What the page of the plan sends is what was planned.
    let sent = plan.body.split("<input type=\"hidden\" name=\"").skip(1);
    let sent: Vec<String> = sent
        .map(|rest| {
            let (name, rest) = rest.split_once("\" value=\"").unwrap();
            let mut value = rest.split_once('"').unwrap().0.to_owned();
            for (escaped, plain) in
                [("&quot;", "\""), ("&lt;", "<"), ("&gt;", ">"), ("&#39;", "'"), ("&amp;", "&")]
            {
                value = value.replace(escaped, plain);
            }
            format!("{name}={}", crate::api::percent::encoded(&value))
        })
        .collect();
    assert!(sent.contains(&"generation=7".to_owned()), "{sent:?}");
    let form = Form::read(&sent.join("&")).unwrap();
    let done = asks.look(&full(), Role::Admin, |look| changes::go_on(look, name, &form, &full));
    check(&done, name);
    assert_eq!(done.status, 200, "{name}: {}", done.body);
    let last = asks.last();
    assert_eq!(
        (last.1.how.dry_run, last.1.how.generation, last.1.how.force),
        (false, Some(7), false),
        "{name}"
    );
    (plan, done, last)
}

#[test]
fn a_change_is_planned_and_then_made_on_the_generation_of_its_plan() {
    let asks = Asks::new(target());
    let (_, done, (line, _, body)) = make(
        &asks,
        "disk",
        "name=iqn.2026-01.org.example:new&path=/srv/&size=1G&initiator=iqn.i:b&chap=yes&thin=yes",
    );
    assert_eq!(line, "PUT targets iqn.2026-01.org.example:new");
    assert_eq!(body["unit"], json!([{ "lun": 0, "path": "/srv/new.img", "size": "1G", "thin": true }]));
    let secret = body["acl"][0]["auth"]["users"][0]["secret"].as_str().unwrap();
    assert!(done.body.contains(secret) && done.body.contains("iscsiadm"), "{}", done.body);
    let planned: Vec<Value> = asks
        .all
        .borrow()
        .iter()
        .filter(|(_, asked, _)| asked.how.dry_run)
        .map(|(.., body)| body.clone())
        .collect();
    assert_eq!(planned.len(), 1);
    assert!(!planned[0].to_string().contains(secret), "the plan's secret is another one, which nobody sees");

    let (plan, _, (line, _, body)) = make(&asks, "export", "name=new&path=/srv/tree&everybody=yes");
    assert_eq!(
        (line.as_str(), &body),
        ("PUT exports /new", &json!({ "path": "/srv/tree", "client": [{ "network": "*", "ro": false }] }))
    );
    assert!(plan.body.contains("Everybody"));

    let (_, _, (line, _, body)) = make(&asks, "grow", &format!("target={IQN}&lun=0&size=2G"));
    assert_eq!((line, &body["size"]), (format!("PUT targets {IQN} units 0"), &json!("2G")));

    let (_, done, (_, _, body)) = make(&asks, "admit", &format!("target={IQN}&initiator=iqn.i:c&chap=yes"));
    assert_eq!((body["acl"].as_array().unwrap().len(), &body["acl"][1]["initiator"]), (2, &json!("iqn.i:c")));
    assert!(done.body.contains(body["acl"][1]["auth"]["users"][0]["secret"].as_str().unwrap()));

    let (plan, _, (_, _, body)) = make(&asks, "expel", &format!("target={IQN}&initiator=IQN.I:A"));
    assert_eq!(body["acl"], json!([]));
    assert!(plan.body.contains("No initiator is left"));

    let user = crate::api::percent::encoded(BAD);
    let (_, _, (_, _, body)) = make(&asks, "secret", &format!("target={IQN}&user={user}"));
    assert_eq!(body["acl"][0]["auth"]["users"][0]["secret"].as_str().unwrap().len(), 16);

    for (name, fields, wanted) in [
        ("remove-target", format!("target={IQN}"), format!("DELETE targets {IQN}")),
        ("remove-unit", format!("target={IQN}&lun=0"), format!("DELETE targets {IQN} units 0")),
        ("remove-export", "export=/data".to_owned(), "DELETE exports /data".to_owned()),
        ("disconnect", "session=3".to_owned(), "DELETE sessions 3".to_owned()),
        ("disconnect", "client=192.0.2.7:900".to_owned(), "DELETE clients 192.0.2.7:900".to_owned()),
        ("drain", "target=&timeout=5".to_owned(), "POST drain".to_owned()),
        ("undrain", "all=yes".to_owned(), "POST undrain".to_owned()),
        ("acknowledge", format!("target={IQN}&lun=0"), "POST acknowledge".to_owned()),
        ("alua", format!("target={IQN}&group=1&state=standby"), "POST alua".to_owned()),
        ("undo", "to=6".to_owned(), "POST document undo".to_owned()),
        ("move", "unit=rbd/vm1&gateway=2".to_owned(), "POST gateways move".to_owned()),
        ("spread", String::new(), "POST gateways spread".to_owned()),
    ] {
        assert_eq!(make(&asks, name, &fields).2.0, wanted);
    }
}

#[test]
fn a_form_with_mistakes_is_shown_again_and_asks_for_nothing() {
    let asks = Asks::new(Value::Null);
    let bad = crate::api::percent::encoded(BAD);
    for (name, fields, what) in [
        ("disk", "name=a%20b&path=/srv/a".to_owned(), "is no iSCSI name"),
        ("disk", format!("name={IQN}&path=/srv/a"), "already"),
        ("disk", "name=new&path=/srv/a".to_owned(), "The initiator"),
        ("disk", format!("name=new&path=/srv/{bad}&everybody=yes"), "already"),
        ("export", "name=data&path=/x&everybody=yes".to_owned(), "already"),
        ("export", "name=new&path=/x".to_owned(), "The client"),
        ("grow", format!("target={IQN}&lun=0&size=2G"), "change it there"),
        ("admit", format!("target={IQN}&initiator=x"), "change it there"),
        ("disconnect", "session=9".to_owned(), "no session 9"),
        ("disconnect", "session=3&initiator=iqn.before".to_owned(), "Session 3 is of"),
        ("drain", "target=&timeout=soon".to_owned(), "seconds"),
        ("move", "unit=rbd/vm1".to_owned(), "The gateway is missing"),
    ] {
        let form = Form::read(&format!("{fields}&generation=7")).unwrap();
        let answer = asks.look(&full(), Role::Admin, |look| changes::go_on(look, name, &form, &full));
        check(&answer, name);
        assert!(
            answer.status == 422 && answer.body.contains(what) && answer.body.contains("role=\"alert\""),
            "{name}: {}",
            answer.body
        );
    }
    assert!(asks.all.borrow().iter().all(|(line, ..)| line.starts_with("GET")));
    for (role, name, status) in
        [(Role::Read, "disconnect", 403), (Role::Operate, "disk", 403), (Role::Admin, "nothing", 404)]
    {
        let form = Form::default();
        assert_eq!(asks.look(&full(), role, |look| changes::begin(look, name, &form)).status, status);
        assert_eq!(asks.look(&full(), role, |look| changes::go_on(look, name, &form, &full)).status, status);
    }
}
