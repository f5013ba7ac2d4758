//! Login of one connection: no authentication, one connection a session, no digests (RFC 7143 §6).

use std::io::{Read, Write};

use crate::LoadError;
use crate::wire::{self, BHS, Bhs, FINAL, IMMEDIATE, op};

/// The negotiated values that a load needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// The session's handle at the target.
    pub tsih: u16,
    /// The next command's CmdSN.
    pub cmd_sn: u32,
    /// The StatSN that the target will use next.
    pub exp_stat_sn: u32,
    /// The last CmdSN that the target takes now.
    pub max_cmd_sn: u32,
    /// Most data bytes in one PDU to the target (its MaxRecvDataSegmentLength).
    pub max_send: usize,
    /// Whether data may ride in a command PDU.
    pub immediate: bool,
    /// Most unsolicited bytes of a command.
    pub first_burst: usize,
    /// Most bytes that one R2T requests.
    pub max_burst: usize,
}

/// Data bytes of one PDU that this client accepts.
pub const MAX_RECV: usize = 256 * 1024;
const MAX_TEXT: usize = 64 * 1024;

/// Logs in as `initiator` to `target`. `isid` distinguishes sessions of one initiator.
///
/// # Errors
/// The socket's, the target's refusal, and answers that make no sense.
pub fn login(
    stream: &mut (impl Read + Write),
    initiator: &str,
    target: &str,
    isid: u32,
) -> Result<Negotiated, LoadError> {
    let mut got = Negotiated {
        tsih: 0,
        cmd_sn: 1,
        exp_stat_sn: 0,
        max_cmd_sn: 1,
        max_send: 8192,     // RFC 7143 §13.12: the default
        immediate: true,    // §13.11
        first_burst: 65536, // §13.14
        max_burst: 262_144, // §13.13
    };
    let security = format!(
        "InitiatorName={initiator}\0InitiatorAlias=stag-load\0TargetName={target}\0SessionType=Normal\0AuthMethod=None\0"
    );
    let operational = format!(
        "HeaderDigest=None\0DataDigest=None\0MaxRecvDataSegmentLength={MAX_RECV}\0InitialR2T=Yes\0ImmediateData=Yes\0\
         MaxBurstLength=1048576\0FirstBurstLength=262144\0MaxConnections=1\0ErrorRecoveryLevel=0\0DefaultTime2Wait=2\0\
         DefaultTime2Retain=0\0MaxOutstandingR2T=1\0DataPDUInOrder=Yes\0DataSequenceInOrder=Yes\0"
    );
    // Stages (RFC 7143 §11.12.3): 0 security, 1 operational, 3 full feature. Bounded: a target that
    // never moves on is left.
    let mut stage = 0u8;
    // A key is negotiated once (§6.2).
    let (mut security, mut operational) = (Some(security), Some(operational));
    for _ in 0..8 {
        let (next, text) = if stage == 0 { (1, security.take()) } else { (3, operational.take()) };
        let text = text.unwrap_or_default();
        send_request(stream, stage, next, isid, &got, text.as_bytes())?;
        let (bhs, answer) = receive(stream)?;
        if bhs[0] & 0x3f != op::LOGIN_RESPONSE {
            return Err(LoadError::Protocol(format!("opcode {:#04x} answers a login", bhs[0] & 0x3f)));
        }
        if (bhs[36], bhs[37]) != (0, 0) {
            return Err(LoadError::Refused(bhs[36], bhs[37]));
        }
        got.exp_stat_sn = wire::get32(&bhs, 24).wrapping_add(1);
        got.cmd_sn = wire::get32(&bhs, 28);
        got.max_cmd_sn = wire::get32(&bhs, 32);
        got.tsih = u16::from_be_bytes([bhs[14], bhs[15]]);
        learn(&mut got, &answer)?;
        if bhs[1] & FINAL != 0 {
            stage = bhs[1] & 3;
            if stage == 3 {
                return Ok(got);
            }
        }
    }
    Err(LoadError::Protocol("the login does not come to an end".into()))
}

fn send_request(
    stream: &mut impl Write,
    stage: u8,
    next: u8,
    isid: u32,
    got: &Negotiated,
    text: &[u8],
) -> Result<(), LoadError> {
    let mut bhs = [0; BHS];
    bhs[0] = op::LOGIN | IMMEDIATE;
    bhs[1] = FINAL | stage << 2 | next;
    wire::set_data_len(&mut bhs, text.len());
    // ISID, random format (§11.12.5): 80h, 24 bits, 16 bits.
    bhs[8] = 0x80;
    bhs[10..14].copy_from_slice(&isid.to_be_bytes());
    bhs[14..16].copy_from_slice(&got.tsih.to_be_bytes());
    wire::put32(&mut bhs, 24, got.cmd_sn);
    wire::put32(&mut bhs, 28, got.exp_stat_sn);
    let mut pdu = bhs.to_vec();
    pdu.extend_from_slice(text);
    pdu.resize(BHS + text.len().next_multiple_of(4), 0);
    stream.write_all(&pdu).map_err(|e| LoadError::Io("sending a login request", e))
}

fn learn(got: &mut Negotiated, text: &[u8]) -> Result<(), LoadError> {
    for (key, value) in wire::pairs(text) {
        let number = || -> Result<usize, LoadError> {
            let parsed =
                value.strip_prefix("0x").map_or_else(|| value.parse(), |hex| usize::from_str_radix(hex, 16));
            parsed
                .ok()
                .filter(|n| (512..1 << 24).contains(n))
                .ok_or_else(|| LoadError::Protocol(format!("the target answers {key}={value}")))
        };
        match key {
            "MaxRecvDataSegmentLength" => got.max_send = number()?,
            "FirstBurstLength" => got.first_burst = number()?,
            "MaxBurstLength" => got.max_burst = number()?,
            "ImmediateData" => got.immediate = value == "Yes",
            "AuthMethod" if value != "None" => {
                return Err(LoadError::Protocol(format!("the target wants AuthMethod={value}")));
            }
            "HeaderDigest" | "DataDigest" if value != "None" => {
                return Err(LoadError::Protocol(format!(
                    "the target chose {key}={value}, which was not offered"
                )));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Receives one PDU whole; for the exchanges before the load only.
///
/// # Errors
/// The socket's, and a body of more than 64 KiB.
pub fn receive(stream: &mut impl Read) -> Result<(Bhs, Vec<u8>), LoadError> {
    let mut bhs = [0; BHS];
    stream.read_exact(&mut bhs).map_err(|e| LoadError::Io("receiving", e))?;
    let body = wire::body_len(&bhs);
    if body > MAX_TEXT {
        return Err(LoadError::Protocol(format!("{body} bytes in a PDU that should be small")));
    }
    let mut data = vec![0; body];
    stream.read_exact(&mut data).map_err(|e| LoadError::Io("receiving", e))?;
    data.drain(..usize::from(bhs[4]) * 4);
    data.truncate(wire::data_len(&bhs));
    Ok((bhs, data))
}
