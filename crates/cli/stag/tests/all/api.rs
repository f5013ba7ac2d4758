//! The HTTP API as a part of the daemon: tokens and roles, changes of the managed document, plans
//! and generations, and the audit log.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use crate::support::command::{STAG, Server, fails, free_portal, noise, path, said, stag_with, wait_until};
use rustix::process::Signal;
use serde_json::{Value, json};

const FILE: &str = "iqn.2026-01.org.example:file";
const OWN: &str = "/targets/iqn.2026-01.org.example:own";

/// A daemon with the API, and an administrator of it.
struct Managed {
    dir: tempfile::TempDir,
    server: Server,
    socket: String,
    address: String,
    admin: String,
}

/// An answer.
struct Answer {
    status: u16,
    head: String,
    body: Value,
}

impl Answer {
    fn etag(&self) -> String {
        let tag = self.head.lines().find_map(|line| line.strip_prefix("etag: "));
        tag.unwrap_or_else(|| panic!("no ETag: {}", self.head)).to_owned()
    }

    fn detail(&self) -> &str {
        assert!(self.head.contains("content-type: application/problem+json"), "{}", self.head);
        self.body["detail"].as_str().unwrap()
    }
}

/// Asks at `address`, with fields as they are written.
fn ask(address: &str, method: &str, path: &str, fields: &str, body: &str) -> Answer {
    let mut stream = TcpStream::connect(address).unwrap();
    let length = if body.is_empty() { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
    let _ = write!(stream, "{method} /api/v1{path} HTTP/1.1\r\n{fields}{length}\r\n{body}");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{method} {path}: {answer}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer { status, head: head.to_owned(), body: serde_json::from_str(body).unwrap_or_default() }
}

impl Managed {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (socket, file) = (path(dir.path(), "control.sock"), path(dir.path(), "stag.toml"));
        let (portal, address) = (free_portal(), free_portal());
        let text = format!(
            "managed = true\ncores = 1\nsandbox-directories = [\".\"]\n[http]\nlisten = \"{address}\"\napi = true\nhosts = [\"stag.example\"]\n\
             [[portal]]\nlisten = \"{portal}\"\n[[target]]\niqn = \"{FILE}\"\n[[target.unit]]\nlun = 0\npath = \"mem:1M\"\n"
        );
        fs::write(&file, text).unwrap();
        let server =
            Server::start_on(&dir.path().join("state"), &["--config", &file, "--control", &socket], 1);
        let mut managed = Self { dir, server, socket, address, admin: String::new() };
        managed.admin = managed.token("admin", "admin");
        managed
    }

    fn state(&self, name: &str) -> PathBuf {
        self.dir.path().join("state").join(name)
    }

    fn token(&self, name: &str, role: &str) -> String {
        said(&["token", "--control", &self.socket, "add", name, "--role", role]).trim().to_owned()
    }

    fn ask_as(&self, token: &str, method: &str, path: &str, fields: &str, body: &str) -> Answer {
        let kind = if body.is_empty() { "" } else { "Content-Type: application/json\r\n" };
        let fields = format!("Host: {}\r\nAuthorization: Bearer {token}\r\n{kind}{fields}", self.address);
        ask(&self.address, method, path, &fields, body)
    }

    fn ask(&self, method: &str, path: &str, body: &Value) -> Answer {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        self.ask_as(&self.admin, method, path, "", &body)
    }

    fn get(&self, path: &str) -> Value {
        let answer = self.ask("GET", path, &Value::Null);
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        answer.body
    }

    /// Does it, which must succeed.
    fn done(&self, method: &str, path: &str, body: Value) -> Value {
        let answer = self.ask(method, path, &body);
        assert_eq!(answer.status, 200, "{method} {path}: {}", answer.body);
        answer.body
    }

    /// Lines of the audit log.
    fn log(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.state("audit.log")).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// How changes have ended of which the audit log says this. Its last line may be half written.
    fn ended(&self, name: &str, said: &str) -> Vec<Value> {
        let text = fs::read_to_string(self.state("audit.log")).unwrap_or_default();
        let all: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let asked = all.iter().filter(|line| line[name] == said);
        let is_end = |line: &&Value, of: &Value| line["event"] == "ended" && line["change"] == of["change"];
        asked.filter_map(|of| all.iter().find(|line| is_end(line, of)).cloned()).collect()
    }
}

