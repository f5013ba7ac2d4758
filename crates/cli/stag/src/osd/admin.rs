//! Partitions, collections, snapshots and checks: `stag osd format`, `mkpart`, `rmpart`, `coll`,
//! `snapshot` and `check`.

use iscsi_client::objects::{Attribute, New};
use osd::attributes::numbers::{collection_information, partition_information, partition_quotas};
use serde_json::json;

use super::error::OsdError;
use super::session::Opened;
use super::show::map_json;
use crate::args::osd::{Check, Coll, CollCommand, Format, Mkpart, Rmpart, Snapshot, SnapshotCommand};
use crate::args::place::{Offline, Where};

pub async fn format(args: &Format) -> Result<String, OsdError> {
    if args.url.partition.is_some() {
        return Err(OsdError::wrong(
            format!("{} is not a whole device", args.url),
            "stag osd rmpart -r removes a partition",
        ));
    }
    let opened = Opened::new(&args.url, &args.reach).await?;
    let result = opened.device.format(args.capacity.unwrap_or(0)).await.map_err(OsdError::at(&args.url));
    opened.close(result).await?;
    Ok(String::new())
}

/// An id, alone on a line or as JSON.
fn made(id: u64, as_json: bool) -> String {
    match as_json {
        true => format!("{:#}\n", json!({ "id": format!("{id:#x}") })),
        false => format!("{id:#x}\n"),
    }
}

pub async fn mkpart(args: &Mkpart) -> Result<String, OsdError> {
    if args.url.object.is_some() {
        return Err(OsdError::wrong(
            "a partition is not in another one",
            "leave what stands behind its id out",
        ));
    }
    let mut set = Vec::new();
    set.extend(args.name.as_ref().map(|name| Attribute::new(partition_information::NAME, name.as_bytes())));
    set.extend(args.capacity.map(|bytes| Attribute::number(partition_quotas::CAPACITY, bytes)));
    set.extend(args.objects.map(|count| Attribute::number(partition_quotas::OBJECTS, count)));
    let opened = Opened::new(&args.url, &args.reach).await?;
    let result = opened.device.create_partition(args.url.partition.unwrap_or(0), set).await;
    let id = opened.close(result.map_err(OsdError::at(&args.url))).await?;
    Ok(made(id, args.reach.json))
}

pub async fn rmpart(args: &Rmpart) -> Result<String, OsdError> {
    let opened = Opened::new(&args.url, &args.reach).await?;
    let remove = async {
        let partition = opened.partition()?;
        if args.url.object.is_some() {
            return Err(OsdError::wrong(
                format!("{} is no partition", args.url),
                "stag osd rm removes objects",
            ));
        }
        opened.device.remove_partition(partition, args.recursive).await.map_err(OsdError::at(&args.url))
    };
    let result = remove.await;
    opened.close(result).await?;
    Ok(String::new())
}

pub async fn coll(args: &Coll) -> Result<String, OsdError> {
    let (url, reach) = match &args.command {
        CollCommand::Make { url, reach, .. }
        | CollCommand::Empty { url, reach }
        | CollCommand::Rm { url, reach, .. } => (url, reach),
        CollCommand::Add(members) | CollCommand::Take(members) => (&members.collection, &members.reach),
    };
    let opened = Opened::new(url, reach).await?;
    let result = collection(args, url, &opened).await;
    let id = opened.close(result).await?;
    Ok(id.map_or_else(String::new, |id| made(id, reach.json)))
}

