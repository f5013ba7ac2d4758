//! The API as an OpenAPI 3.1 document, made from the table of routes and from the schema of the
//! configuration.

use serde_json::{Map, Value, json};

use super::routes::{BASE, Body, ROUTES, Route};
use crate::config::reference;

/// The document.
pub fn document() -> Value {
    let mut paths = Map::new();
    for route in ROUTES {
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        path[route.method.to_ascii_lowercase()] = operation(route);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Stag",
            "version": "1",
            "summary": "What a daemon serves, and changes of it",
            "license": { "name": "Apache-2.0 OR MIT" },
        },
        "servers": [{ "url": BASE }],
        "security": [{ "token": [] }],
        "paths": paths,
        "components": {
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
            "schemas": schemas(),
        },
    })
}

fn operation(route: &Route) -> Value {
    let mut parameters: Vec<Value> = route
        .path
        .split('/')
        .filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
        .map(|name| parameter(name, "path", json!({ "type": "string", "minLength": 1 })))
        .collect();
    if route.is_change() {
        parameters.push(parameter("plan", "query", json!({ "enum": ["1", "0"] })));
        parameters.push(parameter("If-Match", "header", json!({ "type": "string" })));
    }
    if route.is_disconnect() {
        let seconds = json!({ "type": "integer", "minimum": 0, "maximum": 3600 });
        parameters.push(parameter("refuse", "query", seconds));
    }
    if route.is_stream() {
        parameters.push(parameter("Last-Event-ID", "header", json!({ "type": "string" })));
    }
    let mut responses = Map::new();
    let mut etag = Map::new();
    etag.insert("ETag".into(), json!({ "schema": { "type": "string", "pattern": "^\"[0-9]+\"$" } }));
    let answer = match route.is_edit() {
        true => json!({ "$ref": "#/components/schemas/outcome" }),
        false => json!({ "type": ["object", "array"] }),
    };
    let done = match route.is_stream() {
        true => {
            let event = json!({ "$ref": "#/components/schemas/event" });
            let data =
                json!({ "type": "string", "contentMediaType": "application/json", "contentSchema": event });
            json!({ "description": "Events, one JSON object each", "content": { "text/event-stream": { "schema": data } } })
        }
        false => {
            json!({ "description": "Done", "headers": etag, "content": { "application/json": { "schema": answer } } })
        }
    };
    responses.insert("200".into(), done);
    for (status, what) in statuses(route) {
        let schema = json!({ "$ref": "#/components/schemas/problem" });
        let problem =
            json!({ "description": what, "content": { "application/problem+json": { "schema": schema } } });
        responses.insert(status.to_owned(), problem);
    }
    let mut operation = json!({
        "operationId": name(route),
        "summary": route.about,
        "description": format!("Needs the role `{}`.", route.role.name()),
        "parameters": parameters,
        "responses": responses,
    });
    let body = match route.body {
        Body::None => return operation,
        Body::Section(section, _) => json!({ "$ref": format!("#/components/schemas/{section}.body") }),
        Body::Document => json!({ "$ref": "#/components/schemas/document" }),
        Body::Members(all) => members(all),
    };
    operation["requestBody"] =
        json!({ "required": true, "content": { "application/json": { "schema": body } } });
    operation
}

fn parameter(name: &str, place: &str, schema: Value) -> Value {
    json!({ "name": name, "in": place, "required": place == "path", "schema": schema })
}

/// Statuses of problems that the route may answer with.
fn statuses(route: &Route) -> Vec<(&'static str, &'static str)> {
    let mut all = vec![
        ("400", "The request makes no sense"),
        ("401", "There is no token, or another one"),
        ("403", "The token has another role"),
        ("404", "What the path names is not there"),
        ("412", "Another change came before"),
        ("421", "The Host is not this daemon's"),
        ("500", "The request was begun and failed"),
    ];
    if route.is_stream() {
        all.push(("503", "There are too many streams"));
    }
    if route.is_change() {
        all.push(("409", "It cannot be done; nothing has changed"));
    }
    if route.is_edit() {
        all.push(("422", "The configuration would have mistakes"));
    }
    if route.body != Body::None {
        all.push(("413", "The body is too large"));
        all.push(("415", "The body is no JSON"));
    }
    all
}

/// A name for programs: `put-targets-iqn`.
fn name(route: &Route) -> String {
    let words = route.path.replace(['{', '}'], "").replace(['/', '.'], "-");
    format!("{}{words}", route.method.to_ascii_lowercase())
}

fn members(all: &[(&str, &str, bool)]) -> Value {
    let properties: Map<String, Value> =
        all.iter().map(|(name, kind, _)| ((*name).to_owned(), json!({ "type": kind }))).collect();
    let required: Vec<&str> = all.iter().filter(|(.., needed)| *needed).map(|(name, ..)| *name).collect();
    json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
}