fn disk(name: &str) -> Value {
    json!({ "unit": [{ "lun": 0, "path": name, "size": "1M" }] })
}

#[test]
fn a_target_that_the_api_makes_is_served_and_can_be_changed_unit_by_unit() {
    let managed = Managed::start();
    let image = path(managed.dir.path(), "own.img");
    let made = managed.done("PUT", OWN, disk(&image));
    assert_eq!(made["plan"]["changes"][0]["kind"], "added");
    let url = managed.server.urls[0].replace(FILE, OWN.trim_start_matches("/targets/"));
    let written = stag_with(&["write", &url], &noise(1 << 20));
    assert!(written.status.success(), "{written:?}");
    assert_eq!(fs::read(&image).unwrap(), noise(1 << 20));
    // The same again is no change.
    let again = managed.done("PUT", OWN, disk(&image));
    assert_eq!((&again["applied"], &again["generation"]), (&json!(true), &made["generation"]));

    let unit = format!("{OWN}/units/7");
    managed.done("PUT", &unit, json!({ "path": "mem:2M" }));
    let found = managed.get(&unit);
    assert_eq!(
        (&found["state"]["size"], &found["configuration"]["path"]),
        (&json!(2 << 20), &json!("mem:2M"))
    );
    let found = managed.get(OWN);
    assert_eq!((&found["managed"], found["state"]["units"].as_array().unwrap().len()), (&json!(true), 2));
    let other = managed.get(&format!("/targets/{FILE}"));
    assert_eq!((&other["managed"], &other["configuration"]), (&json!(false), &Value::Null));
    managed.done("DELETE", &unit, Value::Null);
    assert_eq!(managed.ask("DELETE", &unit, &Value::Null).status, 404);

    managed.done("PUT", "/exports/%2Fdata", json!({ "path": "mem:1M" }));
    assert_eq!(managed.get("/exports")[0]["name"], "/data");
    assert_eq!(managed.get("/exports/%2Fdata")["configuration"]["path"], "mem:1M");
    managed.done("DELETE", "/exports/%2Fdata", Value::Null);
    managed.done("DELETE", OWN, Value::Null);
    assert_eq!(managed.get("/targets").as_array().unwrap().len(), 1);
    assert!(fs::metadata(&image).is_ok(), "a disk's file stays");
    assert_eq!(managed.get("/document"), json!({ "target": [], "export": [] }));
}

