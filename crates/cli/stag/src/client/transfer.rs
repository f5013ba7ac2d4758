//! `stag read`, `stag write` and `stag cp`: opens both sides, copies, and shows how far it is.

use std::ffi::OsStr;
use std::io::IsTerminal;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use super::connect::{self, ConnectError, Opened};
use super::copy::{
    Copied, CopyError, Disk, Pace, Plan, Sink, Source, Stream, Work, copy, open_input, open_output,
};
use super::nfs::Intent;
use super::{compare, tree};
use crate::args::{Cat, Connect, Cp, Place, Read, Remote, Transfer, Tuning, Write};
use crate::image;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// The reason why bytes were not copied.
#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    /// No session with a unit or a server.
    #[error("{place}: {error}")]
    Connect {
        /// Its URL.
        place: Remote,
        error: ConnectError,
    },
    #[error("{0}")]
    Copy(#[from] CopyError),
}

pub async fn read(args: &Read) -> Result<(), TransferError> {
    let plan = Plan { from_at: args.offset, length: args.length, sync: false, ..plan(&args.transfer) };
    run(&Place::Remote(args.url.clone()), &args.output, Intent::Write, &plan, &args.transfer, &args.connect)
        .await
}

pub async fn cat(args: &Cat) -> Result<(), TransferError> {
    let transfer = Transfer { depth: 16, block: 256 << 10, limit: None, quiet: true };
    let plan = Plan { sync: false, ..plan(&transfer) };
    for url in &args.urls {
        let from = Place::Remote(url.clone());
        run(&from, &Place::Stdio, Intent::Write, &plan, &transfer, &args.connect).await?;
    }
    Ok(())
}

pub async fn write(args: &Write) -> Result<(), TransferError> {
    let plan = Plan { to_at: args.offset, sync: !args.no_sync, ..plan(&args.transfer) };
    let to = Place::Remote(args.url.clone());
    run(&args.input, &to, Intent::Write, &plan, &args.transfer, &args.connect).await
}

pub async fn cp(args: &Cp) -> Result<(), TransferError> {
    let (work, intent) = match (args.check, args.differing) {
        (true, _) => (Work::Check, Intent::Read),
        (_, true) => (Work::Differing, Intent::Write),
        _ => (Work::Copy, Intent::Replace),
    };
    let plan = Plan { work, verify: args.verify, sparse: !args.no_sparse, ..plan(&args.transfer) };
    if work != Work::Copy && args.to == Place::Stdio {
        return Err(CopyError::Misfit("stdout has nothing to compare with".into()).into());
    }
    if args.recursive && args.check {
        let compared = compare::compare_trees(&args.from, &args.to, &plan, &args.transfer, &args.connect);
        return Ok(compared.await?);
    }
    if args.recursive {
        let keeping = tree::Keeping { preserve: args.preserve, resume: args.resume };
        let copied = tree::copy_tree(&args.from, &args.to, &plan, &args.transfer, &args.connect, keeping);
        return Ok(copied.await?);
    }
    if let (Place::File(from), Place::Remote(Remote::Unit(_)), false) = (&args.from, &args.to, args.raw)
        && let Some(why) = image::mistaken(from, "write --raw to copy it as it is")
    {
        return Err(CopyError::Misfit(why).into());
    }
    let to = within(&args.from, &args.to);
    run(&args.from, &to, intent, &plan, &args.transfer, &args.connect).await
}

/// The destination of an NFS file: in a directory, the file keeps its name.
fn within(from: &Place, to: &Place) -> Place {
    match (from, to) {
        (Place::Remote(Remote::File(url)), Place::File(directory)) if directory.is_dir() => {
            match url.components().last() {
                Some(name) => Place::File(directory.join(OsStr::from_bytes(name))),
                None => to.clone(),
            }
        }
        _ => to.clone(),
    }
}

/// The name of the source file.
fn name(from: &Place) -> Option<Vec<u8>> {
    match from {
        Place::Remote(Remote::File(url)) => url.components().last().map(<[u8]>::to_vec),
        Place::File(path) => path.file_name().map(|name| name.as_bytes().to_vec()),
        Place::Remote(Remote::Unit(_)) | Place::Stdio => None,
    }
}

fn plan(args: &Transfer) -> Plan {
    Plan {
        work: Work::Copy,
        from_at: 0,
        to_at: 0,
        length: None,
        chunk: args.block,
        depth: args.depth.into(),
        sparse: true,
        verify: false,
        sync: true,
        pace: args.limit.map(|rate| Rc::new(Pace::new(rate))),
    }
}

async fn run(
    from: &Place,
    to: &Place,
    intent: Intent,
    plan: &Plan,
    transfer: &Transfer,
    connect: &Connect,
) -> Result<(), TransferError> {
    same_file(from, to)?;
    let mut units = Vec::new();
    let connect = Connect { tune: connect.tune.or(Some(Tuning::Auto)), ..connect.clone() };
    let mut result = both(from, to, intent, plan, transfer, &connect, &mut units).await;
    for unit in units {
        if let Err(error) = unit.close().await
            && result.is_ok()
        {
            result = Err(CopyError::Remote { place: unit.place(), error }.into());
        }
    }
    result
}

