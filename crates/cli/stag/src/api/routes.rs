//! The table of routes: methods, paths, roles, bodies, and the function that each executes. The
//! OpenAPI document and the reference page follow it.

use serde_json::{Map, Value, json};

use super::seen::{Changed, Looked};
use crate::control::apply::{self, Change, How};
use crate::control::daemon::Daemon;
use crate::control::protocol::{Fault, Kind, Request};
use crate::control::{acknowledge, disconnect, gateways, managed, slow, verbs};
use crate::doctor;
use crate::managed::Document;
use crate::tokens::Role;

/// Where all paths begin.
pub const BASE: &str = "/api/v1";

/// Changes of the audit log that are shown.
const CHANGES: usize = 100;

/// Values of a path's places, in their order.
pub type Names = [String];

/// What is asked for besides names and body.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asked {
    pub how: How,
    /// Seconds for which a client that is disconnected is refused.
    pub refuse: Option<u16>,
}

/// Makes a verb's request of names, query and body.
type MakeRequest = fn(&Names, Asked, Map<String, Value>) -> Result<Request, Fault>;

/// What a route executes.
#[derive(Clone, Copy)]
pub enum Does {
    Look(fn(&Daemon, &Names) -> Result<Looked, Fault>),
    /// Edits the managed document. It can be planned.
    Edit(fn(&mut Document, &Names, &Value) -> Result<(), Fault>),
    /// Executes a verb. It can be planned: by its argument `dry_run`.
    Verb(MakeRequest),
    /// Sends events as they happen.
    Follow,
}

/// The form of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    None,
    /// The keys of a section of the configuration. The path says the key named second, which may be
    /// left out.
    Section(&'static str, &'static str),
    /// The managed document.
    Document,
    /// Members by name: its type, and whether it is needed.
    Members(&'static [(&'static str, &'static str, bool)]),
}

/// A row of the table.
pub struct Route {
    pub method: &'static str,
    /// Below `/api/v1`, with places in braces.
    pub path: &'static str,
    pub role: Role,
    pub about: &'static str,
    pub body: Body,
    pub does: Does,
}

impl Route {
    /// The values of the path's places, if `path` is this route's. A segment of `path` is decoded
    /// already.
    pub fn names(&self, path: &[String]) -> Option<Vec<String>> {
        let own: Vec<&str> = self.path.split('/').skip(1).collect();
        if own.len() != path.len() {
            return None;
        }
        let mut names = Vec::new();
        for (own, given) in own.iter().zip(path) {
            match own.starts_with('{') {
                true if !given.is_empty() => names.push(given.clone()),
                false if own == given => {}
                _ => return None,
            }
        }
        Some(names)
    }

    /// Whether it changes something.
    pub fn is_change(&self) -> bool {
        !matches!(self.does, Does::Look(_) | Does::Follow)
    }

    /// Whether its answer is a stream of events.
    pub fn is_stream(&self) -> bool {
        matches!(self.does, Does::Follow)
    }

    /// Whether it throws a client out.
    pub fn is_disconnect(&self) -> bool {
        self.method == "DELETE" && !self.is_edit()
    }

    /// Whether it edits the managed document.
    pub fn is_edit(&self) -> bool {
        matches!(self.does, Does::Edit(_))
    }
}

const fn look(
    path: &'static str,
    about: &'static str,
    does: fn(&Daemon, &Names) -> Result<Looked, Fault>,
) -> Route {
    Route { method: "GET", path, role: Role::Read, about, body: Body::None, does: Does::Look(does) }
}

const fn edit(
    method: &'static str,
    path: &'static str,
    about: &'static str,
    body: Body,
    does: fn(&mut Document, &Names, &Value) -> Result<(), Fault>,
) -> Route {
    Route { method, path, role: Role::Admin, about, body, does: Does::Edit(does) }
}

const fn verb(
    method: &'static str,
    path: &'static str,
    about: &'static str,
    body: Body,
    does: MakeRequest,
) -> Route {
    Route { method, path, role: Role::Operate, about, body, does: Does::Verb(does) }
}