#[test]
fn a_change_is_whole_or_not_at_all_with_the_words_of_the_command_line() {
    let managed = Managed::start();
    managed.done("PUT", OWN, disk("own.img"));
    let (before, kept) = (managed.get("/document"), fs::read(managed.state("managed.toml")).unwrap());
    let twice = format!("/targets/{FILE}");
    for (method, path, body, status, what) in [
        (
            "PUT",
            OWN,
            json!({ "unit": [{ "lun": 0, "path": "x", "siez": "1M" }] }),
            422,
            "did you mean `size`?",
        ),
        (
            "PUT",
            OWN,
            json!({ "unit": [{ "lun": 0, "path": "/nowhere/x", "size": "1M" }] }),
            409,
            "nothing has been changed",
        ),
        ("PUT", OWN, json!({ "iqn": "iqn.2026-01.org.example:other" }), 400, "which the path says"),
        ("PUT", OWN, json!({ "alias": null }), 422, "null"),
        ("PUT", OWN, json!([]), 400, "JSON object"),
        ("PUT", "/targets/nonsense", disk("n.img"), 422, "no iSCSI name"),
        ("PUT", &twice, disk("n.img"), 422, "managed.toml"),
        ("PUT", "/document", json!({ "cores": 1 }), 422, "knows no `cores`"),
        (
            "PUT",
            "/targets/iqn.2026-01.org.example:none/units/0",
            json!({ "path": "mem:1M" }),
            404,
            "no target",
        ),
        ("DELETE", &twice, Value::Null, 404, "the managed document has no target"),
        ("DELETE", "/sessions/4711", Value::Null, 404, "there is no session 4711"),
        ("POST", "/drain", json!({}), 400, "one of target, portal and all is wanted"),
        ("POST", "/drain", json!({ "all": true, "wait": true }), 400, "there is no `wait` here"),
        ("POST", "/alua", json!({}), 400, "`target` is missing"),
        ("POST", "/alua", json!({ "target": FILE, "group": 1, "state": "x" }), 400, "x is no state"),
        ("GET", "/nothing", Value::Null, 404, "openapi.json"),
        ("GET", "/status?x=1", Value::Null, 400, "there is no `x` here"),
        ("DELETE", "/sessions/1?plan=1", Value::Null, 404, "there is no session 1"),
        ("DELETE", "/clients/192.0.2.1?plan=1", Value::Null, 404, "there is no NFS client 192.0.2.1"),
        ("POST", "/drain?plan=1", json!({ "target": "iqn.x:none" }), 409, "there is no target iqn.x:none"),
        ("POST", "/undrain?plan=1", json!({ "all": true }), 409, "is not being drained"),
        ("GET", "/status?plan=1", Value::Null, 400, "cannot be planned"),
    ] {
        let answer = managed.ask(method, path, &body);
        assert!(
            answer.status == status && answer.detail().contains(what),
            "{method} {path}: {}",
            answer.body
        );
        assert_eq!((&answer.body["status"], &answer.body["type"]), (&json!(status), &json!("about:blank")));
    }
    assert_eq!(managed.get("/document"), before);
    assert_eq!(fs::read(managed.state("managed.toml")).unwrap(), kept);
    let wrong = managed.ask("PATCH", OWN, &Value::Null);
    assert!(wrong.status == 405 && wrong.head.contains("allow: GET, PUT, DELETE"), "{}", wrong.head);
    let kind = managed.ask_as(&managed.admin, "PUT", OWN, "Content-Type: text/plain\r\n", "{}");
    assert_eq!(kind.status, 415, "two kinds of content are none");
}

#[test]
fn a_plan_changes_nothing_and_a_change_on_an_older_generation_is_refused() {
    let managed = Managed::start();
    let planned = managed.ask("PUT", &format!("{OWN}?plan=1"), &disk("own.img"));
    assert!(planned.body["applied"] == false && planned.body["plan"]["changes"][0]["kind"] == "added");
    assert_eq!(managed.get("/targets").as_array().unwrap().len(), 1);
    let tag = planned.etag();
    assert_eq!(tag, managed.ask("GET", "/status", &Value::Null).etag());
    managed.done("PUT", "/exports/%2Fdata", json!({ "path": "mem:1M" }));
    let put = |condition: &str| {
        let fields = format!("If-Match: {condition}\r\n");
        managed.ask_as(&managed.admin, "PUT", OWN, &fields, &disk("own.img").to_string())
    };
    let late = put(&tag);
    assert!(late.status == 412 && late.detail().contains("another change came between"), "{}", late.body);
    let now = managed.ask("GET", "/document", &Value::Null).etag();
    for other in [format!("W/{now}"), "\"x\"".to_owned()] {
        assert_eq!(put(&other).status, 412, "{other}");
    }
    let done = put(&format!("{tag}, {now}"));
    assert_eq!(done.status, 200, "{}", done.body);
    assert_ne!(done.etag(), now);
    // The control socket's changes count too.
    said(&["apply", "--control", &managed.socket, &path(managed.dir.path(), "stag.toml")]);
    assert_eq!(put(&done.etag()).status, 412);
    assert_eq!(managed.get("/targets").as_array().unwrap().len(), 2);
    let planned = managed.done("POST", "/drain?plan=1", json!({ "all": true }));
    let told = "everything: logins are refused until the drain is undone";
    assert_eq!((&planned["applied"], &planned["plan"]["changes"][0]["what"]), (&json!(false), &json!(told)));
    assert!(said(&["drain", "--control", &managed.socket, "--all", "--dry-run"]).contains(told));
    assert_eq!(managed.get("/drain"), json!([]));
    assert!(!managed.log().iter().any(|line| line["what"].as_str().is_some_and(|it| it.contains("drain"))));
}

