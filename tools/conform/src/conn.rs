//! One raw connection to the target: it sends whatever a check requests, and keeps everything it
//! receives. It counts the numbers of an initiator (RFC 7143 §4.2.2), answers pings unless told not
//! to, and trusts nothing.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::{Duration, Instant};

use iscsi::frame::Digests;
use iscsi::pdu::{Bhs, FINAL, Isid, Lun, NopOut, Opcode, RESERVED_TAG, U32};
use iser::{Control, Header};

use crate::finding::{Finding, Verdict};
use crate::iser::Iser;
use crate::lost::Lost;
use crate::pdu::{Pdu, kind};
use crate::tcp::Tcp;

enum Wire {
    Tcp(Box<Tcp>),
    Iser(Iser),
}

/// The end of a wait.
#[derive(Clone, Debug)]
pub(crate) enum Ending {
    /// The target closed the connection.
    Closed,
    /// The awaited PDU arrived.
    Pdu(Pdu),
    /// Neither happened in time.
    Silent,
}

pub(crate) struct Conn {
    wire: Wire,
    /// CmdSN of the next command.
    pub cmd_sn: u32,
    /// The next expected StatSN.
    pub exp_stat_sn: u32,
    /// The greatest MaxCmdSN and ExpCmdSN received.
    pub max_cmd_sn: u32,
    pub exp_cmd_sn: u32,
    pub isid: Isid,
    pub tsih: u16,
    pub cid: u16,
    pub lun: Lun,
    /// This side's offers and declarations by key. Below: the target's answers and declarations.
    pub offered: BTreeMap<String, String>,
    pub agreed: BTreeMap<String, String>,
    /// Every received header, in order, up to [`HISTORY`].
    pub history: Vec<Bhs>,
    /// Whether to answer the target's pings.
    pub answers_pings: bool,
    /// Whether ExpStatSN follows the received StatSN.
    pub acknowledges: bool,
    /// In the full feature phase: to be logged out.
    pub is_full_feature: bool,
    inbox: VecDeque<Pdu>,
    next_itt: u32,
    answer_within: Duration,
    deadline: Instant,
    pings: Rc<RefCell<Vec<Bhs>>>,
}

/// Maximum number of headers kept per connection.
const HISTORY: usize = 4096;

impl Conn {
    pub fn over_tcp(tcp: Tcp, times: Times) -> Self {
        Self::new(Wire::Tcp(Box::new(tcp)), times)
    }

    pub fn over_iser(iser: Iser, times: Times) -> Self {
        Self::new(Wire::Iser(iser), times)
    }

    fn new(wire: Wire, times: Times) -> Self {
        Self {
            wire,
            cmd_sn: 1,
            exp_stat_sn: 0,
            max_cmd_sn: 0,
            exp_cmd_sn: 0,
            isid: Isid([0x80, 0, 0, 0, 0, 0]),
            tsih: 0,
            cid: 1,
            lun: Lun::ZERO,
            offered: BTreeMap::new(),
            agreed: BTreeMap::new(),
            history: Vec::new(),
            answers_pings: true,
            acknowledges: true,
            is_full_feature: false,
            inbox: VecDeque::new(),
            next_itt: 0x1000,
            answer_within: times.answer_within,
            deadline: times.deadline,
            pings: times.pings,
        }
    }

    /// The queue pair, over iSER.
    pub fn iser(&self) -> Option<&Iser> {
        match &self.wire {
            Wire::Tcp(_) => None,
            Wire::Iser(iser) => Some(iser),
        }
    }

    pub(crate) fn set_digests(&mut self, digests: Digests) {
        if let Wire::Tcp(tcp) = &mut self.wire {
            tcp.set_digests(digests);
        }
    }

    /// A tag that no task uses.
    pub fn tag(&mut self) -> u32 {
        self.next_itt = self.next_itt.wrapping_add(1);
        self.next_itt
    }

    /// The CmdSN for a non-immediate command; each is used once.
    pub(crate) fn take_cmd_sn(&mut self) -> u32 {
        let number = self.cmd_sn;
        self.cmd_sn = number.wrapping_add(1);
        number
    }

    /// A key's negotiated value, or its default.
    pub fn agreed(&self, key: &str) -> Option<&str> {
        self.agreed.get(key).map(String::as_str)
    }

    /// A negotiated number, or `default`.
    pub fn number(&self, key: &str, default: u32) -> u32 {
        self.agreed(key)
            .and_then(iscsi::text::parse_number)
            .and_then(|n| n.try_into().ok())
            .unwrap_or(default)
    }

