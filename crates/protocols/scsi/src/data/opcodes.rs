//! REPORT SUPPORTED OPERATION CODES data (SPC-4 §6.35), from the table that decoding uses.

use super::Fields;
use crate::Sense;
use crate::cdb::table::{self, Entry};
use crate::cdb::{ReportSupportedOpcodes, ReportingOptions};

/// SUPPORT: not supported.
const UNSUPPORTED: u8 = 1;
/// SUPPORT: supported as the standard defines it.
const SUPPORTED: u8 = 3;

/// One command in the report.
#[derive(Clone, Copy, Debug)]
pub struct Described<'a> {
    /// OPERATION CODE.
    pub opcode: u8,
    /// SERVICE ACTION, for operation codes that have service actions.
    pub service_action: Option<u16>,
    /// CDB USAGE DATA (SPC-4 §6.35.3), of the CDB's length.
    pub usage: &'a [u8],
    /// NOMINAL COMMAND PROCESSING TIMEOUT in seconds; 0 means not reported.
    pub nominal_s: u32,
    /// RECOMMENDED COMMAND TIMEOUT in seconds; 0 means not reported.
    pub recommended_s: u32,
}

impl<'a> From<&'a Entry> for Described<'a> {
    fn from(entry: &'a Entry) -> Self {
        Self {
            opcode: entry.opcode,
            service_action: entry.service_action.map(u16::from),
            usage: &entry.usage[..usize::from(entry.len)],
            nominal_s: entry.nominal_s,
            recommended_s: entry.recommended_s,
        }
    }
}

/// Answers the command for a unit; `supports` selects the commands of [`table::ALL`] that it
/// supports.
///
/// # Errors
/// INVALID FIELD IN CDB for a request without service action if the operation code has service
/// actions, and for the reverse.
pub fn report(request: &ReportSupportedOpcodes, supports: impl Fn(&Entry) -> bool) -> Result<Vec<u8>, Sense> {
    report_of(request, || table::ALL.iter().copied().filter(|e| supports(e)).map(Described::from))
}

/// Answers the command for a unit that supports `supported`, in list order.
///
/// # Errors
/// As [`report`].
pub fn report_of<'a, I: Iterator<Item = Described<'a>>>(
    request: &ReportSupportedOpcodes,
    supported: impl Fn() -> I,
) -> Result<Vec<u8>, Sense> {
    let invalid = || Sense::invalid_field_in_cdb(2, Some(2));
    let (opcode, action) = match request.options {
        ReportingOptions::All => return Ok(all(supported(), request.timeouts)),
        ReportingOptions::Opcode(opcode) => {
            if supported().any(|e| e.opcode == opcode && e.service_action.is_some()) {
                return Err(invalid());
            }
            (opcode, None)
        }
        ReportingOptions::ServiceAction(opcode, action) => {
            if supported().any(|e| e.opcode == opcode && e.service_action.is_none()) {
                return Err(invalid());
            }
            (opcode, Some(action))
        }
        ReportingOptions::Either(opcode, action) => {
            let has_actions = supported().any(|e| e.opcode == opcode && e.service_action.is_some());
            (opcode, (has_actions || action != 0).then_some(action))
        }
    };
    let entry = supported().find(|e| e.opcode == opcode && e.service_action == action);
    Ok(one(entry, request.timeouts))
}

fn all<'a>(entries: impl Iterator<Item = Described<'a>>, timeouts: bool) -> Vec<u8> {
    let mut out = vec![0; 4];
    for entry in entries {
        // CTDP, SERVACTV
        let flags = u8::from(timeouts) << 1 | u8::from(entry.service_action.is_some());
        let [action, action_low] = entry.service_action.unwrap_or(0).to_be_bytes();
        let [len, len_low] = (entry.usage.len() as u16).to_be_bytes();
        out.extend([entry.opcode, 0, action, action_low, 0, flags, len, len_low]);
        if timeouts {
            emit_timeouts(&entry, &mut out);
        }
    }
    let len = (out.len() - 4) as u32; // COMMAND DATA LENGTH
    out[..4].copy_from_slice(&len.to_be_bytes());
    out
}

fn one(entry: Option<Described<'_>>, timeouts: bool) -> Vec<u8> {
    let Some(entry) = entry else { return vec![0, UNSUPPORTED, 0, 0] };
    let [len, len_low] = (entry.usage.len() as u16).to_be_bytes();
    let mut out = vec![0, u8::from(timeouts) << 7 | SUPPORTED, len, len_low];
    out.extend(entry.usage);
    if timeouts {
        emit_timeouts(&entry, &mut out);
    }
    out
}

