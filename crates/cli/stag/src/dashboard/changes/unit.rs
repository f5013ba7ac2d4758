//! Growth and removal of a unit of the managed document.

use backing::size::Size;
use serde_json::json;

use super::super::form::Form;
use super::super::html::Html;
use super::super::{Look, fields, show};
use super::secret::Secret;
use super::{Change, Request, carried, commands, configuration, no_more};
use crate::control::status::{Status, UnitStatus};
use crate::tokens::Role;

pub const GROW: Change = Change {
    name: "grow",
    title: "Grow a disk",
    button: "Grow it",
    role: Role::Admin,
    back: "/targets",
    fields: &["target", "lun", "size"],
    form,
    request,
    after,
};

pub const REMOVE: Change = Change {
    name: "remove-unit",
    title: "Remove a unit",
    button: "Remove it",
    fields: &["target", "lun"],
    form: |_, form, h| carried(form, h, &["target", "lun"]),
    request: |_, form, _| {
        let (iqn, lun) = place(form)?;
        Ok(Request::planned("DELETE", &["targets", iqn, "units", lun], json!(null)))
    },
    after: no_more,
    ..GROW
};

fn place(form: &Form) -> Result<(&str, &str), String> {
    Ok((form.needed("target", "The target")?, form.needed("lun", "The unit's number")?))
}

fn unit<'a>(status: &'a Status, form: &Form) -> Option<&'a UnitStatus> {
    let is_it = |iqn: &str| iqn.eq_ignore_ascii_case(form.get("target"));
    let target = status.targets.iter().find(|target| is_it(&target.iqn))?;
    target.units.iter().find(|unit| unit.lun.to_string() == form.get("lun"))
}

fn form(look: &Look<'_>, form: &Form, h: &mut Html) {
    let now = unit(look.status, form).map_or_else(String::new, |unit| Size(unit.size).to_string());
    fields::hidden(h, "target", form.get("target"));
    fields::hidden(h, "lun", form.get("lun"));
    h.p(&format!("LUN {} of {} has {now}.", form.get("lun"), form.get("target")));
    fields::text(
        h,
        "size",
        "New size",
        "Such as 20G. A disk does not shrink here.",
        form.get("size"),
        &[("required", "")],
    );
}

fn request(look: &Look<'_>, form: &Form, _: &Secret) -> Result<Request, String> {
    let (iqn, lun) = place(form)?;
    let size = form.needed("size", "The new size")?;
    let mut unit = configuration(look, &["targets", iqn, "units", lun])?;
    let path = unit["path"].as_str().unwrap_or_default();
    // Memory, objects, images and exports of others begin with their kind: mem:1G, nbd://host/disk.
    if path.split('/').next().is_some_and(|first| first.contains(':')) {
        return Err("Only disks that are files grow here.".to_owned());
    }
    unit["size"] = json!(size);
    Ok(Request::planned("PUT", &["targets", iqn, "units", lun], unit))
}

fn after(_: &Look<'_>, form: &Form, _: &Secret, status: &Status, h: &mut Html) {
    let Some(unit) = unit(status, form) else { return };
    h.p(&format!("It has {} now. Initiators are told by a unit attention.", show::bytes(unit.size)));
    let text = format!(
        "sudo iscsiadm -m session --rescan\nsudo resize2fs /dev/disk/by-id/wwn-0x{}    # ext4; xfs_growfs MOUNTPOINT for XFS\n",
        unit.naa
    );
    commands::section(h, "Linux", false, &text);
}
