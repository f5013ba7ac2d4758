//! Interprets the requests of a connection: each becomes [`Work`] for its turn.

use smallvec::SmallVec;

use super::early::Early;
use super::events::{Completion, Event, LogoutRequest, ScsiCommand, TaskManagement, TextExchange};
use super::numbering::Numbering;
use super::order::Work;
use super::payload::{Data, Payload};
use super::recovery::History;
use super::respond::refusal;
use super::tasks::TaskKey;
use super::text::Text;
use super::transfers::Transfers;
use crate::pdu::{self, Bhs, LogoutReason, PduRef, RESERVED_TAG, RejectReason};

/// Why a SCSI command is not run.
pub(super) enum Unfit {
    /// There is no task for it.
    Reject(RejectReason, Bhs),
    /// It has a task, which ends with this completion.
    Refuse(TaskKey, Completion),
}

impl<P> From<Unfit> for Work<P> {
    #[cold]
    fn from(unfit: Unfit) -> Self {
        match unfit {
            Unfit::Reject(reason, bhs) => Self::Reject(reason, bhs),
            Unfit::Refuse(task, completion) => Self::Refuse(task, completion),
        }
    }
}

/// Appends the rest of a CDB to its first 16 bytes, using the memory `spare`. Returns the
/// Bidirectional Read Expected Data Transfer Length (RFC 7143 §11.2.2), 0 if absent. `None`: an AHS
/// that is invalid for a command.
#[cold]
fn more_of_command(ahs: &[u8], cdb: &mut SmallVec<[u8; 16]>, spare: &mut SmallVec<[u8; 16]>) -> Option<u32> {
    let mut read_len = 0;
    for header in pdu::ahs::iter(ahs) {
        match header {
            Ok(pdu::ahs::Ahs::ExtendedCdb(rest)) if cdb.len() == 16 => {
                let mut whole = std::mem::take(spare);
                whole.clear();
                whole.extend_from_slice(cdb);
                whole.extend_from_slice(rest);
                *cdb = whole;
            }
            Ok(pdu::ahs::Ahs::BidiReadLength(len)) => read_len = len,
            _ => return None,
        }
    }
    Some(read_len)
}

/// A request as it arrived, without its data.
#[derive(Clone, Copy)]
pub(super) struct Request<'a> {
    pub bhs: &'a Bhs,
    pub ahs: &'a [u8],
    pub cmd_sn: u32,
}

/// State that a request changes on arrival.
pub(super) struct Parts<'a, P> {
    pub numbering: &'a mut Numbering<P>,
    pub transfers: &'a mut Transfers<P>,
    pub early: &'a mut Early,
}

/// State of a connection that the interpretation of its requests needs.
#[derive(Debug)]
pub(super) struct Requests {
    pub text: Text,
    /// A discovery session, which has no SCSI commands.
    discovery: bool,
    /// Memory for the next CDB of more than 16 bytes.
    spare_cdb: SmallVec<[u8; 16]>,
}

impl Requests {
    pub fn new(discovery: bool) -> Self {
        Self { text: Text::default(), discovery, spare_cdb: SmallVec::new() }
    }

    /// Provides memory for the next CDB of more than 16 bytes.
    pub fn lend_for_cdb(&mut self, memory: SmallVec<[u8; 16]>) {
        self.spare_cdb = memory;
    }

    /// Whether the session is one for discovery.
    #[inline]
    pub fn is_discovery(&self) -> bool {
        self.discovery
    }

