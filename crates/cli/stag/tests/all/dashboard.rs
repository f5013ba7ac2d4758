//! The dashboard as a part of the daemon: logins and their end, forms of other pages, and changes
//! that are planned, made by the API and recorded. `peers.dashboard` has a browser do the same.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;

use crate::support::command::{Server, fails, free_portal, path, said};
use serde_json::Value;

const FILE: &str = "iqn.2026-01.org.example:file";
const OWN: &str = "iqn.2026-01.org.example:own";

struct Pages {
    dir: tempfile::TempDir,
    _server: Server,
    socket: String,
    address: String,
}

struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn field(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    /// The value of a hidden field.
    fn hidden(&self, name: &str) -> String {
        let rest = self.body.split(&format!("name=\"{name}\" value=\"")).nth(1);
        rest.unwrap_or_else(|| panic!("no {name}: {}", self.body)).split('"').next().unwrap().to_owned()
    }
}

/// Somebody who has logged in.
struct Browser<'a> {
    pages: &'a Pages,
    cookie: String,
}

impl Pages {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (socket, file) = (path(dir.path(), "control.sock"), path(dir.path(), "stag.toml"));
        let (portal, address) = (free_portal(), free_portal());
        let text = format!(
            "managed = true\ncores = 1\nsandbox-directories = [\".\"]\n[http]\nlisten = \"{address}\"\napi = true\ndashboard = true\n\
             [[portal]]\nlisten = \"{portal}\"\n[[target]]\niqn = \"{FILE}\"\n[[target.unit]]\nlun = 0\npath = \"mem:1M\"\n"
        );
        fs::write(&file, text).unwrap();
        let server =
            Server::start_on(&dir.path().join("state"), &["--config", &file, "--control", &socket], 1);
        Self { dir, _server: server, socket, address }
    }

    fn token(&self, name: &str, role: &str) -> String {
        said(&["token", "--control", &self.socket, "add", name, "--role", role]).trim().to_owned()
    }

    fn ask(&self, method: &str, path: &str, fields: &str, body: &str) -> Answer {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let form = "Content-Type: application/x-www-form-urlencoded\r\n";
        let sent = match method {
            "POST" => format!("{form}Content-Length: {}\r\n", body.len()),
            _ => String::new(),
        };
        write!(stream, "{method} {path} HTTP/1.1\r\n{fields}{sent}\r\n{body}").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Answer { status, head: head.to_owned(), body: body.to_owned() }
    }

    /// A request of a page of the daemon's own.
    fn own(&self, method: &str, path: &str, more: &str, body: &str) -> Answer {
        self.ask(method, path, &format!("Host: {0}\r\nOrigin: http://{0}\r\n{more}", self.address), body)
    }

    fn log_in(&self, token: &str) -> Browser<'_> {
        let answer = self.own("POST", "/login", "", &format!("token={token}"));
        assert_eq!((answer.status, answer.field("location")), (303, Some("/")), "{}", answer.body);
        let cookie = answer.field("set-cookie").unwrap();
        for part in ["; HttpOnly", "; SameSite=Strict", "; Path=/", "; Max-Age=43200"] {
            assert!(cookie.contains(part), "{cookie}");
        }
        assert!(!cookie.contains("Secure"), "not without TLS");
        Browser { pages: self, cookie: cookie.split(';').next().unwrap().to_owned() }
    }
}

impl Browser<'_> {
    fn get(&self, path: &str) -> Answer {
        self.pages.own("GET", path, &format!("Cookie: {}\r\n", self.cookie), "")
    }

    fn post(&self, path: &str, body: &str) -> Answer {
        let proof = self.get("/").hidden("proof");
        self.pages.own(
            "POST",
            path,
            &format!("Cookie: {}\r\n", self.cookie),
            &format!("proof={proof}&{body}"),
        )
    }

    /// Plans a change and agrees to it.
    fn change(&self, name: &str, fields: &str) -> Answer {
        let plan = self.post(&format!("/change/{name}"), fields);
        assert_eq!(plan.status, 200, "{}", plan.body);
        let generation = plan.hidden("generation");
        self.post(&format!("/change/{name}"), &format!("{fields}&generation={generation}"))
    }
}

