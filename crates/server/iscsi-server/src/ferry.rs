//! [`Ferry`]: carries a reassigned task's data between its unit, which stays on the core where it
//! began, and the task's new connection on any core. Reassignment is rare, so the ferry may copy.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use device::Lost;
use invariant::broken;
use iscsi::target::recovery::Moved;
use iscsi::target::{Completion, ScsiCommand};
use runtime::{Buf, Chain};

use crate::lun_map::View;

/// Bytes of data-in on a ferry above which the unit waits.
const LOAD: usize = 1 << 20;

/// Queue between a unit and its task's new connection.
pub(crate) struct Ferry(Mutex<Load>);

#[derive(Default)]
pub(crate) struct Load {
    /// Data-in from the unit, not yet taken by the connection.
    pub data_in: VecDeque<Vec<u8>>,
    pub data_in_bytes: usize,
    /// Data-out from the connection, not yet taken by the unit.
    pub data_out: VecDeque<Vec<u8>>,
    pub data_out_bytes: usize,
    /// Data-out that the unit has not taken yet, whether it is here or not, bytes.
    pub left: usize,
    /// Data-out that the unit waits for and that is not here, bytes.
    pub wanted: usize,
    pub ended: Option<Completion>,
    /// Result of the task, whatever the unit reports.
    pub refused: Option<Completion>,
    /// The connection has dropped the task.
    pub given_up: bool,
    pub unit: Option<Waker>,
    pub connection: Option<Waker>,
}

/// Next item of a ferry for the connection.
pub(crate) enum Freight {
    Data(Vec<u8>),
    Wants(usize),
    Ended(Completion),
    /// The task was aborted.
    Aborted,
}

impl Ferry {
    pub(crate) fn new(load: Load) -> Arc<Self> {
        Arc::new(Self(Mutex::new(load)))
    }

    fn load(&self) -> MutexGuard<'_, Load> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Put_Data, from the unit.
    pub(crate) fn put(&self, data: &Buf) {
        let mut load = self.load();
        if load.given_up || data.is_empty() {
            return;
        }
        load.data_in_bytes += data.len();
        load.data_in.push_back(data.to_vec());
        wake(&mut load.connection);
    }

    /// Whether the unit may put more.
    pub(crate) fn poll_room(&self, cx: &mut Context<'_>) -> Poll<Result<(), Lost>> {
        let mut load = self.load();
        if load.given_up {
            return Poll::Ready(Err(Lost));
        }
        if load.data_in_bytes < LOAD {
            return Poll::Ready(Ok(()));
        }
        load.unit = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Get_Data, for the unit.
    pub(crate) fn poll_get(&self, cx: &mut Context<'_>, len: usize) -> Poll<Result<Chain, Lost>> {
        let mut load = self.load();
        if load.given_up || load.refused.is_some() {
            return Poll::Ready(Err(Lost));
        }
        let len = len.min(load.left);
        if load.data_out_bytes < len {
            load.wanted = len - load.data_out_bytes;
            load.unit = Some(cx.waker().clone());
            wake(&mut load.connection);
            return Poll::Pending;
        }
        let mut chain = Chain::new();
        let mut missing = len;
        while missing > 0 {
            let Some(mut piece) = load.data_out.pop_front() else {
                broken!("{missing} bytes of data-out counted that are not there");
                break;
            };
            if piece.len() > missing {
                let rest = piece.split_off(missing);
                load.data_out.push_front(rest);
            }
            missing -= piece.len();
            chain.push(piece);
        }
        load.data_out_bytes -= len;
        load.left -= len;
        Poll::Ready(Ok(chain))
    }

    /// Ready when the connection has dropped the task.
    pub(crate) fn poll_lost(&self, cx: &mut Context<'_>) -> Poll<Lost> {
        let mut load = self.load();
        if load.given_up || load.refused.is_some() {
            return Poll::Ready(Lost);
        }
        load.unit = Some(cx.waker().clone());
        Poll::Pending
    }

    /// The unit has finished.
    pub(crate) fn end(&self, completion: Completion) {
        let mut load = self.load();
        let completion = load.refused.take().unwrap_or(completion);
        load.ended = Some(completion);
        wake(&mut load.connection);
    }

    /// Adds data from the connection that the unit wants.
    pub(crate) fn bring(&self, data: Vec<u8>) {
        let mut load = self.load();
        load.data_out_bytes += data.len();
        load.data_out.push_back(data);
        wake(&mut load.unit);
    }

    /// Drops the task: its unit is to stop.
    pub(crate) fn give_up(&self) {
        let mut load = self.load();
        load.given_up = true;
        load.data_in.clear();
        load.data_in_bytes = 0;
        wake(&mut load.unit);
    }

    /// The unit's next item for the connection. Registers the waker if there is none yet.
    pub(crate) fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Freight> {
        let mut load = self.load();
        if let Some(data) = load.data_in.pop_front() {
            load.data_in_bytes -= data.len();
            wake(&mut load.unit);
            return Poll::Ready(Freight::Data(data));
        }
        if let Some(completion) = load.ended.take() {
            return Poll::Ready(Freight::Ended(completion));
        }
        if load.wanted > 0 {
            return Poll::Ready(Freight::Wants(std::mem::take(&mut load.wanted)));
        }
        load.connection = Some(cx.waker().clone());
        Poll::Pending
    }
}

fn wake(waker: &mut Option<Waker>) {
    if let Some(waker) = waker.take() {
        waker.wake();
    }
}

/// A task that a connection has released.
pub(crate) struct Parcel {
    pub task: Moved,
    /// Its turn has not come: the command, and the data-out that came with it.
    pub held: Option<(ScsiCommand, Vec<Vec<u8>>)>,
    /// The view of its old connection.
    pub view: Arc<View>,
    pub ferry: Arc<Ferry>,
}