const TARGET: &str = "/targets/{iqn}";
const UNIT: &str = "/targets/{iqn}/units/{lun}";
const EXPORT: &str = "/exports/{name}";

/// All routes.
pub const ROUTES: &[Route] = &[
    look("/status", "What `stag status --json` shows", |daemon, _| Looked::verb(daemon, "status")),
    look("/targets", "All targets, the managed and the others", |daemon, _| {
        Looked::status(daemon, |status| status["targets"].take())
    }),
    look(TARGET, "A target: its state, and its configuration if it is managed", one_target),
    edit(
        "PUT",
        TARGET,
        "Makes a managed target, or replaces it whole",
        Body::Section("target", "iqn"),
        |document, names, body| document.all().put("target", "iqn", json!(names[0]), body).map_err(wrong),
    ),
    edit("DELETE", TARGET, "Removes a managed target", Body::None, |document, names, _| {
        document.all().remove("target", "iqn", &json!(names[0])).map_err(missing)
    }),
    look(UNIT, "A unit: its state, and its configuration if it is managed", one_unit),
    edit(
        "PUT",
        UNIT,
        "Adds a unit to a managed target, or replaces it",
        Body::Section("target.unit", "lun"),
        |document, names, body| {
            let lun = json!(lun(names)?);
            document.target(&names[0]).map_err(missing)?.put("unit", "lun", lun, body).map_err(wrong)
        },
    ),
    edit(
        "DELETE",
        UNIT,
        "Removes a unit from a managed target; its file stays",
        Body::None,
        |document, names, _| {
            let lun = json!(lun(names)?);
            document.target(&names[0]).map_err(missing)?.remove("unit", "lun", &lun).map_err(missing)
        },
    ),
    look("/exports", "All exports, the managed and the others", |daemon, _| {
        Looked::status(daemon, |status| status["nfs"]["exports"].take())
    }),
    look(
        EXPORT,
        "An export: its state, and its configuration if it is managed. The slashes of its name are written %2F",
        one_export,
    ),
    edit(
        "PUT",
        EXPORT,
        "Makes a managed export, or replaces it whole",
        Body::Section("export", "name"),
        |document, names, body| document.all().put("export", "name", json!(names[0]), body).map_err(wrong),
    ),
    edit("DELETE", EXPORT, "Removes a managed export; its files stay", Body::None, |document, names, _| {
        document.all().remove("export", "name", &json!(names[0])).map_err(missing)
    }),
    look("/document", "The managed document, without secrets", |daemon, _| {
        let running = daemon.running();
        let none = || Fault::new(Kind::Missing, "this daemon keeps no managed document (managed = true)");
        let document = running.parts.managed.as_ref().ok_or_else(none)?.shown();
        Ok(Looked { generation: running.parts.generation, value: document })
    }),
    edit(
        "PUT",
        "/document",
        "Replaces the managed document whole. Secrets that are left out stay",
        Body::Document,
        |document, _, body| {
            *document = Document::from_json(body.clone()).map_err(wrong)?.with_secrets_of(document);
            Ok(())
        },
    ),
    look(
        "/document/history",
        "Managed documents that were replaced, the latest first, by generation",
        |daemon, _| Looked::verb(daemon, managed::HISTORY),
    ),
    edit(
        "POST",
        "/document/undo",
        "Puts the managed document of the generation `to` in force again, or that before the last change",
        Body::Members(&[("to", "integer", false)]),
        |document, _, body| match &body["to"] {
            Value::Null => managed::put_back(document, None),
            to => managed::put_back(
                document,
                Some(to.as_u64().ok_or_else(|| wrong("`to` is a generation".into()))?),
            ),
        },
    ),
    look("/sessions", "iSCSI sessions", |daemon, _| {
        Looked::status(daemon, |status| status["sessions"].take())
    }),
    verb(
        "DELETE",
        "/sessions/{tsih}",
        "Throws an iSCSI session out, and refuses it for `refuse` seconds",
        Body::None,
        |names, asked, mut members| {
            members.insert("session".into(), json!(number(&names[0], "a session")?));
            Ok(disconnected(asked, members))
        },
    ),
    look("/clients", "Connections of NFS clients", |daemon, _| {
        Looked::status(daemon, |status| status["nfs"]["clients"].take())
    }),
    verb(
        "DELETE",
        "/clients/{address}",
        "Throws an NFS client out, by its address or by one connection's address and port",
        Body::None,
        |names, asked, mut members| {
            members.insert("client".into(), json!(names[0]));
            Ok(disconnected(asked, members))
        },
    ),
    look("/health", "Problems of units, exports and file systems", |daemon, _| {
        Looked::status(daemon, |status| status["health"].take())
    }),
    look("/slow", "The slowest commands and NFS calls, and where their time went", |daemon, _| {
        Looked::verb(daemon, slow::VERB)
    }),
    look("/drain", "Drains", |daemon, _| Looked::verb(daemon, "drains")),
    verb(
        "POST",
        "/drain",
        "Takes initiators off a target, a portal or the daemon; answers once they are asked to leave",
        Body::Members(&[
            ("target", "string", false),
            ("portal", "string", false),
            ("all", "boolean", false),
            ("timeout", "integer", false),
            ("redirect", "string", false),
        ]),
        |_, _, members| Ok(Request::new("drain", members)),
    ),
    verb(
        "POST",
        "/undrain",
        "Lets initiators in again",
        Body::Members(&[("target", "string", false), ("portal", "string", false), ("all", "boolean", false)]),
        |_, _, members| Ok(Request::new("undrain", members)),
    ),
    look("/alua", "Target port groups and their states", |daemon, _| Looked::verb(daemon, "alua")),
    verb(
        "POST",
        "/alua",
        "Changes the state of a target port group",
        Body::Members(&[("target", "string", true), ("group", "integer", true), ("state", "string", true)]),
        |_, _, members| Ok(Request::new("alua", members)),
    ),
    look("/gateways", "The group of gateways: its members, owners of units and last fences", |daemon, _| {
        Looked::verb(daemon, gateways::VERB)
    }),
    verb(
        "POST",
        "/gateways/move",
        "Moves a unit of the group to another gateway; answers once that owns it",
        Body::Members(&[("unit", "string", true), ("gateway", "integer", true)]),
        |_, _, members| Ok(Request::new(gateways::MOVE, members)),
    ),
    verb(
        "POST",
        "/gateways/spread",
        "Begins to move units of the group, so that all gateways own about as many",
        Body::None,
        |_, _, members| Ok(Request::new(gateways::SPREAD, members)),
    ),
    Route {
        role: Role::Admin,
        ..verb(
            "POST",
            "/acknowledge",
            "Acknowledges the problems of a unit (`target` and `lun`) or an export",
            Body::Members(&[
                ("target", "string", false),
                ("lun", "integer", false),
                ("export", "string", false),
            ]),
            |_, _, members| Ok(Request::new(acknowledge::VERB, members)),
        )
    },
    look("/audit", "The latest changes, by whom and from where, the newest first", |daemon, _| {
        let value = daemon.audit.latest(CHANGES).map_err(|error| Fault::new(Kind::Failed, error))?;
        Ok(Looked { generation: daemon.running().parts.generation, value: Value::Array(value) })
    }),
    Route {
        method: "GET",
        path: "/events",
        role: Role::Read,
        about: "Sessions, changes and problems as they happen: a stream of server-sent events",
        body: Body::None,
        does: Does::Follow,
    },
    look("/doctor", "What `stag doctor` finds out about this machine", |daemon, _| {
        let running = daemon.running();
        let findings = doctor::of_daemon(&running.config, daemon.core.backend());
        Ok(Looked { generation: running.parts.generation, value: json!({ "findings": findings }) })
    }),
    look("/openapi.json", "This API as an OpenAPI document", |daemon, _| {
        Ok(Looked { generation: daemon.running().parts.generation, value: super::openapi::document() })
    }),
];

