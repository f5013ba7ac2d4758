//! `stag osd attr` and `stag osd find`.

use iscsi_client::objects::{Attribute, Match, New, Query, Range};
use osd::{AttributeId, Id, ObjectType};
use serde_json::{Value, json};

use super::error::OsdError;
use super::layout;
use super::local::Kind;
use super::names;
use super::session::Opened;
use crate::args::osd::{AttrAll, AttrCommand, AttrSome, Find};
use crate::args::place::Object;

pub async fn attr(command: &AttrCommand) -> Result<String, OsdError> {
    match command {
        AttrCommand::Names => Ok(names::list()),
        AttrCommand::List(args) => list(args).await,
        AttrCommand::Get(args) | AttrCommand::Set(args) | AttrCommand::Rm(args) => {
            let opened = Opened::new(&args.url, &args.reach).await?;
            let result = some(command, args, &opened).await;
            opened.close(result).await
        }
    }
}

fn not_there(place: impl std::fmt::Display) -> OsdError {
    OsdError::wrong(format!("{place}: there is no such object"), "stag osd ls lists those that there are")
}

async fn list(args: &AttrAll) -> Result<String, OsdError> {
    let opened = Opened::new(&args.url, &args.reach).await?;
    let asked = async {
        let id = opened.object().await?;
        opened.device.all_attributes(id).await.map_err(OsdError::at(&args.url))
    };
    let result = asked.await;
    let found = opened.close(result).await?;
    Ok(show(&found, args.reach.json))
}

fn show(attributes: &[Attribute], as_json: bool) -> String {
    if as_json {
        let all: Vec<Value> = attributes
            .iter()
            .map(|one| {
                json!({
                    "page": format!("{:#x}", one.id.page.0),
                    "number": format!("{:#x}", one.id.number),
                    "name": names::name_of(one.id),
                    "value": (!one.value.is_empty()).then(|| names::json(one)),
                    "hex": one.value.iter().map(|byte| format!("{byte:02x}")).collect::<String>(),
                })
            })
            .collect();
        return format!("{:#}\n", Value::from(all));
    }
    let mut text = String::new();
    for one in attributes {
        let id = one.id.to_string();
        let name = names::name_of(one.id).unwrap_or("");
        let value = if one.value.is_empty() { "(none)".to_owned() } else { names::show(one) };
        text += &format!("{id:<22} {name:<20} {value}\n");
    }
    text
}

async fn some(command: &AttrCommand, args: &AttrSome, opened: &Opened) -> Result<String, OsdError> {
    let device = &opened.device;
    let at = || OsdError::at(&args.url);
    let id = opened.object().await?;
    let kind = match args.members {
        true => ObjectType::User,
        false => device.kind(id).await.map_err(at())?.ok_or_else(|| not_there(&args.url))?,
    };
    let understood =
        |error: String| OsdError::wrong(error, "stag osd attr --help shows how attributes are written");
    match command {
        AttrCommand::Get(_) => {
            let ids: Result<Vec<AttributeId>, String> =
                args.attributes.iter().map(|text| names::attribute(text, kind)).collect();
            let ids = ids.map_err(understood)?;
            if args.members {
                let members = device.members(id).with(ids).all().await.map_err(at())?;
                if args.reach.json {
                    let all: Vec<Value> = members
                        .iter()
                        .map(|one| {
                            let values: Vec<Value> = one.attributes.iter().map(names::json).collect();
                            json!({ "id": format!("{:#x}", one.id.object), "values": values })
                        })
                        .collect();
                    return Ok(format!("{:#}\n", Value::from(all)));
                }
                let line = |one: &iscsi_client::objects::Listed| {
                    let values: Vec<String> = one.attributes.iter().map(names::show).collect();
                    format!("{:#x}  {}\n", one.id.object, values.join("  "))
                };
                return Ok(members.iter().map(line).collect());
            }
            let found = device.attributes(id, ids).await.map_err(at())?;
            if let Some(missing) = found.iter().find(|one| one.value.is_empty()) {
                return Err(OsdError::wrong(
                    format!("{} has no attribute {}", args.url, missing.id),
                    "stag osd attr list shows those that it has",
                ));
            }
            if args.raw {
                for one in &found {
                    crate::out::write(&one.value)?;
                }
                return Ok(String::new());
            }
            if !args.reach.json && found.len() == 1 {
                return Ok(found.iter().map(|one| names::show(one) + "\n").collect());
            }
            Ok(show(&found, args.reach.json))
        }
        _ => {
            let removes = matches!(command, AttrCommand::Rm(_));
            let mut set = Vec::new();
            for text in &args.attributes {
                let (name, value) = match (removes, text.split_once('=')) {
                    (true, _) => (text.as_str(), Vec::new()),
                    (false, Some((name, value))) => (name, names::value(value).map_err(understood)?),
                    (false, None) => {
                        return Err(OsdError::wrong(
                            format!("`{text}` has no value"),
                            format!("write {text}=VALUE"),
                        ));
                    }
                };
                set.push(Attribute::new(names::attribute(name, kind).map_err(understood)?, value));
            }
            match args.members {
                true => device.set_member_attributes(id, set).await,
                false => device.set_attributes(id, set).await,
            }
            .map_err(at())?;
            Ok(String::new())
        }
    }
}