/// The head of a request is looked at before its body has come.
#[test]
fn a_verb_is_refused_if_a_change_comes_while_its_body_is_awaited() {
    let managed = Managed::start();
    let etag = managed.ask("GET", "/status", &Value::Null).etag();
    let body = json!({ "all": true, "timeout": 0 }).to_string();
    let fields = format!("Host: {}\r\nAuthorization: Bearer {}\r\n", managed.address, managed.admin);
    let more = format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len());
    let mut stream = TcpStream::connect(&managed.address).unwrap();
    write!(stream, "POST /api/v1/drain HTTP/1.1\r\n{fields}{more}If-Match: {etag}\r\n\r\n").unwrap();
    // Time for the daemon to read that.
    std::thread::sleep(Duration::from_millis(100));
    managed.done("PUT", OWN, disk("own.img"));
    let _ = stream.write_all(body.as_bytes());
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 412 "), "{answer}");
    assert_eq!(managed.get("/drain"), json!([]));
}

/// Its filter of system calls lets it make no other one, from which it could tell.
#[test]
fn the_daemons_doctor_tells_the_runtime_that_it_runs_on() {
    let managed = Managed::start();
    let status = managed.get("/status");
    let found = managed.get("/doctor");
    let own = found["findings"].as_array().unwrap().iter().find(|one| one["about"] == "runtime").unwrap();
    let told = format!("the daemon runs on {}", status["runtime"].as_str().unwrap());
    assert!(own["what"].as_str().unwrap().starts_with(&told), "{own}");
}