fn wrong(what: String) -> Fault {
    Fault::new(Kind::Request, what)
}

fn missing(what: String) -> Fault {
    Fault::new(Kind::Missing, what)
}

fn number(text: &str, of: &str) -> Result<u16, Fault> {
    text.parse().map_err(|_| missing(format!("`{text}` is not the number of {of}")))
}

fn lun(names: &Names) -> Result<u16, Fault> {
    number(&names[1], "a unit")
}

fn disconnected(asked: Asked, mut members: Map<String, Value>) -> Request {
    members.extend(asked.refuse.map(|seconds| ("refuse".to_owned(), json!(seconds))));
    Request::new(disconnect::VERB, members)
}

/// Executes a change of the managed document by the function of `apply`.
///
/// # Errors
/// It is refused; nothing has changed.
pub fn edited(
    daemon: &Daemon,
    edit: fn(&mut Document, &Names, &Value) -> Result<(), Fault>,
    names: &Names,
    asked: Asked,
    body: &Value,
) -> Result<Changed, Fault> {
    let edit = |document: &mut Document| edit(document, names, body);
    let outcome = apply::apply(daemon, Change::Managed(&edit), asked.how, &mut |_| ())?;
    let made = (!outcome.plan.is_empty()).then_some(outcome.generation);
    let plan = serde_json::to_value(&outcome.plan).ok();
    Ok(Changed {
        generation: outcome.generation,
        made,
        plan,
        value: crate::control::protocol::json(&outcome)?,
    })
}

