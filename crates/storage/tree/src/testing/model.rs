//! A plain model of a tree, and operations that both do: their results must be the same.

use std::collections::BTreeMap;

use super::{Place, Without, mode_of, size_of, write_all};
use crate::{Kind, New, NewFile, NodeId, RemovedKind, SetAttributes, Tree, TreeError};

/// An operation. Numbers of nodes and names are taken modulo their count, removed nodes included.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub enum Operation {
    /// Makes a file, a directory or a symbolic link.
    Create { directory: usize, name: u8, kind: u8 },
    /// Removes a file, a directory or either.
    Remove { directory: usize, name: u8, kind: u8 },
    /// Moves a name.
    Rename { from: usize, name: u8, to: usize, new: u8 },
    /// Gives a node another name.
    Link { node: usize, directory: usize, name: u8 },
    /// Writes bytes of one value.
    Write { node: usize, at: u16, len: u16, byte: u8 },
    /// Reads and compares.
    Read { node: usize, at: u16, len: u16 },
    /// Cuts or extends.
    SetSize { node: usize, size: u16 },
    /// Reserves space.
    Allocate { node: usize, at: u16, len: u16 },
    /// Makes a hole.
    Deallocate { node: usize, at: u16, len: u16 },
    /// Copies.
    Copy { from: usize, at: u16, to: usize, place: u16, len: u16 },
    /// Sets or removes an extended attribute.
    SetExtended { node: usize, name: u8, value: Option<u8> },
    /// Lists a directory in parts.
    List { directory: usize, bytes: usize },
}

enum Body {
    File(Vec<u8>),
    Directory { parent: usize, entries: BTreeMap<Vec<u8>, usize> },
    Symlink,
}

struct Node {
    id: NodeId,
    body: Body,
    links: u32,
    extended: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// Expected content of the tree.
struct Model {
    nodes: Vec<Node>,
}

const NAMES: [&str; 5] = ["a", "b", "c", "dd", "a longer name than the others"];

fn name(number: u8) -> Vec<u8> {
    NAMES[usize::from(number) % NAMES.len()].into()
}

impl Model {
    fn is_directory(&self, node: usize) -> bool {
        matches!(self.nodes[node].body, Body::Directory { .. })
    }

    /// A directory, existing or removed.
    fn directory(&self, number: usize) -> usize {
        let all: Vec<usize> = (0..self.nodes.len()).filter(|node| self.is_directory(*node)).collect();
        all[number % all.len()]
    }

    fn node(&self, number: usize) -> usize {
        number % self.nodes.len()
    }

    fn alive(&self, node: usize) -> Result<(), TreeError> {
        if self.nodes[node].links > 0 { Ok(()) } else { Err(TreeError::Stale) }
    }

    fn entries(&mut self, node: usize) -> Result<&mut BTreeMap<Vec<u8>, usize>, TreeError> {
        self.alive(node)?;
        match &mut self.nodes[node].body {
            Body::Directory { entries, .. } => Ok(entries),
            _ => Err(TreeError::NotDirectory),
        }
    }

    fn data(&mut self, node: usize) -> Result<&mut Vec<u8>, TreeError> {
        self.alive(node)?;
        match &mut self.nodes[node].body {
            Body::File(data) => Ok(data),
            Body::Directory { .. } => Err(TreeError::IsDirectory),
            Body::Symlink => Err(TreeError::Invalid),
        }
    }

    fn is_empty(&mut self, node: usize) -> Result<bool, TreeError> {
        Ok(self.entries(node)?.is_empty())
    }

    fn unlink(&mut self, node: usize) {
        self.nodes[node].links = if self.is_directory(node) { 0 } else { self.nodes[node].links - 1 };
    }

    fn remove(&mut self, directory: usize, name: &[u8], kind: RemovedKind) -> Result<(), TreeError> {
        let child = *self.entries(directory)?.get(name).ok_or(TreeError::NoEntry)?;
        match (kind, self.is_directory(child)) {
            (RemovedKind::File, true) => return Err(TreeError::IsDirectory),
            (RemovedKind::Directory, false) => return Err(TreeError::NotDirectory),
            (_, true) if !self.is_empty(child)? => return Err(TreeError::NotEmpty),
            _ => {}
        }
        self.entries(directory)?.remove(name);
        self.unlink(child);
        Ok(())
    }