    /// A negotiated boolean, or `default`.
    pub fn flag(&self, key: &str, default: bool) -> bool {
        self.agreed(key).and_then(iscsi::text::parse_bool).unwrap_or(default)
    }

    /// The longest data segment that the target accepts, bytes.
    pub fn target_segment(&self) -> usize {
        let key =
            if self.iser().is_some() { "TargetRecvDataSegmentLength" } else { "MaxRecvDataSegmentLength" };
        self.number(key, 8192) as usize
    }

    /// Sends a PDU with correct lengths and digests.
    pub fn post(&mut self, bhs: impl Into<Bhs>, data: &[u8]) -> Verdict {
        self.post_with(Control::default(), bhs, &[], data)
    }

    /// The same, with AHSs and, over iSER, with advertised memory.
    pub(crate) fn post_with(
        &mut self,
        control: Control,
        bhs: impl Into<Bhs>,
        ahs: &[u8],
        data: &[u8],
    ) -> Verdict {
        let bhs = bhs.into();
        let sent = match &mut self.wire {
            Wire::Tcp(tcp) => {
                let bytes = tcp.encode(&bhs, ahs, data);
                tcp.send(&bytes)
            }
            Wire::Iser(iser) => iser.send(control, &bhs, ahs, data),
        };
        sent.map_err(|lost| missing(&lost, &format!("the target takes a {}", kind(&bhs))))
    }

    /// The bytes of a correct PDU, which a check may corrupt before sending.
    pub fn encode(&self, bhs: impl Into<Bhs>, ahs: &[u8], data: &[u8]) -> Vec<u8> {
        match &self.wire {
            Wire::Tcp(tcp) => tcp.encode(&bhs.into(), ahs, data),
            Wire::Iser(_) => Vec::new(),
        }
    }

    /// Sends bytes unchanged: part of a stream, or over iSER a whole message.
    pub(crate) fn post_bytes(&mut self, bytes: &[u8]) -> Verdict {
        let sent = match &mut self.wire {
            Wire::Tcp(tcp) => tcp.send(bytes),
            Wire::Iser(iser) => iser.send_message(bytes.to_vec()),
        };
        sent.map_err(|lost| missing(&lost, "the target takes what is sent"))
    }

    /// The next PDU, at the latest until the check's deadline.
    pub fn receive(&mut self, within: Duration) -> Result<Pdu, Lost> {
        let until = (runtime::clock() + within).min(self.deadline);
        let pdu = match &mut self.wire {
            Wire::Tcp(tcp) => tcp.receive(until)?,
            Wire::Iser(iser) => iser.receive(until)?,
        };
        if self.history.len() < HISTORY {
            self.history.push(pdu.bhs);
        }
        if self.acknowledges && pdu.takes_stat_sn() {
            self.exp_stat_sn = pdu.stat_sn().wrapping_add(1);
        }
        if pdu.bhs.opcode().is_some() && pdu.header.is_none_or(|h| matches!(h, Header::Control(_))) {
            if iscsi::sn::gt(pdu.max_cmd_sn(), self.max_cmd_sn) {
                self.max_cmd_sn = pdu.max_cmd_sn();
            }
            if iscsi::sn::gt(pdu.exp_cmd_sn(), self.exp_cmd_sn) {
                self.exp_cmd_sn = pdu.exp_cmd_sn();
            }
        }
        let ping = pdu.is(Opcode::NopIn) && pdu.word(20) != RESERVED_TAG;
        if ping {
            self.pings.borrow_mut().push(pdu.bhs);
            if self.answers_pings {
                let mut answer = NopOut::answer(pdu.word(20), pdu.bhs.lun());
                answer.cmd_sn = U32::new(self.cmd_sn);
                answer.exp_stat_sn = U32::new(self.exp_stat_sn);
                // If sending fails, the next receive reports it.
                let _ = self.post(answer, &[]);
            }
        }
        Ok(pdu)
    }

    /// Waits for the first PDU that `wanted` accepts; others are queued.
    pub fn poll(&mut self, within: Duration, wanted: impl Fn(&Pdu) -> bool) -> Result<Pdu, Lost> {
        if let Some(at) = self.inbox.iter().position(&wanted) {
            if let Some(pdu) = self.inbox.remove(at) {
                return Ok(pdu);
            }
        }
        let until = runtime::clock() + within;
        loop {
            let pdu = self.receive(until.saturating_duration_since(runtime::clock()))?;
            if wanted(&pdu) {
                return Ok(pdu);
            }
            self.inbox.push_back(pdu);
        }
    }