async fn collection(args: &Coll, url: &Where, opened: &Opened) -> Result<Option<u64>, OsdError> {
    let device = &opened.device;
    let partition = opened.partition()?;
    let at = || OsdError::at(url);
    if let CollCommand::Make { name, .. } = &args.command {
        let mut new = New { id: url.object_id().unwrap_or(0), ..New::default() };
        new.attributes
            .extend(name.as_ref().map(|name| Attribute::new(collection_information::NAME, name.as_bytes())));
        return Ok(Some(device.create_collection(partition, new).await.map_err(at())?.object));
    }
    let id = opened.object().await?;
    if id.is_partition() {
        return Err(OsdError::wrong(
            format!("{url}: the collection is missing"),
            format!("which there are: stag osd ls --collections {url}"),
        ));
    }
    match &args.command {
        CollCommand::Add(members) | CollCommand::Take(members) => {
            for object in &members.objects {
                if object.url != url.url || object.partition != url.partition {
                    return Err(OsdError::wrong(
                        format!("{object} is in another partition than the collection"),
                        "a collection holds objects of its own partition",
                    ));
                }
                let tree = opened.tree()?;
                let member = match (object.object_id(), object.path()) {
                    (Some(id), _) => tree.id(id),
                    (None, Some(path)) if !path.is_empty() => tree.id(tree.get(path).await?.id),
                    _ => return Err(OsdError::wrong(format!("{object} is a partition"), "name objects")),
                };
                let add = matches!(args.command, CollCommand::Add(_));
                match add {
                    true => device.add_member(member, id.object).await,
                    false => device.take_member(member, id.object).await.map(drop),
                }
                .map_err(OsdError::at(object))?;
            }
        }
        CollCommand::Empty { .. } => device.remove_members(id).await.map_err(at())?,
        CollCommand::Rm { force, .. } => device.remove_collection(id, *force).await.map_err(at())?,
        CollCommand::Make { .. } => {}
    }
    Ok(None)
}

pub async fn snapshot(args: &Snapshot) -> Result<String, OsdError> {
    let (url, reach) = match &args.command {
        SnapshotCommand::Create(one) | SnapshotCommand::Clone(one) => (&one.url, &one.reach),
        SnapshotCommand::Refresh(one) | SnapshotCommand::Detach(one) => (&one.url, &one.reach),
        SnapshotCommand::Restore { url, reach, .. } | SnapshotCommand::Diff { url, reach, .. } => {
            (url, reach)
        }
    };
    let opened = Opened::new(url, reach).await?;
    let at = || OsdError::at(url);
    let device = &opened.device;
    let work = async {
        let partition = opened.partition()?;
        if let SnapshotCommand::Diff { other, .. } = &args.command {
            let id = opened.object().await?;
            if id.is_partition() {
                return Err(OsdError::wrong(
                    format!("{url}: the object is missing"),
                    "name it by its path or its id",
                ));
            }
            let map = device.compare(id, *other).await.map_err(at())?;
            if reach.json {
                return Ok(format!("{:#}\n", map_json(&map)));
            }
            return Ok(map.iter().map(|part| format!("{:>14} {:>14}\n", part.at, part.len)).collect());
        }
        if url.object.is_some() {
            return Err(OsdError::wrong(
                format!("{url} is no partition"),
                "snapshots are of whole partitions",
            ));
        }
        match &args.command {
            SnapshotCommand::Create(one) => {
                let id = device.create_snapshot(partition, one.id.unwrap_or(0)).await.map_err(at())?;
                return Ok(made(id, reach.json));
            }
            SnapshotCommand::Clone(one) => {
                let id = device.create_clone(partition, one.id.unwrap_or(0)).await.map_err(at())?;
                return Ok(made(id, reach.json));
            }
            SnapshotCommand::Refresh(_) => device.refresh(partition).await,
            SnapshotCommand::Detach(_) => device.detach(partition).await,
            SnapshotCommand::Restore { snapshot, .. } => device.restore(partition, *snapshot).await,
            SnapshotCommand::Diff { .. } => Ok(()),
        }
        .map_err(at())?;
        Ok(String::new())
    };
    let result = work.await;
    opened.close(result).await
}

/// `check`.
///
/// # Errors
/// One problem found.
pub async fn check(args: &Check) -> Result<String, OsdError> {
    match &args.place {
        Offline::Directory(path) => super::offline::check(path, args.repair, args.reach.json).await,
        Offline::Device(url) => {
            if args.repair {
                return Err(OsdError::wrong(
                    "a device that serves repairs nothing",
                    "end it, and name its directory: stag osd check --repair DIR",
                ));
            }
            let opened = Opened::new(url, &args.reach).await?;
            let result = opened.device.check(url.partition).await.map_err(OsdError::at(url));
            opened.close(result).await?;
            Ok(if args.reach.json {
                format!("{:#}\n", json!({ "ok": true }))
            } else {
                "all is in order\n".into()
            })
        }
    }
}
