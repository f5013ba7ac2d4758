//! Connection recovery (RFC 7143 §7.2.2, ErrorRecoveryLevel 2): a task of a lost connection
//! continues on another one.
//!
//! A unit stays on the core where it began. A [`Ferry`] carries data and requests between it and
//! the task's new connection, on whatever core. To the new connection the ferry is the unit.
//! Reassignment is rare, so the ferry may copy.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use device::{DataMover, GetData, Lost};
use iscsi::pdu::{Lun, TaskManagementResult};
use iscsi::sn;
use iscsi::target::{ScsiCommand, TaskKey, TaskManagement};

use super::Connection;
use super::mover::Mover;
use crate::ferry::{Ferry, Freight, Load, Parcel};
use crate::remote::Victims;
use crate::session::{Member, Standing};

/// Longest piece to make for a ferry, bytes.
const PIECE: usize = 256 << 10;

/// Releases the task with tag `itt` of a lost connection. Runs on its core.
pub(crate) fn give_up(connection: &Rc<Connection>, itt: u32, exp_data_sn: u32) -> Option<Parcel> {
    let view = connection.view().shared().clone();
    let released = connection.inner.borrow_mut().state.release(itt, exp_data_sn)?;
    let bytes = |pieces: Vec<crate::wire::Segment>| {
        let mut whole: VecDeque<Vec<u8>> = VecDeque::new();
        for piece in pieces {
            match whole.back_mut() {
                // The new connection may use longer pieces than the old one did.
                Some(last) if last.len() + piece.0.len() <= PIECE => {
                    last.extend_from_slice(&piece.0.to_vec())
                }
                _ => whole.push_back(piece.0.to_vec()),
            }
        }
        whole
    };
    let data_out = bytes(released.data_out);
    // A command that waits for its order goes whole, too: nobody tells a connection that is gone
    // when an ORDERED command of another one has ended.
    let waiting = || connection.pipeline.order.borrow_mut().remove(released.key).map(|command| command.scsi);
    let held = released.held.or_else(waiting);
    let at_work = released.ended.is_none() && held.is_none();
    let (held, data_out) = match held {
        Some(command) => (Some((command, data_out.into())), VecDeque::new()),
        None => (None, data_out),
    };
    let data_in = bytes(released.data_in);
    let load = Load {
        data_in_bytes: data_in.iter().map(Vec::len).sum(),
        data_in,
        data_out_bytes: data_out.iter().map(Vec::len).sum(),
        data_out,
        left: released.left,
        ended: released.ended,
        refused: released.refused,
        ..Load::default()
    };
    let ferry = Ferry::new(load);
    if at_work {
        connection.embark(released.key, ferry.clone());
    }
    connection.look_at_order();
    connection.released();
    Some(Parcel { task: released.task, held, view, ferry })
}

/// TASK REASSIGN (§11.5.1). Answers it, and continues the task.
pub(crate) async fn run(connection: Rc<Connection>, request: TaskManagement) {
    let moving = connection.session.moves.begin();
    let found = find(&connection, &request).await;
    let (result, parcel) = match found {
        Ok(parcel) => (TaskManagementResult::FunctionComplete, Some(parcel)),
        Err(result) => (result, None),
    };
    let adopted = parcel.and_then(|parcel| {
        let data: Vec<_> = parcel.held.as_ref().map(|held| held.1.clone()).unwrap_or_default();
        let data = data.into_iter().map(|piece| crate::wire::Segment(piece.into())).collect();
        let key = connection.with(|state, _| state.adopt(&parcel.task, data));
        if key.is_none() {
            parcel.ferry.give_up();
        }
        Some((key?, parcel))
    });
    drop(moving);
    let result = match (result, &adopted) {
        // This connection has no room for the task.
        (TaskManagementResult::FunctionComplete, None) => TaskManagementResult::FunctionRejected,
        (result, _) => result,
    };
    // The new allegiance begins after the response (§7.2.2).
    connection.with(|state, outbox| state.task_management_response(&request, result, outbox));
    let Some((key, parcel)) = adopted else {
        // Commands may have waited for a task that found no room.
        return connection.look_at_order();
    };
    match parcel.held {
        Some((command, _)) => {
            let command = ScsiCommand { task: key, ..command };
            match parcel.task.is_placeless() {
                // An immediate one, which waited for its order, not for its turn.
                true => connection.admit_moved(command, &parcel.view),
                false => connection.hold(command, &parcel.view),
            }
            connection.deliver_held_or_lose();
        }
        None => carry(&connection, key, parcel.task.lun(), &parcel.ferry).await,
    }
}

