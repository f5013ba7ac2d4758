//! `[gateways]`: the group that this daemon is one of, and what its units, targets and portals must
//! keep to then.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};

use ceph::ImageName;
use peer_link::Secret;
use zeroize::Zeroizing;

use super::auth::{self, Content};
use super::decode::{LINK_PORT, address_or};
use super::model::{Config, GatewayMember, Gateways, Portal, Target};
use super::place::Place;
use super::problem::Problems;
use super::reader::{At, Table};
use super::settings::setting;
use crate::unit::{Backing, Contradiction, UnitSpec};

/// Advice about a unit that is to stay out of the group.
const OR_ALONE: &str = "leave it out, or keep the image out of the group with shared = false";

/// The number of the secret by which gateways recognize users.
pub const OF_USERS: u32 = 0;

/// The number of an image's unit, the same at all gateways: CRC-32C of `POOL/NAMESPACE/IMAGE`, and
/// never 0.
pub fn unit_number(image: &ImageName) -> u32 {
    crc_fast::crc32_iscsi(image.to_string().as_bytes()).max(1)
}

/// What a document says of the group, for its units and targets.
#[derive(Clone, Copy)]
pub enum Around<'a> {
    /// It has no group.
    Alone,
    Group(&'a Gateways),
    /// Another document does: [`Config::join`] checks.
    Elsewhere,
}

impl<'a> Around<'a> {
    pub fn of(group: Option<&'a Gateways>) -> Self {
        group.map_or(Self::Alone, Self::Group)
    }

    /// The mistakes of a unit.
    pub fn check(self, spec: &UnitSpec) -> Vec<Contradiction> {
        match self {
            Self::Elsewhere => Vec::new(),
            Self::Alone if spec.options.shared == Some(true) => vec![Contradiction {
                option: "shared",
                what: "no group of gateways shares the image".into(),
                instead: "add [gateways], or leave shared out".into(),
            }],
            Self::Group(group) if spec.may_be_shared() => contradictions(spec, group),
            Self::Alone | Self::Group(_) => Vec::new(),
        }
    }

    /// The mistake of a target, and advice.
    pub fn check_target(self, target: &Target) -> Option<(String, &'static str)> {
        let Self::Group(_) = self else { return None };
        let shared = target.units.iter().find(|unit| unit.spec.may_be_shared())?;
        target.alua.as_ref()?;
        let what = format!("the group of gateways has the access states of LUN {}, its image", shared.lun);
        Some((what, "leave alua out, or give the target no image of the group"))
    }
}

fn contradictions(spec: &UnitSpec, group: &Gateways) -> Vec<Contradiction> {
    let options = &spec.options;
    let user = group.ceph_user.as_deref().unwrap_or("admin");
    let conf = group.ceph_conf.as_deref();
    let conf_shown = conf.map_or_else(|| "the usual one".to_owned(), |path| path.display().to_string());
    let others: [(&str, bool, String); 3] = [
        ("ceph-user", options.ceph_user.as_deref().is_some_and(|other| other != user), user.to_owned()),
        ("ceph-conf", options.ceph_conf.as_deref().is_some_and(|other| Some(other) != conf), conf_shown),
        (
            "op-timeout",
            options.op_timeout_s.is_some_and(|other| other != group.op_timeout_s),
            group.op_timeout_s.to_string(),
        ),
    ];
    let mut found: Vec<Contradiction> = others
        .into_iter()
        .filter(|(_, differs, _)| *differs)
        .map(|(option, _, groups)| Contradiction {
            option,
            what: format!("{option} of an image of the group is that of [gateways]: {groups}"),
            instead: OR_ALONE.into(),
        })
        .collect();
    if options.luks_key_file.is_some() {
        found.push(Contradiction {
            option: "luks-key-file",
            what: "gateways do not share an encrypted image".into(),
            instead: "serve it by one gateway, with shared = false".into(),
        });
    }
    if options.aptpl.is_some() {
        found.push(Contradiction {
            option: "aptpl",
            what: "reservations of an image of the group are kept in the image".into(),
            instead: OR_ALONE.into(),
        });
    }
    found
}

