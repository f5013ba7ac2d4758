//! `stag read`, `stag write` and `stag cp`: opens both sides, copies, and shows how far it is.

use std::io::IsTerminal;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use iscsi_client::Url;

use super::connect::{self, ConnectError, Unit};
use super::copy::{Copied, CopyError, Plan, Sink, Source, Stream, copy, open_input, open_output};
use crate::args::{Connect, Cp, Place, Read, Transfer, Tuning, Write};
use crate::image;

/// Why bytes were not moved.
#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    /// No session with a unit.
    #[error("{place}: {error}")]
    Connect {
        /// Its URL.
        place: Url,
        /// Why.
        error: ConnectError,
    },
    /// The copy itself.
    #[error("{0}")]
    Copy(#[from] CopyError),
}

/// `stag read`.
///
/// # Errors
/// [`TransferError`]
pub async fn read(args: &Read) -> Result<(), TransferError> {
    let plan = Plan { from_at: args.offset, length: args.length, sync: false, ..plan(&args.transfer) };
    run(&Place::Unit(args.url.clone()), &args.output, &plan, &args.transfer, &args.connect).await
}

/// `stag write`.
///
/// # Errors
/// [`TransferError`]
pub async fn write(args: &Write) -> Result<(), TransferError> {
    let plan = Plan { to_at: args.offset, sync: !args.no_sync, ..plan(&args.transfer) };
    run(&args.input, &Place::Unit(args.url.clone()), &plan, &args.transfer, &args.connect).await
}

/// `stag cp`.
///
/// # Errors
/// [`TransferError`]
pub async fn cp(args: &Cp) -> Result<(), TransferError> {
    if let (Place::File(from), Place::Unit(_), false) = (&args.from, &args.to, args.raw)
        && let Some(why) = image::mistaken(from, "write --raw to copy it as it is")
    {
        return Err(CopyError::Misfit(why).into());
    }
    let plan = Plan { verify: args.verify, sparse: !args.no_sparse, ..plan(&args.transfer) };
    run(&args.from, &args.to, &plan, &args.transfer, &args.connect).await
}

fn plan(args: &Transfer) -> Plan {
    Plan {
        from_at: 0,
        to_at: 0,
        length: None,
        chunk: args.block,
        depth: args.depth.into(),
        sparse: true,
        verify: false,
        sync: true,
    }
}

async fn run(
    from: &Place,
    to: &Place,
    plan: &Plan,
    transfer: &Transfer,
    connect: &Connect,
) -> Result<(), TransferError> {
    same_file(from, to)?;
    let mut units = Vec::new();
    let connect = Connect { tune: connect.tune.or(Some(Tuning::Auto)), ..connect.clone() };
    let result = both(from, to, plan, transfer, &connect, &mut units).await;
    for unit in units {
        unit.close().await;
    }
    result
}

async fn both(
    from: &Place,
    to: &Place,
    plan: &Plan,
    transfer: &Transfer,
    connect: &Connect,
    units: &mut Vec<Rc<Unit>>,
) -> Result<(), TransferError> {
    let source = match from {
        Place::Unit(url) => Source::Unit(open(url, connect, units).await?),
        Place::File(path) => open_input(path)?,
        Place::Stdio => Source::Stream(Stream::reader("stdin", std::io::stdin())),
    };
    // The sink is opened last: nothing is emptied before it is known that there is something to write.
    let sink = match to {
        Place::Unit(url) => Sink::Unit(open(url, connect, units).await?),
        Place::File(path) => open_output(path)?,
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
    if !transfer.quiet && std::io::stderr().is_terminal() {
        say!("{}", summary(&copied, bar.elapsed()));
    }
    Ok(())
}

async fn open(url: &Url, connect: &Connect, units: &mut Vec<Rc<Unit>>) -> Result<Rc<Unit>, TransferError> {
    let unit = connect::open(url, connect).await;
    let unit = Rc::new(unit.map_err(|error| TransferError::Connect { place: url.clone(), error })?);
    units.push(unit.clone());
    Ok(unit)
}

/// A file that is copied onto itself would be emptied first.
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
    format!("{} bytes{holes}, in {seconds:.1} s: {rate:.0} MB/s", copied.bytes)
}

/// Whether the target was not reached, or let nobody in.
pub fn unreachable(error: &TransferError) -> bool {
    match error {
        TransferError::Connect { error: ConnectError::Session(error), .. } => error.is_unreachable(),
        TransferError::Copy(CopyError::Unit { error, .. }) => error.is_unreachable(),
        _ => false,
    }
}

/// Whether it was stdout's reader who ended it.
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
