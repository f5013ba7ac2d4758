//! The datamover (RFC 5047) of a command. Over TCP, Put_Data becomes Data-In PDUs, and Get_Data
//! becomes R2Ts and Data-Outs. Over iSER they become RDMA Writes and RDMA Reads.

use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use device::{DataMover, Landing, Lost};
use invariant::broken;
use iscsi::target::TaskKey;
use runtime::{Buf, Chain};
use server_core::ahead;

use super::{Connection, Inner};
use crate::end::NoStag;
use crate::transport::{Transport, iser};
use crate::wire::Segment;

/// Datamover of one task.
pub struct Mover {
    connection: Rc<Connection>,
    task: TaskKey,
    /// Bytes of [`Connection::grants`] that the task holds for the unit's requests.
    granted: usize,
    /// The unit has received the granted bytes.
    given: bool,
    /// Bytes granted besides, for data that is requested before the unit asks for it.
    ahead: usize,
    /// The connection knows where the data belongs.
    lands: bool,
}

/// Over TCP: shortest Get_Data, bytes, for which more data is requested ahead. Over RDMA any length
/// counts.
const PIECE: usize = 64 << 10;

impl Mover {
    pub(crate) fn new(connection: Rc<Connection>, task: TaskKey) -> Self {
        Self { connection, task, granted: 0, given: false, ahead: 0, lands: false }
    }

    /// Requests data that the unit will want after the next `len` bytes, as far as the path calls
    /// for it and no other task loses by it.
    fn look_ahead(&mut self, len: usize) {
        let connection = &*self.connection;
        let most = ahead::pieces(connection.round_trip(), connection.is_iser());
        let left = connection.with(|state, _| state.data_left(self.task));
        // Near the end less data is to come than was granted.
        let unused = self.ahead.saturating_sub(left.saturating_sub(len));
        connection.grants.give_back(unused);
        self.ahead -= unused;
        while self.ahead < most * len {
            let more = len.min(left.saturating_sub(len + self.ahead));
            if more == 0 || !connection.grants.try_take(more) {
                break;
            }
            self.ahead += more;
        }
        if self.ahead > 0 {
            connection.with(|state, outbox| state.want_data(self.task, len + self.ahead, outbox));
        }
    }

    fn give_back(&mut self) {
        self.connection.grants.give_back(std::mem::take(&mut self.granted));
        self.given = false;
    }

    /// Posts the RDMA Writes of data-in to the initiator's memory.
    fn write(&self, mut data: Buf) {
        let Inner { state, outbox } = &mut *self.connection.inner.borrow_mut();
        let Some((offset, len)) = state.put(self.task, data.len()) else { return };
        data.truncate(len);
        let Some(outgoing) = &mut outbox.iser else {
            broken!("an RDMA Write over TCP");
            return;
        };
        if let Err(NoStag) = outgoing.write(self.task, offset, data) {
            // The initiator gave no memory for it. Nothing is moved, and the command ends with an
            // error.
            state.refuse_data_in(self.task);
        }
    }

    /// Posts all RDMA Reads for the data that the unit wants.
    fn read(&self) -> Result<(), Lost> {
        let result = {
            let Inner { state, outbox } = &mut *self.connection.inner.borrow_mut();
            let Some(outgoing) = &mut outbox.iser else {
                broken!("an RDMA Read over TCP");
                return Err(Lost);
            };
            let mut reads = std::iter::from_fn(|| state.next_read(self.task, iser::LONGEST_READ));
            reads.try_for_each(|read| outgoing.read(self.task, read))
        };
        result.map_err(|error| {
            // The STag is missing, so no RDMA Read of the task is in flight.
            self.connection.lose(error.into());
            Lost
        })
    }
}

impl Drop for Mover {
    fn drop(&mut self) {
        if self.granted + self.ahead > 0 {
            self.give_back();
            self.connection.grants.give_back(self.ahead);
        }
        if self.lands {
            self.connection.forget_landing(self.task);
        }
    }
}

