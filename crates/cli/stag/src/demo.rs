//! `stag demo`: a new disk, served by a `stag serve` of its own, written and read back through the
//! initiator. A pattern tells each block from every other, so that a block that was lost, moved or
//! left as it was cannot pass.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use backing::size::Size;
use iscsi_client::Url;
use rustix::process::{Pid, Signal, kill_process};

use crate::args::{Connect, Demo};
use crate::client::connect::{self, Opened};
use crate::client::copy::{self, Plan, Sink, Source, Stream, Work};
use crate::exit::Exit;
use crate::out::{self, OutError};

/// Bytes that carry a number of their own.
const CELL: u64 = 512;

/// Serves, writes, reads, compares.
pub fn demo(args: &Demo) -> Exit {
    match run(args) {
        Ok(()) => Exit::Done,
        Err(DemoError::Output(error)) => error.show(),
        Err(error) => {
            say!("stag demo: {error}");
            Exit::Failed
        }
    }
}

/// The reason why the demo failed.
#[derive(Debug, thiserror::Error)]
enum DemoError {
    /// stdout takes no more.
    #[error(transparent)]
    Output(#[from] OutError),
    /// Something did not work.
    #[error("{0}")]
    Broken(String),
}

impl From<String> for DemoError {
    fn from(what: String) -> Self {
        Self::Broken(what)
    }
}

fn run(args: &Demo) -> Result<(), DemoError> {
    let size = args.size.next_multiple_of(CELL).max(CELL);
    let dir =
        TemporaryDirectory::new().map_err(|error| format!("no temporary directory can be made: {error}"))?;
    let disk = dir.path.join("disk.img");
    tell(format_args!("making a disk of {} in {}", Size(size), disk.display()))?;
    let mut server = Server::start(&disk, size)?;
    tell(format_args!("serving it as {}", server.url))?;
    let url: Url = server.url.parse().map_err(|error| format!("the server printed no URL: {error}"))?;
    let runtime =
        runtime::Runtime::new(runtime::Config::default()).map_err(|error| format!("no io_uring: {error}"))?;
    runtime.block_on(write_and_read(&url, size))?;
    drop(runtime);
    if args.keep {
        tell(format_args!("still serving; end with Ctrl-C"))?;
        return Ok(server.wait()?);
    }
    server.end()?;
    Ok(tell(format_args!("OK"))?)
}

fn tell(line: std::fmt::Arguments<'_>) -> Result<(), OutError> {
    out::write(format!("{line}\n").as_bytes())
}

async fn write_and_read(url: &Url, size: u64) -> Result<(), DemoError> {
    let seed = std::process::id();
    let unit = connect::open(url, &Connect::default()).await.map_err(|error| format!("{url}: {error}"))?;
    let unit = Rc::new(Opened::Unit(unit));
    let plan = Plan {
        work: Work::Copy,
        from_at: 0,
        to_at: 0,
        length: Some(size),
        chunk: 256 << 10,
        depth: 16,
        sparse: false,
        verify: false,
        sync: true,
        pace: None,
    };
    let pattern = Source::Stream(Stream::reader("the pattern", Pattern { at: 0, size, seed }));
    timed("wrote", size, copy::copy(pattern, Sink::Unit(unit.clone()), &plan, |_| {})).await?;
    let compared =
        Sink::Stream(Stream::writer("what was read back", Comparison(Pattern { at: 0, size, seed })));
    timed("read back and compared", size, copy::copy(Source::Unit(unit.clone()), compared, &plan, |_| {}))
        .await?;
    unit.close().await.map_err(|error| format!("{url}: {error}"))?;
    Ok(())
}

async fn timed<T>(
    what: &str,
    size: u64,
    work: impl Future<Output = Result<T, copy::CopyError>>,
) -> Result<(), DemoError> {
    let start = Instant::now();
    work.await.map_err(|error| error.to_string())?;
    let seconds = start.elapsed().as_secs_f64().max(1e-6);
    Ok(tell(format_args!(
        "{what} {} in {seconds:.2} s ({:.0} MB/s)",
        Size(size),
        size as f64 / 1e6 / seconds
    ))?)
}

/// Bytes that make each cell unique: its number, mixed with a seed of this run.
struct Pattern {
    at: u64,
    size: u64,
    seed: u32,
}

impl Pattern {
    /// The word at `at`, which is a multiple of 8.
    fn word(&self, at: u64) -> [u8; 8] {
        // splitmix64 (Steele, Lea, Flood 2014).
        let mut x = (at ^ u64::from(self.seed) << 40).wrapping_add(0x9e37_79b9_7f4a_7c15);
        x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ x >> 31).to_le_bytes()
    }

