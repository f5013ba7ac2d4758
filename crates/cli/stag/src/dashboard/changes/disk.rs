//! A disk for one client: a target of its own with one unit, which only that client may use.

use serde_json::{Value, json};

use super::super::form::Form;
use super::super::html::Html;
use super::super::{Look, fields};
use super::secret::Secret;
use super::{Change, Request, commands};
use crate::control::status::Status;
use crate::iqn;
use crate::tokens::Role;

pub const MAKE: Change = Change {
    name: "disk",
    title: "Make a disk",
    button: "Make the disk",
    role: Role::Admin,
    back: "/targets",
    fields: &["name", "path", "size", "thin", "initiator", "everybody", "chap"],
    form,
    request,
    after,
};

fn form(look: &Look<'_>, form: &Form, h: &mut Html) {
    // A form that was sent has a name; the first has boxes that are ticked.
    let is_first = form.get("name").is_empty() && form.get("path").is_empty();
    let needed = ("required", "");
    fields::text(
        h,
        "name",
        "Name",
        "Letters, digits, - and .; or a whole iSCSI name.",
        form.get("name"),
        &[needed],
    );
    let hint = "A file, or a folder and / at its end: the daemon makes the file. mem:1G is memory, and lost at the end.";
    fields::text(h, "path", "Place", hint, form.get("path"), &[needed, ("list", "folders")]);
    h.tag("datalist", &[("id", "folders")], |h| {
        for folder in folders(look.status) {
            h.void("option", &[("value", &folder)]);
        }
    });
    fields::text(h, "size", "Size", "Such as 10G; nothing for a file that is there.", form.get("size"), &[]);
    fields::tick(h, "thin", "Give unmapped blocks back to the file system", is_first || form.ticked("thin"));
    let hint = "Its iSCSI name: on Linux in /etc/iscsi/initiatorname.iscsi.";
    fields::text(h, "initiator", "Initiator that may use it", hint, form.get("initiator"), &[]);
    fields::tick(h, "everybody", "Every initiator may use it", form.ticked("everybody"));
    fields::tick(
        h,
        "chap",
        "Whoever uses it proves by CHAP who it is (recommended)",
        is_first || form.ticked("chap"),
    );
}

/// Folders in which units lie.
fn folders(status: &Status) -> Vec<String> {
    let units = status.targets.iter().flat_map(|target| &target.units);
    let parents =
        units.filter(|unit| unit.path.starts_with('/')).filter_map(|unit| unit.path.rsplit_once('/'));
    let mut all: Vec<String> = parents.map(|(folder, _)| format!("{folder}/")).collect();
    all.sort();
    all.dedup();
    all
}

/// The target's whole name.
fn name(form: &Form) -> Result<String, String> {
    let name = form.needed("name", "The name")?;
    let lower = name.to_ascii_lowercase();
    let is_whole = ["iqn.", "eui.", "naa."].iter().any(|kind| lower.starts_with(kind));
    let whole = match is_whole {
        true => lower,
        false => format!("{}:{lower}", iqn::default_target().trim_end_matches(":disk")),
    };
    iqn::check(&whole).map_err(|error| format!("{whole} is no iSCSI name: {error}"))?;
    Ok(whole)
}

/// The part of a target's name behind the last colon: the CHAP user, and the name of the file.
fn short(iqn: &str) -> &str {
    iqn.rsplit(':').next().unwrap_or(iqn)
}

fn request(look: &Look<'_>, form: &Form, secret: &Secret) -> Result<Request, String> {
    let iqn = name(form)?;
    if look.status.targets.iter().any(|target| target.iqn.eq_ignore_ascii_case(&iqn)) {
        return Err(format!("There is a target {iqn} already."));
    }
    let place = form.needed("path", "The place")?;
    let path = if place.ends_with('/') { format!("{place}{}.img", short(&iqn)) } else { place.to_owned() };
    if look.status.targets.iter().flat_map(|target| &target.units).any(|unit| unit.path == path) {
        return Err(format!("{path} is a unit already."));
    }
    let mut unit = json!({ "lun": 0, "path": path });
    if !form.get("size").is_empty() {
        unit["size"] = json!(form.get("size"));
    }
    if form.ticked("thin") {
        unit["thin"] = json!(true);
    }
    let auth = json!({ "users": [{ "name": short(&iqn), "secret": secret.text() }] });
    let mut body = json!({ "unit": [unit] });
    let mut says = String::new();
    match (form.ticked("everybody"), form.get("initiator"), form.ticked("chap")) {
        (true, "", true) => body["auth"] = auth,
        (true, "", false) => {
            says = "Everybody who reaches a portal may read it and write to it.".to_owned();
        }
        (true, ..) => return Err("Either one initiator may use it, or every initiator.".to_owned()),
        (false, "", _) => return Err("The initiator that may use it is missing.".to_owned()),
        (false, initiator, chap) => {
            let mut rule = json!({ "initiator": initiator });
            match chap {
                true => rule["auth"] = auth,
                false => {
                    says =
                        "Whoever claims the initiator's name may use it: without CHAP a name proves nothing."
                            .to_owned()
                }
            }
            body["acl"] = Value::Array(vec![rule]);
        }
    }
    let mut request = Request::planned("PUT", &["targets", &iqn], body);
    request.says = says;
    Ok(request)
}

fn after(look: &Look<'_>, form: &Form, secret: &Secret, status: &Status, h: &mut Html) {
    let Ok(iqn) = name(form) else { return };
    let user = form.ticked("chap").then(|| (short(&iqn), secret.text()));
    commands::disk(look, status, &iqn, 0, user, h);
}