    fn rename(&mut self, from: (usize, &[u8]), to: (usize, &[u8])) -> Result<(), TreeError> {
        let moved = *self.entries(from.0)?.get(from.1).ok_or(TreeError::NoEntry)?;
        let replaced = self.entries(to.0)?.get(to.1).copied();
        if replaced == Some(moved) {
            return Ok(());
        }
        let mut at = to.0;
        while let Body::Directory { parent, .. } = self.nodes[at].body {
            if at == moved {
                return Err(TreeError::Invalid);
            }
            if at == parent {
                break;
            }
            at = parent;
        }
        if let Some(replaced) = replaced {
            match (self.is_directory(moved), self.is_directory(replaced)) {
                (true, false) => return Err(TreeError::NotDirectory),
                (false, true) => return Err(TreeError::IsDirectory),
                (true, true) if !self.is_empty(replaced)? => return Err(TreeError::NotEmpty),
                _ => self.unlink(replaced),
            }
        }
        self.entries(from.0)?.remove(from.1);
        self.entries(to.0)?.insert(to.1.into(), moved);
        if let Body::Directory { parent, .. } = &mut self.nodes[moved].body {
            *parent = to.0;
        }
        Ok(())
    }

    fn write(&mut self, node: usize, at: usize, bytes: &[u8]) -> Result<(), TreeError> {
        let data = self.data(node)?;
        if !bytes.is_empty() {
            data.resize(data.len().max(at + bytes.len()), 0);
            data[at..at + bytes.len()].copy_from_slice(bytes);
        }
        Ok(())
    }
}

/// Does `operations` to a new directory of the tree and to a model, and panics where they differ.
pub async fn compare<T: Tree>(tree: &T, directory: &str, operations: &[Operation], without: Without) {
    let place = Place::new(tree, directory, without).await;
    let top = Body::Directory { parent: 0, entries: BTreeMap::new() };
    let top = Node { id: place.here, body: top, links: 1, extended: BTreeMap::new() };
    let mut model = Model { nodes: vec![top] };
    for (step, operation) in operations.iter().enumerate() {
        let [expected, got] = one(&place, &mut model, operation).await;
        assert_eq!(got, expected, "step {step}: {operation:?}");
    }
    for node in 0..model.nodes.len() {
        compare_node(&place, &mut model, node).await;
    }
}

/// Does one operation. Returns the model's and the tree's result.
async fn one<T: Tree>(
    on: &Place<'_, T>,
    model: &mut Model,
    operation: &Operation,
) -> [Result<(), TreeError>; 2] {
    let tree = on.tree;
    match *operation {
        Operation::Create { directory, name: number, kind } => {
            let (at, name) = (model.directory(directory), name(number));
            let set = mode_of(0o755);
            let parent = at;
            let (new, body) = match kind % 3 {
                0 => (New::File(NewFile::Guarded(set)), Body::File(Vec::new())),
                1 => (New::Directory(set), Body::Directory { parent, entries: BTreeMap::new() }),
                _ => (New::Symlink(b"path", SetAttributes::default()), Body::Symlink),
            };
            let made = tree.create(&on.root, &model.nodes[at].id, &name, new).await;
            let number = model.nodes.len();
            let expected = model.entries(at).and_then(|entries| {
                if entries.contains_key(&name) { Err(TreeError::Exists) } else { Ok(entries) }
            });
            let expected = expected.map(|entries| {
                entries.insert(name, number);
            });
            if let (Ok(()), Ok(made)) = (expected, &made) {
                model.nodes.push(Node { id: made.node, body, links: 1, extended: BTreeMap::new() });
            }
            [expected, made.map(drop)]
        }
        Operation::Remove { directory, name: number, kind } => {
            let (at, name) = (model.directory(directory), name(number));
            let kinds = [RemovedKind::File, RemovedKind::Directory, RemovedKind::Any];
            let kind = kinds[usize::from(kind) % kinds.len()];
            let got = tree.remove(&on.root, &model.nodes[at].id, &name, kind).await;
            [model.remove(at, &name, kind), got.map(drop)]
        }
        Operation::Rename { from, name: number, to, new } => {
            let (from, old) = (model.directory(from), name(number));
            let (to, new) = (model.directory(to), name(new));
            let (source, target) = (model.nodes[from].id, model.nodes[to].id);
            let got = tree.rename(&on.root, (&source, &old), (&target, &new)).await;
            [model.rename((from, &old), (to, &new)), got.map(drop)]
        }
        Operation::Link { node, directory, name: number } => {
            let (node, at, name) = (model.node(node), model.directory(directory), name(number));
            let got = tree.link(&on.root, &model.nodes[node].id, &model.nodes[at].id, &name).await;
            let is_directory = model.is_directory(node);
            let expected = model.alive(node).and_then(|()| model.entries(at)).and_then(|entries| {
                match (entries.contains_key(&name), is_directory) {
                    (true, _) => Err(TreeError::Exists),
                    (false, true) => Err(TreeError::IsDirectory),
                    _ => {
                        entries.insert(name, node);
                        Ok(())
                    }
                }
            });
            model.nodes[node].links += u32::from(expected.is_ok());
            let got = match got {
                Err(TreeError::NotOwner) if is_directory => Err(TreeError::IsDirectory),
                got => got.map(drop),
            };
            [expected, got]
        }
        Operation::Write { node, at, len, byte } => {
            let (node, data) = (model.node(node), vec![byte; len.into()]);
            let got = if data.is_empty() {
                tree.attributes(&model.nodes[node].id).await.and_then(|_| model.data(node).map(drop))
            } else {
                write_all(tree, &on.root, &model.nodes[node].id, at.into(), &data).await
            };
            [model.write(node, at.into(), &data), got]
        }
        Operation::Read { node, at, len } => {
            let node = model.node(node);
            let got = tree.read(&on.root, &model.nodes[node].id, at.into(), len.into()).await;
            let expected = model.data(node).map(|data| data.get(at.into()..).unwrap_or_default());
            if let (Ok(got), Ok(expected)) = (&got, &expected) {
                let bytes = got.data.to_vec();
                assert!(expected.starts_with(&bytes) && bytes.len() <= len.into(), "{operation:?}");
                assert_eq!(got.eof, bytes.len() == expected.len(), "{operation:?}");
                assert!(got.eof || len == 0 || !bytes.is_empty(), "{operation:?}");
            }
            [expected.map(drop), got.map(drop)]
        }
        Operation::SetSize { node, size } => {
            let node = model.node(node);
            let got = tree.set_attributes(&on.root, &model.nodes[node].id, &size_of(size.into()), None).await;
            [model.data(node).map(|data| data.resize(size.into(), 0)), got.map(drop)]
        }
        Operation::Allocate { node, at, len } => {
            let (node, len) = (model.node(node), len.max(1));
            let got = tree.allocate(&on.root, &model.nodes[node].id, at.into(), len.into()).await.map(drop);
            let end = usize::from(at) + usize::from(len);
            passed_over(got, model.data(node).map(|data| (data, end))).map_or_else(
                |both| both,
                |(data, end)| {
                    data.resize(data.len().max(end), 0);
                    [Ok(()), got]
                },
            )
        }
        Operation::Deallocate { node, at, len } => {
            let (node, len) = (model.node(node), len.max(1));
            let got = tree.deallocate(&on.root, &model.nodes[node].id, at.into(), len.into()).await.map(drop);
            let range = usize::from(at)..usize::from(at) + usize::from(len);
            passed_over(got, model.data(node).map(|data| (data, range))).map_or_else(
                |both| both,
                |(data, range)| {
                    data.iter_mut().take(range.end).skip(range.start).for_each(|byte| *byte = 0);
                    [Ok(()), got]
                },
            )
        }
        Operation::Copy { from, at, to, place, len } => copy(on, model, (from, at), (to, place), len).await,
        Operation::SetExtended { node, name: number, value } => {
            let (node, name) = (model.node(node), name(number));
            if !tree.limits().extended_attributes {
                return [Ok(()), Ok(())];
            }
            let value = value.map(|value| vec![value; usize::from(value)]);
            let id = model.nodes[node].id;
            let got = tree.set_extended_attribute(&on.root, &id, &name, value.as_deref(), None).await;
            let expected = model.alive(node).and_then(|()| {
                let Node { body, extended, .. } = &mut model.nodes[node];
                match value {
                    _ if matches!(body, Body::Symlink) => Err(TreeError::NotOwner),
                    Some(value) => {
                        extended.insert(name, value);
                        Ok(())
                    }
                    None => extended.remove(&name).map(drop).ok_or(TreeError::NoAttribute),
                }
            });
            [expected, got.map(drop)]
        }
        Operation::List { directory, bytes } => {
            let at = model.directory(directory);
            if let Err(error) = model.alive(at) {
                let got = tree.attributes(&model.nodes[at].id).await;
                return [Err(error), got.map(drop)];
            }
            let mut names: Vec<_> = on.list(&model.nodes[at].id, 100 + bytes % 1000).await;
            names.sort_by(|a, b| a.name.cmp(&b.name));
            let expected: Vec<_> = model.entries(at).expect("it is there").keys().cloned().collect();
            assert_eq!(names.into_iter().map(|entry| entry.name).collect::<Vec<_>>(), expected);
            [Ok(()), Ok(())]
        }
    }
}

/// The model's result if both succeeded, else the two results to compare. A tree need not support
/// the operation.
fn passed_over<M>(
    got: Result<(), TreeError>,
    expected: Result<M, TreeError>,
) -> Result<M, [Result<(), TreeError>; 2]> {
    match (got, expected) {
        (Err(TreeError::Unsupported), _) => Err([Ok(()), Ok(())]),
        (Ok(()), Ok(model)) => Ok(model),
        (got, expected) => Err([expected.map(drop), got]),
    }
}

async fn copy<T: Tree>(
    on: &Place<'_, T>,
    model: &mut Model,
    (from, at): (usize, u16),
    (to, place): (usize, u16),
    len: u16,
) -> [Result<(), TreeError>; 2] {
    let (from, to, len) = (model.node(from), model.node(to), u64::from(len.max(1)));
    let (source, target) = (model.nodes[from].id, model.nodes[to].id);
    let (at, place) = (u64::from(at), u64::from(place));
    let got = on.tree.copy(&on.root, (&source, at), (&target, place), len, false).await;
    let expected = model.data(from).map(|data| {
        let end = data.len().min((at + len) as usize);
        data.get(at as usize..end).unwrap_or_default().to_vec()
    });
    let expected = expected.and_then(|bytes| model.data(to).map(|_| bytes)).and_then(|bytes| {
        let len = bytes.len() as u64;
        let overlaps = from == to && at < place + len && place < at + len;
        if overlaps { Err(TreeError::Invalid) } else { Ok(bytes) }
    });
    match passed_over(got.map(drop), expected) {
        Err(both) => both,
        Ok(bytes) => {
            let copied = got.unwrap_or_default() as usize;
            assert!(copied <= bytes.len() && (copied > 0 || bytes.is_empty()), "{copied} of {}", bytes.len());
            [model.write(to, place as usize, &bytes[..copied]), Ok(())]
        }
    }
}

async fn compare_node<T: Tree>(on: &Place<'_, T>, model: &mut Model, number: usize) {
    let Node { id, links, .. } = model.nodes[number];
    let got = on.tree.attributes(&id).await;
    if let Err(error) = model.alive(number) {
        assert_eq!(got, Err(error));
        return;
    }
    let got = got.expect("it is there");
    match &model.nodes[number].body {
        Body::File(data) => {
            assert_eq!((got.kind, got.size, got.links), (Kind::Regular, data.len() as u64, links));
            assert!(on.bytes(&id).await == *data, "the data of node {number}");
        }
        Body::Symlink => assert_eq!((got.kind, got.links), (Kind::Symlink, links)),
        Body::Directory { parent, entries } => {
            let inner = entries.values().filter(|node| model.is_directory(**node)).count() as u32;
            assert_eq!(got.kind, Kind::Directory);
            assert!([1, 2 + inner].contains(&got.links), "{} links, {inner} directories", got.links);
            for (name, node) in entries {
                let found = on.tree.lookup(&on.root, &id, name).await.expect("it is there");
                assert_eq!(found.node, model.nodes[*node].id);
            }
            assert_eq!(on.list(&id, 300).await.len(), entries.len());
            if number > 0 {
                let found = on.tree.lookup(&on.root, &id, b"..").await.expect("its parent");
                assert_eq!(found.node, model.nodes[*parent].id);
            }
        }
    }
    for (name, value) in &model.nodes[number].extended {
        assert_eq!(on.tree.extended_attribute(&on.root, &id, name).await.as_ref(), Ok(value));
    }
}