    /// The work of a request, for its turn.
    pub fn interpret<P: Payload>(
        &mut self,
        view: PduRef<'_>,
        request: Request<'_>,
        data: impl Data<P>,
        to: Parts<'_, P>,
    ) -> Work<P> {
        let Request { bhs, cmd_sn, .. } = request;
        let immediate = bhs.immediate();
        let order = &mut to.numbering.order;
        if order.is_late(cmd_sn) {
            // After its logout an initiator must send no request (RFC 7143 §11.14). Such a request
            // is not executed, but consumes its CmdSN. Otherwise later commands, after a failed
            // logout or on another connection, would wait for it forever.
            return Work::Late(*bhs);
        }
        match view {
            PduRef::ScsiCommand(command) if !self.discovery => {
                match self.scsi_command(command, request, data, to) {
                    Ok(command) => Work::Event(Event::Command(command)),
                    Err(unfit) => unfit.into(),
                }
            }
            PduRef::TaskManagementRequest(_) | PduRef::LogoutRequest(_)
                if immediate && !order.has_managing_room() =>
            {
                Work::Reject(RejectReason::ImmediateCommandReject, *bhs)
            }
            PduRef::TaskManagementRequest(request) if !self.discovery => {
                order.begin_managing(immediate);
                Work::Event(Event::TaskManagement(TaskManagement {
                    itt: bhs.itt(),
                    function: request.function_code(),
                    lun: bhs.lun().canonical(),
                    referenced: request.referenced_task_tag.get(),
                    ref_cmd_sn: request.ref_cmd_sn.get(),
                    cmd_sn,
                    immediate,
                    exp_data_sn: request.exp_data_sn.get(),
                }))
            }
            PduRef::NopOut(nop) => Work::Ping(*nop, data.join()),
            PduRef::TextRequest(request) => match self.text.request(request, &data.to_vec()) {
                Ok(Some((text, begins))) => Work::Event(Event::Text(TextExchange {
                    header: *bhs,
                    itt: bhs.itt(),
                    lun: bhs.lun(),
                    text,
                    begins,
                    is_final: request.is_final(),
                    immediate,
                })),
                Ok(None) => Work::MoreText(bhs.itt(), bhs.lun()),
                Err(reason) => Work::Reject(reason, *bhs),
            },
            PduRef::LogoutRequest(request) => {
                order.begin_managing(immediate);
                if request.reason() == Some(LogoutReason::CloseSession) || request.cid.get() == order.cid() {
                    order.leave(cmd_sn, immediate);
                }
                Work::Event(Event::Logout(LogoutRequest {
                    itt: bhs.itt(),
                    reason: request.reason_code(),
                    cid: request.cid.get(),
                    immediate,
                }))
            }
            _ => Work::Reject(RejectReason::ProtocolError, *bhs),
        }
    }

    /// Makes a task of a SCSI command.
    #[inline]
    pub fn scsi_command<P: Payload>(
        &mut self,
        command: &pdu::ScsiCommand,
        request: Request<'_>,
        data: impl Data<P>,
        to: Parts<'_, P>,
    ) -> Result<ScsiCommand, Unfit> {
        let Request { bhs, ahs, cmd_sn } = request;
        let Parts { numbering, transfers, early } = to;
        let immediate = bhs.immediate();
        if bhs.itt() == RESERVED_TAG {
            return Err(Unfit::Reject(RejectReason::InvalidPduField, *bhs));
        }
        if transfers.tasks.find(bhs.itt()).is_some() {
            return Err(Unfit::Reject(RejectReason::TaskInProgress, *bhs));
        }
        if immediate && !numbering.order.has_immediate_room() {
            return Err(Unfit::Reject(RejectReason::ImmediateCommandReject, *bhs));
        }
        let (read, write) = (command.read(), command.write());
        let edtl = command.edtl.get();
        let mut cdb = SmallVec::from_buf(command.cdb);
        let mut read_len = 0;
        if !ahs.is_empty() {
            let Some(len) = more_of_command(ahs, &mut cdb, &mut self.spare_cdb) else {
                return Err(Unfit::Reject(RejectReason::InvalidPduField, *bhs));
            };
            read_len = len;
        }
        let (expected_in, expected_out) = match (read, write) {
            (true, true) => (read_len, edtl),
            (true, false) => (edtl, 0),
            (false, true) => (0, edtl),
            (false, false) => (0, 0),
        };
        let history =
            numbering.recovery.is_some().then(|| Box::new(History::new(numbering.keepalive.last_heard())));
        let Some((key, task)) = transfers.tasks.open(bhs.itt()) else {
            return Err(Unfit::Reject(RejectReason::LongOperationReject, *bhs));
        };
        let lun = bhs.lun().canonical();
        (task.lun, task.lun_field) = (lun, bhs.lun());
        (task.cmd_sn, task.immediate) = (cmd_sn, immediate);
        (task.expected_in, task.expected_out) = (expected_in, expected_out);
        task.bidirectional = read && write;
        if history.is_some() {
            task.history = history;
        }
        numbering.order.begin(immediate);
        if data.due() > 0 {
            early.begin(key);
        }
        if write || !data.is_empty() {
            let is_final = command.is_final() || !write;
            if let Err(error) = task.inbound.begin(expected_out, data, is_final, &transfers.limits) {
                return Err(Unfit::Refuse(key, refusal(error)));
            }
            if !is_final && transfers.rdma {
                task.inbound.allow_short_burst();
            }
        }
        Ok(ScsiCommand {
            task: key,
            itt: bhs.itt(),
            lun,
            cdb,
            attribute: command.flags & 0x07,
            cmd_sn,
            expected_in,
            expected_out,
        })
    }
}