#[test]
fn a_stranger_gets_the_login_page_and_a_token_opens_the_others() {
    let pages = Pages::start();
    let (read, metrics) = (pages.token("looks", "read"), pages.token("prometheus", "metrics"));
    let stranger = pages.own("GET", "/", "", "");
    assert_eq!((stranger.status, stranger.field("location")), (303, Some("/login")));
    assert!(!pages.own("GET", "/login", "", "").body.contains(FILE));
    assert_eq!(pages.own("GET", "/live.json", "", "").status, 401);
    for wrong in ["", "stag_0", &metrics, &read[..68]] {
        let answer = pages.own("POST", "/login", "", &format!("token={wrong}"));
        assert_eq!((answer.status, answer.field("set-cookie")), (401, None), "{wrong}");
    }
    let browser = pages.log_in(&read);
    for path in ["/", "/targets", "/exports", "/clients", "/slow", "/drains", "/changes", "/support"] {
        let page = browser.get(path);
        assert_eq!(page.status, 200, "{path}: {}", page.body);
        let policy = page.field("content-security-policy").unwrap();
        assert!(
            policy.starts_with("default-src 'none'") && policy.contains("frame-ancestors 'none'"),
            "{policy}"
        );
        assert_eq!(
            (page.field("cache-control"), page.field("x-content-type-options")),
            (Some("no-store"), Some("nosniff"))
        );
        assert!(page.body.len() < 50_000, "{path}: {}", page.body.len());
    }
    assert!(browser.get("/targets").body.contains(FILE));
    assert_eq!(browser.get("/targets/nothing").status, 404);
    let samples: Value = serde_json::from_str(&browser.get("/live.json").body).unwrap();
    assert!(samples.is_array());
    let bundle: Value = serde_json::from_str(&browser.get("/support/bundle.json").body).unwrap();
    assert_eq!(bundle["status"]["targets"][0]["iqn"], FILE);
    // A token that is removed takes its sessions with it.
    said(&["token", "--control", &pages.socket, "remove", "looks"]);
    assert_eq!(browser.get("/targets").status, 303);
    let other = pages.log_in(&pages.token("other", "read"));
    assert_eq!(other.post("/logout", "").field("location"), Some("/login"));
    assert_eq!(other.get("/targets").status, 303);
}

#[test]
fn no_other_page_makes_a_browser_change_anything() {
    let pages = Pages::start();
    let browser = pages.log_in(&pages.token("admin", "admin"));
    let proof = browser.get("/").hidden("proof");
    let (cookie, host) = (format!("Cookie: {}\r\n", browser.cookie), format!("Host: {}\r\n", pages.address));
    let body = format!("proof={proof}&all=yes");
    let send = |fields: &str, body: &str| pages.ask("POST", "/change/undrain", fields, body).status;
    let own = format!("Origin: http://{}\r\n", pages.address);
    assert_eq!(send(&format!("{host}{own}{cookie}"), &body), 200);
    for (fields, body, status) in [
        (format!("{host}{cookie}"), body.as_str(), 403),
        (format!("{host}{cookie}Origin: null\r\n"), &body, 403),
        (format!("{host}{cookie}Origin: http://evil.example\r\n"), &body, 403),
        (format!("{host}{cookie}{own}Sec-Fetch-Site: cross-site\r\n"), &body, 403),
        (format!("{host}{own}{cookie}"), "all=yes", 403),
        (format!("{host}{own}{cookie}"), &format!("proof={}&all=yes", "0".repeat(64)), 403),
        (format!("Host: evil.example\r\nOrigin: http://evil.example\r\n{cookie}"), &body, 421),
        (format!("{host}{own}"), &body, 303),
    ] {
        assert_eq!(send(&fields, body), status, "{fields} {body}");
    }
    let json = pages.ask("PUT", "/targets", &format!("{host}{own}{cookie}"), "");
    assert_eq!((json.status, json.field("allow")), (405, Some("GET, HEAD, POST")));
}