/// The first contradiction of two units of `targets`: the second one's target, the mistake, advice.
pub fn check_two(targets: &[Target], group: Option<&Gateways>) -> Option<(usize, String, &'static str)> {
    group?;
    let mut seen: BTreeMap<u32, (&ImageName, &UnitSpec)> = BTreeMap::new();
    let targets = targets.iter().enumerate();
    for (at, unit) in targets.flat_map(|(at, target)| target.units.iter().map(move |unit| (at, unit))) {
        let Backing::Rbd(image) = &unit.spec.backing else { continue };
        if !unit.spec.may_be_shared() {
            continue;
        }
        let number = unit_number(image);
        let (other, spec) = *seen.entry(number).or_insert((image, &unit.spec));
        if other != image {
            let what = format!("the images {other} and {image} have the same number in the group, {number}");
            return Some((at, what, "rename one of them, or keep one out of the group with shared = false"));
        }
        if spec.options != unit.spec.options {
            let what = format!("{image} is one unit of the group, and has other options elsewhere");
            return Some((at, what, "write the same options wherever the image is"));
        }
    }
    None
}

impl Config {
    /// The portal group of portals that the command line names.
    pub fn portal_group(&self) -> u16 {
        self.gateways.as_ref().map_or(1, |group| group.number)
    }

    /// Whether the unit is one of the group of gateways.
    pub fn shares(&self, spec: &UnitSpec) -> bool {
        self.gateways.is_some() && spec.may_be_shared()
    }

    /// What contradicts `[gateways]`, of units and targets that were not read beside it.
    pub fn group_mistakes(&self) -> Vec<String> {
        let around = Around::of(self.gateways.as_ref());
        let mut found = Vec::new();
        for target in &self.targets {
            for unit in &target.units {
                let of_unit = around.check(&unit.spec).into_iter();
                found
                    .extend(of_unit.map(|one| {
                        format!("{} LUN {}: {}: {}", target.iqn, unit.lun, one.what, one.instead)
                    }));
            }
            let of_target = around.check_target(target);
            found.extend(of_target.map(|(what, instead)| format!("{}: {what}: {instead}", target.iqn)));
        }
        let of_two = check_two(&self.targets, self.gateways.as_ref());
        found.extend(of_two.map(|(_, what, instead)| format!("{what}: {instead}")));
        found
    }
}

/// Reads `[gateways]`.
pub fn gateways(mut given: Table<'_>, place: &Place<'_>, problems: &mut Problems) -> Option<Gateways> {
    let mut group = Gateways::default();
    given.fill(&mut group, place, problems);
    if let Some(file) = given.value::<String>(&setting::<Gateways>("secret-file"), place, problems) {
        (group.secret_file, group.secrets) = secrets(&file, place, problems);
        group.users = group.secrets.remove(&OF_USERS);
    }
    for table in given.tables("member", problems).unwrap_or_default() {
        group.members.extend(member(table, &group.members, place, problems));
    }
    let own = |member: &GatewayMember| member.number == group.number;
    if let Some(span) = given.said("number").filter(|_| !group.members.iter().any(own)) {
        let what = format!("gateway {} is none of the group's members", group.number);
        let instead = format!(
            "add it, at all gateways: [[gateways.member]] and under it number = {}, link and portals",
            group.number
        );
        problems.error(&span, what, instead);
    }
    given.end(problems);
    (group.number > 0).then_some(group)
}

