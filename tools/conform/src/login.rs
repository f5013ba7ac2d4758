//! Login Requests and their answers, one exchange at a time: a check chooses the content and order
//! of the requests.

use iscsi::pdu::{LoginRequest, LoginStatus, Opcode, TextRequest, U32};
use iscsi::text::Pairs;

use crate::conn::Conn;
use crate::finding::{Finding, Verdict, expect, wrong};
use crate::pdu::Pdu;

/// The stages of CSG and NSG.
pub(crate) const SECURITY: u8 = 0;
pub(crate) const OPERATIONAL: u8 = 1;
pub(crate) const FULL_FEATURE: u8 = 3;

/// Maximum number of PDUs per text.
const PARTS: usize = 64;

/// The text of an answer, from any number of PDUs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answer {
    /// The PDUs, at least one.
    pub pdus: Vec<Pdu>,
    /// Keys and values, in order.
    pub pairs: Vec<(String, String)>,
    /// The error of a malformed text.
    pub malformed: Option<String>,
}

impl Answer {
    pub fn last(&self) -> Pdu {
        self.pdus.last().cloned().unwrap_or_default()
    }

    pub fn get(&self, key: &str) -> Option<&str> {
        self.pairs.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    /// A Login Response's status.
    pub fn status(&self) -> u16 {
        (self.last().word(36) >> 16) as u16
    }

    pub fn is_success(&self) -> bool {
        self.status() >> 8 == 0
    }

    /// T, C, CSG and NSG.
    pub fn flags(&self) -> u8 {
        self.last().bhs.flags
    }

    pub(crate) fn transits(&self) -> bool {
        self.flags() & 0x80 != 0
    }

    pub fn tsih(&self) -> u16 {
        self.last().bhs.as_login_response().tsih.get()
    }

    /// The answer, for display.
    pub fn told(&self) -> String {
        if self.is_success() {
            let text: Vec<String> = self.pairs.iter().map(|(key, value)| format!("{key}={value}")).collect();
            format!(
                "status 0000 and {}",
                if text.is_empty() { "no keys".to_owned() } else { text.join(", ") }
            )
        } else {
            format!("login status {}", status_name(self.status()))
        }
    }

    fn take(&mut self, text: &[u8]) {
        for pair in Pairs::new(text) {
            match pair {
                Ok(pair) => self.pairs.push((pair.key.to_owned(), pair.value.to_owned())),
                Err(error) => self.malformed = Some(error.to_string()),
            }
        }
    }
}

/// A login status as text.
pub(crate) fn status_name(status: u16) -> String {
    match LoginStatus::from_code(status) {
        Some(known) => format!("{status:04x} ({})", known.name()),
        None => format!("{status:04x}"),
    }
}

/// The text for `key=value` pairs.
pub(crate) fn text(pairs: &[(&str, &str)]) -> Vec<u8> {
    pairs.iter().flat_map(|(key, value)| format!("{key}={value}\0").into_bytes()).collect()
}

impl Conn {
    /// A Login Request of this connection; with `nsg` it sets the T bit.
    pub(crate) fn login_request(&mut self, csg: u8, nsg: Option<u8>) -> LoginRequest {
        let mut request = LoginRequest::new(0x10, self.isid, self.tsih, self.cid);
        request.flags = csg << 2 | nsg.map_or(0, |nsg| 0x80 | nsg);
        request.cmd_sn = U32::new(self.cmd_sn);
        request.exp_stat_sn = U32::new(self.exp_stat_sn);
        request
    }

    /// Sends a request with a text and returns the answer.
    pub(crate) fn login_step(&mut self, csg: u8, nsg: Option<u8>, pairs: &[(&str, &str)]) -> Verdict<Answer> {
        let request = self.login_request(csg, nsg);
        for (key, value) in pairs {
            self.offered.insert((*key).to_owned(), (*value).to_owned());
        }
        self.post(request, &text(pairs))?;
        self.login_answer(csg)
    }

