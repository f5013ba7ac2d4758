//! Allegiance reassignment (RFC 7143 §7.2.2): a task leaves its lost connection, with all of its
//! state, and continues on another one. The driver transfers the state of the logical unit's work.

use invariant::broken;

use crate::sn;
use crate::target::events::{Completion, Event, ScsiCommand};
use crate::target::inbound::Inbound;
use crate::target::numbering::Numbering;
use crate::target::order::Work;
use crate::target::payload::Payload;
use crate::target::recovery::{History, StatusData};
use crate::target::respond::snack_rejected;
use crate::target::tasks::{Task, TaskKey, TaskTable};

/// A task between two connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    itt: u32,
    lun: crate::pdu::Lun,
    lun_field: crate::pdu::Lun,
    cmd_sn: u32,
    /// Whether it holds no place in the command window: it was immediate, or has ended.
    placeless: bool,
    expected_in: u32,
    expected_out: u32,
    bidirectional: bool,
    /// The DataSN at which its data-in continues: the data acknowledgement reference number.
    data_sn: u32,
    /// Bytes of data-in before that DataSN.
    offset: u32,
    /// Bytes of data-out that have arrived.
    received: u32,
    next_r2t_sn: u32,
}

impl Moved {
    /// The LUN of its logical unit.
    pub fn lun(&self) -> crate::pdu::Lun {
        self.lun
    }

    /// Whether it holds no place in the command window, so that no turn comes for it: it was
    /// immediate, or has ended.
    pub fn is_placeless(&self) -> bool {
        self.placeless
    }
}

/// The state of a task on a connection that is gone.
#[derive(Debug)]
pub struct Released<P> {
    /// Its former key, by which the logical unit's work is identified.
    pub key: TaskKey,
    /// The task for the new connection.
    pub task: Moved,
    /// Data-in that is unacknowledged or unsent.
    pub data_in: Vec<P>,
    /// Data-out that has arrived and that the logical unit has not taken.
    pub data_out: Vec<P>,
    /// Bytes of data-out that the logical unit has not taken, whether or not they have arrived.
    pub left: usize,
    /// Its completion, if it has ended: the logical unit is done.
    pub ended: Option<Completion>,
    /// The completion that replaces the logical unit's.
    pub refused: Option<Completion>,
    /// The command, if it still waits for its turn: no logical unit has received it.
    pub held: Option<ScsiCommand>,
}

/// The LUN and the CmdSN of the task with Initiator Task Tag `itt`, if the connection has the task
/// or its unacknowledged status.
pub(in crate::target) fn allegiant<P: Payload>(
    itt: u32,
    tasks: &TaskTable<P>,
    numbering: &Numbering<P>,
) -> Option<(crate::pdu::Lun, u32)> {
    if let Some(task) = tasks.find(itt).and_then(|key| tasks.get(key)) {
        return (!task.aborted).then_some((task.lun, task.cmd_sn));
    }
    let recovery = numbering.recovery.as_ref()?;
    let status = recovery.statuses.get(recovery.ended(itt)?)?;
    status.ended.as_ref().map(|ended| (ended.0.lun, ended.0.cmd_sn))
}

/// State of a connection that it releases to another one, and adopts from one.
pub(in crate::target) struct Allegiance<'a, P> {
    pub tasks: &'a mut TaskTable<P>,
    pub numbering: &'a mut Numbering<P>,
}