pub async fn find(args: &Find) -> Result<String, OsdError> {
    let opened = Opened::new(&args.url, &args.reach).await?;
    let result = found(args, &opened).await;
    opened.close(result).await
}

async fn found(args: &Find, opened: &Opened) -> Result<String, OsdError> {
    let tree = opened.tree()?;
    let device = &opened.device;
    let at = || OsdError::at(&args.url);
    let within = match &args.url.object {
        None => Id::partition(tree.partition),
        Some(Object::Id(id)) => tree.id(*id),
        Some(Object::Path(path)) => {
            let entry = tree.get(path).await?;
            match entry.collection.filter(|_| entry.meta.kind == Kind::Directory) {
                Some(collection) => tree.id(collection),
                None => {
                    return Err(OsdError::wrong(
                        format!("{} is no directory", args.url),
                        "leave the file's name out",
                    ));
                }
            }
        }
    };
    let mut query = Query { want: if args.any { Match::Any } else { Match::All }, ..Query::default() };
    for text in &args.ranges {
        query.ranges.push(range(text).map_err(|error| {
            OsdError::wrong(
                error,
                "write ATTRIBUTE=VALUE or ATTRIBUTE=MIN..MAX, as `stag osd find --help` shows",
            )
        })?);
    }
    query.ranges.extend(args.name.iter().map(|name| Range::exactly(layout::NAME, name.as_bytes())));
    let mut made = None;
    if let Some(into) = args.into {
        query.into = into;
        if into == 0 {
            let id =
                device.create_tracking_collection(tree.partition, New::default(), 0).await.map_err(at())?;
            query.into = id.object;
            made = Some(id.object);
        }
    }
    let ids = device.query(within, &query).await.map_err(at())?;
    let mut lines = Vec::new();
    for id in ids {
        let name = [layout::NAME, osd::attributes::numbers::user_information::NAME];
        let names = match device.attributes(id, name).await {
            Ok(names) => names,
            // Gone meanwhile.
            Err(error) if error.is_not_found() => continue,
            Err(error) => return Err(at()(error)),
        };
        let name = names.iter().find(|one| !one.value.is_empty()).map(|one| crate::shown::text(&one.value));
        lines.push((id.object, name));
    }
    if args.reach.json {
        let found: Vec<Value> =
            lines.iter().map(|(id, name)| json!({ "id": format!("{id:#x}"), "name": name })).collect();
        let into = (query.into != 0).then(|| format!("{:#x}", query.into));
        return Ok(format!("{:#}\n", json!({ "found": found, "into": into })));
    }
    let mut text: String = lines
        .iter()
        .map(|(id, name)| {
            format!("{id:#x}{}\n", name.as_ref().map_or_else(String::new, |name| format!("  {name}")))
        })
        .collect();
    if let Some(made) = made {
        text += &format!("collection {made:#x}\n");
    }
    Ok(text)
}

/// `ATTRIBUTE=VALUE` or `ATTRIBUTE=MIN..MAX`.
fn range(text: &str) -> Result<Range, String> {
    let (name, value) = text.split_once('=').ok_or_else(|| format!("`{text}` has no value"))?;
    let attribute = names::attribute(name, ObjectType::User)?;
    // The form of numbers is said once, for both ends.
    let Some((min, max)) = value.split_once("..") else {
        return Ok(Range::exactly(attribute, names::value(value)?));
    };
    let form = min
        .split_once(':')
        .map(|(form, _)| form)
        .filter(|form| matches!(*form, "u8" | "u16" | "u32" | "u48" | "u64" | "hex"));
    let min_is_open = min.is_empty() || form.is_some_and(|form| min.len() == form.len() + 1);
    let max = match form {
        Some(form) if !max.is_empty() && !max.contains(':') => format!("{form}:{max}"),
        _ => max.to_owned(),
    };
    let end = |text: &str, open: bool| if open { Ok(None) } else { names::value(text).map(Some) };
    Ok(Range { attribute, min: end(min, min_is_open)?, max: end(&max, max.is_empty())? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_has_two_ends_one_or_a_value() {
        let number = |number: u64| Some(number.to_be_bytes().to_vec());
        let of = |text: &str| range(text).map(|range| (range.min, range.max));
        assert_eq!(of("length=u64:1..5").unwrap(), (number(1), number(5)));
        assert_eq!(of("length=u64:1K..").unwrap(), (number(1024), None));
        assert_eq!(of("length=u64:..7").unwrap(), (None, number(7)));
        assert_eq!(of("length=u64:7").unwrap(), (number(7), number(7)));
        assert_eq!(of("10000:1=a..b").unwrap(), (Some(b"a".to_vec()), Some(b"b".to_vec())));
        assert_eq!(of("10000:1=..b").unwrap(), (None, Some(b"b".to_vec())));
        for wrong in ["length", "nonsense=1", "length=u8:256..", "length=u8:1..256"] {
            assert!(range(wrong).is_err(), "{wrong}");
        }
    }
}
