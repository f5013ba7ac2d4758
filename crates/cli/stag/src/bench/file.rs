//! A load's way to a file: a connection of NFS, and an open file.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use nfs_client::{Client, Error, FileType, SetAttributes, Status, Url};
use runtime::Notify;

use super::medium::{End, Io, Lost, Medium, Outcome};
use super::plan::{Run, Seat};
use super::tally::Tally;
use super::{BenchError, plan};
use crate::args::{Bench, Remote};
use crate::client::nfs;

/// The unit in which a file is cut: any I/O is a whole number of them.
const BLOCK: u32 = 512;
/// The mode of a file that is made.
const MODE: u32 = 0o644;

/// A connection and its open file.
pub struct File {
    client: Client,
    file: Rc<nfs_client::File>,
    bytes: u64,
    stable: bool,
    ends: Rc<Ends>,
}

/// Ends that nobody has taken yet.
#[derive(Default)]
struct Ends {
    waiting: RefCell<Vec<Ended>>,
    came: Notify,
    in_flight: Cell<usize>,
}

/// How a call ended.
pub struct Ended {
    index: u16,
    at: Instant,
    /// The bytes that came, and of a read that is looked at what they are.
    outcome: Result<(usize, Option<Vec<u8>>), Error>,
}

impl From<Error> for Lost {
    fn from(error: Error) -> Self {
        let unreachable =
            matches!(error, Error::Resolve { .. } | Error::Connect { .. } | Error::Silent { .. });
        Self { reason: error.to_string(), unreachable }
    }
}

impl File {
    /// Finds the file, or makes it if the load writes.
    async fn find(client: &Client, url: &Url, args: &Bench) -> Result<(nfs_client::File, u64), Error> {
        let writes = plan::destroys(args);
        let (file, size) = match client.find(url, true).await {
            Ok((_, of)) if of.kind == FileType::Directory => return Err(Error::Status(Status::IsDir)),
            Ok((_, of)) if of.kind != FileType::Regular => return Err(Error::Status(Status::Inval)),
            Ok((handle, of)) => (client.open(&handle, writes).await?, of.size),
            Err(Error::Status(Status::NoEnt)) if writes => {
                let (directory, name) = nfs::parent(client, url).await?;
                let set = SetAttributes { mode: Some(MODE), ..SetAttributes::default() };
                (client.create(&directory, &name, &set).await?, 0)
            }
            Err(error) => return Err(error),
        };
        match args.load.span {
            Some(span) if writes && size < span => {
                file.set_size(span).await?;
                Ok((file, span))
            }
            _ => Ok((file, size)),
        }
    }
}

impl Medium for File {
    type Ended = Ended;
    type Data = Vec<u8>;

    async fn open(url: &Remote, args: &Bench, _: &Run, _: &Seat) -> Result<Self, BenchError> {
        let Remote::File(url) = url else {
            return Err(BenchError::Usage(format!("{url} is no file")));
        };
        let failed = |error| Lost::from(error).of(&url.to_string());
        let mut options = nfs::options(&args.connect);
        options.give_up = Duration::from_secs(args.limits.reconnect.into());
        let client = Client::connect(url, options).await.map_err(failed)?;
        let (file, bytes) = match Self::find(&client, url, args).await {
            Ok(found) => found,
            Err(error) => {
                // A server waits for clients that it still knows when it is started again.
                client.close().await;
                return Err(failed(error));
            }
        };
        // Unstable writes that overlap earlier ones could be sent again after them.
        let stable = args.load.file_sync || args.load.verify;
        Ok(Self { client, file: Rc::new(file), bytes, stable, ends: Rc::default() })
    }

    fn block_len(&self) -> u32 {
        BLOCK
    }

    fn len(&self) -> u64 {
        self.bytes
    }

    fn most(&self) -> u64 {
        // What is longer than the server takes at a time is several calls.
        u64::MAX
    }

    fn submit(&mut self, index: u16, offset: u64, bs: u32, io: Io) -> Result<(), Lost> {
        let (file, ends, stable) = (self.file.clone(), self.ends.clone(), self.stable);
        ends.in_flight.set(ends.in_flight.get() + 1);
        // The task ends with its call, which the connection ends at the latest.
        drop(runtime::spawn(async move {
            let outcome = match io {
                Io::Read { keep } => {
                    let read = file.read(offset, bs as usize).await;
                    read.map(|data| (data.len(), keep.then(|| data.to_vec())))
                }
                Io::Write(data) if stable => file.write_stable(offset, data).await.map(|()| (0, None)),
                Io::Write(data) => file.write(offset, data).await.map(|()| (0, None)),
            };
            ends.waiting.borrow_mut().push(Ended { index, at: Instant::now(), outcome });
            ends.came.notify();
        }));
        Ok(())
    }

    fn flush(&mut self) {}

    fn in_flight(&self) -> usize {
        self.ends.in_flight.get()
    }

    fn take(&mut self, into: &mut Vec<Ended>) -> usize {
        let mut waiting = self.ends.waiting.borrow_mut();
        let count = waiting.len();
        self.ends.in_flight.set(self.ends.in_flight.get() - count);
        into.append(&mut waiting);
        count
    }

    async fn completions(&mut self, into: &mut Vec<Ended>) -> Result<(), Lost> {
        let ends = self.ends.clone();
        ends.came.until(|| (!ends.waiting.borrow().is_empty()).then_some(())).await;
        self.take(into);
        Ok(())
    }

    fn judge(ended: Ended, is_write: impl FnOnce(u16) -> bool, bs: u32) -> End<Vec<u8>> {
        let outcome = match ended.outcome {
            Ok(_) if is_write(ended.index) => Outcome::Done(None),
            Ok((len, data)) if len == bs as usize => Outcome::Done(data),
            Ok((len, _)) => Outcome::Failed(format!("{len} of {bs} bytes came")),
            Err(error) => Outcome::Failed(error.to_string()),
        };
        End { index: ended.index, at: ended.at, outcome }
    }

    async fn sync(&mut self) -> Result<(), Lost> {
        Ok(self.file.sync().await?)
    }

    async fn close(self, _: &mut Tally, url: &str) {
        if let Err(error) = self.file.close().await {
            tracing::warn!(url, %error, "no answer to the close");
        }
        self.client.close().await;
    }
}