/// The command timeouts descriptor (SPC-4 §6.35.4), 12 bytes.
fn emit_timeouts(entry: &Described<'_>, out: &mut Vec<u8>) {
    out.extend([0, 0x0A, 0, 0]);
    out.extend(entry.nominal_s.to_be_bytes());
    out.extend(entry.recommended_s.to_be_bytes());
}

/// A command that a unit reports as supported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SupportedCommand {
    /// OPERATION CODE.
    pub opcode: u8,
    /// SERVICE ACTION, for operation codes that have service actions.
    pub service_action: Option<u16>,
    /// CDB LENGTH in bytes.
    pub len: u16,
    /// RECOMMENDED COMMAND TIMEOUT in seconds, if reported and not 0.
    pub recommended_s: Option<u32>,
}

/// Reads the list of all commands, up to the first truncated descriptor.
pub fn parse_all(bytes: &[u8]) -> Option<Vec<SupportedCommand>> {
    let len = Fields(bytes).u32(0)? as usize;
    let mut list = bytes.get(4..)?;
    list = &list[..list.len().min(len)];
    let mut commands = Vec::new();
    while let Some((d, rest)) = list.split_first_chunk::<8>() {
        list = rest;
        let mut command = SupportedCommand {
            opcode: d[0],
            service_action: (d[5] & 1 != 0).then_some(u16::from_be_bytes([d[2], d[3]])),
            len: u16::from_be_bytes([d[6], d[7]]),
            recommended_s: None,
        };
        if d[5] & 2 != 0 {
            let size = 2 + usize::from(Fields(list).u16(0).unwrap_or(0));
            let Some((timeouts, rest)) = list.split_at_checked(size) else { break };
            command.recommended_s = Fields(timeouts).u32(8).filter(|&t| t != 0);
            list = rest;
        }
        commands.push(command);
    }
    Some(commands)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ask(options: ReportingOptions, timeouts: bool) -> Result<Vec<u8>, Sense> {
        // A unit that supports everything except UNMAP.
        report(&ReportSupportedOpcodes { options, timeouts, allocation: 0 }, |e| e.opcode != 0x42)
    }

    #[test]
    fn all_commands_are_listed_with_and_without_timeouts() {
        for timeouts in [false, true] {
            let data = ask(ReportingOptions::All, timeouts).unwrap();
            let list = parse_all(&data).unwrap();
            assert_eq!(list.len(), table::ALL.len() - 1);
            assert_eq!(data.len(), 4 + list.len() * if timeouts { 20 } else { 8 });
            assert!(list.iter().all(|c| c.opcode != 0x42 && c.recommended_s.is_some() == timeouts));
            for command in list {
                let action = command.service_action.map(|a| a as u8);
                assert_eq!(table::find(command.opcode, action).unwrap().len, command.len as u8);
            }
        }
    }

    #[test]
    fn one_command_reports_its_usage_data_and_its_timeouts() {
        let usage = [0x28, 0x18, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0xFF, 0xFF, 0];
        let data = ask(ReportingOptions::Opcode(0x28), false).unwrap();
        assert_eq!(data, [&[0, 3, 0, 10], &usage[..]].concat());
        let data = ask(ReportingOptions::Opcode(0x28), true).unwrap();
        assert_eq!(data, [&[0, 0x83, 0, 10], &usage[..], &[0, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 30]].concat());
        let data = ask(ReportingOptions::ServiceAction(0x9E, 0x10), false).unwrap();
        assert_eq!(data, [0, 3, 0, 16, 0x9E, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0]);
    }

    #[test]
    fn what_is_not_supported_is_reported_so_and_is_no_error() {
        for options in [
            ReportingOptions::Opcode(0x42),
            ReportingOptions::Opcode(0xFF),
            ReportingOptions::ServiceAction(0x9E, 0x1F),
            ReportingOptions::ServiceAction(0x9E, 0x0110),
            ReportingOptions::Either(0x28, 1),
        ] {
            assert_eq!(ask(options, true), Ok(vec![0, 1, 0, 0]), "{options:?}");
        }
    }

    #[test]
    fn every_command_is_found_only_by_the_right_reporting_option() {
        for command in parse_all(&ask(ReportingOptions::All, false).unwrap()).unwrap() {
            let plain = ask(ReportingOptions::Opcode(command.opcode), false);
            let action = command.service_action.unwrap_or(0);
            let with_action = ask(ReportingOptions::ServiceAction(command.opcode, action), false);
            let (right, wrong) =
                if command.service_action.is_some() { (with_action, plain) } else { (plain, with_action) };
            assert_eq!(wrong, Err(Sense::invalid_field_in_cdb(2, Some(2))));
            let right = right.unwrap();
            assert_eq!((right[1], right[4]), (SUPPORTED, command.opcode));
            assert_eq!(ask(ReportingOptions::Either(command.opcode, action), false), Ok(right));
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_parse_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = parse_all(&bytes);
        }
    }
}
