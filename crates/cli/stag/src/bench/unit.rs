//! A load's way to a unit: a session of iSCSI, and its queue.

use iscsi_client::{Completed, Disk, Error, Lun, Queue, Residual, Session, Transfer};
use runtime::{BufMut, pool};
use scsi::SenseKey;
use scsi::cdb::build::{self, Flags};

use super::BenchError;
use super::medium::{End, Io, Lost, Medium, Outcome};
use super::plan::{Run, Seat};
use super::tally::Tally;
use crate::args::{Bench, Receive, Remote};
use crate::client::connect;

/// Most times that a command is sent again after its session was lost. High, since the time to
/// reconnect is the limit that matters.
const MAX_REPLAYS: u8 = 100;
const NO_MEMORY: Error = Error::Argument("the buffer pool is exhausted");

/// A session with a unit.
pub struct Unit {
    queue: Queue,
    lun: Lun,
    block_len: u32,
    bytes: u64,
    most: u64,
    /// Reads fill a buffer, also if it is not verified.
    deliver: bool,
}

impl From<Error> for Lost {
    fn from(error: Error) -> Self {
        Self { reason: error.to_string(), unreachable: error.is_unreachable() }
    }
}

impl Medium for Unit {
    type Ended = Completed;
    type Data = BufMut;

    async fn open(url: &Remote, args: &Bench, run: &Run, seat: &Seat) -> Result<Self, BenchError> {
        let Remote::Unit(url) = url else {
            return Err(BenchError::Usage(format!("{url} is no unit")));
        };
        let failed = |error| Lost::from(error).of(&url.to_string());
        let mut options = connect::options_without_chap(&args.connect);
        options.queue_depth = run.depth.into();
        options.max_replays = MAX_REPLAYS;
        // Above level 0 the target keeps sent data for retransmission, so only `--erl` asks for it.
        options.error_recovery_level = args.connect.erl.unwrap_or(0);
        let chap = connect::chap(url, &args.connect);
        options.chap = chap.map_err(|error| BenchError::System(error.to_string()))?;
        if args.load.initiators > 1 {
            options.initiator = format!("{}.{}", options.initiator, seat.initiator + 1);
        }
        let mut place = connect::place(url);
        if !options.portals.is_empty() {
            // Sessions begin at the portals in turn.
            let own = (std::mem::take(&mut place.host), place.port);
            let turn = (seat.index % (options.portals.len() as u64 + 1)) as usize;
            options.portals.insert(0, own);
            options.portals.rotate_left(turn);
            (place.host, place.port) = options.portals.remove(0);
        }
        let session = Session::connect(&place, options).await.map_err(failed)?;
        let disk = Disk::open(&session, url.lun.unwrap_or(0)).await.map_err(failed)?;
        let block_len = disk.block_len();
        Ok(Self {
            queue: session.queue().map_err(failed)?,
            lun: disk.lun(),
            block_len,
            bytes: disk.len(),
            most: u64::from(disk.max_transfer()) * u64::from(block_len),
            deliver: args.load.received() == Receive::Deliver,
        })
    }

    fn block_len(&self) -> u32 {
        self.block_len
    }

    fn len(&self) -> u64 {
        self.bytes
    }

    fn most(&self) -> u64 {
        self.most
    }

    #[inline]
    fn submit(&mut self, index: u16, offset: u64, bs: u32, io: Io) -> Result<(), Lost> {
        let (lba, blocks) = (offset / u64::from(self.block_len), bs / self.block_len);
        let (cdb, transfer) = match io {
            Io::Write(data) => (build::write(lba, blocks, Flags::default()), Transfer::Write(data)),
            Io::Read { keep } => {
                let transfer = if keep || self.deliver {
                    let mut buffer = pool::alloc(bs as usize).ok_or(NO_MEMORY)?;
                    buffer.set_len(bs as usize);
                    Transfer::Read(buffer)
                } else {
                    Transfer::Discard(bs)
                };
                (build::read(lba, blocks, Flags::default()), transfer)
            }
        };
        Ok(self.queue.submit(index.into(), self.lun, &cdb, transfer)?)
    }

    fn flush(&mut self) {
        self.queue.flush();
    }

    fn in_flight(&self) -> usize {
        self.queue.in_flight()
    }

    fn take(&mut self, into: &mut Vec<Completed>) -> usize {
        self.queue.take(into)
    }

    async fn completions(&mut self, into: &mut Vec<Completed>) -> Result<(), Lost> {
        Ok(self.queue.completions(into).await?)
    }

    #[inline]
    fn judge(ended: Completed, is_write: impl FnOnce(u16) -> bool, bs: u32) -> End<BufMut> {
        let Completed { token, at, received, residual, buffer, outcome } = ended;
        // Tokens are indexes.
        let index = token as u16;
        let write = is_write(index);
        let outcome = match outcome {
            Ok(()) if residual == Residual::Exact && (write || received == bs) => Outcome::Done(buffer),
            Ok(()) if write => Outcome::Failed("the target did not take all of the data".to_owned()),
            Ok(()) => Outcome::Failed(format!("{received} of {bs} bytes came")),
            // After a reconnect, the first commands get a unit attention. A busy unit needs a
            // pause.
            Err(error) if is_passing(&error) => Outcome::Again {
                pause: error.sense_key() != Some(SenseKey::UnitAttention),
                reason: error.to_string(),
            },
            Err(error) => Outcome::Failed(error.to_string()),
        };
        End { index, at, outcome }
    }

    /// Leaves written data in the unit's cache.
    async fn sync(&mut self) -> Result<(), Lost> {
        Ok(())
    }

    async fn close(self, tally: &mut Tally, url: &str) {
        let session = self.queue.session();
        tally.recovered(session);
        if let Err(error) = session.close().await {
            tracing::warn!(url, %error, "no answer to the logout");
        }
    }
}

/// Whether the same command may well succeed when it is sent again.
fn is_passing(error: &Error) -> bool {
    match error {
        Error::Scsi(scsi) => {
            let attention = error.sense_key() == Some(SenseKey::UnitAttention);
            // BUSY and TASK SET FULL (SAM-5 §5.3.1).
            attention || matches!(scsi.status, 0x08 | 0x28)
        }
        _ => false,
    }
}