    /// The next bytes, as many as are left.
    fn fill(&mut self, bytes: &mut [u8]) -> usize {
        let len = bytes.len().min(usize::try_from(self.size - self.at).unwrap_or(usize::MAX));
        let mut done = 0;
        while done < len {
            let offset = (self.at % 8) as usize;
            let word = self.word(self.at - offset as u64);
            let n = (8 - offset).min(len - done);
            bytes[done..done + n].copy_from_slice(&word[offset..offset + n]);
            done += n;
            self.at += n as u64;
        }
        len
    }
}

impl Read for Pattern {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        Ok(self.fill(bytes))
    }
}

/// Compares the bytes written to it with the pattern.
struct Comparison(Pattern);

impl Write for Comparison {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let at = self.0.at;
        let mut expected = vec![0; bytes.len()];
        let there = self.0.fill(&mut expected);
        match bytes.iter().zip(&expected[..there]).position(|(got, wanted)| got != wanted) {
            Some(bad) => Err(io::Error::other(format!("byte {} is not what was written", at + bad as u64))),
            None if there < bytes.len() => Err(io::Error::other("there is more than was written")),
            None => Ok(bytes.len()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.0.at == self.0.size {
            Ok(())
        } else {
            Err(io::Error::other("there is less than was written"))
        }
    }
}

/// A `stag serve` that ends with this value.
struct Server {
    child: Child,
    url: String,
}

impl Server {
    fn start(disk: &Path, size: u64) -> Result<Self, String> {
        let program = std::env::current_exe().map_err(|error| format!("where is this program? {error}"))?;
        // A comma of a path is written \, among units.
        let path = disk.display().to_string().replace(',', "\\,");
        let mut child = Command::new(program)
            .args(["--log", "warn", "serve", "--control", "none", "--listen", "127.0.0.1:0"])
            .arg(format!("{path},size={size}"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("the server cannot be started: {error}"))?;
        let mut url = String::new();
        let read = child.stdout.take().map(|out| BufReader::new(out).read_line(&mut url));
        let this = Self { child, url: url.trim().to_owned() };
        match read {
            Some(Ok(1..)) => Ok(this),
            _ => Err("the server ended before it served anything".into()),
        }
    }

    /// Ends it as an administrator would.
    fn end(&mut self) -> Result<(), String> {
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            kill_process(pid, Signal::TERM)
                .map_err(|error| format!("the server cannot be ended: {error}"))?;
        }
        let deadline = Instant::now() + Duration::from_secs(15);
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(status)) => return Err(format!("the server ended with {status}")),
                Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(10)),
                Ok(None) => return Err("the server does not end".into()),
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    fn wait(&mut self) -> Result<(), String> {
        // Ctrl-C goes to both; this one has to outlive the server to remove its disk.
        let _ignored =
            runtime::Signals::new(&[runtime::Signal::Interrupt]).map_err(|error| error.to_string())?;
        let status = self.child.wait().map_err(|error| error.to_string())?;
        if status.success() { Ok(()) } else { Err(format!("the server ended with {status}")) }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // No effect on one that has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A directory that no other user may enter, removed with this value.
struct TemporaryDirectory {
    path: PathBuf,
}

impl TemporaryDirectory {
    fn new() -> io::Result<Self> {
        let base = std::env::temp_dir();
        for attempt in 0..100 {
            let path = base.join(format!("stag-demo-{}-{attempt}", std::process::id()));
            match std::fs::DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self { path }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }
}

impl Drop for TemporaryDirectory {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "not removed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(at: u64) -> Pattern {
        Pattern { at, size: 1 << 20, seed: 7 }
    }

    #[test]
    fn no_two_cells_of_the_pattern_are_alike_and_any_cut_reads_the_same() {
        let mut all = Vec::new();
        pattern(0).read_to_end(&mut all).unwrap();
        assert_eq!(all.len(), 1 << 20);
        let cells: std::collections::HashSet<&[u8]> = all.chunks(CELL as usize).collect();
        assert_eq!(cells.len(), (1 << 20) / CELL as usize);
        for (from, len) in [(1, 3), (5, 100), (1000, 1), (12_345, 4097)] {
            let mut part = vec![0; len];
            pattern(from as u64).read_exact(&mut part).unwrap();
            assert_eq!(part, all[from..from + len]);
        }
    }

    #[test]
    fn a_comparison_finds_a_wrong_a_missing_and_a_surplus_byte() {
        let mut all = Vec::new();
        pattern(0).read_to_end(&mut all).unwrap();
        let mut right = Comparison(pattern(0));
        right.write_all(&all).unwrap();
        right.flush().unwrap();
        assert!(right.write_all(&[0]).is_err());
        all[777] ^= 1;
        assert!(Comparison(pattern(0)).write_all(&all).unwrap_err().to_string().contains("byte 777"));
        let mut short = Comparison(pattern(0));
        short.write_all(&all[..700]).unwrap();
        assert!(short.flush().is_err());
    }
}
