//! Idle sessions: the number that a target holds, and their cost.

use std::io::{BufRead, Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use serde::Serialize;

use crate::args::{Args, Unit};
use crate::login::{self, Negotiated};
use crate::ready::Ready;
use crate::wire::{self, BHS, FINAL, IMMEDIATE, NO_TAG, op};
use crate::{LoadError, run, socket};

/// The message once all are logged in.
#[derive(Debug, Serialize)]
pub struct Held {
    /// Sessions that are logged in.
    pub sessions: u32,
    /// Total time of their logins, one after the other, in seconds.
    pub seconds: f64,
}

/// The answer to a line of input.
#[derive(Debug, Serialize)]
pub struct Answered {
    /// Pings of the target that were answered until now.
    pub pings: u64,
}

/// Logs in `count` sessions, calls `ready`, and answers the target's NOP-Ins until the end of
/// `asked`. For each line of `asked`, passes the number of answered NOP-Ins to `answered`.
///
/// # Errors
/// A login that fails, and a connection that the target closes.
pub fn run(
    args: &Args,
    count: u32,
    ready: impl FnOnce(&Held),
    mut answered: impl FnMut(&Answered),
    asked: impl Read + Send,
) -> Result<(), LoadError> {
    let unit = Unit::parse(args.url.as_deref().unwrap_or_default())?;
    let from = Instant::now();
    let mut queue = Ready::new(256)?;
    let mut sessions = Vec::new();
    for number in 0..count {
        let mut stream = socket::connect(&unit.portal)?;
        stream
            .set_read_timeout(Some(run::PATIENCE))
            .map_err(|e| LoadError::Io("setting a socket option", e))?;
        let name = format!("{}.{number}", args.initiator);
        let negotiated = login::login(&mut stream, &name, &unit.target, number)?;
        queue.add(&stream, number.into())?;
        sessions.push((stream, negotiated));
    }
    ready(&Held { sessions: count, seconds: from.elapsed().as_secs_f64() });
    let mut pings = 0;
    let (mut reader, mut writer) = std::io::pipe().map_err(|e| LoadError::Io("making a pipe", e))?;
    queue.add(&reader, u64::MAX)?;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut asked = std::io::BufReader::new(asked);
            let mut line = Vec::new();
            // An error ends it as well as the end does.
            while asked.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) && writer.write_all(b"?").is_ok() {
                line.clear();
            }
            drop(writer);
        });
        loop {
            queue.wait(None)?;
            for number in queue.numbers() {
                match sessions.get_mut(number) {
                    Some((stream, negotiated)) => pings += u64::from(answer(stream, negotiated)?),
                    None => match reader.read(&mut [0]) {
                        Ok(1) => answered(&Answered { pings }),
                        _ => return Ok(()),
                    },
                }
            }
        }
    })
}

/// Answers one PDU of the target, if it is a ping (RFC 7143 §11.19). Whether it was.
fn answer(stream: &mut TcpStream, negotiated: &Negotiated) -> Result<bool, LoadError> {
    let (nop_in, _) = login::receive(stream)?;
    if nop_in[0] & 0x3f != op::NOP_IN {
        return Err(LoadError::Protocol(format!("opcode {:#04x} on an idle session", nop_in[0] & 0x3f)));
    }
    if wire::get32(&nop_in, 20) == NO_TAG {
        return Ok(false);
    }
    let mut bhs = [0; BHS];
    bhs[0] = op::NOP_OUT | IMMEDIATE;
    bhs[1] = FINAL;
    bhs[8..16].copy_from_slice(&nop_in[8..16]);
    wire::put32(&mut bhs, 16, NO_TAG);
    bhs[20..24].copy_from_slice(&nop_in[20..24]);
    wire::put32(&mut bhs, 24, negotiated.cmd_sn);
    wire::put32(&mut bhs, 28, wire::get32(&nop_in, 24));
    stream.write_all(&bhs).map_err(|e| LoadError::Io("sending", e))?;
    Ok(true)
}