/// The sections of the configuration that can be managed, and the answers.
fn schemas() -> Value {
    let mut schema = reference::schema();
    let top = schema["properties"].take();
    let mut all = match schema["$defs"].take() {
        Value::Object(all) => all,
        _ => Map::new(),
    };
    let managed = |name: &str| name == "target" || name == "export";
    all.retain(|name, _| {
        managed(name.split('.').next().unwrap_or_default())
            || ["auth", "users", "redirect", "luns"].contains(&name.as_str())
    });
    for route in ROUTES {
        if let Body::Section(section, said) = route.body
            && let Some(mut body) = all.get(section).cloned()
        {
            // The path says it.
            if let Some(required) = body["required"].as_array_mut() {
                required.retain(|name| name != said);
            }
            all.insert(format!("{section}.body"), body);
        }
    }
    let properties = json!({ "target": top["target"], "export": top["export"] });
    all.insert(
        "document".into(),
        json!({ "type": "object", "properties": properties, "additionalProperties": false }),
    );
    let text = || json!({ "type": "string" });
    all.insert(
        "problem".into(),
        json!({
            "type": "object",
            "description": "A problem (RFC 9457)",
            "properties": { "type": text(), "title": text(), "status": { "type": "integer" }, "detail": text() },
            "required": ["type", "title", "status", "detail"],
        }),
    );
    all.insert(
        "event".into(),
        json!({
            "type": "object",
            "description": "An event: `what` has happened, in the words of the log; more members by what it is",
            "properties": { "what": text(), "time_unix_s": { "type": "number" }, "level": text(), "message": text() },
            "required": ["what"],
        }),
    );
    let lines = || json!({ "type": "array", "items": text() });
    let change = json!({
        "type": "object",
        "properties": { "kind": { "enum": ["added", "removed", "changed"] }, "what": text(), "disturbs": text() },
        "required": ["kind", "what"],
    });
    all.insert(
        "outcome".into(),
        json!({
            "type": "object",
            "description": "A change, or its plan",
            "properties": {
                "applied": { "type": "boolean" },
                "generation": { "type": "integer" },
                "plan": {
                    "type": "object",
                    "properties": {
                        "changes": { "type": "array", "items": change }, "at_next_start": lines(), "refused": lines(),
                    },
                    "required": ["changes", "at_next_start", "refused"],
                },
                "sessions_changed": { "type": "integer" },
                "sessions_leaving": { "type": "array", "items": { "type": "integer" } },
                "settled": { "type": "boolean" },
                "took_ms": { "type": "number" },
            },
            "required": ["applied", "generation", "plan"],
        }),
    );
    let mut all = Value::Object(all);
    point_here(&mut all);
    all
}

/// Moves references to the definitions of the schema to those of this document.
fn point_here(value: &mut Value) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                match value {
                    Value::String(text) if key == "$ref" => {
                        *text = text.replace("#/$defs/", "#/components/schemas/");
                    }
                    other => point_here(other),
                }
            }
        }
        Value::Array(all) => all.iter_mut().for_each(point_here),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The page of the book, up to the table and behind it.
    const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/src/reference/api.md");

    fn references(value: &Value, found: &mut BTreeSet<String>) {
        match value {
            Value::Object(map) => map.iter().for_each(|(key, value)| match value {
                Value::String(text) if key == "$ref" => drop(found.insert(text.clone())),
                other => references(other, found),
            }),
            Value::Array(all) => all.iter().for_each(|value| references(value, found)),
            _ => {}
        }
    }

    #[test]
    fn every_reference_leads_to_a_schema_and_every_operation_has_a_name() {
        let document = document();
        let mut found = BTreeSet::new();
        references(&document, &mut found);
        assert!(found.len() > 10, "{found:?}");
        for reference in found {
            let there = reference.strip_prefix('#').and_then(|pointer| document.pointer(pointer));
            assert!(there.is_some_and(Value::is_object), "{reference}");
        }
        let names: BTreeSet<String> = ROUTES.iter().map(name).collect();
        assert_eq!(names.len(), ROUTES.len());
        assert!(document["components"]["schemas"].get("portal").is_none(), "it cannot be managed");
    }

    #[test]
    fn the_page_of_the_book_has_all_routes() {
        let row = |route: &Route| {
            let (method, path, role) = (route.method, route.path, route.role.name());
            let plan = if route.is_change() { "yes" } else { "" };
            format!("| {method} | `{path}` | {role} | {plan} | {} |", route.about)
        };
        let table: Vec<String> = ROUTES.iter().map(row).collect();
        let page = std::fs::read_to_string(PAGE).unwrap();
        let there: Vec<&str> = page.lines().filter(|line| line.contains("| `/")).collect();
        assert_eq!(there, table, "docs/src/reference/api.md: write these rows:\n{}", table.join("\n"));
    }
}