#[test]
fn a_disk_is_planned_made_and_recorded_and_only_an_administrator_makes_it() {
    let pages = Pages::start();
    let browser = pages.log_in(&pages.token("admin", "admin"));
    let image = path(pages.dir.path(), "own.img");
    let disk = format!(
        "name={OWN}&path={}&size=1M&initiator=iqn.2026-01.org.example:i&chap=yes",
        image.replace('/', "%2F")
    );
    let plan = browser.post("/change/disk", &disk);
    assert!(plan.body.contains("Added: ") && !fs::exists(&image).unwrap(), "{}", plan.body);
    let done = browser.change("disk", &disk);
    assert!(
        done.status == 200 && done.body.contains("iscsiadm") && done.body.contains("CHAP secret"),
        "{}",
        done.body
    );
    assert_eq!(fs::metadata(&image).unwrap().len(), 1 << 20);
    assert!(browser.get(&format!("/targets/{OWN}")).body.contains("iqn.2026-01.org.example:i"));
    let grown = browser.change("grow", &format!("target={OWN}&lun=0&size=2M"));
    assert_eq!((grown.status, fs::metadata(&image).unwrap().len()), (200, 2 << 20), "{}", grown.body);
    // Another change came between.
    let stale = browser.post("/change/remove-target", &format!("target={OWN}&generation=1"));
    assert!(stale.status == 422 && stale.body.contains("another change came between"), "{}", stale.body);
    let wrong = browser.post("/change/disk", "name=x&path=%2Fsrv%2Fx&size=many&everybody=yes");
    assert!(wrong.status == 422 && wrong.body.contains("size"), "{}", wrong.body);
    let log = fs::read_to_string(pages.dir.path().join("state/audit.log")).unwrap();
    let lines = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let own: Vec<Value> = lines.filter(|line| line["who"] == "token admin").collect();
    assert_eq!(own.len(), 3, "{log}");
    assert_eq!(own[0]["what"], format!("PUT /api/v1/targets/{OWN}"));
    assert!(browser.get("/changes").body.contains("token admin"));

    let operator = pages.log_in(&pages.token("operator", "operate"));
    assert_eq!(operator.post("/change/remove-target", &format!("target={OWN}")).status, 403);
    assert_eq!(operator.change("drain", "target=&timeout=0").status, 200);
    assert!(operator.get("/drains").body.contains("Let them in again"));
    assert_eq!(operator.change("undrain", "all=yes").status, 200);
    let gone = browser.change("remove-target", &format!("target={OWN}"));
    assert!(gone.status == 200 && !browser.get("/targets").body.contains(OWN), "{}", gone.body);
    assert!(fs::exists(&image).unwrap(), "the file stays");
    // The first button takes the latest change back.
    let changes = browser.get("/changes");
    assert!(changes.body.contains("Undo from here"), "{}", changes.body);
    let back = browser.change("undo", &format!("to={}", changes.hidden("to")));
    assert!(back.status == 200 && browser.get("/targets").body.contains(OWN), "{}", back.body);
    assert!(!operator.get("/changes").body.contains("Undo from here"), "an operator changes nothing");
    assert_eq!(operator.post("/change/undo", "to=1").status, 403);
}

#[test]
fn without_the_setting_there_are_no_pages_and_it_needs_the_api() {
    let dir = tempfile::tempdir().unwrap();
    let file = path(dir.path(), "stag.toml");
    fs::write(&file, "[http]\nlisten = \"127.0.0.1:0\"\ndashboard = true\n").unwrap();
    let text = fails(&["check-config", &file], 3);
    assert!(text.contains("api = true"), "{text}");
}
