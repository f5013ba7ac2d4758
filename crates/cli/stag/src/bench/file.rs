//! A load's way to a file: a connection of NFS, and an open file.

use std::rc::Rc;

use nfs_client::{Client, Error, FileType, Options, SetAttributes, Status, Url};
use runtime::Chain;

use super::ends::{Ended as AnyEnded, Ends};
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
    /// Bytes of a READ and of a WRITE at most.
    calls: (usize, usize),
    ends: Rc<Ends<Came>>,
}

/// Bytes that were read or written, and the data of a read that is verified.
type Came = (usize, Option<Vec<u8>>);
type Ended = AnyEnded<Came>;

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
        let usual = nfs::options(&args.connect);
        let options = Options {
            rdma_reads: args.load.rdma_reads.unwrap_or(usual.rdma_reads),
            rdma_segment: args.load.rdma_segment,
            ..usual
        };
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
        let most = args.load.call.unwrap_or(u32::MAX);
        let calls = client.sizes();
        let calls = (calls.0.min(most) as usize, calls.1.min(most) as usize);
        Ok(Self { client, file: Rc::new(file), bytes, stable, calls, ends: Rc::default() })
    }

    fn block_len(&self) -> u32 {
        BLOCK
    }

    fn len(&self) -> u64 {
        self.bytes
    }

    fn most(&self) -> u64 {
        // A longer I/O than the server takes in one call is cut.
        u64::MAX
    }

    fn submit(&mut self, index: u16, offset: u64, bs: u32, io: Io) -> Result<(), Lost> {
        let (file, ends, stable, calls) = (self.file.clone(), self.ends.clone(), self.stable, self.calls);
        ends.begin();
        // The task ends with its calls, which the connection ends at the latest.
        drop(runtime::spawn(async move {
            let outcome = match io {
                Io::Read { keep } => {
                    let read = read(&file, offset, bs as usize, calls.0).await;
                    read.map(|data| (data.len(), keep.then(|| data.to_vec())))
                }
                Io::Write(data) => write(&file, offset, data, calls.1, stable).await.map(|()| (0, None)),
            };
            ends.end(index, outcome);
        }));
        Ok(())
    }

    fn flush(&mut self) {}

    fn in_flight(&self) -> usize {
        self.ends.in_flight()
    }

    fn take(&mut self, into: &mut Vec<Ended>) -> usize {
        self.ends.take(into)
    }

    async fn completions(&mut self, into: &mut Vec<Ended>) -> Result<(), Lost> {
        self.ends.some(into).await;
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

/// Reads `len` bytes by calls of `most` bytes, all in flight together.
async fn read(file: &Rc<nfs_client::File>, offset: u64, len: usize, most: usize) -> Result<Chain, Error> {
    let call = |at: usize| {
        let file = file.clone();
        async move { file.read(offset + at as u64, most.min(len - at)).await }
    };
    let mut data = Chain::new();
    for part in together((0..len).step_by(most).map(call)).await? {
        data.append(part);
    }
    Ok(data)
}

/// Writes by calls of `most` bytes, all in flight together.
async fn write(
    file: &Rc<nfs_client::File>,
    mut offset: u64,
    mut data: Chain,
    most: usize,
    stable: bool,
) -> Result<(), Error> {
    let mut calls = Vec::new();
    while !data.is_empty() {
        let part = data.split_to(most.min(data.len()));
        let (file, at) = (file.clone(), offset);
        offset += part.len() as u64;
        calls.push(async move {
            if stable { file.write_stable(at, part).await } else { file.write(at, part).await }
        });
    }
    together(calls.into_iter()).await.map(drop)
}

/// Runs calls side by side. Their results in order, or the first error.
async fn together<T: 'static>(
    mut calls: impl ExactSizeIterator<Item = impl Future<Output = Result<T, Error>> + 'static>,
) -> Result<Vec<T>, Error> {
    if calls.len() == 1
        && let Some(only) = calls.next()
    {
        return Ok(vec![only.await?]);
    }
    let running: Vec<_> = calls.map(runtime::spawn).collect();
    let mut results = Vec::with_capacity(running.len());
    for call in running {
        // No task is aborted.
        results.extend(call.await.ok().transpose()?);
    }
    Ok(results)
}