impl<P: Payload> Allegiance<'_, P> {
    /// Releases the task with Initiator Task Tag `itt`, for another connection to
    /// [adopt](Self::adopt). `exp_data_sn` is the initiator's ExpDataSN: Data-In PDUs or R2Ts
    /// before it have arrived; an impossible number is ignored (RFC 7143 §11.5.6). This connection
    /// is gone.
    pub fn release(&mut self, itt: u32, exp_data_sn: u32) -> Option<Released<P>> {
        let (key, mut task, mut ended) = match self.tasks.find(itt) {
            Some(key) => {
                let task = self.tasks.remove(key)?;
                if task.immediate {
                    self.numbering.order.end_immediate();
                }
                (key, task, None)
            }
            None => {
                let recovery = self.numbering.recovery.as_mut()?;
                let at = recovery.ended(itt)?;
                let status = recovery.statuses.get_mut(at);
                let Some((status, ended)) = status.and_then(|it| it.ended.take().map(|ended| (it, ended)))
                else {
                    broken!("status {at} is not retained");
                    return None;
                };
                let (task, completion) = *ended;
                // The new connection retains it.
                status.data = StatusData::Small(Vec::new());
                // The former key is no longer valid.
                (TaskKey::from_tag(crate::pdu::RESERVED_TAG), task, Some(completion))
            }
        };
        let placeless = task.immediate || ended.is_some();
        let (Some(recovery), Some(mut history)) = (self.numbering.recovery.as_mut(), task.history.take())
        else {
            // Its place in the command window goes with it.
            broken!("a task without a history at ErrorRecoveryLevel 2");
            return None;
        };
        let arrived = if sn::le(exp_data_sn, task.data_sn) { exp_data_sn } else { 0 };
        if history.lost && sn::lt(arrived, history.acked) {
            // The data that the initiator lacks has been discarded.
            ended = ended.map(|_| snack_rejected());
            task.refused.get_or_insert_with(snack_rejected);
        }
        if sn::lt(history.acked, arrived) {
            recovery.ack_data(&mut history, arrived, self.numbering.keepalive.last_heard());
        }
        let mut data_in: Vec<P> = history.data.iter().map(|sent| sent.data.clone()).collect();
        data_in.extend(task.tail.take());
        recovery.release(&mut history);
        let left = task.inbound.left();
        let mut data_out = Vec::new();
        let available = task.inbound.available();
        task.inbound.take(available, |piece| data_out.push(piece));
        let mut held = None;
        if !placeless {
            match self.numbering.order.take_held(key, task.cmd_sn) {
                Some(Work::Event(Event::Command(command))) => held = Some(command),
                // Its turn comes earlier than otherwise, without any effect.
                Some(Work::Refuse(_, completion)) => ended = Some(completion),
                _ => {}
            }
        }
        if task.finished.is_some() {
            // Data outstanding on the lost connection will not arrive.
            ended = ended.or_else(|| task.refused.take()).or_else(|| task.finished.take());
        }
        let sent = task.inbound.r2ts();
        let answered = task.inbound.r2ts_answered();
        let asked = if exp_data_sn <= sent { exp_data_sn } else { 0 };
        let task_moved = Moved {
            itt,
            lun: task.lun,
            lun_field: task.lun_field,
            cmd_sn: task.cmd_sn,
            placeless,
            expected_in: task.expected_in,
            expected_out: task.expected_out,
            bidirectional: task.bidirectional,
            data_sn: history.acked,
            offset: history.acked_bytes,
            received: task.inbound.received(),
            next_r2t_sn: asked.max(answered),
        };
        Some(Released { key, task: task_moved, data_in, data_out, left, ended, refused: task.refused, held })
    }

    /// Adopts a task that another connection has released. `data_out` is the data of its command,
    /// if no logical unit has received the command. `None`: the task table is full.
    pub fn adopt(&mut self, moved: &Moved, data_out: Vec<P>) -> Option<TaskKey> {
        let history = Box::new(History::resumed(moved.data_sn, moved.offset));
        let came = data_out.iter().map(|piece| piece.len() as u32).sum::<u32>();
        let mut inbound = Inbound::resumed(moved.expected_out, moved.received - came, moved.next_r2t_sn);
        data_out.into_iter().for_each(|piece| inbound.came(piece));
        let key = self.tasks.insert(Task {
            itt: moved.itt,
            lun: moved.lun,
            lun_field: moved.lun_field,
            cmd_sn: moved.cmd_sn,
            immediate: moved.placeless,
            expected_in: moved.expected_in,
            expected_out: moved.expected_out,
            bidirectional: moved.bidirectional,
            inbound,
            put: moved.offset,
            tail: None,
            sent: moved.offset,
            data_sn: moved.data_sn,
            refused: None,
            finished: None,
            aborted: false,
            history: self.numbering.recovery.is_some().then_some(history),
        });
        let Some(key) = key else {
            // It gets no answer, and later commands need not wait for it.
            if !moved.placeless {
                self.numbering.order.abandon(moved.cmd_sn);
            }
            return None;
        };
        self.numbering.order.begin(moved.placeless);
        self.numbering.recovered.reassigned_tasks += 1;
        Some(key)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::pdu::{self, Lun, NopOut};
    use crate::target::connection::tests::{Dialog, good};
    use crate::target::order::MAX_IMMEDIATE;
    use crate::target::recovery::Limits;
    use crate::target::{CommandWindow, Window};

    fn limits() -> Option<Limits> {
        let data_timeout = Duration::from_secs(5);
        Some(Limits { level: 2, keep_bytes: 1 << 20, keep_statuses: 12, data_timeout })
    }

    fn dialog() -> Dialog {
        Dialog::with(|config| config.recovery = limits())
    }

    fn lines(d: &mut Dialog) -> Vec<String> {
        d.heard().into_iter().map(|(line, _)| line).collect()
    }

    /// Transfers the state of an idle logical unit's task, as a driver does.
    fn carry(to: &mut Dialog, released: Released<Vec<u8>>) -> TaskKey {
        let key = to.connection.adopt(&released.task, Vec::new()).expect("there is room");
        for piece in released.data_in {
            to.connection.put_data(key, piece, &mut to.sent);
        }
        if let Some(completion) = released.ended {
            to.connection.finish(key, completion, &mut to.sent);
        }
        key
    }

    fn ended_read(d: &mut Dialog, bytes: u32) {
        let bhs = d.command(1, true, false, bytes);
        let task = d.start(bhs, &[]);
        d.connection.put_data(task, (0..bytes).map(|at| (at / 5) as u8).collect(), &mut d.sent);
        d.connection.finish(task, good(bytes.into(), 0), &mut d.sent);
    }

    #[test]
    fn an_ended_read_resumes_at_the_initiators_exp_data_sn() {
        let (mut from, mut to) = (dialog(), dialog());
        ended_read(&mut from, 5000);
        let first = from.heard();
        assert_eq!(first.len(), 5);
        assert_eq!(from.connection.allegiant(1).map(|(lun, _)| lun), Some(Lun::default()));
        assert_eq!(from.connection.allegiant(2), None);
        to.connection.set_peer_max_data_segment(700);
        let released = from.connection.release(1, 3).expect("it is there");
        assert_eq!(from.connection.allegiant(1), None);
        assert!(from.connection.release(1, 3).is_none(), "once");
        assert_eq!(from.connection.kept_bytes(), 0);
        carry(&mut to, released);
        let again = to.heard();
        assert!(again[0].0.contains("datasn=3 offset=3072"), "{}", again[0].0);
        let data =
            |pdus: &[(String, Vec<u8>)]| pdus.iter().flat_map(|pdu| pdu.1.clone()).collect::<Vec<u8>>();
        assert_eq!(data(&again), data(&first[3..]));
        assert!(again.last().is_some_and(|(line, _)| line.contains(" S status=0x00 statsn=50")));
        assert_eq!(
            to.connection.numbering.order.numbers(),
            (100, 107),
            "its place was given back where it ended"
        );
        from.connection.forget_unacknowledged();
        assert!(from.connection.has_nothing_left() && !from.connection.is_pending());
    }

    #[test]
    fn an_exp_data_sn_that_cannot_be_is_ignored() {
        for exp_data_sn in [0, 6, 70_000, u32::MAX] {
            let (mut from, mut to) = (dialog(), dialog());
            ended_read(&mut from, 5000);
            from.heard();
            let released = from.connection.release(1, exp_data_sn).expect("it is there");
            carry(&mut to, released);
            assert!(lines(&mut to)[0].contains("datasn=0 offset=0"), "{exp_data_sn}");
        }
    }

    #[test]
    fn a_status_alone_is_sent_again_if_all_data_has_arrived() {
        let (mut from, mut to) = (dialog(), dialog());
        ended_read(&mut from, 5000);
        let released = from.connection.release(1, 5).expect("it is there");
        carry(&mut to, released);
        let lines = lines(&mut to);
        assert_eq!(lines.len(), 1);
        assert!(
            lines[0].starts_with("SCSI Response itt=0x1") && lines[0].contains("expdatasn=5"),
            "{lines:?}"
        );
    }

    #[test]
    fn a_read_with_discarded_data_fails_unless_all_of_it_had_arrived() {
        for (exp_data_sn, status) in [(3, 0x02), (5, 0x00)] {
            let (mut from, mut to) = (dialog(), dialog());
            ended_read(&mut from, 5000);
            from.heard();
            assert!(from.connection.give_up_data(from.now));
            let released = from.connection.release(1, exp_data_sn).expect("it is there");
            assert!(released.data_in.is_empty());
            carry(&mut to, released);
            let lines = lines(&mut to);
            assert!(lines[0].contains(&format!("status=0x{status:02x}")), "{exp_data_sn}: {lines:?}");
            assert_eq!(lines.len(), 1);
        }
    }

    #[test]
    fn a_write_goes_on_at_the_first_byte_that_has_not_arrived() {
        let (mut from, mut to) = (dialog(), dialog());
        let mut bhs = from.command(9, false, true, 6000);
        bhs.flags |= pdu::FINAL;
        let task = from.start(bhs, &[]);
        from.connection.want_data(task, 6000, &mut from.sent);
        let r2t = lines(&mut from);
        let tag = r2t[0].split(" ttt=0x").nth(1).and_then(|rest| rest.split(' ').next()).expect("a tag");
        let tag = u32::from_str_radix(tag, 16).expect("a number");
        from.say(pdu::DataOut::new(9, tag, Lun::default(), 0, 0).into(), &[1; 1000]);
        let released = from.connection.release(9, 1).expect("it is there");
        assert_eq!((released.key, released.left, released.data_out.concat().len()), (task, 6000, 1000));
        assert!(released.ended.is_none());
        let key = to.connection.adopt(&released.task, Vec::new()).expect("there is room");
        assert_eq!(to.connection.want_data(key, 5000, &mut to.sent), Some(5000));
        let asked = lines(&mut to);
        assert!(asked[0].contains("r2tsn=1 offset=1000 length=4096"), "{asked:?}");
        // Its place in the window is returned when it ends here.
        to.connection.finish(key, good(0, 6000), &mut to.sent);
    }

    #[test]
    fn a_task_that_the_initiator_has_acknowledged_is_nobodys() {
        let mut from = dialog();
        ended_read(&mut from, 100);
        let mut nop = NopOut::answer(1, Lun::default());
        nop.exp_stat_sn.set(51);
        from.say(nop.into(), &[]);
        assert_eq!(from.connection.allegiant(1), None);
        assert!(from.connection.release(1, 0).is_none());
    }

    #[test]
    fn a_command_whose_turn_has_not_come_waits_for_it_elsewhere() {
        let (mut from, mut to) = (dialog(), dialog());
        let first = from.command(1, true, false, 0);
        let mut second = from.command(2, false, true, 4000);
        second.flags |= pdu::FINAL;
        assert_eq!(from.say(second, &[5; 1000]), None);
        assert!(!from.connection.has_nothing_left());
        let released = from.connection.release(2, 0).expect("it is there");
        assert!(from.connection.has_nothing_left());
        let command = released.held.expect("no unit has seen it");
        let key = to.connection.adopt(&released.task, released.data_out).expect("there is room");
        to.start(first, &[]);
        to.connection.hold(ScsiCommand { task: key, ..command });
        // In one shared session its number would have been received ahead of its turn here too.
        assert_eq!(to.connection.numbering.order.receive(101, None), crate::target::Admission::Deliver);
        let Ok(Some(Event::Command(command))) = to.connection.next_held(&mut to.sent) else {
            panic!("its turn")
        };
        assert_eq!((command.task, command.cmd_sn), (key, 101));
        assert_eq!(to.connection.want_data(key, 4000, &mut to.sent), Some(4000));
        assert_eq!(to.connection.data_available(key), 1000);
        assert!(lines(&mut to)[0].contains("r2tsn=0 offset=1000 length=3000"));
    }

    #[test]
    fn a_task_that_finds_no_room_gives_its_place_back() {
        let mut from = dialog();
        let mut to = Dialog::with(|config| {
            config.recovery = limits();
            config.queue_depth = 0;
            config.window = Window::Own(Box::new(CommandWindow::new(100, 32)));
        });
        let bhs = from.command(40, true, false, 512);
        from.start(bhs, &[]);
        let released = from.connection.release(40, 0).expect("it is there");
        for itt in 0..MAX_IMMEDIATE as u32 {
            let bhs = to.command(itt, true, false, 0);
            to.start(bhs, &[]);
        }
        let (exp, max) = to.connection.numbering.order.numbers();
        assert_eq!(to.connection.adopt(&released.task, Vec::new()), None);
        assert_eq!(to.connection.numbering.order.numbers(), (exp, max + 1));
    }

    #[test]
    fn a_connection_that_is_gone_gives_back_every_place() {
        let mut d = dialog();
        for itt in 0..14 {
            let bhs = d.command(itt, true, false, 0);
            let task = d.start(bhs, &[]);
            d.connection.finish(task, good(0, 0), &mut d.sent);
        }
        assert_eq!(d.connection.numbering.order.numbers(), (114, 120));
        d.connection.forget_unacknowledged();
        assert_eq!(d.connection.numbering.order.numbers(), (114, 121));
    }
}
