//! `stag cp -r --check`: compares two trees, and writes nothing. Directories must have the same
//! names, files the same bytes, and symbolic links the same targets.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use super::copy::{CopyError, Plan};
use super::kept::Kind;
use super::node::{Node, is_lost, through};
use crate::args::{Connect, Place, Transfer};
use crate::progress::Progress;
use crate::work::{self, Jobs};

/// A comparison in progress.
struct Comparing {
    plan: Plan,
    progress: Progress,
    /// Files, links and directories that differ, or that one side lacks.
    differ: Cell<u64>,
    /// Those that could not be compared.
    failed: Cell<u64>,
    /// The error with which a server was lost.
    lost: RefCell<Option<CopyError>>,
}

/// Compares the tree at `from` with what a copy to `to` has made: what has its name there, or `to`
/// itself. Reports each difference.
pub async fn compare_trees(
    from: &Place,
    to: &Place,
    plan: &Plan,
    transfer: &Transfer,
    connect: &Connect,
) -> Result<(), CopyError> {
    let mut clients = Vec::new();
    let one = Node::find(from, connect, &mut clients).await?;
    let mut two = Node::find(to, connect, &mut clients).await?;
    if let Some(name) = one.name()?
        && let Some(inside) = two.child(&name).await?
    {
        two = inside;
    }
    let comparing = Rc::new(Comparing {
        plan: plan.clone(),
        progress: Progress::new(transfer.quiet),
        differ: Cell::new(0),
        failed: Cell::new(0),
        lost: RefCell::default(),
    });
    let shared = comparing.clone();
    work::run(vec![(one, two)], transfer.depth, move |(one, two), jobs| {
        let comparing = shared.clone();
        async move { comparing.note(comparing.pair(&one, &two, &jobs).await, &jobs) }
    })
    .await;
    for client in clients {
        client.close().await;
    }
    comparing.finish()
}

impl Comparing {
    fn differs(&self, what: &str) {
        self.differ.set(self.differ.get() + 1);
        self.progress.say(&format!("stag: {what}"));
    }

    /// Reports what was found and goes on, unless a server is lost.
    fn note<J: 'static>(&self, outcome: Result<(), CopyError>, jobs: &Jobs<J>) {
        match outcome {
            Ok(()) => {}
            Err(error @ CopyError::Unequal { .. }) => self.differs(&error.to_string()),
            Err(error) if is_lost(&error) => {
                self.lost.borrow_mut().get_or_insert(error);
                jobs.stop();
            }
            Err(error) => {
                self.failed.set(self.failed.get() + 1);
                self.progress.say(&format!("stag: {error}"));
            }
        }
    }

    /// Compares two files or links, or the names in two directories.
    async fn pair(&self, one: &Node, two: &Node, jobs: &Jobs<(Node, Node)>) -> Result<(), CopyError> {
        let (kind, other) = (one.about()?.kind, two.about()?.kind);
        if kind != other {
            self.differs(&format!(
                "{} is {}, and {} is {}",
                two.place(),
                named(other),
                one.place(),
                named(kind)
            ));
            return Ok(());
        }
        match kind {
            Kind::Directory => {
                let mut there = BTreeMap::new();
                two.children(|name, node| drop(there.insert(name, node))).await?;
                one.children(|name, node| match there.remove(&name) {
                    Some(other) => jobs.add((node, other)),
                    None => self.differs(&format!("{} is not in {}", node.place(), two.place())),
                })
                .await?;
                there.values().for_each(|node| {
                    self.differs(&format!("{} is not in {}", node.place(), one.place()));
                });
            }
            Kind::Symlink => {
                if one.target().await? != two.target().await? {
                    self.differs(&format!("{} leads elsewhere than {}", two.place(), one.place()));
                }
                self.progress.file(0);
            }
            Kind::File => {
                let (source, sink) = (one.open().await?, two.open_compared().await?);
                through(source, sink, &self.plan, &self.progress).await?;
                self.progress.file(0);
            }
            Kind::Other => {
                self.progress.say(&format!("stag: {}: left out: a device, pipe or socket", one.place()));
            }
        }
        Ok(())
    }

    fn finish(&self) -> Result<(), CopyError> {
        let (differ, failed) = (self.differ.get(), self.failed.get());
        let lost = self.lost.take();
        self.progress.finish(differ + failed > 0 || lost.is_some());
        let counted = |number: u64, one: &str, more: &str| match number {
            0 => None,
            1 => Some(format!("1 file or directory {one}")),
            _ => Some(format!("{number} files or directories {more}")),
        };
        let parts = [
            counted(differ, "differs", "differ"),
            counted(failed, "could not be compared", "could not be compared"),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        match lost {
            Some(error) => Err(error),
            None if parts.is_empty() => Ok(()),
            None => Err(CopyError::Misfit(parts.join(", "))),
        }
    }
}

fn named(kind: Kind) -> &'static str {
    match kind {
        Kind::File => "a file",
        Kind::Directory => "a directory",
        Kind::Symlink => "a symbolic link",
        Kind::Other => "a device, pipe or socket",
    }
}