/// Executes a verb as the control socket does.
///
/// # Errors
/// The verb's.
pub fn executed(daemon: &Daemon, request: &Request) -> Result<Changed, Fault> {
    let value = verbs::answer(daemon, request, Default::default(), &mut |_| ())?;
    let plan = value.get("plan").cloned();
    Ok(Changed { generation: daemon.running().parts.generation, made: None, plan, value })
}

fn one_target(daemon: &Daemon, names: &Names) -> Result<Looked, Fault> {
    let is_it = |target: &Value| is_name(&target["iqn"], &names[0]);
    one(daemon, "/targets", is_it, &|document| document.all().shown("target", "iqn", &json!(names[0])))?
        .ok_or_else(|| missing(format!("there is no target {}", names[0])))
}

fn one_unit(daemon: &Daemon, names: &Names) -> Result<Looked, Fault> {
    let lun = lun(names)?;
    let found = one_target(daemon, names)?;
    let of = |part: &str, list: &str| {
        let units = found.value[part][list].as_array()?;
        units.iter().find(|unit| unit["lun"] == json!(lun)).cloned()
    };
    let none = || missing(format!("there is no LUN {lun} of {}", names[0]));
    let state = of("state", "units").ok_or_else(none)?;
    let configuration = of("configuration", "unit");
    let value = json!({ "managed": found.value["managed"], "configuration": configuration, "state": state });
    Ok(Looked { generation: found.generation, value })
}

fn one_export(daemon: &Daemon, names: &Names) -> Result<Looked, Fault> {
    let is_it = |export: &Value| export["name"] == json!(names[0]);
    one(daemon, "/nfs/exports", is_it, &|document| document.all().shown("export", "name", &json!(names[0])))?
        .ok_or_else(|| missing(format!("there is no export {}", names[0])))
}

/// The element of the status that `is_it` finds at `pointer`, with its configuration.
fn one(
    daemon: &Daemon,
    pointer: &str,
    is_it: impl Fn(&Value) -> bool,
    configuration: &dyn Fn(&mut Document) -> Option<Value>,
) -> Result<Option<Looked>, Fault> {
    let Looked { generation, value: status } = Looked::verb(daemon, "status")?;
    let all = status.pointer(pointer).and_then(Value::as_array);
    let Some(state) = all.into_iter().flatten().find(|one| is_it(one)) else { return Ok(None) };
    let mut document = daemon.running().parts.managed.clone().unwrap_or_default();
    let configuration = (state["managed"] == true).then(|| configuration(&mut document)).flatten();
    let value = json!({ "managed": state["managed"], "configuration": configuration, "state": state });
    Ok(Some(Looked { generation, value }))
}

fn is_name(value: &Value, name: &str) -> bool {
    value.as_str().is_some_and(|value| value.eq_ignore_ascii_case(name))
}