    /// Receives an answer of one or more PDUs.
    pub(crate) fn login_answer(&mut self, csg: u8) -> Verdict<Answer> {
        let (mut answer, mut collected) = (Answer::default(), Vec::new());
        for _ in 0..PARTS {
            let pdu = self.wait("a Login Response", |_| true)?;
            if !pdu.is(Opcode::LoginResponse) {
                return wrong(pdu.bhs.to_string(), "a Login Response");
            }
            collected.extend_from_slice(&pdu.data);
            let continues = pdu.bhs.flags & 0x40 != 0 && pdu.bhs.as_login_response().status_class == 0;
            answer.pdus.push(pdu);
            if !continues {
                answer.take(&collected);
                if answer.is_success() {
                    self.agreed.extend(answer.pairs.iter().cloned());
                }
                return Ok(answer);
            }
            let request = self.login_request(csg, None);
            self.post(request, &[])?;
        }
        wrong(format!("a text of more than {PARTS} PDUs"), "a text that comes to an end")
    }

    /// A whole text exchange in the full feature phase.
    pub(crate) fn text_step(&mut self, pairs: &[(&str, &str)]) -> Verdict<Answer> {
        let itt = self.tag();
        let mut request = TextRequest::new(itt, iscsi::pdu::RESERVED_TAG);
        request.flags = 0x80;
        request.as_bhs_mut().set_immediate(true);
        let (mut answer, mut collected) = (Answer::default(), Vec::new());
        let mut data = text(pairs);
        for _ in 0..PARTS {
            request.cmd_sn = U32::new(self.cmd_sn);
            request.exp_stat_sn = U32::new(self.exp_stat_sn);
            self.post(request, &data)?;
            let pdu = self.answer(Opcode::TextResponse, itt)?;
            collected.extend_from_slice(&pdu.data);
            let (done, ttt, lun) = (pdu.bhs.flags & 0x80 != 0, pdu.word(20), pdu.bhs.lun());
            answer.pdus.push(pdu);
            if done {
                answer.take(&collected);
                return Ok(answer);
            }
            data.clear();
            request.ttt = U32::new(ttt);
            request.as_bhs_mut().lun = lun;
        }
        wrong(format!("a text of more than {PARTS} PDUs"), "a text that comes to an end")
    }
}

/// A target's refusal of an invalid login.
pub(crate) enum Refused {
    /// A Login Response with this status, of a class other than 0.
    Status(u16),
    /// The target closed the connection, or sent a Reject.
    Otherwise,
}

/// Fails unless the target refuses the last request, by a status of class 2 or 3, or by closing.
pub(crate) fn refused(conn: &mut Conn, what: &str) -> Verdict<Refused> {
    use crate::conn::Ending;
    match conn.outcome(|_| true) {
        Ending::Closed => Ok(Refused::Otherwise),
        Ending::Pdu(pdu) if pdu.is(Opcode::Reject) => Ok(Refused::Otherwise),
        Ending::Pdu(pdu) if pdu.is(Opcode::LoginResponse) => {
            let mut answer = Answer { pdus: vec![pdu.clone()], ..Answer::default() };
            answer.take(&pdu.data);
            expect(matches!(answer.status() >> 8, 2 | 3), what, || answer.told())?;
            Ok(Refused::Status(answer.status()))
        }
        Ending::Pdu(pdu) => wrong(pdu.bhs.to_string(), what),
        Ending::Silent => wrong("no answer, and the connection stays open", what),
    }
}

/// The same, with exactly the standard's status. Another status of class 2 is a warning, and so is
/// closing without one.
pub(crate) fn refused_with(conn: &mut Conn, status: u16) -> Verdict {
    let expected = format!("login status {}", status_name(status));
    match refused(conn, &expected)? {
        Refused::Status(got) if got == status => Ok(()),
        Refused::Status(got) => {
            Err(Finding::Doubtful { seen: format!("login status {}", status_name(got)), expected })
        }
        Refused::Otherwise => {
            Err(Finding::Doubtful { seen: "the connection ended without a status".to_owned(), expected })
        }
    }
}