async fn both(
    from: &Place,
    to: &Place,
    intent: Intent,
    plan: &Plan,
    transfer: &Transfer,
    connect: &Connect,
    units: &mut Vec<Rc<Opened>>,
) -> Result<(), TransferError> {
    let source = match from {
        Place::Remote(url) => Source::Unit(open(url, connect, Intent::Read, None, units).await?),
        Place::File(path) => open_input(path)?,
        Place::Stdio => Source::Stream(Stream::reader("stdin", std::io::stdin())),
    };
    // The sink is opened last: an error of the source must not truncate it.
    let sink = match to {
        Place::Remote(url) => Sink::Unit(open(url, connect, intent, name(from).as_deref(), units).await?),
        Place::File(path) => open_output(path, plan.work)?,
        Place::Stdio => Sink::Stream(Stream::writer("stdout", std::io::stdout())),
    };
    let total = match (plan.length, source.bytes()) {
        (Some(length), _) => Some(length),
        (None, there) => there.map(|bytes| bytes.saturating_sub(plan.from_at)),
    };
    let bar = progress_bar(total, transfer.quiet);
    let copied = copy(source, sink, plan, |bytes| bar.inc(bytes)).await;
    bar.finish_and_clear();
    let copied = copied?;
    if copied.unsure {
        say!(
            "stag: warning: the session with {to} was made anew. If the target had lost its power, a part of the copy is \
             missing, which cannot be read again from {from}"
        );
    }
    if !transfer.quiet && std::io::stderr().is_terminal() {
        say!("{}", summary(&copied, bar.elapsed()));
    }
    Ok(())
}

async fn open(
    url: &Remote,
    connect: &Connect,
    intent: Intent,
    name: Option<&[u8]>,
    units: &mut Vec<Rc<Opened>>,
) -> Result<Rc<Opened>, TransferError> {
    let opened = connect::open_remote(url, connect, intent, name).await;
    let opened = Rc::new(opened.map_err(|error| TransferError::Connect { place: url.clone(), error })?);
    units.push(opened.clone());
    Ok(opened)
}

/// Refuses to copy a file onto itself, which would truncate it first.
fn same_file(from: &Place, to: &Place) -> Result<(), CopyError> {
    let identity = |path: &Path| std::fs::metadata(path).ok().map(|about| (about.dev(), about.ino()));
    match (from, to) {
        (Place::File(from), Place::File(to))
            if identity(from).is_some() && identity(from) == identity(to) =>
        {
            Err(CopyError::Misfit(format!("{} and {} are the same file", from.display(), to.display())))
        }
        _ => Ok(()),
    }
}

fn progress_bar(total: Option<u64>, quiet: bool) -> ProgressBar {
    if quiet || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let (bar, style) = match total {
        Some(total) => {
            (ProgressBar::new(total), "{wide_bar} {bytes}/{total_bytes} {binary_bytes_per_sec} {eta}")
        }
        None => (ProgressBar::no_length(), "{spinner} {bytes} {binary_bytes_per_sec}"),
    };
    bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(10));
    if let Ok(style) = ProgressStyle::with_template(style) {
        bar.set_style(style);
    }
    bar
}

fn summary(copied: &Copied, time: Duration) -> String {
    let seconds = time.as_secs_f64().max(1e-3);
    let rate = copied.bytes as f64 / 1e6 / seconds;
    let holes =
        if copied.holes == 0 { String::new() } else { format!(", {} of them in holes", copied.holes) };
    let there = if copied.there == 0 { String::new() } else { format!(", {} there before", copied.there) };
    format!("{} bytes{holes}{there}, in {seconds:.1} s: {rate:.0} MB/s", copied.bytes)
}

/// Whether the server could not be reached, or refused the login.
pub fn unreachable(error: &TransferError) -> bool {
    match error {
        TransferError::Connect { error: ConnectError::Session(error), .. } => error.is_unreachable(),
        TransferError::Connect { error: ConnectError::Files(error), .. } => error.is_unreachable(),
        TransferError::Copy(CopyError::Remote { error, .. }) => error.is_unreachable(),
        _ => false,
    }
}

/// Whether the copy ended because stdout's reader closed the pipe.
pub fn reader_left(error: &TransferError) -> bool {
    matches!(error, TransferError::Copy(CopyError::Io { place, error })
        if place == "stdout" && error.kind() == std::io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_not_copied_onto_itself_by_any_name() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        std::fs::write(&a, "x").unwrap();
        std::os::unix::fs::symlink(&a, &b).unwrap();
        assert!(same_file(&Place::File(a.clone()), &Place::File(b)).is_err());
        assert!(same_file(&Place::File(a), &Place::File(dir.path().join("c"))).is_ok());
    }
}
