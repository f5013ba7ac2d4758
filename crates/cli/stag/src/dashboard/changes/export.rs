//! A folder for clients of NFS, and the end of its sharing.

use serde_json::json;

use super::super::form::Form;
use super::super::html::Html;
use super::super::{Look, fields};
use super::secret::Secret;
use super::{Change, Request, carried, commands, no_more};
use crate::control::status::Status;
use crate::tokens::Role;

pub const MAKE: Change = Change {
    name: "export",
    title: "Share a folder",
    button: "Share it",
    role: Role::Admin,
    back: "/exports",
    fields: &["name", "path", "network", "everybody", "ro"],
    form,
    request,
    after,
};

pub const REMOVE: Change = Change {
    name: "remove-export",
    title: "Remove an export",
    button: "Remove it",
    role: Role::Admin,
    back: "/exports",
    fields: &["export"],
    form: |_, form, h| carried(form, h, &["export"]),
    request: |_, form, _| {
        let name = form.needed("export", "The export")?;
        Ok(Request::planned("DELETE", &["exports", name], json!(null)))
    },
    after: no_more,
};

fn form(_: &Look<'_>, form: &Form, h: &mut Html) {
    let needed = ("required", "");
    fields::text(
        h,
        "name",
        "Name",
        "Clients mount it by this path, such as /data.",
        form.get("name"),
        &[needed],
    );
    let hint = "A folder that is there; mem:1G is memory, and lost at the end.";
    fields::text(h, "path", "Folder", hint, form.get("path"), &[needed]);
    let hint = "An address such as 192.0.2.7, or a network such as 192.0.2.0/24.";
    fields::text(h, "network", "Client that may mount it", hint, form.get("network"), &[]);
    fields::tick(h, "everybody", "Every client may mount it", form.ticked("everybody"));
    fields::tick(h, "ro", "Clients may only read", form.ticked("ro"));
}

/// The name, which begins with a slash.
fn name(form: &Form) -> Result<String, String> {
    let name = form.needed("name", "The name")?;
    Ok(if name.starts_with('/') { name.to_owned() } else { format!("/{name}") })
}

fn request(look: &Look<'_>, form: &Form, _: &Secret) -> Result<Request, String> {
    let name = name(form)?;
    if look.status.nfs.exports.iter().any(|export| export.name == name) {
        return Err(format!("There is an export {name} already."));
    }
    let network = match (form.ticked("everybody"), form.get("network")) {
        (true, "") => "*",
        (true, _) => return Err("Either one client or network may mount it, or every client.".to_owned()),
        (false, "") => return Err("The client that may mount it is missing.".to_owned()),
        (false, network) => network,
    };
    let client = json!({ "network": network, "ro": form.ticked("ro") });
    let body = json!({ "path": form.needed("path", "The folder")?, "client": [client] });
    let mut request = Request::planned("PUT", &["exports", &name], body);
    if network == "*" && !form.ticked("ro") {
        request.says = "Everybody who reaches an NFS portal may read it and write to it.".to_owned();
    }
    Ok(request)
}

fn after(look: &Look<'_>, form: &Form, _: &Secret, status: &Status, h: &mut Html) {
    let Ok(name) = name(form) else { return };
    // The first export makes the first portal.
    commands::export(&Look { status, ..*look }, &name, h);
}