impl DataMover for Mover {
    #[inline]
    fn put_data(&mut self, data: Buf) {
        if let Some(ferry) = self.connection.ferry(self.task) {
            return ferry.put(&data);
        }
        match &self.connection.transport {
            Transport::Tcp(_) => {
                self.connection.with(|state, outbox| state.put_data(self.task, Segment(data), outbox));
            }
            Transport::Iser(_) => self.write(data),
        }
    }

    #[inline]
    fn holds(&self, len: usize) -> bool {
        let Inner { state, outbox } = &*self.connection.inner.borrow();
        outbox.holds && state.fits_one_pdu(len) && self.connection.ferry(self.task).is_none()
    }

    fn is_fresh(&mut self, most: Duration) -> bool {
        let connection = &self.connection;
        if connection.is_lost() {
            // Nobody can be asked any more: the task ends.
            return true;
        }
        connection.with(|state, outbox| state.is_fresh(most, runtime::now(), outbox))
    }

    fn poll_put_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Lost>> {
        let connection = &self.connection;
        if let Some(ferry) = connection.ferry(self.task) {
            return ferry.poll_room(cx);
        }
        if connection.is_lost() || connection.is_aborted(self.task) {
            return Poll::Ready(Err(Lost));
        }
        if connection.has_room() && connection.may_put(self.task) {
            connection.timing.heard_from_initiator(self.task);
            return Poll::Ready(Ok(()));
        }
        connection.timing.waits_for_initiator(self.task);
        connection.room.register(cx.waker());
        if let Transport::Iser(iser) = &connection.transport {
            super::iser::watch_room(iser, connection);
        }
        Poll::Pending
    }

    fn poll_get_data(&mut self, cx: &mut Context<'_>, len: usize) -> Poll<Result<Chain, Lost>> {
        if let Some(ferry) = self.connection.ferry(self.task) {
            self.give_back();
            return ferry.poll_get(cx, len);
        }
        if self.connection.is_lost() {
            return Poll::Ready(Err(Lost));
        }
        if std::mem::take(&mut self.given) && len > self.granted {
            self.give_back();
        }
        if self.granted == 0 && self.ahead > 0 {
            self.granted = self.ahead.min(len);
            self.ahead -= self.granted;
        }
        // Before the first piece, although it may be there already: with that, units take what
        // others wait for.
        let is_short = |state: &iscsi::target::Connection<Segment>| {
            state.is_short_of_data(self.task, state.data_left(self.task))
        };
        if self.granted == 0 && self.connection.with(|state, _| is_short(state)) {
            if self.connection.grants.poll_take(len, cx).is_pending() {
                // Meanwhile the task may be aborted, or the data come unsolicited.
                self.connection.wait_for_data(self.task, cx.waker());
                self.connection.timing.waits_for_initiator(self.task);
                return Poll::Pending;
            }
            self.granted = len;
        }
        let wanted = self.connection.with(|state, outbox| state.want_data(self.task, len, outbox));
        let Some(len) = wanted else { return Poll::Ready(Err(Lost)) };
        let rdma = self.connection.is_iser();
        if rdma || len >= PIECE {
            self.look_ahead(len);
        }
        if rdma {
            self.read()?;
        }
        let connection = &*self.connection;
        let ready = connection.with(|state, _| {
            (state.data_available(self.task) >= len).then(|| {
                let mut chain = Chain::new();
                state.take_data(self.task, len, |segment| chain.push(segment.0));
                chain
            })
        });
        if let Some(chain) = ready {
            self.given = true;
            connection.timing.heard_from_initiator(self.task);
            return Poll::Ready(Ok(chain));
        }
        connection.wait_for_data(self.task, cx.waker());
        connection.timing.waits_for_initiator(self.task);
        Poll::Pending
    }

    fn lands(&mut self, landing: Landing) {
        self.connection.lands(self.task, landing);
        self.lands = true;
    }

    fn poll_lost(&mut self, cx: &mut Context<'_>) -> Poll<Lost> {
        let connection = &*self.connection;
        if let Some(ferry) = connection.ferry(self.task) {
            return ferry.poll_lost(cx);
        }
        if connection.is_lost() || connection.is_aborted(self.task) {
            return Poll::Ready(Lost);
        }
        // An abort wakes the waiter too.
        connection.wait_for_data(self.task, cx.waker());
        Poll::Pending
    }
}