fn member(
    mut given: Table<'_>,
    others: &[GatewayMember],
    place: &Place<'_>,
    problems: &mut Problems,
) -> Option<GatewayMember> {
    let mut member = GatewayMember::default();
    given.fill(&mut member, place, problems);
    if let Some(span) = given.said("number").filter(|_| others.iter().any(|one| one.number == member.number))
    {
        let what = format!("there are two gateways with number = {}", member.number);
        problems.error(&span, what, "give each a number of its own");
    }
    if let Some(link) = given.value::<String>(&setting::<GatewayMember>("link"), place, problems) {
        match reachable(&link.value, LINK_PORT) {
            Some(address) if others.iter().any(|one| one.link == address) => {
                let what = format!("two gateways are reached at {address}");
                problems.error(&link.span, what, "give each an address of its own");
            }
            Some(address) => member.link = address,
            None => no_address(&link, LINK_PORT, problems),
        }
    }
    let portals = given.elements::<String>(&setting::<GatewayMember>("portals"), place, problems);
    for portal in portals.unwrap_or_default() {
        match reachable(&portal.value, super::ISCSI_PORT) {
            Some(address) => member.portals.push(address),
            None => no_address(&portal, super::ISCSI_PORT, problems),
        }
    }
    given.end(problems);
    (member.number > 0).then_some(member)
}

/// An address that another machine can connect to.
fn reachable(text: &str, port: u16) -> Option<SocketAddr> {
    address_or(text, port).filter(|address| !address.ip().is_unspecified() && address.port() > 0)
}

fn no_address(at: &At<String>, port: u16, problems: &mut Problems) {
    let what = format!("`{}` is no address that others can connect to", at.value);
    problems.error(&at.span, what, format!("write an IP address, with or without a port: 192.0.2.1:{port}"));
}

/// Gives a portal the group that it has in a group of gateways. `said`: where the file gives one.
pub fn portal(group: &Gateways, portal: &mut Portal, said: Option<Range<usize>>, problems: &mut Problems) {
    if let Some(span) = said.filter(|_| portal.group != group.number) {
        let what = format!("portal groups are the gateways' numbers, and this is gateway {}", group.number);
        problems.error(&span, what, "leave group out");
    }
    portal.group = group.number;
}

fn secrets(
    file: &At<String>,
    place: &Place<'_>,
    problems: &mut Problems,
) -> (PathBuf, BTreeMap<u32, Secret>) {
    const WANTED: &str = "write the path of a file with lines of `stag gateways secret`";
    let none = |path: &Path| (path.to_owned(), BTreeMap::new());
    match auth::content(file, WANTED, place, problems) {
        None | Some(Content::Unseen) => none(Path::new(&file.value)),
        Some(Content::Read(path, bytes)) => match secrets_of(&bytes) {
            Ok(secrets) => (path, secrets),
            Err(wrong) => {
                problems.error(&file.span, format!("{}: {wrong}", path.display()), WANTED);
                none(&path)
            }
        },
    }
}

/// The secrets of a file, by their numbers; that of users is [`OF_USERS`].
///
/// # Errors
/// What is wrong with it. It shows no secret.
pub fn secrets_of(text: &[u8]) -> Result<BTreeMap<u32, Secret>, String> {
    let mut secrets = BTreeMap::new();
    let lines = text.split(|byte| *byte == b'\n').enumerate();
    for (at, line) in lines.filter(|(_, line)| !line.trim_ascii().is_empty()) {
        let Some((number, secret)) = secret(line) else {
            return Err(format!("line {} is not a number and 32 to 128 hexadecimal digits", at + 1));
        };
        if secrets.insert(number, secret).is_some() {
            return Err(format!("two secrets have number {number}"));
        }
    }
    let is_link = |number: &u32| *number != OF_USERS;
    if !secrets.keys().any(is_link) { Err("it has no secret".to_owned()) } else { Ok(secrets) }
}

/// Reads `NUMBER HEX`.
pub fn secret(line: &[u8]) -> Option<(u32, Secret)> {
    let text = std::str::from_utf8(line).ok()?;
    let (number, digits) = text.trim().split_once([' ', '\t'])?;
    let digits = digits.trim_start();
    if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) || digits.len() % 2 != 0 {
        return None;
    }
    let mut bytes = Zeroizing::new(Vec::with_capacity(digits.len() / 2));
    for at in (0..digits.len()).step_by(2) {
        bytes.push(u8::from_str_radix(&digits[at..at + 2], 16).ok()?);
    }
    Some((number.parse().ok()?, Secret::new(&bytes)?))
}

#[cfg(test)]
mod tests;
