//! [`SharedDisk`]: a disk for any thread and any executor, such as tokio's.

use std::cell::RefCell;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake};
use std::thread::Thread;

use runtime::{Buf, Cores};
use scsi::data::unmap::UnmapRange;

use crate::disk::Disk;
use crate::error::Error;
use crate::options::Options;
use crate::session::Session;
use crate::url::Url;

thread_local! {
    /// The disk of a [`SharedDisk`]'s thread.
    static DISK: RefCell<Option<Disk>> = const { RefCell::new(None) };
}

/// A [`Disk`] on a thread of its own. Every method may be called from any thread, returns a future
/// for any executor, and begins its work when it is called. [`wait`] blocks a thread until such a
/// future is done. A future that is dropped does not end its command.
///
/// Clones are the same disk. After the last one is dropped its thread ends, without a logout:
/// [`SharedDisk::close`] logs out. Starting and ending the thread block the caller for a moment.
///
/// ```no_run
/// use iscsi_client::{Options, SharedDisk, wait};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let url = "iscsi://192.0.2.1/iqn.2026-01.org.example:disks/0".parse()?;
/// let disk = wait(SharedDisk::open(&url, Options::default()))?;
/// let other = disk.clone();
/// let reader = std::thread::spawn(move || wait(other.read(0, 8)));
/// wait(disk.write(8, vec![0x5a; disk.block_len() as usize]))?;
/// let first = reader.join().expect("the reader does not panic")?;
/// println!("{} bytes", first.len());
/// wait(disk.close())?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct SharedDisk {
    core: Arc<Cores>,
    block_len: u32,
    blocks: u64,
}

/// The outcome of [`SharedDisk::command`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Outcome {
    /// The SCSI status.
    pub status: u8,
    /// Sense data as received; empty if there is none.
    pub sense: Vec<u8>,
    /// The data read.
    pub data: Vec<u8>,
}

impl SharedDisk {
    /// Starts a thread, logs in there, and opens the unit that the URL names (0 if it names none).
    ///
    /// # Errors
    /// Any [`Error`] of [`Session::connect`] and [`Disk::open`]; [`Error::Thread`] if the thread or
    /// its io_uring cannot be created.
    pub fn open(url: &Url, options: Options) -> impl Future<Output = Result<Self, Error>> + Send + use<> {
        let started = Cores::start(1, runtime::Config::default());
        let opened = started.map_err(|error| Error::Thread(error.to_string())).map(|core| {
            let url = url.clone();
            let disk = core.handles()[0].call(move || async move {
                let session = Session::connect(&url, options).await?;
                let disk = Disk::open(&session, url.lun.unwrap_or(0)).await?;
                let (block_len, blocks) = (disk.block_len(), disk.blocks());
                DISK.set(Some(disk));
                Ok((block_len, blocks))
            });
            (core, disk)
        });
        async move {
            let (core, disk) = opened?;
            let (block_len, blocks) = disk.await.unwrap_or(Err(Error::Closed))?;
            Ok(Self { core: Arc::new(core), block_len, blocks })
        }
    }

    /// Bytes of a logical block.
    pub fn block_len(&self) -> u32 {
        self.block_len
    }

    /// Number of logical blocks.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Runs `job` with the disk on its thread.
    fn call<T, F, J>(&self, job: J) -> impl Future<Output = Result<T, Error>> + Send + use<T, F, J>
    where
        T: Send + 'static,
        J: FnOnce(Disk) -> F + Send + 'static,
        F: Future<Output = Result<T, Error>> + 'static,
    {
        let answer = self.core.handles()[0].call(move || async move {
            let disk = DISK.with_borrow(Clone::clone).ok_or(Error::Closed)?;
            job(disk).await
        });
        async move { answer.await.unwrap_or(Err(Error::Closed)) }
    }

    /// As [`Disk::read`], into one vector.
    ///
    /// # Errors
    /// As [`Disk::read`].
    pub fn read(&self, lba: u64, blocks: u32) -> impl Future<Output = Result<Vec<u8>, Error>> + Send + use<> {
        self.call(move |disk| async move { Ok(disk.read(lba, blocks).await?.to_vec()) })
    }

    /// As [`Disk::write`].
    ///
    /// # Errors
    /// As [`Disk::write`].
    pub fn write(&self, lba: u64, data: Vec<u8>) -> impl Future<Output = Result<(), Error>> + Send + use<> {
        self.call(move |disk| async move { disk.write(lba, Buf::from(data)).await })
    }

    /// As [`Disk::write_durably`].
    ///
    /// # Errors
    /// As [`Disk::write`].
    pub fn write_durably(
        &self,
        lba: u64,
        data: Vec<u8>,
    ) -> impl Future<Output = Result<(), Error>> + Send + use<> {
        self.call(move |disk| async move { disk.write_durably(lba, Buf::from(data)).await })
    }

    /// As [`Disk::sync`].
    ///
    /// # Errors
    /// As [`Disk::sync`].
    pub fn sync(&self) -> impl Future<Output = Result<(), Error>> + Send + use<> {
        self.call(|disk| async move { disk.sync().await })
    }

    /// As [`Disk::unmap`].
    ///
    /// # Errors
    /// As [`Disk::unmap`].
    pub fn unmap(&self, ranges: Vec<UnmapRange>) -> impl Future<Output = Result<(), Error>> + Send + use<> {
        self.call(move |disk| async move { disk.unmap(&ranges).await })
    }

    /// As [`crate::Unit::scsi_command`]: any command, once. Any status is an outcome.
    ///
    /// # Errors
    /// Any [`Error`] except [`Error::Scsi`].
    pub fn command(
        &self,
        cdb: Vec<u8>,
        data_out: Option<Vec<u8>>,
        data_in_len: Option<u32>,
    ) -> impl Future<Output = Result<Outcome, Error>> + Send + use<> {
        self.call(move |disk| async move {
            let data_out = data_out.map(|data| Buf::from(data).into());
            let response = disk.scsi_command(&cdb, data_out, data_in_len).await?;
            Ok(Outcome { status: response.status, sense: response.sense, data: response.data.to_vec() })
        })
    }

    /// Logs out. Later calls on any clone end with [`Error::Closed`].
    ///
    /// # Errors
    /// Any [`Error`].
    pub fn close(self) -> impl Future<Output = Result<(), Error>> + Send + use<> {
        let closed = self.call(|disk| async move {
            DISK.set(None);
            disk.session().close().await
        });
        async move {
            let outcome = closed.await;
            drop(self);
            outcome
        }
    }
}

/// Wakes a thread that [`wait`]s.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Blocks this thread until `future` is done. Not for a thread that runs an executor, nor for one
/// of [`runtime`]'s cores.
pub fn wait<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        std::thread::park();
    }
}
