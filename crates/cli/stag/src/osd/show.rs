//! `stag osd ls` and `stag osd stat`: what there is.

use std::fmt::Write as _;

use backing::size::Size;
use iscsi_client::objects::Objects;
use osd::attributes::numbers::{collection_information, partition_information, user_information};
use osd::{Id, ObjectType};
use serde_json::{Value, json};

use super::error::OsdError;
use super::layout::Entry;
use super::local::Kind;
use super::names;
use super::session::Opened;
use super::tree::Tree;
use crate::args::osd::{Ls, Stat};
use crate::args::place::Object;
use crate::shown;

pub async fn ls(args: &Ls) -> Result<String, OsdError> {
    let opened = Opened::new(&args.url, &args.reach).await?;
    let result = list(args, &opened).await;
    let lines = opened.close(result).await?;
    if args.reach.json {
        let lines: Vec<Value> = lines.into_iter().map(|(_, json)| json).collect();
        return Ok(format!("{:#}\n", Value::from(lines)));
    }
    Ok(lines.into_iter().fold(String::new(), |text, (line, _)| text + &line + "\n"))
}

type Lines = Vec<(String, Value)>;

async fn list(args: &Ls, opened: &Opened) -> Result<Lines, OsdError> {
    let device = &opened.device;
    let at = || OsdError::at(&args.url);
    let Some(partition) = args.url.partition else {
        return partitions(device, args.long).await.map_err(at());
    };
    if args.objects || args.collections {
        return by_id(device, partition, args.collections, args.long).await.map_err(at());
    }
    if let Some(Object::Id(id)) = args.url.object {
        let id = Id::new(partition, id);
        return match device.kind(id).await.map_err(at())? {
            Some(ObjectType::Collection) => {
                let list = device.members(id).with(ABOUT_OBJECT);
                objects(list, args.long, user_information::NAME).await.map_err(at())
            }
            Some(_) => {
                Err(OsdError::wrong(format!("{} is an object", args.url), "stag osd stat tells about it"))
            }
            None => Err(OsdError::wrong(
                format!("{}: there is no such object", args.url),
                format!("what there is: stag osd ls --objects {}/{partition:#x}", args.url.url),
            )),
        };
    }
    let tree = opened.tree()?;
    let path = args.url.path().unwrap_or_default();
    if path.is_empty() && tree.top().await?.is_none() {
        // No tree: what there is has ids only.
        return by_id(device, partition, false, args.long).await.map_err(at());
    }
    let here = tree.get(path).await?;
    if here.meta.kind != Kind::Directory {
        return Ok(vec![entry_line(&here, "", args.long)]);
    }
    let mut lines = Vec::new();
    // Directories yet to be listed, the next one last.
    let mut left = vec![(here, String::new())];
    while let Some((directory, prefix)) = left.pop() {
        let children = tree.children(&directory).await.map_err(at())?;
        let mut below = Vec::new();
        for child in &children {
            lines.push(entry_line(child, &prefix, args.long));
            if args.recursive && child.meta.kind == Kind::Directory {
                below.push((child.clone(), format!("{prefix}{}/", shown::text(&child.name))));
            }
        }
        left.extend(below.into_iter().rev());
    }
    Ok(lines)
}

async fn partitions(device: &Objects, long: bool) -> Result<Lines, iscsi_client::objects::ObjectError> {
    use partition_information as info;
    let found = device.partitions().with([info::NAME, info::USED_CAPACITY, info::OBJECTS]).all().await?;
    let line = |one: iscsi_client::objects::Listed| {
        let name = shown::text(one.value(info::NAME).unwrap_or_default());
        let (used, count) = (one.number(info::USED_CAPACITY), one.number(info::OBJECTS));
        let id = format!("{:#x}", one.id.partition);
        let mut line = id.clone();
        if long {
            line += &format!(
                "  {:>8}  {:>10} objects",
                used.map_or_else(|| "-".into(), |used| Size(used).to_string()),
                count.map_or_else(|| "-".into(), |count| count.to_string())
            );
        }
        if !name.is_empty() {
            line += &format!("  {name}");
        }
        (line, json!({ "id": id, "name": name, "used_bytes": used, "objects": count }))
    };
    Ok(found.into_iter().map(line).collect())
}

const ABOUT_OBJECT: [osd::AttributeId; 3] =
    [user_information::NAME, user_information::LOGICAL_LENGTH, super::layout::NAME];

async fn by_id(
    device: &Objects,
    partition: u64,
    collections: bool,
    long: bool,
) -> Result<Lines, iscsi_client::objects::ObjectError> {
    if collections {
        let list = device.collections(partition).with([collection_information::NAME]);
        return objects(list, long, collection_information::NAME).await;
    }
    objects(device.objects(partition).with(ABOUT_OBJECT), long, user_information::NAME).await
}

async fn objects(
    mut list: iscsi_client::objects::List,
    long: bool,
    name: osd::AttributeId,
) -> Result<Lines, iscsi_client::objects::ObjectError> {
    let mut lines = Vec::new();
    while let Some(one) = list.next().await? {
        let id = format!("{:#x}", one.id.object);
        let own = one.value(name).or_else(|| one.value(super::layout::NAME)).map(shown::text);
        let length = one.number(user_information::LOGICAL_LENGTH);
        let mut line = id.clone();
        if let (true, Some(length)) = (long, length) {
            let _ = write!(line, "  {length:>12}");
        }
        if let Some(own) = &own {
            let _ = write!(line, "  {own}");
        }
        lines.push((line, json!({ "id": id, "name": own, "length": length })));
    }
    Ok(lines)
}