    /// The same within the time for an answer; otherwise a failure of the target. `what` names the
    /// awaited PDU.
    pub fn wait(&mut self, what: &str, wanted: impl Fn(&Pdu) -> bool) -> Verdict<Pdu> {
        self.poll(self.answer_within, wanted).map_err(|lost| missing(&lost, what))
    }

    /// Waits for the PDU of that kind that answers `itt`; reports a Reject in its place.
    pub fn answer(&mut self, opcode: Opcode, itt: u32) -> Verdict<Pdu> {
        let what = format!("a {opcode}");
        let pdu = self.wait(&what, |pdu| (pdu.is(opcode) && pdu.itt() == itt) || pdu.is(Opcode::Reject))?;
        if pdu.is(Opcode::Reject) && opcode != Opcode::Reject {
            return Err(Finding::Wrong {
                seen: format!("a Reject, reason {}", pdu.reject_reason()),
                expected: what,
            });
        }
        Ok(pdu)
    }

    /// The end of a wait: an accepted PDU, the end of the connection, or neither within the time
    /// for an answer.
    pub fn outcome(&mut self, wanted: impl Fn(&Pdu) -> bool) -> Ending {
        match self.poll(self.answer_within, wanted) {
            Ok(pdu) => Ending::Pdu(pdu),
            Err(Lost::Silent) => Ending::Silent,
            Err(_) => Ending::Closed,
        }
    }

    /// Whether the target closes the connection within the time for an answer, whatever it sends
    /// before.
    pub fn is_closed(&mut self) -> bool {
        matches!(self.outcome(|_| false), Ending::Closed)
    }

    /// The first PDU that `wanted` accepts, if it arrives within `within`.
    pub fn anything(&mut self, within: Duration, wanted: impl Fn(&Pdu) -> bool) -> Option<Pdu> {
        self.poll(within, wanted).ok()
    }

    /// Sends an immediate ping, and returns the answer.
    pub fn ping(&mut self, data: &[u8]) -> Verdict<Pdu> {
        let itt = self.tag();
        let mut ping = NopOut::ping(itt);
        ping.as_bhs_mut().set_immediate(true);
        ping.as_bhs_mut().flags = FINAL;
        ping.cmd_sn = U32::new(self.cmd_sn);
        ping.exp_stat_sn = U32::new(self.exp_stat_sn);
        self.post(ping, data)?;
        self.answer(Opcode::NopIn, itt)
    }

    /// Fails if a PDU that `unwanted` accepts has arrived, or arrives before a ping's answer and a
    /// moment after.
    pub fn quiet(&mut self, what: &str, unwanted: impl Fn(&Pdu) -> bool) -> Verdict {
        self.ping(b"quiet?")?;
        match self.poll(QUIET, unwanted) {
            Ok(pdu) => Err(Finding::Wrong {
                seen: format!("{}: {}", kind(&pdu.bhs), pdu.bhs),
                expected: what.to_owned(),
            }),
            Err(Lost::Silent) => Ok(()),
            Err(lost) => Err(missing(&lost, what)),
        }
    }
}

/// Time to wait for a forbidden PDU after the answer to a ping.
pub(crate) const QUIET: Duration = Duration::from_millis(120);

impl Drop for Conn {
    fn drop(&mut self) {
        // A session left open would disturb the next check.
        if self.is_full_feature {
            let itt = self.tag();
            let mut logout =
                iscsi::pdu::LogoutRequest::new(itt, iscsi::pdu::LogoutReason::CloseSession, self.cid);
            logout.as_bhs_mut().set_immediate(true);
            logout.cmd_sn = U32::new(self.cmd_sn);
            logout.exp_stat_sn = U32::new(self.exp_stat_sn);
            self.deadline = runtime::clock() + Duration::from_millis(500);
            if self.post(logout, &[]).is_ok() {
                let _ = self.poll(Duration::from_millis(500), |pdu| pdu.is(Opcode::LogoutResponse));
            }
        }
    }
}

/// The limits that a check's connections share.
#[derive(Clone)]
pub(crate) struct Times {
    pub answer_within: Duration,
    pub deadline: Instant,
    pub pings: Rc<RefCell<Vec<Bhs>>>,
}

/// The failure for an awaited PDU that did not arrive.
pub(crate) fn missing(lost: &Lost, what: &str) -> Finding {
    match lost {
        Lost::NotConnected(_) => Finding::Untested(lost.seen()),
        _ => Finding::Wrong { seen: lost.seen(), expected: what.to_owned() },
    }
}
