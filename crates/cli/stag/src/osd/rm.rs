//! `stag osd rm`: objects, files and trees go.

use std::cell::RefCell;
use std::rc::Rc;

use iscsi_client::objects::{Attribute, Operation, Query, Range};
use osd::{Command, Id};
use serde_json::json;

use super::error::OsdError;
use super::layout::{self, Entry};
use super::local::Kind;
use super::session::Opened;
use super::tree::Tree;
use crate::args::osd::Rm;
use crate::args::place::{Object, Where};
use crate::progress::Progress;
use crate::work;

pub async fn rm(args: &Rm) -> Result<String, OsdError> {
    let progress = Rc::new(Progress::new(args.flow.quiet));
    let Some(first) = args.urls.first() else { return Ok(String::new()) };
    if let Some(other) = args.urls.iter().find(|one| one.url != first.url) {
        return Err(OsdError::wrong(
            format!("{} is on another device than {}", other, first),
            "remove from one device at a time",
        ));
    }
    let opened = Opened::new(first, &args.reach).await?;
    let mut result = Ok(());
    for url in &args.urls {
        result = one(args, url, &opened, &progress).await;
        if result.is_err() {
            break;
        }
    }
    opened.close(result).await?;
    let (files, _, _) = progress.finish(true);
    Ok(if args.reach.json { format!("{:#}\n", json!({ "removed": files })) } else { String::new() })
}

async fn one(args: &Rm, url: &Where, opened: &Opened, progress: &Rc<Progress>) -> Result<(), OsdError> {
    let Some(partition) = url.partition else {
        return Err(OsdError::wrong(format!("{url} is a whole device"), "stag osd format erases it"));
    };
    let tree =
        Tree { device: opened.device.clone(), partition, place: format!("{}/{partition:#x}", url.url) };
    match &url.object {
        None if args.unfinished => remove_unfinished(&tree, args.hours, progress).await,
        _ if args.unfinished => Err(OsdError::wrong(
            format!("{url} is no partition"),
            "what is not finished is in no directory: name the partition",
        )),
        None => Err(OsdError::wrong(format!("{url} is a partition"), "stag osd rmpart removes it")),
        Some(Object::Id(id)) => match tree.device.remove(tree.id(*id)).await {
            Err(error) if args.force && error.is_not_found() => Ok(()),
            Err(error) => Err(OsdError::at(url)(error)),
            Ok(()) => {
                progress.file(0);
                Ok(())
            }
        },
        Some(Object::Path(path)) => {
            let entry = match args.force {
                true => match tree.find(path).await? {
                    Some(entry) => entry,
                    None => return Ok(()),
                },
                false => tree.get(path).await?,
            };
            if entry.meta.kind != Kind::Directory {
                tree.remove_file(&entry).await.map_err(OsdError::at(url))?;
                progress.file(0);
                return Ok(());
            }
            if !args.recursive {
                return Err(OsdError::wrong(
                    format!("{url} is a directory"),
                    "-r removes it with all that is in it",
                ));
            }
            remove_tree(tree, entry, args.flow.depth, progress).await
        }
    }
}

/// Removes what a `put` that was cut off has left: objects that were begun at least so many hours
/// ago and are not finished.
async fn remove_unfinished(tree: &Tree, hours: u32, progress: &Rc<Progress>) -> Result<(), OsdError> {
    let until = layout::now_ms().saturating_sub(u64::from(hours) * 3_600_000);
    let begun = Range {
        attribute: layout::UNFINISHED,
        min: Some(vec![0; 8]),
        max: Some(until.to_be_bytes().to_vec()),
    };
    let query = Query::default().with(begun);
    let all = Id::partition(tree.partition);
    let found = tree.device.query(all, &query).await.map_err(OsdError::at(&tree.place))?;
    for id in found {
        // Its put may have ended since it was found, or end before it is removed: the put finishes
        // it and looks for the mark, this marks it and looks whether it is finished. One of both
        // sees the other.
        let keep = || Attribute::new(layout::LEFT_BEHIND, []);
        let mark = Operation::new(Command::SetAttributes(id)).set(layout::LEFT_BEHIND, [1u8]);
        match tree.device.run(mark.get([layout::UNFINISHED])).await {
            Ok(reply) if reply.value(layout::UNFINISHED).is_some() => {}
            Ok(_) => match tree.device.set_attributes(id, [keep()]).await {
                Err(error) if !error.is_not_found() => return Err(OsdError::at(id)(error)),
                _ => continue,
            },
            Err(error) if error.is_not_found() => continue,
            Err(error) => return Err(OsdError::at(id)(error)),
        }
        // Links to an object are made once it is complete: keep it, even if its put did not remove
        // the mark.
        if tree.names_of(id.object).await.map_err(OsdError::at(id))? > 0 {
            tree.device.set_attributes(id, [layout::finished(), keep()]).await.map_err(OsdError::at(id))?;
            continue;
        }
        match tree.device.remove(id).await {
            // Its own put may have removed it.
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(OsdError::at(id)(error)),
            Ok(()) => progress.file(0),
        }
    }
    Ok(())
}

/// Removes a directory with all that is in it.
async fn remove_tree(tree: Tree, top: Entry, depth: u16, progress: &Rc<Progress>) -> Result<(), OsdError> {
    struct State {
        tree: Tree,
        progress: Rc<Progress>,
        /// Directories that have subdirectories, each after its parent.
        directories: RefCell<Vec<Entry>>,
        failed: RefCell<Option<OsdError>>,
    }
    let state = Rc::new(State {
        tree,
        progress: progress.clone(),
        directories: RefCell::default(),
        failed: RefCell::new(None),
    });
    let shared = state.clone();
    work::run(vec![top], depth, move |entry: Entry, jobs| {
        let state = shared.clone();
        async move {
            let tree = &state.tree;
            let place = || OsdError::at(format!("{}/{:#x}", tree.place, entry.id));
            let done = async {
                if entry.meta.kind != Kind::Directory {
                    tree.remove_file(&entry).await.map_err(place())?;
                    state.progress.file(0);
                    return Ok(());
                }
                let children = tree.children(&entry).await.map_err(place())?;
                let plain =
                    children.iter().all(|child| !matches!(child.meta.kind, Kind::Directory | Kind::Link));
                if let (true, Some(collection), false) = (plain, entry.collection, children.is_empty()) {
                    // All of them by one command.
                    tree.device.remove_members(tree.id(collection)).await.map_err(place())?;
                    children.iter().for_each(|_| state.progress.file(0));
                } else {
                    children.into_iter().for_each(|child| jobs.add(child));
                }
                state.directories.borrow_mut().push(entry.clone());
                Ok(())
            };
            if let Err(error) = done.await {
                state.failed.borrow_mut().get_or_insert(error);
                jobs.stop();
            }
        }
    })
    .await;
    if let Some(error) = state.failed.borrow_mut().take() {
        return Err(error);
    }
    let directories = std::mem::take(&mut *state.directories.borrow_mut());
    for entry in directories.into_iter().rev() {
        let place = format!("{}/{:#x}", state.tree.place, entry.id);
        state.tree.remove_directory(&entry).await.map_err(OsdError::at(place))?;
        progress.file(0);
    }
    Ok(())
}
