//! Tests of the session against single PDUs ([`commands`], [`misuse`], [`rdma`], [`recovery`]), and
//! against our own target's connections with a memory disk ([`dialog`]). This module has their
//! common helpers.

use super::*;
use crate::keys::Params;
use crate::login::initiator::Established;
use crate::pdu::{
    self, AsyncEvent, Bhs, Lun, Residual, ResponseCode, TaskAttribute, TaskManagementFunction,
    TaskManagementResult,
};
use crate::stream::{self, Limits};

fn established(params: Params) -> Established {
    Established {
        params,
        tsih: 1,
        stat_sn: 9,
        exp_cmd_sn: 100,
        max_cmd_sn: 107,
        target_alias: None,
        portal_group_tag: Some(1),
        authenticated: false,
    }
}

type Plain = Session<Vec<u8>, Vec<u8>>;

fn session(params: Params) -> (Plain, ConnectionId) {
    let mut s = Session::new(SessionConfig { max_tasks: 64, first_cmd_sn: 100 });
    let on = s.connect(0, &established(params));
    (s, on)
}

fn read(len: u32) -> Command<'static, Vec<u8>> {
    let cdb = &[0x28, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    Command {
        lun: Lun::ZERO,
        attribute: TaskAttribute::Simple,
        cdb,
        write: None,
        read_len: Some(len),
        may_repeat: true,
    }
}

fn write(data: Vec<u8>) -> Command<'static, Vec<u8>> {
    let cdb = &[0x2a, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    Command {
        lun: Lun::ZERO,
        attribute: TaskAttribute::Simple,
        cdb,
        write: Some(data),
        read_len: None,
        may_repeat: true,
    }
}

/// The session's output on a connection, as traces.
fn sent(s: &mut Plain, on: ConnectionId) -> Vec<String> {
    let mut bytes = Vec::new();
    s.transmit(on, usize::MAX, &mut bytes);
    let limits = Limits { max_data_segment: 1 << 24, max_ahs: 1020, ..Limits::LOGIN };
    let pdus = stream::pdus(limits, &bytes).expect("well-formed PDUs");
    pdus.iter().map(|pdu| pdu.bhs.to_string()).collect()
}

fn hear(
    s: &mut Plain,
    on: ConnectionId,
    bhs: impl Into<Bhs>,
    data: &[u8],
) -> Result<Option<Event<Vec<u8>>>, ProtocolError> {
    let mut bhs = bhs.into();
    bhs.set_data_segment_len(data.len());
    s.handle(on, &bhs, Segment::Here(data))
}

/// Sets the numbers of a response: StatSN, and a window of 8.
macro_rules! numbered {
    ($pdu:expr, $stat_sn:expr) => {{
        let mut pdu = $pdu;
        pdu.stat_sn.set($stat_sn);
        pdu.exp_cmd_sn.set(100);
        pdu.max_cmd_sn.set(107);
        pdu
    }};
}

mod commands;
mod dialog;
mod misuse;
mod rdma;
mod recovery;