fn permissions(entry: &Entry) -> String {
    let mode = entry.meta.mode;
    let bit = |bit: u32, letter: char| if mode & bit != 0 { letter } else { '-' };
    let execute = |bit: u32, special: u32, letters: [char; 2]| match (mode & bit != 0, mode & special != 0) {
        (false, false) => '-',
        (true, false) => 'x',
        (true, true) => letters[0],
        (false, true) => letters[1],
    };
    [
        entry.meta.kind.letter(),
        bit(0o400, 'r'),
        bit(0o200, 'w'),
        execute(0o100, 0o4000, ['s', 'S']),
        bit(0o040, 'r'),
        bit(0o020, 'w'),
        execute(0o010, 0o2000, ['s', 'S']),
        bit(0o004, 'r'),
        bit(0o002, 'w'),
        execute(0o001, 0o1000, ['t', 'T']),
    ]
    .into_iter()
    .collect()
}

fn entry_line(entry: &Entry, prefix: &str, long: bool) -> (String, Value) {
    let meta = &entry.meta;
    let name = format!("{prefix}{}", shown::text(&entry.name));
    let target = meta.target.as_deref().map(shown::text);
    let mut line = String::new();
    if long {
        let time = shown::time(meta.mtime.s);
        let _ =
            write!(line, "{} {:>6} {:>6} {:>12} {time} ", permissions(entry), meta.uid, meta.gid, meta.size);
    }
    line += &name;
    match (meta.kind, &target) {
        (Kind::Directory, _) if !long => line.push('/'),
        (Kind::Symlink, Some(target)) if long => {
            let _ = write!(line, " -> {target}");
        }
        _ => {}
    }
    let json = json!({
        "path": name,
        "id": format!("{:#x}", entry.id),
        "kind": meta.kind.name(),
        "mode": format!("{:04o}", meta.mode),
        "uid": meta.uid,
        "gid": meta.gid,
        "size": meta.size,
        "mtime": meta.mtime.s,
        "target": target,
        "link": entry.link.map(|link| format!("{link:#x}")),
    });
    (line, json)
}

pub async fn stat(args: &Stat) -> Result<String, OsdError> {
    let opened = Opened::new(&args.url, &args.reach).await?;
    let result = about(args, &opened).await;
    let facts = opened.close(result).await?;
    if args.reach.json {
        return Ok(format!("{:#}\n", Value::Object(facts)));
    }
    let mut text = String::new();
    for (name, value) in facts {
        match value {
            Value::Null => {}
            Value::String(value) if value.is_empty() => {}
            Value::String(value) => {
                let _ = writeln!(text, "{name:<24} {value}");
            }
            Value::Array(parts) => {
                let _ = writeln!(text, "{name}");
                for part in parts {
                    let _ = writeln!(
                        text,
                        "  {:>14} {:>14}  {}",
                        part["at"].as_u64().unwrap_or(0),
                        part["length"].as_u64().unwrap_or(0),
                        part["kind"].as_str().unwrap_or("")
                    );
                }
            }
            other => {
                let _ = writeln!(text, "{name:<24} {other}");
            }
        }
    }
    Ok(text)
}

type Facts = serde_json::Map<String, Value>;

async fn about(args: &Stat, opened: &Opened) -> Result<Facts, OsdError> {
    let device = &opened.device;
    let at = || OsdError::at(&args.url);
    let id = opened.object().await?;
    let kind = device.kind(id).await.map_err(at())?;
    let Some(kind) = kind else {
        return Err(OsdError::wrong(
            format!("{}: there is no such object", args.url),
            format!("what there is: stag osd ls {}", args.url.url),
        ));
    };
    let mut facts = Facts::new();
    facts.insert("object".into(), id.to_string().into());
    facts.insert("kind".into(), kind.to_string().into());
    for attribute in names::standard(kind) {
        facts.insert(attribute.0.into(), Value::Null);
    }
    let ids = names::standard(kind).map(|(_, id)| id);
    for attribute in device.attributes(id, ids).await.map_err(at())? {
        if let (Some(name), false) = (names::name_of(attribute.id), attribute.value.is_empty()) {
            let value =
                if args.reach.json { names::json(&attribute) } else { names::show(&attribute).into() };
            facts.insert(name.into(), value);
        }
    }
    facts.retain(|_, value| !value.is_null());
    if kind == ObjectType::User {
        let tree = Tree { device: device.clone(), partition: id.partition, place: args.url.to_string() };
        if let Some(entry) = tree.entry(id.object).await.map_err(at())? {
            let (_, Value::Object(file)) = entry_line(&entry, "", true) else { return Ok(facts) };
            facts.insert("file".into(), permissions(&entry).into());
            for key in ["uid", "gid", "target", "link"] {
                if let Some(value) = file.get(key).filter(|value| !value.is_null()) {
                    facts.insert(key.into(), value.clone());
                }
            }
            facts.insert("mtime".into(), shown::time(entry.meta.mtime.s).into());
        }
        let collections = device.collections_of(id).await.map_err(at())?;
        if !collections.is_empty() {
            let collections: Vec<String> = collections.iter().map(|id| format!("{id:#x}")).collect();
            facts.insert("collections".into(), collections.join(" ").into());
        }
        if args.map {
            let map = device.map(id).await.map_err(at())?;
            facts.insert("map".into(), map_json(&map));
        }
    }
    Ok(facts)
}

/// Ranges of an object, as JSON.
pub fn map_json(map: &[iscsi_client::objects::MapEntry]) -> Value {
    use iscsi_client::objects::MapType;
    let kind = |kind| match kind {
        MapType::Written => "data",
        MapType::Hole => "hole",
        MapType::Damaged => "damaged",
        MapType::DamagedAttributes => "damaged attributes",
    };
    let parts: Vec<Value> = map
        .iter()
        .map(|part| json!({ "at": part.at, "length": part.len, "kind": kind(part.kind) }))
        .collect();
    parts.into()
}