#[test]
fn without_a_token_nobody_gets_anything_and_a_role_bounds_what_one_gets() {
    let managed = Managed::start();
    let address = &managed.address;
    let bare = |fields: &str| ask(address, "GET", "/status", fields, "");
    for fields in [
        "",
        "Authorization: Bearer \r\n",
        "Authorization: Bearer stag_00\r\n",
        "Authorization: Basic YTpi\r\n",
    ] {
        let refused = bare(&format!("Host: localhost\r\n{fields}"));
        assert!(
            refused.status == 401 && refused.head.contains("www-authenticate: Bearer"),
            "{fields}: {}",
            refused.head
        );
        assert_eq!(ask(address, "GET", "/nothing", &format!("Host: localhost\r\n{fields}"), "").status, 401);
    }
    let token = format!("Authorization: Bearer {}\r\n", managed.admin);
    for (host, status) in [("localhost", 200), ("stag.example:80", 200), ("evil.example", 421), ("", 421)] {
        assert_eq!(bare(&format!("Host: {host}\r\n{token}")).status, status, "{host}");
    }
    assert_eq!(bare(&token).status, 400, "no Host");
    // One request for each role, which those before it may not make.
    let tokens = ["metrics", "read", "operate"].map(|role| managed.token(role, role));
    let requests = [("GET", "/status", ""), ("POST", "/undrain", "{\"all\":true}"), ("DELETE", OWN, "")];
    for (role, token) in tokens.iter().enumerate() {
        for (at, (method, path, body)) in requests.iter().enumerate() {
            let status = managed.ask_as(token, method, path, "", body).status;
            assert_eq!(status == 403, at >= role, "{role} {method} {path}: {status}");
        }
    }
    // A token that is removed is none from then on.
    assert!(said(&["token", "--control", &managed.socket, "list"]).contains("operate: operate, "));
    said(&["token", "--control", &managed.socket, "remove", "read"]);
    assert_eq!(managed.ask_as(&tokens[1], "GET", "/status", "", "").status, 401);
    assert!(fails(&["token", "--control", &managed.socket, "remove", "read"], 1).contains("no token read"));
    let kept = fs::read_to_string(managed.state("tokens.json")).unwrap();
    assert!(!kept.contains(&managed.admin) && !kept.contains(&managed.admin[5..]), "{kept}");
    assert_eq!(fs::metadata(managed.state("tokens.json")).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn every_change_is_in_the_audit_log_and_one_that_cannot_be_is_refused() {
    let managed = Managed::start();
    let secret = "correct horse battery";
    let mut own = disk("own.img");
    own["auth"] = json!({ "users": [{ "name": "a", "secret": secret }] });
    managed.done("PUT", OWN, own);
    managed.ask("PUT", &format!("{OWN}?plan=1"), &disk("own.img"));
    managed.ask("DELETE", "/sessions/4711", &Value::Null);
    said(&["apply", "--control", &managed.socket, &path(managed.dir.path(), "stag.toml")]);
    let log = managed.log();
    let of = |what: &str| {
        log.iter().filter(|line| line["what"].as_str().is_some_and(|it| it.starts_with(what))).count()
    };
    assert_eq!(
        (of("PUT "), of("DELETE "), of("apply"), of("token-add")),
        (1, 1, 1, 1),
        "a plan is no change: {log:#?}"
    );
    let put =
        log.iter().position(|line| line["what"].as_str().is_some_and(|it| it.starts_with("PUT "))).unwrap();
    assert_eq!(log[put]["who"], "token admin");
    assert!(log[put]["from"].as_str().unwrap().starts_with("127.0.0.1:"), "{}", log[put]);
    let ended = &log[put + 1];
    assert_eq!((&ended["change"], &ended["result"]), (&log[put]["change"], &json!("done")));
    assert_eq!(ended["plan"]["changes"][0]["kind"], "added");
    assert!(log.iter().any(|line| line["result"] == "there is no session 4711"));
    for shown in [
        fs::read_to_string(managed.state("audit.log")).unwrap(),
        managed.get("/document").to_string(),
        managed.get(OWN).to_string(),
        managed.get("/status").to_string(),
    ] {
        assert!(!shown.contains(secret), "{shown}");
    }
    // A directory in its place cannot be written.
    let log = managed.state("audit.log");
    fs::remove_file(&log).unwrap();
    fs::create_dir(&log).unwrap();
    let refused = managed.ask("DELETE", OWN, &Value::Null);
    assert!(refused.status == 500 && refused.detail().contains("cannot be recorded"), "{}", refused.body);
    assert_eq!(managed.get("/targets").as_array().unwrap().len(), 2);
    // The remedy may be a change: what root does by the control socket is done.
    said(&["apply", "--control", &managed.socket, &path(managed.dir.path(), "stag.toml")]);
}

#[test]
fn a_reload_by_a_signal_is_in_the_audit_log() {
    let managed = Managed::start();
    let file = path(managed.dir.path(), "stag.toml");
    let text = fs::read_to_string(&file).unwrap();
    let reloads = || managed.ended("from", "SIGHUP");
    fs::write(&file, format!("{text}[[target]]\niqn = \"iqn.2026-01.org.example:more\"\n")).unwrap();
    managed.server.signal(Signal::HUP);
    wait_until("it is recorded", || reloads().len() == 1);
    let done = &reloads()[0];
    assert_eq!((&done["result"], &done["plan"]["changes"][0]["kind"]), (&json!("done"), &json!("added")));
    assert_eq!(done["generation"], managed.get("/status")["generation"]);
    fs::write(&file, "cores = ").unwrap();
    managed.server.signal(Signal::HUP);
    wait_until("it is recorded", || reloads().len() == 2);
    assert_eq!(reloads()[1]["result"], "the configuration has mistakes");
}

#[test]
fn a_takeover_keeps_tokens_and_what_the_api_has_made() {
    let managed = Managed::start();
    managed.done("PUT", OWN, disk("own.img"));
    let before = managed.get("/document");
    let file = path(managed.dir.path(), "stag.toml");
    let words = ["--config", &file, "--control", &managed.socket, "--takeover", "--lose-memory-units"];
    let _next = Server::start_on(&managed.dir.path().join("state"), &words, 2);
    wait_until("the new daemon answers", || {
        let all = managed.ask("GET", "/document", &Value::Null);
        all.status == 200 && all.body == before
    });
    wait_until("it is recorded", || managed.ended("what", "hand-over").len() == 1);
    assert_eq!(managed.ended("what", "hand-over")[0]["result"], "done");
}

#[test]
fn the_api_is_off_unless_asked_for_and_stays_on_the_loopback() {
    let dir = tempfile::tempdir().unwrap();
    let (socket, address) = (path(dir.path(), "control.sock"), free_portal());
    let _server =
        Server::start(&["--listen", "127.0.0.1:0", "--http", &address, "--control", &socket, "mem:1M"], 1);
    let off = ask(&address, "GET", "/status", "Host: localhost\r\n", "");
    assert!(off.status == 404 && off.detail().contains("the API is off"), "{}", off.head);
    let file = path(dir.path(), "stag.toml");
    for (listen, more, ends) in [
        ("192.0.2.1", "", 3),
        ("0.0.0.0", "", 3),
        ("192.0.2.1", "insecure = true\n", 0),
        ("192.0.2.1", "certificate = \"a.pem\"\nkey = \"a.key\"\n", 0),
        ("127.0.0.1", "", 0),
    ] {
        fs::write(&file, format!("[http]\nlisten = \"{listen}\"\napi = true\n{more}")).unwrap();
        let checked = std::process::Command::new(STAG).args(["check-config", &file]).output().unwrap();
        let said = String::from_utf8_lossy(&checked.stderr).into_owned();
        assert!(
            checked.status.code() == Some(ends) && (ends == 0 || said.contains("in the clear")),
            "{listen}: {said}"
        );
    }
    let error = fails(&["serve", "--config", &file, "--http", "0.0.0.0:1", "--control", "none"], 2);
    assert!(error.contains("in the clear"), "{error}");
}

#[test]
fn metrics_may_need_a_token() {
    let dir = tempfile::tempdir().unwrap();
    let (socket, file, address) =
        (path(dir.path(), "control.sock"), path(dir.path(), "stag.toml"), free_portal());
    fs::write(&file, format!("[http]\nlisten = \"{address}\"\nmetrics-token = true\n")).unwrap();
    let words = ["--config", &file, "--control", &socket, "--listen", "127.0.0.1:0", "mem:1M"];
    let _server = Server::start_on(&dir.path().join("state"), &words, 1);
    let get = |path: &str, fields: &str| {
        let mut stream = TcpStream::connect(&address).unwrap();
        let _ = write!(stream, "GET {path} HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer[9..12].to_owned()
    };
    assert_eq!((get("/metrics", ""), get("/readyz", "")), ("401".into(), "200".into()));
    let token = said(&["token", "--control", &socket, "add", "prometheus", "--role", "metrics"]);
    assert_eq!(get("/metrics", &format!("Authorization: Bearer {}\r\n", token.trim())), "200");
}
