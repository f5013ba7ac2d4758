//! Answers requests that [`crate::remote`] brings to a connection from any core.

use std::rc::Rc;

use iscsi::pdu::{AsyncEvent, Lun};
use iscsi::target::recovery::Recovered;
use server_core::tally::Counts;

use super::{Connection, Phase, management, reassign};
use crate::ferry::Parcel;
use crate::remote::{Resident, Victims, Work};
use crate::slow::Slow;

impl Resident for Connection {
    fn shut(&self) {
        Self::shut(self);
    }

    fn drain(&self) {
        self.life.advance(Phase::Draining);
        self.stop.notify();
    }

    fn bury(&self) {
        Self::bury(self);
    }

    fn ended(self: Rc<Self>) -> Work<()> {
        Box::pin(async move { Self::ended(&self).await })
    }

    fn look_again(self: Rc<Self>) {
        drop(self.view());
    }

    fn limits_changed(self: Rc<Self>) {
        self.limits_moved();
    }

    fn deliver_held(self: Rc<Self>) {
        self.look_at_order();
        self.deliver_held_or_lose();
    }

    fn announce(&self, event: AsyncEvent, parameters: [u16; 3]) {
        if event == AsyncEvent::NegotiationRequest {
            self.negotiated.borrow_mut().ask();
        }
        self.with(|state, outbox| state.async_message(event, parameters, outbox));
    }

    fn abort(self: Rc<Self>, victims: Victims) -> Work<usize> {
        Box::pin(async move { Self::abort(&self, &victims).await })
    }

    fn acknowledged(self: Rc<Self>) -> Work<()> {
        Box::pin(async move { management::acknowledged(&self).await })
    }

    fn count(self: Rc<Self>, victims: &Victims) -> usize {
        self.tasks_of(victims).len()
    }

    fn remove(self: Rc<Self>) -> Work<()> {
        Box::pin(async move { Self::remove(&self).await })
    }

    fn allegiant(&self, itt: u32) -> Option<(Lun, u32)> {
        self.inner.borrow().state.allegiant(itt)
    }

    fn give_up(self: Rc<Self>, itt: u32, exp_data_sn: u32) -> Option<Parcel> {
        reassign::give_up(&self, itt, exp_data_sn)
    }

    fn tsih(&self) -> u16 {
        self.session.tsih
    }

    fn counts(&self) -> Vec<(usize, Counts)> {
        let mut counts = self.view.borrow().nexuses.counts();
        counts.push((0, *self.past.borrow()));
        counts
    }

    fn slow(&self) -> Vec<Slow> {
        let mut waiting = Vec::new();
        self.pipeline.each(|command| waiting.push(command.start()));
        let state = &self.inner.borrow().state;
        self.timing.slow_now(waiting.into_iter(), |task| state.has(task))
    }

    fn recovered(&self) -> Option<Recovered> {
        (self.life.phase() < Phase::Ended).then(|| self.inner.borrow().state.recovered())
    }
}
