//! [`Directory`]: a load's connection to an NFS directory, with calls that move no data. It owns
//! the files that it makes, and removes them at the end.

use std::cell::Cell;
use std::rc::Rc;

use load::random::mix;
use nfs_client::{Client, Cursor, Entry, Error, FileType, Handle, SetAttributes, Status};

use super::BenchError;
use super::ends::{Ended, Ends};
use super::medium::{End, Io, Lost, Medium, Outcome};
use super::plan::{Run, Seat};
use super::tally::Tally;
use crate::args::{Bench, Pattern, Remote};
use crate::client::nfs;

/// Most entries whose attributes and names a load asks for.
const MOST_ENTRIES: usize = 1 << 16;
/// Mode of new files.
const MODE: u32 = 0o644;
/// Files that are removed at a time.
const REMOVERS: usize = 32;

/// A connection, and a directory.
pub struct Directory {
    work: Rc<Work>,
    ends: Rc<Ends<()>>,
}

/// State that all calls of a session share.
struct Work {
    client: Client,
    what: Pattern,
    directory: Handle,
    /// Entries of the directory: the places of the load.
    entries: Vec<Entry>,
    /// Beginning of the names of new files.
    prefix: String,
    /// New files so far.
    made: Cell<u64>,
    /// Listings so far, and the entries in them.
    listed: Cell<(u64, u64)>,
}

impl Work {
    /// Makes one call. In version 4, a second call closes a new file.
    async fn call(&self, place: usize) -> Result<(), Error> {
        let (client, directory) = (&self.client, &self.directory);
        let entry = || self.entries.get(place).ok_or(Error::Status(Status::NoEnt));
        match self.what {
            Pattern::Getattr => client.attributes(&entry()?.handle).await.map(drop),
            Pattern::Lookup => client.lookup(directory, &entry()?.name).await.map(drop),
            Pattern::Create => {
                let number = self.made.replace(self.made.get() + 1);
                let set = SetAttributes { mode: Some(MODE), ..SetAttributes::default() };
                client.create(directory, self.name(number).as_bytes(), &set).await?.close().await
            }
            Pattern::Readdirplus => {
                let page = client.list(directory, &mut Cursor::default()).await?.unwrap_or_default();
                let (listings, entries) = self.listed.get();
                self.listed.set((listings + 1, entries + page.len() as u64));
                Ok(())
            }
            _ => client.null().await,
        }
    }

    fn name(&self, number: u64) -> String {
        format!("{}{number}", self.prefix)
    }

    /// Removes the files that it has made.
    async fn remove_all(self: &Rc<Self>) -> Result<(), Error> {
        let next = Rc::new(Cell::new(0));
        let one = || {
            let (work, next) = (self.clone(), next.clone());
            runtime::spawn(async move {
                while next.get() < work.made.get() {
                    let name = work.name(next.replace(next.get() + 1));
                    match work.client.remove(&work.directory, name.as_bytes(), false).await {
                        Ok(()) | Err(Error::Status(Status::NoEnt)) => {}
                        Err(error) => return Err(error),
                    }
                }
                Ok(())
            })
        };
        let removers: Vec<_> = (0..REMOVERS).map(|_| one()).collect();
        let mut removed = Ok(());
        for remover in removers {
            removed = removed.and(remover.await.unwrap_or(Ok(())));
        }
        removed
    }
}

/// All entries, or as many as are asked about.
async fn entries(client: &Client, directory: &Handle) -> Result<Vec<Entry>, Error> {
    let (mut at, mut all) = (Cursor::default(), Vec::new());
    while all.len() < MOST_ENTRIES
        && let Some(page) = client.list(directory, &mut at).await?
    {
        all.extend(page);
    }
    all.truncate(MOST_ENTRIES);
    Ok(all)
}

impl Medium for Directory {
    type Ended = Ended<()>;
    type Data = Vec<u8>;

    async fn open(url: &Remote, args: &Bench, run: &Run, seat: &Seat) -> Result<Self, BenchError> {
        let name = url.to_string();
        let Remote::File(url) = url else {
            return Err(BenchError::Usage(format!("{name} is no directory")));
        };
        let failed = |error| Lost::from(error).of(&name);
        let client = nfs::connect(url, &args.connect).await.map_err(failed)?;
        let found = async {
            let (directory, of) = client.find(url, true).await?;
            if of.kind != FileType::Directory {
                return Err(Error::Status(Status::NotDir));
            }
            let named = matches!(run.pattern, Pattern::Getattr | Pattern::Lookup);
            let entries = if named { entries(&client, &directory).await? } else { Vec::new() };
            Ok((directory, entries, named))
        };
        let (directory, entries, named) = match found.await {
            Ok(found) => found,
            Err(error) => {
                // A server that restarts waits for the clients it still knows.
                client.close().await;
                return Err(failed(error));
            }
        };
        if named && entries.is_empty() {
            client.close().await;
            let what = format!("{name} is empty: {} needs files there", run.pattern.name());
            return Err(BenchError::Usage(what));
        }
        let mut random = [0; 8];
        // Without randomness the process and the session tell names apart.
        let _ = runtime::random(&mut random);
        let stamp = mix(u64::from_ne_bytes(random) ^ u64::from(std::process::id()) << 32 ^ seat.number);
        let work = Work {
            client,
            what: run.pattern,
            directory,
            entries,
            prefix: format!(".stag-bench-{stamp:016x}-"),
            made: Cell::new(0),
            listed: Cell::new((0, 0)),
        };
        Ok(Self { work: Rc::new(work), ends: Rc::default() })
    }

    fn block_len(&self) -> u32 {
        1
    }

    fn len(&self) -> u64 {
        // Each entry is a place. Calls that need no entry have one place.
        self.work.entries.len().max(1) as u64
    }

    fn most(&self) -> u64 {
        1
    }

    fn submit(&mut self, index: u16, offset: u64, _: u32, _: Io) -> Result<(), Lost> {
        let (work, ends) = (self.work.clone(), self.ends.clone());
        ends.begin();
        // The task ends with its call, which the connection ends at the latest.
        drop(runtime::spawn(async move {
            let outcome = work.call(usize::try_from(offset).unwrap_or(usize::MAX)).await;
            ends.end(index, outcome);
        }));
        Ok(())
    }

    fn flush(&mut self) {}

    fn in_flight(&self) -> usize {
        self.ends.in_flight()
    }

    fn take(&mut self, into: &mut Vec<Ended<()>>) -> usize {
        self.ends.take(into)
    }

    async fn completions(&mut self, into: &mut Vec<Ended<()>>) -> Result<(), Lost> {
        self.ends.some(into).await;
        Ok(())
    }

    fn judge(ended: Ended<()>, _: impl FnOnce(u16) -> bool, _: u32) -> End<Vec<u8>> {
        let outcome = match ended.outcome {
            Ok(()) => Outcome::Done(None),
            Err(error) => Outcome::Failed(error.to_string()),
        };
        End { index: ended.index, at: ended.at, outcome }
    }

    async fn sync(&mut self) -> Result<(), Lost> {
        Ok(())
    }

    async fn close(self, tally: &mut Tally, url: &str) {
        let (listings, entries) = self.work.listed.get();
        tally.listed = (tally.listed.0 + listings, tally.listed.1 + entries);
        if let Err(error) = self.work.remove_all().await {
            let prefix = &self.work.prefix;
            tally.error(|| format!("{url}: files whose names begin with {prefix} were left: {error}"));
        }
        self.work.client.close().await;
    }
}