/// Finds the task among the session's connections, and takes it from one that was removed for
/// recovery.
async fn find(connection: &Rc<Connection>, request: &TaskManagement) -> Result<Parcel, TaskManagementResult> {
    if connection.session.params.error_recovery_level < 2 || connection.is_iser() {
        return Err(TaskManagementResult::ReassignmentNotSupported);
    }
    if connection.view().luns().get(request.lun).is_none() {
        return Err(TaskManagementResult::LunDoesNotExist);
    }
    let itt = request.referenced;
    let mut newest: Option<(Member, Lun, u32)> = None;
    for member in connection.session.connections() {
        let Some((lun, cmd_sn)) = member.remote.allegiant(itt).await else { continue };
        // Once a task's status has come, the initiator may reuse the tag, although it did not
        // acknowledge the status before its connection was lost.
        if newest.as_ref().is_none_or(|(.., before)| sn::le(*before, cmd_sn)) {
            newest = Some((member, lun, cmd_sn));
        }
    }
    if let Some((member, lun, _)) = newest {
        if lun != request.lun {
            return Err(TaskManagementResult::TaskDoesNotExist);
        }
        if member.standing != Standing::Removed {
            return Err(TaskManagementResult::TaskStillAllegiant);
        }
        return match member.remote.give_up(itt, request.exp_data_sn).await {
            Some(parcel) => Ok(parcel),
            None => Err(TaskManagementResult::TaskDoesNotExist),
        };
    }
    // A released task may still be running. It must have ended before the initiator learns that the
    // task does not exist: it may send the command again, and others after it.
    for member in connection.session.connections() {
        member.remote.abort(Victims::Tag(itt)).await;
    }
    Err(TaskManagementResult::TaskDoesNotExist)
}

/// Acts as the unit of an adopted task.
async fn carry(connection: &Rc<Connection>, key: TaskKey, lun: Lun, ferry: &Ferry) {
    let mut mover = Mover::new(connection.clone(), key);
    let completion = loop {
        let arrival = poll_fn(|cx| {
            // A task that has been reassigned once more is neither lost nor aborted: the mover asks
            // the next ferry.
            if mover.poll_lost(cx).is_ready() {
                return Poll::Ready(Freight::Aborted);
            }
            ferry.poll_next(cx)
        });
        let carried = match arrival.await {
            Freight::Data(data) => match mover.put_ready().await {
                Ok(()) => {
                    mover.put_data(data.into());
                    Ok(())
                }
                Err(lost) => Err(lost),
            },
            Freight::Wants(len) => mover.get_data(len).await.map(|chain| ferry.bring(chain.to_vec())),
            Freight::Ended(completion) => break completion,
            Freight::Aborted => Err(Lost),
        };
        if carried.is_err() {
            ferry.give_up();
            // The task ends with its unit's execution.
            break poll_fn(|cx| {
                loop {
                    match ferry.poll_next(cx) {
                        Poll::Ready(Freight::Ended(completion)) => return Poll::Ready(completion),
                        Poll::Ready(_) => {}
                        Poll::Pending => return Poll::Pending,
                    }
                }
            })
            .await;
        }
    };
    drop(mover);
    connection.end_task(key, lun, completion);
}
